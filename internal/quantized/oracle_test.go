package quantized

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/safetensors"
)

// caseOf is one case of an oracle file: the tensors with its name in front, without it.
type caseOf struct {
	Tensors
	prefix string
}

func (c caseOf) Names() (names []string) {
	for _, name := range c.Tensors.Names() {
		if rest, ok := strings.CutPrefix(name, c.prefix); ok && rest != "want" {
			names = append(names, rest)
		}
	}
	return names
}

func (c caseOf) Info(name string) (safetensors.Info, bool) {
	info, ok := c.Tensors.Info(c.prefix + name)
	info.Name = name
	return info, ok
}

func (c caseOf) Bytes(name string) ([]byte, error) { return c.Tensors.Bytes(c.prefix + name) }

// oracle opens the file of oracle cases and their configurations, see testdata/make.py.
func oracle(t testing.TB) (*safetensors.File, map[string]json.RawMessage) {
	t.Helper()
	f, err := safetensors.Open("testdata/oracle.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })

	text, err := os.ReadFile("testdata/oracle.json")
	if err != nil {
		t.Fatal(err)
	}
	var configs map[string]json.RawMessage
	if err := json.Unmarshal(text, &configs); err != nil {
		t.Fatal(err)
	}
	return f, configs
}

// TestOracle: matrices of every format have the values that the libraries give them, bit for bit, in the libraries'
// types, decoded as a whole and in pieces.
func TestOracle(t *testing.T) {
	f, configs := oracle(t)
	seen := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		c, err := ParseConfig(configs[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m, err := Open(caseOf{f, name + "."}, c)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}

		if got := m.Names(); !slices.Equal(got, []string{"m.weight"}) {
			t.Errorf("%s: tensors %q", name, got)
			continue
		}
		matrix := m.Matrix("m.weight")
		seen[matrix.Format]++

		info, _ := f.Info(name + ".want")
		if matrix.DType != info.DType || !slices.Equal(info.Shape, []int64{int64(matrix.Rows), int64(matrix.Cols)}) {
			t.Errorf("%s: %s %d×%d, by the library %s %v", name, matrix.DType, matrix.Rows, matrix.Cols, info.DType,
				info.Shape)
			continue
		}

		data, err := f.Bytes(name + ".want")
		if err != nil {
			t.Fatal(err)
		}
		want := make([]float32, matrix.Rows*matrix.Cols)
		if err := dtype.Decode(want, data, info.DType); err != nil {
			t.Fatal(err)
		}
		compare(t, name, matrix, want)
	}

	for _, name := range FormatNames() {
		if seen[name] == 0 {
			t.Errorf("no case of %s", name)
		}
	}
}

// compare decodes a matrix at once, and again in pieces that fit no band, from the last one on.
func compare(t *testing.T, name string, m *Matrix, want []float32) {
	t.Helper()
	got, err := m.Whole()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Errorf("%s: row %d, column %d is %x, by the library %x", name, i/m.Cols, i%m.Cols, got[i], want[i])
			return
		}
	}

	const piece = 3
	for first := (m.Rows - 1) / piece * piece; first >= 0; first -= piece {
		n := min(piece, m.Rows-first)
		part := make([]float32, n*m.Cols)
		if err := m.Decode(part, first, n); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(part, want[first*m.Cols:][:len(part)]) {
			t.Errorf("%s: rows %d to %d differ when they are decoded alone", name, first, first+n-1)
			return
		}
	}

	compareCodes(t, name, m, want)
}

// compareCodes has what kernels make of rows in their bits, which begin and end anywhere, rounded to the matrix' type.
func compareCodes(t *testing.T, name string, m *Matrix, want []float32) {
	t.Helper()
	if m.Kernel() == 0 {
		return
	}

	for _, first := range []int{0, 1, m.Rows / 2, m.Rows - 1} {
		n := m.Rows - first
		if first == 1 {
			n = min(n, 3)
		}
		w, _, err := m.Codes(first, n)
		if err != nil || w.Format != m.Kernel() || !w.Consistent() {
			t.Fatalf("%s: rows %d to %d in their bits: %+v, %v", name, first, first+n-1, w, err)
		}

		got := make([]float32, n*m.Cols)
		ref.New().Ops().ExpandQuantised(kernels.MatOf(kernels.WrapF32(got), n, m.Cols), w)
		round(got, m.DType)
		for i, v := range want[first*m.Cols:][:len(got)] {
			if got[i] != v {
				t.Errorf("%s: row %d, column %d in its bits is %v, decoded %v", name, first+i/m.Cols, i%m.Cols, got[i],
					v)
				return
			}
		}
	}
}

// TestKernels: which matrices kernels multiply with as they are stored; the others are decoded.
func TestKernels(t *testing.T) {
	f, configs := oracle(t)
	kinds := map[string]map[kernels.QuantFormat]bool{}
	for name, text := range configs {
		c, err := ParseConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Open(caseOf{f, name + "."}, c)
		if err != nil {
			t.Fatal(err)
		}

		matrix := m.Matrix("m.weight")
		if kinds[matrix.Format] == nil {
			kinds[matrix.Format] = map[kernels.QuantFormat]bool{}
		}
		kinds[matrix.Format][matrix.Kernel()] = true
	}

	for format, want := range map[string][]kernels.QuantFormat{
		"pack-quantized": {0, kernels.Int4, kernels.Int8}, "int-quantized": {kernels.Int8},
		"gptq": {0, kernels.Int4, kernels.Int8}, "awq": {kernels.Int4}, "float-quantized": {0}, "fp8": {0},
		"bitsandbytes-nf4": {0},
	} {
		got := slices.Sorted(maps.Keys(kinds[format]))
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", format, got, want)
		}
	}
	for _, b := range blocks {
		k := BlockKernel(b.Name)
		if b != &IQ4_NL && k != 0 && (k.String() != b.Name || k.RowBytes(b.Elements) != b.Bytes) {
			t.Errorf("%s: %v", b.Name, k)
		}
	}
	if BlockKernel("Q4_K") != kernels.Q4_K || BlockKernel("IQ4_NL") != kernels.Q8_0 || BlockKernel("Int8") != 0 {
		t.Error("blocks go to another kernel")
	}
}

// TestKernelBlocks: IQ4_NL becomes blocks of Q8_0 with the same values, to the bit and with the sign of zeros; scales
// that are no numbers are refused under its own name, and blocks that a kernel has are given as they are.
func TestKernelBlocks(t *testing.T) {
	const n = 40000 // blocks: more than one thread makes
	data := make([]byte, n*IQ4_NL.Bytes)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	for b := range n {
		if exponent := &data[b*IQ4_NL.Bytes+1]; *exponent&0x7c == 0x7c {
			*exponent ^= 0x40
		}
	}

	blocks, view, err := KernelBlocks("IQ4_NL", data)
	if err != nil || view {
		t.Fatalf("view: %v, %v", view, err)
	}
	want, got := make([]float32, 32*n), make([]float32, 32*n)
	if err := errors.Join(IQ4_NL.Decode(want, data), Q8_0.Decode(got, blocks)); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("element %d: %v, want %v", i, got[i], want[i])
		}
	}

	data[7*IQ4_NL.Bytes+1] = 0x7c
	_, _, err = KernelBlocks("IQ4_NL", data)
	if !errors.Is(err, ErrNotFinite) || !strings.Contains(err.Error(), "IQ4_NL from element 224 on") {
		t.Error(err)
	}
	if same, view, err := KernelBlocks("Q4_0", data); err != nil || !view || &same[0] != &data[0] {
		t.Errorf("Q4_0 is not given as it is: %v", err)
	}
}
