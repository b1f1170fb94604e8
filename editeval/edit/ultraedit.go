package edit

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// UltraEdit (arXiv 2505.14679) needs no subject, no covariance and no search: one forward and backward pass. At the
// rows that predict the tokens of the answers, every edited matrix has its inputs H [n, in] and the gradients of the
// loss at its outputs G [n, out]. Both are normalised by the mean and deviation of every element over all edits so far,
// which keeps their scale steady over thousands of edits, and
//
//	V = -lr·‖ĥ‖²·ĝ  by rows,    ΔW = Vᵀ·(H·Hᵀ + I)⁻¹·H
//
// the smallest change that gives the inputs, as they are, the outputs V, with a slack of 1. The published
// code solves (HᵀH + I)⁻¹HᵀV, [in, in]; that is the same, and what is done here where there are more rows than inputs.
//
// Matrices of one shape share their means and deviations, as published. What differs: the loss is the mean over the
// answers of all facts of a batch rather than of ten, which the normalisation takes out again; a last
// batch counts in whole, where the published cache leaves its gradients out; the deviation of a single row is 0, where
// torch's is no number.

// floor is the machine precision of float32: what keeps deviations of 0 from dividing.
const floor = 0x1p-23

// moments are the means and sums of squared distances of the elements of rows.
type moments struct {
	n             int
	mean, squares []float64
}

// with are the moments with more rows. As published, the squares of the new rows are their number times their unbiased
// variance, which is a little more than their sum.
func (m *moments) with(rows linalg.Matrix) *moments {
	old := moments{mean: make([]float64, rows.Cols), squares: make([]float64, rows.Cols)}
	if m != nil {
		old = *m
	}

	k := float64(rows.Rows)
	n := float64(old.n) + k
	out := &moments{n: old.n + rows.Rows, mean: slices.Clone(old.mean), squares: slices.Clone(old.squares)}
	for j := range rows.Cols {
		mean, sum := 0.0, 0.0
		for i := range rows.Rows {
			mean += rows.At(i, j) / k
		}
		for i := range rows.Rows {
			sum += (rows.At(i, j) - mean) * (rows.At(i, j) - mean)
		}

		d := mean - old.mean[j]
		out.mean[j] += k * d / n
		if rows.Rows > 1 {
			out.squares[j] += k * sum / (k - 1)
		}
		out.squares[j] += float64(old.n) * k * d * d / n
	}

	return out
}

// normalised are rows less the mean and divided by the deviation, elements lo … of the moments.
func (m *moments) normalised(rows linalg.Matrix, lo int) linalg.Matrix {
	out := rows.Clone()
	for j := range rows.Cols {
		deviation := math.Sqrt(m.squares[lo+j] / (float64(m.n) - 1 + floor))
		for i := range rows.Rows {
			out.Set(i, j, (rows.At(i, j)-m.mean[lo+j])/(deviation+floor))
		}
	}
	return out
}

// flow is what a matrix reads and what the loss says about its output, at the rows that count.
type flow struct {
	linear lm.Linear
	rows   linalg.Matrix // [n, in + out]: input, gradient
}

func (f *flow) inputs() linalg.Matrix { return f.rows.Sub(0, f.rows.Rows, 0, f.linear.In) }

func (f *flow) gradients() linalg.Matrix { return f.rows.Sub(0, f.rows.Rows, f.linear.In, f.rows.Cols) }

// shape names those that share their moments.
func (f *flow) shape() string { return fmt.Sprintf("%d×%d", f.linear.Out, f.linear.In) }

