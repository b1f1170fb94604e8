//go:build !noasm

package cpu

import "golang.org/x/sys/cpu"

// detect reads the processor's instruction sets, less those that the comma-separated list switches off. The system
// tells them: Linux by HWCAP, macOS by sysctl.
func detect(disable string) features {
	a := cpu.ARM64
	f := features{neon: a.HasASIMD}
	f.dotprod = f.neon && a.HasASIMDDP
	f.i8mm = f.dotprod && a.HasI8MM
	f.bf16 = f.neon && hasBF16()
	f.bfmmla = f.bf16 // the same extension has both instructions
	return f.without(disable)
}
