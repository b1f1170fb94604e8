//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/kerneltest"
)

// TestOpenRefuses: what a machine may lack is an error of its own kind, in one line.
func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name, faults string
		index        int
		want         error
		text         string
	}{
		{"no device", "devices=0", 0, cuda.ErrNoDevice, "CUDA_ERROR_100"},
		{"a number past the last", "devices=2", 2, cuda.ErrNoDevice, "the machine has 2"},
		{"a negative number", "", -1, cuda.ErrNoDevice, "the machine has 1"},
		{"an old driver", "driver=12040", 0, cuda.ErrDriver, "supports CUDA 12.4, the kernels need 12.8"},
		{"an old device", "major=7,minor=5", 0, cuda.ErrArchitecture, "compute capability 7.5"},
		{"a device in use", "fail:cuDevicePrimaryCtxRetain=46@1", 0, nil, "another process"},
		{"too little memory for staging", "fail:cuMemHostAlloc=2@3", 0, cuda.ErrOutOfMemory, "cuMemHostAlloc"},
		{"a failing stream", "fail:cuStreamCreate=999@2", 0, nil, "cuStreamCreate"},
		{"a failing event", "fail:cuEventCreate=999@2", 0, nil, "cuEventCreate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lib, f := configure(t, c.faults)
			d, err := cuda.Open(c.index, cuda.Options{Library: lib})
			if err == nil {
				d.Close()
				t.Fatal("it was opened")
			}

			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %q is not %q", err, c.want)
			}

			if !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q: want one line with %q", err, c.text)
			}

			leaks(t, f)
		})
	}

	t.Run("no driver", func(t *testing.T) {
		_, err := cuda.Open(0, cuda.Options{Library: "libcuda-that-is-not-there.so"})
		if !errors.Is(err, cuda.ErrNoDevice) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("a library that is no driver", func(t *testing.T) {
		_, err := cuda.Open(0, cuda.Options{Library: "libc.so.6"})
		if !errors.Is(err, cuda.ErrDriver) && !errors.Is(err, cuda.ErrNoDevice) {
			t.Errorf("error %v", err)
		}
	})
}

// alloc is a matrix with contents.
func alloc(t testing.TB, d kernels.Device, rows, cols int, values []byte) kernels.Mat {
	t.Helper()
	b, err := d.Alloc(kernels.F32, rows*cols)
	if err == nil && values != nil {
		err = d.Upload(b, 0, values)
	}
	if err != nil {
		t.Fatal(err)
	}
	return kernels.MatOf(b, rows, cols)
}

// TestOutOfMemorySaysWhatIsHeld: the error lists labels with their sizes, and freed memory can be used again.
func TestOutOfMemorySaysWhatIsHeld(t *testing.T) {
	for _, faults := range []string{"memory=67108864", "memory=67108864,nopool"} {
		t.Run(faults, func(t *testing.T) {
			d := open(t, faults)
			if before := d.Label("weights"); before != "tensors" {
				t.Errorf("label was %q", before)
			}

			big, err := d.Alloc(kernels.F32, 10<<20)
			if err != nil {
				t.Fatal(err)
			}

			d.Label("activations")
			small, err := d.Alloc(kernels.F32, 1<<20)
			if err != nil {
				t.Fatal(err)
			}

			_, err = d.Alloc(kernels.F32, 17<<20)
			if !errors.Is(err, cuda.ErrOutOfMemory) {
				t.Fatalf("error %v", err)
			}

			for _, part := range []string{
				"68.0 MiB asked for by activations", "20.0 MiB of 64.0 MiB free",
				"weights 40.0 MiB, activations 4.0 MiB",
			} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}

			big.Free()
			again, err := d.Alloc(kernels.F32, 8<<20)
			if err != nil {
				t.Errorf("after a block was freed: %v", err)
			}

			small.Free()
			again.Free()
		})
	}
}

