package vocab

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// oracleFolder is where the reference cases lie.
func oracleFolder() string {
	if dir := os.Getenv("COMPRESS_ORACLE"); dir != "" {
		return filepath.Join(dir, "merge")
	}
	return filepath.Join("..", "..", "..", "..", "shared", "oracle", "merge")
}

// methods are those that the tests' recipes name, with what they need of each model.
var methods = []recipe.Method{
	{
		Name: "linear",
		Params: []recipe.Param{{
			Name: "weight", Type: recipe.Number, Scope: recipe.PerInput,
			Default: recipe.NumberValue(1),
		}, {Name: "normalize", Type: recipe.Bool, Default: recipe.BoolValue(true)}},
	},
	{Name: "slerp", Params: []recipe.Param{{Name: "t", Type: recipe.Number}}},
	{Name: "ties", Params: []recipe.Param{
		{Name: "weight", Type: recipe.Number, Scope: recipe.PerModel},
		{Name: "density", Type: recipe.Number, Scope: recipe.PerModel},
	}},
	{Name: "task_arithmetic", Params: []recipe.Param{{Name: "weight", Type: recipe.Number, Scope: recipe.PerModel}}},
	{Name: "arcee_fusion"},
	{Name: "passthrough"},
}

// opened is a recipe with its models.
type opened struct {
	plan   *plan.Plan
	inputs []plan.Input
	files  []*safetensors.Dir // as plan.Models
}

// open resolves a recipe whose models lie below root.
func open(t testing.TB, text, root string) *opened {
	t.Helper()
	docs, err := recipe.Parse("recipe.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}

	o := &opened{}
	for _, ref := range docs[0].References() {
		dir, err := recipe.Locate(ref.Model, recipe.Places{Recipe: root})
		if err != nil {
			t.Fatal(err)
		}

		files, err := safetensors.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { files.Close() })
		in := plan.Input{Ref: ref, Dir: dir}
		for _, name := range files.Names() {
			info, _ := files.Info(name)
			in.Tensors = append(in.Tensors, info)
		}

		if in.Config, err = os.ReadFile(filepath.Join(dir, "config.json")); err != nil {
			t.Fatal(err)
		}

		o.inputs, o.files = append(o.inputs, in), append(o.files, files)
	}

	if o.plan, err = plan.Resolve(docs[0], o.inputs, methods, plan.Options{}); err != nil {
		t.Fatal(err)
	}

	return o
}

// floats reads a float32 tensor.
func floats(t testing.TB, files safetensors.Source, name string) ([]float32, []int64) {
	t.Helper()
	data, err := files.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}

	info, _ := files.Info(name)
	out := make([]float32, len(data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}

	return out, info.Shape
}

