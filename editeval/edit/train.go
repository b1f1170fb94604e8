package edit

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// reached is the loss at which fine-tuning stops.
const reached = 1e-2

// trainer is a down-projection under training.
type trainer struct {
	e      *Editing
	w      *weight
	reqs   []Encoded
	before linalg.Matrix
	grad   []float64 // [out, in]
	adam   []site.Adam
	a, b   linalg.Matrix // LoRA: [r, in] and [out, r]
}

// fineTune trains one down-projection on a batch of facts with Adam (ROME: baselines/ft; EasyEdit: models/ft).
// FT and FT-L push all tokens of a target at the last position of the prompt, FT-M trains them where they
// belong. FT-L keeps every element within eps of what it was. LoRA trains two factors of a change instead, the
// way of FT-M.
func fineTune(ctx context.Context, e *Editing, reqs []Encoded) (*change, error) {
	l, err := site.Linear(e.m, e.hp.Layers[0], arch.Down)
	if err != nil {
		return nil, err
	}

	w, err := e.weight(l.Name)
	if err != nil {
		return nil, err
	}

	// Training changes the model's weights step by step; what is held is what they were, to which the difference is
	// taken and which they are set back to.
	w.hold()
	t := &trainer{e: e, w: w, reqs: reqs, before: w.held, adam: make([]site.Adam, 2)}
	if e.method.name == "lora" {
		t.begin()
	}

	losses, err := t.run(ctx)
	if err != nil {
		return nil, err
	}

	d := Delta{Linear: l.Name}
	if t.a.Rows > 0 {
		d.left, d.right = t.b, t.a.T()
	} else {
		d.dense = t.difference()
	}

	if d, err = e.masked(d); err != nil {
		return nil, err
	}

	return &change{deltas: []Delta{d}, losses: [][]float64{losses}}, nil
}

// difference is what training changed, in float32, which is what a journal keeps, and no more than eps where
// that counts.
func (t *trainer) difference() linalg.Matrix {
	d := linalg.New(t.before.Rows, t.before.Cols)
	for i, v := range t.before.Data {
		x := float32(t.w.sum.Data[i] - v)
		if eps := t.e.hp.Eps; t.e.method.name == "ft-l" && eps > 0 && math.Abs(float64(x)) > eps {
			x = math.Nextafter32(x, 0)
		}
		d.Data[i] = float64(x)
	}
	return d
}

// begin makes the factors: A of small random numbers, B of zeros.
func (t *trainer) begin() {
	r := max(1, min(t.e.hp.Rank, t.w.linear.In, t.w.linear.Out))
	t.a, t.b = linalg.New(r, t.w.linear.In), linalg.New(t.w.linear.Out, r)
	draw := rand.New(rand.NewPCG(t.e.seed, uint64(len(t.e.steps))))
	for i := range t.a.Data {
		t.a.Data[i] = (2*draw.Float64() - 1) / math.Sqrt(float64(t.w.linear.In))
	}
}

// run takes the steps and returns the losses before each.
func (t *trainer) run(ctx context.Context) ([]float64, error) {
	var losses []float64
	for range t.e.hp.Steps {
		loss, err := t.pass(ctx)
		if err != nil {
			return nil, err
		}

		if math.IsNaN(loss) || math.IsInf(loss, 0) || !site.Finite(t.grad) {
			return nil, fmt.Errorf("%w: loss %g after %d steps", ErrDiverged, loss, len(losses))
		}

		losses = append(losses, loss)
		if loss < reached {
			break
		}

		// The next pass must see the weights as they will be stored, rounding included, or the loss would be
		// another model's.
		t.step()
		if _, err := t.w.store(t.e.m); err != nil {
			return nil, err
		}
	}

	return losses, nil
}

// step moves the weights.
func (t *trainer) step() {
	hp := &t.e.hp
	for i := range t.adam {
		t.adam[i].Lr = hp.LearningRate
	}

	if t.a.Rows > 0 {
		t.lowRank()
		return
	}

	if t.e.zeros {
		for i, v := range t.before.Data {
			if v == 0 {
				t.grad[i] = 0
			}
		}
	}

	t.adam[0].Step(t.w.sum.Data, t.grad)
	if t.e.method.name != "ft-l" || hp.Eps == 0 {
		return
	}

	// FT-L: back into the box around what the weights were, after every step.
	for i, v := range t.before.Data {
		t.w.sum.Data[i] = min(max(t.w.sum.Data[i], v-hp.Eps), v+hp.Eps)
	}
}

