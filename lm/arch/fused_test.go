package arch_test

import (
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm/arch"
)

// TestSplitAndFuse: what lies in a fused tensor has the names and shapes of the table, fills the tensor, and
// makes it again.
func TestSplitAndFuse(t *testing.T) {
	mixtures := 0
	for _, name := range arch.Known() {
		a, err := arch.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}

		stored, parameters := fusedShapes(a)
		shapes := map[string][]int64{}
		for from, shape := range stored {
			next := int64(0)
			for _, p := range a.Split(from, shape) {
				if p.From != from || p.First != next {
					t.Fatalf("%s: %+v does not begin at %d", name, p, next)
				}
				next += product(p.Shape)
				shapes[p.Name] = p.Shape
			}

			if next != product(shape) {
				t.Fatalf("%s: %s is filled up to %d", name, from, next)
			}
		}

		if len(shapes) == 0 {
			continue
		}

		mixtures++
		lookup := func(n string) ([]int64, bool) { s, ok := shapes[n]; return s, ok }
		joints, ok := a.Fuse(12, lookup)
		if !ok || len(shapes) != parameters || len(joints) != len(stored) {
			t.Fatalf("%s: %v %v %v", name, shapes, joints, ok)
		}

		for _, j := range joints {
			if !slices.Equal(j.Shape, stored[j.Name]) || !slices.EqualFunc(j.Parts, a.Split(j.Name, j.Shape),
				func(p, q arch.Part) bool { return p.Name == q.Name && p.First == q.First }) {
				t.Errorf("%s: %+v", name, j)
			}
		}

		if joints, ok := a.Fuse(11, lookup); !ok || joints != nil {
			t.Errorf("%s: a block without experts: %v %v", name, joints, ok)
		}

		lost := joints[0].Parts[1].Name // of the first expert: its up matrix, or of the second expert where it has one
		delete(shapes, lost)
		joints, ok = a.Fuse(12, lookup)
		if ok && len(joints[0].Parts) > 1 {
			t.Errorf("%s: fused without %s", name, lost)
		}
	}

	if mixtures != 12 {
		t.Errorf("%d architectures have a fused layout, not 12", mixtures)
	}
}

// fusedShapes gives the fused tensors of block 12, of three experts, and how many parameters they hold.
func fusedShapes(a *arch.Arch) (stored map[string][]int64, parameters int) {
	stored = map[string][]int64{}
	for _, x := range a.Tensors {
		if !x.PerExpert() || x.Fused == "" {
			continue
		}

		parameters += 3
		name := arch.Expand(x.Fused, 12, 0)
		switch shape := stored[name]; {
		case len(x.Shape) == 1:
			stored[name] = []int64{3, 5}
		case shape != nil:
			shape[1] *= 2
		default:
			stored[name] = []int64{3, 5, 4}
		}
	}

	return stored, parameters
}

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// TestSplitRouter: Mixtral's router has another name beside fused experts.
func TestSplitRouter(t *testing.T) {
	a := arch.OfText([]byte(`{"model_type":"mixtral"}`))
	p := a.Split("model.layers.0.mlp.gate.weight", []int64{8, 4})
	if len(p) != 1 || p[0].Name != "model.layers.0.block_sparse_moe.gate.weight" ||
		!slices.Equal(p[0].Shape, []int64{8, 4}) {
		t.Error(p)
	}
}

