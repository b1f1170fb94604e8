package edit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// GRACE (Hartvigsen et al., 2023, arXiv:2211.11031) leaves the weights alone and puts a table before one
// down-projection's output: if the input of the layer lies within Eps of a stored key (a ball in Euclidean distance),
// its output is the stored value, which was trained for the fact. An edit makes a new ball, enlarges one with the same
// target, or shrinks one with another so that both have room (enter).

// Code is an entry of a codebook: where the input of the layer is within Eps of Key, its output is Value.
type Code struct {
	Index  int       `json:"index"`
	Key    []float64 `json:"key"`
	Value  []float64 `json:"value"`
	Eps    float64   `json:"eps"`
	Label  []int32   `json:"label"`            // the target that the value was trained for
	Action string    `json:"action,omitempty"` // new, same, expand or split: what the edit that wrote it did
}

// Codebook is what GRACE (arXiv 2211.11031) learns, attached to one down-projection. It implements [lm.Delta].
type Codebook struct {
	Linear string

	codes []Code
	rows  site.Rows
	asked []int // rows of the next passes that are asked about; nil: every row
}

// Codes are the entries.
func (b *Codebook) Codes() []Code { return b.codes }

// At names the rows of the following passes at which the codebook may answer: the last tokens of prompts, as in
// the publication. nil lets it answer at every token.
func (b *Codebook) At(rows []int) { b.listen(rows, rows == nil) }

// Forward implements [lm.Delta].
func (b *Codebook) Forward(_ lm.Linear, x, y kernels.Mat) error {
	if len(b.codes) == 0 {
		return nil
	}

	// Nobody said which rows ask (a plain forward pass): then every token looks itself up.
	at := b.asked
	if at == nil {
		for i := range x.Rows {
			at = append(at, i)
		}
	}

	for _, i := range at {
		if i >= x.Rows {
			continue
		}

		key, err := b.rows.Get(x, i)
		if err != nil {
			return err
		}

		// GRACE's deferral: the nearest key alone is asked, and answers only within its own radius.
		if n, d := b.nearest(key); d <= b.codes[n].Eps {
			if err := b.rows.Put(y, i, b.codes[n].Value); err != nil {
				return err
			}
		}
	}

	return nil
}

// Backward implements [lm.Delta]; a codebook is not differentiated.
func (b *Codebook) Backward(lm.Linear, kernels.Mat, kernels.Mat, kernels.Mat) error { return nil }

// Parameters implements [lm.Delta].
func (b *Codebook) Parameters() []lm.Parameter { return nil }

// nearest is the entry with the nearest key, of equal ones the first, and its distance.
func (b *Codebook) nearest(key []float64) (int, float64) {
	best, d := 0, math.Inf(1)
	for i, c := range b.codes {
		if n := site.Distance(c.Key, key); n < d {
			best, d = i, n
		}
	}
	return best, d
}

func (b *Codebook) at() string { return b.Linear }

func (b *Codebook) clear() { b.codes = nil }

func (b *Codebook) listen(rows []int, everywhere bool) {
	b.asked = rows
	if everywhere {
		b.asked = nil
	} else if rows == nil {
		b.asked = []int{}
	}
}

// enter writes entries of a step into the codebook.
func (b *Codebook) enter(l lm.Linear, s *Step) error {
	for _, c := range s.Codes {
		fits := len(c.Key) == l.In && len(c.Value) == l.Out && site.Finite(c.Key) && site.Finite(c.Value)
		if fits {
			b.codes, fits = entered(b.codes, c)
		}
		if !fits {
			return fmt.Errorf("%w: entry %d of the codebook does not fit", ErrJournal, c.Index)
		}
	}

	return nil
}

// grace adds an entry to the codebook, or changes one (EasyEdit: models/grace; labels are compared in the order
// of the keys): far from all keys a new one; near one with the same target its radius grows; near one with
// another target the two share the distance.
func grace(ctx context.Context, e *Editing, reqs []Encoded) (*change, error) {
	r := &reqs[0]
	p := r.bare()

	if e.beside != nil {
		e.beside.listen(nil, false) // values start at the layer's own output
		defer e.beside.listen(nil, true)
	}

	s, err := site.Look(ctx, e.m, []site.Place{{IDs: p, At: len(p) - 1}}, e.hp.Layers)
	if err != nil {
		return nil, err
	}

	key, out := site.Row(s.Keys[e.hp.Layers[0]], 0), site.Row(s.Values[e.hp.Layers[0]], 0)
	entries, err := e.enter(r, key, out)
	if err != nil {
		return nil, err
	}
	at := &entries[len(entries)-1]
	history, err := e.train(ctx, r, at)
	if err != nil {
		return nil, err
	}

	return &change{codes: entries, losses: [][]float64{history}}, nil
}

