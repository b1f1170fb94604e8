package lm

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/safetensors"
)

// gradients runs a backward pass and copies what it delivers.
func gradients(t testing.TB, m *Model, ids [][]int32, o BackwardOptions) (map[string][]float32, *Result) {
	t.Helper()
	all := map[string][]float32{}
	if o.Hooks == nil {
		o.Hooks = &Hooks{}
	}

	o.Hooks.WeightGrad = func(name string, g kernels.Mat) error {
		if all[name] != nil {
			t.Errorf("%s is delivered twice", name)
		}
		all[name] = values(g)
		return nil
	}

	r, err := m.Backward(context.Background(), ids, o)
	if err != nil {
		t.Fatal(err)
	}

	return all, r
}

// Every gradient of every model of the oracle, on both host devices.
func TestGradOracle(t *testing.T) {
	root := oracleDir(t, "models")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "oracle.safetensors")); err != nil {
			continue
		}

		t.Run(e.Name(), func(t *testing.T) {
			want := openExpected(t, filepath.Join(dir, "oracle"))
			devices(t, func(t *testing.T, dev kernels.Device) {
				checkGradients(t, load(t, dir, dev, Options{}), want)
			})
		})
	}
}

// checkGradients compares with the tolerance of the oracle's README: 1e-4 of the tensor's largest value, and
// 1e-6 of the largest of all for tensors whose true gradient is zero. The noise of float32 is 3e-6.
func checkGradients(t *testing.T, m *Model, want *expected) {
	top, count := 0.0, 0
	for _, name := range want.file.Names() {
		if strings.HasPrefix(name, "grad.") {
			top = max(top, largest(want.floats(t, name)))
			count++
		}
	}

	if count == 0 {
		t.Skip("the oracle has no gradients")
	}

	got, r := gradients(t, m, want.ids(t, "input_ids"), BackwardOptions{})
	if math.Abs(r.Loss-want.Loss) > tolLoss {
		t.Errorf("loss %.9f, want %.9f", r.Loss, want.Loss)
	}

	tensors := map[string]bool{}
	for name, g := range got {
		stored, first := m.dense.Place(name) // experts may lie in one tensor, and so may their gradients
		tensors[stored] = true
		w := want.floats(t, "grad."+stored)[first:][:len(g)]
		limit := 1e-4*largest(w) + 1e-6*top
		if d := distance(g, w); !(d <= limit) {
			t.Errorf("%s: off by %.3g, more than %.3g (largest %.3g)", name, d, limit, largest(w))
		}
	}

	if len(tensors) != count {
		t.Errorf("gradients of %d tensors, want %d", len(tensors), count)
	}
}

func largest(x []float32) float64 {
	top := 0.0
	for _, v := range x {
		top = max(top, math.Abs(float64(v)))
	}
	return top
}

// distance is the largest difference; not a number where one is.
func distance(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.NaN()
	}

	worst := 0.0
	for i, v := range a {
		if d := math.Abs(float64(v) - float64(b[i])); !(d <= worst) {
			worst = d
		}
	}

	return worst
}

// The accumulated gradients that a published pruning code computed from a trained model: G = 100·sqrt(Σ g²)
// over 16 windows, each with the mean loss of its own tokens. The oracle's README gives 2e-5 as what another
// implementation reached.
func TestAccumulatedGradOracle(t *testing.T) {
	root := oracleDir(t, "prune/stories260k")
	m := load(t, shared(t, "", "data/models/stories260k"), cpuDevice(t, 2), Options{})
	want := openTensors(t, filepath.Join(root, "grads.safetensors"))
	ids := openTensors(t, filepath.Join(root, "ids.safetensors")).ids(t, "calib_ids")
	sums := map[string][]float64{}
	hooks := &Hooks{WeightGrad: func(name string, g kernels.Mat) error {
		if sums[name] == nil {
			sums[name] = make([]float64, g.Len())
		}
		for i, v := range values(g) {
			sums[name][i] += float64(v) * float64(v)
		}
		return nil
	}}

	linear := func(name string) bool {
		_, ok := want.file.Info(strings.TrimSuffix(name, ".weight") + ".G")
		return ok
	}

	for _, window := range ids {
		if _, err := m.Backward(context.Background(), [][]int32{window},
			BackwardOptions{Hooks: hooks, Want: linear}); err != nil {
			t.Fatal(err)
		}
	}

	if len(sums) != len(want.file.Names()) {
		t.Fatalf("%d gradients, want %d", len(sums), len(want.file.Names()))
	}

	for name, sum := range sums {
		w := want.floats(t, strings.TrimSuffix(name, ".weight")+".G")
		worst := 0.0
		for i, s := range sum {
			worst = max(worst, math.Abs(100*math.Sqrt(s)-float64(w[i]))/math.Abs(float64(w[i])))
		}
		if !(worst <= 2e-5) {
			t.Errorf("%s: off by %.3g", name, worst)
		}
	}
}

