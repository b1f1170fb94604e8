// Package stream runs the programs of package method over tensors that may be larger than memory: it cuts them
// into segments, hands those to a fixed number of workers, each with buffers of its own, collects statistics in
// a fixed order, and passes finished segments to writers, so that reading, computing and writing overlap.
// Results do not depend on the number of workers.
//
// # How
//
// A group (usually one tensor of the output with its inputs) goes through its program's passes and then through Apply.
// Each of these is a loop over segments of half a million elements, and each segment one over blocks of 4096, which fit
// the caches with all their inputs. Three kinds of goroutines share the work:
//
//	drivers   one for each group under way, at most three: hand segments to the workers and wait, pass by pass. The
//	          next group begins while the last segments of this one are computed
//	workers   o.Threads: read, compute, round; each owns buffers for one block
//	writers   two: take finished segments from the channel full and give their buffers back through free
//
// Nothing grows with the model: workers' and writers' buffers are allocated once (fit.go finds how many fit the
// memory), groups that keep statistics wait in acquire until there is room, and input is read from mapped files, whose
// pages the system is asked for a few segments ahead and may drop again.
//
// What makes results independent of the workers: statistics are collected per segment and combined in the order of
// segments, segments depend on the tensor's size alone, and what is shared between segments (Pass.Shared) is so only
// where order does not matter. Of several errors the first in the order of segments is reported.
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

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/safetensors"
)

// Ways of failing.
var (
	// ErrMemory: a method cannot do with the memory that is allowed.
	ErrMemory = failure.New("more memory needed than is allowed", "raise --memory")
	// ErrOverflow: finite inputs gave a result that the output's type cannot hold.
	ErrOverflow = errors.New("result is not finite")
	// ErrNonFinite: an input holds a NaN or an infinity.
	ErrNonFinite = failure.New("input holds values that are not finite",
		"find the damage with compress inspect --verify, or pass --allow-nonfinite")
)

// Source gives the elements of one tensor of one model. Its methods are called by several goroutines at once.
type Source interface {
	// Read fills dst with the elements from off on, widened to float32.
	Read(dst []float32, off int64) error
	// Ahead announces that elements [off, off+n) will be read soon.
	Ahead(off, n int64)
	// Release announces that the tensor is not needed for now.
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
	Mask   Source   // where this is 0, so is the output; nil: no such thing
}

// Sink takes the output's bytes.
type Sink interface {
	// WriteAt writes a part of a tensor; several goroutines call it at once.
	WriteAt(name string, p []byte, off int64) error
	// Position is where a tensor's first byte lies in its file; buffers are laid out to suit.
	Position(name string) int64
}

// Behind is a [Sink] that can read back what is written while the rest is merged, within so many bytes of memory.
type Behind interface{ ReadBehind(bytes int64) }

// Options of [Run].
type Options struct {
	Threads int   // at most; 0: GOMAXPROCS
	Memory  int64 // bytes of anonymous memory; 0: 1 GiB
	// Device, where it is a GPU, does the tasks of groups that it can; results may then differ from the CPU's
	// by roundings of float32 and in the sign of zeros. nil: the CPU does all.
	Device kernels.Device
	// AllowNonFinite counts inputs' values that are not finite instead of refusing them.
	AllowNonFinite bool
	// Written is called when all bytes of a tensor are written, one call at a time.
	Written func(name string) error
	// Noted is called before Written, one call at a time, with what was found out about the tensor. May be nil.
	Noted func(name string, n Note) error
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
	// Output is how many values of the merged tensor are not finite: methods that drop or choose values may
	// drop these, others spread them.
	Output int64 `json:"output"`
}

// Error describes the values.
func (n NonFinite) Error() string {
	return fmt.Sprintf("tensor %q of %s: %d NaN and %d infinite values, the first at element %d: %v", n.Tensor, n.Model,
		n.NaN, n.Inf, n.First, ErrNonFinite)
}

// Unwrap gives [ErrNonFinite].
func (n NonFinite) Unwrap() error { return ErrNonFinite }

// Group is tensors that a program merges together.
type Group struct {
	Items   []*Item
	Program *method.Program // nil: all items are raw
	Task    *Task           // what the program does with its one tensor, if Options.Device can do it; nil: nothing
	Census  *Census         // what the passes count, if Options.Device can count it; nil: nothing
}

// Result is what a run found.
type Result struct {
	Threads   int // that ran: fewer than the options say where memory is short
	OnDevice  int // tensors that the device merged or counted
	NonFinite []NonFinite
}

