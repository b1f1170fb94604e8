package ggufmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// asCheckpoint is a file as the checkpoint that it was made of.
type asCheckpoint struct{ m *Model }

func (a asCheckpoint) Names() []string { return a.m.Names() }

func (a asCheckpoint) File(string) string { return a.m.meta.file }

func (a asCheckpoint) Shape(name string) ([]int64, bool) {
	info, ok := a.m.Info(name)
	return info.Shape, ok
}

// reader gives rows of the parameters of a plan.
func reader(e *Export, m *Model) RowReader {
	return func(name string, dst []float32, first, n int) error {
		part := e.Stored(name)
		matrix := m.Matrix(part.From)
		all, err := matrix.Whole()
		if err != nil {
			return err
		}
		at := int(part.First) + first*len(dst)/n
		copy(dst, all[at:][:len(dst)])
		return nil
	}
}

// TestRoundTrip: a file of llama.cpp's converter, read as a checkpoint, is planned as that very file again, tensors and
// metadata, with the configuration that the file gives and with the one that the converter was given.
func TestRoundTrip(t *testing.T) {
	for _, folder := range []string{"testdata", os.Getenv("COMPRESS_GGUF")} {
		if folder == "" {
			continue
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.gguf"))
		if err != nil || len(files) == 0 {
			t.Fatal("no files in", folder, err)
		}
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".gguf"), func(t *testing.T) { roundTrip(t, file) })
		}
	}
}

func roundTrip(t *testing.T, file string) {
	g, err := gguf.OpenModel(file)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	m, err := New(g)
	if err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(strings.TrimSuffix(file, ".gguf") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var made checkpoint
	if err := json.Unmarshal(text, &made); err != nil {
		t.Fatal(err)
	}

	for _, config := range []string{string(m.text), string(made.Config)} {
		e, err := NewExport(Checkpoint{
			Path: "some/tiny", Tensors: asCheckpoint{m},
			ReadFile: func(name string) ([]byte, error) {
				if name == "config.json" {
					return []byte(config), nil
				}
				return nil, fs.ErrNotExist
			},
		}, ExportOptions{FileType: fileType(g)})
		if err != nil {
			t.Fatal(err)
		}
		compareMetadata(t, e.Metadata, g.Metadata())
		compareTensors(t, e, m, g)
	}
}

func fileType(g *gguf.Model) uint32 {
	v, _ := g.Metadata().Get("general.file_type")
	n, _ := v.Uint()
	return uint32(n)
}

// differences are keys of the converter's files that ours have otherwise, and why.
var differences = map[string]string{
	"tokenizer.ggml.model":         "files of testdata have no tokenizer, and say so",
	"tokenizer.ggml.add_bos_token": "is part of the tokenizer",
	"general.file_type":            "the converter forgets it for gptneox",
}

func compareMetadata(t *testing.T, have, want gguf.Metadata) {
	t.Helper()
	for _, e := range want {
		v, ok := have.Get(e.Key)
		if differences[e.Key] == "" && (!ok || v != e.Value) {
			t.Errorf("%s: %v %v, expected %v %v", e.Key, v.Kind(), v, e.Value.Kind(), e.Value)
		}
	}
	for _, e := range have {
		if _, ok := want.Get(e.Key); !ok && differences[e.Key] == "" {
			t.Errorf("%s: %v, which the converter does not write", e.Key, e.Value)
		}
	}
}

func compareTensors(t *testing.T, e *Export, m *Model, g *gguf.Model) {
	t.Helper()
	seen := map[string]bool{}
	offset := map[string]int{} // what has been compared of a fused tensor
	for _, target := range e.Tensors {
		want, ok := g.Info(target.Name)
		fused := fusedName.ReplaceAllString(target.Name, ".attn_qkv.")
		if !ok {
			want, ok = g.Info(fused)
			want.Shape = target.Shape
		}
		if !ok || !slices.Equal(target.Shape, want.Shape) {
			t.Errorf("%s: %v, expected %v", target.Name, target.Shape, want.Shape)
			continue
		}
		if (want.Type == gguf.F32) == target.Matrix && fileType(g) != 0 {
			t.Errorf("%s is %v, and matrix is %v", target.Name, want.Type, target.Matrix)
		}

		data, err := g.Bytes(want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if want.Name != target.Name {
			size, _ := want.Type.ByteSize(want.Shape)
			data = data[offset[fused]:][:size]
			offset[fused] += int(size)
		}

		seen[want.Name] = true
		for _, step := range []int{target.Rows(), 1, 3} {
			if have := bytesOf(t, e, m, target, want.Type, step); string(have) != string(data) {
				t.Errorf("%s of %v: other bytes, by %d rows", target.Name, target.Sources, step)
				break
			}
		}
	}

	for _, name := range g.Names() {
		if !seen[name] {
			t.Errorf("%s is not planned", name)
		}
	}
}

// fusedName finds the projections that the converter can be asked to write as one.
var fusedName = regexp.MustCompile(`\.attn_[qkv]\.`)

// bytesOf is the bytes of a tensor, made of so many rows at a time.
func bytesOf(t *testing.T, e *Export, m *Model, target *Target, as gguf.Type, step int) []byte {
	t.Helper()
	var data []byte
	for first := 0; first < target.Rows(); first += step {
		n := min(step, target.Rows()-first)
		rows := make([]float32, n*target.Cols())
		if err := target.ReadRows(rows, first, n, reader(e, m)); err != nil {
			t.Fatal(err)
		}
		encode, err := Plain(as)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := as.ByteSize([]int64{int64(len(rows))})
		part := make([]byte, size)
		if err := encode(part, rows, first); err != nil {
			t.Fatal(err)
		}
		data = append(data, part...)
	}
	return data
}

// shapesOf is the tensors of a checkpoint of testdata, without values.
type shapesOf map[string]described

func (s shapesOf) Names() []string { return slices.Sorted(maps.Keys(s)) }

func (s shapesOf) File(string) string { return "model.safetensors" }

func (s shapesOf) Shape(name string) ([]int64, bool) {
	d, ok := s[name]
	return d.shape, ok
}

// checkpoints reads what testdata says about its checkpoints, sorted by name.
func checkpoints(t testing.TB) (names []string, list []checkpoint) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no checkpoints", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var c checkpoint
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".json"))
		list = append(list, c)
	}
	return names, list
}

