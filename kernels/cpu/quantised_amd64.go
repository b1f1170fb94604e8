//go:build !noasm

package cpu

import "github.com/modelcompress/compress/kernels"

// quantKernelsOf picks the best kernels that the instruction sets allow.
func quantKernelsOf(f features) quantKernels {
	var q quantKernels
	if !f.AVX2 {
		return q
	}

	q.unpack = [...]func(*unpackArgs){
		kernels.Q8_0: unpackQ8_0AVX2, kernels.Q4_0: unpackQ4_0AVX2, kernels.Q4_1: unpackQ4_1AVX2,
		kernels.Q5_0: unpackQ5_0AVX2, kernels.Q5_1: unpackQ5_1AVX2, kernels.Q4_K: unpackQ4_KAVX2,
		kernels.Q5_K: unpackQ5_KAVX2, kernels.Q6_K: unpackQ6_KAVX2, kernels.Int4: unpackInt4AVX2,
		kernels.Int8: unpackInt8AVX2,
	}
	q.dot = [...][codeRowsMost]func(*codeArgs){
		spreadMul32: {dotMul32AVX2x1, dotMul32AVX2x2, dotMul32AVX2x3, dotMul32AVX2x4},
		spreadMul16: {dotMul16AVX2x1, dotMul16AVX2x2, dotMul16AVX2x3, dotMul16AVX2x4},
		spreadAdd32: {dotAdd32AVX2x1, dotAdd32AVX2x2, dotAdd32AVX2x3, dotAdd32AVX2x4},
		spreadSub32: {dotSub32AVX2x1, dotSub32AVX2x2, dotSub32AVX2x3, dotSub32AVX2x4},
	}
	q.lanes = 8
	q.spread = [...]func(*spreadArgs){
		spreadMul32: spreadMul32AVX2, spreadMul16: spreadMul16AVX2, spreadAdd32: spreadAdd32AVX2,
		spreadSub32: spreadSub32AVX2,
	}
	if f.AVX512 {
		q.dot = [...][codeRowsMost]func(*codeArgs){
			spreadMul32: {dotMul32AVX512x1, dotMul32AVX512x2, dotMul32AVX512x3, dotMul32AVX512x4},
			spreadMul16: {dotMul16AVX512x1, dotMul16AVX512x2, dotMul16AVX512x3, dotMul16AVX512x4},
			spreadAdd32: {dotAdd32AVX512x1, dotAdd32AVX512x2, dotAdd32AVX512x3, dotAdd32AVX512x4},
			spreadSub32: {dotSub32AVX512x1, dotSub32AVX512x2, dotSub32AVX512x3, dotSub32AVX512x4},
		}
		q.lanes = 16
		q.spread = [...]func(*spreadArgs){
			spreadMul32: spreadMul32AVX512, spreadMul16: spreadMul16AVX512, spreadAdd32: spreadAdd32AVX512,
			spreadSub32: spreadSub32AVX512,
		}
	}

	q.exact = [...]func(*rowArgs){
		kernels.Q8_0: exactQ8_0AVX2, kernels.Q4_0: exactQ4_0AVX2, kernels.Q4_1: exactQ4_1AVX2,
		kernels.Q5_0: exactQ5_0AVX2, kernels.Q5_1: exactQ5_1AVX2, kernels.Q4_K: exactQ4_KAVX2,
		kernels.Q5_K: exactQ5_KAVX2, kernels.Q6_K: exactQ6_KAVX2, kernels.Int4: exactInt4AVX2,
		kernels.Int8: exactInt8AVX2,
	}
	q.exactZeros = [...]func(*rowArgs){kernels.Int4: exactInt4ZerosAVX2, kernels.Int8: exactInt8ZerosAVX2}
	if f.AVX512 {
		q.exact = [...]func(*rowArgs){
			kernels.Q8_0: exactQ8_0AVX512, kernels.Q4_0: exactQ4_0AVX512, kernels.Q4_1: exactQ4_1AVX512,
			kernels.Q5_0: exactQ5_0AVX512, kernels.Q5_1: exactQ5_1AVX512, kernels.Q4_K: exactQ4_KAVX512,
			kernels.Q5_K: exactQ5_KAVX512, kernels.Q6_K: exactQ6_KAVX512, kernels.Int4: exactInt4AVX512,
			kernels.Int8: exactInt8AVX512,
		}
		q.exactZeros = [...]func(*rowArgs){kernels.Int4: exactInt4ZerosAVX512, kernels.Int8: exactInt8ZerosAVX512}
	}
	byteKernels(&q, f)
	return q
}

