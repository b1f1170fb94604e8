package kernels_test

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
)

// isNaN16 reports whether bits with the given exponent mask are a NaN.
func isNaN16(h, exponent uint16) bool { return h&exponent == exponent && h&^(exponent|0x8000) != 0 }

// TestBF16Exhaustive: every bfloat16 survives the way to float32 and back; the value is the upper half of the
// float's bits.
func TestBF16Exhaustive(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := kernels.FromBF16(h)
		if math.Float32bits(f) != uint32(h)<<16 {
			t.Fatalf("%#04x widens to %v", h, f)
		}

		back := kernels.ToBF16(f)
		if isNaN16(h, 0x7f80) {
			if !isNaN16(back, 0x7f80) || back&0x8000 != h&0x8000 || back&0x40 == 0 {
				t.Fatalf("NaN %#04x comes back as %#04x", h, back)
			}
		} else if back != h {
			t.Fatalf("%#04x comes back as %#04x", h, back)
		}
	}
}

// half computes the value of an IEEE half from its definition.
func half(h uint16) float64 {
	sign := 1 - 2*float64(h>>15)
	exponent, fraction := int(h>>10&0x1f), float64(h&0x3ff)/1024
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -14)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}

	return sign * math.Ldexp(1+fraction, exponent-15)
}

// TestF16Exhaustive: every half has the value that IEEE 754 gives it, sign of zero included, and survives the way back.
func TestF16Exhaustive(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := kernels.FromF16(h)
		want := half(h)
		if same := float64(f) == want || (want != want && f != f); !same ||
			(want == want && math.Signbit(float64(f)) != (h&0x8000 != 0)) {
			t.Fatalf("%#04x widens to %v, want %v", h, f, want)
		}

		back := kernels.ToF16(f)
		if isNaN16(h, 0x7c00) {
			if !isNaN16(back, 0x7c00) || back&0x8000 != h&0x8000 {
				t.Fatalf("NaN %#04x comes back as %#04x", h, back)
			}
		} else if back != h {
			t.Fatalf("%#04x comes back as %#04x", h, back)
		}
	}
}

// TestRoundingAtTies walks over all neighbours of a 16-bit type: the midpoint goes to the even one, a float32
// to either side of it to the nearer one.
func TestRoundingAtTies(t *testing.T) {
	for name, c := range map[string]struct {
		to   func(float32) uint16
		from func(uint16) float32
		last uint16 // highest finite
	}{
		"BF16": {kernels.ToBF16, kernels.FromBF16, 0x7f7f},
		"F16":  {kernels.ToF16, kernels.FromF16, 0x7bff},
	} {
		for h := range c.last {
			a, b := c.from(h), c.from(h+1)
			mid := float32((float64(a) + float64(b)) / 2)
			if float64(mid) != (float64(a)+float64(b))/2 {
				continue // below float32's own subnormals
			}

			even := h + h&1
			for _, s := range []float32{1, -1} {
				sign := map[float32]uint16{1: 0, -1: 0x8000}[s]
				down, up := math.Nextafter32(mid, 0), math.Nextafter32(mid, b)
				if got := c.to(s * mid); got != even|sign {
					t.Fatalf("%s: tie %v rounds to %#04x, want %#04x", name, s*mid, got, even|sign)
				}
				if got := c.to(s * down); down > a && got != h|sign {
					t.Fatalf("%s: %v below a tie rounds to %#04x, want %#04x", name, s*down, got, h|sign)
				}
				if got := c.to(s * up); up < b && got != (h+1)|sign {
					t.Fatalf("%s: %v above a tie rounds to %#04x, want %#04x", name, s*up, got, (h+1)|sign)
				}
			}
		}
	}
}

func TestOverflowOf16BitTypes(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		got, want uint16
		what      string
	}{
		{kernels.ToF16(65504), 0x7bff, "the largest half"},
		{kernels.ToF16(65519.996), 0x7bff, "just below the midpoint to 65536"},
		{kernels.ToF16(65520), 0x7c00, "the midpoint to 65536"},
		{kernels.ToF16(-1e30), 0xfc00, "far below the range"},
		{kernels.ToF16(inf), 0x7c00, "infinity"},
		{kernels.ToBF16(math.MaxFloat32), 0x7f80, "the largest float32"},
		{kernels.ToBF16(-inf), 0xff80, "minus infinity"},
		{kernels.ToF16(0x1p-25), 0, "half of the smallest half"},
		{kernels.ToF16(0x1.000002p-25), 1, "just above half of the smallest half"},
		{kernels.ToF16(float32(math.Copysign(0, -1))), 0x8000, "-0"},
	} {
		if c.got != c.want {
			t.Errorf("%s gives %#04x, want %#04x", c.what, c.got, c.want)
		}
	}
}

