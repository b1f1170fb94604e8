//go:build !noasm

package isa

import "golang.org/x/sys/cpu"

// processor reads the processor's instruction sets.
func processor() Sets {
	x := cpu.X86
	s := Sets{AVX2NoFMA: x.HasAVX2 && x.HasF16C}
	s.AVX2 = s.AVX2NoFMA && x.HasFMA
	s.BMI = s.AVX2 && x.HasBMI1 && x.HasBMI2 && x.HasPOPCNT
	s.AVXVNNI = s.AVX2 && x.HasAVXVNNI
	s.AVX512 = s.AVX2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL
	s.AVX512VBMI2 = s.AVX512 && x.HasAVX512VBMI2
	s.AVX512BF16 = s.AVX512 && x.HasAVX512BF16
	s.AVX512VNNI = s.AVX512 && x.HasAVX512VNNI
	s.AMX = s.AVX512BF16 && x.HasAMXTile && x.HasAMXBF16
	s.AMXInt8 = s.AVX512VNNI && x.HasAMXTile && x.HasAMXInt8
	return s
}
