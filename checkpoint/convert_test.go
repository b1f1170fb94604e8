package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/safetensors"
)

// write makes a folder with the given tensors.
func write(t testing.TB, dir string, infos []safetensors.Info, data map[string][]byte, o safetensors.DirOptions) {
	t.Helper()
	w, err := safetensors.CreateDir(dir, infos, nil, o)
	if err != nil {
		t.Fatal(err)
	}

	for name, p := range data {
		if err := w.WriteTensor(name, p); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

func one(t testing.TB, name string, d safetensors.DType, data []byte, shape ...int64) string {
	dir := filepath.Join(t.TempDir(), "m")
	write(t, dir, []safetensors.Info{{Name: name, DType: d, Shape: shape}}, map[string][]byte{name: data},
		safetensors.DirOptions{})
	return dir
}

var host = ref.New()

func TestOverflowIsAnError(t *testing.T) {
	dir := one(t, "w", safetensors.F32, float32s(1, float32(math.Inf(1)), -70000, 2), 2, 2)
	out := filepath.Join(t.TempDir(), "out")
	_, err := Convert(context.Background(), dir, out, ConvertOptions{DType: safetensors.F16, Device: host})
	if err == nil || !strings.Contains(err.Error(), `tensor "w", element 2: the value does not fit F16`) {
		t.Errorf("error %v", err)
	}

	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}

	r, err := Convert(context.Background(), dir, out, ConvertOptions{DType: safetensors.BF16, Device: host})
	if err != nil || r.Cast != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRoundsToNearestEven: the ties of BF16 go to the even neighbour.
func TestRoundsToNearestEven(t *testing.T) {
	bits := []uint32{0x3f808000, 0x3f818000, 0x3f808001, 0x3f80ffff}
	want := []uint16{0x3f80, 0x3f82, 0x3f81, 0x3f81}
	var data []byte
	for _, b := range bits {
		data = binary.LittleEndian.AppendUint32(data, b)
	}

	dir, out := one(t, "w", safetensors.F32, data, 4), filepath.Join(t.TempDir(), "out")
	o := ConvertOptions{DType: safetensors.BF16, Device: host}
	if _, err := Convert(context.Background(), dir, out, o); err != nil {
		t.Fatal(err)
	}

	src, err := safetensors.OpenDir(out)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()

	got, err := src.Bytes("w")
	if err != nil {
		t.Fatal(err)
	}

	for i, w := range want {
		if g := binary.LittleEndian.Uint16(got[2*i:]); g != w {
			t.Errorf("%#08x became %#04x, want %#04x", bits[i], g, w)
		}
	}
}

func TestInPlaceAndForeignFoldersAreRefused(t *testing.T) {
	dir := one(t, "w", safetensors.I64, make([]byte, 8), 1)
	for _, o := range []ConvertOptions{{}, {Overwrite: true}} {
		o.Device = host
		if _, err := Convert(context.Background(), dir, dir, o); !errors.Is(err, ErrInPlace) {
			t.Errorf("in place: %v", err)
		}
	}

	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "letter.txt"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Convert(context.Background(), dir, full, ConvertOptions{Device: host}); !errors.Is(err, ErrExists) {
		t.Errorf("full folder: %v", err)
	}

	again := ConvertOptions{Overwrite: true, Device: host}
	if _, err := Convert(context.Background(), dir, full, again); !errors.Is(err, ErrTarget) {
		t.Errorf("folder of something else: %v", err)
	}
}

// packedFolder is a folder that says it holds bitmasks.
func packedFolder(t testing.TB, shape, mask, offsets, values []byte, maskShape []int64) string {
	dir := filepath.Join(t.TempDir(), "packed")
	infos := []safetensors.Info{
		{Name: "l.shape", DType: safetensors.I64, Shape: []int64{int64(len(shape) / 8)}},
		{Name: "l.bitmask", DType: safetensors.U8, Shape: maskShape},
		{Name: "l.row_offsets", DType: safetensors.I64, Shape: []int64{int64(len(offsets) / 8)}},
		{Name: "l.compressed", DType: safetensors.F32, Shape: []int64{int64(len(values) / 4)}},
	}

	data := map[string][]byte{"l.shape": shape, "l.bitmask": mask, "l.row_offsets": offsets, "l.compressed": values}
	if offsets == nil {
		infos = slices.Delete(infos, 2, 3)
		delete(data, "l.row_offsets")
	}

	write(t, dir, infos, data, safetensors.DirOptions{})
	config := `{"model_type":"x","quantization_config":{"sparsity_config":{"format":"sparse-bitmask"}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}

	return dir
}

// TestHostileBitmasks: masks, shapes and values that do not belong together are errors that name the tensor.
func TestHostileBitmasks(t *testing.T) {
	good := packedFolder(t, shapeBytes([]int64{2, 8}), []byte{0x6a, 0xc9}, shapeBytes([]int64{0, 4}),
		float32s(1, 2, 3, 4, 5, 6, 7, 8), []int64{2, 1})
	r, err := Convert(context.Background(), good, filepath.Join(t.TempDir(), "o"), ConvertOptions{Device: host})
	if err != nil || r.Unpacked != 1 {
		t.Fatalf("%+v, %v", r, err)
	}

	for name, dir := range map[string]string{
		"huge shape": packedFolder(t, shapeBytes([]int64{1 << 40, 1 << 40}), []byte{0, 0}, shapeBytes([]int64{0}),
			nil, []int64{2, 1}),
		"negative shape": packedFolder(t, shapeBytes([]int64{-2, 8}), []byte{0, 0}, shapeBytes([]int64{0}), nil,
			[]int64{2, 1}),
		"short shape": packedFolder(t, shapeBytes([]int64{2}), []byte{0, 0}, shapeBytes([]int64{0}), nil,
			[]int64{2, 1}),
		"too few values": packedFolder(t, shapeBytes([]int64{2, 8}), []byte{0x6a, 0xc9}, shapeBytes([]int64{0, 4}),
			float32s(1, 2, 3), []int64{2, 1}),
		"too many values": packedFolder(t, shapeBytes([]int64{2, 8}), []byte{1, 1}, shapeBytes([]int64{0, 1}),
			float32s(1, 2, 3), []int64{2, 1}),
		"wrong offsets": packedFolder(t, shapeBytes([]int64{2, 8}), []byte{0x6a, 0xc9}, shapeBytes([]int64{0, 5}),
			float32s(1, 2, 3, 4, 5, 6, 7, 8), []int64{2, 1}),
		"short offsets": packedFolder(t, shapeBytes([]int64{2, 8}), []byte{0x6a, 0xc9}, shapeBytes([]int64{0}),
			float32s(1, 2, 3, 4, 5, 6, 7, 8), []int64{2, 1}),
		"padding bits": packedFolder(t, shapeBytes([]int64{2, 4}), []byte{0x10, 0}, shapeBytes([]int64{0, 1}),
			float32s(1), []int64{2, 1}),
	} {
		out := filepath.Join(t.TempDir(), "out")
		_, err := Convert(context.Background(), dir, out, ConvertOptions{Device: host})
		if err == nil || !strings.Contains(err.Error(), "l.") {
			t.Errorf("%s: %v", name, err)
		}

		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: something was written", name)
		}

		if _, err := Verify(context.Background(), dir, InspectOptions{Device: host}); err == nil ||
			!strings.Contains(err.Error(), `tensor "l.`) {
			t.Errorf("%s: inspect: %v", name, err)
		}
	}
}

