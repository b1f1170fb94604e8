//go:build linux && (amd64 || arm64)

package cuda

import "testing"

// Measure runs every measurement once at small sizes.
func Measure(t testing.TB, d *Device) int {
	var r measured
	measure(t, d, 64, 1, &r)
	if !r.Complete || len(r.Masks) != len(checkedFormulas) {
		t.Errorf("%d masks were compared", len(r.Masks))
	}
	return len(r.Figures)
}

// CompileAfter sets how often formulas are interpreted before they are compiled; 0: never.
func (d *Device) CompileAfter(uses int) { d.programs.patience = uses }

// Compiled waits for the compilations that run.
func (d *Device) Compiled() { d.programs.work.Wait() }

// Interpretable reports whether a formula's values find places.
func Interpretable(f Formula) bool {
	_, ok := interpretable(f)
	return ok
}

// Loaded reports whether a kernel, "module.name", was used.
func (d *Device) Loaded(name string) bool { return d.functions[name] != 0 }
