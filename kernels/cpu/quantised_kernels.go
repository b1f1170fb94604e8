package cpu

import (
	"sync"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// quantKernels holds the kernels for quantised weights of one choice of instruction sets. The fields are nil where
// there is none.
type quantKernels struct {
	unpack [kernels.Int8 + 1]func(*unpackArgs)
	spread [spreadKinds]func(*spreadArgs)
	dot    [spreadKinds][codeRowsMost]func(*codeArgs) // by rows of x, less one
	lanes  int                                        // of the sums of dot
	// rows of blocks, of 32 where scales lie beside them, by a row of floats at rowArgs.codes; steps is the number of
	// blocks, perGroup that of those that share a scale; exactZeros have what is subtracted from the codes of a group
	// at sums, those of all rows one after the other
	exact, exactZeros [kernels.Int8 + 1]func(*rowArgs)

	// rounding to bytes, and what multiplies them: all are there or none
	roundFew, roundMany func(*roundArgs)
	top                 func(p *float32, n int) uint32
	row, pairs          [kernels.Int8 + 1]func(*rowArgs)
	tiles               byteTiles
	tall                byteTiles // for tallRows rows of x and more; of is nil where tiles do for those too
}

// tallRows is the fewest rows of x that fill tall tiles better than two of the others, of which AVX-512's have 12 rows.
// It follows from published cycles of the instructions, not from a measurement. By AMX a panel's group of
// 32 elements takes two loads of tiles (8 each), a product (16) and, beside it, a store (16) and 16 loads, scalings and
// additions by AVX-512: about 32 in all; by VNNI 66. Of 16 elements that is 32 and 42; of a step of 64 with one scale
// for all, 16 and 96. Configuring tiles takes about 200 for every block, which a single panel of short blocks does not
// make up for.
const tallRows = 13

// byteTiles are the kernels for many rows of rounded activations.
type byteTiles struct {
	rows         int                                // of x that a tile takes
	packX, packW func(*packArgs)                    // transpose rows rows of x, and some of the weight
	group        int                                // rows that packW takes together
	unit         int                                // bytes of a row that lie together in a packed panel: 4 or 8
	widen        func(dst *int16, src *int8, n int) // n a multiple of 32; nil where no tile is for wideCodes
	of           func(f kernels.QuantFormat, affine, whole bool) byteTile
}

// byteTile is one of them; run is nil where there is none.
type byteTile struct {
	run  func(*byteTileArgs)
	form codeForm
}

// codeForm is how tiles want the codes of a weight.
type codeForm uint8

const (
	biasedCodes codeForm = iota // bytes, 128 more than the signed ones
	plainCodes                  // bytes, unsigned, before anything is subtracted
	wideCodes                   // signed, 16 bits; x too
	signedCodes                 // signed bytes; x in steps of a group, row after row
	evenCodes                   // signed bytes, x too
)

// unpackArgs are the operands of a kernel that takes rows of blocks apart: codes go to dst, as int8 if flip is 0 and
// with 128 added if its bytes are 0x80; factors to mul and summands, of formats that have them, to add: an element is
// mul·code + add. minus (its bytes) is taken off the codes of formats that are symmetric, but for those of 8 bits. For
// Int4 and Int8 a block is 32 elements, and nothing is written to mul and add. The assembly knows the offsets.
type unpackArgs struct {
	dst, mul, add                     unsafe.Pointer
	src                               unsafe.Pointer
	blocks, rows                      int
	srcStride, dstStride, scaleStride int // bytes
	flip, minus                       uint64
}

// Ways in which codes become floats.
const (
	spreadMul32 = iota // mul·code, with a factor for 32 elements
	spreadMul16        // the same for 16
	spreadAdd32        // mul·code + add
	spreadSub32        // mul·(code - add)
	spreadKinds
)

// spreadArgs are the operands of a kernel that makes floats of signed codes. The assembly knows the offsets.
type spreadArgs struct {
	dst, codes, mul, add unsafe.Pointer
	groups               int
}

// codeRowsMost is how many rows of x the kernels of codeArgs take at most.
const codeRowsMost = 4

// codeArgs are the operands of a kernel that multiplies rows of codes, in groups with the factors and summands of
// spreadArgs, by up to codeRowsMost rows of floats that lie xStride bytes apart. The product of row j of codes and row
// i of x goes to place j of out, i·outStride bytes further on. What is summed is the same, in the same order, for any
// number of rows of x. Where rows are multiplied in parts, the sums of a row of codes, one in every lane of two
// registers for each row of x (one register where nothing is added to codes), come from sums if goesOn is not 0, and go
// there instead of out if goesOnLater is not. The assembly knows the offsets.
type codeArgs struct {
	codes, mul, add, x  unsafe.Pointer
	xStride             int // bytes
	sums, out           unsafe.Pointer
	outStride           int // bytes
	groups, rows        int
	stride, scaleStride int // bytes
	goesOn, goesOnLater int
}

// quantChunk is how many elements of a row are taken apart at a time.
const quantChunk = 1024

// quantRow is the space for a part of a row taken apart.
type quantRow struct {
	codes    [quantChunk]int8
	mul, add [quantChunk / 16]float32
	unpack   unpackArgs
	spread   spreadArgs
}

var quantRows = sync.Pool{New: func() any { return new(quantRow) }}

// decode writes the elements of row i from column j on to dst. j is a multiple of 32.
func (q *quantOps) decode(dst []float32, w kernels.Quantised, i, j int) {
	elements, _ := w.Format.Block()
	unit := max(elements, codeGroup)
	if off := j % unit; off > 0 && len(dst) > 0 { // in the middle of a superblock
		n := min(unit-off, len(dst))
		decodePortable(dst[:n], w, i, j)
		dst = dst[n:]
		j += n
	}

	n := len(dst) / unit * unit
	if q.q.unpack[w.Format] == nil || n == 0 || w.Format.Grouped() && !even(w) {
		decodePortable(dst, w, i, j)
		return
	}

	r := quantRows.Get().(*quantRow)
	for at := 0; at < n; at += quantChunk {
		q.decodeChunk(dst[at:min(at+quantChunk, n)], w, i, j+at, r)
	}
	quantRows.Put(r)
	decodePortable(dst[n:], w, i, j+n)
}

// even reports whether the groups of a weight whose scales lie beside the codes are whole numbers of 32 elements, but
// for the last one.
func even(w kernels.Quantised) bool { return w.Group%codeGroup == 0 || w.Group >= w.Cols }

// decodeChunk writes some elements of row i from column j on to dst, whole blocks of them.
func (q *quantOps) decodeChunk(dst []float32, w kernels.Quantised, i, j int, r *quantRow) {
	a := &r.unpack
	a.dst, a.mul, a.add = unsafe.Pointer(&r.codes), unsafe.Pointer(&r.mul), unsafe.Pointer(&r.add)
	a.rows, a.flip = 1, 0
	a.minus = minusOf(w)
	q.takeApart(a, w, i, j, len(dst))

	groups := len(dst) / codeGroup
	scalesBeside(r.mul[:groups], r.add[:groups], w, i, j)
	kind := spreadKind(w)
	if kind == spreadMul16 {
		groups *= 2
	}

	r.spread = spreadArgs{
		dst: unsafe.Pointer(&dst[0]), codes: a.dst, mul: a.mul, add: unsafe.Pointer(&r.add), groups: groups,
	}
	q.q.spread[kind](&r.spread)
	*a, r.spread = unpackArgs{}, spreadArgs{}
}

// spreadKind is how the codes of a weight become floats.
func spreadKind(w kernels.Quantised) int {
	switch {
	case !w.Zeros.IsZero():
		return spreadSub32
	case affine(w.Format):
		return spreadAdd32
	case w.Format == kernels.Q6_K:
		return spreadMul16
	}
	return spreadMul32
}

// scalesBeside writes the scales of row i, and its zeros if there are any, for every 32 elements from column j on, of
// formats whose scales lie beside the codes.
func scalesBeside(mul, add []float32, w kernels.Quantised, i, j int) {
	if !w.Format.Grouped() {
		return
	}
	groupScales(mul, w, i, j)
	if !w.Zeros.IsZero() {
		groupZeros(add, w, i, j)
	}
}

// takeApart runs the unpacker on n elements of a.rows rows from row i and column j on. The caller has set where the
// results go, and what becomes of the codes.
func (q *quantOps) takeApart(a *unpackArgs, w kernels.Quantised, i, j, n int) {
	elements, bytes := w.Format.Block()
	a.src = unsafe.Add(address(w.Data, i, 0), j/elements*bytes)
	a.blocks = n / max(elements, codeGroup)
	a.srcStride = w.Data.Stride
	q.q.unpack[w.Format](a)
}

// offsets are what the codes of symmetric formats have too much when they are taken as unsigned.
var offsets = [...]int32{
	kernels.Q8_0: 128, kernels.Q4_0: 8, kernels.Q5_0: 16, kernels.Q6_K: 32, kernels.Int4: 8, kernels.Int8: 128,
}

// offsetOf is what codes of a format have too much when they are taken as unsigned; 0 for those that are.
func offsetOf(f kernels.QuantFormat) int32 {
	if int(f) < len(offsets) {
		return offsets[f]
	}
	return 0
}

// minusOf is what unpackers subtract from stored codes to make them signed, in every byte. The zeros of a weight are
// subtracted later, as floats.
func minusOf(w kernels.Quantised) uint64 {
	if !w.Zeros.IsZero() || w.Format == kernels.Q8_0 || w.Format == kernels.Int8 {
		return 0
	}
	return uint64(offsetOf(w.Format)) * 0x0101010101010101
}

// affine reports whether blocks of a format have something to add.
func affine(f kernels.QuantFormat) bool {
	return f == kernels.Q4_1 || f == kernels.Q5_1 || f == kernels.Q4_K || f == kernels.Q5_K
}

// groupScales writes the scales of row i for every 32 elements from column j on.
func groupScales(dst []float32, w kernels.Quantised, i, j int) {
	scales := w.Scales.RowF32(i)
	at, left, per := groupAt(w, j)
	for g := range dst {
		if left == 0 {
			at++
			left = per
		}
		dst[g] = scales[at]
		left--
	}
}

// groupZeros writes what is subtracted from codes of row i for every 32 elements from column j on.
func groupZeros(dst []float32, w kernels.Quantised, i, j int) {
	at, left, per := groupAt(w, j)
	for g := range dst {
		if left == 0 {
			at++
			left = per
		}
		dst[g] = zeroOf(w, i, at)
		left--
	}
}

// groupAt is the group of column j, how many times 32 elements are left of it, and how many groups have.
func groupAt(w kernels.Quantised, j int) (at, left, per int) {
	per = pieces(min(w.Group, w.Cols), codeGroup)
	return j / w.Group, per - j%w.Group/codeGroup, per
}

// roundArgs are the operands of a kernel that rounds blocks of 32 floats to bytes: codes, their sums of 16 (two a
// block), and the scale of every block, the largest magnitude of it, or peak (float32 bits) if that is not 0, divided
// by 127. For few rows, lanes are the sums of every four codes times offset, and scales the scale eight times. The
// assembly knows the offsets.
type roundArgs struct {
	src, codes    unsafe.Pointer
	lanes, scales unsafe.Pointer
	sums, scale   unsafe.Pointer
	blocks        int
	offset        int32
	peak          uint32
}

// rowArgs are the operands of a row kernel: out[i] = Σ_p w[i][p]·x[p] for rows rows of w that lie stride bytes apart.
// x is rounded: codes, and what goes with them. lanes are the integers that the sums of four products begin with,
// scales the scale of x for each of those sums, and scale that of every 32 elements. sums are what the summands of
// groups are multiplied by: of every 32 elements, for Q4_1 and Q5_1 with seven zeros after each. A step is 64 elements,
// for K-quants 256; tail is 1 where half a step follows. mul and those after it are for formats whose scales lie
// beside the codes, mulStride bytes apart from row to row: a scale is for perGroup steps. The assembly knows the
// offsets.
type rowArgs struct {
	w                                 unsafe.Pointer
	stride, rows, steps, tail         int
	codes, lanes, scales, scale, sums unsafe.Pointer
	out                               unsafe.Pointer
	mul                               unsafe.Pointer
	mulStride, perGroup               int
}

// byteTileArgs are the operands of a byte tile, some rows of x (16 with AMX, 12 with AVX-512, 6 without) by 16 of the
// weight, over groups of 16 elements or of steps·32, with AMX of 16, of 32 or of steps·64. a has 4 codes of each row of
// x after another (with AMX all of a group or step, with Arm's products of matrices 8), b as many of each row of the
// weight, in the form of the tile; wide ones are half as many. ints has room for the integers of four panels of AMX.
// For every group there are an offset (an integer), a scale and a sum for each row of x, 16 factors and, in kernels
// that add, 16 summands of the weight. c has ldc bytes to a row; acc 1 adds to it. There are panels panels of a, aStep
// bytes apart, and xStep bytes for what goes with them. The assembly knows the offsets.
type byteTileArgs struct {
	a                   unsafe.Pointer
	offset, scale, sums uintptr // moved on from panel to panel, past the last: hence no pointers
	b, mul, add         unsafe.Pointer
	c                   unsafe.Pointer
	ldc                 int
	groups, panels      int
	aStep, xStep        int
	acc, steps          int
	ints                unsafe.Pointer
}
