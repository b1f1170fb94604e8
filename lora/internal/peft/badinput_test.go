package peft_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/peft"
	"github.com/modelcompress/compress/safetensors"
)

// base is a made-up base: two matrices, a token table and the head.
var base = []adapter.Module{
	{
		Path: "model.embed_tokens", Tensor: "model.embed_tokens.weight", Block: -1, Role: "embed", In: 5, Out: 4,
		Table: true,
	},
	{
		Path: "model.layers.0.self_attn.q_proj", Tensor: "model.layers.0.self_attn.q_proj.weight",
		Bias: "model.layers.0.self_attn.q_proj.bias", Role: "q", In: 4, Out: 6,
	},
	{
		Path: "model.layers.1.self_attn.q_proj", Tensor: "model.layers.1.self_attn.q_proj.weight",
		Bias: "model.layers.1.self_attn.q_proj.bias", Block: 1, Role: "q", In: 4, Out: 6,
	},
	{Path: "lm_head", Tensor: "lm_head.weight", Block: -1, Role: "head", In: 4, Out: 5},
}

const (
	first  = "base_model.model.model.layers.0.self_attn.q_proj"
	second = "base_model.model.model.layers.1.self_attn.q_proj"
	table  = "base_model.model.model.embed_tokens"
)

// made is an adapter in the making.
type made struct {
	keys  map[string]any
	order []string
	shape map[string][]int64
	fill  map[string]float32
	dtype safetensors.DType
}