// TestScratchThatDoesNotFit: an operation without room for its scratch memory is reported by Sync, and what
// comes after works.
func TestScratchThatDoesNotFit(t *testing.T) {
	d := open(t, "memory=520000") // of which the operands take 516,000
	x := alloc(t, d, 256, 500, nil)
	acc, err := d.Alloc(kernels.F64, 500)
	if err != nil {
		t.Fatal(err)
	}

	d.Ops().ColSumSq(kernels.MatOf(acc, 1, 500), x)
	if err := d.Ops().Sync(); !errors.Is(err, cuda.ErrOutOfMemory) || !strings.Contains(err.Error(), "ColSumSq") {
		t.Errorf("error %v", err)
	}

	d.Ops().Add(x, x, x, 1)
	if err := d.Ops().Sync(); err != nil {
		t.Errorf("what needs no scratch memory: %v", err)
	}
}

// TestLostDevice: after the device is gone every call fails, none hangs or computes, and closing gives everything back.
func TestLostDevice(t *testing.T) {
	for _, eager := range []string{"0", "1"} {
		t.Run("sync="+eager, func(t *testing.T) {
			t.Setenv("COMPRESS_CUDA_SYNC", eager)
			lib, _ := configure(t, "lost@2")
			d, err := cuda.Open(0, cuda.Options{Library: lib})
			if err != nil {
				t.Fatal(err)
			}

			x := alloc(t, d, 4, 8, make([]byte, 128))
			o := d.Ops()
			o.Add(x, x, x, 1)
			o.Softcap(x, x, 3)
			o.Add(x, x, x, 1)
			err = o.Sync()
			if !errors.Is(err, cuda.ErrLost) {
				t.Fatalf("error %v", err)
			}

			if named := strings.Contains(err.Error(), "cuda:0: Softcap"); named != (eager == "1") {
				t.Errorf("error %q", err)
			}

			o.Add(x, x, x, 1)

			for what, err := range map[string]error{
				"Sync": o.Sync(), "Upload": d.Upload(x.Buf, 0, make([]byte, 4)),
				"Download": d.Download(make([]byte, 4), x.Buf, 0),
			} {
				if !errors.Is(err, cuda.ErrLost) {
					t.Errorf("%s: error %v", what, err)
				}
			}

			if _, err := d.Alloc(kernels.F32, 1); !errors.Is(err, cuda.ErrLost) {
				t.Errorf("Alloc: error %v", err)
			}
			if o.NonFinite(x) != -1 {
				t.Error("NonFinite found something on a lost device")
			}

			d.Close()
		})
	}
}

// TestFailuresNameTheOperation injects one failing call of the driver at a time into an operation: Sync tells, once.
func TestFailuresNameTheOperation(t *testing.T) {
	for _, call := range []string{"cuLaunchKernel", "cuModuleLoadDataEx", "cuModuleGetFunction"} {
		t.Run(call, func(t *testing.T) {
			d := open(t, fmt.Sprintf("fail:%s=1@1", call))
			x := alloc(t, d, 4, 8, make([]byte, 128))
			d.Ops().Softcap(x, x, 3)
			d.Ops().Add(x, x, x, 1) // does nothing
			err := d.Ops().Sync()
			if err == nil || !strings.Contains(err.Error(), "cuda:0: Softcap: "+call) {
				t.Errorf("error %v", err)
			}

			d.Ops().Add(x, x, x, 1)
			if err := d.Ops().Sync(); err != nil {
				t.Errorf("second time: %v", err)
			}
		})
	}
}

