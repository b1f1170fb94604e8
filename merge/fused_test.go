package merge

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// mixtureTensors draws experts, routers and a norm for each of two blocks, by the names of the table; fused tells their place in the other layout.
func mixtureTensors(t *testing.T, a *arch.Arch, seed uint64) map[string][]float32 {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	list := map[string][]float32{"model.embed_tokens.weight": make([]float32, 12)}
	for l := range 2 {
		list[fmt.Sprintf("model.layers.%d.input_layernorm.weight", l)] = make([]float32, 4)
		for _, x := range a.Tensors {
			switch {
			case x.PerExpert():
				for e := range 3 {
					list[arch.Expand(x.Name, l, e)] = make([]float32, 20)
				}
			case x.Role == arch.Router:
				list[arch.Expand(x.Name, l, 0)] = make([]float32, 12)
			}
		}
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range list {
			if !yield(n) {
				return
			}
		}
	}) {
		for i := range list[name] {
			list[name][i] = float32(rng.NormFloat64())
		}
	}
	return list
}

// mixtureShape is the shape of one of those tensors.
func mixtureShape(name string, n int) []int64 {
	switch {
	case n == 4:
		return []int64{4}
	case n == 20 && (strings.Contains(name, "down_proj") || strings.Contains(name, "w2")):
		return []int64{4, 5}
	}
	return []int64{int64(n) / 4, 4}
}

