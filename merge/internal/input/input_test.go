package input

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/safetensors"
)

// tensor is a small F32 tensor.
type tensor struct {
	shape  []int64
	values []float32
}

// ramp is a tensor of values that tell their places.
func ramp(scale float32, shape ...int64) tensor {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	t := tensor{shape: shape, values: make([]float32, n)}
	for i := range t.values {
		t.values[i] = scale * float32(i%17-8)
	}
	return t
}

func raw(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

func write(t *testing.T, path string, tensors map[string]tensor) {
	t.Helper()
	var infos []safetensors.Info
	for name, x := range tensors {
		infos = append(infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: x.shape})
	}

	w, err := safetensors.Create(path, infos, nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	for name, x := range tensors {
		if err := w.WriteTensor(name, raw(x.values)); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

var model = map[string]tensor{
	"model.layers.0.self_attn.q_proj.weight": ramp(1, 6, 4), // [out, in]
	"transformer.h.0.attn.c_attn.weight":     ramp(1, 4, 6), // [in, out]
	"model.embed_tokens.weight":              ramp(1, 9, 4),
	"lm_head.weight":                         ramp(1, 9, 4),
}

var lora = map[string]tensor{
	"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": ramp(0.5, 2, 4),
	"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": ramp(0.25, 6, 2),
	"base_model.model.model.embed_tokens.lora_embedding_A":           ramp(0.5, 2, 9),
	"base_model.model.model.embed_tokens.lora_embedding_B":           ramp(0.25, 4, 2),
	"base_model.model.lm_head.weight":                                ramp(3, 9, 4),
}

const loraConfig = `{"peft_type": "LORA", "r": 2, "lora_alpha": 3, "alpha_pattern": {"q_proj": 5}}`

// adapted opens the model with an adapter.
func adaptedModel(t *testing.T, config string, tensors map[string]tensor) (*Model, error) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "model.safetensors"), model)
	ad := filepath.Join(dir, "adapter")
	if err := os.Mkdir(ad, 0o777); err != nil {
		t.Fatal(err)
	}

	write(t, filepath.Join(ad, weightsName), tensors)
	if err := os.WriteFile(filepath.Join(ad, configName), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}

	m, err := Open(t.Context(), "m", dir, ad)
	if err == nil {
		t.Cleanup(func() { m.Close() })
	}

	return m, err
}

// read gets a tensor in pieces of an odd length.
func read(t *testing.T, m *Model, name string) []float32 {
	t.Helper()
	src, err := m.Source(name, 0)
	if err != nil {
		t.Fatal(err)
	}

	info, _ := m.Dir.Info(name)
	out := make([]float32, info.Elements())
	for first := 0; first < len(out); first += 5 {
		if err := src.Read(out[first:min(first+5, len(out))], int64(first)); err != nil {
			t.Fatal(err)
		}
	}

	return out
}

// product is scale·b·a for b [m, r] and a [r, n].
func product(b, a tensor, scale float64) []float64 {
	m := int(b.shape[0])
	r := int(b.shape[1])
	n := int(a.shape[1])
	out := make([]float64, m*n)
	for i := range m {
		for j := range n {
			for k := range r {
				out[i*n+j] += scale * float64(b.values[i*r+k]) * float64(a.values[k*n+j])
			}
		}
	}

	return out
}

func compare(t *testing.T, name string, got []float32, want func(i int) float64) {
	t.Helper()
	for i, v := range got {
		if math.Abs(float64(v)-want(i)) > 1e-5 { // values of some tens in float32
			t.Fatalf("%s: element %d is %v, want %v", name, i, v, want(i))
		}
	}
}

