//go:build (amd64 || arm64) && !noasm

package cpu

import "unsafe"

// selectAsm holds the assembly bodies of one instruction set. They work on whole blocks (n is a multiple of the number
// that the field's comment gives); selectAsm's methods do what is left over in plain Go. The loops are those of
// [selectKernels].
type selectAsm struct {
	lanes     int // keys in a vector
	keys      func(dst *int32, x *float32, col *float32, n int, abs uint32)
	bf16, f16 func(dst *int32, x *uint16, col *float32, n int, abs uint32)
	within    func(dst, keys *int32, n int, lo, hi int32) (kept, below int)
	above     func(mask *uint8, keys *int32, n int, t int32) (equal int)
	// any number of vectors
	rank     func(mask *uint8, keys *int32, vectors, step, turns int, turn *rotation, n int32, ahead uintptr)
	wide     func(mask *uint8, keys *int32, groups, m int, left *[16]int32, n int32) // of 9 to 16 keys
	sumSq1   func(acc *float64, x *float32, n int)
	sumSq4   func(acc *float64, x *float32, n, stride int)
	zero32   func(w *float32, mask *uint8, n int)
	zero16   func(w *uint16, mask *uint8, n int)
	finite32 func(x *float32, n int) int
	finite16 func(x *uint16, n int, inf uint16) int
	count32  func(x *float32, n int) int
	count16  func(x *uint16, n int) int
	count8   func(x *uint8, n int) int
}

const (
	rowBlock    = 16 // keys, bf16, f16, within, above, zero32
	sumBlock    = 8  // sumSq1, sumSq4
	maskBlock   = 32 // zero16
	streamBlock = 64 // finite, count
)

// kernels wraps the assembly.
func (a *selectAsm) kernels() *selectKernels {
	return &selectKernels{
		lanes:   a.lanes,
		keysF32: a.keysF32, keysBF16: a.keysBF16, keysF16: a.keysF16, within: a.withinRange, above: a.aboveKey,
		groups: a.groups, sumSq: a.sumSq, zero32: a.zeroMasked32, zero16: a.zeroMasked16,
		nonFinite32: a.nonFinite32, nonFinite16: a.nonFinite16, zeros32: a.zeros32, zeros16: a.zeros16,
		zeros8: a.zeros8,
	}
}

// blocks is how many of n elements fill whole blocks of the size b, a power of two.
func blocks(n, b int) int { return n &^ (b - 1) }

// past returns col from element n on; nil stays nil.
func past(col []float32, n int) []float32 {
	if col == nil {
		return nil
	}
	return col[n:]
}

func (a *selectAsm) keysF32(dst []int32, x, col []float32, abs uint32) {
	n := blocks(len(dst), rowBlock)
	if n > 0 {
		a.keys(&dst[0], &x[:n][0], unsafe.SliceData(col), n, abs)
	}
	keysF32(dst[n:], x[n:], past(col, n), abs)
}

func (a *selectAsm) keysBF16(dst []int32, x []uint16, col []float32, abs uint32) {
	n := blocks(len(dst), rowBlock)
	if n > 0 {
		a.bf16(&dst[0], &x[:n][0], unsafe.SliceData(col), n, abs)
	}
	keysBF16(dst[n:], x[n:], past(col, n), abs)
}

func (a *selectAsm) keysF16(dst []int32, x []uint16, col []float32, abs uint32) {
	n := blocks(len(dst), rowBlock)
	if n > 0 {
		a.f16(&dst[0], &x[:n][0], unsafe.SliceData(col), n, abs)
	}
	keysF16(dst[n:], x[n:], past(col, n), abs)
}

func (a *selectAsm) withinRange(dst, keys []int32, lo, hi int32) (kept, below int) {
	n := blocks(len(keys), rowBlock)
	if n > 0 {
		_ = dst[:n+keyPad]
		kept, below = a.within(&dst[0], &keys[0], n, lo, hi)
	}
	k, b := within(dst[kept:len(keys)], keys[n:], lo, hi)
	return kept + k, below + b
}

func (a *selectAsm) aboveKey(mask []uint8, keys []int32, t int32) (equal int) {
	n := blocks(len(mask), rowBlock)
	if n > 0 {
		equal = a.above(&mask[0], &keys[:n][0], n, t)
	}
	return equal + above(mask[n:], keys[n:], t)
}

func (a *selectAsm) sumSq(acc []float64, x []float32, stride, rows int) {
	n := blocks(len(acc), sumBlock)
	if n > 0 {
		_ = x[(rows-1)*stride+n-1]

		if rows == 4 {
			a.sumSq4(&acc[0], &x[0], n, stride)
		} else {
			for i := range rows {
				a.sumSq1(&acc[0], &x[i*stride], n)
			}
		}
	}

	if n < len(acc) {
		sumSq(acc[n:], x[n:], stride, rows)
	}
}

func (a *selectAsm) zeroMasked32(w []float32, mask []uint8) {
	n := blocks(len(w), rowBlock)
	if n > 0 {
		a.zero32(&w[0], &mask[:n][0], n)
	}
	zeroMasked(w[n:], mask[n:])
}

func (a *selectAsm) zeroMasked16(w []uint16, mask []uint8) {
	n := blocks(len(w), maskBlock)
	if n > 0 {
		a.zero16(&w[0], &mask[:n][0], n)
	}
	zeroMasked(w[n:], mask[n:])
}

// nonFinite32 looks closely where the assembly stopped: at a block with a hit, or at the end of the blocks.
func (a *selectAsm) nonFinite32(x []float32) int {
	n := blocks(len(x), streamBlock)
	if n > 0 {
		n = a.finite32(&x[0], n)
	}
	return shifted(n, nonFinite32(x[n:]))
}

func (a *selectAsm) nonFinite16(x []uint16, inf uint16) int {
	n := blocks(len(x), streamBlock)
	if n > 0 {
		n = a.finite16(&x[0], n, inf)
	}
	return shifted(n, nonFinite16(x[n:], inf))
}

// shifted moves a found place by n; -1 stays.
func shifted(n, at int) int {
	if at < 0 {
		return at
	}
	return n + at
}

func (a *selectAsm) zeros32(x []float32) (zeros int) {
	n := blocks(len(x), streamBlock)
	if n > 0 {
		zeros = a.count32(&x[0], n)
	}
	return zeros + zeros32(x[n:])
}

func (a *selectAsm) zeros16(x []uint16) (zeros int) {
	n := blocks(len(x), streamBlock)
	if n > 0 {
		zeros = a.count16(&x[0], n)
	}
	return zeros + zeros16(x[n:])
}

func (a *selectAsm) zeros8(x []uint8) (zeros int) {
	n := blocks(len(x), streamBlock)
	if n > 0 {
		zeros = a.count8(&x[0], n)
	}
	return zeros + zeros8(x[n:])
}

// packTable[b] lists the lanes whose bit is set in b, in order: the permutation that moves them to the front.
var packTable = func() (t [256][8]uint8) {
	for b := range t {
		n := 0
		for lane := range 8 {
			if b>>lane&1 == 1 {
				t[b][n] = uint8(lane)
				n++
			}
		}
	}

	return t
}()
