package checkpoint

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/safetensors"
)

// TestScanOfEveryType: zeros, and the first value that is not finite, of every type of the format.
func TestScanOfEveryType(t *testing.T) {
	f32 := func(v ...float64) (p []byte) {
		for _, x := range v {
			p = binary.LittleEndian.AppendUint32(p, math.Float32bits(float32(x)))
		}
		return p
	}

	inf := math.Inf(1)
	for _, c := range []struct {
		dtype safetensors.DType
		data  []byte
		n     int64
		zeros int64
		bad   int64
	}{
		{safetensors.BOOL, []byte{0, 1, 0, 1}, 4, 2, -1},
		{safetensors.U8, []byte{0, 1, 255, 0, 0}, 5, 3, -1},
		{safetensors.I8, []byte{0, 0x80}, 2, 1, -1},
		{safetensors.F4, []byte{0x08, 0x71, 0x10}, 6, 3, -1},
		{safetensors.F6_E2M3, []byte{0, 0, 0}, 4, -1, -1},
		{safetensors.F6_E3M2, []byte{0, 0, 0}, 4, -1, -1},
		{safetensors.F8_E5M2, []byte{0, 0x80, 0x7b, 0x7c, 0xfe}, 5, 2, 3},
		{safetensors.F8_E4M3, []byte{0, 0x80, 0x7e, 0x78, 0xff}, 5, 2, 4},
		{safetensors.F8_E8M0, []byte{0, 0x7f, 0xfe, 0xff}, 4, 0, 3},
		{safetensors.F8_E4M3FNUZ, []byte{0, 0x7f, 0xff, 0x80}, 4, 1, 3},
		{safetensors.F8_E5M2FNUZ, []byte{0, 0x7f, 0x80}, 3, 1, 2},
		{safetensors.I16, []byte{0, 0, 0, 1}, 2, 1, -1},
		{safetensors.U16, []byte{0, 0, 1, 0}, 2, 1, -1},
		{safetensors.F16, []byte{0, 0x80, 0, 0x7c}, 2, 1, 1},
		{safetensors.BF16, []byte{0, 0, 0xc0, 0x7f}, 2, 1, 1},
		{safetensors.I32, []byte{0, 0, 0, 0, 0, 0, 0, 1}, 2, 1, -1},
		{safetensors.U32, []byte{1, 0, 0, 0, 0, 0, 0, 0}, 2, 1, -1},
		{safetensors.F32, f32(0, 1, inf), 3, 1, 2},
		{safetensors.C64, f32(0, math.Copysign(0, -1), 0, 1, 2, inf), 3, 1, 2},
		{safetensors.F64, binary.LittleEndian.AppendUint64(make([]byte, 8), math.Float64bits(math.NaN())), 2, 1, 1},
		{safetensors.I64, append(make([]byte, 8), 0, 0, 0, 0, 0, 0, 0, 1), 2, 1, -1},
		{safetensors.U64, append(make([]byte, 15), 1), 2, 1, -1},
	} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		w, err := safetensors.Create(path, []safetensors.Info{{Name: "x", DType: c.dtype, Shape: []int64{c.n}}}, nil,
			safetensors.Options{})
		if err != nil {
			t.Fatal(c.dtype, err)
		}

		if err := w.WriteTensor("x", c.data); err != nil {
			t.Fatal(c.dtype, err)
		}
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}

		got := scanFile(t, path)
		if got.zeros != c.zeros || got.bad != c.bad {
			t.Errorf("%s: %d zeros, first bad at %d; want %d, %d", c.dtype, got.zeros, got.bad, c.zeros, c.bad)
		}
	}
}

func scanFile(t *testing.T, path string) scanned {
	t.Helper()
	dev, err := device.Open("ref", device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()

	src, err := safetensors.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()

	s, err := newScanner(context.Background(), dev)
	if err != nil {
		t.Fatal(err)
	}

	info, _ := src.Info("x")
	got, err := s.scan(src, info)
	if err != nil {
		t.Fatal(err)
	}

	return got
}

// TestZerosThatAreNotCounted: where zeros of one tensor are not counted, no sum pretends to know them.
func TestZerosThatAreNotCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	w, err := safetensors.Create(path, []safetensors.Info{
		{Name: "a", DType: safetensors.F6_E2M3, Shape: []int64{4}},
		{Name: "b", DType: safetensors.U8, Shape: []int64{2}},
	}, nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	if err := w.WriteTensor("a", make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteTensor("b", []byte{0, 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	dev, err := device.Open("ref", device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()

	r, err := Inspect(context.Background(), path, InspectOptions{Device: dev})
	if err != nil {
		t.Fatal(err)
	}

	if r.Sparsity != nil || r.Roles[0].Zeros != nil || len(r.Uncounted) != 1 || r.Uncounted[0] != "F6_E2M3" {
		t.Errorf("sparsity %v, zeros %v, uncounted %v", r.Sparsity, r.Roles[0].Zeros, r.Uncounted)
	}

	for _, e := range r.List {
		if (e.Zeros == nil) != (e.Name == "a") {
			t.Errorf("%s: zeros %v", e.Name, e.Zeros)
		}
	}
}