func openTensors(t *testing.T, path string) *expected {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &expected{file: f}
}

func cpuDevice(t testing.TB, threads int) kernels.Device {
	t.Helper()
	dev, err := device.Open("cpu", device.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// tinyModels runs a test on every architecture.
func tinyModels(t *testing.T, f func(t *testing.T, config map[string]any)) {
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) { f(t, config) })
	}
}

// A step along a direction changes the loss by the gradient's share in it. Losses come from the plain loops
// (sums in float64); two step sizes cancel the cubic term. The tolerance is what is left of it, and the
// rounding of the losses (2e-7) over the step. Where a kink (ReLU, a clamp) or a change of experts is within
// the step, a smaller one is taken.
func TestGradientsAreFiniteDifferences(t *testing.T) {
	ids := tokens(11, 37, 9, 1, 6)
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 21, std: 0.2}.write(t, t.TempDir()), ref.New(), Options{})
		grads, _ := gradients(t, m, ids, BackwardOptions{})
		for name, g := range grads {
			w, err := m.MutableParam(name)
			if err != nil {
				t.Fatal(err)
			}

			start := values(w)
			dir, want := direction(g, uint64(len(name)))
			along := func(step float64) float64 {
				move(w, start, dir, step)
				up := forward(t, m, ids, ForwardOptions{}).Loss
				move(w, start, dir, -step)
				return (up - forward(t, m, ids, ForwardOptions{}).Loss) / (2 * step)
			}

			got, ok := 0.0, false
			for h := 4e-3; h > 1e-4 && !ok; h /= 4 {
				got = (4*along(h/2) - along(h)) / 3
				ok = math.Abs(got-want) <= 3e-3*math.Abs(want)+1.6e-6/h
			}
			if !ok {
				t.Errorf("%s: the loss rises by %.6g, the gradient says %.6g", name, got, want)
			}

			move(w, start, dir, 0)
		}
	})
}

// direction mixes the gradient's own direction with a random one, at length 1, and gives the gradient's share in it.
func direction(g []float32, seed uint64) (dir []float64, share float64) {
	norm := math.Sqrt(float64(len(g)))
	gnorm := 0.0
	for _, v := range g {
		gnorm += float64(v) * float64(v)
	}

	gnorm = math.Sqrt(gnorm) + 1e-12
	length := 0.0
	for i, v := range g {
		u := float64(v)/gnorm + (uniform(seed, uint64(i))-0.5)/norm
		dir, length = append(dir, u), length+u*u
	}

	for i := range dir {
		dir[i] /= math.Sqrt(length)
		share += dir[i] * float64(g[i])
	}

	return dir, share
}

func move(w kernels.Mat, start []float32, dir []float64, step float64) {
	at := w.Buf.F32()
	for i := range at {
		at[i] = float32(float64(start[i]) + step*dir[i])
	}
	w.Buf.Changed()
}