// TestRoundingIsMonotonic: a larger float never becomes a smaller 16-bit float.
func TestRoundingIsMonotonic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Float32().Draw(t, "a"), rapid.Float32().Draw(t, "b")
		if a > b {
			a, b = b, a
		}
		if kernels.FromBF16(kernels.ToBF16(a)) > kernels.FromBF16(kernels.ToBF16(b)) {
			t.Fatalf("bfloat16 of %v is above that of %v", a, b)
		}
		if kernels.FromF16(kernels.ToF16(a)) > kernels.FromF16(kernels.ToF16(b)) {
			t.Fatalf("half of %v is above that of %v", a, b)
		}
	})
}

func TestDTypes(t *testing.T) {
	for d, want := range map[kernels.DType]struct {
		name  string
		size  int
		float bool
	}{
		kernels.F32: {"F32", 4, true}, kernels.BF16: {"BF16", 2, true}, kernels.F16: {"F16", 2, true},
		kernels.F64: {"F64", 8, true},
		kernels.I64: {"I64", 8, false}, kernels.I32: {"I32", 4, false}, kernels.U8: {"U8", 1, false},
	} {
		if d.String() != want.name || d.Size() != want.size || d.IsFloat() != want.float {
			t.Errorf("%s has size %d and IsFloat %t", d, d.Size(), d.IsFloat())
		}
	}

	if s := kernels.DType(200).String(); s != "invalid" {
		t.Errorf("an unknown type is called %q", s)
	}
	if kernels.Exact.String() != "exact" || kernels.Fast.String() != "fast" {
		t.Error("precisions are misnamed")
	}
}

func TestBuffers(t *testing.T) {
	b := kernels.NewHost(kernels.BF16, 5)
	if len(b.Bytes()) != 10 || len(b.U16()) != 5 || b.Len != 5 {
		t.Fatalf("5 BF16 take %d bytes", len(b.Bytes()))
	}

	binary.LittleEndian.PutUint16(b.Bytes()[2:], 0x3f80)
	if b.U16()[1] != 0x3f80 {
		t.Error("bytes and elements are not the same memory")
	}

	packed := any(1)
	b.Packed.Store(&packed)
	b.Changed()
	if b.Packed.Load() != nil {
		t.Error("Changed keeps what was derived")
	}

	for name, f := range map[string]func(){
		"F32 of BF16":    func() { b.F32() },
		"U16 of F32":     func() { kernels.NewHost(kernels.F32, 1).U16() },
		"too small":      func() { kernels.MatOf(b, 2, 3) },
		"row range":      func() { kernels.MatOf(b, 1, 5).RowRange(0, 2) },
		"column range":   func() { kernels.MatOf(b, 1, 5).ColRange(2, 1) },
		"strided change": func() { kernels.MatOf(kernels.NewHost(kernels.F32, 8), 2, 4).ColRange(0, 2).Reshape(1, 4) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if _, ok := recover().(string); !ok {
					t.Error("no panic with a string")
				}
			}()
			f()
		})
	}

	b.Free()
	if b.Len != 0 || b.Bytes() != nil {
		t.Error("a freed buffer still has memory")
	}
}

func TestWrap(t *testing.T) {
	raw := make([]byte, 64)
	if _, err := kernels.Wrap(kernels.F32, raw[:7]); err == nil {
		t.Error("7 bytes were taken for F32")
	}

	b, err := kernels.Wrap(kernels.F32, raw[:8])
	if err != nil || b.Len != 2 {
		t.Fatalf("8 bytes give %v, %v", b, err)
	}

	odd := 0
	for i := range 4 {
		if _, err := kernels.Wrap(kernels.F32, raw[i:i+8]); errors.Is(err, kernels.ErrMisaligned) {
			odd++
		}
	}

	if odd != 3 {
		t.Errorf("%d of 4 offsets are misaligned, want 3", odd)
	}

	s := []float32{1, 2}
	if w := kernels.WrapF32(s); &w.F32()[0] != &s[0] {
		t.Error("WrapF32 copied")
	}
}

func TestFreeRunsOnce(t *testing.T) {
	n := 0
	b := kernels.NewDevice(kernels.F32, 3, 0x1000, func() { n++ })
	if b.Bytes() != nil || b.Addr != 0x1000 {
		t.Error("a device buffer has host memory or no address")
	}

	b.Free()
	b.Free()
	if n != 1 {
		t.Errorf("freed %d times", n)
	}
}

func TestMatViews(t *testing.T) {
	b := kernels.NewHost(kernels.F32, 12)
	for i := range b.F32() {
		b.F32()[i] = float32(i)
	}

	m := kernels.MatOf(b, 3, 4)
	v := m.RowRange(1, 3).ColRange(1, 3)
	if v.Rows != 2 || v.Cols != 2 || v.Stride != 4 || v.Dense() || v.Len() != 4 || v.DType() != kernels.F32 {
		t.Fatalf("view is %+v", v)
	}
	if r := v.RowF32(1); r[0] != 9 || r[1] != 10 || cap(r) != 2 {
		t.Errorf("row is %v with room for %d", r, cap(r))
	}
	if r := m.Reshape(2, 6).RowF32(1); r[0] != 6 {
		t.Errorf("reshaped row is %v", r)
	}
	if !(kernels.Mat{}).IsZero() || m.IsZero() {
		t.Error("IsZero is wrong")
	}
}
