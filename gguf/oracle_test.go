package gguf

import (
	"math"
	"path/filepath"
	"slices"
	"testing"
)

// TestOracle: tensors of every type have the values that gguf-py gives them, and the metadata are its own.
func TestOracle(t *testing.T) {
	f, err := Open("testdata/oracle.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	compared := 0
	for ty := range Type(numTypes) {
		if !ty.Decodable() || ty == F32 {
			continue
		}

		info, ok := f.Info(ty.String())
		if !ok || info.Type != ty {
			t.Errorf("%s: %v in the file", ty, info)
			continue
		}

		got := decoded(t, f, ty.String())
		for i, want := range decoded(t, f, ty.String()+".values") {
			if math.Float32bits(got[i]) != math.Float32bits(want) {
				t.Errorf("%s: element %d is %x, by gguf-py %x", ty, i, got[i], want)
				break
			}
		}
		compared++
	}
	if compared != 16 {
		t.Errorf("%d types compared", compared)
	}

	info, _ := f.Info("three")
	if !slices.Equal(info.Shape, []int64{2, 3, 4}) || info.Rows() != 6 || info.Cols() != 4 || info.RowSize() != 16 {
		t.Errorf("%+v", info)
	}
	for i, v := range decoded(t, f, "three") {
		if v != float32(i) {
			t.Errorf("element %d is %v", i, v)
		}
	}
}

func decoded(t *testing.T, f *File, name string) []float32 {
	t.Helper()
	info, ok := f.Info(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}

	out := make([]float32, info.Rows()*info.Cols())
	err := f.View(name, func(data []byte) error { return info.Type.Decode(out, data) })
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOracleMetadata(t *testing.T) {
	f, err := Open("testdata/oracle.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	want := Metadata{
		{"general.architecture", Of("oracle")},
		{"x.uint8", Of(uint8(200))},
		{"x.int8", Of(int8(-100))},
		{"x.uint16", Of(uint16(60000))},
		{"x.int16", Of(int16(-30000))},
		{"x.uint32", Of(uint32(4000000000))},
		{"x.int32", Of(int32(-2000000000))},
		{"x.float32", Of(float32(-0.1))},
		{"x.bool", Of(true)},
		{"x.string", Of("grüße\n")},
		{"x.uint64", Of(uint64(math.MaxUint64))},
		{"x.int64", Of(int64(math.MinInt64))},
		{"x.float64", Of(0.1)},
		{"x.strings", List([]string{"a", "", "üüü"})},
		{"x.bools", List([]bool{true, false, true})},
		{"x.ints", List([]int32{1, -2, 3})},
		{"x.floats", List([]float32{0.5, -0.25})},
		{"general.quantization_version", Of(uint32(2))},
	}

	got := f.Metadata()
	for i, e := range want {
		if i >= len(got) || got[i] != e {
			t.Errorf("pair %d is %v, want %v", i, got[min(i, len(got)-1)], e)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d pairs, want %d", len(got), len(want))
	}
	if f.Version() != 3 || f.Alignment() != 32 {
		t.Errorf("version %d, alignment %d", f.Version(), f.Alignment())
	}
}

// TestOracleSplit: a split model is the same by whichever part it is opened.
func TestOracleSplit(t *testing.T) {
	paths, err := filepath.Glob("testdata/split-*.gguf")
	if err != nil || len(paths) != 3 {
		t.Fatal(paths, err)
	}

	for _, path := range paths {
		m, err := OpenModel(path)
		if err != nil {
			t.Fatal(err)
		}

		if got, want := m.Names(), []string{"t0", "t1", "t2", "t3", "t4"}; !slices.Equal(got, want) {
			t.Errorf("%s: %q", path, got)
		}
		if v, _ := m.Metadata().Get("x.name"); v != Of("split") {
			t.Errorf("%s: metadata of another part: %v", path, m.Metadata())
		}
		if got := decoded(t, m.PartOf("t4"), "t4"); got[0] != 4 {
			t.Errorf("t4 is %v", got)
		}
		if m.DataSize() != 5*6*4 || len(m.Parts()) != 3 || m.Path() != path {
			t.Errorf("%d bytes, %d parts", m.DataSize(), len(m.Parts()))
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