// What is asked for does not change what comes out: every selection gives the bits of the full pass, as do kept
// blocks, one thread, and streamed weights.
func TestSelectiveGradients(t *testing.T) {
	ids := tokens(12, 37, 12, 7)
	tinyModels(t, func(t *testing.T, config map[string]any) {
		dir := recipe{config: config, seed: 22, std: 0.2}.write(t, t.TempDir())
		m := load(t, dir, cpuDevice(t, 2), Options{})
		all, full := gradients(t, m, ids, BackwardOptions{})
		same := func(what string, got map[string][]float32, r *Result, want func(string) bool) {
			t.Helper()

			for name, g := range all {
				if !want(name) {
					g = nil
				}
				if !slices.Equal(got[name], g) {
					t.Errorf("%s: %s differs", what, name)
				}
			}

			if r.Loss != full.Loss || !reflect.DeepEqual(r.LossPerToken, full.LossPerToken) {
				t.Errorf("%s: the losses differ", what)
			}
		}

		everything := func(string) bool { return true }

		for _, name := range m.Tensors() {
			only := func(n string) bool { return n == name }
			got, r := gradients(t, m, ids, BackwardOptions{Want: only})
			same(name, got, r, only)
		}

		got, r := gradients(t, m, ids, BackwardOptions{Keep: 1 << 40})
		same("kept", got, r, everything)
		got, r = gradients(t, m, ids, BackwardOptions{Keep: m.setup.TapeBytes(m.blocks[0].Block, 19)})
		same("one kept", got, r, everything)

		got, r = gradients(t, load(t, dir, cpuDevice(t, 1), Options{}), ids, BackwardOptions{})
		same("one thread", got, r, everything)
		got, r = gradients(t, load(t, dir, cpuDevice(t, 2), Options{Stream: true}), ids, BackwardOptions{})
		same("streamed", got, r, everything)
		plain := forward(t, m, ids, ForwardOptions{})
		if math.Abs(plain.Loss-full.Loss) > 1e-6 { // the loss's own operation may sum in another order
			t.Errorf("loss %.9f, forward gives %.9f", full.Loss, plain.Loss)
		}
	})
}

// A batch's gradient is the mean of its sequences', weighted by the labels that count.
func TestBatchGradients(t *testing.T) {
	ids := tokens(13, 37, 12, 7)
	labels := [][]int32{slices.Clone(ids[0]), slices.Clone(ids[1])}
	labels[0][3] = IgnoreLabel
	labels[1][5] = IgnoreLabel
	labels[1][6] = IgnoreLabel
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 23, std: 0.2}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
		both, r := gradients(t, m, ids, BackwardOptions{Labels: labels})
		if r.Counted != 14 {
			t.Fatalf("%d labels count", r.Counted)
		}

		// The parts add what the batch adds in another order, and kernels take other ways for other numbers of tokens.
		drift := pathOf(m, 12).Gradients(19)
		top := 0.0
		sizes := map[string]float64{}
		for name, g := range both {
			sizes[name] = largest(g)
			top = max(top, sizes[name])
		}

		// as for the oracle's gradients: some are zero but for noise
		limit := func(size float64) float64 { return drift*size + 1e-6*top }

		for i, n := range []int{10, 4} {
			part, _ := gradients(t, m, ids[i:i+1], BackwardOptions{Labels: labels[i : i+1], Denominator: 14})
			mean, _ := gradients(t, m, ids[i:i+1], BackwardOptions{Labels: labels[i : i+1]})
			for name, g := range part {
				size := largest(mean[name])

				for j, v := range g {
					both[name][j] -= v
					mean[name][j] -= v * 14 / float32(n)
				}

				if d := largest(mean[name]); !(d <= limit(size)) {
					t.Errorf("%s: the denominator is off by %g, more than %g", name, d, limit(size))
				}
			}
		}

		for name, g := range both {
			if d := largest(g); !(d <= limit(sizes[name])) {
				t.Errorf("%s: the sequences' gradients leave %g, more than %g", name, d, limit(sizes[name]))
			}
		}
	})
}

// The gradient of a hidden state is that of what is added to it, as finite differences say; states are asked
// for one by one.
func TestHiddenGradients(t *testing.T) {
	ids := tokens(14, 37, 8, 5)
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 24, std: 0.2}.write(t, t.TempDir()), ref.New(), Options{})
		var all [][]float32
		keep := func(state int, g kernels.Mat) error {
			for len(all) <= state {
				all = append(all, nil)
			}
			all[state] = values(g)
			return nil
		}

		if _, err := m.Backward(context.Background(), ids,
			BackwardOptions{Hooks: &Hooks{HiddenGrad: keep}}); err != nil {
			t.Fatal(err)
		}

		full := all
		if len(full) != m.Blocks()+1 {
			t.Fatalf("%d states", len(full))
		}

		for state := range full {
			all = nil

			if _, err := m.Backward(context.Background(), ids, BackwardOptions{
				Hooks: &Hooks{HiddenGrad: keep}, WantHidden: func(s int) bool { return s == state },
			}); err != nil {
				t.Fatal(err)
			}

			if len(all) != state+1 || !slices.Equal(all[state], full[state]) {
				t.Errorf("state %d alone differs", state)
			}

			row := 3 // one position, as an editor does it
			c := m.Config().Hidden
			dir, want := direction(full[state][row*c:(row+1)*c], 3)
			along := func(step float64) float64 {
				edit := func(s int, x kernels.Mat) error {
					if s == state {
						for j, u := range dir {
							x.RowF32(row)[j] += float32(step * u)
						}
						x.Buf.Changed()
					}
					return nil
				}

				r, err := m.Backward(context.Background(), ids, BackwardOptions{Edit: edit})
				if err != nil {
					t.Fatal(err)
				}

				return r.Loss
			}

			const h = 4e-3
			if got := (along(h) - along(-h)) / (2 * h); math.Abs(got-want) > 1e-2*math.Abs(want)+4e-4 {
				t.Errorf("state %d: the loss rises by %.6g, the gradient says %.6g", state, got, want)
			}
		}
	})
}

