//go:build !noasm

package isa

import "golang.org/x/sys/unix"

// hasBF16 reports whether the system names the products of bfloat16 among the processor's capabilities: a bit that
// golang.org/x/sys/cpu does not read.
func hasBF16() bool {
	const (
		second = 26      // AT_HWCAP2
		bf16   = 1 << 14 // HWCAP2_BF16
	)
	vector, err := unix.Auxv()
	if err != nil {
		return false
	}
	for _, v := range vector {
		if v[0] == second {
			return v[1]&bf16 != 0
		}
	}
	return false
}
