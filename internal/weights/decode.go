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

	users int  // reads that copy from it now
	gone  bool // it is not kept any more
}

// buffers keeps the space of windows that are gone: reads of whole models would make as much garbage as the models
// are large.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

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

		x := w.use(c, at, hi-lo)
		defer w.done(x)
		if errs[i] = w.fill(x, hi-lo); errs[i] == nil {
			copy(part, x.data[max(off-lo, 0):])
		}
	})

	for _, err := range errs {
		if err != nil {
			return err
		}
	}

	return nil
}

// fill decodes a window, unless that was done.
func (w *windows) fill(x *window, size int64) error {
	x.once.Do(func() {
		buf := buffers.Get().(*[]byte)
		x.data = slices.Grow((*buf)[:0], int(size))[:size]
		// A fault leaves the window without data for all who wait for it.
		x.err = mmapsafe.Do(func() error { return x.of.decode(x.data, x.at) })
	})
	return x.err
}

// use gives the kept window, or a new one that is kept from now on in the place of the oldest, for a read.
func (w *windows) use(c *coded, at, size int64) *window {
	w.mu.Lock()
	defer w.mu.Unlock()

	var x *window
	if i := slices.IndexFunc(w.kept, func(x *window) bool { return x.of == c && x.at == at }); i >= 0 {
		x = w.kept[i]
		w.kept = append(slices.Delete(w.kept, i, i+1), x)
	} else {
		x = &window{of: c, at: at}
		w.kept = append(w.kept, x)
		w.bytes += size
	}
	x.users++

	for w.bytes > keptBytes && len(w.kept) > runtime.GOMAXPROCS(0) {
		w.drop(w.kept[0])
		w.kept = slices.Delete(w.kept, 0, 1)
	}

	return x
}

// done ends a read.
func (w *windows) done(x *window) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.users--
	x.reuse()
}

// drop is the end of a window that is taken from those kept. The lock is held.
func (w *windows) drop(x *window) {
	w.bytes -= min(x.of.width(), x.of.info.Size-x.at*x.of.width())
	x.gone = true
	x.reuse()
}

// reuse gives the space of a window away that is gone, once nobody copies from it. The lock is held.
func (x *window) reuse() {
	if x.gone && x.users == 0 && x.data != nil {
		data := x.data
		buffers.Put(&data)
		x.data = nil
	}
}

// forget drops the kept windows of a tensor.
func (w *windows) forget(c *coded) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = slices.DeleteFunc(w.kept, func(x *window) bool {
		if x.of == c {
			w.drop(x)
		}
		return x.of == c
	})
}

// clear drops all.
func (w *windows) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.kept {
		w.drop(x)
	}
	w.kept = nil
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
