// Package stream runs the programs of package method over tensors that may be larger than memory: it cuts them into segments,
// hands those to a fixed number of workers, each with buffers of its own, collects statistics in a fixed order, and passes
// finished segments to writers, so that reading, computing and writing overlap. Results do not depend on the number of
// workers.
package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// Ways of failing.
var (
	// ErrMemory: a method cannot do with the memory that is allowed.
	ErrMemory = errors.New("more memory needed than is allowed")
	// ErrFault: the memory behind an input went away while it was read.
	ErrFault = errors.New("input became shorter while it was read")
	// ErrOverflow: finite inputs gave a result that the output's type cannot hold.
	ErrOverflow = errors.New("result is not finite")
	// ErrNonFinite: an input holds a NaN or an infinity.
	ErrNonFinite = errors.New("input holds values that are not finite")
)

// Source gives the elements of one tensor of one model. Its methods are called by several goroutines at once.
type Source interface {
	// Read fills dst with the elements from off on, widened to float32.
	Read(dst []float32, off int64) error
	// Ahead tells that elements [off, off+n) will be read soon.
	Ahead(off, n int64)
	// Release tells that the tensor is not needed for now.
	Release()
}

// Item is a tensor of the output.
type Item struct {
	Tensor *method.Tensor
	DType  safetensors.DType // of the output: F32, F16, BF16 or F64; any with Raw
	Base   Source            // nil without a base
	X      []Source
	Stat   []Source // per input, nil where there are no statistics; the slice may be nil
	Models []string // names of the inputs for messages, the base's last
	Align  bool     // sources want whole rows
	Raw    []byte   // not nil: the output's bytes; X[0], if there is one, is only checked
	Done   bool     // the output has it already
}

// Sink takes the output's bytes.
type Sink interface {
	// WriteAt writes a part of a tensor; several goroutines call it at once.
	WriteAt(name string, p []byte, off int64) error
}

// Options of [Run].
type Options struct {
	Workers int   // 0: GOMAXPROCS
	Memory  int64 // bytes of anonymous memory; 0: 1 GiB
	// AllowNonFinite counts inputs' values that are not finite instead of refusing them.
	AllowNonFinite bool
	// Written is called when all bytes of a tensor are written, one call at a time.
	Written func(name string) error
	// Progress is called with the bytes of output written since the last call; by several goroutines at once.
	Progress func(bytes int64)
}

// NonFinite counts the values of one input of one tensor that are not finite.
type NonFinite struct {
	Tensor string `json:"tensor"`
	Model  string `json:"model"`
	NaN    int64  `json:"nan"`
	Inf    int64  `json:"inf"`
	First  int64  `json:"first"` // index of the first one
}

// Error describes the values.
func (n NonFinite) Error() string {
	return fmt.Sprintf("tensor %q of %s: %d NaN and %d infinite values, the first at element %d: %v", n.Tensor, n.Model, n.NaN, n.Inf, n.First, ErrNonFinite)
}

// Unwrap gives [ErrNonFinite].
func (n NonFinite) Unwrap() error { return ErrNonFinite }

// Group is tensors that a program merges together.
type Group struct {
	Items   []*Item
	Program *method.Program // nil: all items are raw
}

// Result is what a run found.
type Result struct {
	NonFinite []NonFinite
}