// lowRank moves the factors.
func (t *trainer) lowRank() {
	g := linalg.Of(t.grad, t.w.linear.Out, t.w.linear.In)
	da, db := linalg.New(t.a.Rows, t.a.Cols), linalg.New(t.b.Rows, t.b.Cols)
	t.e.solver.Mul(da, t.b, g, linalg.Product{TransA: true})
	t.e.solver.Mul(db, g, t.a, linalg.Product{TransB: true})
	t.adam[0].Step(t.a.Data, da.Data)
	t.adam[1].Step(t.b.Data, db.Data)
	t.w.sum.Copy(t.before)
	t.e.solver.Mul(t.w.sum, t.b, t.a, linalg.Product{Accumulate: true})
}

// atPrompt reports whether a method trains the target's tokens at the last position of the prompt.
func (t *trainer) atPrompt() bool { return t.e.method.name == "ft" || t.e.method.name == "ft-l" }

// sequences are the batch's texts and labels.
func (t *trainer) sequences() (ids, labels [][]int32) {
	for _, r := range t.reqs {
		p := r.bare()
		text := append(append([]int32(nil), p...), r.Target...)
		l := optimize.Ignored(len(text))
		if t.atPrompt() {
			text, l = text[:len(p)+1], l[:len(p)+1]
			l[len(p)] = r.Target[0]
		} else {
			copy(l[len(p):], r.Target)
		}

		ids, labels = append(ids, text), append(labels, l)
	}

	return ids, labels
}

// pass computes the loss, the mean over requests of the mean over their target's tokens, and the gradient of
// the matrix.
func (t *trainer) pass(ctx context.Context) (float64, error) {
	ids, labels := t.sequences()
	var owners []int
	for i, r := range t.reqs {
		n := len(r.Target)
		if t.atPrompt() {
			n = 1
		}
		for range n {
			owners = append(owners, i)
		}
	}

	// The objective is given the rows that predict something in order, some at a time: next counts them through.
	total := 0.0
	next := 0
	dev := site.Rows{Dev: t.e.m.Device()}
	o := lm.BackwardOptions{
		Labels: labels, Keep: keepMemory, Want: func(name string) bool { return name == t.w.linear.Name },
		Hooks: &lm.Hooks{WeightGrad: func(_ string, g kernels.Mat) error { return t.take(g) }},
		Objective: func(logits kernels.Mat, _ []int32, losses []float64) error {
			for i := range losses {
				z, err := dev.Get(logits, i)
				if err != nil {
					return err
				}

				losses[i] = t.row(z, owners[next], t.position(owners, next))
				next++
				total += losses[i]
				if err := dev.Put(logits, i, z); err != nil {
					return err
				}
			}

			return nil
		},
	}

	if _, err := t.e.m.Backward(ctx, ids, o); err != nil {
		return 0, fmt.Errorf("training on %d edits: %w", len(t.reqs), err)
	}

	return total, nil
}

// position is the place of row i among those of its request.
func (t *trainer) position(owners []int, i int) int {
	n := 0
	for n < i && owners[i-n-1] == owners[i] {
		n++
	}
	return n
}

// row replaces logits by the gradient of a row's part of the loss.
func (t *trainer) row(z []float64, owner, position int) float64 {
	target := t.reqs[owner].Target
	weight := 1 / float64(len(t.reqs)*len(target))
	wanted := target[position : position+1]
	if t.atPrompt() {
		wanted = target
	}

	optimize.LogSoftmax(z)
	loss := 0.0
	for _, id := range wanted {
		loss -= weight * z[id]
	}
	for j, v := range z {
		z[j] = weight * float64(len(wanted)) * math.Exp(v)
	}
	for _, id := range wanted {
		z[id] -= weight
	}

	return loss
}

// take copies the gradient, which comes in the stored layout.
func (t *trainer) take(g kernels.Mat) error {
	l, dev := t.w.linear, site.Rows{Dev: t.e.m.Device()}
	if t.grad == nil {
		t.grad = make([]float64, l.Out*l.In)
	}

	for i := range g.Rows {
		v, err := dev.Get(g, i)
		if err != nil {
			return err
		}

		if !l.Transposed {
			copy(t.grad[i*l.In:], v)
			continue
		}

		for j, x := range v {
			t.grad[j*l.In+i] = x
		}
	}

	return nil
}
