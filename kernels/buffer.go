package kernels

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Buffer is a run of elements on one device. Host devices keep them in ordinary memory, reached through Bytes and the
// typed accessors; other devices keep an address in Addr.
type Buffer struct {
	DType DType
	Len   int     // elements
	Addr  uintptr // device address; 0 on host devices

	// Packed is a backend's private re-layout of the contents, kept between calls. Whoever changes the contents other
	// than through an operation calls [Buffer.Changed].
	Packed atomic.Pointer[any]

	host []byte
	free func()
}

// ErrMisaligned is returned by [Wrap] for bytes that do not start at a multiple of the element size.
var ErrMisaligned = errors.New("memory is not aligned to the element size")

// NewHost allocates n zeroed elements of ordinary memory, aligned to 64 bytes. Host devices use it for Alloc.
func NewHost(d DType, n int) *Buffer {
	size := n * d.Size()
	raw := make([]byte, size+64)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & 63)
	return &Buffer{DType: d, Len: n, host: raw[off : off+size : off+size]}
}

// Wrap makes a buffer of existing memory without a copy, for host devices. The memory, which may be a read-only
// mapping, must stay valid as long as the buffer is used.
func Wrap(d DType, p []byte) (*Buffer, error) {
	if len(p)%d.Size() != 0 {
		return nil, fmt.Errorf("%d bytes are not a whole number of %s elements", len(p), d)
	}
	if uintptr(unsafe.Pointer(unsafe.SliceData(p)))%uintptr(d.Size()) != 0 {
		return nil, ErrMisaligned
	}
	return &Buffer{DType: d, Len: len(p) / d.Size(), host: p}, nil
}

// WrapF32 makes a host buffer of a float32 slice without a copy.
func WrapF32(s []float32) *Buffer {
	return &Buffer{DType: F32, Len: len(s), host: bytesOf(s)}
}

// NewMapped makes a buffer of host memory that somebody else manages; free, which gives it back, runs once, at
// [Buffer.Free].
func NewMapped(d DType, p []byte, free func()) *Buffer {
	return &Buffer{DType: d, Len: len(p) / d.Size(), host: p, free: free}
}

// NewDevice describes n elements at a device address; free runs once, at [Buffer.Free].
func NewDevice(d DType, n int, addr uintptr, free func()) *Buffer {
	return &Buffer{DType: d, Len: n, Addr: addr, free: free}
}

// Bytes is the host memory of the buffer; nil on other devices.
func (b *Buffer) Bytes() []byte { return b.host }

// F32 is the host memory as float32. It panics when the element type is another.
func (b *Buffer) F32() []float32 { return view[float32](b, F32) }

// F64 is the host memory as float64. It panics when the element type is another.
func (b *Buffer) F64() []float64 { return view[float64](b, F64) }

// I32 is the host memory as int32. It panics when the element type is another.
func (b *Buffer) I32() []int32 { return view[int32](b, I32) }

// U8 is the host memory as bytes. It panics when the element type is another.
func (b *Buffer) U8() []uint8 { return view[uint8](b, U8) }

// U16 is the host memory of a BF16 or F16 buffer as bit patterns. It panics for other element types.
func (b *Buffer) U16() []uint16 {
	if b.DType != BF16 && b.DType != F16 {
		panic("kernels: element type is not a 16-bit float")
	}
	return view[uint16](b, b.DType)
}

// Changed drops what a backend derived from the old contents.
func (b *Buffer) Changed() { b.Packed.Store(nil) }

// Exchange swaps the contents of two buffers of one device, type and length, with what backends derived from
// them, without copying. No operation may run on them meanwhile.
func (b *Buffer) Exchange(o *Buffer) {
	if b.DType != o.DType || b.Len != o.Len {
		panic("kernels: buffers that exchange contents differ in type or length")
	}
	packed := b.Packed.Load()
	b.Packed.Store(o.Packed.Swap(packed))
	b.Addr, o.Addr = o.Addr, b.Addr
	b.host, o.host = o.host, b.host
	b.free, o.free = o.free, b.free
}

// Free returns the memory to the device; the buffer must not be used again. Host memory goes back to the collector.
func (b *Buffer) Free() {
	b.Changed()
	if b.free != nil {
		b.free()
	}
	b.free = nil
	b.host = nil
	b.Addr = 0
	b.Len = 0
}

func view[T any](b *Buffer, d DType) []T {
	if b.DType != d {
		panic("kernels: buffer accessed as another element type")
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b.host))), b.Len)
}

func bytesOf(s []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*4)
}