// Run merges groups in their order. The context cancels between segments.
func Run(ctx context.Context, groups []Group, sink Sink, o Options) (*Result, error) {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Memory <= 0 {
		o.Memory = 1 << 30
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e := &engine{o: o, sink: sink, ctx: ctx, fail: cancel, tasks: make(chan func(*workspace)), full: make(chan chunk, o.Workers)}
	e.free = make(chan []byte, 2*o.Workers+writers)
	for range cap(e.free) {
		e.free <- nil
	}
	e.room = sync.NewCond(&e.mu)
	var err error
	if e.reserved, err = reserve(groups, o); err != nil {
		return nil, err
	}
	e.run(groups)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return &e.result, nil
}

const (
	writers = 2
	// drivers is how many groups are under way at a time: while the last segments of one are computed, the next begins.
	drivers = 3
)

type engine struct {
	o     Options
	sink  Sink
	ctx   context.Context
	fail  context.CancelCauseFunc
	tasks chan func(*workspace)
	full  chan chunk  // to be written
	free  chan []byte // buffers for the output

	mu       sync.Mutex
	result   Result
	reserved int64 // memory of workers and writers
	used     int64 // memory of the programs under way
	room     *sync.Cond
}

// chunk is a finished part of a tensor.
type chunk struct {
	item *run
	off  int64
	data []byte
	buf  []byte // goes back to free; nil if data is no buffer
}

// workspace is what a worker owns.
type workspace struct {
	block method.Block
	x     [][]float32
	base  []float32
	out   []float32
	stat  [][]float32
	id    int
}

// Budget is the memory that a run takes at most, in bytes. The error wraps [ErrMemory] if more is needed than the options allow.
func Budget(groups []Group, o Options) (int64, error) {
	buffers, err := reserve(groups, o)
	most := int64(0)
	for _, g := range groups {
		most = max(most, need(g))
	}
	return buffers + most, err
}

// reserve is the memory of workers' and writers' buffers; it refuses what cannot be done within the allowed memory.
func reserve(groups []Group, o Options) (int64, error) {
	reserved := int64(0)
	for _, g := range groups {
		for _, it := range g.Items {
			block, segment := lengths(g.Program, it)
			buffers := int64(len(it.X)+8) * block * 4 * int64(o.Workers)
			if it.Raw == nil {
				buffers += segment * width(it.DType) * int64(2*o.Workers+writers)
			}
			reserved = max(reserved, buffers)
		}
	}
	for _, g := range groups {
		if n := need(g); reserved+n > o.Memory {
			return 0, fmt.Errorf("tensor %q needs %d MiB, %d MiB are allowed: %w", g.Items[0].Tensor.Name, (reserved+n)>>20+1, o.Memory>>20, ErrMemory)
		}
	}
	return reserved, nil
}

// need is the memory of a group beyond that of workers.
func need(g Group) int64 {
	if g.Program == nil {
		return 0
	}
	n := g.Program.Memory
	if g.Program.Whole != nil {
		it := g.Items[0]
		n += 4 * it.Tensor.N * int64(len(it.X)+2)
	}
	return n
}

// lengths are the sizes of blocks and segments of a tensor, in elements.
func lengths(p *method.Program, it *Item) (block, segment int64) {
	unit := int64(1)
	if p != nil && p.Rows || it.Align {
		unit = it.Tensor.Cols()
	}
	return max(unit, method.BlockSize/unit*unit), max(unit, method.SegmentSize/unit*unit)
}

func width(d safetensors.DType) int64 { return int64(d.Bits() / 8) }

// run starts workers, writers and drivers and waits for them.
func (e *engine) run(groups []Group) {
	var workers, writing, driving sync.WaitGroup
	for i := range e.o.Workers {
		workers.Go(func() {
			debug.SetPanicOnFault(true)
			ws := &workspace{id: i}
			for f := range e.tasks {
				f(ws)
			}
		})
	}
	for range writers {
		writing.Go(e.write)
	}
	turns := make(chan struct{}, drivers)
	for _, g := range groups {
		if !slices.ContainsFunc(g.Items, func(it *Item) bool { return !it.Done }) {
			continue
		}
		select {
		case turns <- struct{}{}:
		case <-e.ctx.Done():
		}
		if e.ctx.Err() != nil {
			break
		}
		need := need(g)
		e.acquire(need)
		driving.Go(func() {
			if err := e.drive(g); err != nil {
				e.fail(err)
			}
			e.acquire(-need)
			<-turns
		})
	}
	driving.Wait()
	close(e.tasks)
	workers.Wait()
	close(e.full)
	writing.Wait()
}

// acquire waits until there is memory for a group; a negative n gives it back.
func (e *engine) acquire(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n > 0 && e.used > 0 && e.reserved+e.used+n > e.o.Memory {
		e.room.Wait()
	}
	e.used += n
	e.room.Broadcast()
}

// write takes finished chunks.
func (e *engine) write() {
	for c := range e.full {
		if e.ctx.Err() == nil {
			if err := e.sink.WriteAt(c.item.Tensor.Name, c.data, c.off); err != nil {
				e.fail(err)
			} else {
				e.written(c)
			}
		}
		if c.buf != nil {
			e.free <- c.buf
		}
	}
}

// written counts a chunk, and tells when its tensor is complete.
func (e *engine) written(c chunk) {
	if e.o.Progress != nil {
		e.o.Progress(int64(len(c.data)))
	}
	if c.item.left.Add(-int64(len(c.data))) > 0 || e.o.Written == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.o.Written(c.item.Tensor.Name); err != nil {
		e.fail(err)
	}
}

// run is an item under way.
type run struct {
	*Item
	index  int64 // of its first element in the group
	number int   // in the group
	left   atomic.Int64
	block  int64
	mu     sync.Mutex
	bad    []NonFinite // per input, the base last
}

// segment is a run of elements of an item.
type segment struct {
	*run
	first, end int64
}

// drive merges one group.
func (e *engine) drive(g Group) error {
	items, segments := prepare(g)
	defer func() {
		for _, it := range items {
			it.release()
		}
	}()
	checked := false
	if g.Program != nil {
		for todo := slices.Clone(g.Program.Passes); len(todo) > 0; {
			p := todo[0]
			full := p.Stride == 0 && p.Only == nil
			stats, err := e.pass(p, segments, full && !checked)
			if err != nil {
				return err
			}
			if full && !checked {
				checked = true
				if err := e.check(items); err != nil {
					return err
				}
			}
			more, err := p.End(stats)
			if err != nil {
				return err
			}
			todo = append(slices.Clone(more), todo[1:]...)
		}
	}
	if err := e.apply(g.Program, segments, !checked); err != nil {
		return err
	}
	if checked {
		return nil
	}
	return e.check(items)
}

// prepare cuts the items of a group into segments.
func prepare(g Group) (items []*run, segments []segment) {
	index := int64(0)
	for i, it := range g.Items {
		r := &run{Item: it, index: index, number: i, bad: make([]NonFinite, len(it.X)+1)}
		block, size := lengths(g.Program, it)
		r.block = block
		r.left.Store(it.Tensor.N * width(it.DType))
		if it.Raw != nil {
			r.left.Store(int64(len(it.Raw)))
		}
		for first := int64(0); first < it.Tensor.N; first += size {
			segments = append(segments, segment{r, first, min(first+size, it.Tensor.N)})
		}
		items = append(items, r)
		index += it.Tensor.N
	}
	return items, segments
}

func (r *run) release() {
	for _, s := range r.sources() {
		s.Release()
	}
}

// sources are all sources of an item, in the order of bad, statistics last.
func (r *run) sources() []Source {
	list := slices.Clone(r.X)
	if r.Base != nil {
		list = append(list, r.Base)
	}
	for _, s := range r.Stat {
		if s != nil {
			list = append(list, s)
		}
	}
	return list
}

// each runs f for all segments on the workers and waits. The first error in the order of segments counts.
func (e *engine) each(segments []segment, f func(ws *workspace, i int) error) error {
	var wait sync.WaitGroup
	errs := make([]error, len(segments))
	var failed atomic.Bool
	for i := range segments {
		if failed.Load() || e.ctx.Err() != nil {
			break
		}
		wait.Add(1)
		e.tasks <- func(ws *workspace) {
			defer wait.Done()
			if e.ctx.Err() != nil {
				return
			}
			segments[i].ahead(segments, i)
			if errs[i] = guard(segments[i], func() error { return f(ws, i) }); errs[i] != nil {
				failed.Store(true)
			}
		}
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return context.Cause(e.ctx)
}

// lookahead is how many segments before its turn a segment's bytes are asked for.
const lookahead = 12

// ahead asks for the bytes of a segment that comes later.
func (s segment) ahead(segments []segment, i int) {
	first := i + lookahead
	if i == 0 {
		first = 1
	}
	for j := first; j <= i+lookahead && j < len(segments); j++ {
		next := segments[j]
		for _, src := range next.sources() {
			src.Ahead(next.first, next.end-next.first)
		}
	}
}

// guard runs f and turns a fault of the memory behind a mapped file into an error.
func guard(s segment, f func() error) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if fault, ok := r.(interface{ Addr() uintptr }); ok && fault.Addr() != 0 {
			err = fmt.Errorf("tensor %q, elements %d to %d: %w", s.Tensor.Name, s.first, s.end, ErrFault)
			return
		}
		panic(r)
	}()
	return f()
}

