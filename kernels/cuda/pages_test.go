//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/kerneltest"
)

// crowded opens a device of a size, and gives what it has noted.
func crowded(t testing.TB, faults string) (*cuda.Device, *[]string) {
	t.Helper()
	lib, f := configure(t, faults)
	notes := new([]string)
	d, err := cuda.Open(0, cuda.Options{Library: lib, Note: func(s string) { *notes = append(*notes, s) }})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		d.Close()
		leaks(t, f)
	})
	return d, notes
}

// weights are buffers of so many elements each, larger together than the device: element i of number k is k + i % 7.
func weights(t testing.TB, d *cuda.Device, number, size int, keep bool) []kernels.Mat {
	t.Helper()
	var list []kernels.Mat
	for k := range number {
		values := make([]float32, size)
		for i := range values {
			values[i] = float32(k + i%7)
		}

		list = append(list, alloc(t, d, 1, size, kernelBytes(values)))
		if keep {
			d.Keep(list[k].Buf, kernelBytes(values))
		}
	}

	return list
}

// TestWeightsThatDoNotFit: passes over weights of four times the device's memory give what they should, it is
// said once, and what the host keeps anyway is not copied there.
func TestWeightsThatDoNotFit(t *testing.T) {
	const number, size = 16, 1 << 18
	for _, faults := range []string{"memory=4194304", "memory=4194304,nopool"} {
		for _, keep := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,keep=%t", faults, keep), func(t *testing.T) {
				d, notes := crowded(t, faults)
				list := weights(t, d, number, size, keep)
				sum := alloc(t, d, 1, size, nil)
				for range 3 {
					for _, w := range list {
						d.Ops().Add(sum, sum, w, 1)
					}
				}

				d.Ops().Add(list[3], list[3], list[4], 1) // written: what the host keeps is out of date
				for _, w := range list {
					d.Ops().Add(sum, sum, w, 1)
				}

				got := make([]float32, size)
				if err := errors.Join(d.Ops().Sync(), d.Download(kernelBytes(got), sum.Buf, 0)); err != nil {
					t.Fatal(err)
				}

				for i, v := range got {
					m := float32(i % 7)
					if want := 4*(number*(number-1)/2+number*m) + 4 + m; v != want {
						t.Fatalf("element %d is %v, want %v", i, v, want)
					}
				}

				if len(*notes) != 1 || !strings.Contains((*notes)[0], "cuda:0: memory is full") {
					t.Errorf("noted %q", *notes)
				}
				if out, in := d.Moved(); out == 0 || in == 0 {
					t.Errorf("%d bytes moved to the host and %d back", out, in)
				}
			})
		}
	}
}

// TestConformanceWithoutRoom runs operations while a buffer that is never used fills the device.
func TestConformanceWithoutRoom(t *testing.T) {
	d, _ := crowded(t, "memory=8388608")
	fill := weights(t, d, 7, 1<<18, false)
	kerneltest.Run(t, d, "MatMulNN", "RMSNormBackward", "GatherBackward")
	if out, _ := d.Moved(); out == 0 {
		t.Error("nothing moved")
	}

	got := make([]float32, 1<<18)
	for k, m := range fill {
		if err := d.Download(kernelBytes(got), m.Buf, 0); err != nil {
			t.Fatal(err)
		}

		if !slices.Equal(got[:7], []float32{
			float32(k), float32(k) + 1, float32(k) + 2, float32(k) + 3, float32(k) + 4,
			float32(k) + 5, float32(k) + 6,
		}) {
			t.Errorf("buffer %d came back as %v", k, got[:7])
		}
	}
}

// TestFailingMoves injects one failing call at a time into moves to the host and back: it is reported, and
// nothing is lost by it.
func TestFailingMoves(t *testing.T) {
	const size = 1 << 18
	for _, call := range []string{
		"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuStreamWaitEvent",
		"cuEventRecord",
	} {
		for at := 1; at <= 40; at += 5 {
			d, _ := crowded(t, fmt.Sprintf("memory=3145728,fail:%s=1@%d", call, at))
			var list []kernels.Mat
			var failed error
			for k := range 6 {
				b, err := d.Alloc(kernels.F32, size)
				if err == nil {
					err = d.Upload(b, 0, kernelBytes(slices.Repeat([]float32{float32(k)}, size)))
				}
				if err != nil {
					failed = err
					break
				}

				list = append(list, kernels.MatOf(b, 1, size))
			}

			if failed != nil {
				continue
			}
			for _, m := range list {
				d.Ops().Add(m, m, m, 1)
			}

			failed = d.Ops().Sync()
			got := make([]float32, size)
			for k, m := range list {
				if err := d.Download(kernelBytes(got), m.Buf, 0); err != nil {
					failed = err
				} else if v := got[size-1]; v != float32(2*k) && (failed == nil || v != float32(k)) {
					t.Fatalf("%s@%d: buffer %d is %v after %v", call, at, k, v, failed)
				}
			}
		}
	}
}

// TestForeignBuffer: a buffer of another device, or one that was freed, is an error, never another buffer's memory.
func TestForeignBuffer(t *testing.T) {
	d, other := open(t, ""), open(t, "")
	x, y := alloc(t, d, 1, 64, nil), alloc(t, other, 1, 64, nil)
	d.Ops().Add(x, x, y, 1)
	if d.Ops().Sync() == nil {
		t.Error("an operation took a buffer of another device")
	}
	if d.Upload(y.Buf, 0, make([]byte, 4)) == nil || d.Download(make([]byte, 4), y.Buf, 0) == nil {
		t.Error("a transfer took a buffer of another device")
	}
}