// TestBitmasksWithoutOffsets: the bitmask determines the offsets of rows, and readers of the format ignore them.
func TestBitmasksWithoutOffsets(t *testing.T) {
	dir := packedFolder(t, shapeBytes([]int64{2, 8}), []byte{0x6a, 0xc9}, nil, float32s(1, 2, 3, 4, 5, 6, 7, 8),
		[]int64{2, 1})
	out := filepath.Join(t.TempDir(), "out")
	if r, err := Convert(context.Background(), dir, out, ConvertOptions{Device: host}); err != nil || r.Unpacked != 1 {
		t.Errorf("%+v, %v", r, err)
	}

	r, err := Verify(context.Background(), dir, InspectOptions{Device: host})
	if err != nil || len(r.List) != 1 || *r.List[0].Zeros != 8 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestPromisedPattern: a folder that says 2:4 has no group of four columns with more values; zeros among the
// values are a remark.
func TestPromisedPattern(t *testing.T) {
	says := func(dir, structure string) string {
		config :=
			`{"model_type":"x","quantization_config":{"sparsity_config":{"format":"sparse-bitmask","sparsity_structure":"` + structure + `"}}}`
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o666); err != nil {
			t.Fatal(err)
		}
		return dir
	}

	folder := func(mask ...byte) string {
		return packedFolder(t, shapeBytes([]int64{2, 8}), mask, shapeBytes([]int64{0, 4}),
			float32s(1, 2, 3, 0, 5, 6, 7, 8), []int64{2, 1})
	}

	r, err := Verify(context.Background(), says(folder(0x6a, 0xc9), "2:4"), InspectOptions{Device: host})
	if err != nil || len(r.Remarks) != 1 || !strings.Contains(r.Remarks[0], "packed matrices: 1") {
		t.Errorf("%+v, %v", r, err)
	}

	for mask, place := range map[byte]string{0xe1: "4 columns from 4 on", 0x1e: "4 columns from 0 on"} {
		_, err := Verify(context.Background(), says(folder(0x6a, mask), "2:4"), InspectOptions{Device: host})
		if err == nil ||
			!strings.Contains(err.Error(), `tensor "l.bitmask": row 1 has`) || !strings.Contains(err.Error(), place) {
			t.Errorf("mask %x: %v", mask, err)
		}

		_, err = Verify(context.Background(), says(folder(0x6a, mask), "unstructured"), InspectOptions{Device: host})
		if err != nil {
			t.Errorf("mask %x: %v", mask, err)
		}
	}
}

