package typemix

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/quantized"
)

// tensor is [name, shape, type] in testdata/mixes.json.
type tensor Tensor

func (t *tensor) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&t.Name, &t.Shape, &t.Type})
}

// oracle is what llama-quantize does to some models.
type oracle struct {
	Types map[string]string
	Cases map[string]struct {
		Architecture                    string
		Layers, Heads, KVHeads, Experts int

		Tensors []tensor // of the model
		Layer   []tensor // of each layer
		Mixes   map[string]string
	}
}

// TestOracle: every tensor has the type that llama-quantize gives it, with an importance and without, whatever the
// order of the tensors.
func TestOracle(t *testing.T) {
	text, err := os.ReadFile("testdata/mixes.json")
	if err != nil {
		t.Fatal(err)
	}
	var o oracle
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	named := map[byte]string{}
	for name, letter := range o.Types {
		named[letter[0]] = name
	}

	seen := map[string]bool{}
	for _, c := range o.Cases {
		var tensors []Tensor
		for _, one := range c.Tensors {
			tensors = append(tensors, Tensor(one))
		}
		for layer := range c.Layers {
			for _, one := range c.Layer {
				at := Tensor(one)
				at.Name = fmt.Sprintf("blk.%d.%s", layer, one.Name)
				tensors = append(tensors, at)
			}
		}
		model := Model{c.Architecture, c.Layers, c.Heads, c.KVHeads, c.Experts}
		for _, m := range mixes {
			for _, weighted := range []bool{false, true} {
				letters, ok := c.Mixes[m.Name+"+"]
				if !weighted || !ok {
					letters, ok = c.Mixes[m.Name]
				}
				if !ok {
					continue
				}
				seen[m.Name] = true
				check(t, m, model, tensors, weighted, func(i int) string { return named[letters[i]] })
			}
		}
	}

	for _, name := range Names() {
		if !seen[name] && name != "f32" {
			t.Errorf("no case of %s", name)
		}
	}
}

// check compares the types of a model.
func check(t *testing.T, m Mix, model Model, tensors []Tensor, weighted bool, want func(i int) string) {
	t.Helper()
	types, err := m.Types(model, tensors, weighted)
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for i, got := range types {
		if got != want(i) {
			wrong++
			if wrong < 4 {
				t.Errorf("%s of %+v, weighted %v: %s is %s, want %s", m.Name, model, weighted, tensors[i].Name, got,
					want(i))
			}
		}
	}

	reversed := slices.Clone(tensors)
	slices.Reverse(reversed)
	again, err := m.Types(model, reversed, weighted)
	slices.Reverse(again)
	if err != nil || !slices.Equal(again, types) {
		t.Errorf("%s of %+v: another order, other types: %v", m.Name, model, err)
	}
}

// TestEncodable: every type that a mixture can give is one that is written, with blocks of the size known here.
func TestEncodable(t *testing.T) {
	for name, size := range blockOf {
		b, ok := quantized.BlockNamed(name)
		if !ok || !b.Encodes() || uint64(b.Elements) != size {
			t.Errorf("%s: %+v", name, b)
		}
		for cols := uint64(16); cols < 600; cols += 16 {
			to, ok := quantized.BlockNamed(Fit(name, cols))
			if !ok || cols%uint64(to.Elements) != 0 {
				t.Errorf("%s for rows of %d elements becomes %s", name, cols, Fit(name, cols))
			}
		}
	}
}

// TestLayerUnknown: a matrix of experts whose name has no layer is an error, not a guess.
func TestLayerUnknown(t *testing.T) {
	m, _ := Named("q4_k_m")
	for _, name := range []string{"ffn_down_exps.weight", "blk.2.ffn_down_exps.weight"} {
		tensors := []Tensor{{Name: name, Shape: []uint64{256, 2, 4}, Type: "F16"}}
		if _, err := m.Types(Model{Layers: 2, Experts: 4}, tensors, false); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, ok := Named("Q4_K_M"); ok {
		t.Error("names are in lower case")
	}
}
