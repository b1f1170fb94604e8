package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"runtime/debug"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Census is a group of one tensor with a base whose passes count how its inputs contradict each other, for a
// device that can count.
type Census struct {
	Keep []int // per input how many of its largest differences to the base count; 0: all
	// gets the counts in the place of the passes, several times for a tensor that is counted in parts
	Take func(c Counts)
	Done func() // after all parts; may be nil
}

// Counts are those of some elements of a tensor.
type Counts struct {
	kernels.Conflicts
	Elements int64
	Gram     []float64 // products of the inputs' differences, those that do not count too; row-major
	Base     float64   // Σ b²
}

// count lets the device count a group; false leaves it to the CPU.
func (e *engine) count(g Group, segments []segment) (done bool, err error) {
	if g.Census == nil || e.away == nil || len(segments) == 0 {
		return false, nil
	}

	k := &Task{tensor: g.Items[0].Tensor}
	for _, n := range g.Census.Keep {
		k.sources = append(k.sources, kernels.Source{Keep: n})
	}

	merger, ok := kernels.As[kernels.Merger](e.o.Device)
	j := &job{e: e, k: k, dev: e.o.Device, merger: merger, r: segments[0].run, counts: true}
	if !ok || len(k.sources) > kernels.MaxModels || k.tensor.N > math.MaxInt32 || !j.fits() {
		kernels.Missed(e.o.Device, "Conflicts")
		return false, nil
	}

	e.device.Lock()
	defer e.device.Unlock()
	defer j.free()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the inputs are mapped files

	// Kept until all is counted: if the device gives up half-way, the CPU counts the whole tensor.
	var parts []Counts
	for at := 0; at < len(segments) && e.ctx.Err() == nil; {
		end := at + 1
		for end < len(segments) && segments[end].run == j.r &&
			(k.whole() || segments[end].end-segments[at].first <= band) {
			end++
		}

		err := mmapsafe.Do(func() error {
			c, err := j.count(segments[at].first, segments[end-1].end)
			parts = append(parts, c)
			return err
		})
		if errors.Is(err, errHost) {
			kernels.Missed(e.o.Device, "Conflicts")
			return false, nil
		}
		if err != nil {
			return false, err
		}

		at = end
	}

	if err := context.Cause(e.ctx); err != nil {
		return false, err
	}
	for _, c := range parts {
		g.Census.Take(c)
	}
	if g.Census.Done != nil {
		g.Census.Done()
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	e.result.OnDevice++
	return true, nil
}

// count counts elements [first, end).
func (j *job) count(first, end int64) (c Counts, err error) {
	if err := j.load(first, end); err != nil {
		return c, err
	}

	n := int(end - first)
	c = Counts{Elements: end - first, Gram: make([]float64, len(j.k.sources)*len(j.k.sources))}
	for _, v := range j.tiles(n) {
		sources := make([]kernels.Source, len(j.k.sources))
		for i, s := range j.k.sources {
			sources[i] = kernels.Source{M: v, Keep: s.Keep}
			sources[i].M.Buf = j.held[i]
		}

		v.Buf = j.held[len(sources)]
		part, err := j.merger.Conflicts(v, sources)
		// What this device does not count goes to the CPU as a whole, so that one tensor is never counted in two
		// ways.
		if errors.Is(err, kernels.ErrMerge) {
			return c, errHost
		}
		if err != nil {
			return c, err
		}

		for p := range part.Signs {
			for q, n := range part.Signs[p] {
				c.Signs[p][q] += n
			}
		}

		c.Mass, c.Net = c.Mass+part.Mass, c.Net+part.Net
	}

	return c, j.products(n, &c)
}

// tileCols is the width of the matrices that rows of elements are counted as.
const tileCols = 4096

// tiles are matrices that together are the first n elements of a buffer: one of them where all elements are
// compared with each other.
func (j *job) tiles(n int) []kernels.Mat {
	cols := int(j.k.tensor.Cols())
	if j.k.whole() {
		return []kernels.Mat{{Rows: n / cols, Cols: cols, Stride: cols}}
	}

	var list []kernels.Mat
	whole := n / tileCols * tileCols
	if whole > 0 {
		list = append(list, kernels.Mat{Rows: n / tileCols, Cols: tileCols, Stride: tileCols})
	}
	if rest := n - whole; rest > 0 {
		list = append(list, kernels.Mat{Off: whole, Rows: 1, Cols: rest, Stride: rest})
	}

	return list
}

// products sums the products of the differences of n elements, and the squares of the base, in float64, from
// squares alone: 2xy is (x+y)² - x² - y². The sum x+y is rounded to float32: the product is right to 1e-7 of
// the lengths of both.
func (j *job) products(n int, c *Counts) error {
	models := len(j.k.sources)
	s, err := newSquares(j.dev, models)
	defer s.free()

	if err != nil {
		return errHost
	}

	for lo := 0; lo < n; lo += keyed {
		size := min(keyed, n-lo)
		s.add(j, lo, size)
	}

	sums, err := s.sums(j.dev)
	if err != nil {
		return err
	}

	c.Base = sums[0]

	for _, v := range sums {
		if v-v != 0 { // a difference of finite values is not finite, or its square
			return errHost
		}
	}

	at := 1 + models
	for a := range models {
		c.Gram[a*models+a] = sums[1+a]
		for b := range a {
			v := (sums[at] - sums[1+a] - sums[1+b]) / 2
			c.Gram[a*models+b], c.Gram[b*models+a] = v, v
			at++
		}
	}

	return nil
}

// squares sums squares of columns on a device.
type squares struct {
	acc  *kernels.Buffer   // F64: of the base, of the differences, of the sums of two of them
	wide []*kernels.Buffer // F32: the base, the differences, and a sum
}

// newSquares makes room for so many differences. What there is has to be freed after an error too.
func newSquares(dev kernels.Device, models int) (*squares, error) {
	s := &squares{}
	var err error
	if s.acc, err = dev.Alloc(kernels.F64, (1+models+models*(models-1)/2)*tileCols); err != nil {
		return s, err
	}

	for range models + 2 {
		b, err := dev.Alloc(kernels.F32, keyed)
		if err != nil {
			return s, err
		}
		s.wide = append(s.wide, b)
	}

	return s, nil
}

func (s *squares) free() {
	if s.acc != nil {
		s.acc.Free()
	}
	for _, b := range s.wide {
		b.Free()
	}
}

// add adds the squares of elements [lo, lo+n) of a job's tensors.
func (s *squares) add(j *job, lo, n int) {
	ops, models := j.dev.Ops(), len(j.k.sources)
	line := func(b *kernels.Buffer) kernels.Mat { return kernels.Mat{Buf: b, Rows: 1, Cols: n, Stride: n} }
	base, sum := line(s.wide[0]), line(s.wide[models+1])
	ops.Convert(base, j.view(models, lo, lo+n))
	s.square(ops, 0, base)

	at := 1 + models
	for a := range models {
		d := line(s.wide[1+a])
		ops.Convert(d, j.view(a, lo, lo+n))
		ops.Add(d, d, base, -1)
		s.square(ops, 1+a, d)

		for b := range a {
			ops.Add(sum, d, line(s.wide[1+b]), 1)
			s.square(ops, at, sum)
			at++
		}
	}
}

// square adds the squares of x to the sums of a number.
func (s *squares) square(ops *kernels.Ops, number int, x kernels.Mat) {
	acc := kernels.Mat{Buf: s.acc, Off: number * tileCols, Rows: 1, Cols: tileCols, Stride: tileCols}
	if rows := x.Cols / tileCols; rows > 0 {
		ops.ColSumSq(acc, kernels.Mat{Buf: x.Buf, Rows: rows, Cols: tileCols, Stride: tileCols})
	}
	if rest := x.Cols % tileCols; rest > 0 {
		acc.Cols = rest
		ops.ColSumSq(acc, kernels.Mat{Buf: x.Buf, Off: x.Cols - rest, Rows: 1, Cols: rest, Stride: rest})
	}
}

// sums waits for the sums of all numbers.
func (s *squares) sums(dev kernels.Device) ([]float64, error) {
	if err := dev.Ops().Sync(); err != nil {
		return nil, err
	}

	raw := make([]byte, 8*s.acc.Len)
	if err := dev.Download(raw, s.acc, 0); err != nil {
		return nil, err
	}

	list := make([]float64, s.acc.Len/tileCols)
	for i := range list {
		for at := i * tileCols; at < (i+1)*tileCols; at++ {
			list[i] += math.Float64frombits(binary.LittleEndian.Uint64(raw[8*at:]))
		}
	}

	return list, nil
}
