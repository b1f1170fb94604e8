//go:build !noasm

package isa

import "golang.org/x/sys/cpu"

// processor reads the processor's instruction sets. The system tells them: Linux by HWCAP, macOS by sysctl.
func processor() Sets {
	a := cpu.ARM64
	s := Sets{NEON: a.HasASIMD}
	s.DotProd = s.NEON && a.HasASIMDDP
	s.I8MM = s.DotProd && a.HasI8MM
	s.BF16 = s.NEON && hasBF16()
	s.BFMMLA = s.BF16 // the same extension has both instructions
	return s
}
