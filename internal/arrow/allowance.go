package arrow

import "fmt"

// Bounds on what a file may ask for.
const (
	free    = 64 << 20 // of any file, in bytes of memory
	perByte = 8 << 10  // for each of its bytes; an honest file of a dictionary or of bits may need hundreds

	maxBody = 4 << 30 // of a message, packed or not
	maxRow  = 1 << 30

	maxFields = 10_000
	maxDepth  = 32
)

// allowance is how much memory the content of a file may still take, counted as if nothing were given back: so it also
// bounds what a small file can make of one value that it refers to again and again. It is the library's allocator.
type allowance struct{ left int64 }

func newAllowance(size int64) *allowance {
	return &allowance{left: free + perByte*min(size, 1<<40)}
}

func (a *allowance) take(n int64) error {
	if n < 0 || n > a.left {
		return fmt.Errorf("%w: its content takes more memory than a file of this size can need", ErrFormat)
	}
	a.left -= n
	return nil
}

// Allocate implements [memory.Allocator], which has no errors.
func (a *allowance) Allocate(size int) []byte {
	err := a.take(int64(size))
	if err == nil && size > maxBody {
		err = fmt.Errorf("%w: a dictionary of %d bytes", ErrUnsupported, size)
	}
	if err != nil {
		panic(err)
	}
	return make([]byte, size)
}

// Reallocate implements [memory.Allocator].
func (a *allowance) Reallocate(size int, b []byte) []byte {
	if size <= cap(b) {
		return b[:size]
	}
	grown := a.Allocate(size)
	copy(grown, b)
	return grown
}

// Free implements [memory.Allocator]; the garbage collector knows when nothing refers to it any more.
func (a *allowance) Free([]byte) {}
