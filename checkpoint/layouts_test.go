package checkpoint

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// TestDiffOfLayouts: experts in one tensor equal the same ones in tensors of their own, and a difference is
// named by the expert's.
func TestDiffOfLayouts(t *testing.T) {
	a, err := arch.Lookup("olmoe")
	if err != nil {
		t.Fatal(err)
	}

	stored := safetensors.Info{
		Name: "model.layers.0.mlp.experts.gate_up_proj", DType: safetensors.U8,
		Shape: []int64{2, 4, 3},
	}
	data := make([]byte, 24)
	for i := range data {
		data[i] = byte(i)
	}

	var infos []safetensors.Info
	values := map[string][]byte{}
	for _, p := range a.Split(stored.Name, stored.Shape) {
		infos = append(infos, safetensors.Info{Name: p.Name, DType: stored.DType, Shape: p.Shape})
		values[p.Name] = data[p.First : p.First+6]
	}

	fused := writeTensors(t, []safetensors.Info{stored}, map[string][]byte{stored.Name: data})
	apart := writeTensors(t, infos, values)
	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	r, err := Diff(t.Context(), fused, apart, DiffOptions{Device: dev})
	if err != nil || !r.Equal || r.Same != 4 {
		t.Fatalf("%+v %v", r, err)
	}

	values[infos[3].Name][0]++ // of what data holds too
	changed := writeTensors(t, infos, values)
	r, err = Diff(t.Context(), changed, fused, DiffOptions{Device: dev})
	if err != nil || r.Equal || len(r.Tensors) != 1 ||
		r.Tensors[0].Name != "model.layers.0.mlp.experts.1.up_proj.weight" {
		t.Fatalf("%+v %v", r, err)
	}
}

func writeTensors(t *testing.T, infos []safetensors.Info, values map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range infos {
		if err := w.WriteTensor(info.Name, values[info.Name]); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"olmoe"}`), 0o600); err != nil {
		t.Fatal(err)
	}

	return dir
}

// TestInspectFused: experts in one tensor are listed one by one, with their roles and zeros.
func TestInspectFused(t *testing.T) {
	stored := safetensors.Info{
		Name: "model.layers.0.mlp.experts.down_proj", DType: safetensors.F32,
		Shape: []int64{2, 4, 3},
	}
	dir := writeTensors(t, []safetensors.Info{stored},
		map[string][]byte{stored.Name: append(make([]byte, 48), bytes.Repeat([]byte{1, 0, 0, 1}, 12)...)})
	config := `{"model_type":"olmoe","vocab_size":7,"hidden_size":4,"intermediate_size":3,"num_hidden_layers":1,"num_attention_heads":2,"num_experts":2,"num_experts_per_tok":1}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	r, err := Inspect(t.Context(), dir, InspectOptions{Device: dev})
	if err != nil {
		t.Fatal(err)
	}

	if r.Tensors != 1 || r.Parameters != 24 || len(r.List) != 2 || len(r.Roles) != 1 || r.Roles[0].Role != "down" ||
		*r.Sparsity != .5 {
		t.Fatalf("%+v", r)
	}

	for e, zeros := range []int64{12, 0} {
		x := r.List[e]
		if x.Name != fmt.Sprintf("model.layers.0.mlp.experts.%d.down_proj.weight", e) || *x.Zeros != zeros ||
			x.Stored != stored.Name || !slices.Equal(x.Shape, []int64{4, 3}) {
			t.Errorf("%+v", x)
		}
	}
}
