// The release program builds everything that a release consists of, into one folder:
//
//	go run ./.release -out DIST [-ref v0.1.0] [-key KEY]
//
// It clones the repository at the tag into a folder of its own, so that nothing but what is committed goes in, and
// writes archives, wheels, a Debian package for each architecture, a formula for Homebrew, lists of components, notes
// and checksums. The same commit and the same release of Go give the same bytes, on any machine and in any folder: all
// times are that of the commit, and all orders are fixed. docs/releasing.md says how a release is made.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// target is a platform that releases are built for.
type target struct {
	os, arch string
	wheel    string // platform of its wheel
	deb      string // architecture of its Debian package; empty: none
}

// targets are the platforms. Go 1.26 asks for macOS 12; the Linux program needs any GNU C library, for the drivers of
// graphics processors.
var targets = []target{
	{"linux", "amd64", "manylinux_2_17_x86_64.manylinux2014_x86_64", "amd64"},
	{"linux", "arm64", "manylinux_2_17_aarch64.manylinux2014_aarch64", "arm64"},
	{"darwin", "arm64", "macosx_12_0_arm64", ""},
	{"darwin", "amd64", "macosx_12_0_x86_64", ""},
	{"windows", "amd64", "win_amd64", ""},
}

// release is one that is being built.
type release struct {
	src, out string // clone of the repository, folder of the result
	version  string // of the program, without the v of a tag
	commit   string
	time     time.Time // of the commit
	url      string    // where the archives will be
	files    []string  // names of what is in out
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")

	var key, only string
	r := &release{}
	ref := flag.String("ref", "HEAD", "`TAG` or commit to build")
	flag.StringVar(&r.out, "out", "", "`DIR` folder for the result, which must be empty or not there")
	flag.StringVar(&key, "key", "", "`FILE` SSH key that signs the checksums; empty: they are not signed")
	flag.StringVar(&r.url, "url", "https://github.com/modelcompress/compress/releases/download",
		"`URL` under which each release has a folder named by its tag")
	flag.StringVar(&only, "targets", "", "`LIST` build for these platforms alone, such as linux/amd64,darwin/arm64")
	flag.Parse()
	if only != "" {
		targets = slices.DeleteFunc(targets, func(t target) bool {
			return !slices.Contains(strings.Split(only, ","), t.os+"/"+t.arch)
		})
	}
	if r.out == "" || flag.NArg() > 0 {
		log.Fatal("want -out DIR, and nothing after the flags")
	}
	if err := r.make(*ref, key); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d files of version %s are in %s\n", len(r.files), r.version, r.out)
}

// make builds everything.
func (r *release) make(ref, key string) error {
	if list, err := os.ReadDir(r.out); err == nil && len(list) > 0 {
		return fmt.Errorf("%s: not empty; choose another folder", r.out)
	}
	if err := os.MkdirAll(r.out, 0o777); err != nil {
		return err
	}

	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := r.clone(ref, filepath.Join(work, "src")); err != nil {
		return err
	}

	// The program says itself which version it is, and writes its manual pages.
	own := filepath.Join(work, "own")
	if err := r.build(target{os: runtime.GOOS, arch: runtime.GOARCH}, own); err != nil {
		return err
	}
	said, err := output(r.src, own, "--version")
	if err != nil {
		return err
	}
	if r.version, err = versionOf(said); err != nil {
		return err
	}
	pages := filepath.Join(work, "man")
	if _, err := output(r.src, own, "man", "--out", pages, "--quiet"); err != nil {
		return err
	}

	sums := map[string]string{}
	for _, t := range targets {
		program := filepath.Join(work, t.os+"-"+t.arch)
		if err := r.build(t, program); err != nil {
			return err
		}
		if err := r.pack(t, program, pages, sums); err != nil {
			return err
		}
		fmt.Printf("%s/%s\n", t.os, t.arch)
	}

	if err := errors.Join(r.formula(sums), r.notes()); err != nil {
		return err
	}
	return r.sign(key)
}

// clone makes a copy of the repository at a commit, with its tags, which is what the build takes its version from.
func (r *release) clone(ref, dir string) error {
	commit, err := output(".", "git", "rev-parse", "--verify", ref+"^{commit}")
	if err != nil {
		return err
	}
	top, err := output(".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	r.src, r.commit = dir, commit
	if _, err := output(".", "git", "clone", "--quiet", "--no-checkout", top, dir); err != nil {
		return err
	}
	if _, err := output(dir, "git", "-c", "advice.detachedHead=false", "checkout", "--quiet", commit); err != nil {
		return err
	}

	at, err := output(dir, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(at, 10, 64)
	r.time = time.Unix(seconds, 0).UTC()
	return err
}

// build builds the program for a platform: at a random address, where Go does not do that by itself, with tables of
// addresses that are read-only before it begins.
func (r *release) build(t target, to string) error {
	mode, link := "default", "-s -w -buildid="
	if t.os == "linux" {
		mode, link = "pie", link+" -bindnow"
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-buildmode="+mode, "-ldflags="+link, "-o", to,
		"./cmd/compress")
	cmd.Dir = r.src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOTOOLCHAIN=local")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s/%s: %w", t.os, t.arch, err)
	}
	return nil
}

// versionOf is the version in what the program says of itself.
func versionOf(said string) (string, error) {
	_, version, ok := strings.Cut(said, "version ")
	version = strings.TrimPrefix(strings.TrimSpace(version), "v")
	if !ok || version == "" || version[0] < '0' || version[0] > '9' {
		return "", fmt.Errorf("the program says %q, which is no version", said)
	}
	return version, nil
}

// output runs a command in a folder and returns what it prints, without blanks around it.
func output(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var said strings.Builder
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(string(text)), nil
}