// TestShardsDoNotMatter: any split into files gives the same tensors back.
func TestShardsDoNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(rt, "tensors")
		var infos []safetensors.Info
		data := map[string][]byte{}
		for i := range n {
			name := string(rune('a' + i))
			size := rapid.IntRange(0, 50).Draw(rt, "size")
			infos = append(infos, safetensors.Info{Name: name, DType: safetensors.U8, Shape: []int64{int64(size)}})
			data[name] = rapid.SliceOfN(rapid.Byte(), size, size).Draw(rt, "data")
		}

		base, err := os.MkdirTemp(t.TempDir(), "case")
		if err != nil {
			rt.Fatal(err)
		}

		a := filepath.Join(base, "a")
		b := filepath.Join(base, "b")
		c := filepath.Join(base, "c")
		write(t, a, infos, data, safetensors.DirOptions{})
		limit := rapid.Int64Range(1, 120).Draw(rt, "limit")
		if _, err := Convert(context.Background(), a, b, ConvertOptions{MaxShard: limit, Device: host}); err != nil {
			rt.Fatal(err)
		}
		keep := ConvertOptions{MaxShard: KeepShards, Device: host}
		if _, err := Convert(context.Background(), b, c, keep); err != nil {
			rt.Fatal(err)
		}

		d, err := Diff(context.Background(), a, c, DiffOptions{Device: host})
		if err != nil || !d.Equal || d.Same != n {
			rt.Fatalf("%+v, %v", d, err)
		}
	})
}

func TestIndexOfAnElement(t *testing.T) {
	for at, want := range map[int64]string{0: "[0 0 0]", 5: "[0 1 2]", 23: "[3 1 2]"} {
		if got := index(at, []int64{4, 2, 3}); got != want {
			t.Errorf("element %d is %s, want %s", at, got, want)
		}
	}
	if got := index(0, nil); got != "[]" {
		t.Errorf("a scalar's element is %s", got)
	}
}

func TestCancelledRewriteLeavesNothing(t *testing.T) {
	dir, out := one(t, "w", safetensors.F32, float32s(1, 2), 2), filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()

	if _, err := Convert(ctx, dir, out, ConvertOptions{DType: safetensors.BF16, Device: host}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("error %v", err)
	}

	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func BenchmarkPack(b *testing.B) {
	k := &packer{size: 2, cols: 4096}
	row := make([]byte, 2*4096)
	for i := 0; i < len(row); i += 4 {
		row[i] = 1
	}

	b.SetBytes(int64(len(row)))

	for b.Loop() {
		k.values = k.values[:0]
		k.mask = k.mask[:0]
		k.offsets = k.offsets[:0]
		k.pack(row)
	}
}

// TestConfigKeyTwice: a configuration with a key that is given twice says two things; it is refused, not
// rewritten with one of them.
func TestConfigKeyTwice(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"),
		[]byte(`{"dtype": "float32", "a": 1, "dtype": "bfloat16"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := readConfig(dir); err == nil || !strings.Contains(err.Error(), `key "dtype" is given twice`) {
		t.Error(err)
	}
}
