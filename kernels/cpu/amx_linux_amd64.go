//go:build !noasm

package cpu

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests and state components of arch_prctl, from the kernel's documentation of dynamically enabled processor state
// (Documentation/arch/x86/xstate.rst).
const (
	archGetXcompSupp = 0x1021
	archReqXcompPerm = 0x1023
	xfeatureTileCfg  = 17
	xfeatureTileData = 18
)

// enableAMX asks the operating system to let this process use tile registers, and reports whether it may. The
// permission holds for every thread, those that start later included, and cannot be given back; asking twice is
// harmless. It is refused by old kernels and where another library installed a signal stack too small for the tiles.
func enableAMX() bool {
	const need = 1<<xfeatureTileCfg | 1<<xfeatureTileData
	var supported uint64
	_, _, errno := unix.Syscall(unix.SYS_ARCH_PRCTL, archGetXcompSupp, uintptr(unsafe.Pointer(&supported)), 0)
	if errno != 0 || supported&need != need {
		return false
	}
	_, _, errno = unix.Syscall(unix.SYS_ARCH_PRCTL, archReqXcompPerm, xfeatureTileData, 0)
	return errno == 0
}