// byteKernels fills in the best kernels for products of bytes.
func byteKernels(q *quantKernels, f features) {
	q.roundFew = roundFewAVX2
	q.roundMany = roundManyAVX2
	q.top = peakOfRowAVX2
	switch {
	case f.AVX512VNNI:
		q.row = [...]func(*rowArgs){
			kernels.Q8_0: rowQ8_0VNNI, kernels.Q4_0: rowQ4_0VNNI, kernels.Q4_1: rowQ4_1VNNI,
			kernels.Q5_0: rowQ5_0VNNI, kernels.Q5_1: rowQ5_1VNNI, kernels.Q4_K: rowQ4_KVNNI,
			kernels.Q5_K: rowQ5_KVNNI, kernels.Q6_K: rowQ6_KVNNI, kernels.Int4: rowInt4VNNI,
			kernels.Int8: rowInt8VNNI,
		}
		q.pairs = [...]func(*rowArgs){kernels.Int4: rowInt4x32VNNI, kernels.Int8: rowInt8x32VNNI}
		q.tiles = byteTiles{rows: 12, packX: pack12AVX512, packW: pack16AVX512, group: 16, unit: 4, of: tileVNNI}
		if f.AMXInt8 {
			q.tall = byteTiles{rows: 16, packW: pack16AVX512, group: 16, unit: 4, of: tileAMX}
		}
	case f.AVXVNNI:
		q.row = [...]func(*rowArgs){
			kernels.Q8_0: rowQ8_0AVXVNNI, kernels.Q4_0: rowQ4_0AVXVNNI, kernels.Q4_1: rowQ4_1AVXVNNI,
			kernels.Q5_0: rowQ5_0AVXVNNI, kernels.Q5_1: rowQ5_1AVXVNNI, kernels.Q4_K: rowQ4_KAVXVNNI,
			kernels.Q5_K: rowQ5_KAVXVNNI, kernels.Q6_K: rowQ6_KAVXVNNI, kernels.Int4: rowInt4AVXVNNI,
			kernels.Int8: rowInt8AVXVNNI,
		}
		q.pairs = [...]func(*rowArgs){kernels.Int4: rowInt4x32AVXVNNI, kernels.Int8: rowInt8x32AVXVNNI}
		q.tiles = byteTiles{rows: 6, packX: pack6AVX2, packW: pack8AVX2, group: 8, unit: 4, of: tileAVXVNNI}
	default:
		q.row = [...]func(*rowArgs){
			kernels.Q8_0: rowQ8_0AVX2, kernels.Q4_0: rowQ4_0AVX2, kernels.Q4_1: rowQ4_1AVX2,
			kernels.Q5_0: rowQ5_0AVX2, kernels.Q5_1: rowQ5_1AVX2, kernels.Q4_K: rowQ4_KAVX2,
			kernels.Q5_K: rowQ5_KAVX2, kernels.Q6_K: rowQ6_KAVX2, kernels.Int4: rowInt4AVX2,
			kernels.Int8: rowInt8AVX2,
		}
		q.pairs = [...]func(*rowArgs){kernels.Int4: rowInt4x32AVX2, kernels.Int8: rowInt8x32AVX2}
		q.tiles = byteTiles{
			rows: 6, packX: pack6AVX2, packW: pack8AVX2, group: 8, unit: 4, widen: widenBytesAVX2, of: tileAVX2,
		}
	}
}

// tileAMX is the tile for a format with AMX.
func tileAMX(f kernels.QuantFormat, affine, whole bool) byteTile {
	switch {
	case whole && affine:
		return byteTile{byteTileRowAddAMX, signedCodes}
	case whole:
		return byteTile{byteTileRowAMX, signedCodes}
	case affine:
		return byteTile{byteTile32AddAMX, signedCodes}
	case f == kernels.Q6_K:
		return byteTile{byteTile16AMX, signedCodes}
	}
	return byteTile{byteTile32AMX, signedCodes}
}