// TestAdapter: products are added at the right places with the right scales, saved modules take the model's
// place, and the rest stays.
func TestAdapter(t *testing.T) {
	m, err := adaptedModel(t, loraConfig, lora)
	if err != nil {
		t.Fatal(err)
	}

	q := "model.layers.0.self_attn.q_proj.weight"
	delta := product(lora["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"],
		lora["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"], 2.5)
	compare(t, q, read(t, m, q), func(i int) float64 { return float64(model[q].values[i]) + delta[i] })

	e := "model.embed_tokens.weight"
	// [4, 9]
	delta = product(lora["base_model.model.model.embed_tokens.lora_embedding_B"],
		lora["base_model.model.model.embed_tokens.lora_embedding_A"], 1.5)
	compare(t, e, read(t, m, e), func(i int) float64 { return float64(model[e].values[i]) + delta[i%4*9+i/4] })
	compare(t, "head", read(t, m, "lm_head.weight"), func(i int) float64 { return 3 * float64(i%17-8) })
	c := "transformer.h.0.attn.c_attn.weight"
	compare(t, c, read(t, m, c), func(i int) float64 { return float64(model[c].values[i]) })
	if raw, err := m.Raw(q); raw != nil || err != nil {
		t.Errorf("bytes of a changed tensor: %v, %v", raw, err)
	}
}

// TestFanInFanOut: layers stored [in, out] get the transposed product, and √r scales where the configuration says so.
func TestFanInFanOut(t *testing.T) {
	tensors := map[string]tensor{
		"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": ramp(0.5, 2, 4),
		"base_model.model.transformer.h.0.attn.c_attn.lora_B.weight": ramp(0.25, 6, 2),
	}

	m, err := adaptedModel(t,
		`{"peft_type": "LORA", "r": 2, "lora_alpha": 3, "fan_in_fan_out": true, "use_rslora": true}`, tensors)
	if err != nil {
		t.Fatal(err)
	}

	c := "transformer.h.0.attn.c_attn.weight"
	delta := product(ramp(0.25, 6, 2), ramp(0.5, 2, 4), 3/math.Sqrt2) // [out 6, in 4]
	compare(t, c, read(t, m, c), func(i int) float64 { return float64(model[c].values[i]) + delta[i%6*4+i/6] })
}

// TestAdapterFaults: what does not fit the model is refused, and named.
func TestAdapterFaults(t *testing.T) {
	with := func(name string, x tensor, drop string) map[string]tensor {
		out := map[string]tensor{}
		for n, v := range lora {
			if n != drop {
				out[n] = v
			}
		}

		if name != "" {
			out[name] = x
		}

		return out
	}

	a := "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
	for text, c := range map[string]struct {
		config  string
		tensors map[string]tensor
	}{
		"only LORA":          {`{"peft_type": "IA3"}`, lora},
		"use_dora":           {`{"peft_type": "LORA", "use_dora": true, "r": 2}`, lora},
		"unexpected end":     {`{"peft_type": `, lora},
		"configuration says": {`{"peft_type": "LORA", "r": 8, "lora_alpha": 3}`, lora},
		"other factor":       {loraConfig, with("", tensor{}, a)},
		"do not go together": {loraConfig, with(a, ramp(1, 3, 4), "")},
		"the product is":     {loraConfig, with(a, ramp(1, 2, 5), "")},
		"no such module":     {loraConfig, with("base_model.model.nothing.lora_A.weight", ramp(1, 2, 4), "")},
		"no such tensor":     {loraConfig, with("base_model.model.nothing.weight", ramp(1, 2, 4), "")},
		"the model's is":     {loraConfig, with("base_model.model.lm_head.weight", ramp(1, 8, 4), "")},
		"not known":          {loraConfig, with("base_model.model.lm_head.lora_magnitude_vector", ramp(1, 8), "")},
		"want a matrix":      {loraConfig, with(a, ramp(1, 8), "")},
	} {
		if _, err := adaptedModel(t, c.config, c.tensors); !errors.Is(err, ErrAdapter) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzConfig: no adapter configuration does harm.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(loraConfig))
	f.Add([]byte(`{"peft_type": "LORA", "r": -1, "rank_pattern": {"": 0}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, configName), text, 0o666); err != nil {
			t.Fatal(err)
		}
		a := &adapter{dir: dir, changes: map[string]*change{}}
		if err := a.readConfig(); err == nil && !strings.EqualFold(a.config.Type, "lora") {
			t.Errorf("accepted %q", a.config.Type)
		}
	})
}
