package stream

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/output"
)

// keyed is how many neighbouring elements have the random numbers of one key.
const keyed = 1 << 20

// band is how many elements go to the device at a time, where a task does not need all of them.
const band = 4 * keyed

// errHost: the rest of the tensor is the CPU's, which finds out what is wrong, if anything is.
var errHost = errors.New("left to the CPU")

// onDevice merges a group on the device, as far as that can be done, and gives the segments that are left to the CPU.
func (e *engine) onDevice(g Group, segments []segment) ([]segment, error) {
	if g.Task == nil || e.o.Device == nil || e.o.Device.Info().Host || len(segments) == 0 || segments[0].Done {
		return segments, nil
	}

	r := segments[0].run
	merger, ok := kernels.As[kernels.Merger](e.o.Device)
	j := &job{e: e, k: g.Task, dev: e.o.Device, merger: merger, r: r}
	if !ok || !j.fits() {
		kernels.Missed(e.o.Device, "Merge")
		return segments, nil
	}

	e.device.Lock()
	defer e.device.Unlock()
	defer j.free()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the inputs are mapped files

	for len(segments) > 0 && e.ctx.Err() == nil {
		n := 1
		for n < len(segments) && (g.Task.whole() || segments[n].end-segments[0].first <= band) {
			n++
		}

		err := mmapsafe.Do(func() error { return j.merge(segments[:n]) })
		if errors.Is(err, errHost) {
			kernels.Missed(e.o.Device, "Merge")
			return segments, nil
		}
		if err != nil {
			return nil, err
		}

		segments = segments[n:]
	}

	if e.ctx.Err() == nil {
		e.mu.Lock()
		e.result.OnDevice++
		e.mu.Unlock()
	}

	return nil, context.Cause(e.ctx)
}

// job is one tensor on the device.
type job struct {
	e      *engine
	k      *Task
	dev    kernels.Device
	merger kernels.Merger
	r      *run
	counts bool      // there is no result
	inputs []*Mapped // the base last, if there is one
	dtype  kernels.DType
	out    kernels.DType
	held   []*kernels.Buffer // of the inputs, the base, and the result
	size   int64             // elements of each
}

// fits reports whether the tensors have one type, as they lie in their files, that the device takes.
func (j *job) fits() bool {
	it := j.r.Item
	if it.Align || it.Raw != nil || len(it.X) != len(j.k.sources) || !j.k.zero && it.Base == nil {
		return false
	}

	// Bytes go to the device as they lie in the file, so the inputs must agree in type.
	list := slices.Clone(it.X)
	if !j.k.zero {
		list = append(list, it.Base)
	}

	for _, src := range list {
		m, ok := src.(*Mapped)
		if !ok || m.round != 0 || len(j.inputs) > 0 && m.dtype != j.inputs[0].dtype {
			return false
		}
		j.inputs = append(j.inputs, m)
	}

	j.dtype, j.out = dtype.Matrix(j.inputs[0].dtype), dtype.Matrix(it.DType)
	return j.dtype != 0 && j.out != 0
}

func (j *job) free() {
	for _, b := range j.held {
		b.Free()
	}
	j.held = nil
}

// reserve makes room for n elements of every tensor.
func (j *job) reserve(n int64) error {
	if j.size >= n {
		return nil
	}

	j.free()
	tensors := len(j.k.sources) + 2
	// Counts leave no result to hold.
	if j.counts {
		tensors--
	}

	for i := range tensors {
		t := j.dtype
		if i == len(j.k.sources)+1 {
			t = j.out
		}

		b, err := j.dev.Alloc(t, int(n))
		if err != nil {
			// No memory on the device is no error: the CPU takes the tensor.
			return errHost
		}

		j.held = append(j.held, b)
	}

	j.size = n
	return nil
}

// load brings elements [first, end) of all inputs to the device, unless some of them are not finite.
func (j *job) load(first, end int64) error {
	if err := j.reserve(end - first); err != nil {
		return err
	}

	width := int64(j.dtype.Size())
	for i, m := range j.inputs {
		m.populate(first*width, end*width)
		if err := j.dev.Upload(j.held[i], 0, m.data[first*width:end*width]); err != nil {
			return err
		}
	}

	for i := range j.inputs {
		if j.dev.Ops().NonFinite(j.view(i, 0, int(end-first))) >= 0 {
			return errHost
		}
	}

	return nil
}

