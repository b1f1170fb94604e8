//go:build cuda && linux && (amd64 || arm64)

package device_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
)

// TestGraphics opens devices of the driver's stand-in by name, and lets "auto" choose.
func TestGraphics(t *testing.T) {
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skip("no c++ on this machine: the driver's stand-in is not built")
	}
	if _, err := device.Open("cuda:0", device.Options{}); !errors.Is(err, device.ErrNoDevice) {
		t.Skipf("the machine has a device: %v", err)
	}
	dir := filepath.Join("..", "_gen", "cuda", "src")
	lib := filepath.Join(t.TempDir(), "libcuda.so.1")
	args := []string{"-std=c++17", "-O0", "-fPIC", "-w", "-shared", "-o", lib}
	for _, file := range []string{"host.cc", "driver.cc", "map.cu"} {
		args = append(args, "-x", "c++", filepath.Join(dir, file))
	}
	if out, err := exec.Command(compiler, append(args, "-ldl", "-lpthread")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("COMPRESS_CUDA_DRIVER", lib)
	t.Setenv("FAKE_CUDA", "devices=2,memory=3000000000")
	list, err := device.Graphics()
	if err != nil || len(list) != 2 || list[1].Name != "cuda:1" {
		t.Fatalf("found %+v, %v", list, err)
	}
	for _, c := range []struct {
		name string
		work int64
		want string
	}{
		{"cuda", 0, "cuda:0"},
		{"cuda:1", 0, "cuda:1"},
		{"auto", 0, "cpu"},
		{"auto", device.LargeWork - 1, "cpu"},
		{"auto", device.LargeWork, "cuda:0"},
		{"auto", 2800 << 20, "cpu"}, // does not fit
	} {
		d, err := device.Open(c.name, device.Options{Work: c.work})
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Info().Name; got != c.want {
			t.Errorf("%q for %d bytes of work opens %s, want %s", c.name, c.work, got, c.want)
		}
		if f := device.Fallbacks(d); len(f) != 0 {
			t.Errorf("%s lacks %v", c.name, f)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := device.Open("cuda:2", device.Options{}); !errors.Is(err, device.ErrNoDevice) {
		t.Errorf("cuda:2: %v", err)
	}
}