// enter decides what happens to the codebook. The last entry is the one to train.
func (e *Editing) enter(r *Encoded, key, out []float64) ([]Code, error) {
	fresh := Code{Key: key, Value: e.start(out), Eps: e.hp.Eps, Label: r.Target, Action: "new"}
	book := e.Codebook()
	if e.beside != nil && book == nil {
		l, err := site.Linear(e.m, e.hp.Layers[0], arch.Down)
		if err != nil {
			return nil, err
		}
		return nil, e.other("grace", l.Name)
	}
	if book == nil || len(book.codes) == 0 {
		return []Code{fresh}, nil
	}

	fresh.Index = len(book.codes)
	j, d := book.nearest(key)
	near := book.codes[j]
	near.Value = slices.Clone(near.Value) // training must not reach the book before the step is committed

	switch {
	case d > e.hp.Eps+near.Eps:
		return []Code{fresh}, nil
	case slices.Equal(near.Label, r.Target):
		near.Action = "same"
		if d > near.Eps {
			near.Eps, near.Action = d, "expand"
		}
		return []Code{near}, nil
	}

	// Each gets half of the way, the old one a little less, so that no input lies in both.
	near.Eps, near.Action = d/2-1e-5, "split"
	fresh.Eps, fresh.Action = d/2, "split"
	return []Code{near, fresh}, nil
}

// start is a value before training.
func (e *Editing) start(out []float64) []float64 {
	if e.hp.Warm {
		return slices.Clone(out)
	}
	draw := rand.New(rand.NewPCG(e.seed, uint64(len(e.steps))))
	v := make([]float64, len(out))
	for i := range v {
		v[i] = draw.Float64()
	}
	return v
}

// train improves an entry's value for the target, where the value stands at the last token of the prompt. What the
// tokens before it and the decoder layers below compute does not depend on the value, and is computed once.
func (e *Editing) train(ctx context.Context, r *Encoded, c *Code) ([]float64, error) {
	l, err := site.Linear(e.m, e.hp.Layers[0], arch.Down)
	if err != nil {
		return nil, err
	}

	p := r.bare()
	last := len(p) - 1
	tail, err := e.m.NewTail(ctx, [][]int32{slices.Concat(p, r.Target)}, []int{last}, l.Block)
	if err != nil {
		return nil, fmt.Errorf("learning: %w", err)
	}
	defer tail.Free()

	labels := optimize.Ignored(1 + len(r.Target))
	copy(labels[1:], r.Target)

	// The tap adds, so it adds the distance to the entry's value: the output becomes that value, and its gradient
	// is the value's. The model's weights stay untouched.
	var grad []float64
	t := &site.Tap{
		Rows: site.Rows{Dev: e.m.Device()}, At: []int{0},
		None: kernels.MatOf(kernels.WrapF32(make([]float32, 1)), 1, 1),
		See:  func(_ lm.Linear, _ int, _, y []float64) []float64 { return site.Minus(c.Value, y) },
		Grad: func(_ lm.Linear, _ int, dy []float64) { grad = dy },
	}

	undo, err := e.m.Attach(t, l.Name)
	if err != nil {
		return nil, err
	}
	defer undo()

	var history []float64
	a := site.Adam{Lr: e.hp.LearningRate}
	for range e.hp.Steps {
		loss, err := e.answer(ctx, tail, labels)
		if err != nil {
			return nil, err
		}

		if !site.Finite(grad) || !site.Finite([]float64{loss}) {
			return nil, fmt.Errorf("%w: loss %g", ErrDiverged, loss)
		}

		history = append(history, loss)
		a.Step(c.Value, grad)
	}

	return history, nil
}

// answer runs the target behind the end of a prompt and returns its mean loss; gradients go to attached deltas.
func (e *Editing) answer(ctx context.Context, prompt *lm.Tail, labels []int32) (float64, error) {
	res, err := e.m.BackwardTails(ctx, []*lm.Tail{prompt}, lm.BackwardOptions{
		Labels: [][]int32{labels}, Keep: keepMemory, Hooks: &lm.Hooks{}, WantHidden: func(int) bool { return false },
	})
	if err != nil {
		if errors.Is(err, lm.ErrNonFinite) {
			return 0, fmt.Errorf("%w: %w", ErrDiverged, err)
		}
		return 0, err
	}

	return res.Loss, nil
}

// inContext puts facts before every prompt instead of writing them anywhere (after IKE, arXiv 2305.12740,
// without its demonstrations).
func inContext(_ context.Context, e *Editing, reqs []Encoded) (*change, error) {
	text := slices.Clone(e.context)
	for i := range reqs {
		text = append(text, follow(reqs[i].bare(), e.m.Config().BOS, len(text) > 0)...)
		text = append(append(text, reqs[i].Target...), e.sep...)
	}

	if limit := e.m.Config().MaxPositions; limit > 0 && len(text) > limit*3/4 {
		return nil, fmt.Errorf("%w: %d tokens of facts before every prompt, the model has %d positions", ErrOptions,
			len(text), limit)
	}

	return &change{context: text}, nil
}

// follow is a prompt, without the start token where something stands before it.
func follow(ids []int32, bos int32, more bool) []int32 {
	if more && len(ids) > 0 && ids[0] == bos {
		return ids[1:]
	}
	return ids
}
