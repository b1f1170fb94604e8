package quantized

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
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
}
