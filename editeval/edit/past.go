package edit

import (
	"fmt"
	"maps"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
)

// past is what later edits know of earlier ones, besides the weights. Each step has its part of it, so that undo and
// journals bring it back with the weights.
type past struct {
	keys   map[int]linalg.Matrix // of the facts, in rows, by decoder layer
	values map[int]linalg.Matrix // LyapLock: what the layer has given for them since
	queues map[int]queue         // LyapLock, by decoder layer
	anchor float64               // length of values where they are anchored; 0: not measured yet
	scales map[string]*moments   // UltraEdit, by the shape of the matrix
}

func newPast() past {
	return past{
		keys: map[int]linalg.Matrix{}, values: map[int]linalg.Matrix{}, queues: map[int]queue{},
		scales: map[string]*moments{},
	}
}

// add takes in what a step leaves.
func (p *past) add(s past) {
	for b, k := range s.keys {
		p.keys[b] = stack(p.keys[b], k)
	}
	for b, v := range s.values {
		p.values[b] = stack(p.values[b], v)
	}
	maps.Copy(p.queues, s.queues)
	maps.Copy(p.scales, s.scales)
	if s.anchor > 0 {
		p.anchor = s.anchor
	}
}

// stack puts the rows of b under those of a.
func stack(a, b linalg.Matrix) linalg.Matrix {
	out := linalg.New(a.Rows+b.Rows, max(a.Cols, b.Cols))
	for i := range a.Rows {
		copy(out.Row(i), a.Row(i))
	}
	for i := range b.Rows {
		copy(out.Row(a.Rows+i), b.Row(i))
	}
	return out
}

// queue is LyapLock's account of the damage that its edits have done to a layer.
type queue struct {
	First  float64 `json:"first"`  // damage of the first batch
	Length float64 `json:"length"` // of the virtual queue, which grows while the damage is above the budget
}

// layerPart is a step's part of the past of a decoder layer, in a journal.
type layerPart struct {
	Block  int      `json:"block"`
	Keys   *numbers `json:"keys,omitempty"`
	Values *numbers `json:"values,omitempty"`
	Queue  *queue   `json:"queue,omitempty"`
}

// scalePart is what a step knows of the matrices of a shape, in a journal: rows are means and sums of squares.
type scalePart struct {
	Shape   string   `json:"shape"`
	Rows    int      `json:"rows"`
	Moments *numbers `json:"moments"`
}

// pack writes the part of a step.
func (p *past) pack(l *stepLine) {
	for _, b := range site.Sorted(p.keys) {
		part := layerPart{Block: b, Keys: pack(p.keys[b], false)}
		if v, ok := p.values[b]; ok {
			part.Values = pack(v, false)
		}
		if q, ok := p.queues[b]; ok {
			part.Queue = &q
		}
		l.Keys = append(l.Keys, part)
	}

	l.Anchor = p.anchor

	for _, shape := range site.Sorted(p.scales) {
		m := p.scales[shape]
		both := linalg.New(2, len(m.mean))
		copy(both.Row(0), m.mean)
		copy(both.Row(1), m.squares)
		l.Scales = append(l.Scales, scalePart{shape, m.n, pack(both, false)})
	}
}

// unpack reads the part of a step.
func (p *past) unpack(l *stepLine) error {
	*p = newPast()
	p.anchor = l.Anchor

	for _, part := range l.Keys {
		var err error
		if p.keys[part.Block], err = part.Keys.unpack(); err != nil {
			return err
		}
		if part.Values != nil {
			if p.values[part.Block], err = part.Values.unpack(); err != nil {
				return err
			}
		}
		if part.Queue != nil {
			p.queues[part.Block] = *part.Queue
		}
	}

	for _, part := range l.Scales {
		both, err := part.Moments.unpack()
		if err != nil {
			return err
		}
		if both.Rows != 2 || part.Rows < 1 {
			return fmt.Errorf("%w: moments of shape %.100q in %d rows of %d", ErrJournal, part.Shape, both.Rows,
				part.Rows)
		}
		p.scales[part.Shape] = &moments{n: part.Rows, mean: both.Row(0), squares: both.Row(1)}
	}

	return nil
}
