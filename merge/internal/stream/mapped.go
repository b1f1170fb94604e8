package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// Mapped reads a tensor through the mapping of its file.
type Mapped struct {
	data    []byte
	dtype   safetensors.DType
	round   safetensors.DType // elements are first rounded to this type; 0: not
	release func()
	// populated lists which windows were mapped; later passes find them so.
	populated []atomic.Bool
}

// NewMapped makes a source of a tensor's bytes. Elements are rounded to the type round before anything else if that is
// narrower; 0 leaves them alone. release, which may be nil, gives back the memory behind data.
func NewMapped(data []byte, d, round safetensors.DType, release func()) (*Mapped, error) {
	if !dtype.IsFloat(d) {
		return nil, fmt.Errorf("elements of type %s cannot be merged: %w", d, errors.ErrUnsupported)
	}
	if round == d || round == safetensors.F32 || round == safetensors.F64 {
		round = 0
	}

	m := &Mapped{data: data, dtype: d, round: round, release: release}
	if release != nil {
		m.populated = make([]atomic.Bool, len(data)/window+1)
	}

	return m, nil
}

// Read implements [Source].
func (m *Mapped) Read(dst []float32, off int64) error {
	size := int64(m.dtype.Bits() / 8)
	first, end := off*size, (off+int64(len(dst)))*size
	m.populate(first, end)
	widen(dst, m.data[first:end], m.dtype)
	Round(dst, m.round)
	return nil
}

// words are n elements as they lie in the file, of two bytes each.
func (m *Mapped) words(off, n int64) []uint16 {
	first, end := 2*off, 2*(off+n)
	m.populate(first, end)
	return words(m.data[first:end])
}

// aligned reports whether elements of two bytes lie at their addresses.
func (m *Mapped) aligned() bool { return uintptr(unsafe.Pointer(unsafe.SliceData(m.data)))%2 == 0 }

// populate maps the window that comes after bytes [first, end), if they reach into a new one.
func (m *Mapped) populate(first, end int64) {
	if next := end / window; (first == 0 || first/window != next) && next < int64(len(m.populated)) &&
		!m.populated[next].Swap(true) {
		m.advise(end, (next+1)*window, system.Populate)
	}
}

// Round rounds x to the numbers of a narrower type; of types other than BF16 and F16 nothing is rounded.
func Round(x []float32, d safetensors.DType) {
	switch d {
	case safetensors.BF16:
		rounded(x, vec.NarrowBF16, vec.WidenBF16)
	case safetensors.F16:
		rounded(x, vec.NarrowF16, vec.WidenF16)
	}
}

// rounded takes x to a narrower type and back.
func rounded(x []float32, narrow func([]uint16, []float32), widen func([]float32, []uint16)) {
	var buf [512]uint16
	for len(x) > 0 {
		n := min(len(x), len(buf))
		narrow(buf[:n], x[:n])
		widen(x[:n], buf[:n])
		x = x[n:]
	}
}

// widen converts little-endian elements.
func widen(dst []float32, src []byte, d safetensors.DType) {
	if len(dst) == 0 {
		return
	}

	// The format has no gaps: a tensor is aligned only if the sizes before it say so.
	aligned := uintptr(unsafe.Pointer(&src[0]))%uintptr(d.Bits()/8) == 0
	switch {
	case d == safetensors.F32 && aligned:
		copy(dst, unsafe.Slice((*float32)(unsafe.Pointer(&src[0])), len(dst)))
	case d == safetensors.F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case d == safetensors.F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	default:
		h := words(src)
		if !aligned {
			h = make([]uint16, len(dst))
			for i := range h {
				h[i] = binary.LittleEndian.Uint16(src[2*i:])
			}
		}

		if d == safetensors.BF16 {
			vec.WidenBF16(dst, h)
		} else {
			vec.WidenF16(dst, h)
		}
	}
}

// words views bytes as 16-bit words.
func words(p []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/2)
}

// window is how many bytes are mapped at once, before their turn, which costs less than a fault for every few pages.
const window = 512 << 10

// Ahead implements [Source]: it asks the system to read the pages.
func (m *Mapped) Ahead(off, n int64) {
	size := int64(m.dtype.Bits() / 8)
	m.advise(off*size, (off+n)*size, system.Prefetch)
}

// advise tells the system about the whole pages of bytes [lo, hi); the first may begin before lo.
func (m *Mapped) advise(lo, hi int64, advice func([]byte)) {
	if m.release == nil {
		return
	}

	hi = min(hi, int64(len(m.data)))
	page := int64(os.Getpagesize())
	start := int64(uintptr(unsafe.Pointer(unsafe.SliceData(m.data))))
	lo = max(0, (start+lo)/page*page-start)
	if skew := (start + lo) % page; skew != 0 {
		lo += page - skew
	}
	if lo < hi {
		advice(m.data[lo:hi])
	}
}

// Release implements [Source].
func (m *Mapped) Release() {
	if m.release != nil {
		m.release()
	}
}