// Run merges groups in their order. The context cancels between segments.
func Run(ctx context.Context, groups []Group, sink Sink, o Options) (*Result, error) {
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Memory <= 0 {
		o.Memory = 1 << 30
	}

	o, reserved, err := fit(groups, o)
	if err != nil {
		return nil, err
	}

	// reading back computes sums, which a single worker leaves no thread for
	if b, ok := sink.(Behind); ok && o.Threads > 1 {
		_, most := largest(groups)
		b.ReadBehind(o.Memory - reserved - most)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	e := &engine{
		o: o, away: Away(o.Device), reserved: reserved, result: Result{Threads: o.Threads}, sink: sink,
		ctx: ctx, fail: cancel, tasks: make(chan func(*workspace)), full: make(chan chunk, o.Threads),
	}
	e.free = make(chan []byte, 2*o.Threads+writers)
	e.room = sync.NewCond(&e.mu)
	buffers, free := output.Memory(cap(e.free), chunkSize(groups))
	defer free()

	for _, b := range buffers {
		e.free <- b
	}

	e.run(groups)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}

	e.result.NonFinite = sorted(e.result.NonFinite)
	return &e.result, nil
}

const (
	writers = 2
	// drivers is how many groups are under way at a time: while the last segments of one are computed, the next begins.
	drivers = 3
)

type engine struct {
	away  kernels.Device // that does what it can instead of the CPU; nil: none
	o     Options
	sink  Sink
	ctx   context.Context
	fail  context.CancelCauseFunc
	tasks chan func(*workspace)
	full  chan chunk  // to be written
	free  chan []byte // buffers for the output

	alone    sync.Mutex // held by a program over whole tensors
	device   sync.Mutex // held by a tensor on the device
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
	words method.Words
	id    int
}

// chunkSize is the size of the largest buffer for the output.
func chunkSize(groups []Group) (size int64) {
	for _, g := range groups {
		for _, it := range g.Items {
			_, segment := lengths(g.Program, it)
			if it.Raw == nil && !it.Done {
				size = max(size, min(segment, it.Tensor.N)*width(it.DType)+output.Slack)
			}
		}
	}
	return size
}

// need is the memory of a group beyond that of workers.
func need(g Group) int64 {
	if g.Program == nil {
		return 0
	}

	n := g.Program.Memory
	if g.Program.Whole != nil {
		it := g.Items[0]
		copies := int64(len(it.X) + 2)
		if g.Program.Lazy {
			copies = 1
		}
		n += 4 * it.Tensor.N * copies
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
	for i := range e.o.Threads {
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

		// In the order of groups and before the driver starts, so that a large group is not overtaken for ever by small
		// ones.
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

	// In the direction of the data: each closes what nobody sends to any more.
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
	// One that is alone may begin whatever it needs: fit has refused what can't be done at all.
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
	if c.item.left.Add(-int64(len(c.data))) > 0 || e.o.Written == nil && e.o.Noted == nil {
		return
	}

	// Where the inputs are looked at while they are merged, the driver refuses them after the last block, which may be
	// after the last chunk is written. A tensor that a journal takes for finished would not be looked at again.
	if err := e.check([]*run{c.item}); err != nil {
		e.fail(err)
		return
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	if e.o.Noted != nil {
		if err := e.o.Noted(c.item.Tensor.Name, c.item.note()); err != nil {
			e.fail(err)
			return
		}
	}

	if e.o.Written == nil {
		return
	}
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
	plain  []*Mapped // the inputs and the base, if all of them are plain bfloat16
	mu     sync.Mutex
	bad    []NonFinite // per input, the base last
	out    int64       // values of the output that are not finite
	found  Zeros
	ties   *method.Ties // of the group that this is the first tensor of
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

	if g.Task != nil {
		var err error
		if segments, err = e.onDevice(g, segments); err != nil || len(segments) == 0 {
			return err
		}
	}

	if done, err := e.count(g, segments); done || err != nil {
		return err
	}

	// Whether the inputs are finite is found out on the first reading of all of them, be it a pass or Apply.
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

			todo = append(slices.Clone(more), todo[1:]...) // what a pass asks for comes before what was planned
		}
	}

	if g.Program != nil && g.Program.Ties != nil && len(items) > 0 {
		items[0].ties = g.Program.Ties
	}
	if err := e.apply(g.Program, segments, !checked); err != nil {
		return err
	}

	if !checked {
		if err := e.check(items); err != nil {
			return err
		}
	}

	e.note(items)
	return nil
}

// prepare cuts the items of a group into segments.
func prepare(g Group) (items []*run, segments []segment) {
	index := int64(0)
	for i, it := range g.Items {
		r := &run{Item: it, index: index, number: i, bad: make([]NonFinite, len(it.X)+1)}
		block, size := lengths(g.Program, it)
		r.block, r.plain = block, plain(it)
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
		// Segments are started in order, so the error found is the first one, however the workers run.
		if failed.Load() || e.ctx.Err() != nil {
			break
		}

		wait.Add(1)
		e.tasks <- func(ws *workspace) {
			defer wait.Done()
			if e.ctx.Err() != nil {
				return
			}

			// What the next segments read is asked for now, while this one computes.
			segments[i].ahead(segments, i)
			if errs[i] = mmapsafe.Do(func() error { return f(ws, i) }); errs[i] != nil {
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
	if i == 0 { // nobody has asked for those before it
		first = 1
	}

	for j := first; j <= i+lookahead && j < len(segments); j++ {
		next := segments[j]
		for _, src := range next.sources() {
			src.Ahead(next.first, next.end-next.first)
		}
	}
}