// writeMixture writes a checkpoint, with the experts of a block in two tensors if fused is set.
func writeMixture(t *testing.T, a *arch.Arch, list map[string][]float32, fused bool, d safetensors.DType) string {
	t.Helper()
	dir := t.TempDir()
	values, shapes := map[string][]float32{}, map[string][]int64{}
	for name, x := range list {
		values[name], shapes[name] = x, mixtureShape(name, len(x))
	}
	for l := 0; fused && l < 2; l++ {
		joints, ok := a.Fuse(l, func(n string) ([]int64, bool) { s, ok := shapes[n]; return s, ok })
		if !ok {
			t.Fatal("cannot be fused")
		}
		for _, j := range joints {
			var all []float32
			for _, p := range j.Parts {
				all = append(all, list[p.Name]...)
				delete(values, p.Name)
			}
			values[j.Name], shapes[j.Name] = all, j.Shape
		}
	}
	var infos []safetensors.Info
	for name := range values {
		infos = append(infos, safetensors.Info{Name: name, DType: d, Shape: shapes[name]})
	}
	slices.SortFunc(infos, func(x, y safetensors.Info) int { return strings.Compare(x.Name, y.Name) })
	w, err := safetensors.CreateDir(dir, infos, map[string]string{"format": "pt"}, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		var data []byte
		for _, v := range values[info.Name] {
			if bits := math.Float32bits(v); d == safetensors.F32 {
				data = binary.LittleEndian.AppendUint32(data, bits)
			} else {
				data = binary.LittleEndian.AppendUint16(data, uint16(bits>>16))
			}
		}
		if err := w.WriteTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"model_type":%q}`, a.ModelType), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// apart gives a checkpoint's bytes by the names of the table, whatever its layout, and whether that is the fused one.
func apart(t *testing.T, a *arch.Arch, dir string) (list map[string]string, fused bool) {
	t.Helper()
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	list = map[string]string{}
	for _, name := range d.Names() {
		info, _ := d.Info(name)
		data, err := d.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		parts := a.Split(name, info.Shape)
		for _, p := range parts {
			fused = true
			width := int64(info.DType.Bits() / 8)
			n := p.Shape[0] * p.Shape[1] * width
			list[p.Name] = fmt.Sprint(p.Shape) + string(data[p.First*width:p.First*width+n])
		}
		if parts == nil {
			list[name] = fmt.Sprint(info.Shape) + string(data)
		}
	}
	return list, fused
}

// TestExpertLayouts: a merge gives the same bits whether its models keep the experts of a block in one tensor or each in its own; the
// output does as the base, or else the first model. A run that is cut off leaves whole tensors only and is resumed to the same bytes.
func TestExpertLayouts(t *testing.T) {
	for _, name := range []string{"mixtral", "olmoe", "qwen2_moe", "qwen3_moe"} {
		a, err := arch.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		x, y := mixtureTensors(t, a, 1), mixtureTensors(t, a, 2)
		for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
			one, two := [2]string{}, [2]string{}
			for i, fused := range []bool{false, true} {
				one[i], two[i] = writeMixture(t, a, x, fused, d), writeMixture(t, a, y, fused, d)
			}
			for _, recipe := range []string{
				"merge_method: linear\nmodels:\n  - {model: %s, parameters: {weight: 0.3}}\n  - {model: %s, parameters: {weight: 0.7}}\n",
				"merge_method: ties\nbase_model: %[1]s\nmodels:\n  - {model: %[2]s, parameters: {weight: 0.6, density: 0.4}}\n",
				"merge_method: dare_ties\nbase_model: %[1]s\nmodels:\n  - {model: %[2]s, parameters: {weight: 0.6, density: 0.5}}\n",
				"merge_method: slerp\nbase_model: %[1]s\nparameters: {t: 0.4}\nmodels:\n  - model: %[1]s\n  - model: %[2]s\n",
				"merge_method: passthrough\nslices:\n  - sources: [{model: %[1]s, layer_range: [1, 2]}]\n  - sources: [{model: %[2]s, layer_range: [0, 2]}]\n",
			} {
				var want map[string]string
				for i := range one {
					for j := range two {
						out := filepath.Join(t.TempDir(), "out")
						if _, err := Models(t.Context(), parse(t, fmt.Sprintf(recipe, one[i], two[j])), out, Options{}); err != nil {
							t.Fatalf("%s, %d, %d: %v\n%s", name, i, j, err, recipe)
						}
						got, fused := apart(t, a, out)
						if fused != (i == 1) {
							t.Errorf("%s, %d, %d: fused is %v\n%s", name, i, j, fused, recipe)
						}
						if want == nil {
							want = got
						}
						for n, data := range want {
							if got[n] != data {
								t.Errorf("%s, %d, %d: %s differs\n%s", name, i, j, n, recipe)
							}
						}
						if len(got) != len(want) {
							t.Errorf("%s, %d, %d: %d tensors, want %d", name, i, j, len(got), len(want))
						}
					}
				}
			}
		}
	}
}

// TestExpertLayoutsDiffer: experts that would not share a type stay tensors of their own, and that is said.
func TestExpertLayoutsDiffer(t *testing.T) {
	a, err := arch.Lookup("qwen3_moe")
	if err != nil {
		t.Fatal(err)
	}
	x := mixtureTensors(t, a, 1)
	first, second := writeMixture(t, a, x, true, safetensors.F32), writeMixture(t, a, mixtureTensors(t, a, 2), false, safetensors.F32)
	text := "merge_method: linear\nmodels:\n  - {model: %s, parameters: {weight: 1}}\n  - {model: %s, parameters: {weight: 1}}\n"
	out := filepath.Join(t.TempDir(), "out")
	r, err := Models(t.Context(), parse(t, fmt.Sprintf(text, first, second)), out, Options{})
	if err != nil || !slices.ContainsFunc(r.Warnings, func(s string) bool { return strings.Contains(s, "the output does as") }) {
		t.Fatal(r, err)
	}
	for name, v := range x {
		if strings.Contains(name, "experts.2.up_proj") { // an expert less in one layer
			delete(x, name)
			_ = v
		}
	}
	lacking := writeMixture(t, a, x, false, safetensors.F32)
	r, err = Models(t.Context(), parse(t, fmt.Sprintf(text, first, lacking)), filepath.Join(t.TempDir(), "out"), Options{Missing: "skip"})
	if err != nil || !slices.ContainsFunc(r.Warnings, func(s string) bool { return strings.Contains(s, "tensors of its own") }) {
		t.Fatal(r, err)
	}
}
