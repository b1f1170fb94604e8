package safetensors

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// many is a file of 10,000 small tensors.
func many(b *testing.B) string {
	var tensors []Info
	for i := range 10_000 {
		tensors = append(tensors,
			Info{
				Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.down_proj.weight", i/100, i%100), DType: BF16,
				Shape: []int64{4, 8},
			})
	}

	path := filepath.Join(b.TempDir(), "many.safetensors")
	w, err := Create(path, tensors, map[string]string{"format": "pt"}, Options{})
	if err != nil {
		b.Fatal(err)
	}

	for _, t := range tensors {
		if err := w.WriteTensor(t.Name, dataOf(t)); err != nil {
			b.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		b.Fatal(err)
	}

	return path
}

// BenchmarkOpen10k opens and closes a file of 10,000 tensors.
func BenchmarkOpen10k(b *testing.B) {
	path := many(b)
	b.ReportAllocs()

	for b.Loop() {
		f, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}

		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWriter writes 64 MB in tensors of 4 MB, through a Writer and with plain pwrite into a file of
// the same size, both with a final fsync, in turns. It reports the Writer's throughput, and the
// ratio of the fastest runs of each (1 is as fast as pwrite).
func BenchmarkWriter(b *testing.B) {
	const parts, size = 16, 4 << 20
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7)
	}

	var tensors []Info
	for i := range parts {
		tensors = append(tensors, Info{Name: fmt.Sprint("t", i), DType: U8, Shape: []int64{size}})
	}

	dir := b.TempDir()
	ours, plain := time.Duration(1<<62), time.Duration(1<<62)
	b.SetBytes(parts * size)

	for b.Loop() {
		ours = min(ours, timed(b, func() error { return viaWriter(filepath.Join(dir, "w"), tensors, data) }))
		b.StopTimer()
		plain = min(plain, timed(b, func() error { return viaPwrite(filepath.Join(dir, "p"), parts, data) }))
		b.StartTimer()
	}

	b.ReportMetric(plain.Seconds()/ours.Seconds(), "of-pwrite")
}

func timed(b *testing.B, f func() error) time.Duration {
	start := time.Now()
	if err := f(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

func viaWriter(path string, tensors []Info, data []byte) error {
	w, err := Create(path, tensors, nil, Options{Overwrite: true})
	if err != nil {
		return err
	}

	for _, t := range tensors {
		if err := w.WriteTensor(t.Name, data); err != nil {
			return err
		}
	}

	return w.Finish()
}

func viaPwrite(path string, parts int, data []byte) error {
	f, err := os.Create(path + partialSuffix)
	if err != nil {
		return err
	}

	for i := range parts {
		if _, err := f.WriteAt(data, int64(i*len(data))); err != nil {
			return err
		}
	}

	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}

	return os.Rename(path+partialSuffix, path)
}

// BenchmarkCopy streams a file of 64 MB into another one through a buffer of 1 MiB.
func BenchmarkCopy(b *testing.B) {
	tensors := []Info{{Name: "t", DType: U8, Shape: []int64{64 << 20}}}
	dir := b.TempDir()
	if err := viaWriter(filepath.Join(dir, "src"), tensors, make([]byte, 64<<20)); err != nil {
		b.Fatal(err)
	}

	src := mustOpen(b, filepath.Join(dir, "src"))
	buf := make([]byte, 1<<20)
	b.SetBytes(64 << 20)

	for b.Loop() {
		w, err := Create(filepath.Join(dir, "dst"), tensors, nil, Options{Overwrite: true})
		if err != nil {
			b.Fatal(err)
		}

		if err := Copy(w, "t", src, "t", buf); err != nil {
			b.Fatal(err)
		}
		if err := w.Abort(); err != nil {
			b.Fatal(err)
		}
	}
}
