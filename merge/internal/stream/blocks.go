package stream

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// pass collects statistics.
func (e *engine) pass(p method.Pass, segments []segment, check bool) ([]any, error) {
	if p.Only != nil {
		segments = segments[*p.Only : *p.Only+1]
	}

	// Order counts: one statistic to a segment. It does not: one to a worker, which is less memory to combine.
	n := len(segments)
	if p.Shared {
		n = e.o.Threads
	}

	stats := make([]any, n)
	err := e.each(segments, func(ws *workspace, i int) error {
		at := i
		if p.Shared {
			at = ws.id
		}
		if stats[at] == nil && p.New != nil {
			stats[at] = p.New()
		}

		each := func(b *method.Block) error {
			p.Each(stats[at], b)
			return nil
		}

		if s := segments[i]; p.Words != nil && s.plain != nil {
			return ws.inWords(s, p.Stride, check, each, func(w *method.Words) bool { return p.Words(stats[at], w) })
		}

		return ws.blocks(segments[i], p.Stride, check, each)
	})
	if err != nil {
		return nil, err
	}

	// Threads that had nothing to do have no statistic.
	return slices.DeleteFunc(stats, func(s any) bool { return s == nil && p.Shared }), nil
}

// blocks reads a segment block by block; with a stride, only short blocks at those distances.
func (ws *workspace) blocks(s segment, stride int64, check bool, f func(b *method.Block) error) error {
	first, step, size := s.steps(s.block, stride)
	for ; first < s.end; first += step {
		b, err := ws.read(s.run, first, min(size, s.end-first), check)
		if err != nil {
			return err
		}

		if err := f(b); err != nil {
			return err
		}
	}

	return nil
}

// steps are where the blocks of a segment begin, how far apart they are and how long.
func (s segment) steps(block, stride int64) (first, step, size int64) {
	if stride == 0 {
		return s.first, block, block
	}
	return (s.first + stride - 1) / stride * stride, stride, method.SampleRun // the same places whatever the segments
}

// read fills the workspace's block.
func (ws *workspace) read(r *run, first, n int64, check bool) (*method.Block, error) {
	b := &ws.block
	b.Tensor = r.number
	b.Off = first
	b.Index = r.index + first
	b.Out = grown(&ws.out, n)
	b.Base = nil
	for len(ws.x) < len(r.X) {
		ws.x = append(ws.x, nil)
	}

	b.X = b.X[:0]
	for i, src := range r.X {
		b.X = append(b.X, grown(&ws.x[i], n))
		if err := r.load(src, i, b.X[i], first, check); err != nil {
			return nil, err
		}
	}

	if r.Base != nil {
		b.Base = grown(&ws.base, n)
		if err := r.load(r.Base, len(r.X), b.Base, first, check); err != nil {
			return nil, err
		}
	}

	return b, ws.readStat(r, first, n)
}

// readStat fills the statistics of a block.
func (ws *workspace) readStat(r *run, first, n int64) error {
	b := &ws.block
	b.Stat = b.Stat[:0]
	for i, src := range r.Stat {
		for len(ws.stat) <= i {
			ws.stat = append(ws.stat, nil)
		}

		if src == nil {
			b.Stat = append(b.Stat, nil)
			continue
		}

		b.Stat = append(b.Stat, grown(&ws.stat[i], n))
		if err := src.Read(b.Stat[i], first); err != nil {
			return err
		}
	}

	return nil
}

// grown is a buffer of n elements.
func grown(buf *[]float32, n int64) []float32 {
	if int64(cap(*buf)) < n {
		*buf = make([]float32, n)
	}
	return (*buf)[:n]
}

// load reads elements of a source and counts those that are not finite.
func (r *run) load(src Source, i int, dst []float32, first int64, check bool) error {
	if err := src.Read(dst, first); err != nil {
		return fmt.Errorf("tensor %q of %s: %w", r.Tensor.Name, r.Models[i], err)
	}
	if check && vec.Peak(dst) >= vec.Infinite {
		r.count(i, dst, first)
	}
	return nil
}

func (r *run) count(i int, x []float32, first int64) {
	r.mu.Lock()
	defer r.mu.Unlock()

	n := &r.bad[i]
	for j, v := range x {
		if v-v == 0 {
			continue
		}
		if at := first + int64(j); n.NaN+n.Inf == 0 || at < n.First {
			n.First = at
		}

		if v != v {
			n.NaN++
		} else {
			n.Inf++
		}
	}
}
