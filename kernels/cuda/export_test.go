//go:build linux && (amd64 || arm64)

package cuda

import "testing"

// Measure runs every measurement once at small sizes.
func Measure(t testing.TB, d *Device) int { return len(measure(t, d, 64, 1).Figures) }

// Fuse makes a selection by a formula one kernel from the first on.
func (d *Device) Fuse() { d.programs.patience = 0 }