// table arranges the rows of one source of a tensor, a few at a time.
func (o *opened) table(t testing.TB, v *Vocabulary, x *plan.Tensor, source int) ([]float32, int) {
	t.Helper()
	rows, err := v.For(x)
	if err != nil {
		t.Fatal(err)
	}

	width := int(x.Sources[0].Info.Shape[1])
	stored := make([][]float32, len(x.Sources))
	for i, s := range x.Sources {
		stored[i], _ = floats(t, o.files[s.Model], s.Info.Name)
	}

	out := make([]float32, int(v.Rows)*width)
	for first := 0; first < int(v.Rows); first += 7 {
		part := out[first*width : min(first+7, int(v.Rows))*width]
		err := rows.Fill(source, int64(first), part, width, func(s int, row int64, dst []float32) error {
			copy(dst, stored[s][int(row)*width:])
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	return out, width
}

// linear merges the arranged tables of a tensor with the recipe's weights.
func (o *opened) linear(t testing.TB, v *Vocabulary, x *plan.Tensor) ([]float64, int) {
	t.Helper()
	out := make([]float64, int(v.Rows)*int(x.Sources[0].Info.Shape[1]))
	total, width := 0.0, 0
	for i, s := range x.Sources {
		w := s.Params.Number("weight")
		total += w
		var table []float32
		table, width = o.table(t, v, x, i)
		for j, value := range table {
			out[j] += w * float64(value)
		}
	}

	for j := range out {
		out[j] /= total
	}

	return out, width
}

// TestOracleTokenizers: on every case with a tokenizer setting the output has the tokens of the reference, the base's
// under the same ids, and where the method is linear each token's row is the reference's, compared by its text.
func TestOracleTokenizers(t *testing.T) {
	root := oracleFolder()
	paths, _ := filepath.Glob(filepath.Join(root, "*", "vocab.json"))
	if len(paths) == 0 {
		t.Skipf("no cases in %s", root)
	}

	for _, path := range paths {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
			if err != nil {
				t.Fatal(err)
			}

			o := open(t, string(text), root)
			v, err := Build(o.plan, o.inputs)
			if err != nil {
				t.Fatal(err)
			}

			var want map[string]int
			vocabulary, err := os.ReadFile(path)
			if err != nil || json.Unmarshal(vocabulary, &want) != nil {
				t.Fatal(err)
			}

			if got, want := slices.Sorted(maps.Keys(v.out.ids)), slices.Sorted(maps.Keys(want)); !slices.Equal(got,
				want) {
				t.Fatalf("tokens %q, want %q", got, want)
			}

			for token, id := range v.perModel[o.plan.Donor].ids {
				if v.out.ids[token] != id && o.plan.Tokenizer.Vocabulary != recipe.FromRef {
					t.Errorf("%q has the id %d, the base's is %d", token, v.out.ids[token], id)
				}
			}

			o.plan.SetVocabulary(v.Rows)
			compareRows(t, o, v, want, dir)
		})
	}
}

// compareRows compares token table and head with the reference's output.
func compareRows(t *testing.T, o *opened, v *Vocabulary, want map[string]int, dir string) {
	files, err := safetensors.Open(filepath.Join(dir, "out.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()

	for i := range o.plan.Tensors {
		x := &o.plan.Tensors[i]
		if _, saved := files.Info(x.Name); x.VocabAxis < 0 || !saved {
			continue
		}

		ref, shape := floats(t, files, x.Name)
		if shape[0] != v.Rows {
			t.Errorf("%s has %d rows, want %d", x.Name, v.Rows, shape[0])
		}
		if o.plan.Method != "linear" {
			continue
		}

		got, width := o.linear(t, v, x)
		check := func(what string, row, refRow int) {
			for j := range width {
				// The reference adds up in float32.
				if a, b := got[row*width+j], float64(ref[refRow*width+j]); math.Abs(a-b) > 1e-6*(1+math.Abs(b)) {
					t.Errorf("%s: %s, column %d: %v, want %v", x.Name, what, j, a, b)
					return
				}
			}
		}

		for token, id := range want {
			check(fmt.Sprintf("%q", token), v.out.ids[token], id)
		}
		for row := len(v.ids); row < int(v.Rows); row++ {
			check("padding", row, row)
		}
	}
}

// model writes a small model into a folder: one token table of as many rows, width 2, with row i = (mark, i).
func model(t testing.TB, dir string, rows int, mark float32, tokenizerJSON, configJSON string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	w, err := safetensors.Create(filepath.Join(dir, "model.safetensors"),
		[]safetensors.Info{{Name: "model.embed_tokens.weight", DType: safetensors.F32, Shape: []int64{int64(rows), 2}}},
		nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	var data []byte
	for i := range rows {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(mark))
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(i)))
	}

	if err := w.WriteTensor("model.embed_tokens.weight", data); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	for name, text := range map[string]string{
		"tokenizer.json":        tokenizerJSON,
		"config.json":           fmt.Sprintf(`{"model_type":"tiny","tie_word_embeddings":true,"vocab_size":%d}`, rows),
		"tokenizer_config.json": configJSON,
	} {
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// words makes a WordLevel tokenizer of some words, the first being the unknown one, and some special tokens.
func words(plain, special []string) string {
	vocab, extra := map[string]int{}, []map[string]any{}
	for i, w := range plain {
		vocab[w] = i
	}

	for i, s := range special {
		extra = append(extra, map[string]any{
			"id": len(plain) + i, "content": s, "single_word": false, "lstrip": false,
			"rstrip": false, "normalized": false, "special": true,
		})
	}

	text, _ := json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": extra, "pre_tokenizer": map[string]any{"type": "Whitespace"},
		"model": map[string]any{"type": "WordLevel", "unk_token": plain[0], "vocab": vocab},
	})
	return string(text)
}

func TestTokensOfOneModelGetTheRowsOfTheRule(t *testing.T) {
	root := t.TempDir()
	model(t, filepath.Join(root, "base"), 4, 1, words([]string{"?", "a", "b"}, []string{"<s>"}), "")
	model(t, filepath.Join(root, "x"), 5, 2, words([]string{"?", "b", "c"}, []string{"<s>", "<x>"}), "")
	model(t, filepath.Join(root, "y"), 4, 3, words([]string{"?", "c", "a"}, []string{"<s>"}), "")
	o := open(t, `
merge_method: linear
base_model: base
models: [{model: base}, {model: x}, {model: y}]
tokenizer:
  source: union
  pad_to_multiple_of: 10
  tokens:
    b: {source: y, force: false}
    a: {source: {kind: model_token, model: x, token: c}, force: true}
    new: {source: {kind: model_token, model: x, token_id: 4}}
    empty: {}
`, root)

	_, err := Build(o.plan, o.inputs)
	if err == nil || err.Error() != `recipe.yaml:9:5: y does not have the token "b"` {
		t.Fatalf("%v", err)
	}

	o = open(t, `
merge_method: linear
base_model: base
models: [{model: base}, {model: x}, {model: y}]
tokenizer:
  pad_to_multiple_of: 10
  tokens:
    b: {source: x}
    a: {source: {kind: model_token, model: x, token: c}, force: true}
    new: {source: {kind: model_token, model: x, token_id: 4}}
    empty: {}
`, root)

	v, err := Build(o.plan, o.inputs)
	if err != nil {
		t.Fatal(err)
	}

	if want := []string{"?", "a", "b", "<s>", "c", "<x>", "new", "empty"}; !slices.Equal(v.ids, want) || v.Rows != 10 ||
		v.Tokens != 8 {
		t.Fatalf("%q %d", v.ids, v.Rows)
	}

	for source, want := range [][][2]float32{
		// ?       a       b       <s>     c         <x>     new     empty   padding
		{{1, 0}, {2, 2}, {1, 2}, {1, 3}, {2.5, 1.5}, {2, 4}, {2, 4}, {0, 0}},
		{{2, 0}, {2, 2}, {2, 1}, {2, 3}, {2, 2}, {2, 4}, {2, 4}, {0, 0}},
		{{3, 0}, {2, 2}, {2, 1}, {3, 3}, {3, 1}, {2, 4}, {2, 4}, {0, 0}},
	} {
		got, _ := o.table(t, v, &o.plan.Tensors[0], source)
		var mean [2]float64
		for i, row := range want {
			if got[2*i] != row[0] || got[2*i+1] != row[1] {
				t.Errorf("source %d, %q: %v, want %v", source, v.ids[i], got[2*i:2*i+2], row)
			}
			mean[0] += float64(row[0]) / 8
			mean[1] += float64(row[1]) / 8
		}

		for i := 8; i < 10; i++ {
			if got[2*i] != float32(mean[0]) || got[2*i+1] != float32(mean[1]) {
				t.Errorf("source %d, padding: %v, want %v", source, got[2*i:2*i+2], mean)
			}
		}
	}
}

func TestTokensWithoutARowAreTakenOut(t *testing.T) {
	root := t.TempDir()
	model(t, filepath.Join(root, "base"), 3, 1, words([]string{"?", "a", "b", "c"}, []string{"<s>"}),
		`{"added_tokens_decoder":{"4":{"content":"<s>"}},"x":1}`)
	model(t, filepath.Join(root, "x"), 5, 2, words([]string{"?", "b", "c"}, []string{"<s>", "<x>"}), "")
	o := open(t, "merge_method: linear\nbase_model: base\nmodels: [{model: x}]\ntokenizer_source: base\n", root)
	v, err := Build(o.plan, o.inputs)
	if err != nil || !slices.Equal(v.ids, []string{"?", "a", "b"}) {
		t.Fatalf("%v %q", err, v.ids)
	}

	out := t.TempDir()
	if err := v.WriteFiles(out); err != nil {
		t.Fatal(err)
	}

	tok, err := tokenizer.Load(out)
	if err != nil || tok.VocabSize() != 3 {
		t.Errorf("%v", err)
	}

	config, err := os.ReadFile(filepath.Join(out, "tokenizer_config.json"))
	if err != nil || string(config) != "{\n  \"added_tokens_decoder\": {},\n  \"x\": 1\n}\n" {
		t.Errorf("%v %s", err, config)
	}
}

func TestUntouchedTokenizersAreCopied(t *testing.T) {
	root := t.TempDir()
	text := words([]string{"?", "a"}, nil) + "\n \n"
	model(t, filepath.Join(root, "base"), 2, 1, words([]string{"?", "z"}, nil), "")
	model(t, filepath.Join(root, "x"), 2, 1, text, `{"chat_template":"{{ 'a template of x' }}"}`)
	o := open(t, "merge_method: linear\nbase_model: base\nmodels: [{model: x}]\ntokenizer_source: x\n", root)
	v, err := Build(o.plan, o.inputs)
	if err != nil {
		t.Fatal(err)
	}

	out := t.TempDir()
	if err := v.WriteFiles(out); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(out, "tokenizer.json")); err != nil || string(got) != text {
		t.Errorf("%v %s", err, got)
	}
}

