package cpu

import (
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// A micro-kernel multiplies packed panels: the sums of tile.rows × tile.cols elements stay in registers over all of a
// block's k, and every step loads one column of each panel. The tile is as large as the registers allow, because
// rows · cols multiply-adds are done for rows + cols loads: 12 × 32 floats with AVX-512 (24 of 32 registers for sums),
// 6 × 16 with AVX2 (12 of 16), four tiles of 16 × 16 with AMX. The structures of arguments are laid out for the
// assembly, which is generated in kernels/_gen and knows their offsets.

// layout says how a packed panel is ordered.
type layout uint8

const (
	// panelFloats: [p][row] float32.
	panelFloats layout = iota
	// panelPairs: [p/2][row] pairs of bfloat16, the even p in the low half.
	panelPairs
	// panelQuads: [p/4][row] four bfloat16, made of pairs.
	panelQuads
	// panelTiles: [p/32][part][half] AMX tiles; a half is 16 rows. A tile of the left operand is [16 rows][32
	// p], one of the right operand [16 pairs of p][16 rows].
	panelTiles
)

// tileKernel is a micro-kernel with the shape of its register tile and of its panels.
type tileKernel struct {
	rows, cols     int // of the register tile
	depth          int // longest inner size of one packed block, a multiple of 32
	layout         layout
	aParts, bParts int  // bfloat16 parts that an operand is split into; 0 for float32
	wide           bool // pieces of many columns, for panels so narrow that packing them again costs more than sums
	flat           bool // so few rows that those of dst don't drive each other out of the first-level cache
	run            func(*tileArgs)
	fetching       func(*tileArgs) // run, to the same bits, that fetches the next right panel; nil: there is none
}

// kernelSet holds the kernels of one choice of instruction sets. Optional tile kernels have a nil run.
type kernelSet struct {
	exact     tileKernel // float32 products
	fastBF16  tileKernel // bfloat16 products of rounded activations
	exactBF16 tileKernel // bfloat16 weights, activations in three parts
	split32   tileKernel // both operands in three parts

	add          func(dst, a, b []float32, scale float32) // dst = a + scale·b
	packA, packB func(*packArgs)                          // transpose exact.rows and group rows; nil: in Go
	packBF16     func(*packArgs)                          // packB of 16-bit units that are widened; nil: widened before
	packF16      func(*packArgs)                          // the same
	columns      columnKernels                            // pack right panels of stored columns; nil: in Go
	group        int                                      // rows that packB takes together

	split       func(*splitArgs)
	pairRows    func(*pairArgs)                  // of bfloat16
	pairParts   func(*pairArgs)                  // of float32, in three parts
	pairRounded func(*pairArgs)                  // of float32, rounded
	quads       func(p *uint32, rows, units int) // makes panelQuads of panelPairs, in their place
	peak16      func(p *uint16, n int) uint16
	peak32      func(p *float32, n int) uint32

	direct func(parts, rows int) func(*directArgs) // kernel for up to 32 rows

	widenBF16, widenF16 func(dst *float32, src *uint16, n int) // nil: in Go
	lanes               int                                    // n of widen, dot and axpy is a multiple of this
	masked              bool                                   // dot takes a tail below lanes

	dotF32, dotBF16, dotF16    []func(*dotArgs) // by rows of x, less 1; nil: in Go
	dotPair                    []func(*dotArgs) // bfloat16 with x rounded to bfloat16; nil: not worth it
	axpyF32, axpyBF16, axpyF16 func(*axpyArgs)

	few *fewKernels // products of few rows by blocks of the inner size; nil: dot kernels alone
}

// tileArgs are the operands of a micro-kernel. The assembly knows the offsets.
type tileArgs struct {
	a, b, c unsafe.Pointer
	k       int // units: floats, pairs or steps of 32
	ldc     int // bytes between two rows of c
	panels  int // panels of a, whose rows of c follow each other
	aStep   int // bytes between two panels of a
	acc     int // 0 overwrites c, 1 adds to it

	// What a fetching kernel fetches into the second-level cache for later: where it begins, which may be beyond the
	// operand, the bytes between two of its rows, of which there are 16, and how many bytes of each go with 16 units.
	fetch               uintptr
	fetchRow, fetchStep int
}

// packArgs are the operands of a transposition: dst[q·step + c·pitch + i] = src[i·stride + c] for 32-bit units,
// rows i, 16 columns c and n blocks q of 16 columns; step, pitch and stride are in bytes. The assembly knows
// the offsets.
type packArgs struct {
	dst, src            unsafe.Pointer
	n                   int
	step, pitch, stride int
}

// columnKernels pack panels of exact.cols columns as float32, by the type of the matrix.
type columnKernels struct{ f32, bf16, f16 func(*columnArgs) }

// of returns the kernel for a type.
func (c *columnKernels) of(t kernels.DType) func(*columnArgs) {
	switch t {
	case kernels.F32:
		return c.f32
	case kernels.BF16:
		return c.bf16
	}
	return c.f16
}

// splitArgs are the operands of a conversion to bfloat16 of n blocks of 32 floats: block i of part p goes to
// dst + i·step + p·part bytes. Part 0 is the rounded value, the next ones what is left over, exactly. peak collects the
// largest magnitude as float32 bits. The assembly knows the offsets.
type splitArgs struct {
	dst, src   unsafe.Pointer
	n          int
	step, part int
	parts      int
	peak       uint32
	_          uint32
}

// pairArgs are the operands of a conversion of n blocks of 32 rows and 32 columns c to pairs: bytes dst +
// q·step + r·pitch + c/16·half + p·part + c%16·4 get part p of element c of rows 32q+2r (low half) and
// 32q+2r+1; rows lie stride bytes apart. peak collects the largest magnitude of floats as float32 bits. The
// assembly knows the offsets.
type pairArgs struct {
	dst, src          unsafe.Pointer
	n                 int
	step, pitch, half int
	part, stride      int
	peak              uint32
	_                 uint32
}

// dotArgs are the operands of a dot kernel: out[r·rows+i] = Σ_p w[r][p]·x[i][p] for four rows of w. The
// assembly knows the offsets.
type dotArgs struct {
	w, x             unsafe.Pointer
	out              unsafe.Pointer
	wStride, xStride int // bytes
	k, tail          int // elements in whole registers, and after them
	prefetch         int // bytes ahead in w
}

// axpyArgs are the operands of an axpy kernel: sum[j] += Σ_r scale[r]·w[r][j] for four rows of w and n columns. The
// assembly knows the offsets.
type axpyArgs struct {
	sum, w   unsafe.Pointer
	wStride  int // bytes
	n        int
	prefetch int // bytes ahead in w
	scale    [4]float32
}
