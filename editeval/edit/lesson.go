package edit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// Rows of a fact's prompts that learn it.
const (
	rowsSubject = "subject" // the subject's last token
	rowsAnswer  = "answer"  // the tokens that predict the answer
)

// learntLoss is the loss at which a lesson ends: that at which WISE's and MEMOIR's published code begins to look
// whether the loss still changes.
const learntLoss = 0.02

// lesson is one fact that a side memory learns: the fact's prompts, run again and again from the memory's decoder layer
// and the first row on that learns. What the rows read, and what the model's own matrix gives for it, stays the same.
type lesson struct {
	e      *Editing
	linear lm.Linear
	tail   *lm.Tail
	labels [][]int32
	rows   []int // of a pass, that learn: those of the first prompt, then those of the next
	each   int   // rows of a prompt

	keys, own linalg.Matrix // what the rows read, and what the model's matrix gives
	add       linalg.Matrix // what is added to that
	grads     linalg.Matrix
}

// lesson prepares a fact.
func (e *Editing) lesson(ctx context.Context, l lm.Linear, r *Encoded) (*lesson, error) {
	t := &lesson{e: e, linear: l, each: 1}
	var ids [][]int32
	var from []int

	start := 0
	for i, p := range r.Prompts {
		at := r.Lookup[i]
		if e.hp.Rows == rowsAnswer {
			at = len(p) - 1
			t.each = len(r.Target)
		}

		text := slices.Concat(p, r.Target)
		labels := optimize.Ignored(len(text) - at)
		copy(labels[len(p)-at:], r.Target)
		ids, from, t.labels = append(ids, text), append(from, at), append(t.labels, labels)

		for k := range t.each {
			t.rows = append(t.rows, start+k)
		}
		start += len(labels)
	}

	var err error
	if t.tail, err = e.m.NewTail(ctx, ids, from, l.Block); err != nil {
		return nil, fmt.Errorf("learning: %w", err)
	}

	t.keys, t.own = linalg.New(len(t.rows), l.In), linalg.New(len(t.rows), l.Out)
	t.add, t.grads = linalg.New(len(t.rows), l.Out), linalg.New(len(t.rows), l.Out)
	if _, err := t.pass(ctx); err != nil { // to see what the rows read
		t.free()
		return nil, err
	}

	return t, nil
}

func (t *lesson) free() { t.tail.Free() }

// pass computes the mean loss of the answer's tokens, and its gradients.
func (t *lesson) pass(ctx context.Context) (float64, error) {
	m := t.e.m
	tap := &site.Tap{
		Rows: site.Rows{Dev: m.Device()}, At: t.rows,
		None: kernels.MatOf(kernels.WrapF32(make([]float32, 1)), 1, 1),
		See: func(_ lm.Linear, i int, x, y []float64) []float64 {
			copy(t.keys.Row(i), x)
			copy(t.own.Row(i), y)
			return t.add.Row(i)
		},
		Grad: func(_ lm.Linear, i int, dy []float64) { copy(t.grads.Row(i), dy) },
	}

	undo, err := m.Attach(tap, t.linear.Name)
	if err != nil {
		return 0, err
	}
	defer undo()

	res, err := m.BackwardTails(ctx, []*lm.Tail{t.tail}, lm.BackwardOptions{
		Labels: t.labels, Hooks: &lm.Hooks{}, Keep: keepMemory, WantHidden: func(int) bool { return false },
	})
	switch {
	case errors.Is(err, lm.ErrNonFinite):
		return 0, fmt.Errorf("%w: %w", ErrDiverged, err)
	case err != nil:
		return 0, err
	case !site.Finite([]float64{res.Loss}) || !site.Finite(t.grads.Data):
		return 0, fmt.Errorf("%w: loss %g", ErrDiverged, res.Loss)
	}
	return res.Loss, nil
}

// descend learns: give says what is added to the rows, more what else the loss consists of, and step moves what both
// depend on along the gradients. It returns the losses, the last one that of what was learnt.
func (t *lesson) descend(ctx context.Context, give func() linalg.Matrix, more func() float64,
	step func(grads linalg.Matrix),
) ([]float64, error) {
	var losses []float64
	for n := 0; ; n++ {
		t.add = give()
		loss, err := t.pass(ctx)
		if err != nil {
			return nil, err
		}

		loss += more()
		losses = append(losses, loss)
		if n == t.e.hp.Steps || loss <= learntLoss {
			return losses, nil
		}
		step(t.grads)
	}
}

