//go:build amd64 && !noasm

package cpu

import "golang.org/x/sys/cpu"

// detect reads the processor's instruction sets, less those that the comma-separated list switches off.
func detect(disable string) features {
	x := cpu.X86
	f := features{avx2: x.HasAVX2 && x.HasFMA && x.HasF16C}
	f.avxvnni = f.avx2 && x.HasAVXVNNI
	f.avx512 = f.avx2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL
	f.avx512bf16 = f.avx512 && x.HasAVX512BF16
	f.vnni = f.avx512 && x.HasAVX512VNNI
	f.fastDot = f.avx512bf16 && !madeByIntel()
	tiles := f.avx512 && x.HasAMXTile && enableAMX()
	f.amx = tiles && f.avx512bf16 && x.HasAMXBF16
	f.amxInt8 = tiles && f.vnni && x.HasAMXInt8
	return f.without(disable)
}

// madeByIntel reports whether the processor names Intel as its vendor.
func madeByIntel() bool {
	b, d, c := vendorID()
	return b == 0x756e6547 && d == 0x49656e69 && c == 0x6c65746e // "Genu", "ineI", "ntel"
}

// vendorID returns the registers that hold the vendor's name after CPUID with AX = 0.
func vendorID() (b, d, c uint32)
