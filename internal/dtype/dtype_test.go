package dtype_test

import (
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// TestTable: the vocabularies agree by name and size, and every other type is unknown.
func TestTable(t *testing.T) {
	torch := map[safetensors.DType]string{
		safetensors.F32: "float32", safetensors.BF16: "bfloat16", safetensors.F16: "float16",
		safetensors.F64: "float64",
	}

	known := 0
	for _, name := range safetensors.DTypeNames() {
		d, err := safetensors.ParseDType(name)
		if err != nil {
			t.Fatal(err)
		}

		want := torch[d]
		if dtype.IsFloat(d) != (want != "") || dtype.Torch(d) != want {
			t.Errorf("%s is %q", name, dtype.Torch(d))
		}
		if want == "" {
			continue
		}

		known++
		k := dtype.Of(d)
		if k.String() != name || k.Size() != dtype.Size(d) || dtype.Stored(k) != d {
			t.Errorf("%s is computed as %s", name, k)
		}
		if m := dtype.Matrix(d); m != k && d != safetensors.F64 || d == safetensors.F64 && m != 0 {
			t.Errorf("matrices of %s: %s", name, m)
		}
		if dtype.ParseTorch(want) != d || dtype.ParseTorch("torch."+want) != d {
			t.Errorf("%s is read as %s", want, dtype.ParseTorch(want))
		}
	}

	if known != len(torch) {
		t.Errorf("%d types, want %d", known, len(torch))
	}

	if dtype.Of(0) != 0 || dtype.Stored(kernels.U8) != 0 || dtype.Torch(0) != "" || dtype.ParseTorch("") != 0 ||
		dtype.ParseTorch("int8") != 0 {
		t.Error("something unknown is known")
	}
}
