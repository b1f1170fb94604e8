//go:build amd64 && !noasm

package cpu

import "github.com/modelcompress/compress/internal/isa"

// detect reads the processor's instruction sets, less those that the comma-separated list switches off and those that
// the system does not let this process use.
func detect(disable string) features {
	f := features{Sets: isa.Usable(disable)}
	f.fastDot = f.AVX512BF16 && !madeByIntel()
	if (f.AMX || f.AMXInt8) && !enableAMX() {
		return f.without("amx")
	}
	return f
}

// madeByIntel reports whether the processor names Intel as its vendor.
func madeByIntel() bool {
	b, d, c := vendorID()
	return b == 0x756e6547 && d == 0x49656e69 && c == 0x6c65746e // "Genu", "ineI", "ntel"
}

// vendorID returns the registers that hold the vendor's name after CPUID with AX = 0.
func vendorID() (b, d, c uint32)
