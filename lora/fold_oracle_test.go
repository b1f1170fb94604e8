package lora

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// decoded is a tensor in F32.
func decoded(t *testing.T, f safetensors.Source, name string) []float32 {
	t.Helper()
	info, ok := f.Info(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}

	data, err := f.Bytes(name)
	x := make([]float32, info.Elements())
	if err == nil {
		err = dtype.Decode(x, data, info.DType)
	}
	if err != nil {
		t.Fatal(err)
	}

	return x
}

// folded folds the adapter in a folder into a base and opens the result.
func folded(t *testing.T, base, dir string, o FoldOptions) *safetensors.Dir {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Fold(t.Context(), base, dir, out, o); err != nil {
		t.Fatal(err)
	}

	d, err := safetensors.OpenDir(out)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { d.Close() })
	return d
}

// inBF16 writes a base again with all tensors rounded to BF16.
func inBF16(t *testing.T, base string) string {
	t.Helper()
	dir := t.TempDir()

	src := openTensors(t, filepath.Join(base, safetensors.SingleName))
	var infos []safetensors.Info
	for _, n := range src.Names() {
		info, _ := src.Info(n)
		info.DType = safetensors.BF16
		infos = append(infos, info)
	}

	w, err := safetensors.Create(filepath.Join(dir, safetensors.SingleName), infos, nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range infos {
		x := decoded(t, src, info.Name)
		data := make([]byte, 2*len(x))
		if err := dtype.Encode(data, x, info.DType); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
	}

	text, err := os.ReadFile(filepath.Join(base, "config.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666)
	}
	if err == nil {
		err = w.Finish()
	}
	if err != nil {
		t.Fatal(err)
	}

	return dir
}

// TestFoldOracle: folded weights are those that PEFT merges, to 1e-6 (sums of a handful of products in F32
// there), everything else is the base's to the bit. Folded into BF16, at most one element in 1000 differs, by
// one step: where the sums of both lie on different sides of a tie.
func TestFoldOracle(t *testing.T) {
	root := oracle(t)
	for _, dir := range cases(t, filepath.Join(root, "peft")) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c struct {
				Base string
			}
			readJSON(t, filepath.Join(dir, "case.json"), &c)

			base := filepath.Join(root, "base", c.Base)
			want := openTensors(t, filepath.Join(dir, "expected.safetensors"))
			whole := openTensors(t, filepath.Join(base, safetensors.SingleName))
			checkMerged(t, whole, folded(t, base, dir, FoldOptions{}), want)
			checkBF16(t, base, dir, want)
		})
	}
}

func checkMerged(t *testing.T, base safetensors.Source, got *safetensors.Dir, want safetensors.Source) {
	t.Helper()

	for _, n := range got.Names() {
		if !slices.Contains(want.Names(), "merged."+n) {
			x, _ := base.Bytes(n)
			y, _ := got.Bytes(n)
			if !bytes.Equal(x, y) {
				t.Errorf("%s is not that of the base", n)
			}
			continue
		}

		x, y := decoded(t, want, "merged."+n), decoded(t, got, n)
		for i := range x {
			if d := math.Abs(float64(x[i]) - float64(y[i])); d > 1e-6 {
				t.Errorf("%s: element %d is %g, want %g", n, i, y[i], x[i])
				break
			}
		}
	}
}

func checkBF16(t *testing.T, base, dir string, want safetensors.Source) {
	t.Helper()

	for _, way := range []string{"plain", "safe"} {
		prefix := "merged_bf16_" + way + "."
		var half string
		elements, off := 0, 0
		for _, n := range want.Names() {
			name, ok := strings.CutPrefix(n, prefix)
			if !ok {
				continue
			}

			if half == "" {
				half = inBF16(t, base)
			}

			got := folded(t, half, dir, FoldOptions{Safe: way == "safe"})
			x, y := decoded(t, want, n), decoded(t, got, name)
			elements += len(x)

			for i := range x {
				if a, b := int(kernels.ToBF16(x[i])), int(kernels.ToBF16(y[i])); a != b {
					off++
					if a-b > 1 || b-a > 1 {
						t.Errorf("%s: element %d is %g, want %g", n, i, y[i], x[i])
					}
				}
			}
		}

		if off*1000 > elements {
			t.Errorf("%s: %d of %d elements differ", way, off, elements)
		}
		if elements > 0 {
			t.Logf("%s: %d of %d elements differ", way, off, elements)
		}
	}
}