func TestChatTemplates(t *testing.T) {
	root := t.TempDir()
	tok := words([]string{"?", "a"}, nil)
	model(t, filepath.Join(root, "a"), 2, 1, tok, `{"chat_template":" {{ 'template one' }} "}`)
	model(t, filepath.Join(root, "b"), 2, 1, tok,
		`{"chat_template":[{"name":"tools","template":"t"},{"name":"default","template":"{{ 'template two' }}"}]}`)
	model(t, filepath.Join(root, "c"), 2, 1, tok, `{"chat_template":"unused"}`)

	if err := os.WriteFile(filepath.Join(root, "c", "chat_template.jinja"), []byte("{{ 'template two' }}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}

	for want, expected := range map[string]string{
		"auto":                                 "{{ 'template two' }}",
		"chatml":                               templates["chatml"],
		"'{{ a literal of some length }}'":     "{{ a literal of some length }}",
		"|-\n  {{ 'several lines' }}\n  {# #}": "{{ 'several lines' }}\n{# #}",
	} {
		o := open(t, "merge_method: linear\nmodels: [{model: a}, {model: b}, {model: c}]\nchat_template: "+want+"\n",
			root)
		v, err := Build(o.plan, o.inputs)
		if err != nil || v.Rows != 0 {
			t.Fatalf("%v %d", err, v.Rows)
		}

		out := t.TempDir()
		if err := v.WriteFiles(out); err != nil {
			t.Fatal(err)
		}

		file, err := os.ReadFile(filepath.Join(out, "chat_template.jinja"))
		if err != nil || string(file) != expected {
			t.Errorf("%s: %v %q", want, err, file)
		}

		if got, err := modelTemplate(out); err != nil || got != expected {
			t.Errorf("%s: %v %q", want, err, got)
		}
	}
}

func TestBadTokenizersAreNamed(t *testing.T) {
	root := t.TempDir()
	good := words([]string{"?", "a"}, nil)
	for name, text := range map[string]string{
		"not an object": "[]", "no model": "{}", "a vocabulary of words": `{"model":{"vocab":"a"}}`,
		"a negative id":             `{"model":{"vocab":{"a":-1}}}`,
		"a huge id":                 `{"model":{"vocab":{"a":99999999999}}}`,
		"added tokens as text":      `{"model":{"vocab":{"a":0}},"added_tokens":"x"}`,
		"an added token without id": `{"model":{"vocab":{"a":0}},"added_tokens":[{"content":"b"}]}`,
	} {
		dir := filepath.Join(root, strings.ReplaceAll(name, " ", "-"))
		model(t, filepath.Join(dir, "base"), 2, 1, text, "")
		model(t, filepath.Join(dir, "x"), 2, 1, good, "")
		o := open(t, "merge_method: linear\nbase_model: base\nmodels: [{model: x}]\ntokenizer_source: base\n", dir)
		if _, err := Build(o.plan, o.inputs); err == nil || !strings.Contains(err.Error(), "tokenizer.json") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