// A table's gradient in memory that the caller lends, with anything in it, is the same, and memory of another shape is
// refused.
func TestLentTable(t *testing.T) {
	ids := tokens(17, 37, 8, 5)
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 27, std: 0.2}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
		want, _ := gradients(t, m, ids, BackwardOptions{})

		var lent kernels.Mat
		room := func(name string) kernels.Mat {
			p := m.params[name]
			lent = kernels.MatOf(kernels.NewHost(kernels.F32, p.rows*p.cols), p.rows, p.cols)
			for i := range lent.Buf.F32() {
				lent.Buf.F32()[i] = float32(math.NaN())
			}
			return lent
		}

		got, _ := gradients(t, m, ids, BackwardOptions{Room: room})
		for name, g := range want {
			if !slices.Equal(got[name], g) {
				t.Errorf("%s differs", name)
			}
		}
		if lent.IsZero() || !slices.Equal(values(lent), want[m.embed.Name]) {
			t.Error("the table's gradient is not where it was to be")
		}

		short := func(string) kernels.Mat { return lent.RowRange(1, lent.Rows) }
		_, err := m.Backward(context.Background(), ids, BackwardOptions{Room: short, Hooks: &Hooks{
			WeightGrad: func(string, kernels.Mat) error { return nil },
		}})
		if !errors.Is(err, ErrInput) {
			t.Errorf("a table that lacks a row: %v", err)
		}
	})
}