// tileVNNI is the tile for a format with VNNI.
func tileVNNI(f kernels.QuantFormat, affine, _ bool) byteTile {
	switch {
	case affine:
		return byteTile{byteTile32AddVNNI, biasedCodes}
	case f == kernels.Q6_K:
		return byteTile{byteTile16VNNI, biasedCodes}
	}
	return byteTile{byteTile32VNNI, biasedCodes}
}

// tileAVXVNNI is the tile for a format with AVX-VNNI.
func tileAVXVNNI(f kernels.QuantFormat, affine, _ bool) byteTile {
	switch {
	case affine:
		return byteTile{byteTile32AddAVXVNNI, biasedCodes}
	case f == kernels.Q6_K:
		return byteTile{byteTile16AVXVNNI, biasedCodes}
	}
	return byteTile{byteTile32AVXVNNI, biasedCodes}
}

// tileAVX2 is the tile for a format with AVX2: the fewer bits codes have, the more products can be added in 16 bits.
func tileAVX2(f kernels.QuantFormat, affine, _ bool) byteTile {
	switch f {
	case kernels.Q6_K:
		return byteTile{byteTile6AVX2, plainCodes}
	case kernels.Q5_0, kernels.Q5_1, kernels.Q5_K:
		if affine {
			return byteTile{byteTile5AddAVX2, plainCodes}
		}
		return byteTile{byteTile5AVX2, plainCodes}
	case kernels.Q8_0, kernels.Int8:
		if affine {
			return byteTile{byteTile8AddAVX2, wideCodes}
		}
		return byteTile{byteTile8AVX2, wideCodes}
	}
	if affine {
		return byteTile{byteTile4AddAVX2, plainCodes}
	}
	return byteTile{byteTile4AVX2, plainCodes}
}

// The unpackers take blocks apart; see unpackArgs.

//go:noescape
func unpackQ8_0AVX2(u *unpackArgs)

//go:noescape
func unpackQ4_0AVX2(u *unpackArgs)

//go:noescape
func unpackQ4_1AVX2(u *unpackArgs)

//go:noescape
func unpackQ5_0AVX2(u *unpackArgs)

//go:noescape
func unpackQ5_1AVX2(u *unpackArgs)

//go:noescape
func unpackQ4_KAVX2(u *unpackArgs)

//go:noescape
func unpackQ5_KAVX2(u *unpackArgs)

//go:noescape
func unpackQ6_KAVX2(u *unpackArgs)

//go:noescape
func unpackInt4AVX2(u *unpackArgs)

//go:noescape
func unpackInt8AVX2(u *unpackArgs)

// The spreaders make floats of codes; see spreadArgs.

//go:noescape
func spreadMul32AVX2(s *spreadArgs)

//go:noescape
func spreadMul16AVX2(s *spreadArgs)

//go:noescape
func spreadAdd32AVX2(s *spreadArgs)

//go:noescape
func spreadSub32AVX2(s *spreadArgs)

//go:noescape
func spreadMul32AVX512(s *spreadArgs)

//go:noescape
func spreadMul16AVX512(s *spreadArgs)

//go:noescape
func spreadAdd32AVX512(s *spreadArgs)

//go:noescape
func spreadSub32AVX512(s *spreadArgs)

// The code dots multiply codes by rows of floats; see codeArgs.

//go:noescape
func dotMul32AVX2x1(c *codeArgs)

//go:noescape
func dotMul32AVX2x2(c *codeArgs)

//go:noescape
func dotMul32AVX2x3(c *codeArgs)

//go:noescape
func dotMul32AVX2x4(c *codeArgs)

//go:noescape
func dotMul16AVX2x1(c *codeArgs)

//go:noescape
func dotMul16AVX2x2(c *codeArgs)

//go:noescape
func dotMul16AVX2x3(c *codeArgs)

//go:noescape
func dotMul16AVX2x4(c *codeArgs)

//go:noescape
func dotAdd32AVX2x1(c *codeArgs)

//go:noescape
func dotAdd32AVX2x2(c *codeArgs)

//go:noescape
func dotAdd32AVX2x3(c *codeArgs)

