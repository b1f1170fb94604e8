package merge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// mixtureTensors draws experts, routers and a norm for each of two blocks, by the names of the table; fused
// tells their place in the other layout.
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
			bits := math.Float32bits(v)
			if d == safetensors.F32 {
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

	if err := os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"model_type":%q}`, a.ModelType),
		0o600); err != nil {
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
			n := width
			for _, d := range p.Shape {
				n *= d
			}
			list[p.Name] = fmt.Sprint(p.Shape) + string(data[p.First*width:p.First*width+n])
		}

		if parts == nil {
			list[name] = fmt.Sprint(info.Shape) + string(data)
		}
	}

	return list, fused
}

// TestExpertLayouts: a merge gives the same bits whether its models keep the experts of a block in one tensor
// or each in its own; the output does as the base, or else the first model.
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
				"merge_method: linear\nmodels:\n  - {model: %s, parameters: {weight: 0.3}}\n  - {model: %s, " +
					"parameters: {weight: 0.7}}\n",
				"merge_method: ties\nbase_model: %[1]s\nmodels:\n  - {model: %[2]s, parameters: {weight: 0.6, " +
					"density: 0.4}}\n",
				"merge_method: dare_ties\n" +
					"base_model: %[1]s\nmodels:\n  - {model: %[2]s, parameters: {weight: 0.6, density: 0.5}}\n",
				"merge_method: slerp\nbase_model: %[1]s\nparameters: {t: 0.4}\nmodels:\n  - model: %[1]s\n  - " +
					"model: %[2]s\n",
				"merge_method: passthrough\n" +
					"slices:\n  - sources: [{model: %[1]s, layer_range: [1, 2]}]\n  - sources: [{model: %[2]s, " +
					"layer_range: [0, 2]}]\n",
			} {
				var want map[string]string
				for i := range one {
					for j := range two {
						out := filepath.Join(t.TempDir(), "out")
						if _, err := Models(t.Context(), parse(t, fmt.Sprintf(recipe, one[i], two[j])), out,
							Options{}); err != nil {
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
	first, second := writeMixture(t, a, x, true, safetensors.F32),
		writeMixture(t, a, mixtureTensors(t, a, 2), false, safetensors.F32)
	text := "merge_method: linear\nmodels:\n  - {model: %s, parameters: {weight: 1}}\n  - {model: %s, parameters: " +
		"{weight: 1}}\n"
	out := filepath.Join(t.TempDir(), "out")
	r, err := Models(t.Context(), parse(t, fmt.Sprintf(text, first, second)), out, Options{})
	if err != nil || !slices.ContainsFunc(r.Warnings, func(s string) bool {
		return strings.Contains(s,
			"the output does as")
	}) {
		t.Fatal(r, err)
	}

	for name, v := range x {
		if strings.Contains(name, "experts.2.up_proj") { // an expert less in one layer
			delete(x, name)
			_ = v
		}
	}

	lacking := writeMixture(t, a, x, false, safetensors.F32)
	r, err = Models(t.Context(), parse(t, fmt.Sprintf(text, first, lacking)), filepath.Join(t.TempDir(), "out"),
		Options{Missing: "skip"})
	if err != nil || !slices.ContainsFunc(r.Warnings, func(s string) bool {
		return strings.Contains(s,
			"tensors of its own")
	}) {
		t.Fatal(r, err)
	}
}

// TestExpertLayoutsResume: a merge that is cut off anywhere is resumed to the same bytes when the experts of a
// block share tensors, of which only those are kept that have all their parts.
func TestExpertLayoutsResume(t *testing.T) {
	a, err := arch.Lookup("qwen3_moe")
	if err != nil {
		t.Fatal(err)
	}

	x, y := writeMixture(t, a, mixtureTensors(t, a, 1), true, safetensors.F32),
		writeMixture(t, a, mixtureTensors(t, a, 2), false, safetensors.F32)
	r := parse(t, fmt.Sprintf("merge_method: dare_ties\n"+
		"base_model: %[1]s\nmodels:\n  - {model: %[2]s, parameters: {weight: 0.6, density: 0.5}}\n", x, y))
	whole := filepath.Join(t.TempDir(), "out")
	if _, err := Models(t.Context(), r, whole, Options{}); err != nil {
		t.Fatal(err)
	}

	want := folder(t, whole)
	for stop := 1; stop < 22; stop += 4 { // of 23 parts and tensors
		out := filepath.Join(t.TempDir(), "out")
		whole := cutOff(t, r, out, stop)
		if len(whole) > stop {
			t.Errorf("stopped at %d: %q are kept", stop, whole)
		}
		if _, err := Models(t.Context(), r, out, Options{Resume: true}); err != nil {
			t.Fatal(err)
		}
		if d := differing(folder(t, out), want); len(d) > 0 {
			t.Errorf("stopped at %d: %v differ", stop, d)
		}
	}
}

// cutOff ends a merge once so many tensors or parts of them are written, and lists the tensors that lie in
// others which it keeps: all that lie in one of those, or none.
func cutOff(t *testing.T, r Recipe, dir string, stop int) (kept []string) {
	t.Helper()
	w, err := prepare(r, r.docs[0], nil, Options{})
	defer w.close()

	if err != nil {
		t.Fatal(err)
	}

	job, err := w.job()
	if err != nil {
		t.Fatal(err)
	}

	open := func() *output.Folder {
		out, err := output.Open(dir,
			output.Options{Resume: true, Job: job, Tensors: w.layout(), Joints: w.plan.Joints, Every: 1})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	out := open()
	groups, err := w.groups(out.Done)
	if err != nil {
		t.Fatal(err)
	}

	errStop := errors.New("cut off")
	o := w.streaming()
	n := 0
	written := map[string]bool{}
	o.Workers = 1
	o.Written = func(name string) error {
		n++
		if n > stop {
			return errStop
		}
		written[name] = true
		return out.Written(name)
	}

	if _, err := stream.Run(t.Context(), groups, out, o); !errors.Is(err, errStop) {
		t.Fatal(err)
	}
	if err := out.Suspend(); err != nil {
		t.Fatal(err)
	}

	out = open()
	for _, j := range w.plan.Joints {
		for _, p := range j.Parts {
			if out.Done(p.Name) {
				kept = append(kept, p.Name)
			}
			if out.Done(p.Name) && !written[p.Name] {
				t.Errorf("stopped at %d: %s is kept and was not written", stop, p.Name)
			}
		}
	}

	if err := out.Suspend(); err != nil {
		t.Fatal(err)
	}

	return kept
}

// TestMediateExpertsApart: a mediated model keeps each expert in a tensor of its own, whatever its models do,
// with the same bits, and says so.
func TestMediateExpertsApart(t *testing.T) {
	a, err := arch.Lookup("qwen3_moe")
	if err != nil {
		t.Fatal(err)
	}

	var want map[string]string
	for _, fused := range []bool{false, true} {
		var dirs []any
		for seed := range uint64(3) {
			dirs = append(dirs, writeMixture(t, a, mixtureTensors(t, a, seed), fused, safetensors.F32))
		}

		out := filepath.Join(t.TempDir(), "out")
		text := "merge_method: mediate\n" +
			"base_model: %s\nmodels:\n- {model: %s, name: one}\n- {model: %s, name: two}\nparameters: {select: " +
			"{top_k: 2}}\n"
		r, err := Models(t.Context(), parse(t, fmt.Sprintf(text, dirs...)), out, Options{})
		if err != nil {
			t.Fatal(err)
		}

		if said := slices.ContainsFunc(r.Warnings,
			func(s string) bool { return strings.Contains(s, "a tensor of its own") }); said != fused {
			t.Errorf("fused %v: warnings %q", fused, r.Warnings)
		}

		got, joined := apart(t, a, out)
		if joined || want != nil && len(differing(got, want)) > 0 || len(want) > len(got) {
			t.Errorf("joined %v, differing %v", joined, differing(got, want))
		}

		want = got
	}
}