// view is elements [lo, hi) of what is held of a tensor.
func (j *job) view(i, lo, hi int) kernels.Mat {
	return kernels.Mat{Buf: j.held[i], Off: lo, Rows: 1, Cols: hi - lo, Stride: hi - lo}
}

// merge does some segments, which follow each other.
func (j *job) merge(part []segment) error {
	first, end := part[0].first, part[len(part)-1].end
	n, models, view := int(end-first), len(j.k.sources), j.view
	if err := j.load(first, end); err != nil {
		return err
	}

	sources := slices.Clone(j.k.sources)
	for i := range sources {
		sources[i].M = view(i, 0, n)
	}

	if err := j.restore(sources, view(models, 0, n), first); err != nil {
		return err
	}

	err := j.pieces(first, n, func(lo, hi int) error {
		list := j.keys(sources, first+int64(lo), lo, hi)
		return j.merger.Merge(view(models+1, lo, hi), view(models, lo, hi), list, j.k.arithmetic)
	})
	if errors.Is(err, kernels.ErrMerge) {
		return errHost
	}
	if err != nil {
		return err
	}

	// A result that is not finite is for the CPU, whose error names the element.
	if at := j.dev.Ops().NonFinite(view(models+1, 0, n)); at >= 0 {
		return errHost
	}
	if err := j.dev.Ops().Sync(); err != nil {
		return err
	}

	return j.write(part, first)
}

// pieces calls f for parts of n elements within which one key holds.
func (j *job) pieces(first int64, n int, f func(lo, hi int) error) error {
	if !j.k.random {
		return f(0, n)
	}
	if first%keyed != 0 {
		return errHost
	}

	for lo := 0; lo < n; lo += keyed {
		if err := f(lo, min(lo+keyed, n)); err != nil {
			return err
		}
	}

	return nil
}

// keys are the sources of a part, with their keys.
func (j *job) keys(sources []kernels.Source, off int64, lo, hi int) []kernels.Source {
	list := slices.Clone(sources)
	for i := range list {
		s := &list[i]
		s.M.Off = s.M.Off + lo
		s.M.Cols = hi - lo
		s.M.Stride = hi - lo

		if s.Share > 0 {
			key := j.k.tensor.Key(i, off)
			s.A, s.B = key.A, key.B
		}
	}

	return list
}

// restore makes weights that give every input the sum of magnitudes back that dropping takes.
func (j *job) restore(sources []kernels.Source, base kernels.Mat, first int64) error {
	for i := range sources {
		if !j.k.restore || sources[i].Share == 0 && sources[i].Keep == 0 {
			continue
		}

		var before, after float64
		err := j.pieces(first, base.Cols, func(lo, hi int) error {
			list := j.keys(sources, first+int64(lo), lo, hi)[i : i+1]
			b := base
			b.Off = lo
			b.Cols = hi - lo
			b.Stride = hi - lo
			kept, err := j.merger.Conflicts(b, list)
			if err != nil {
				return err
			}

			list[0].Share, list[0].Keep = 0, 0 // nothing dropped
			all, err := j.merger.Conflicts(b, list)
			before, after = before+all.Mass, after+kept.Mass

			return err
		})
		if err != nil {
			return err
		}

		if before >= 1e-7 && after >= 1e-7 {
			sources[i].Weight = float32(j.k.tensor.Inputs[i].Params.Number("weight") * (before / after))
		}
	}

	return nil
}

// write passes segments of the result on.
func (j *job) write(part []segment, first int64) error {
	width := int64(j.out.Size())
	for _, s := range part {
		// Buffers are few: a disk slower than the device holds the merge back here, not in memory.
		var buf []byte
		select {
		case buf = <-j.e.free:
		case <-j.e.ctx.Done():
			return context.Cause(j.e.ctx)
		}

		n := (s.end - s.first) * width
		if int64(cap(buf)) < n+output.Slack {
			buf = make([]byte, n+output.Slack)
		}

		// Laid out so that whole pages of the file are whole pages of memory (direct writes).
		data := output.Buffer(buf[:cap(buf)], j.e.sink.Position(s.Tensor.Name)+s.first*width, n)
		if err := j.dev.Download(data, j.held[len(j.k.sources)+1], int(s.first-first)); err != nil {
			j.e.free <- buf
			return err
		}

		if err := s.zeros(data); err != nil {
			j.e.free <- buf
			return err
		}

		j.e.full <- chunk{s.run, s.first * width, data, buf}
	}

	return nil
}