// TestTransfersKeepTheirOrder writes and reads buffers of several slots beside operations, at random: every
// download gives what the host has in a copy of its own. The stand-in runs streams as late as it may, so a
// missing wait shows.
func TestTransfersKeepTheirOrder(t *testing.T) {
	for _, faults := range []string{"", "nopool", "memory=30000000", "memory=30000000,nopool"} {
		t.Run("faults="+faults, func(t *testing.T) {
			d := open(t, faults)
			rng := rand.New(rand.NewPCG(1, 2))
			type pair struct {
				dev  kernels.Mat
				host []float32
			}

			var live []*pair
			src := make([]float32, 5<<20)
			for range 60 {
				switch k := rng.IntN(5); {
				case k == 0 || len(live) < 2:
					n := []int{64, 1000, 1 << 20, 5 << 20}[rng.IntN(4)]
					live = append(live, &pair{alloc(t, d, 1, n, nil), make([]float32, n)})
				case k == 1:
					i := rng.IntN(len(live))
					live[i].dev.Buf.Free()
					live = append(live[:i], live[i+1:]...)
				case k == 2:
					p := live[rng.IntN(len(live))]
					off := rng.IntN(len(p.host))
					part := src[:len(p.host)-off]
					for i := range part {
						part[i] = float32(i%1000) + float32(rng.IntN(1000))
					}

					copy(p.host[off:], part)
					if err := d.Upload(p.dev.Buf, off, kernelBytes(part)); err != nil {
						t.Fatal(err)
					}

					clear(part) // the transfer must not read it any more
				case k == 3:
					p := live[rng.IntN(len(live))]
					d.Ops().Add(p.dev, p.dev, p.dev, 1)
					for i, v := range p.host {
						p.host[i] = v + v
					}
				default:
					p := live[rng.IntN(len(live))]
					got := make([]byte, 4*len(p.host))
					if err := d.Download(got, p.dev.Buf, 0); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got, kernelBytes(p.host)) {
						t.Fatal("a download gives other bytes than were written")
					}
				}
			}

			if out, in := d.Moved(); (out > 0 && in > 0) != strings.Contains(faults, "memory") {
				t.Errorf("%d bytes moved to the host and %d back", out, in)
			}
		})
	}
}

// kernelBytes is the memory of floats.
func kernelBytes(s []float32) []byte { return kernels.WrapF32(s).Bytes() }

// TestTwoDevices: devices are apart, and each serves several goroutines.
func TestTwoDevices(t *testing.T) {
	lib, f := configure(t, "devices=2")
	var wait sync.WaitGroup
	for i := range 2 {
		d, err := cuda.Open(i, cuda.Options{Library: lib})
		if err != nil {
			t.Fatal(err)
		}

		for range 2 {
			wait.Go(func() {
				x := alloc(t, d, 8, 16, kernelBytes(make([]float32, 128)))
				for range 50 {
					d.Ops().Add(x, x, x, 1)
				}
				if n := d.Ops().CountZero(x); n != 128 {
					t.Errorf("%d zeros of 128", n)
				}
			})
		}
		defer func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if i == 0 {
				leaks(t, f)
			}
		}()
	}

	wait.Wait()
}

// TestClosedDevice: calls after Close are errors, and freeing a buffer then does nothing.
func TestClosedDevice(t *testing.T) {
	d := open(t, "")
	x := alloc(t, d, 2, 4, nil)

	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}

	d.Ops().Add(x, x, x, 1)
	if d.Ops().Sync() == nil || d.Upload(x.Buf, 0, make([]byte, 4)) == nil {
		t.Error("a closed device works")
	}
	if i := d.Info(); i.Name != "cuda:0" || i.Total != 0 {
		t.Errorf("info %+v", i)
	}

	x.Buf.Free()
}

// TestWithoutPool runs a part of the suite on the allocator that replaces the driver's pool.
func TestWithoutPool(t *testing.T) {
	kerneltest.Run(t, open(t, "nopool"), "ColSum", "GatherBackward", "CrossEntropy", "Expand")
}

// TestInfo says what the device is.
func TestInfo(t *testing.T) {
	d := open(t, "memory=1073741824")
	x := alloc(t, d, 1, 1<<20, nil)
	i := d.Info()
	if i.Name != "cuda:0" || i.Model != "Stand-in" || i.Host || i.Total != 1<<30 || i.Free != 1<<30-4<<20 ||
		strings.Join(i.Features, " ") != "sm_90 cuda-13.0" {
		t.Errorf("info %+v", i)
	}
	x.Buf.Free()
}

// TestWideHeads: heads for which there is no kernel are an error at Sync where nobody took the call before.
func TestWideHeads(t *testing.T) {
	d := open(t, "")
	x, out := alloc(t, d, 2, 320, nil), alloc(t, d, 2, 320, nil)
	d.Ops().Attention(out, x, x, x, kernels.Attention{Heads: 1, KVHeads: 1, HeadDim: 320, Scale: 1})
	if err := d.Ops().Sync(); !errors.Is(err, cuda.ErrWideHead) || !strings.Contains(err.Error(), "cuda:0: Attention") {
		t.Errorf("error %v", err)
	}
}
