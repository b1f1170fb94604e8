//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/modelcompress/compress/kernels/cuda"
)

// sources is the folder of the kernels, and of the driver's stand-in that runs their host build.
var sources = filepath.Join("..", "_gen", "cuda", "src")

// scratch is a folder for the whole run: a library that is loaded cannot be removed before.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "cuda"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// standIn is the driver's stand-in, built once.
var standIn = sync.OnceValues(func() (string, error) {
	compiler, err := exec.LookPath("c++")
	if err != nil {
		return "", nil
	}
	files, err := filepath.Glob(filepath.Join(sources, "*.c[uc]"))
	if err != nil {
		return "", err
	}
	var objects []string
	errs, running := make([]error, len(files)), sync.WaitGroup{}
	for i, file := range files {
		object := filepath.Join(scratch, filepath.Base(file)+".o")
		objects = append(objects, object)
		running.Go(func() {
			errs[i] = run(compiler, "-std=c++17", "-O1", "-ftree-vectorize", "-fPIC", "-w", "-c", "-x", "c++", file, "-o", object)
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return "", err
		}
	}
	lib := filepath.Join(scratch, "libcuda.so.1")
	return lib, run(compiler, append([]string{"-shared", "-o", lib}, append(objects, "-ldl", "-lpthread")...)...)
})

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// library is the stand-in; without a C++ compiler the test is skipped.
func library(t testing.TB) string {
	t.Helper()
	lib, err := standIn()
	if err != nil {
		t.Fatal(err)
	}
	if lib == "" {
		t.Skip("no c++ on this machine: the host build of the kernels is not tested")
	}
	return lib
}

// fake calls the stand-in's own functions.
type fake struct {
	held  func(*int32)
	reset func()
}

// configure gives the stand-in faults (see driver.cc) for one test. Each configuration is a copy of the library of its own: a driver
// looks at its environment once.
func configure(t testing.TB, faults string) (string, fake) {
	t.Helper()
	lib := library(t)
	text, err := os.ReadFile(lib)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(scratch, strings.ReplaceAll(t.Name(), "/", "_")+".so")
	if err := os.WriteFile(own, text, 0o777); err != nil {
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

// open opens a device of the stand-in; at the end nothing of the driver may be left.
func open(t testing.TB, faults string) *cuda.Device {
	t.Helper()
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
	for i, what := range []string{"blocks of memory", "blocks of pinned memory", "streams", "events", "modules", "contexts"} {
		if held[i] != 0 {
			t.Errorf("%d %s were not given back", held[i], what)
		}
	}
}