// TestSplitAlso: Granite's experts and router have other names in memory than in files; the parameters are the same
// ones.
func TestSplitAlso(t *testing.T) {
	for _, model := range []string{"granitemoe", "granitemoeshared", "granitemoehybrid"} {
		a, err := arch.Lookup(model)
		if err != nil {
			t.Fatal(err)
		}

		for also, name := range map[string]string{
			"experts.gate_up_proj": "input_linear.weight",
			"experts.down_proj":    "output_linear.weight",
		} {
			const where = "model.layers.3.block_sparse_moe."
			got, want := a.Split(where+also, []int64{3, 8, 5}), a.Split(where+name, []int64{3, 8, 5})
			if len(got) == 0 || !slices.EqualFunc(got, want, func(p, q arch.Part) bool {
				same := p.Name == q.Name && slices.Equal(p.Shape, q.Shape) && p.First == q.First
				return same && p.From == where+also && q.From == where+name
			}) {
				t.Errorf("%s: %+v, want %+v", model, got, want)
			}
		}

		p := a.Split("model.layers.3.block_sparse_moe.router.weight", []int64{4, 6})
		if len(p) != 1 || p[0].Name != "model.layers.3.block_sparse_moe.router.layer.weight" {
			t.Errorf("%s: %+v", model, p)
		}
	}
}

// TestSplitStrange: what only looks like a fused tensor is none.
func TestSplitStrange(t *testing.T) {
	a := arch.OfText([]byte(`{"model_type":"qwen3_moe"}`))
	for name, shape := range map[string][]int64{
		"model.layers.0.mlp.experts.gate_up_proj":                    {2, 3, 4},
		"model.layers.1.mlp.experts.gate_up_proj":                    {1 << 40, 2, 0},
		"model.layers.2.mlp.experts.gate_up_proj":                    {1 << 40, 2, 1},
		"model.layers.3.mlp.experts.down_proj":                       {4, 4},
		"model.layers.01.mlp.experts.down_proj":                      {1, 4, 4},
		"model.layers.99999999999999999999999.mlp.experts.down_proj": {1, 4, 4},
		"model.layers.4.mlp.experts.down_proj.weight":                {1, 4, 4},
	} {
		if p := a.Split(name, shape); p != nil {
			t.Errorf("%s %v: %d parts", name, shape, len(p))
		}
	}

	if arch.OfText([]byte(`{"model_type":"none"}`)) != nil || arch.OfText([]byte(`{`)) != nil {
		t.Error("a table for no architecture")
	}
}

// FuzzSplit: whatever a tensor is called and whatever its shape, the parameters in it follow one another, fill
// it, and make it again.
func FuzzSplit(f *testing.F) {
	var tables []*arch.Arch
	for _, name := range arch.Known() {
		a, err := arch.Lookup(name)
		if err != nil {
			f.Fatal(err)
		}

		tables = append(tables, a)
		f.Add(uint8(len(tables)-1), "model.layers.3.mlp.experts.gate_up_proj", int64(3), int64(10), int64(4), true)
		f.Add(uint8(len(tables)-1), "model.layers.12.mlp.experts.down_proj", int64(3), int64(4), int64(5), true)
	}

	f.Add(uint8(0), "model.layers.0.mlp.gate.weight", int64(1<<62), int64(-2), int64(1<<40), false)
	f.Add(uint8(1), "model.layers.-1.mlp.experts.down_proj", int64(1), int64(4), int64(5), true)
	f.Fuzz(func(t *testing.T, table uint8, name string, x, y, z int64, three bool) {
		defer fuzzlimit.Watch(t, len(name)+1<<10)()

		if max(x, y, z) > 1<<20 {
			return // no file has a tensor of that size
		}

		a, shape := tables[int(table)%len(tables)], []int64{x, y}
		if three {
			shape = append(shape, z)
		}

		parts := a.Split(name, shape)
		if parts == nil || !three || len(parts) == 1 && slices.Equal(parts[0].Shape, shape) {
			return
		}

		shapes, next := map[string][]int64{}, int64(0)
		for _, p := range parts {
			if p.From != name || p.First != next || shapes[p.Name] != nil {
				t.Fatalf("%+v does not begin at %d", p, next)
			}
			next += p.Shape[0] * p.Shape[1]
			shapes[p.Name] = p.Shape
		}

		if next != x*y*z {
			t.Fatalf("%v is filled up to %d", shape, next)
		}
	})
}
