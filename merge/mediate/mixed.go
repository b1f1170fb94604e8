package mediate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
)

// span is rows of a pass that have the same weights.
type span struct {
	lo, hi  int
	weights []float64
}

// mixture computes the dense model's products and adds to every row what its weights change of them.
type mixture struct {
	r     *Routed
	spans []span
	// gains are what the weights of a span do to a norm, as factors of its outputs, by the linear that reads
	// them and span; nil: nothing.
	gains map[string][][]float32
}

// Mixed lets one pass over sequences of some lengths compute sequence i with weights[i], without a switch: each
// matrix is multiplied by the dense model, and what the experts keep of it is multiplied and added for the rows
// that want it, in float32. Results differ from those of Use by the rounding of effective weights to the
// model's type, which is left out. Everything that is routed must be a matrix of a block or the norm before it,
// on a device in ordinary memory; otherwise the error is ErrMixed. undo goes back to the dense model, as do
// Use, Undo and another call.
func (r *Routed) Mixed(lens []int, weights [][]float64) (undo func(), err error) {
	if len(lens) != len(weights) {
		return nil, fmt.Errorf("%d weights for %d sequences: %w", len(weights), len(lens), output.ErrOption)
	}

	x := &mixture{r: r, gains: map[string][][]float32{}}
	at := 0
	for i, n := range lens {
		if len(weights[i]) != len(r.e.members) {
			return nil, fmt.Errorf("%d weights for %d experts: %w", len(weights[i]), len(r.e.members), output.ErrOption)
		}

		// Neighbours with the same weights share their multiplications.
		if k := len(x.spans) - 1; k >= 0 && slices.Equal(x.spans[k].weights, weights[i]) {
			x.spans[k].hi += n
		} else {
			x.spans = append(x.spans, span{at, at + n, weights[i]})
		}

		at += n
	}

	// Corrections are added to what the dense matrices give, so these must be in their places.
	if err := r.undo(); err != nil {
		return nil, err
	}

	names, err := x.prepare()
	if err != nil || len(names) == 0 {
		return func() {}, err
	}

	detach, err := r.m.Attach(x, names...)
	if err != nil {
		return nil, err
	}

	// Both the caller and the next change of weights end it, whoever comes first.
	leave := sync.OnceFunc(func() { detach(); r.leave = nil })
	r.leave = leave
	return leave, nil
}

// prepare finds the linears that change, and what becomes of the norms before them.
func (x *mixture) prepare() (names []string, err error) {
	m := x.r.m
	if !m.Device().Info().Host {
		return nil, fmt.Errorf("device %s: %w", m.Device().Info().Name, ErrMixed)
	}

	left := map[string]bool{}
	for _, name := range x.r.e.manifest.Routed {
		left[name] = true
	}

	// A change of the norm before is made up for in the linears that read it, so they count as changed too.
	for block := range m.Blocks() {
		for _, l := range m.Linears(block) {
			if norm := x.normBefore(l); left[l.Name] || left[norm] {
				// An expert of a mixture sees only the rows that were routed to it, in another order than the
				// sequences'.
				if l.Expert >= 0 || l.Transposed {
					return nil, fmt.Errorf("%s: %w", l.Name, ErrMixed)
				}
				names = append(names, l.Name)
			}
		}
	}

	done := map[string]bool{}
	for block := range m.Blocks() {
		for _, l := range m.Linears(block) {
			done[l.Name] = true
			norm := x.normBefore(l)
			if !left[norm] {
				continue
			}

			done[norm] = true
			if x.gains[l.Name], err = x.gain(norm); err != nil {
				return nil, err
			}
		}
	}

	// A tensor that neither way reaches (the token table, the head) would silently stay the dense one.
	for _, name := range x.r.e.manifest.Routed {
		if !done[name] {
			return nil, fmt.Errorf("tensor %q is no matrix of a block: %w", name, ErrMixed)
		}
	}

	return names, nil
}

// normBefore is the name of the norm whose output a linear reads; empty for none.
func (x *mixture) normBefore(l lm.Linear) string {
	role := arch.AttnNorm
	switch l.Role {
	case arch.Q, arch.K, arch.V, arch.QKV, arch.QA, arch.KVA:
	case arch.QB:
		role = arch.QANorm
	case arch.KVB:
		role = arch.KVANorm
	case arch.Gate, arch.Up, arch.GateUp:
		role = arch.MLPNorm
	default:
		return ""
	}

	c := x.r.m.Config()
	for _, t := range c.Arch.Tensors {
		if t.Role == role && t.Part == "" && c.Holds(t.When, l.Block) {
			return strings.ReplaceAll(t.Name, "{l}", strconv.Itoa(l.Block))
		}
	}

	return ""
}

