package stream

import (
	"context"
	"runtime/debug"
	"sync"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/output"
)

// whole runs a program that wants all elements at once, one such at a time: it uses all threads itself.
func (e *engine) whole(p *method.Program, segments []segment) error {
	if len(segments) == 0 {
		return nil
	}

	e.alone.Lock()
	defer e.alone.Unlock()

	r := segments[0].run
	w := &method.Whole{Threads: e.o.Threads, Stop: func() error { return context.Cause(e.ctx) }}
	err := e.gather(p, w, segments)
	if err == nil {
		err = e.wholeStat(r, w)
	}
	if err == nil {
		err = e.check([]*run{r})
	}
	if err == nil {
		err = r.undefined(tight(func() error { return mmapsafe.Do(func() error { return p.Whole(w) }) }))
	}
	if err != nil {
		return err
	}

	// Errors of elements are reported before anything is written.
	return e.each(segments, func(_ *workspace, i int) error {
		s := segments[i]
		size := width(s.DType)
		data := output.Buffer(make([]byte, (s.end-s.first)*size+output.Slack),
			e.sink.Position(s.Tensor.Name)+s.first*size, (s.end-s.first)*size)
		if err := e.store(s, data, w.Out[s.first:s.end], s.first); err != nil {
			return err
		}
		if err := s.zeros(data); err != nil {
			return err
		}

		e.full <- chunk{s.run, s.first * size, data, nil}
		return nil
	})
}

// gather reads all elements, for a lazy program only to see whether they are finite.
func (e *engine) gather(p *method.Program, w *method.Whole, segments []segment) error {
	r := segments[0].run
	w.Out = make([]float32, r.Tensor.N)

	if p.Lazy {
		sources := r.sources()
		w.Read = func(j int, dst []float32, first int64) error { return r.load(sources[j], j, dst, first, false) }
		// The check alone needs no memory for the tensor; the program reads again what it wants.
		return e.each(segments, func(ws *workspace, i int) error {
			return ws.blocks(segments[i], 0, true, func(*method.Block) error { return nil })
		})
	}

	for range r.X {
		w.X = append(w.X, make([]float32, r.Tensor.N))
	}
	if r.Base != nil {
		w.Base = make([]float32, r.Tensor.N)
	}

	return e.each(segments, func(_ *workspace, i int) error {
		s := segments[i]
		for j, src := range r.X {
			if err := r.load(src, j, w.X[j][s.first:s.end], s.first, true); err != nil {
				return err
			}
		}

		if r.Base == nil {
			return nil
		}

		return r.load(r.Base, len(r.X), w.Base[s.first:s.end], s.first, true)
	})
}

// wholeHeap is from where on the heap is kept tight while a program has whole matrices: these are few and
// large, and what is no longer used would otherwise wait until there is as much again.
const wholeHeap = 96 << 20

// tightening counts the calls of tight that run. Go's memory limit is one for the process, so the first sets it
// and the last puts back what was there, whatever merges of one process overlap.
var tightening struct {
	sync.Mutex
	calls int
	was   int64
}

// tight runs f with that limit, which holds for the process, and with faults of mapped memory as panics.
func tight(f func() error) error {
	tighten()
	defer loosen()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return f()
}

func tighten() {
	t := &tightening
	t.Lock()
	defer t.Unlock()
	t.calls++
	if t.calls > 1 {
		return
	}
	t.was = debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(t.was, wholeHeap))
}

func loosen() {
	t := &tightening
	t.Lock()
	defer t.Unlock()
	t.calls--
	if t.calls == 0 {
		debug.SetMemoryLimit(t.was)
	}
}

// wholeStat reads the statistics of a whole tensor.
func (e *engine) wholeStat(r *run, w *method.Whole) error {
	for j, src := range r.Stat {
		w.Stat = append(w.Stat, nil)
		if src == nil {
			continue
		}

		n := int64(1)
		for _, d := range r.Tensor.Inputs[j].Stat {
			n *= d
		}

		w.Stat[j] = make([]float32, n)
		if err := src.Read(w.Stat[j], 0); err != nil {
			return err
		}
	}

	return nil
}