//go:noescape
func dotAdd32AVX2x4(c *codeArgs)

//go:noescape
func dotSub32AVX2x1(c *codeArgs)

//go:noescape
func dotSub32AVX2x2(c *codeArgs)

//go:noescape
func dotSub32AVX2x3(c *codeArgs)

//go:noescape
func dotSub32AVX2x4(c *codeArgs)

//go:noescape
func dotMul32AVX512x1(c *codeArgs)

//go:noescape
func dotMul32AVX512x2(c *codeArgs)

//go:noescape
func dotMul32AVX512x3(c *codeArgs)

//go:noescape
func dotMul32AVX512x4(c *codeArgs)

//go:noescape
func dotMul16AVX512x1(c *codeArgs)

//go:noescape
func dotMul16AVX512x2(c *codeArgs)

//go:noescape
func dotMul16AVX512x3(c *codeArgs)

//go:noescape
func dotMul16AVX512x4(c *codeArgs)

//go:noescape
func dotAdd32AVX512x1(c *codeArgs)

//go:noescape
func dotAdd32AVX512x2(c *codeArgs)

//go:noescape
func dotAdd32AVX512x3(c *codeArgs)

//go:noescape
func dotAdd32AVX512x4(c *codeArgs)

//go:noescape
func dotSub32AVX512x1(c *codeArgs)

//go:noescape
func dotSub32AVX512x2(c *codeArgs)

//go:noescape
func dotSub32AVX512x3(c *codeArgs)

//go:noescape
func dotSub32AVX512x4(c *codeArgs)

// The rounders make bytes of floats; see roundArgs.

//go:noescape
func roundFewAVX2(r *roundArgs)

//go:noescape
func roundManyAVX2(r *roundArgs)

// peakOfRowAVX2 returns the bits of the largest |p[i]| of n elements, a multiple of 32 greater than 0.
//
//go:noescape
func peakOfRowAVX2(p *float32, n int) uint32

// The row kernels multiply rows of a quantised weight with one row of x; see rowArgs.

//go:noescape
func rowQ8_0VNNI(r *rowArgs)

//go:noescape
func rowQ4_0VNNI(r *rowArgs)

//go:noescape
func rowQ4_1VNNI(r *rowArgs)

//go:noescape
func rowQ5_0VNNI(r *rowArgs)

//go:noescape
func rowQ5_1VNNI(r *rowArgs)

//go:noescape
func rowQ4_KVNNI(r *rowArgs)

//go:noescape
func rowQ5_KVNNI(r *rowArgs)

//go:noescape
func rowQ6_KVNNI(r *rowArgs)

//go:noescape
func rowInt4VNNI(r *rowArgs)

//go:noescape
func rowInt8VNNI(r *rowArgs)

//go:noescape
func rowInt4x32VNNI(r *rowArgs)

//go:noescape
func rowInt8x32VNNI(r *rowArgs)

// The exact kernels multiply rows of a quantised weight with one row of floats; see quantKernels.

//go:noescape
func exactQ8_0AVX2(r *rowArgs)

//go:noescape
func exactQ4_0AVX2(r *rowArgs)

//go:noescape
func exactQ4_1AVX2(r *rowArgs)

//go:noescape
func exactQ5_0AVX2(r *rowArgs)

//go:noescape
func exactQ5_1AVX2(r *rowArgs)

//go:noescape
func exactQ4_KAVX2(r *rowArgs)

//go:noescape
func exactQ5_KAVX2(r *rowArgs)

//go:noescape
func exactQ6_KAVX2(r *rowArgs)

//go:noescape
func exactInt4AVX2(r *rowArgs)

//go:noescape
func exactInt8AVX2(r *rowArgs)

//go:noescape
func exactInt4ZerosAVX2(r *rowArgs)

//go:noescape
func exactInt8ZerosAVX2(r *rowArgs)

//go:noescape
func exactQ8_0AVX512(r *rowArgs)

//go:noescape
func exactQ4_0AVX512(r *rowArgs)

//go:noescape
func exactQ4_1AVX512(r *rowArgs)

//go:noescape
func exactQ5_0AVX512(r *rowArgs)

//go:noescape
func exactQ5_1AVX512(r *rowArgs)

