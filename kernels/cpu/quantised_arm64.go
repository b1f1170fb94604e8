//go:build !noasm

package cpu

import "github.com/modelcompress/compress/kernels"

// quantKernelsOf picks the best kernels that the instruction sets allow.
func quantKernelsOf(f features) quantKernels {
	var q quantKernels
	if !f.NEON {
		return q
	}

	q.unpack = [...]func(*unpackArgs){
		kernels.Q8_0: unpackQ8_0NEON, kernels.Q4_0: unpackQ4_0NEON, kernels.Q4_1: unpackQ4_1NEON,
		kernels.Q5_0: unpackQ5_0NEON, kernels.Q5_1: unpackQ5_1NEON, kernels.Q4_K: unpackQ4_KNEON,
		kernels.Q5_K: unpackQ5_KNEON, kernels.Q6_K: unpackQ6_KNEON, kernels.Int4: unpackInt4NEON,
		kernels.Int8: unpackInt8NEON,
	}
	q.dot = [...][codeRowsMost]func(*codeArgs){
		spreadMul32: {dotMul32NEONx1, dotMul32NEONx2, dotMul32NEONx3, dotMul32NEONx4},
		spreadMul16: {dotMul16NEONx1, dotMul16NEONx2, dotMul16NEONx3, dotMul16NEONx4},
		spreadAdd32: {dotAdd32NEONx1, dotAdd32NEONx2, dotAdd32NEONx3, dotAdd32NEONx4},
		spreadSub32: {dotSub32NEONx1, dotSub32NEONx2, dotSub32NEONx3, dotSub32NEONx4},
	}
	q.lanes = 8
	q.spread = [...]func(*spreadArgs){
		spreadMul32: spreadMul32NEON, spreadMul16: spreadMul16NEON, spreadAdd32: spreadAdd32NEON,
		spreadSub32: spreadSub32NEON,
	}
	q.exact = [...]func(*rowArgs){
		kernels.Q8_0: exactQ8_0NEON, kernels.Q4_0: exactQ4_0NEON, kernels.Q4_1: exactQ4_1NEON,
		kernels.Q5_0: exactQ5_0NEON, kernels.Q5_1: exactQ5_1NEON, kernels.Q4_K: exactQ4_KNEON,
		kernels.Q5_K: exactQ5_KNEON, kernels.Q6_K: exactQ6_KNEON, kernels.Int4: exactInt4NEON,
		kernels.Int8: exactInt8NEON,
	}
	q.exactZeros = [...]func(*rowArgs){kernels.Int4: exactInt4ZerosNEON, kernels.Int8: exactInt8ZerosNEON}
	byteKernels(&q, f)
	return q
}

// byteKernels fills in the kernels for products of bytes, which are worth it where SDOT adds four at once.
func byteKernels(q *quantKernels, f features) {
	if !f.DotProd {
		return
	}

	q.roundFew = roundFewNEON
	q.roundMany = roundManyNEON
	q.top = peakOfRowNEON
	q.row = [...]func(*rowArgs){
		kernels.Q8_0: rowQ8_0Dot, kernels.Q4_0: rowQ4_0Dot, kernels.Q4_1: rowQ4_1Dot,
		kernels.Q5_0: rowQ5_0Dot, kernels.Q5_1: rowQ5_1Dot, kernels.Q4_K: rowQ4_KDot,
		kernels.Q5_K: rowQ5_KDot, kernels.Q6_K: rowQ6_KDot, kernels.Int4: rowInt4Dot,
		kernels.Int8: rowInt8Dot,
	}
	q.pairs = [...]func(*rowArgs){kernels.Int4: rowInt4x32Dot, kernels.Int8: rowInt8x32Dot}
	q.tiles = byteTiles{rows: 6, packX: pack6NEON, packW: pack8NEON, group: 8, unit: 4, of: tileDot}
	if f.I8MM {
		q.tiles = byteTiles{rows: 6, packX: packEights6NEON, packW: packEights8NEON, group: 8, unit: 8, of: tileI8MM}
	}
}

// tileI8MM is the tile for a format with SMMLA.
func tileI8MM(f kernels.QuantFormat, affine, _ bool) byteTile {
	switch {
	case affine:
		return byteTile{byteTile32AddI8MM, evenCodes}
	case f == kernels.Q6_K:
		return byteTile{byteTile16I8MM, evenCodes}
	}
	return byteTile{byteTile32I8MM, evenCodes}
}

// tileDot is the tile for a format with SDOT.
func tileDot(f kernels.QuantFormat, affine, _ bool) byteTile {
	switch {
	case affine:
		return byteTile{byteTile32AddDot, evenCodes}
	case f == kernels.Q6_K:
		return byteTile{byteTile16Dot, evenCodes}
	}
	return byteTile{byteTile32Dot, evenCodes}
}
