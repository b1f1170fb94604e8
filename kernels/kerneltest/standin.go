package kerneltest

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
)

// standInOptions are the compiler's for the host build of the kernels.
var standInOptions = []string{"-std=c++17", "-O1", "-ftree-vectorize", "-fPIC", "-w"}

// building keeps tests of one process from building the stand-in at the same time.
var building sync.Mutex

// StandIn is the path of a library that stands in for the driver of NVIDIA graphics processors: it runs the
// host build of package cuda's kernels. It is compiled once and kept in the user's cache folder under the hash
// of what it is made of. Without a C++ compiler the test is skipped.
func StandIn(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("the graphics backend is for linux on amd64 and arm64")
	}

	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skip("no c++ on this machine: the driver's stand-in is not built")
	}

	building.Lock()
	defer building.Unlock()

	lib, err := standIn(compiler, t.TempDir)
	if err != nil {
		t.Fatal(err)
	}

	return lib
}

// standIn finds the library in the cache, or builds it.
func standIn(compiler string, temp func() string) (string, error) {
	sources, err := kernelSources()
	if err != nil {
		return "", err
	}

	kept, err := standInPlace(compiler, sources)
	if err != nil {
		return "", err
	}

	if _, err := os.Stat(kept); kept != "" && err == nil {
		return kept, nil
	}

	built, err := buildStandIn(compiler, sources, temp())
	if err != nil || kept == "" {
		return built, err
	}

	return built, keepStandIn(built, kept)
}

// kernelSources is the folder of the kernels, from any folder of the module.
func kernelSources() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}

	for at := dir; ; at = filepath.Dir(at) {
		sources := filepath.Join(at, "kernels", "_gen", "cuda", "src")
		if _, err := os.Stat(sources); err == nil {
			return sources, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no kernels/_gen/cuda/src above %s", dir)
		}
	}
}

// standInPlace is where the library is kept, by the hash of the sources, the options and the compiler's
// version; "" if there is no cache folder.
func standInPlace(compiler, sources string) (string, error) {
	files, err := filepath.Glob(filepath.Join(sources, "*"))
	if err != nil {
		return "", err
	}

	version, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return "", err
	}

	h := sha256.New()
	fmt.Fprintf(h, "%s %q %q", runtime.GOARCH, version, standInOptions)

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

// keepStandIn copies a library to the cache under its final name at once. A cache that cannot be written is no failure.
func keepStandIn(built, kept string) error {
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

// buildStandIn compiles the library.
func buildStandIn(compiler, sources, dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(sources, "*.c[uc]"))
	if err != nil {
		return "", err
	}

	var objects []string
	errs, running := make([]error, len(files)), sync.WaitGroup{}
	for i, file := range files {
		object := filepath.Join(dir, filepath.Base(file)+".o")
		objects = append(objects, object)
		running.Go(func() {
			errs[i] = compile(compiler, append(standInOptions[:len(standInOptions):len(standInOptions)], "-c", "-x",
				"c++", file, "-o", object)...)
		})
	}

	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}

	lib := filepath.Join(dir, "libcuda.so.1")
	return lib, compile(compiler, append([]string{"-shared", "-o", lib}, append(objects, "-ldl", "-lpthread")...)...)
}

func compile(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
