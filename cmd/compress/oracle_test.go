package main

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// oracleFolder gives a folder of reference numbers, or skips.
func oracleFolder(t *testing.T, name string) string {
	t.Helper()
	root := os.Getenv("COMPRESS_ORACLE")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared", "oracle")
	}

	dir := filepath.Join(root, name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("%s is not there", dir)
	}

	return dir
}

// TestForwardOracle: for every model of the oracle, what the command writes is what PyTorch computes, gradients
// included.
func TestForwardOracle(t *testing.T) {
	binary, root := program(t), oracleFolder(t, "models")
	files, err := filepath.Glob(filepath.Join(root, "*", "oracle.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no folder with oracle.safetensors (%v)", root, err)
	}

	for _, file := range files {
		model := filepath.Dir(file)
		t.Run(filepath.Base(model), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.safetensors")
			run1(t, binary, "forward", model, "--ids", file, "--out", out, "--hidden", "--grad", "--quiet")
			comparePass(t, file, out)
		})
	}
}

// comparePass compares every tensor of an oracle with the same one of an output. Tolerances are those of the
// oracle's README, ten times the noise of float32: of the largest absolute value of a tensor, and for
// gradients, some of which are zero but for rounding, a part of the largest of all gradients.
func comparePass(t *testing.T, wantFile, gotFile string) {
	t.Helper()
	want, got := f32Tensors(t, wantFile), f32Tensors(t, gotFile)
	largest := 0.0
	for name, x := range want {
		if strings.HasPrefix(name, "grad.") {
			largest = max(largest, maxAbs(x))
		}
	}

	gradients := 0
	for name, x := range want {
		tolerance := 2e-5 * maxAbs(x)
		switch {
		case strings.HasPrefix(name, "grad."):
			gradients++
			tolerance = 1e-4*maxAbs(x) + 1e-6*largest
		case name == "loss_per_token":
			tolerance = 5e-5
		}

		y := got[name]
		if len(y) != len(x) {
			t.Errorf("%s: %d elements, want %d", name, len(y), len(x))
			continue
		}

		for i := range x {
			if d := math.Abs(x[i] - y[i]); !(d <= tolerance) {
				t.Errorf("%s: element %d is %g, want %g within %g", name, i, y[i], x[i], tolerance)
				break
			}
		}
	}

	for name := range got {
		if _, ok := want[name]; !ok && name != "loss" {
			t.Errorf("%s is written, but the oracle has no such tensor", name)
		}
	}

	if gradients == 0 {
		t.Error("the oracle has no gradients")
	}
}

func maxAbs(x []float64) float64 {
	m := 0.0
	for _, v := range x {
		m = max(m, math.Abs(v))
	}
	return m
}

// f32Tensors reads the F32 tensors of a file.
func f32Tensors(t *testing.T, path string) map[string][]float64 {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	all := map[string][]float64{}
	for _, name := range f.Names() {
		if info, _ := f.Info(name); info.DType != safetensors.F32 {
			continue
		}

		data, err := f.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		values := make([]float64, len(data)/4)
		for i := range values {
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
		}

		all[name] = values
	}

	return all
}