// gain gives for each span by what its weights multiply the outputs of a norm.
func (x *mixture) gain(norm string) ([][]float32, error) {
	info, _ := x.r.e.dense.Info(norm)
	dense, err := x.r.e.dense.Bytes(norm)
	if err != nil {
		return nil, err
	}

	// Gemma stores the gain less one.
	one := float32(0)
	if x.r.m.Config().Arch.Norm == arch.RMSPlusOne {
		one = 1
	}

	list := make([][]float32, len(x.spans))
	own, n := make([]byte, info.Size), int(info.Elements())
	before, after := make([]float32, n), make([]float32, n)
	var ws experts.Workspace
	for i, s := range x.spans {
		if err := x.r.e.whole(&ws, info, dense, s.weights, 0, experts.Chunks(info.Elements()), own); err != nil {
			return nil, err
		}
		if err := errors.Join(experts.Widen(before, dense, info.DType),
			experts.Widen(after, own, info.DType)); err != nil {
			return nil, err
		}

		list[i] = make([]float32, n)

		for c := range list[i] {
			// The input is already multiplied by the dense gain; after a zero no factor brings it back.
			if before[c]+one == 0 {
				return nil, fmt.Errorf("tensor %q: element %d of the dense model is nothing: %w", norm, c, ErrMixed)
			}
			list[i][c] = (after[c] + one) / (before[c] + one)
		}
	}

	return list, nil
}

// Forward implements [lm.Delta]: y = D·x becomes D·(g∘x) + Σ w·(V-D)·(g∘x), where g is the gain of the norm before.
func (x *mixture) Forward(l lm.Linear, in, y kernels.Mat) error {
	gains := x.gains[l.Name]
	for i, s := range x.spans {
		rows, out := in.RowRange(s.lo, s.hi), y.RowRange(s.lo, s.hi)
		if gains != nil {
			if err := x.rescale(l, &rows, out, gains[i]); err != nil {
				return err
			}
		}

		if err := x.add(l, rows, out, s.weights); err != nil {
			return err
		}
	}

	return nil
}

// rescale adds D·((g-1)∘x) to y and replaces x by a copy, g∘x.
func (x *mixture) rescale(l lm.Linear, in *kernels.Mat, y kernels.Mat, gain []float32) error {
	scaled, rest := make([]float32, in.Rows*in.Cols), make([]float32, in.Rows*in.Cols)
	for i := range in.Rows {
		for c, v := range in.RowF32(i) {
			scaled[i*in.Cols+c], rest[i*in.Cols+c] = v*gain[c], v*(gain[c]-1)
		}
	}

	w, err := x.r.m.Param(l.Name)
	if err != nil {
		return err
	}

	x.r.m.Device().Ops().MatMulNT(y, kernels.MatOf(kernels.WrapF32(rest), in.Rows, in.Cols), w,
		kernels.MatMul{Accumulate: true, Precision: x.r.m.Precision()})
	*in = kernels.MatOf(kernels.WrapF32(scaled), in.Rows, in.Cols)
	return nil
}

// add adds what the experts keep of a matrix, times x, to y: the rows shared out to workers.
func (x *mixture) add(l lm.Linear, in, out kernels.Mat, weights []float64) error {
	if !slices.Contains(x.r.e.manifest.Routed, l.Name) {
		return nil
	}

	dense, err := x.r.e.dense.Bytes(l.Name)
	if err != nil {
		return err
	}

	var a, b [][]float32
	for i := range in.Rows {
		a, b = append(a, in.RowF32(i)), append(b, out.RowF32(i))
	}

	// Rows are shared out, not experts: two workers never add to the same output.
	g := mmapsafe.NewErrors()
	share := (in.Rows + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0)
	for lo := 0; lo < in.Rows; lo += share {
		hi := min(lo+share, in.Rows)
		g.Go(func() error {
			var ws experts.Workspace
			for k, e := range x.r.e.members {
				p := e.Part(l.Name)
				if p == nil || weights[k] == 0 {
					continue
				}
				if err := p.Multiply(&ws, b[lo:hi], a[lo:hi], dense, float32(weights[k])); err != nil {
					return err
				}
			}

			return nil
		})
	}

	return g.Wait()
}

// Backward implements [lm.Delta]: a mixture is for inference.
func (x *mixture) Backward(lm.Linear, kernels.Mat, kernels.Mat, kernels.Mat) error {
	return fmt.Errorf("gradient: %w", ErrMixed)
}

// Parameters implements [lm.Delta].
func (x *mixture) Parameters() []lm.Parameter { return nil }

// readCost is what reading an element of a dense matrix costs a pass, in products of a row with it.
const readCost = 8.0

// MixedIsCheaper estimates whether one pass by Mixed costs less than one pass for every group of sequences with
// equal weights, the making of weights that are not in the cache included.
func (r *Routed) MixedIsCheaper(lens []int, weights [][]float64) bool {
	rows := map[string]float64{}
	groups := map[string][]float64{}
	all := 0.0
	for i, w := range weights {
		key := fmt.Sprint(w)
		rows[key], groups[key], all = rows[key]+float64(lens[i]), w, all+float64(lens[i])
	}

	size := 0.0
	for _, name := range r.e.manifest.Routed {
		info, _ := r.e.dense.Info(name)
		size += float64(info.Elements())
	}

	mixed, apart := 2*(readCost+all)*size, 0.0 // twice, for the norms, which are routed with their layers
	for key, w := range groups {
		row, once, whole := r.costs(w)
		mixed += row*rows[key] + once
		apart += (readCost + rows[key]) * size
		if r.sets[key] == nil {
			apart += whole
		}
	}

	return mixed < apart
}

// costs adds up what the experts of some weights cost.
func (r *Routed) costs(weights []float64) (row, once, whole float64) {
	for k, e := range r.e.members {
		for _, name := range r.e.manifest.Routed {
			if p := e.Part(name); p != nil && weights[k] != 0 {
				a, b, c := p.Costs()
				row, once, whole = row+a, once+b, whole+c
			}
		}
	}
	return row, once, whole
}
