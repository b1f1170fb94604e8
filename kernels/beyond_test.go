package kernels_test

import (
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// solving is a device with a method beyond the table; wrapping is one around it.
type solving struct{ kernels.Device }

func (solving) Info() kernels.Info                  { return kernels.Info{Name: "solving:0"} }
func (solving) Cholesky(kernels.Mat) error          { return nil }
func (solving) SolveLower(_, _ kernels.Mat, _ bool) {}

type wrapping struct {
	kernels.Device
	missed map[string]int
}

func (w wrapping) Unwrap() kernels.Device { return w.Device }
func (w wrapping) Missed(what string)     { w.missed[what]++ }

func TestAsLooksThroughWrappers(t *testing.T) {
	w := wrapping{solving{}, map[string]int{}}
	if _, ok := kernels.As[kernels.Solver](w); !ok {
		t.Error("the solver behind a wrapper is not found")
	}
	if _, ok := kernels.As[kernels.Scorer](w); ok {
		t.Error("a scorer is found where there is none")
	}
	if _, ok := kernels.As[kernels.Solver](nil); ok {
		t.Error("no device is a solver")
	}

	kernels.Missed(wrapping{w, w.missed}, "Merge")
	kernels.Missed(nil, "Merge")
	if w.missed["Merge"] != 1 {
		t.Errorf("counted %v", w.missed)
	}
}
