// Command cuda compiles the device kernels in src to PTX with NVRTC, NVIDIA's compiler library, which needs
// neither a GPU nor headers:
//
//	python3 -m venv venv && venv/bin/pip install nvidia-cuda-nvrtc-cu12==12.8.93
//	go run . -nvrtc venv/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
//
// It writes ../../cuda/ptx. Each file starts with the hash of the sources that it was made of; a test of
// package cuda compares it. PTX of release 12.8 loads on drivers from 570 on.
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/ebitengine/purego"
)

// units are the sources with entry points. Every unit is one module on the device.
var units = []string{
	"map", "rows", "select", "matmul", "attention", "flash", "flashback", "sparse", "formula",
	"interpret", "merge", "solve", "quantised",
}

// headers are what the units include, in the order of the hash.
var headers = []string{"device.h", "rank.h", "formula.h", "tiles.h"}

// target is the folder of the committed files.
var target = filepath.Join("..", "..", "cuda", "ptx")

// options of the compiler: the lowest architecture served, and nothing that changes results.
var options = []string{"--gpu-architecture=compute_80", "--std=c++17", "--device-as-default-execution-space"}

func main() {
	lib := flag.String("nvrtc", "libnvrtc.so.12", "the compiler library")
	flag.Parse()
	if err := run(*lib); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(lib string) error {
	c, err := open(lib)
	if err != nil {
		return err
	}

	for _, u := range units {
		text, err := c.compile(u + ".cu")
		if err != nil {
			return err
		}

		hash, err := sources(u)
		if err != nil {
			return err
		}

		packed, err := pack(fmt.Sprintf("// sources %x\n%s", hash, bytes.TrimRight(text, "\x00")))
		if err != nil {
			return err
		}

		if err := os.WriteFile(filepath.Join(target, u+".ptx.gz"), packed, 0o666); err != nil {
			return err
		}
	}

	return nil
}

// sources is the hash of what a unit is made of.
func sources(unit string) ([]byte, error) {
	h := sha256.New()
	for _, name := range append(headers, unit+".cu") {
		text, err := os.ReadFile(filepath.Join("src", name))
		if err != nil {
			return nil, err
		}
		h.Write(text)
	}
	return h.Sum(nil), nil
}

// pack compresses without a time or name, so that equal text gives equal bytes.
func pack(text string) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}

	if _, err := w.Write([]byte(text)); err != nil {
		return nil, err
	}

	err = w.Close()
	return b.Bytes(), err
}

// compiler is NVRTC.
type compiler struct {
	create      func(prog *uintptr, src, name string, headers int32, contents, names unsafe.Pointer) int32
	compileProg func(prog uintptr, n int32, options unsafe.Pointer) int32
	logSize     func(prog uintptr, n *uintptr) int32
	log         func(prog uintptr, p *byte) int32
	ptxSize     func(prog uintptr, n *uintptr) int32
	ptx         func(prog uintptr, p *byte) int32
}

func open(lib string) (*compiler, error) {
	h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, err
	}

	c := &compiler{}
	for name, f := range map[string]any{
		"nvrtcCreateProgram": &c.create, "nvrtcCompileProgram": &c.compileProg, "nvrtcGetProgramLogSize": &c.logSize,
		"nvrtcGetProgramLog": &c.log, "nvrtcGetPTXSize": &c.ptxSize, "nvrtcGetPTX": &c.ptx,
	} {
		purego.RegisterLibFunc(f, h, name)
	}

	return c, nil
}

// compile gives the PTX of a file.
func (c *compiler) compile(file string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join("src", file))
	if err != nil {
		return nil, err
	}

	var included []string
	for _, name := range headers {
		header, err := os.ReadFile(filepath.Join("src", name))
		if err != nil {
			return nil, err
		}
		included = append(included, string(header))
	}

	contents, names := cStrings(included...), cStrings(headers...)
	var prog uintptr
	if r := c.create(&prog, string(text), file, int32(len(headers)), unsafe.Pointer(&contents[0]),
		unsafe.Pointer(&names[0])); r != 0 {
		return nil, fmt.Errorf("%s: nvrtcCreateProgram: error %d", file, r)
	}

	flags := cStrings(options...)
	if r := c.compileProg(prog, int32(len(flags)), unsafe.Pointer(&flags[0])); r != 0 {
		var n uintptr
		c.logSize(prog, &n)
		log := make([]byte, n+1)
		c.log(prog, &log[0])
		return nil, fmt.Errorf("%s: error %d\n%s", file, r, log)
	}

	var n uintptr
	if r := c.ptxSize(prog, &n); r != 0 {
		return nil, fmt.Errorf("%s: nvrtcGetPTXSize: error %d", file, r)
	}

	out := make([]byte, n)
	if r := c.ptx(prog, &out[0]); r != 0 {
		return nil, fmt.Errorf("%s: nvrtcGetPTX: error %d", file, r)
	}

	return out, nil
}

// cStrings gives zero-terminated copies.
func cStrings(s ...string) []*byte {
	var out []*byte
	for _, v := range s {
		out = append(out, unsafe.SliceData(append([]byte(v), 0)))
	}
	return out
}
