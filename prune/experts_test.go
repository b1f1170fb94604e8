package prune

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// TestFusedExperts: a mixture that keeps the experts of a block in one tensor is pruned expert by expert to the
// same weights and report as one that does not, and comes out in its own layout, also where every matrix is
// saved by itself.
func TestFusedExperts(t *testing.T) {
	split := mixtral().write(t, filepath.Join(t.TempDir(), "split"), nil)
	for name, o := range map[string]Options{
		"magnitude": {Metric: Magnitude(), Sparsity: .5},
		"wanda":     {Metric: Wanda(), Pattern: Pattern{2, 4}},
		"sparsegpt": {Metric: SparseGPT(), Sparsity: .4},
	} {
		var outs [2]string
		var reports [2]*Report
		for i, dir := range []string{split, together(t, split)} {
			outs[i] = filepath.Join(t.TempDir(), "out")
			reports[i] = prunedTo(t, load(t, dir, 1, lm.Options{}), windows(3, 9, 61), o, outs[i])
		}

		want, got := tensorsOf(t, together(t, outs[0])), tensorsOf(t, outs[1])
		if !maps.Equal(want, got) || !slices.Contains(slices.Collect(maps.Keys(got)),
			"model.layers.1.mlp.experts.gate_up_proj") {
			t.Errorf("%s: other weights", name)
		}

		if diff := cmp.Diff(reports[0].Tensors, reports[1].Tensors); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// together writes a checkpoint anew with the experts of every block in two tensors.
func together(t testing.TB, dir string) string {
	t.Helper()
	out := t.TempDir()
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(out, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}

	d, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	shape := func(name string) ([]int64, bool) { info, ok := d.Info(name); return info.Shape, ok }
	var infos []safetensors.Info
	data, inside := map[string][]byte{}, map[string]bool{}
	for l := range 2 {
		joints, ok := arch.OfText(text).Fuse(l, shape)
		if !ok || joints == nil {
			t.Fatalf("block %d cannot be fused", l)
		}

		for _, j := range joints {
			first, _ := d.Info(j.Parts[0].Name)
			infos = append(infos, safetensors.Info{Name: j.Name, DType: first.DType, Shape: j.Shape})

			for _, p := range j.Parts {
				bytes, err := d.Bytes(p.Name)
				if err != nil {
					t.Fatal(err)
				}
				data[j.Name], inside[p.Name] = append(data[j.Name], bytes...), true
			}
		}
	}

	for _, name := range d.Names() {
		info, _ := d.Info(name)
		if !inside[name] {
			if data[name], err = d.Bytes(name); err != nil {
				t.Fatal(err)
			}
			infos = append(infos, info)
		}
	}

	w, err := safetensors.CreateDir(out, infos, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range infos {
		if err := w.WriteTensor(info.Name, data[info.Name]); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return out
}
