package weights_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/internal/weights/weightstest"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

const nano = "../../testdata/nano/base"

func open(t testing.TB, path string) *weights.Source {
	t.Helper()
	s, err := weights.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestValues: a quantised model has the names, types, shapes and values of the same model as floats, and so has its
// configuration.
func TestValues(t *testing.T) {
	for _, format := range weightstest.Formats() {
		t.Run(format, func(t *testing.T) {
			quantised, plain := weightstest.Quantise(t, nano, format)
			q := open(t, quantised)
			weightstest.Values(t, q, open(t, plain))
			if q.Quantisation() == "" || open(t, plain).Quantisation() != "" {
				t.Errorf("quantisation %q, of the floats %q", q.Quantisation(), open(t, plain).Quantisation())
			}

			got, err := weights.ReadFile(quantised, "config.json", 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(plain, "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(weightstest.Config(t, got), weightstest.Config(t, want)) {
				t.Errorf("config.json is %s, want %s", got, want)
			}
		})
	}
}

// TestGGUF: a GGUF file has the tensors of the checkpoint that it was made of, by its own path, by that of its folder,
// and split.
func TestGGUF(t *testing.T) {
	path, plain := weightstest.GGUF(t, nano)
	want := open(t, plain)
	for _, p := range []string{path, filepath.Dir(path)} {
		q := open(t, p)
		weightstest.Values(t, q, want)
		if !strings.HasPrefix(q.Quantisation(), "GGUF Q8_0") || q.Path() != p || q.Dir() != nil {
			t.Errorf("%s: quantisation %q, path %s", p, q.Quantisation(), q.Path())
		}
		if got := q.File("model.layers.1.self_attn.q_proj.weight"); got != path {
			t.Errorf("file %s, want %s", got, path)
		}
		if q.Decoded("model.embed_tokens.weight") || !q.Decoded("model.layers.1.self_attn.q_proj.weight") {
			t.Error("embeddings are decoded, or matrices are not")
		}
		for _, name := range q.Names() {
			if err := q.Release(name); err != nil {
				t.Error(err)
			}
		}
		weightstest.Values(t, q, want)

		for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
			got, errGot := weights.ReadFile(p, name, 1<<24)
			text, errText := os.ReadFile(filepath.Join(plain, name))
			if errGot != nil || errText != nil || !bytes.Equal(got, text) {
				t.Errorf("%s of %s: %v, %v", name, p, errGot, errText)
			}
		}
	}

	if got := weights.Place(path, "config.json"); got != path {
		t.Errorf("config.json is named %s", got)
	}
}

// TestGGUFSplit: any part of a split model is the model, and a folder of its parts alone too; one that lacks a part is
// refused with its name.
func TestGGUFSplit(t *testing.T) {
	whole, plain := weightstest.GGUF(t, nano)
	m, err := gguf.OpenModel(whole)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	dir := t.TempDir()
	var parts []string
	for _, name := range []string{"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"} {
		parts = append(parts, filepath.Join(dir, name))
	}
	names := m.Names()
	for i, path := range parts {
		split := gguf.Metadata{
			{Key: "split.no", Value: gguf.Of(uint16(i))},
			{Key: "split.count", Value: gguf.Of(uint16(len(parts)))},
			{Key: "split.tensors.count", Value: gguf.Of(int32(len(names)))},
		}
		if i == 0 {
			split = append(m.Metadata(), split...)
		}

		var infos []gguf.Info
		some := names[i*len(names)/len(parts) : (i+1)*len(names)/len(parts)]
		for _, name := range some {
			info, _ := m.Info(name)
			infos = append(infos, info)
		}
		w, err := gguf.Create(path, infos, split, gguf.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range some {
			data, err := m.Bytes(name)
			if err == nil {
				err = w.WriteTensor(name, data)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
	}

	for _, path := range append(slices.Clone(parts), dir) {
		s := open(t, path)
		weightstest.Values(t, s, open(t, plain))
		if files := s.Files(); !slices.Equal(files, parts) {
			t.Errorf("files %q, want %q", files, parts)
		}
		if _, err := weights.ReadFile(path, "tokenizer.json", 1<<24); err != nil {
			t.Error(err)
		}
	}

	if err := os.Remove(parts[1]); err != nil {
		t.Fatal(err)
	}
	_, err = weights.Open(t.Context(), dir)
	if !errors.Is(err, gguf.ErrMissingPart) || !strings.Contains(err.Error(), "m-00002-of") {
		t.Errorf("without its second part: %v", err)
	}
}

// TestGGUFFolders: a folder is a model by its one GGUF file where it has no others; the files beside that travel, but
// for those that are made of it.
func TestGGUFFolders(t *testing.T) {
	path, _ := weightstest.GGUF(t, nano)
	dir := filepath.Dir(path)
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	put("LICENSE", "a licence")
	put("config.json", `{"model_type": "llama"}`) // as some folders have it, without what a model needs
	put("mmproj-model.gguf", "no model")

	for name, want := range map[string]string{"LICENSE": "a licence", "config.json": "num_hidden_layers"} {
		got, err := weights.ReadFile(dir, name, 1<<20)
		if err != nil || !bytes.Contains(got, []byte(want)) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if _, err := weights.ReadFile(path, "LICENSE", 1<<20); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("beside the file itself: %v", err)
	}

	x, err := weights.OpenFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if got, err := x.In("additional_chat_templates"); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}

	put("second.gguf", "another")
	if _, err := weights.Open(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "name one of them") {
		t.Errorf("two models: %v", err)
	}
	if _, err := weights.Open(t.Context(), filepath.Join(dir, "second.gguf")); err == nil {
		t.Error("nonsense is opened")
	}
}

// TestReadAt: any part of a tensor, in any order, is that of the whole, and the end of a tensor is where that of one
// that is not decoded is.
func TestReadAt(t *testing.T) {
	for _, format := range append(weightstest.Formats(), "GGUF") {
		quantised, plain := weightstest.Quantised(t, nano, format)
		q, p := open(t, quantised), open(t, plain)
		names := q.Names()
		rapid.Check(t, func(t *rapid.T) {
			name := rapid.SampledFrom(names).Draw(t, "tensor")
			info, _ := q.Info(name)
			off := rapid.Int64Range(0, info.Size).Draw(t, "offset")
			n := rapid.IntRange(0, int(info.Size)+9).Draw(t, "length")
			got, want := make([]byte, n), make([]byte, n)
			a, errA := q.ReadAt(name, got, off)
			b, errB := p.ReadAt(name, want, off)
			if a != b || !errors.Is(errA, errB) || !bytes.Equal(got, want) {
				t.Fatalf("%d, %v; want %d, %v", a, errA, b, errB)
			}
		})

		name := "model.layers.0.mlp.up_proj.weight"
		info, _ := q.Info(name)
		for _, off := range []int64{-1, info.Size + 1} {
			if _, err := q.ReadAt(name, make([]byte, 1), off); !errors.Is(err, safetensors.ErrRange) {
				t.Errorf("offset %d: %v", off, err)
			}
		}
		if n, err := q.ReadAt(name, make([]byte, 3), info.Size-1); n != 1 || err != io.EOF {
			t.Errorf("%d, %v at the end", n, err)
		}
		if _, err := q.ReadAt("model.layers.0.mlp.up_proj.scales", make([]byte, 1), 0); err == nil && format == "gptq" {
			if _, ok := q.Info("model.layers.0.mlp.up_proj.scales"); ok {
				t.Error("a part of a matrix is a tensor of its own")
			}
		}
	}
}

// TestTogether: many readers of parts at once each get theirs, while others give memory back.
func TestTogether(t *testing.T) {
	for _, format := range []string{"gptq", "GGUF"} {
		quantised, plain := weightstest.Quantised(t, nano, format)
		q, p := open(t, quantised), open(t, plain)
		names := q.Names()
		g := mmapsafe.NewErrors()
		for seed := range uint64(8) {
			r := rng.New(seed, "readers")
			g.Go(func() error {
				for i := range uint64(300) {
					name := names[r.Below(4*i, len(names))]
					info, _ := q.Info(name)
					off := r.Below(4*i+1, int(info.Size))
					n := 1 + r.Below(4*i+2, int(info.Size)-off)
					got, want := make([]byte, n), make([]byte, n)
					_, errA := q.ReadAt(name, got, int64(off))
					_, errB := p.ReadAt(name, want, int64(off))
					if err := errors.Join(errA, errB); err != nil {
						return err
					}
					if !bytes.Equal(got, want) {
						return fmt.Errorf("%s: %d bytes from %d on differ", name, n, off)
					}
					if r.Below(4*i+3, 16) == 0 {
						if err := q.Release(name); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// TestFiles: what says how weights are quantised does not stand beside their values; everything else does as it is.
func TestFiles(t *testing.T) {
	quantised, _ := weightstest.Quantise(t, nano, "gptq")
	x, err := weights.OpenFiles(quantised)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()

	names, err := x.Names()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
	}
	if !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}

	for _, name := range names {
		f, err := x.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		stat, err := f.Stat()
		said, errSaid := x.Stat(name)
		data, errRead := io.ReadAll(f)
		if err := errors.Join(err, errSaid, errRead, f.Close()); err != nil {
			t.Fatal(err)
		}
		if int64(len(data)) != stat.Size() || stat.Size() != said.Size() || !stat.ModTime().Equal(said.ModTime()) ||
			stat.Name() != name || !stat.Mode().IsRegular() || !x.Inside(name) {
			t.Errorf("%s: %v and %v, %d bytes", name, stat, said, len(data))
		}

		stored, err := os.ReadFile(filepath.Join(quantised, name))
		if err != nil || bytes.Equal(data, stored) == (name == "config.json") {
			t.Errorf("%s: as it is stored: %v, %v", name, bytes.Equal(data, stored), err)
		}
	}

	for _, name := range []string{"quantize_config.json", "none.json"} {
		if _, err := x.Open(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := weights.ReadFile(quantised, name, 1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
		if x.Inside(name) {
			t.Errorf("%s is inside", name)
		}
	}
}

// old moves the settings of a folder to quantize_config.json, as AutoGPTQ wrote it.
func old(t *testing.T, dir, text string) {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	object, err := orderedjson.Parse(config)
	if err != nil {
		t.Fatal(err)
	}

	object.Delete("quantization_config")
	if config, err = object.Indent(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config.json": string(config), "quantize_config.json": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOldSettings: a model of GPTQ whose settings stand in quantize_config.json alone is that of its values, and what
// is wrong there is told of that file.
func TestOldSettings(t *testing.T) {
	quantised, plain := weightstest.Quantise(t, nano, "gptq")
	old(t, quantised, `{"bits": 4, "group_size": 32, "damp_percent": 0.1, "desc_act": true, "static_groups": false,
		"sym": true, "true_sequential": true, "model_name_or_path": null, "model_file_base_name": "model"}`)
	q := open(t, quantised)
	weightstest.Values(t, q, open(t, plain))
	if q.Quantisation() != "gptq" {
		t.Errorf("quantisation %q", q.Quantisation())
	}

	got, errGot := weights.ReadFile(quantised, "config.json", 1<<20)
	want, errWant := os.ReadFile(filepath.Join(plain, "config.json"))
	if err := errors.Join(errGot, errWant); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(weightstest.Config(t, got), weightstest.Config(t, want)) {
		t.Errorf("config.json is %s, want %s", got, want)
	}
	if _, err := weights.ReadFile(quantised, "quantize_config.json", 1<<20); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("quantize_config.json: %v", err)
	}

	for text, says := range map[string]string{
		`{`:             "not a JSON object",
		`{"bits": "4"}`: "gptq: bits: a string, where a whole number is expected",
		`{"bits": 4, "checkpoint_format": "marlin"}`: `checkpoint_format "marlin" (known: gptq, gptq_v2)`,
		`{"quant_method": "quip"}`:                   `quant_method "quip" (known: awq,`,
	} {
		old(t, quantised, text)
		_, err := weights.Open(t.Context(), quantised)
		c, ok := errors.AsType[*arch.ConfigError](err)
		if !ok || c.File != filepath.Join(quantised, "quantize_config.json") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}

		old(t, plain, text) // left over: the weights are not quantised
		if open(t, plain).Quantisation() != "" {
			t.Errorf("%s: floats are quantised", text)
		}
	}
}

// TestUnknown: a quantisation that cannot be decoded is refused by name, wherever it is met, and can still be looked
// at.
func TestUnknown(t *testing.T) {
	_, plain := weightstest.Quantise(t, nano, "gptq")
	path := filepath.Join(plain, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for config, says := range map[string]string{
		`{"quant_method": "quip"}`: `quant_method "quip" (known: awq,`,
		`{"quant_method": "gptq", "bits": 4, "sparsity_config": {"format": "sparse-bitmask"}}`:                               "both quantised and packed",
		`{"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}, "config_groups": {"a": 1}}`: "both quantised and packed",
		`{"quant_method": "awq", "version": "gemv", "bits": 4}`:                                                              `version "gemv"`,
		`[]`:                                    "config.json: quantization_config: a list, where an object is expected",
		`{"quant_method": "gptq", "bits": "4"}`: "gptq: bits: a string, where a whole number is expected",
	} {
		changed := bytes.Replace(text, []byte(`{`), []byte(`{"quantization_config": `+config+`,`), 1)
		if err := os.WriteFile(path, changed, 0o666); err != nil {
			t.Fatal(err)
		}

		_, errOpen := weights.Open(t.Context(), plain)
		_, errFile := weights.ReadFile(plain, "config.json", 1<<20)
		for _, err := range []error{errOpen, errFile} {
			c, ok := errors.AsType[*arch.ConfigError](err)
			if !ok || c.Key != "quantization_config" || !bytes.Contains([]byte(err.Error()), []byte(says)) {
				t.Errorf("%s: %v", config, err)
			}
		}

		if _, err := weights.ReadFile(plain, "tokenizer.json", 1<<20); err != nil {
			t.Errorf("%s: the tokenizer: %v", config, err)
		}
		s, err := weights.OpenStored(plain)
		if err != nil {
			t.Fatal(err)
		}
		if s.Close() != nil || s.Quantisation() != "" {
			t.Errorf("%s: stored as %q", config, s.Quantisation())
		}
	}

	// Settings for a model that is quantised when it is loaded, and bitmasks, are left to others.
	for _, config := range []string{
		`{"load_in_4bit": true}`, `null`,
		`{"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}}`,
	} {
		changed := bytes.Replace(text, []byte(`{`), []byte(`{"quantization_config": `+config+`,`), 1)
		if err := os.WriteFile(path, changed, 0o666); err != nil {
			t.Fatal(err)
		}
		if s := open(t, plain); s.Quantisation() != "" {
			t.Errorf("%s: %q", config, s.Quantisation())
		}
	}
}

// TestOpenedFolder: a folder that is a model by a GGUF file is noted as that file.
func TestOpenedFolder(t *testing.T) {
	file, _ := weightstest.GGUF(t, nano)
	dir := t.TempDir()
	inside := filepath.Join(dir, "m.gguf")
	if err := os.Link(file, inside); err != nil {
		t.Fatal(err)
	}

	var r weights.Record
	opened(t, &r, dir)
	if got := r.Models(); len(got) != 1 || got[0].Path != inside {
		t.Errorf("%v, want the path %s", got, inside)
	}
}

// opened opens models in a run with a record.
func opened(t *testing.T, r *weights.Record, paths ...string) {
	t.Helper()
	for _, path := range paths {
		s, err := weights.Open(weights.Recorded(t.Context(), r), path)
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// TestOpened: of two runs in one process at the same time each has a record of the quantised models that it opened
// itself, each once however often it does.
func TestOpened(t *testing.T) {
	one, plain := weightstest.Quantise(t, nano, "int-quantized")
	two, _ := weightstest.Quantise(t, nano, "fp8")
	var records [2]weights.Record
	var runs sync.WaitGroup
	for i, path := range []string{one, two} {
		runs.Go(func() {
			for range 20 {
				opened(t, &records[i], plain, path)
			}
		})
	}
	runs.Wait()

	for i, want := range []weights.Quantised{
		{Path: one, Form: "compressed-tensors int-quantized"}, {Path: two, Form: "fp8"},
	} {
		if got := records[i].Models(); !slices.Equal(got, []weights.Quantised{want}) {
			t.Errorf("%v, want %v", got, want)
		}
	}

	if _, quantised := open(t, plain).Quantised(); quantised {
		t.Error("floats are said to be quantised")
	}
}

// FuzzConfig: whatever a configuration says about quantised weights, opening the model and what stands beside it ends
// in reasonable time and memory, with tensors that can be read or with an error.
func FuzzConfig(f *testing.F) {
	for _, text := range []string{
		`{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}`,
		`{"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": -1}}`,
		`{"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}}`,
		`{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}`,
		`{"dtype": 3, "quantization_config": null}`, `[]`, `{"quantization_config": [`,
	} {
		f.Add(text)
	}

	dir, _ := weightstest.Quantise(f, nano, "gptq")
	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		_, _ = weights.ReadFile(dir, "config.json", 1<<20)

		s, err := weights.Open(t.Context(), dir)
		if err != nil {
			return
		}
		defer s.Close()
		for _, name := range s.Names() {
			info, ok := s.Info(name)
			if !ok {
				t.Fatalf("%q is listed, and is not there", name)
			}
			var b [16]byte
			if n, err := s.ReadAt(name, b[:], max(info.Size-16, 0)); err == nil && n != len(b) {
				t.Fatalf("%q: %d bytes without an error", name, n)
			}
		}
	})
}
