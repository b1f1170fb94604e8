package stream

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/safetensors"
)

// values are F32 bytes of a ramp.
func values(n int) []byte {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%1000) / 8
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*n)
}

// sink counts the bytes of each tensor, and fails at one of them.
type sink struct {
	mu   sync.Mutex
	got  map[string]int64
	fail string
}

func (s *sink) Position(string) int64 { return 4094 }

var errSink = errors.New("no room")

func (s *sink) WriteAt(name string, p []byte, _ int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if name == s.fail {
		return errSink
	}
	if s.got == nil {
		s.got = map[string]int64{}
	}

	s.got[name] += int64(len(p))
	return nil
}

// item is a copied tensor of n elements.
func item(t *testing.T, name string, data []byte, release func()) *Item {
	t.Helper()
	src, err := NewMapped(data, safetensors.F32, 0, release)
	if err != nil {
		t.Fatal(err)
	}

	n := int64(len(data) / 4)
	return &Item{
		Tensor: &method.Tensor{Name: name, Shape: []int64{n}, N: n, Inputs: []method.Input{{}}},
		DType:  safetensors.BF16, X: []Source{src}, Models: []string{"m"},
	}
}

func groups(items ...*Item) (list []Group) {
	for _, it := range items {
		list = append(list, Group{Items: []*Item{it}, Program: method.Copy()})
	}
	return list
}

// TestRunWritesAll: tensors of no, one and many segments are written whole, each is reported once, and the
// progress adds up.
func TestRunWritesAll(t *testing.T) {
	s := &sink{}
	var done []string
	var mu sync.Mutex

	total := int64(0)
	items := []*Item{
		item(t, "small", values(3), nil), item(t, "big", values(3*method.SegmentSize+1), nil),
		item(t, "skipped", values(5), nil),
	}
	items[2].Done = true
	_, err := Run(context.Background(), groups(items...), s, Options{
		Threads:  3,
		Written:  func(name string) error { done = append(done, name); return nil },
		Progress: func(n int64) { mu.Lock(); total += n; mu.Unlock() },
	})
	if err != nil {
		t.Fatal(err)
	}

	if s.got["small"] != 6 || s.got["big"] != 2*(3*method.SegmentSize+1) || len(s.got) != 2 || len(done) != 2 ||
		total != s.got["small"]+s.got["big"] {
		t.Errorf("written %v, reported %v, progress %d", s.got, done, total)
	}
}