// planOf plans the file of tensors without values and a configuration.
func planOf(tensors shapesOf, config []byte) (*Export, error) {
	return NewExport(Checkpoint{
		Path: "tiny", Tensors: tensors,
		ReadFile: func(name string) ([]byte, error) {
			if name == "config.json" {
				return config, nil
			}
			return nil, fs.ErrNotExist
		},
	}, ExportOptions{})
}

// TestRefusedExports: what llama.cpp would compute otherwise is an error that names it, and so is what it lacks.
func TestRefusedExports(t *testing.T) {
	names, list := checkpoints(t)
	for _, c := range []struct{ name, old, new, word string }{
		{"llama", `"hidden_act": "silu"`, `"hidden_act": "gelu"`, "Activation"},
		{"llama", `"rope_type": "default"`, `"rope_type": "dynamic", "factor": 2.0`, `"dynamic"`},
		{"gemma2", `"query_pre_attn_scalar": 6`, `"query_pre_attn_scalar": 7`, "scales of attention"},
		{"gpt_oss", `"swiglu_limit": 7.0`, `"swiglu_limit": 5.0`, "(swiglu_limit) 5"},
		{"qwen3_moe", `"norm_topk_prob": true`, `"norm_topk_prob": false`, "norm_topk_prob"},
		{"llama", `"model_type": "llama"`, `"model_type": "gptj"`, ""},
	} {
		made := list[slices.Index(names, c.name)]
		text := strings.Replace(string(made.Config), c.old, c.new, 1)
		if text == string(made.Config) {
			t.Errorf("%s has no %s", c.name, c.old)
			continue
		}
		_, err := planOf(made.Tensors, []byte(text))
		if err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s with %s: %v", c.name, c.new, err)
			continue
		}
		oneLine(t, err)
	}

	// Windows that llama.cpp does not have are said: short texts do not show them.
	made := list[slices.Index(names, "starcoder2")]
	text := strings.Replace(string(made.Config), `"sliding_window": null`, `"sliding_window": 9`, 1)
	e, err := planOf(made.Tensors, []byte(text))
	if err != nil || !strings.Contains(e.Lost, "(sliding_window) [9,9]") {
		t.Error(e, err)
	}
	if e, err := planOf(made.Tensors, made.Config); err != nil || e.Lost != "" {
		t.Error(e, err)
	}

	made = list[slices.Index(names, "mixtral")]
	text = strings.Replace(string(made.Config), `"sliding_window": null`, `"sliding_window": 9`, 1)
	e, err = planOf(made.Tensors, []byte(text))
	if err != nil || !strings.Contains(e.Lost, "attention.sliding_window is 9") {
		t.Error(e, err)
	}
}

