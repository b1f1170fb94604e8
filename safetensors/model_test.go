package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// dataOf makes the bytes of a tensor from its name, so that tests need not keep them.
func dataOf(t Info) []byte {
	size, err := t.DType.ByteSize(t.Shape)
	if err != nil {
		panic(err)
	}

	h := fnv.New64a()
	h.Write([]byte(t.Name))
	rng := rand.New(rand.NewPCG(h.Sum64(), 1))
	b := make([]byte, 0, size+8)
	for int64(len(b)) < size {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}

	return b[:size]
}

// mixed is a model with every dtype, a scalar and an empty tensor.
func mixed() []Info {
	var tensors []Info
	for i, name := range DTypeNames() {
		d, _ := ParseDType(name)
		tensors = append(tensors,
			Info{Name: fmt.Sprintf("t%d.%s", i%5, name), DType: d, Shape: []int64{4, int64(i%3) + 1}})
	}

	return append(
		tensors,
		Info{Name: "scalar", DType: F32, Shape: []int64{}},
		Info{Name: "empty", DType: F16, Shape: []int64{2, 0, 3}},
	)
}

// large is a model of many parts, about 3 MB.
func large() []Info {
	var tensors []Info
	for i := range 40 {
		tensors = append(tensors,
			Info{Name: fmt.Sprintf("layer.%d.weight", i), DType: BF16, Shape: []int64{int64(100 + i), 311}})
	}
	return tensors
}

// writeAll writes every tensor from n goroutines, in parts of part bytes.
func writeAll(t *testing.T, w Sink, tensors []Info, n, part int) {
	t.Helper()
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			for i := g; i < len(tensors); i += n {
				data := dataOf(tensors[i])
				for off := 0; off < len(data); off += part {
					if err := w.WriteAt(tensors[i].Name, data[off:min(off+part, len(data))], int64(off)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}

	wg.Wait()
}

// checkAll compares every tensor of src with what writeAll wrote.
func checkAll(t testing.TB, src Source, tensors []Info) {
	t.Helper()
	if len(src.Names()) != len(tensors) {
		t.Errorf("%d tensors, want %d", len(src.Names()), len(tensors))
	}

	for _, want := range tensors {
		info, ok := src.Info(want.Name)
		if !ok || info.DType != want.DType || fmt.Sprint(info.Shape) != fmt.Sprint(want.Shape) {
			t.Fatalf("%s: %v, want %v", want.Name, info, want)
		}

		data, err := src.Bytes(want.Name)
		if err != nil || !bytes.Equal(data, dataOf(want)) || int64(len(data)) != info.Size {
			t.Fatalf("%s: other bytes (%v)", want.Name, err)
		}

		p := make([]byte, len(data))
		if n, err := src.ReadAt(want.Name, p, 0); n != len(p) || err != nil || !bytes.Equal(p, data) {
			t.Fatalf("%s: ReadAt gives %d, %v", want.Name, n, err)
		}
		if err := src.Release(want.Name); err != nil {
			t.Fatal(err)
		}
		if again, err := src.Bytes(want.Name); err != nil || !bytes.Equal(again, p) {
			t.Fatalf("%s: other bytes after Release (%v)", want.Name, err)
		}
	}
}

func mustOpen(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mustOpenDir(t testing.TB, path string) *Dir {
	t.Helper()
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// write makes a finished file.
func write(t *testing.T, path string, tensors []Info, order Order, goroutines, part int) []byte {
	t.Helper()
	w, err := Create(path, tensors, map[string]string{"format": "pt", "a": "\x00\"é\\"}, Options{Order: order})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()

	writeAll(t, w, tensors, goroutines, part)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return b
}

func TestRoundTripEveryDType(t *testing.T) {
	for order := OrderGiven; order <= OrderHF; order++ {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		b := write(t, path, mixed(), order, 1, 1<<20)
		checkAll(t, mustOpen(t, path), mixed())
		f, err := OpenBytes(b)
		if err != nil {
			t.Fatal(err)
		}

		checkAll(t, f, mixed())

		for _, name := range f.Names() {
			if info, _ := f.Info(name); order != OrderGiven && !info.Aligned() {
				t.Errorf("order %d: %s at %d", order, name, info.Offset)
			}
		}

		if order == OrderGiven && fmt.Sprint(f.Names()[:2]) != "[t0.BOOL t1.F4]" {
			t.Errorf("order changed: %v", f.Names())
		}
	}
}

// TestSameBytes writes the same model from 1 and 7 goroutines, whole and in parts.
func TestSameBytes(t *testing.T) {
	dir := t.TempDir()
	want := write(t, filepath.Join(dir, "1"), large(), OrderGiven, 1, 1<<30)
	for i, part := range []int{1 << 30, 4096, 997} {
		if got := write(t, filepath.Join(dir, fmt.Sprint("n", i)), large(), OrderGiven, 7, part); !bytes.Equal(got,
			want) {
			t.Errorf("parts of %d bytes from 7 goroutines: other bytes", part)
		}
	}
}

// TestShardedEqualsSingle reads the same tensors from one file and from several.
func TestShardedEqualsSingle(t *testing.T) {
	for _, limit := range []int64{0, 1, 200_000, 1 << 40} {
		dir := filepath.Join(t.TempDir(), "m")
		w, err := CreateDir(dir, large(), nil, DirOptions{MaxShardSize: limit})
		if err != nil {
			t.Fatal(err)
		}

		writeAll(t, w, large(), 3, 5000)
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}

		d := mustOpenDir(t, dir)
		checkAll(t, d, large())
		if d.Indexed() != (limit == 1 || limit == 200_000) {
			t.Errorf("limit %d: shards %v", limit, d.Shards())
		}
	}
}

var (
	dtypeGen = rapid.Custom(
		func(t *rapid.T) DType { return DType(rapid.IntRange(1, int(numDTypes)-1).Draw(t, "dtype")) })
	shapeGen = rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 4)
)

// modelGen draws a model whose sub-byte tensors fill whole bytes.
func modelGen(t *rapid.T) []Info {
	names := rapid.SliceOfNDistinct(rapid.String(), 0, 12, rapid.ID[string]).Draw(t, "names")
	var tensors []Info
	for _, name := range names {
		info := Info{Name: name, DType: dtypeGen.Draw(t, "dtype"), Shape: shapeGen.Draw(t, "shape")}
		if info.DType.Bits() < 8 {
			info.Shape = append(info.Shape, 4)
		}
		if name != metadataKey {
			tensors = append(tensors, info)
		}
	}

	return tensors
}

func TestPropertyRoundTrip(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		tensors := modelGen(rt)
		meta := rapid.MapOfN(rapid.String(), rapid.String(), 0, 4).Draw(rt, "metadata")
		order := Order(rapid.IntRange(0, 2).Draw(rt, "order"))
		l, err := plan(tensors, meta, order)
		if err != nil {
			rt.Fatal(err)
		}

		path := filepath.Join(dir, "x.safetensors")
		w, err := Create(path, tensors, meta, Options{Order: order, Overwrite: true})
		if err != nil {
			rt.Fatal(err)
		}

		for _, i := range rapid.Permutation(tensors).Draw(rt, "write order") {
			if err := w.WriteTensor(i.Name, dataOf(i)); err != nil {
				rt.Fatal(err)
			}
		}

		if err := w.Finish(); err != nil {
			rt.Fatal(err)
		}

		f, err := Open(path)
		if err != nil {
			rt.Fatal(err)
		}
		defer f.Close()

		checkAll(rt2tb{t, rt}, f, tensors)

		if len(meta) != len(f.Metadata()) ||
			fmt.Sprint(meta) != fmt.Sprint(map[string]string(f.Metadata())) && len(meta) > 0 {
			rt.Fatalf("metadata %v, want %v", f.Metadata(), meta)
		}

		for i, name := range f.Names() {
			if info, _ := f.Info(name); fmt.Sprint(info) != fmt.Sprint(l.tensors[i]) {
				rt.Fatalf("%v, planned %v", info, l.tensors[i])
			}
		}
	})
}