// TestFailures: errors of the sink, of a callback and of the context end a run, and nothing hangs.
func TestFailures(t *testing.T) {
	many := func() []Group {
		var items []*Item
		for i := range 20 {
			items = append(items, item(t, string(rune('a'+i)), values(method.SegmentSize+7), nil))
		}
		return groups(items...)
	}

	if _, err := Run(context.Background(), many(), &sink{fail: "c"}, Options{Threads: 2}); !errors.Is(err, errSink) {
		t.Errorf("failing sink: %v", err)
	}

	if _, err := Run(context.Background(), many(), &sink{},
		Options{Threads: 2, Written: func(string) error { return errSink }}); !errors.Is(err, errSink) {
		t.Errorf("failing callback: %v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	_, err := Run(ctx, many(), &sink{}, Options{Threads: 2, Written: func(string) error { cancel(); return nil }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}

	if _, err := Run(context.Background(), many(), &sink{}, Options{Threads: 2, Memory: 1 << 10}); !errors.Is(err,
		ErrMemory) {
		t.Errorf("no memory: %v", err)
	}
}

// whole keeps what is written.
type whole struct {
	mu   sync.Mutex
	data [2 * 3000]byte
}

func (*whole) Position(string) int64 { return 0 }

func (w *whole) WriteAt(_ string, p []byte, off int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	copy(w.data[off:], p)
	return nil
}

// TestFewerWorkers: where memory is short fewer workers run, to the same bytes, and a small tensor counts with
// its own size alone.
func TestFewerWorkers(t *testing.T) {
	want, last := &whole{}, 1001
	for _, memory := range []int64{0, 10 << 20, 600 << 10} {
		got := &whole{}
		r, err := Run(t.Context(), groups(item(t, "a", values(3000), nil)), got, Options{Threads: 1000, Memory: memory})
		if err != nil {
			t.Fatal(err)
		}

		if r.Threads >= last || r.Threads < 1 {
			t.Errorf("%d bytes: %d workers, %d before", memory, r.Threads, last)
		}

		last = r.Threads

		if memory == 0 {
			want = got
		} else if got.data != want.data {
			t.Errorf("%d bytes: other output", memory)
		}
	}
}

// TestShortened: an input that is cut off while it is mapped ends in an error, not in the end of the process.
func TestShortened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	const n = 1 << 20
	w, err := safetensors.Create(path, []safetensors.Info{{Name: "w", DType: safetensors.F32, Shape: []int64{n}}}, nil,
		safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(w.WriteTensor("w", values(n)), w.Finish()); err != nil {
		t.Fatal(err)
	}

	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	data, err := f.Bytes("w")
	if err != nil {
		t.Fatal(err)
	}

	if err := os.Truncate(path, 1<<16); err != nil {
		t.Fatal(err)
	}

	_, err = Run(context.Background(), groups(item(t, "w", data, func() {})), &sink{}, Options{Threads: 2})
	if !errors.Is(err, safetensors.ErrTruncated) {
		t.Errorf("shortened input: %v", err)
	}
}

// TestOverflow: what a narrower type cannot hold is an error that names the tensor.
func TestOverflow(t *testing.T) {
	data := values(10)
	unsafe.Slice((*float32)(unsafe.Pointer(&data[0])), 10)[3] = 65520
	it := item(t, "w", data, nil)
	it.DType = safetensors.F16
	if _, err := Run(context.Background(), groups(it), &sink{}, Options{}); !errors.Is(err, ErrOverflow) {
		t.Errorf("65520 in F16: %v", err)
	}

	unsafe.Slice((*float32)(unsafe.Pointer(&data[0])), 10)[3] = 65519
	if _, err := Run(context.Background(), groups(it), &sink{}, Options{}); err != nil {
		t.Errorf("65519 in F16: %v", err)
	}
}

// TestMapped: every type is widened exactly, at any alignment, and rounded to a narrower working type.
func TestMapped(t *testing.T) {
	x := []float32{1, -2.5, 0.15625, 1024, 0}
	for _, d := range []safetensors.DType{safetensors.F32, safetensors.F16, safetensors.BF16, safetensors.F64} {
		size := d.Bits() / 8
		for _, skew := range []int{0, 1} {
			backing := make([]byte, len(x)*size+16)
			aligned := make([]byte, len(x)*size)
			if err := Narrow(aligned, x, d); err != nil {
				t.Fatal(err)
			}

			copy(backing[skew:], aligned)
			src, err := NewMapped(backing[skew:skew+len(aligned)], d, 0, nil)
			if err != nil {
				t.Fatal(err)
			}

			got := make([]float32, len(x)-1)
			if err := src.Read(got, 1); err != nil {
				t.Fatal(err)
			}

			for i, v := range got {
				if v != x[i+1] {
					t.Errorf("%s at %d: %v, want %v", d, skew, v, x[i+1])
				}
			}
		}
	}

	src, err := NewMapped(values(1000), safetensors.F32, safetensors.BF16, nil)
	if err != nil {
		t.Fatal(err)
	}

	got := make([]float32, 1000)
	if err := src.Read(got, 0); err != nil {
		t.Fatal(err)
	}

	for i, v := range got {
		if math.Float32bits(v)&0xffff != 0 || math.Abs(float64(v)-float64(i)/8) > float64(i)/8/256 {
			t.Fatalf("%v rounded to bfloat16 is %v", float64(i)/8, v)
		}
	}

	if _, err := NewMapped(nil, safetensors.I64, 0, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("integers: %v", err)
	}
}