// side is the side memory of a kind, which is attached with the first fact, and the part that a new fact writes, as far
// as it is the same for all facts.
func (e *Editing) side(ctx context.Context, l lm.Linear, kind string) (*sideMemory, *Part, error) {
	part := &Part{Kind: kind, Seed: e.seed}
	now, ok := e.beside.(*sideMemory)
	switch {
	case e.beside == nil:
		now = newSide(e.m, l, kind)
	case !ok || now.kind != kind || now.linear.Name != l.Name:
		return nil, nil, e.other(kind, l.Name)
	}

	if kind == kindWISE {
		part.Mask = e.hp.Mask
		if n := len(now.shards); n > 0 && (e.hp.Shard == 0 || now.shards[n-1].edits < e.hp.Shard) {
			part.Shard = n - 1
		} else {
			part.Shard = n
		}
		return now, part, nil
	}

	if now.steps > 0 {
		return now, part, nil
	}

	// The first fact brings what all later ones are named by.
	ordinary, _, err := e.ordinary(ctx, l)
	if err != nil {
		return nil, nil, err
	}

	center := linalg.New(1, l.In)
	for i := range ordinary.Rows {
		for j, v := range ordinary.Row(i) {
			center.Data[j] += v / float64(ordinary.Rows)
		}
	}
	part.Center, part.Threshold = pack(center, false), e.hp.Threshold
	part.Top = max(1, min(l.In, int(math.Round(e.hp.Top*float64(l.In)))))

	// A memory of its own to name the rows with, which nothing is attached to.
	now = newSide(e.m, l, kind)
	now.center, now.top, now.places = center.Row(0), part.Top, placesOf(part.Seed, l.In)
	return now, part, nil
}

// Of ordinary text a method reads the beginnings of documents.
const (
	backgroundDocs   = 64
	backgroundTokens = 16
)

// BackgroundOf takes from documents what [Options].Background needs.
func BackgroundOf(docs [][]int32) [][]int32 {
	out := make([][]int32, 0, backgroundDocs)
	for _, d := range docs {
		for len(d) > 1 && len(out) < backgroundDocs {
			n := min(len(d), backgroundTokens)
			out, d = append(out, d[:n]), d[n:]
			if len(docs) >= backgroundDocs {
				break
			}
		}
	}
	return out
}

// ordinary is what the matrix reads, and what it gives, at the tokens of texts that have nothing to do with the edits,
// in rows.
func (e *Editing) ordinary(ctx context.Context, l lm.Linear) (reads, gives linalg.Matrix, err error) {
	if e.reads.Rows > 0 {
		return e.reads, e.gives, nil
	}

	if e.beside != nil {
		e.beside.listen(nil, false)
		defer e.beside.listen(nil, true)
	}

	var in, out []float64
	for _, c := range site.Chunks(e.background, func(d []int32) int { return len(d) }) {
		tap := &site.Tap{
			Rows: site.Rows{Dev: e.m.Device()},
			See: func(_ lm.Linear, _ int, x, y []float64) []float64 {
				in, out = append(in, x...), append(out, y...)
				return nil
			},
		}

		// Not the first token of a text, at which many models keep a state that is like nothing else.
		start := 0
		for _, d := range e.background[c[0]:c[1]] {
			for i := 1; i < len(d); i++ {
				tap.At = append(tap.At, start+i)
			}
			start += len(d)
		}
		if err := e.readAt(ctx, l, tap, e.background[c[0]:c[1]]); err != nil {
			return reads, gives, err
		}
	}

	if len(in) == 0 {
		return reads, gives, fmt.Errorf("%w: no text of two tokens or more", ErrStatistics)
	}

	e.reads, e.gives = linalg.Of(in, len(in)/l.In, l.In), linalg.Of(out, len(out)/l.Out, l.Out)
	return e.reads, e.gives, nil
}

// readAt runs texts as far as a matrix, at which a tap looks.
func (e *Editing) readAt(ctx context.Context, l lm.Linear, tap *site.Tap, docs [][]int32) error {
	undo, err := e.m.Attach(tap, l.Name)
	if err != nil {
		return err
	}
	defer undo()

	h, err := e.m.Embed(docs)
	if err != nil {
		return err
	}
	defer h.Free()

	for b := range l.Block + 1 {
		if err := e.m.RunBlock(ctx, b, h, nil); err != nil {
			return err
		}
	}
	return nil
}
