package kernels

import "testing"

// TestExchange: contents and what was derived from them change places; other types or lengths are a caller's bug.
func TestExchange(t *testing.T) {
	a, b := NewHost(F32, 3), NewHost(F32, 3)
	copy(a.F32(), []float32{1, 2, 3})
	derived := any("derived")
	a.Packed.Store(&derived)
	a.Exchange(b)
	if b.F32()[1] != 2 || a.F32()[1] != 0 || a.Packed.Load() != nil || b.Packed.Load() != &derived {
		t.Errorf("%v %v", a.F32(), b.F32())
	}
	defer func() {
		if recover() == nil {
			t.Error("other lengths are accepted")
		}
	}()

	a.Exchange(NewHost(F32, 4))
}
