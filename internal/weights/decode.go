package weights

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/safetensors"
)

// coded is a tensor that is decoded when it is read.
type coded struct {
	matrix *quantized.Matrix
	info   safetensors.Info // of what it is decoded to
	parts  []string         // that it is decoded from, by their names in the files
	rows   int              // of what it is decoded to, experts one under another
	cols   int
	step   int  // rows that are decoded at a time
	turned bool // each matrix of the stack is stored the other way round
}

// windowElements is about how many elements are decoded at a time: enough that threads pay, few enough for a cache.
const windowElements = 1 << 16

// newCoded describes what a matrix is decoded to.
func newCoded(m *quantized.Matrix, parts []string) *coded {
	c := &coded{matrix: m, parts: parts, rows: m.Rows, cols: m.Cols}
	shape := []int64{int64(m.Rows), int64(m.Cols)}
	if m.Format == "mxfp4" {
		// This format, of stacks of experts, keeps experts as out × in, where the model without quantisation has
		// in × out.
		c.turned = true
		c.rows, c.cols = m.Stack*m.Cols, m.Rows/m.Stack
		shape = []int64{int64(m.Stack), int64(m.Cols), int64(c.cols)}
	}

	band := max(m.Band, 1)
	c.step = max(windowElements/max(c.cols, 1)/band, 1) * band
	if c.turned {
		c.step = m.Cols
	}

	size, _ := m.DType.ByteSize(shape) // the matrix is in memory, in fewer bytes
	c.info = safetensors.Info{Name: m.Name, DType: m.DType, Shape: shape, Size: size}
	return c
}

// width is the bytes of a window, of which the last may have fewer.
func (c *coded) width() int64 { return int64(c.step) * int64(c.cols) * int64(dtype.Size(c.info.DType)) }

// decode writes the elements of a window as bytes.
func (c *coded) decode(dst []byte, window int64) error {
	first := int(window) * c.step
	n := min(c.step, c.rows-first)

	// straight to where they go, if floats can lie there
	if c.info.DType == safetensors.F32 && !c.turned && uintptr(unsafe.Pointer(unsafe.SliceData(dst)))%4 == 0 {
		return c.matrix.Decode(unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)/4), first, n)
	}

	work := works.Get().(*[]float32)
	defer works.Put(work)
	values := slices.Grow((*work)[:0], n*c.cols)[:n*c.cols]
	*work = values

	if c.turned {
		expert := make([]float32, len(values))
		if err := c.matrix.Decode(expert, int(window)*c.cols, c.cols); err != nil {
			return err
		}
		turn(values, expert, c.matrix.Cols)
	} else if err := c.matrix.Decode(values, first, n); err != nil {
		return err
	}

	return dtype.Encode(dst, values, c.info.DType)
}

// works keeps the space of earlier windows.
var works = sync.Pool{New: func() any { return new([]float32) }}

// turn transposes a matrix of so many columns, in squares that fit a cache.
func turn(dst, src []float32, cols int) {
	const side = 32
	rows := len(src) / cols
	for r0 := 0; r0 < rows; r0 += side {
		for c0 := 0; c0 < cols; c0 += side {
			for r := r0; r < min(r0+side, rows); r++ {
				for c := c0; c < min(c0+side, cols); c++ {
					dst[c*rows+r] = src[r*cols+c]
				}
			}
		}
	}
}

// windows reads tensors that are decoded. It keeps windows that reads begin or end within, since the next one goes on
// there. The zero value is ready.
type windows struct {
	mu    sync.Mutex
	kept  []*window // the latest last
	bytes int64     // of those kept

	touched map[*coded]bool // decoded from since pages were given back last
	decoded int64           // bytes since then
}

// window is a part of a tensor, decoded once.
type window struct {
	of   *coded
	at   int64
	once sync.Once
	data []byte
	err  error
}

const (
	// keptBytes bounds the windows that are kept beside the latest for each processor.
	keptBytes = 16 << 20
	// spentBytes is after how many decoded bytes the pages of what they are decoded from are given back.
	spentBytes = 64 << 20
)

// read copies bytes of a tensor from off on, which are all there.
func (w *windows) read(c *coded, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}

	width := c.width()
	end := off + int64(len(p))
	first, last := off/width, (end-1)/width
	errs := make([]error, last-first+1)

	mmapsafe.Each(0, len(errs), func(i int) {
		at := first + int64(i)
		lo, hi := at*width, min((at+1)*width, c.info.Size)
		part := p[max(lo, off)-off : min(hi, end)-off]
		if int64(len(part)) == hi-lo {
			errs[i] = c.decode(part, at)
			return
		}

		data, err := w.window(c, at, hi-lo)
		if err != nil {
			errs[i] = err
			return
		}
		copy(part, data[max(off-lo, 0):])
	})

	for _, err := range errs {
		if err != nil {
			return err
		}
	}

	return nil
}

// window gives a whole window, decoded now or kept.
func (w *windows) window(c *coded, at, size int64) ([]byte, error) {
	x := w.find(c, at, size)
	x.once.Do(func() {
		// A fault leaves the window without data for all who wait for it.
		x.err = mmapsafe.Do(func() error {
			data := make([]byte, size)
			if err := c.decode(data, at); err != nil {
				return err
			}
			x.data = data
			return nil
		})
	})

	return x.data, x.err
}

// find gives the kept window, or a new one that is kept from now on in the place of the oldest.
func (w *windows) find(c *coded, at, size int64) *window {
	w.mu.Lock()
	defer w.mu.Unlock()

	if i := slices.IndexFunc(w.kept, func(x *window) bool { return x.of == c && x.at == at }); i >= 0 {
		x := w.kept[i]
		w.kept = append(slices.Delete(w.kept, i, i+1), x)
		return x
	}

	x := &window{of: c, at: at}
	w.kept = append(w.kept, x)
	w.bytes += size
	for w.bytes > keptBytes && len(w.kept) > runtime.GOMAXPROCS(0) {
		w.bytes -= w.kept[0].size()
		w.kept = slices.Delete(w.kept, 0, 1)
	}

	return x
}

func (x *window) size() int64 { return min(x.of.width(), x.of.info.Size-x.at*x.of.width()) }

// forget drops the kept windows of a tensor.
func (w *windows) forget(c *coded) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = slices.DeleteFunc(w.kept, func(x *window) bool {
		if x.of == c {
			w.bytes -= x.size()
		}
		return x.of == c
	})
}

// clear drops all.
func (w *windows) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = nil
	w.bytes = 0
	w.touched = nil
}

// spent counts bytes that were decoded, and lists the tensors of the files whose pages are to be given back now.
func (w *windows) spent(c *coded, n int64) (parts []string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.touched == nil {
		w.touched = map[*coded]bool{}
	}
	w.touched[c] = true
	w.decoded += n
	if w.decoded < spentBytes {
		return nil
	}

	for x := range maps.Keys(w.touched) {
		parts = append(parts, x.parts...)
	}
	clear(w.touched)
	w.decoded = 0

	return parts
}
