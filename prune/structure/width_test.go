package structure

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

func plan(t *testing.T, m *lm.Model, w corpus.Windows, o Options) *Plan {
	t.Helper()
	p, err := Choose(t.Context(), m, w, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// inputsOf gathers what reaches the matrices of a role, a matrix of rows for each sequence.
func inputsOf(t *testing.T, m *lm.Model, w corpus.Windows, role arch.Role) map[string][][][]float32 {
	t.Helper()
	all := map[string][][][]float32{}
	hooks := &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		if l.Role != role {
			return
		}
		var rows [][]float32
		for i := range x.Rows {
			rows = append(rows, slices.Clone(x.RowF32(i)))
		}
		all[l.Name] = append(all[l.Name], rows)
	}}
	for _, ids := range w.IDs {
		if _, err := m.Forward(t.Context(), [][]int32{ids}, lm.ForwardOptions{Hooks: hooks}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// linear finds the matrix of a role in a layer.
func linear(t *testing.T, m *lm.Model, l int, role arch.Role) lm.Linear {
	t.Helper()
	for _, x := range m.Linears(l) {
		if x.Role == role {
			return x
		}
	}
	t.Fatalf("layer %d has no %s", l, role)
	return lm.Linear{}
}

// weights gives a BF16 matrix as rows.
func weights(t *testing.T, m *lm.Model, name string) [][]float64 {
	t.Helper()
	x, err := m.Param(name)
	if err != nil {
		t.Fatal(err)
	}
	rows := make([][]float64, x.Rows)
	for i := range rows {
		for j := range x.Cols {
			bits := uint32(x.Buf.U16()[x.Off+i*x.Cols+j]) << 16
			rows[i] = append(rows[i], float64(math.Float32frombits(bits)))
		}
	}
	return rows
}

// top lists the indices of the n largest.
func top(scores []float64, n int) []int {
	sorted := slices.Clone(scores)
	slices.Sort(sorted)
	var list []int
	for i, v := range scores {
		if v >= sorted[len(sorted)-n] {
			list = append(list, i)
		}
	}
	return list
}

// Minitron's neurons and heads from the activations as they are written down.
func TestMinitron(t *testing.T) {
	m, w := open(t, 2)
	c := m.Config()
	p := plan(t, m, w, Options{FFN: Share{Drop: 0.5}, KVHeads: Share{Keep: 2}, Score: Minitron})
	flows := func(in [][][]float32) []float64 {
		out := make([]float64, len(in[0][0]))
		for _, rows := range in {
			for j := range out {
				mean := 0.0
				for _, r := range rows {
					mean += math.Abs(float64(r[j])) / float64(len(rows))
				}
				out[j] += mean * mean
			}
		}
		for j := range out {
			out[j] = math.Sqrt(out[j])
		}
		return out
	}

	downs, outs := inputsOf(t, m, w, arch.Down), inputsOf(t, m, w, arch.O)
	for l := range c.Layers {
		if want := top(flows(downs[linear(t, m, l, arch.Down).Name]), 128); !slices.Equal(p.Cut.Inner[l], want) {
			t.Errorf("layer %d: neurons %v, want %v", l, p.Cut.Inner[l], want)
		}

		values := make([]float64, c.KVHeads)
		for j, v := range flows(outs[linear(t, m, l, arch.O).Name]) {
			values[j/c.HeadDim/(c.Heads/c.KVHeads)] += v * v
		}
		if want := top(values, 2); !slices.Equal(p.Cut.KVHeads[l], want) {
			t.Errorf("layer %d: key/value heads %v, want %v", l, p.Cut.KVHeads[l], want)
		}
	}
}

// Wanda-sp's neurons, and those of magnitude summed over rows and columns, from the weights.
func TestSummedMetrics(t *testing.T) {
	m, w := open(t, 2)
	c := m.Config()
	sp := plan(t, m, w, Options{FFN: Share{Keep: 96}, Score: WandaSP})
	sums := plan(t, m, w, Options{FFN: Share{Keep: 96}, Heads: Share{Keep: 3}, Score: "magnitude"})
	downs := inputsOf(t, m, w, arch.Down)
	for l := range c.Layers {
		x := linear(t, m, l, arch.Down)
		down := weights(t, m, x.Name)
		gate, up := weights(t, m, linear(t, m, l, arch.Gate).Name), weights(t, m, linear(t, m, l, arch.Up).Name)
		norms := make([]float64, c.Inner)
		for _, rows := range downs[x.Name] {
			for _, r := range rows {
				for j, v := range r {
					norms[j] += float64(v) * float64(v) / float64(len(w.IDs))
				}
			}
		}

		wanda := make([]float64, c.Inner)
		all := make([]float64, c.Inner)
		for j := range c.Inner {
			for i := range down {
				wanda[j] += math.Abs(down[i][j]) * math.Sqrt(norms[j])
				all[j] += math.Abs(down[i][j]) + math.Abs(gate[j][i]) + math.Abs(up[j][i])
			}
		}
		if want := top(wanda, 96); !slices.Equal(sp.Cut.Inner[l], want) {
			t.Errorf("layer %d: wanda-sp keeps %v, want %v", l, sp.Cut.Inner[l], want)
		}
		if want := top(all, 96); !slices.Equal(sums.Cut.Inner[l], want) {
			t.Errorf("layer %d: magnitude keeps %v, want %v", l, sums.Cut.Inner[l], want)
		}

		// One of the two queries of each head of keys and values.
		q, o := weights(t, m, linear(t, m, l, arch.Q).Name), weights(t, m, linear(t, m, l, arch.O).Name)
		heads := make([]float64, c.Heads)
		for h := range heads {
			for d := h * c.HeadDim; d < (h+1)*c.HeadDim; d++ {
				for i := range o {
					heads[h] += math.Abs(q[d][i]) + math.Abs(o[i][d])
				}
			}
		}
		var want []int
		for v := range c.KVHeads {
			want = append(want, 2*v+top(heads[2*v:2*v+2], 1)[0])
		}
		if !slices.Equal(sums.Cut.Heads[l], want) {
			t.Errorf("layer %d: heads %v, want %v", l, sums.Cut.Heads[l], want)
		}
	}
}

// The fit is the least squares that the documentation says, found by another way: what the inputs that go give, fitted
// on those that stay, with a row for each weight that draws it to what it was.
func TestRestorationIsLeastSquares(t *testing.T) {
	const in, out, tokens = 12, 5, 40
	x, w := signs(1, tokens, in), signs(2, out, in)
	solver := linalg.Solver{Threads: 1}
	h := linalg.New(in, in)
	solver.Mul(h, x, x, linalg.Product{TransA: true})
	f := &fit{solver: solver, w: w, keep: []int{0, 2, 3, 7, 8, 11}}
	n := len(f.keep)

	for _, ridge := range []float64{0.01, 0.3, 10} {
		got, _, err := f.made(w, h, ridge)
		if err != nil {
			t.Fatal(err)
		}

		a := linalg.New(tokens+n, n)
		y := linalg.New(tokens+n, out)
		solver.Mul(y.Sub(0, tokens, 0, out), x, f.part(w, false), linalg.Product{TransB: true})
		for j, k := range f.keep {
			for i := range tokens {
				a.Set(i, j, x.At(i, k))
			}
			a.Set(tokens+j, j, math.Sqrt(ridge*h.At(k, k)))
		}
		want, err := solver.LeastSquares(a, y)
		if err != nil {
			t.Fatal(err)
		}
		for i := range out {
			for j := range in {
				k, stays := slices.BinarySearch(f.keep, j)
				if stays && math.Abs(got.At(i, j)-w.At(i, j)-want.At(k, i)) > 1e-5 || !stays && got.At(i, j) != 0 {
					t.Errorf("ridge %g: output %d, input %d: %g", ridge, i, j, got.At(i, j))
				}
			}
		}
	}
}

// signs draws a matrix of values between -1 and 1.
func signs(key, rows, cols int) linalg.Matrix {
	a := linalg.New(rows, cols)
	s := rng.NewStream(7, key, 0)
	for i := range a.Data {
		a.Data[i] = float64(s.Below(2001))/1000 - 1
	}
	return a
}

// How strongly a fit is drawn to the weights as they were is what is best on text that was held out, of all that could
// be tried; and what makes nothing up there is left.
func TestRidgeIsChosenByHeldOutText(t *testing.T) {
	const in, out = 24, 8
	solver := linalg.Solver{Threads: 1}
	mix := signs(9, in, in)
	gram := func(key, tokens int, mixed bool) linalg.Matrix {
		x := signs(key, tokens, in)
		if mixed { // inputs that know of each other
			y := linalg.New(tokens, in)
			solver.Mul(y, x, mix, linalg.Product{})
			x = y
		}
		h := linalg.New(in, in)
		solver.Mul(h, x, x, linalg.Product{TransA: true})
		return h
	}

	chosen := map[float64]bool{}
	for _, tokens := range []int{6, 20, 30, 60, 1000} {
		f := &fit{
			solver: solver, w: signs(3, out, in),
			keep: []int{0, 1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22},
		}
		h, held := gram(4, tokens, true), gram(5, 400, true)
		var found Restored
		if err := f.choose(&found, h, held); err != nil {
			t.Fatal(err)
		}
		for _, r := range ridges {
			made, _, err := f.made(f.w, h, r)
			if err != nil {
				t.Fatal(err)
			}
			if v := f.lost(f.w, made, held); v < found.Updated*(1-1e-9) {
				t.Errorf("%d tokens: %g gives %g, %g was taken and gives %g", tokens, r, v, found.Ridge, found.Updated)
			}
		}
		if found.Left || found.Updated >= found.Cut {
			t.Errorf("%d tokens: %+v", tokens, found)
		}
		chosen[found.Ridge] = true
	}
	if len(chosen) < 3 {
		t.Errorf("however much text there is, %v is taken", chosen)
	}

	// Inputs that know nothing of each other, and little text: any fit is to chance.
	f := &fit{solver: solver, w: signs(3, out, in), keep: []int{0, 1, 2, 3, 4, 5}}
	var found Restored
	if err := f.choose(&found, gram(4, 4, false), gram(6, 4000, false)); err != nil {
		t.Fatal(err)
	}
	if !found.Left || found.Ridge != 0 || found.Updated != found.Cut {
		t.Errorf("%+v", found)
	}
}

// With fewer than four sequences nothing is held out: the usual strength, and figures of what was fitted.
func TestRestoredByLittleText(t *testing.T) {
	m, w := open(t, 1)
	w.IDs, w.Count = w.IDs[:2], 2
	p := plan(t, m, w, Options{FFN: Share{Drop: 0.25}})
	if err := Restore(t.Context(), m, w, p, nil); err != nil {
		t.Fatal(err)
	}
	if len(p.Width.Restored) != m.Blocks() {
		t.Errorf("%d matrices of %d blocks", len(p.Width.Restored), m.Blocks())
	}
	for _, x := range p.Width.Restored {
		if x.Ridge != ridges[usual] || x.Left || !(x.Updated < x.Cut) || x.Damping.Tries == 0 {
			t.Errorf("%+v", x)
		}
	}
}

// In every family: what is chosen and restored in memory is what the smaller model computes, and the second half of an
// interrupted run gives the same.
func TestNarrowFamilies(t *testing.T) {
	root := filepath.Join("..", "..", "lm", "testdata", "families")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	narrowed := 0
	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			dev, err := device.Open("cpu", device.Options{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			m, err := lm.Load(t.Context(), filepath.Join(root, e.Name()), dev, lm.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()

			w := drawn(m.Config().Vocab)
			o := Options{FFN: Share{Drop: 0.5}, KVHeads: Share{Drop: 0.5}}
			if m.Config().KVHeads < 2 || m.Config().QKNorm == arch.PerRow {
				o.KVHeads = Share{} // norms over all heads see those that went
			}
			p, err := Choose(t.Context(), m, w, o)
			if errors.Is(err, lm.ErrCut) {
				t.Log(err) // of heads, where their size is not written down
				o.KVHeads = Share{}
				p, err = Choose(t.Context(), m, w, o)
			}
			if errors.Is(err, lm.ErrCut) {
				t.Log(err) // of shared experts, whose size is a multiple of the others'
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			narrowed++

			out := filepath.Join(t.TempDir(), "out")
			s, err := m.NewSaver(out, lm.SaveOptions{Cut: p.Cut})
			if err != nil {
				t.Fatal(err)
			}
			if err := Restore(t.Context(), m, w, p, s); err != nil {
				t.Fatal(err)
			}
			if err := s.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, x := range p.Width.Restored {
				if x.Updated > x.Cut*(1+1e-6) {
					t.Errorf("%s: error %g, %g before it was restored", x.Name, x.Updated, x.Cut)
				}
			}

			small, err := lm.Load(t.Context(), out, dev, lm.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer small.Close()
			got, err := small.SequenceLosses(t.Context(), w, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, err := m.SequenceLosses(t.Context(), w, nil) // with zeros where nothing stays
			if err != nil {
				t.Fatal(err)
			}
			for i := range want.Loss {
				if math.Abs(got.Loss[i]-want.Loss[i]) > 2e-5*want.Loss[i] {
					t.Errorf("sequence %d: loss %g, in memory %g", i, got.Loss[i], want.Loss[i])
				}
			}
		})
	}
	if narrowed < 15 {
		t.Errorf("%d families were narrowed", narrowed)
	}
}

// drawn makes a few sequences of any tokens.
func drawn(vocab int) corpus.Windows {
	w := corpus.Windows{SeqLen: 24, Count: 4}
	for i := range w.Count {
		s := rng.NewStream(3, i, 0)
		var ids []int32
		for range w.SeqLen {
			ids = append(ids, int32(s.Below(vocab)))
		}
		w.IDs = append(w.IDs, ids)
	}
	return w
}

// What interrupted runs have written is taken from there.
func TestRestoreResumes(t *testing.T) {
	run := func(t *testing.T, out string, stop bool) map[string]string {
		m, w := open(t, 2)
		asked := Options{FFN: Share{Drop: 0.25}, Heads: Share{Keep: 3}}
		p := plan(t, m, w, asked)
		o := lm.SaveOptions{Cut: p.Cut, Fingerprint: "job", Resume: true}
		s, err := m.NewSaver(out, o)
		if err != nil {
			t.Fatal(err)
		}
		if stop {
			whole := p.Cut.Layers
			p.Cut.Layers = []int{0, 1} // as far as it gets
			if err := Restore(t.Context(), m, w, p, s); err != nil {
				t.Fatal(err)
			}
			p.Cut.Layers = whole
			if err := s.Suspend(); err != nil {
				t.Fatal(err)
			}
			return nil
		}
		if err := Restore(t.Context(), m, w, p, s); err != nil {
			t.Fatal(err)
		}
		if err := s.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		record, err := p.Manifest(t.Context(), m, w)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(out, prune.ManifestFile), record, 0o644); err != nil {
			t.Fatal(err)
		}
		recalled, err := Recall(m, w, asked, out)
		if err != nil || !slices.Equal(recalled.Width.Restored, p.Width.Restored) ||
			*recalled.Width.Heads != (Kept{6, 3}) {
			t.Errorf("recalled %+v (%v), %+v before", recalled, err, p.Width)
		} else if again, err := m.NewSaver(out, lm.SaveOptions{
			Cut: recalled.Cut, Fingerprint: "job", Resume: true,
		}); err != nil || !again.Complete() {
			t.Errorf("what is recalled does not fit the output: %v", err)
		}
		for _, other := range []Options{{Layers: Share{Keep: 3}}, {FFN: asked.FFN, Layers: Share{Keep: 3}}} {
			if _, err := Recall(m, w, other, out); !errors.Is(err, lm.ErrDamaged) {
				t.Errorf("the record of another run: %v", err)
			}
		}
		files := map[string]string{"record": string(record)}
		for _, name := range []string{"model.safetensors", "config.json"} {
			text, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			files[name] = string(text)
		}
		return files
	}

	want := run(t, filepath.Join(t.TempDir(), "out"), false)
	out := filepath.Join(t.TempDir(), "out")
	run(t, out, true)
	for name, text := range run(t, out, false) {
		if text != want[name] {
			t.Errorf("%s differs behind an interruption", name)
		}
	}
}

func TestSizes(t *testing.T) {
	m, w := open(t, 2) // 256 neurons, 6 heads on 3, 96 channels
	tests := map[string]struct {
		o    Options
		want string
	}{
		"neurons": {Options{FFN: Share{Keep: 300}}, "300 neurons are to stay, there are 256"},
		"block":   {Options{FFN: Share{Keep: 100}}, "quantised formats have blocks of 32; 96 or 128 would do"},
		"heads": {
			Options{Heads: Share{Keep: 4}},
			"divide the 96 channels and be as many for each of 3 key/value heads; 3 would do",
		},
		"more heads":     {Options{Heads: Share{Keep: 9}}, "9 heads: "},
		"key/value":      {Options{KVHeads: Share{Keep: 4}}, "4 key/value heads of 3: "},
		"channels":       {Options{Hidden: Share{Keep: 64}}, "channels: 6 heads have to divide it; 60 or 66 would do"},
		"the same":       {Options{FFN: Share{Keep: 256}}, "all 256 neurons would stay"},
		"nearest heads":  {Options{Heads: Share{Keep: 5}}, "3 would do"},
		"all heads":      {Options{KVHeads: Share{Drop: 0.1}}, "all 6 heads would stay"},
		"score":          {Options{FFN: Share{Keep: 64}, Score: "magic"}, "besides wanda-sp, minitron, obs"},
		"score of none":  {Options{Layers: Share{Keep: 2}, Score: Minitron}, "of which all stay"},
		"layers of none": {Options{FFN: Share{Keep: 64}, By: Greedy}, "greedy chooses layers, of which all stay"},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Choose(t.Context(), m, w, x.o); !errors.Is(err, ErrOptions) ||
				!strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want %q", err, x.want)
			}
		})
	}

	if n, err := (Share{Drop: .5}).row("channels", 576, 9); err != nil || n != 288 { // not 432 or 144 for 25 %, 75 %
		t.Errorf("half of 576, in blocks of 32 that 9 heads divide: %d, %v", n, err)
	}
	for drop, want := range map[float64]int{0.25: 192, 0.1: 224, 0.5: 128, 0.99: 32} {
		if n, err := (Share{Drop: drop}).row("neurons", 256, 1); err != nil || n != want {
			t.Errorf("without %g of 256: %d (%v), want %d", drop, n, err, want)
		}
	}
}