// ultraEdit writes a batch of facts.
func ultraEdit(ctx context.Context, e *Editing, reqs []Encoded) (*change, error) {
	flows, losses, err := e.flows(ctx, reqs)
	if err != nil {
		return nil, err
	}

	c := &change{past: newPast()}
	for _, l := range losses {
		c.losses = append(c.losses, []float64{l})
	}
	for _, f := range flows {
		before, ok := c.past.scales[f.shape()]
		if !ok {
			before = e.past.scales[f.shape()]
		}
		c.past.scales[f.shape()] = before.with(f.rows)
	}
	if m := c.past.scales[flows[0].shape()]; m.n < 2 {
		return nil, fmt.Errorf("%w: ultraedit compares the tokens of answers, and the first batch has one (HINT: "+
			"write more facts at once)", ErrOptions)
	}

	for _, f := range flows {
		m := c.past.scales[f.shape()]
		hat, wanted := m.normalised(f.inputs(), 0), m.normalised(f.gradients(), f.linear.In)
		for i := range wanted.Rows {
			scale := -e.hp.LearningRate * site.Dot(hat.Row(i), hat.Row(i))
			copy(wanted.Row(i), site.Scaled(scale, wanted.Row(i)))
		}

		d, err := e.least(&f, wanted)
		if err == nil {
			d, err = e.masked(d)
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", f.linear.Name, err)
		}
		c.deltas = append(c.deltas, d)
	}

	return c, nil
}

// least is the smallest change that gives inputs the outputs that are wanted, with a slack of 1.
func (e *Editing) least(f *flow, wanted linalg.Matrix) (Delta, error) {
	h := f.inputs().Clone()
	d := Delta{Linear: f.linear.Name}
	if h.Rows <= h.Cols {
		s, err := e.inner(e.gram(h, h), 1, h)
		d.left, d.right = wanted.T(), s.T()
		return d, err
	}

	g, right := linalg.New(h.Cols, h.Cols), linalg.New(h.Cols, wanted.Cols)
	e.solver.Mul(g, h, h, linalg.Product{TransA: true})
	e.solver.Mul(right, h, wanted, linalg.Product{TransA: true})
	s, err := e.inner(g, 1, right)
	if err != nil {
		return d, err
	}

	d.dense = s.T()
	for i, v := range d.dense.Data { // float32 is what a journal keeps of a dense delta
		d.dense.Data[i] = float64(float32(v))
	}
	return d, nil
}

// flows runs the facts forward and backward, and returns what passes the edited matrices, and the loss of each fact.
func (e *Editing) flows(ctx context.Context, reqs []Encoded) ([]flow, []float64, error) {
	linears, err := e.matrices()
	if err != nil {
		return nil, nil, err
	}

	tokens := 0
	for i := range reqs {
		tokens += len(reqs[i].Target)
	}

	flows := make([]flow, len(linears))
	for i, l := range linears {
		flows[i] = flow{l, linalg.New(tokens, l.In+l.Out)}
	}

	losses := make([]float64, 0, len(reqs))
	first := 0 // row of the flows
	for _, c := range site.Chunks(reqs, func(r Encoded) int { return len(r.bare()) + len(r.Target) }) {
		part := reqs[c[0]:c[1]]
		some, err := e.flow(ctx, part, flows, first, tokens)
		if err != nil {
			return nil, nil, fmt.Errorf("gradients of %d facts: %w", len(part), err)
		}

		for i, at := 0, 0; i < len(part); i++ {
			sum := 0.0
			for range part[i].Target {
				sum += some[at] * float64(tokens) / float64(len(part[i].Target))
				at++
			}
			losses = append(losses, sum)
		}
		first += len(some)
	}

	return flows, losses, nil
}

