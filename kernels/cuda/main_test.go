//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// options are the compiler's for the host build.
var options = []string{"-std=c++17", "-O1", "-ftree-vectorize", "-fPIC", "-w"}

// standIn is the driver's stand-in: built once, and kept in the user's cache folder under the hash of what it is made of.
var standIn = sync.OnceValues(func() (string, error) {
	compiler, err := exec.LookPath("c++")
	if err != nil {
		return "", nil
	}
	kept, err := place(compiler)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	built, err := build(compiler)
	if err != nil {
		return "", err
	}
	if kept == "" {
		return built, nil
	}
	return built, keep(built, kept)
})

// place is where the library is kept, by the hash of the sources, the options and the compiler's version; "" if there is no cache folder.
func place(compiler string) (string, error) {
	files, err := filepath.Glob(filepath.Join(sources, "*"))
	if err != nil {
		return "", err
	}
	h := sha256.New()
	version, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%s %q %q", runtime.GOARCH, version, options)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d %s", filepath.Base(file), len(text), text)
	}
	folder, err := os.UserCacheDir()
	if err != nil {
		return "", nil
	}
	return filepath.Join(folder, "compress-kernels", fmt.Sprintf("%x.so", h.Sum(nil))), nil
}

// keep copies a library to the cache under its final name at once. A cache that cannot be written is no failure.
func keep(built, kept string) error {
	text, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	if os.MkdirAll(filepath.Dir(kept), 0o700) != nil {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(kept), "new")
	if err != nil {
		return nil
	}
	_, err = f.Write(text)
	if errors.Join(err, f.Close()) != nil || os.Rename(f.Name(), kept) != nil {
		os.Remove(f.Name())
	}
	return nil
}

// build compiles the library.
func build(compiler string) (string, error) {
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
			errs[i] = run(compiler, append(options[:len(options):len(options)], "-c", "-x", "c++", file, "-o", object)...)
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	lib := filepath.Join(scratch, "libcuda.so.1")
	return lib, run(compiler, append([]string{"-shared", "-o", lib}, append(objects, "-ldl", "-lpthread")...)...)
}

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
	file, err := os.CreateTemp(scratch, strings.ReplaceAll(t.Name(), "/", "_")+"-*.so") // a new file: the last one of this name may be mapped
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