// good is an adapter that fits.
func good() *made {
	m := &made{
		keys:  map[string]any{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": []string{"q_proj"}},
		shape: map[string][]int64{}, fill: map[string]float32{}, dtype: safetensors.F32,
	}
	for _, p := range []string{first, second} {
		m.add(p+".lora_A.weight", 2, 4)
		m.add(p+".lora_B.weight", 6, 2)
	}
	return m
}

func (m *made) add(name string, shape ...int64) *made {
	if _, ok := m.shape[name]; !ok {
		m.order = append(m.order, name)
	}
	m.shape[name] = shape
	return m
}

func (m *made) drop(name string) *made {
	delete(m.shape, name)
	return m
}

func (m *made) set(key string, value any) *made {
	m.keys[key] = value
	return m
}

// write writes the two files.
func (m *made) write(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(m.keys)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(dir, peft.ConfigName), text, 0o666); err != nil {
		t.Fatal(err)
	}

	var infos []safetensors.Info
	for _, name := range m.order {
		if shape, ok := m.shape[name]; ok {
			infos = append(infos, safetensors.Info{Name: name, DType: m.dtype, Shape: shape})
		}
	}

	w, err := safetensors.Create(filepath.Join(dir, peft.WeightsName), infos, nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range infos {
		size, err := info.DType.ByteSize(info.Shape)
		if err != nil {
			t.Fatal(err)
		}

		data := make([]byte, size)
		if m.dtype == safetensors.F32 {
			x := make([]float32, info.Elements())
			for i := range x {
				x[i] = 0.25
			}
			if v, ok := m.fill[info.Name]; ok {
				x[len(x)-1] = v
			}

			err = dtype.Encode(data, x, info.DType)
		}

		if err := errors.Join(err, w.WriteTensor(info.Name, data)); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return dir
}

// TestBadInput: every way in which an adapter can be wrong is an error of its kind that names what it is about.
func TestBadInput(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		m    *made
		err  error
		says string
	}{
		"good":              {m: good()},
		"unknown key":       {good().set("sigma", 0.5), adapter.ErrConfig, `"sigma": not known`},
		"unknown empty key": {m: good().set("sigma", nil)},
		"another kind":      {good().set("peft_type", "IA3"), adapter.ErrUnsupported, "IA3"},
		"rank 0":            {good().set("r", 0), adapter.ErrConfig, `"r"`},
		"rank of text":      {good().set("r", "two"), adapter.ErrConfig, "not an integer"},
		"huge rank":         {good().set("r", 1<<40), adapter.ErrConfig, `"r"`},
		"rank and file":     {good().set("r", 3), adapter.ErrFile, "rank 2, but the configuration gives 3"},
		"half a rank": {
			good().set("rank_pattern", map[string]any{"q_proj": 1.5}), adapter.ErrConfig,
			"no rank",
		},
		"pattern": {
			good().set("alpha_pattern", map[string]any{"q_(": 2}), adapter.ErrConfig,
			"alpha_pattern",
		},
		"alpha":             {good().set("lora_alpha", []int{1}), adapter.ErrConfig, "not a number"},
		"dropout":           {good().set("lora_dropout", 2), adapter.ErrConfig, "lora_dropout"},
		"bias":              {good().set("bias", "some"), adapter.ErrConfig, "known: none, all, lora_only"},
		"empty target":      {good().set("target_modules", []string{""}), adapter.ErrConfig, "target_modules"},
		"target of numbers": {good().set("target_modules", []int{1}), adapter.ErrConfig, "target_modules"},
		"layers and pattern": {
			good().set("target_modules", "q_proj").set("layers_to_transform", []int{0}),
			adapter.ErrConfig, "layers_to_transform",
		},
		"lone layers_pattern": {good().set("layers_pattern", "layers"), adapter.ErrConfig, "layers_pattern"},
		"replicated layers": {
			good().set("layer_replication", [][]int{{0, 1}}), adapter.ErrUnsupported,
			"layer_replication",
		},
		"parameters": {
			good().set("target_parameters", []string{"experts"}), adapter.ErrUnsupported,
			"target_parameters",
		},
		"moved base": {good().set("init_lora_weights", "loftq"), adapter.ErrUnsupported, "loftq"},
		"gaussian":   {m: good().set("init_lora_weights", "gaussian")},
		"no target": {
			good().set("target_modules", []string{"w_proj"}), adapter.ErrFile,
			"does not target module model.layers.0",
		},
		"nothing at all": {
			(&made{keys: map[string]any{"peft_type": "LORA", "target_modules": []string{"w_proj"}}}).filled(),
			adapter.ErrTarget, "match no module",
		},
		"one of two targets": {m: good().set("target_modules", []string{"q_proj", "gate_proj"})},
		"lookahead":          {m: good().set("target_modules", "(?!x).*q_proj")},
		"regex":              {m: good().set("target_modules", `.*\.q_proj`)},
		"no A":               {good().drop(first + ".lora_A.weight"), adapter.ErrFile, "has no factor A"},
		"no B":               {good().drop(second + ".lora_B.weight"), adapter.ErrFile, "has no factor B"},
		"a smaller base": {good().drop(second+".lora_B.weight").drop(second+".lora_A.weight").add(
			first+".lora_A.weight", 2, 3), adapter.ErrBase, first + ".lora_A.weight"},
		"no factors": {
			good().drop(second + ".lora_B.weight").drop(second + ".lora_A.weight"), adapter.ErrFile,
			"model.layers.1.self_attn.q_proj is targeted",
		},
		"shape of A": {
			good().add(first+".lora_A.weight", 2, 5), adapter.ErrBase,
			`layers.0.self_attn.q_proj.lora_A.weight": adapter is for another base model: shape [2 5], the base asks for [2 4]`,
		},
		"shape of B": {good().add(second+".lora_B.weight", 2, 6), adapter.ErrBase, "the base asks for [6 2]"},
		"another base": {
			good().add("base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight", 2, 4),
			adapter.ErrBase, "layers.7",
		},
		"table's name":    {good().add(table+".lora_A.weight", 2, 5), adapter.ErrBase, "lora_embedding_A"},
		"matrix as table": {good().add(first+".lora_embedding_A", 2, 5), adapter.ErrBase, "no token table"},
		"strange part":    {good().add(first+".lora_E.weight", 2, 2), adapter.ErrUnsupported, "lora_E"},
		"no prefix":       {good().add("layers.0.weight", 2, 2), adapter.ErrFile, "base_model.model."},
		"magnitude":       {good().add(first+".lora_magnitude_vector", 6), adapter.ErrFile, "use_dora: false"},
		"no magnitude":    {good().set("use_dora", true), adapter.ErrFile, "use_dora is set"},
		"surplus whole": {
			good().add("base_model.model.model.norm.weight", 4), adapter.ErrFile,
			"do not ask for it",
		},
		"no whole": {
			good().set("modules_to_save", []string{"lm_head"}), adapter.ErrFile,
			`there is no tensor of "lm_head"`,
		},
		"whole shape": {
			good().set("modules_to_save", []string{"lm_head"}).add("base_model.model.lm_head.weight", 5, 5),
			adapter.ErrBase, "[5 5]",
		},
		"rows without ids": {
			good().add(table+".token_adapter.trainable_tokens_delta", 2, 4), adapter.ErrFile,
			"trainable_token_indices",
		},
		"rows beyond": {
			good().set("trainable_token_indices", []int{1, 5}).add(table+".token_adapter.trainable_tokens_delta", 2, 4),
			adapter.ErrBase, "token 5 of 5",
		},
		"NaN": {
			good().with(second+".lora_B.weight", nan), adapter.ErrFile,
			`layers.1.self_attn.q_proj.lora_B.weight": adapter file: element 11 is NaN`,
		},
		"infinity": {good().with(first+".lora_A.weight", float32(math.Inf(-1))), adapter.ErrFile, "-Inf"},
		"integers": {good().typed(safetensors.I32), adapter.ErrFile, "I32"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := peft.Read(c.m.write(t), base)
			switch {
			case c.err == nil && err != nil:
				t.Errorf("refused: %v", err)
			case c.err != nil && (!errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%v; want %v with %q", err, c.err, c.says)
			case err != nil && strings.Contains(err.Error(), "\n"):
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

// with puts a value into a tensor.
func (m *made) with(name string, v float32) *made {
	m.fill[name] = v
	return m
}

func (m *made) typed(t safetensors.DType) *made {
	m.dtype = t
	return m
}

// filled gives an adapter without any tensors its maps.
func (m *made) filled() *made {
	m.shape = map[string][]int64{}
	m.fill = map[string]float32{}
	m.dtype = safetensors.F32
	return m
}

// TestBadFolder: folders that hold no adapter, or only a pickled one, or a link that leaves them.
func TestBadFolder(t *testing.T) {
	empty := t.TempDir()
	if _, err := peft.Read(empty, base); !errors.Is(err, adapter.ErrFile) || !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}

	pickled := good().write(t)
	if err := os.Rename(filepath.Join(pickled, peft.WeightsName),
		filepath.Join(pickled, "adapter_model.bin")); err != nil {
		t.Fatal(err)
	}

	if _, err := peft.Read(pickled, base); !errors.Is(err, adapter.ErrUnsupported) {
		t.Error(err)
	}

	linked := t.TempDir()
	for _, name := range []string{peft.ConfigName, peft.WeightsName} {
		if err := os.Symlink(filepath.Join(good().write(t), name), filepath.Join(linked, name)); err != nil {
			t.Skip("no symbolic links here: ", err)
		}
	}

	if _, err := peft.Read(linked, base); err != nil { // links that are entries of the folder are its user's word
		t.Error(err)
	}

	for _, text := range []string{
		"", "[]", "{", `{"r":2,"r":2}`, `{"peft_type":"LORA"} x`,
		strings.Repeat(`{"a":`, 20000), `{"lora_alpha":1e999,"peft_type":"LORA"}`, `{"lora_alpha":NaN}`,
	} {
		dir := good().write(t)
		if err := os.WriteFile(filepath.Join(dir, peft.ConfigName), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := peft.Read(dir, base); !errors.Is(err, adapter.ErrConfig) {
			t.Errorf("%.30q: %v", text, err)
		}
	}
}

// TestNull: a key without a value is refused by its name, but for those that PEFT 0.21 declares as Optional,
// which say nothing then.
func TestNull(t *testing.T) {
	for _, key := range []string{
		"r", "lora_alpha", "lora_dropout", "bias", "fan_in_fan_out", "use_rslora", "use_dora", "lora_bias",
		"ensure_weight_tying", "peft_type",
	} {
		_, err := peft.Read(good().set(key, nil).write(t), base)
		if !errors.Is(err, adapter.ErrConfig) || !strings.Contains(err.Error(), fmt.Sprintf("key %q: null", key)) {
			t.Errorf("%s: %v", key, err)
		}
	}

	for _, key := range []string{
		"exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
		"trainable_token_indices",
		"task_type", "base_model_name_or_path", "revision", "auto_mapping", "megatron_config", "layer_replication",
		"init_lora_weights",
	} {
		if _, err := peft.Read(good().set(key, nil).write(t), base); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}

	for key, value := range map[string]any{
		"modules_to_save": false, "layers_to_transform": "1", "rank_pattern": []int{}, "trainable_token_indices": false,
		"use_dora": 0, "lora_alpha": "8",
		"task_type": 1, "base_model_name_or_path": []string{}, "target_modules": 3, "exclude_modules": true,
		"init_lora_weights": 2.5,
	} {
		_, err := peft.Read(good().set(key, value).write(t), base)
		if !errors.Is(err, adapter.ErrConfig) || !strings.Contains(err.Error(), fmt.Sprintf("%q", key)) {
			t.Errorf("%s: %v: %v", key, value, err)
		}
	}
}

// TestNotes: what is accepted without effect is said.
func TestNotes(t *testing.T) {
	for key, value := range map[string]any{"sigma": nil, "target_modules": []string{"q_proj", "gate_proj"}} {
		_, notes, err := peft.ReadNoted(good().set(key, value).write(t), base)
		if err != nil || len(notes) != 1 {
			t.Errorf("%s: %q, %v", key, notes, err)
		}
	}
}