// flow runs a part of the facts and fills the rows of the flows from first on. It returns the rows' parts of the loss.
func (e *Editing) flow(ctx context.Context, reqs []Encoded, flows []flow, first, tokens int) ([]float64, error) {
	var ids, labels [][]int32
	var at []int
	start := 0
	for i := range reqs {
		p, target := reqs[i].bare(), reqs[i].Target
		text := slices.Concat(p, target)
		l := optimize.Ignored(len(text))
		copy(l[len(p):], target)
		for j := range target {
			at = append(at, start+len(p)-1+j)
		}
		ids, labels = append(ids, text), append(labels, l)
		start += len(text)
	}

	dev := e.m.Device()
	for k := range flows {
		f := &flows[k]
		tap := &site.Tap{
			Rows: site.Rows{Dev: dev}, At: at, None: kernels.MatOf(kernels.WrapF32(make([]float32, 1)), 1, 1),
			See: func(_ lm.Linear, i int, x, _ []float64) []float64 {
				copy(f.inputs().Row(first+i), x)
				return nil
			},
			Grad: func(_ lm.Linear, i int, dy []float64) { copy(f.gradients().Row(first+i), dy) },
		}
		undo, err := e.m.Attach(tap, f.linear.Name)
		if err != nil {
			return nil, err
		}
		defer undo()
	}

	var losses []float64
	rows := site.Rows{Dev: dev}
	o := lm.BackwardOptions{
		Labels: labels, Keep: keepMemory, Hooks: &lm.Hooks{},
		Want: func(string) bool { return false }, WantHidden: func(int) bool { return false },
		Objective: func(logits kernels.Mat, labels []int32, out []float64) error {
			err := rows.Each(logits, func(i int, z []float64) {
				optimize.LogSoftmax(z)
				out[i] = -z[labels[i]] / float64(tokens)
				for j, v := range z {
					z[j] = math.Exp(v) / float64(tokens)
				}
				z[labels[i]] -= 1 / float64(tokens)
			})
			losses = append(losses, out[:logits.Rows]...)
			return err
		},
	}
	if _, err := e.m.Backward(ctx, ids, o); err != nil {
		return nil, err
	}
	if !site.Finite(losses) {
		return nil, fmt.Errorf("%w: the loss of an answer is no number", ErrDiverged)
	}

	return losses, nil
}

// matrices are those that UltraEdit changes, in the order of the layers. Where none are named they are what the MLPs of
// the layers begin with.
func (e *Editing) matrices() ([]lm.Linear, error) {
	var out []lm.Linear
	if len(e.hp.Matrices) == 0 {
		for _, b := range e.hp.Layers {
			for _, l := range e.m.Linears(b) {
				if l.Role == arch.Gate || l.Role == arch.Up || l.Role == arch.GateUp {
					out = append(out, l)
				}
			}
		}
		return out, nil
	}

	for _, entry := range e.hp.Matrices {
		role, layers, err := e.entry(entry)
		if err != nil {
			return nil, err
		}

		for _, b := range layers {
			l, err := site.Linear(e.m, b, role)
			if err != nil {
				return nil, fmt.Errorf("matrices: %q: %w", entry, err)
			}
			if slices.ContainsFunc(out, func(o lm.Linear) bool { return o.Name == l.Name }) {
				return nil, fmt.Errorf("%w: matrices: %q has %s a second time", ErrOptions, entry, l.Name)
			}
			out = append(out, l)
		}
	}

	slices.SortStableFunc(out, func(a, b lm.Linear) int { return a.Block - b.Block })
	return out, nil
}

// entry reads a role of matrices, in the layers of the hyper-parameters or in those that it names itself, "up:18-24".
func (e *Editing) entry(text string) (arch.Role, []int, error) {
	role, span, found := strings.Cut(text, ":")
	if !found {
		return arch.Role(role), e.hp.Layers, nil
	}

	from, to, several := strings.Cut(span, "-")
	lo, err := strconv.Atoi(from)
	hi := lo
	if err == nil && several {
		hi, err = strconv.Atoi(to)
	}
	if err != nil || lo < 0 || hi < lo || hi >= e.m.Blocks() {
		return "", nil, fmt.Errorf("%w: matrices: %.60q: layers go from 0 to %d, as in \"up:%d-%d\"", ErrOptions, text,
			e.m.Blocks()-1, e.m.Blocks()/2, e.m.Blocks()-1)
	}

	var layers []int
	for b := lo; b <= hi; b++ {
		layers = append(layers, b)
	}
	return arch.Role(role), layers, nil
}