// TestSampling: how tokens are drawn is what the generation_config.json says.
func TestSampling(t *testing.T) {
	names, list := checkpoints(t)
	made := list[slices.Index(names, "llama")]
	e, err := NewExport(Checkpoint{
		Path: "tiny", Tensors: shapesOf(made.Tensors),
		ReadFile: func(name string) ([]byte, error) {
			switch name {
			case "config.json":
				return made.Config, nil
			case "generation_config.json":
				return []byte(`{"temperature": 0.6, "top_k": 20, "top_p": null, "do_sample": true}`), nil
			}
			return nil, fs.ErrNotExist
		},
	}, ExportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]gguf.Value{
		"general.sampling.temp": gguf.Of(float32(0.6)), "general.sampling.top_k": gguf.Of(int32(20)),
	} {
		if v, ok := e.Metadata.Get(key); !ok || v != want {
			t.Errorf("%s: %v, expected %v", key, v, want)
		}
	}
	if _, ok := e.Metadata.Get("general.sampling.top_p"); ok {
		t.Error("a null is written")
	}
}

// TestRowsByPieces: any rows are those of the whole, also across the matrices of a stack.
func TestRowsByPieces(t *testing.T) {
	names, list := checkpoints(t)
	for i, name := range names {
		e, err := planOf(list[i].Tensors, list[i].Config)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range e.Tensors {
			whole := rowsOf(t, e, list[i].Tensors, target, 0, target.Rows())
			for first := range target.Rows() {
				n := 1 + (first*7)%(target.Rows()-first)
				part := rowsOf(t, e, list[i].Tensors, target, first, n)
				if !slices.Equal(part, whole[first*target.Cols():][:len(part)]) {
					t.Fatalf("%s: %s: rows %d to %d differ from those of the whole", name, target.Name, first, first+n)
				}
			}
		}
	}
}

// rowsOf gives rows of a target whose checkpoint has a number of its own for every element.
func rowsOf(t *testing.T, e *Export, tensors shapesOf, target *Target, first, n int) []float32 {
	t.Helper()
	rows := make([]float32, n*target.Cols())
	err := target.ReadRows(rows, first, n, func(name string, dst []float32, first, n int) error {
		part := e.Stored(name)
		size := int64(1)
		for _, d := range tensors[part.From].shape {
			size *= d
		}
		at := part.First + int64(first*len(dst)/n)
		if first < 0 || at+int64(len(dst)) > size {
			t.Fatalf("%s: rows %d to %d are read", name, first, first+n)
		}
		for i := range dst {
			dst[i] = float32(at) + float32(i)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// FuzzExport gives any configuration to the writer, with the tensors of a checkpoint. What it plans can be read
// throughout; errors are one line.
func FuzzExport(f *testing.F) {
	_, list := checkpoints(f)
	for i, c := range list {
		f.Add(uint8(i), []byte(c.Config))
	}

	f.Fuzz(func(t *testing.T, which uint8, config []byte) {
		defer fuzzlimit.Watch(t, len(config))()

		tensors := list[int(which)%len(list)].Tensors
		e, err := planOf(tensors, config)
		if err != nil {
			oneLine(t, err)
			return
		}
		for _, target := range e.Tensors {
			rowsOf(t, e, tensors, target, 0, target.Rows())
		}
	})
}

// TestLocated: a value that cannot be written is said by its place in the checkpoint, also where rows stand in another
// order there, above each other's, or as columns.
func TestLocated(t *testing.T) {
	for _, c := range []struct{ model, source string }{
		{"llama", "model.layers.1.self_attn.q_proj.weight"},
		{"mixtral", "layers.1.block_sparse_moe.experts.1.w2.weight"},
		{"gpt2", "h.1.mlp.c_fc.weight"},
		{"phi3", "model.layers.0.mlp.gate_up_proj.weight"},
	} {
		config, params := subject(t, c.model)
		targets, err := targetsOf("x", config, params)
		if err != nil {
			t.Fatal(err)
		}

		found := 0
		for _, target := range targets {
			i := slices.IndexFunc(target.Sources, func(s string) bool { return strings.HasSuffix(s, c.source) })
			if i < 0 {
				continue
			}
			source := target.Sources[i]
			rows := make([]float32, target.Rows()*target.Cols())
			err := target.ReadRows(rows, 0, target.Rows(), func(name string, dst []float32, first, n int) error {
				clear(dst)
				width := len(dst) / n
				if name == source && first <= 5 && 5 < first+n {
					dst[(5-first)*width+3] = float32(math.NaN())
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if at := dtype.NonFinite(rows); at < 0 {
				continue // the element lies in another tensor
			}
			found++
			err = target.located(errors.New("it is NaN"), rows, 0)
			if want := fmt.Sprintf("it is NaN; in the model, element [5, 3] of %q", source); err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
		if found != 1 {
			t.Errorf("%s: %d tensors have %s", c.model, found, c.source)
		}
	}
}
