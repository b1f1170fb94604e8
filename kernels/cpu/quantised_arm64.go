//go:build !noasm

package cpu

import "github.com/modelcompress/compress/kernels"

// quantKernelsOf picks the best kernels that the instruction sets allow.
func quantKernelsOf(f features) quantKernels {
	var q quantKernels
	if !f.neon {
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

	return q
}