// Gradients of a number that one block's output gives, against the whole model's backward pass in a model cut
// off there: with the same gradient at the output, the block's gradients are the same to the last bit.
func TestBackwardBlock(t *testing.T) {
	ids := tokens(15, 37, 8, 5)
	ctx := context.Background()
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 25, std: 0.2}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
		states := map[int][]float32{}
		all, _ := gradients(t, m, ids, BackwardOptions{Hooks: &Hooks{HiddenGrad: func(s int, g kernels.Mat) error {
			states[s] = values(g)
			return nil
		}}})

		h, err := m.Embed(ids)
		if err != nil {
			t.Fatal(err)
		}

		for l := range m.Blocks() {
			before := values(h.X)
			loss := func(_, grad kernels.Mat) (float64, error) {
				copy(grad.Buf.F32(), states[l+1])
				return 5, nil
			}

			got := map[string][]float32{}
			value, err := m.BackwardBlock(ctx, l, h, loss, BackwardOptions{Hooks: &Hooks{
				WeightGrad: func(name string, g kernels.Mat) error { got[name] = values(g); return nil },
				HiddenGrad: func(s int, g kernels.Mat) error {
					if !slices.Equal(values(g), states[s]) {
						t.Errorf("state %d differs", s)
					}
					return nil
				},
			}})
			if err != nil || value != 5 || !slices.Equal(values(h.X), before) {
				t.Fatalf("%v, %v, or the input has changed", value, err)
			}

			for _, p := range m.blocks[l].params {
				if !slices.Equal(got[p.Name], all[p.Name]) {
					t.Errorf("%s differs", p.Name)
				}
			}

			if err := m.RunBlock(ctx, l, h, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The two losses of a block's output, by finite differences of the output itself.
func TestOutputLosses(t *testing.T) {
	m := load(t, recipe{config: tiny()["llama"]}.write(t, t.TempDir()), ref.New(), Options{})
	out := kernels.MatOf(kernels.WrapF32([]float32{1, -2, 3, 0.5, 0, 4}), 2, 3)
	for name, f := range map[string]func(out, grad kernels.Mat) (float64, error){
		"rms":    m.OutputRMS,
		"square": m.OutputSquare,
	} {
		grad := kernels.MatOf(kernels.NewHost(kernels.F32, 6), 2, 3)
		value, err := f(out, grad)
		if want := map[string]float64{"rms": math.Sqrt(30.25 / 6), "square": 30.25}[name]; err != nil ||
			math.Abs(value-want) > 1e-12 {
			t.Errorf("%s: %v, %v; want %v", name, value, err, want)
		}

		for i, v := range out.Buf.F32() {
			want := 2 * float64(v)
			if name == "rms" {
				want = float64(v) / (6 * value)
			}
			if g := grad.Buf.F32()[i]; math.Abs(float64(g)-want) > 1e-6 {
				t.Errorf("%s: gradient %d is %v, want %v", name, i, g, want)
			}
		}
	}
}

// A delta that is W₀x itself has the gradients of doubling W, and those that pass through it count.
func TestDeltaGradients(t *testing.T) {
	ids := tokens(16, 37, 8, 5)
	tinyModels(t, func(t *testing.T, config map[string]any) {
		m := load(t, recipe{config: config, seed: 26, std: 0.1}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})
		d := &dense{m: m, w: map[string]kernels.Mat{}, g: map[string]kernels.Mat{}}
		for l := range m.Blocks() {
			for _, info := range m.Linears(l) {
				w, err := m.Param(info.Name)
				if err != nil {
					t.Fatal(err)
				}
				d.add(info.Name, w)
			}
		}

		undo, err := m.Attach(d)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := m.Backward(context.Background(), ids, BackwardOptions{}); err != nil { // the delta alone
			t.Fatal(err)
		}

		alone := d.take()
		with, r := gradients(t, m, ids, BackwardOptions{})
		again := d.take()
		undo()

		for name := range d.w {
			w, err := m.MutableParam(name)
			if err != nil {
				t.Fatal(err)
			}
			m.ops.Add(w, w, w, 1)
		}

		want, plain := gradients(t, m, ids, BackwardOptions{})
		if math.Abs(r.Loss-plain.Loss) > 1e-5 {
			t.Errorf("loss %v, doubled weights give %v", r.Loss, plain.Loss)
		}

		for name, g := range want {
			if d := distance(with[name], g); d > 1e-4*largest(g)+1e-5 {
				t.Errorf("%s: off by %g of %g", name, d, largest(g))
			}
			if x := alone[name]; x != nil && (!slices.Equal(x, again[name]) || distance(x, g) > 1e-4*largest(g)+1e-5) {
				t.Errorf("%s: the delta's own gradient is off by %g of %g", name, distance(x, g), largest(g))
			}
		}
	})
}

// dense is a delta with a matrix of its own per linear, in the linear's layout.
type dense struct {
	m    *Model
	w, g map[string]kernels.Mat
}

func (d *dense) add(name string, w kernels.Mat) {
	d.w[name] = kernels.MatOf(kernels.NewHost(kernels.F32, w.Len()), w.Rows, w.Cols)
	d.g[name] = kernels.MatOf(kernels.NewHost(kernels.F32, w.Len()), w.Rows, w.Cols)
	d.m.ops.Convert(d.w[name], w)
}

func (d *dense) take() map[string][]float32 {
	all := map[string][]float32{}
	for name, g := range d.g {
		all[name] = values(g)
		clear(g.Buf.F32())
	}
	return all
}

func (d *dense) Forward(l Linear, x, y kernels.Mat) error {
	if l.Transposed {
		d.m.ops.MatMulNN(y, x, d.w[l.Name], kernels.MatMul{Accumulate: true})
	} else {
		d.m.ops.MatMulNT(y, x, d.w[l.Name], kernels.MatMul{Accumulate: true})
	}
	return nil
}

func (d *dense) Backward(l Linear, x, dy, dx kernels.Mat) error {
	o := kernels.MatMul{Accumulate: true}
	if l.Transposed {
		d.m.ops.MatMulTN(d.g[l.Name], x, dy, o)
		d.m.ops.MatMulNT(dx, dy, d.w[l.Name], o)
	} else {
		d.m.ops.MatMulTN(d.g[l.Name], dy, x, o)
		d.m.ops.MatMulNN(dx, dy, d.w[l.Name], o)
	}
	return nil
}

func (d *dense) Parameters() []Parameter {
	var ps []Parameter
	for name := range d.w {
		ps = append(ps, Parameter{Name: name, Value: d.w[name], Grad: d.g[name]})
	}
	return ps
}