//go:noescape
func exactQ4_KAVX512(r *rowArgs)

//go:noescape
func exactQ5_KAVX512(r *rowArgs)

//go:noescape
func exactQ6_KAVX512(r *rowArgs)

//go:noescape
func exactInt4AVX512(r *rowArgs)

//go:noescape
func exactInt8AVX512(r *rowArgs)

//go:noescape
func exactInt4ZerosAVX512(r *rowArgs)

//go:noescape
func exactInt8ZerosAVX512(r *rowArgs)

// The byte tiles multiply 12×16 tiles of rounded activations and codes, with AVX2 and AVX-VNNI 6×16, with AMX 16×16;
// see byteTileArgs.

//go:noescape
func byteTile16AMX(t *byteTileArgs)

//go:noescape
func byteTile32AMX(t *byteTileArgs)

//go:noescape
func byteTile32AddAMX(t *byteTileArgs)

//go:noescape
func byteTileRowAMX(t *byteTileArgs)

//go:noescape
func byteTileRowAddAMX(t *byteTileArgs)

//go:noescape
func byteTile32VNNI(t *byteTileArgs)

//go:noescape
func byteTile32AddVNNI(t *byteTileArgs)

//go:noescape
func byteTile16VNNI(t *byteTileArgs)

// The row kernels and tiles with AVX-VNNI compute what those with AVX-512 VNNI do.

//go:noescape
func rowQ8_0AVXVNNI(r *rowArgs)

//go:noescape
func rowQ4_0AVXVNNI(r *rowArgs)

//go:noescape
func rowQ4_1AVXVNNI(r *rowArgs)

//go:noescape
func rowQ5_0AVXVNNI(r *rowArgs)

//go:noescape
func rowQ5_1AVXVNNI(r *rowArgs)

//go:noescape
func rowQ4_KAVXVNNI(r *rowArgs)

//go:noescape
func rowQ5_KAVXVNNI(r *rowArgs)

//go:noescape
func rowQ6_KAVXVNNI(r *rowArgs)

//go:noescape
func rowInt4AVXVNNI(r *rowArgs)

//go:noescape
func rowInt8AVXVNNI(r *rowArgs)

//go:noescape
func rowInt4x32AVXVNNI(r *rowArgs)

//go:noescape
func rowInt8x32AVXVNNI(r *rowArgs)

//go:noescape
func byteTile32AVXVNNI(t *byteTileArgs)

//go:noescape
func byteTile32AddAVXVNNI(t *byteTileArgs)

//go:noescape
func byteTile16AVXVNNI(t *byteTileArgs)

// The row kernels and tiles with AVX2 compute what those with VNNI do.

//go:noescape
func rowQ8_0AVX2(r *rowArgs)

//go:noescape
func rowQ4_0AVX2(r *rowArgs)

//go:noescape
func rowQ4_1AVX2(r *rowArgs)

//go:noescape
func rowQ5_0AVX2(r *rowArgs)

//go:noescape
func rowQ5_1AVX2(r *rowArgs)

//go:noescape
func rowQ4_KAVX2(r *rowArgs)

//go:noescape
func rowQ5_KAVX2(r *rowArgs)

//go:noescape
func rowQ6_KAVX2(r *rowArgs)

//go:noescape
func rowInt4AVX2(r *rowArgs)

//go:noescape
func rowInt8AVX2(r *rowArgs)

//go:noescape
func rowInt4x32AVX2(r *rowArgs)

//go:noescape
func rowInt8x32AVX2(r *rowArgs)

//go:noescape
func byteTile4AVX2(t *byteTileArgs)

//go:noescape
func byteTile4AddAVX2(t *byteTileArgs)

//go:noescape
func byteTile5AVX2(t *byteTileArgs)

//go:noescape
func byteTile5AddAVX2(t *byteTileArgs)

//go:noescape
func byteTile6AVX2(t *byteTileArgs)

//go:noescape
func byteTile8AVX2(t *byteTileArgs)

//go:noescape
func byteTile8AddAVX2(t *byteTileArgs)

// widenBytesAVX2 makes dst[i] = src[i] for n elements, a multiple of 32 greater than 0.
//
//go:noescape
func widenBytesAVX2(dst *int16, src *int8, n int)