// rt2tb lets checkAll fail a rapid check.
type rt2tb struct {
	testing.TB
	rt *rapid.T
}

func (r rt2tb) Helper()                           {}
func (r rt2tb) Errorf(format string, args ...any) { r.rt.Errorf(format, args...) }
func (r rt2tb) Fatalf(format string, args ...any) { r.rt.Fatalf(format, args...) }
func (r rt2tb) Fatal(args ...any)                 { r.rt.Fatal(args...) }

// TestGoldenReference reads a file that the reference implementation wrote, of every dtype that
// its Python interface has, and writes it again byte by byte.
func TestGoldenReference(t *testing.T) {
	path := filepath.Join("testdata", "all-dtypes.safetensors")
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	src := mustOpen(t, path)
	var tensors []Info
	for _, name := range DTypeNames() {
		if strings.HasPrefix(name, "F6_") {
			continue
		}

		for _, prefix := range []string{"b.", "a."} {
			info, ok := src.Info(prefix + name)
			if !ok || info.DType.String() != name {
				t.Fatalf("%s: %v", name, info)
			}
			tensors = append(tensors, info)
		}
	}

	out := filepath.Join(t.TempDir(), "x.safetensors")
	w, err := Create(out, tensors, src.Metadata(), Options{Order: OrderHF})
	if err != nil {
		t.Fatal(err)
	}

	for i, info := range tensors {
		if err := Copy(w, info.Name, src, info.Name, make([]byte, i%5)); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes than the reference's (%v), %d and %d", err, len(got), len(want))
	}
}
