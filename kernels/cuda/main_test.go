//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/kerneltest"
)

// loaded is a folder for the whole run: a library that is loaded cannot be removed before.
var loaded string

func TestMain(m *testing.M) {
	var err error
	var release func() error
	if loaded, release, err = scratch.Folder("compress-cuda-"); err != nil { // what a killed run has left goes first
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	code := m.Run()
	if err := release(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}

	os.Exit(code)
}

// fake calls the stand-in's own functions.
type fake struct {
	held  func(*int32)
	reset func()
}

// configure gives the stand-in faults (see driver.cc) for one test. Each configuration is a copy of the library
// of its own: a driver looks at its environment once.
func configure(t testing.TB, faults string) (string, fake) {
	t.Helper()
	lib := kerneltest.StandIn(t)
	text, err := os.ReadFile(lib)
	if err != nil {
		t.Fatal(err)
	}

	// a new file: the last one of this name may be mapped
	file, err := os.CreateTemp(loaded, strings.ReplaceAll(t.Name(), "/", "_")+"-*.so")
	if err != nil {
		t.Fatal(err)
	}

	own := file.Name()
	if _, err := file.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}

	t.Setenv("FAKE_CUDA", faults)
	h, err := purego.Dlopen(own, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}

	var f fake
	purego.RegisterLibFunc(&f.held, h, "fakeHeld")
	purego.RegisterLibFunc(&f.reset, h, "fakeReset")

	return own, f
}

// open opens a device of the stand-in; at the end nothing of the driver may be left. With
// COMPRESS_CUDA_TESTS=device it is the machine's first device, for tests that inject no faults.
func open(t testing.TB, faults string) *cuda.Device {
	t.Helper()

	if faults == "" && os.Getenv("COMPRESS_CUDA_TESTS") == "device" {
		d, err := cuda.Open(0, cuda.Options{})
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() {
			if err := d.Close(); err != nil && !t.Failed() {
				t.Error(err)
			}
		})
		return d
	}

	lib, f := configure(t, faults)
	d, err := cuda.Open(0, cuda.Options{Library: lib})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := d.Close(); err != nil && !t.Failed() && faults == "" {
			t.Error(err)
		}
		leaks(t, f)
	})

	return d
}

// leaks checks that memory, pinned memory, streams, events, modules and contexts were given back.
func leaks(t testing.TB, f fake) {
	t.Helper()
	held := make([]int32, 6)
	f.held(&held[0])
	for i, what := range []string{
		"blocks of memory", "blocks of pinned memory", "streams", "events", "modules",
		"contexts",
	} {
		if held[i] != 0 {
			t.Errorf("%d %s were not given back", held[i], what)
		}
	}
}