// pass collects statistics.
func (e *engine) pass(p method.Pass, segments []segment, check bool) ([]any, error) {
	if p.Only != nil {
		segments = segments[*p.Only : *p.Only+1]
	}
	n := len(segments)
	if p.Shared {
		n = e.o.Workers
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
		return ws.blocks(segments[i], p.Stride, check, func(b *method.Block) error {
			p.Each(stats[at], b)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(stats, func(s any) bool { return s == nil && p.Shared }), nil
}

// blocks reads a segment block by block; with a stride, only short blocks at those distances.
func (ws *workspace) blocks(s segment, stride int64, check bool, f func(b *method.Block) error) error {
	step, size := s.block, s.block
	first := s.first
	if stride > 0 {
		step, size = stride, method.SampleRun
		first = (s.first + stride - 1) / stride * stride // the same places whatever the segments
	}
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

// read fills the workspace's block.
func (ws *workspace) read(r *run, first, n int64, check bool) (*method.Block, error) {
	b := &ws.block
	b.Tensor, b.Off, b.Index = r.number, first, r.index+first
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

// check reports what was counted.
func (e *engine) check(items []*run) error {
	for _, r := range items {
		for i, n := range r.bad {
			if n.NaN+n.Inf == 0 {
				continue
			}
			n.Tensor, n.Model = r.Tensor.Name, r.Models[i]
			if !e.o.AllowNonFinite {
				return n
			}
			e.mu.Lock()
			e.result.NonFinite = append(e.result.NonFinite, n)
			e.mu.Unlock()
		}
	}
	return nil
}

// apply computes and writes all segments that the output lacks.
func (e *engine) apply(p *method.Program, segments []segment, check bool) error {
	segments = slices.DeleteFunc(slices.Clone(segments), func(s segment) bool { return s.Done })
	if p != nil && p.Whole != nil {
		return e.whole(p, segments)
	}
	return e.each(segments, func(ws *workspace, i int) error {
		s := segments[i]
		if s.Raw != nil {
			return e.copy(ws, s, check)
		}
		buf := <-e.free
		size := width(s.DType)
		if int64(cap(buf)) < (s.end-s.first)*size {
			buf = make([]byte, (s.end-s.first)*size)
		}
		data := buf[:(s.end-s.first)*size]
		err := ws.blocks(s, 0, check, func(b *method.Block) error {
			p.Apply(b)
			at := (b.Off - s.first) * size
			return e.store(s, data[at:at+int64(b.Len())*size], b.Out, b.Off)
		})
		if err != nil {
			e.free <- buf
			return err
		}
		e.full <- chunk{s.run, s.first * size, data, buf}
		return nil
	})
}

// store rounds a block to the output's type.
func (e *engine) store(s segment, dst []byte, x []float32, off int64) error {
	limit := uint32(vec.Infinite)
	if s.DType == safetensors.F16 {
		limit = 0x477ff000 // 65520, which rounds to infinity
	}
	if peak := vec.Peak(x); peak >= limit && !e.o.AllowNonFinite && s.finite() {
		return fmt.Errorf("tensor %q, elements %d to %d: %w in %s", s.Tensor.Name, off, off+int64(len(x)), ErrOverflow, s.DType)
	}
	return Narrow(dst, x, s.DType)
}

// finite tells whether no input was found to hold values that are not finite; those have an error of their own.
func (r *run) finite() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(r.bad, func(n NonFinite) bool { return n.NaN+n.Inf > 0 })
}

// copy writes a segment of raw bytes, and reads the elements if they are to be checked.
func (e *engine) copy(ws *workspace, s segment, check bool) error {
	if check && len(s.X) > 0 {
		if err := ws.blocks(s, 0, true, func(*method.Block) error { return nil }); err != nil {
			return err
		}
	}
	bits := int64(s.DType.Bits())
	lo, hi := s.first*bits/8, s.end*bits/8
	e.full <- chunk{s.run, lo, s.Raw[lo:hi], nil}
	return nil
}

// whole runs a program that wants all elements at once.
func (e *engine) whole(p *method.Program, segments []segment) error {
	if len(segments) == 0 {
		return nil
	}
	r := segments[0].run
	w := &method.Whole{Out: make([]float32, r.Tensor.N)}
	for range r.X {
		w.X = append(w.X, make([]float32, r.Tensor.N))
	}
	if r.Base != nil {
		w.Base = make([]float32, r.Tensor.N)
	}
	err := e.each(segments, func(_ *workspace, i int) error {
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
	if err == nil {
		err = e.wholeStat(r, w)
	}
	if err == nil {
		err = e.check([]*run{r})
	}
	if err == nil {
		err = p.Whole(w)
	}
	if err != nil {
		return err
	}
	return e.each(segments, func(_ *workspace, i int) error {
		s := segments[i]
		data := make([]byte, (s.end-s.first)*width(s.DType))
		if err := e.store(s, data, w.Out[s.first:s.end], s.first); err != nil {
			return err
		}
		e.full <- chunk{s.run, s.first * width(s.DType), data, nil}
		return nil
	})
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

// Narrow writes x in a floating-point type of two, four or eight bytes, rounded to nearest even.
func Narrow(dst []byte, x []float32, d safetensors.DType) error {
	if len(x) == 0 {
		return nil
	}
	switch d {
	case safetensors.BF16:
		vec.NarrowBF16(words(dst), x)
	case safetensors.F16:
		vec.NarrowF16(words(dst), x)
	case safetensors.F32:
		b, err := kernels.Wrap(kernels.F32, dst)
		if err != nil {
			return err
		}
		copy(b.F32(), x)
	case safetensors.F64:
		b, err := kernels.Wrap(kernels.F64, dst)
		if err != nil {
			return err
		}
		for i, v := range x {
			b.F64()[i] = float64(v)
		}
	default:
		return fmt.Errorf("merging to %s: %w", d, errors.ErrUnsupported)
	}
	return nil
}
