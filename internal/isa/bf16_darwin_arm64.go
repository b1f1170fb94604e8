//go:build !noasm

package isa

import "golang.org/x/sys/unix"

// hasBF16 asks the system for products of bfloat16.
func hasBF16() bool {
	n, err := unix.SysctlUint32("hw.optional.arm.FEAT_BF16")
	return err == nil && n != 0
}
