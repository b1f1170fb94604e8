package gguf

import (
	"math"
	"slices"
	"testing"
)

// TestValues: a value is what it was made of, an integer of any kind is one, and nothing else is.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		v    Value
		kind Kind
		text string
	}{
		{Of(uint8(255)), Uint8, "255"},
		{Of(int8(-1)), Int8, "-1"},
		{Of(uint16(65535)), Uint16, "65535"},
		{Of(int16(-1)), Int16, "-1"},
		{Of(uint32(1 << 31)), Uint32, "2147483648"},
		{Of(int32(-1)), Int32, "-1"},
		{Of(uint64(math.MaxUint64)), Uint64, "18446744073709551615"},
		{Of(int64(-1)), Int64, "-1"},
		{Of(float32(0.1)), Float32, "0.1"},
		{Of(0.1), Float64, "0.1"},
		{Of(true), Bool, "true"},
		{Of("a\n"), String, `"a\n"`},
		{List([]int8{1, -2}), Array, "[1 -2]"},
		{List([]string{"a", "b", "c", "d"}), Array, `["a" "b" "c" … 4 in all]`},
		{List([]float32(nil)), Array, "[]"},
		{Value{}, Uint8, "0"},
	} {
		if c.v.Kind() != c.kind || c.v.String() != c.text {
			t.Errorf("%s %s, want %s %s", c.v.Kind(), c.v, c.kind, c.text)
		}

		_, isUint := c.v.Uint()
		_, isInt := c.v.Int()
		_, isFloat := c.v.Float()
		_, isBool := c.v.Bool()
		_, isText := c.v.Text()
		_, isArray := c.v.Elem()
		want := [6]bool{
			c.kind == Uint8 || c.kind == Uint16 || c.kind == Uint32 || c.kind == Uint64,
			isUint && c.kind != Uint64 || c.kind == Int8 || c.kind == Int16 || c.kind == Int32 || c.kind == Int64,
			c.kind == Float32 || c.kind == Float64, c.kind == Bool, c.kind == String, c.kind == Array,
		}
		if got := [6]bool{isUint, isInt, isFloat, isBool, isText, isArray}; got != want {
			t.Errorf("%s %s is %v, want %v", c.v.Kind(), c.v, got, want)
		}
	}

	if n, ok := Of(int32(7)).Uint(); n != 7 || !ok {
		t.Error(n, ok)
	}
	if n, ok := Of(uint64(7)).Int(); n != 7 || !ok {
		t.Error(n, ok)
	}
}

func TestLists(t *testing.T) {
	if got, ok := List([]uint16{1, 65535}).Uints(); !ok || !slices.Equal(got, []uint64{1, 65535}) {
		t.Error(got, ok)
	}
	if got, ok := List([]int32{1, -1}).Ints(); !ok || !slices.Equal(got, []int64{1, -1}) {
		t.Error(got, ok)
	}
	if got, ok := List([]float32{0.5}).Floats(); !ok || !slices.Equal(got, []float64{0.5}) {
		t.Error(got, ok)
	}
	if got, ok := List([]bool{true, false}).Bools(); !ok || !slices.Equal(got, []bool{true, false}) {
		t.Error(got, ok)
	}
	if got, ok := List([]string{"", "ü"}).Strings(); !ok || !slices.Equal(got, []string{"", "ü"}) {
		t.Error(got, ok)
	}
	for _, v := range []Value{List([]int32{-1}), List([]float32{1}), List([]string{"1"}), Of(uint8(1))} {
		if got, ok := v.Uints(); ok {
			t.Errorf("%v as unsigned integers: %v", v, got)
		}
	}
}

// TestTypes: names and numbers of the table agree both ways, and sizes are those of whole blocks.
func TestTypes(t *testing.T) {
	known := 0
	for ty := range Type(numTypes + 3) {
		elements, size := ty.Block()
		if !ty.Valid() {
			if elements != 0 || size != 0 || ty.Quantized() || ty.Decodable() || (Info{Type: ty}).RowSize() != 0 {
				t.Errorf("%v: %d elements in %d bytes", ty, elements, size)
			}
			continue
		}

		known++
		if got, err := ParseType(ty.String()); err != nil || got != ty {
			t.Errorf("%v is read as %v, %v", ty, got, err)
		}
		if got, err := ty.ByteSize([]int64{3, 2 * elements}); err != nil || got != 6*size {
			t.Errorf("%v: %d bytes, %v", ty, got, err)
		}
		if ty.Quantized() != (elements > 1) {
			t.Errorf("%v: quantised %v", ty, ty.Quantized())
		}
		if d := types[ty].decoder; d != nil && (d.Name != ty.String() || int64(d.Elements) != elements ||
			int64(d.Bytes) != size) {
			t.Errorf("%v is decoded as %s, %d elements in %d bytes", ty, d.Name, d.Elements, d.Bytes)
		}
	}
	if known != 34 {
		t.Errorf("%d types", known)
	}
	if _, err := ParseType("q4_k"); err == nil {
		t.Error("a name in small letters is known")
	}
}
