package stream

import (
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// plain are the sources of an item in the order of its inputs, the base last, if all of them are words that
// need no change; nil otherwise.
func plain(it *Item) []*Mapped {
	if len(it.X) == 0 || len(it.Stat) > 0 {
		return nil
	}

	list := make([]*Mapped, 0, len(it.X)+1)
	for _, src := range it.X {
		m, _ := src.(*Mapped)
		list = append(list, m)
	}

	if it.Base != nil {
		m, _ := it.Base.(*Mapped)
		list = append(list, m)
	}

	for _, m := range list {
		if m == nil || m.dtype != safetensors.BF16 || m.round != 0 || !m.aligned() {
			return nil
		}
	}

	return list
}

// inWords is blocks for what can be computed with words; what f refuses is left to each, block by block.
func (ws *workspace) inWords(s segment, stride int64, check bool, each func(*method.Block) error,
	f func(*method.Words) bool,
) error {
	first, step, size := s.steps(method.WordsSize, stride)
	for ; first < s.end; first += step {
		n := min(size, s.end-first)
		if f(ws.readWords(s.run, first, n)) {
			continue
		}

		part := s
		part.first, part.end = first, first+n
		if err := ws.blocks(part, 0, check, each); err != nil {
			return err
		}
	}

	return nil
}

// readWords fills the workspace's words.
func (ws *workspace) readWords(r *run, first, n int64) *method.Words {
	w := &ws.words
	w.Tensor = r.number
	w.Off = first
	w.Index = r.index + first
	w.X = w.X[:0]
	w.Base = nil
	w.Out = nil

	for i, m := range r.plain {
		h := m.words(first, n)
		if i == len(r.X) {
			w.Base = h
		} else {
			w.X = append(w.X, h)
		}
	}

	return w
}

// applyWords merges a segment to data, as apply does.
func (e *engine) applyWords(ws *workspace, p *method.Program, s segment, data []byte, check bool) error {
	out := words(data)
	return ws.inWords(s, 0, check, func(b *method.Block) error {
		p.Apply(b)
		at := 2 * (b.Off - s.first)
		return e.store(s, data[at:at+2*int64(b.Len())], b.Out, b.Off)
	}, func(w *method.Words) bool {
		w.Out = out[w.Off-s.first:][:w.Len()]
		return p.Words(w) < vec.Infinite
	})
}
