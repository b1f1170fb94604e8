package merge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// oracleDir is the folder of the reference merges.
func oracleDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("COMPRESS_ORACLE")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "oracle")
	}

	dir, err := filepath.Abs(filepath.Join(dir, "merge"))
	if err != nil {
		t.Fatal(err)
	}

	if _, err := os.Stat(filepath.Join(dir, "index.json")); err != nil {
		t.Skipf("%s is not there", dir)
	}

	return dir
}

// oracleCase is one reference merge.
type oracleCase struct {
	dir    string
	method string
	rule   string
	notes  map[string]any
}

func oracleCases(t *testing.T) map[string]oracleCase {
	t.Helper()
	root := oracleDir(t)
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	cases := map[string]oracleCase{}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		text, err := os.ReadFile(filepath.Join(dir, "notes.json"))
		if err != nil {
			continue
		}

		c := oracleCase{dir: dir}
		if err := json.Unmarshal(text, &c.notes); err != nil {
			t.Fatal(err)
		}

		c.method, _ = c.notes["method"].(string)
		c.rule, _ = c.notes["rule"].(string)
		cases[e.Name()] = c
	}

	return cases
}

// TestStaticMethodsOracle merges every case that is no mixture of experts and compares it by its rule.
func TestStaticMethodsOracle(t *testing.T) {
	n := 0
	for name, c := range oracleCases(t) {
		if c.method == "moe" {
			continue
		}

		n++
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			out := filepath.Join(t.TempDir(), "out")
			r, err := Read(filepath.Join(c.dir, "config.yaml"))
			if err != nil {
				t.Fatal(err)
			}

			// the cases' paths are relative to the folder above
			if r, err = Parse(filepath.Join(filepath.Dir(c.dir), "config.yaml"), r.Text()); err != nil {
				t.Fatal(err)
			}
			if _, err := Models(context.Background(), r, out, Options{Threads: 2, Seed: 42}); err != nil {
				t.Fatal(err)
			}

			compareOracle(t, c, out)
		})
	}

	t.Logf("%d cases", n)
}

// TestRefusedOracle: what the reference program refuses is refused, and so is what it accepts although it means
// nothing. A density above 1 counts as 1 there and here.
func TestRefusedOracle(t *testing.T) {
	root := oracleDir(t)
	text, err := os.ReadFile(filepath.Join(root, "errors.json"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("%s is not there", filepath.Join(root, "errors.json"))
	}

	if err != nil {
		t.Fatal(err)
	}

	var cases []struct{ Case, Why, Config string }
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}

	for _, c := range cases {
		dir := t.TempDir()
		r, err := Parse(filepath.Join(root, "config.yaml"), []byte(c.Config))
		if err == nil {
			_, err = Models(t.Context(), r, filepath.Join(dir, "out"), Options{})
		}

		harmless := strings.Contains(c.Why, "density above 1")
		if (err == nil) != harmless {
			t.Errorf("%s (%s): error is %v", c.Case, c.Why, err)
		}

		if err != nil {
			leftovers(t, dir)
		}
	}

	t.Logf("%d configurations", len(cases))
}

// compareOracle compares an output with a case.
func compareOracle(t *testing.T, c oracleCase, out string) {
	t.Helper()
	got, err := safetensors.OpenDir(out)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()

	want, err := safetensors.Open(filepath.Join(c.dir, "out.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()

	if all, ok := c.notes["tensors_in_full_output"].(float64); ok && int(all) != len(got.Names()) {
		t.Errorf("%d tensors, want %v", len(got.Names()), all)
	}

	compareConfig(t, c, out)
	skip, err := safetensors.Open(filepath.Join(c.dir, "ambiguous.safetensors"))
	if err == nil {
		defer skip.Close()
	} else if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}

	rows := rowMap(t, c, out)
	m := &moments{}
	for _, name := range want.Names() {
		wi, _ := want.Info(name)
		gi, ok := got.Info(name)
		if !ok || gi.DType != wi.DType || fmt.Sprint(gi.Shape) != fmt.Sprint(wi.Shape) {
			t.Errorf("%s: %v, want %v", name, gi, wi)
			continue
		}

		x, y := floats(t, got, name), floats(t, want, name)
		if rows != nil && len(wi.Shape) > 0 && wi.Shape[0] == int64(rows.size) {
			x = rows.permute(x)
		}

		var mask []byte
		if skip != nil {
			if b, err := skip.Bytes(name); err == nil {
				mask = b
			}
		}

		if c.rule == "moments" {
			m.add(t, c, name, x)
			continue
		}

		compareTensor(t, c, name, wi.DType, x, y, mask)
	}

	m.check(t, c)
}

// floats reads a tensor.
func floats(t *testing.T, src safetensors.Source, name string) []float32 {
	t.Helper()
	info, _ := src.Info(name)
	data, err := src.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}

	s, err := stream.NewMapped(data, info.DType, 0, nil)
	if err != nil {
		t.Fatal(err)
	}

	x := make([]float32, info.Elements())
	if err := s.Read(x, 0); err != nil {
		t.Fatal(err)
	}

	return x
}

// compareTensor applies the rule of a case to one tensor.
func compareTensor(t *testing.T, c oracleCase, name string, d safetensors.DType, x, y []float32, mask []byte) {
	t.Helper()
	var base []float32
	if c.rule == "bf16_steps" {
		base = c.base(t, name)
	}

	worst := 0.0
	at := 0
	bad := 0
	for i := range y {
		if mask != nil && mask[i] == 1 {
			continue
		}

		g, w := float64(x[i]), float64(y[i])
		tol := 0.0
		switch {
		case mask != nil && mask[i] == 2: // a tie at the cut moves the weights of the whole tensor
			tol = 0.05*math.Abs(w) + 1e-3
		case c.rule == "fp32":
			tol = 1e-6 + 1e-6*math.Abs(w)
		case c.rule == "bf16_once":
			tol = ulp(w, d) + 1e-7 // the second term: float32 rounding of terms that cancel
		case c.rule == "bf16_steps":
			tol = 2 * ulp(math.Max(math.Abs(w), math.Abs(float64(base[i]))), d)
		}

		if diff := math.Abs(g - w); !(diff <= tol) {
			bad++
			if diff-tol > worst || diff != diff {
				worst, at = diff-tol, i
			}
		}
	}

	if bad > 0 {
		t.Errorf("%s: %d of %d elements off, worst at %d: %v, want %v", name, bad, len(y), at, x[at], y[at])
	}
}

// base reads a tensor of the base model.
func (c oracleCase) base(t *testing.T, name string) []float32 {
	t.Helper()
	d, err := safetensors.OpenDir(filepath.Join(filepath.Dir(c.dir), "inputs", fmt.Sprint(c.notes["family"]), "base"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	return floats(t, d, name)
}

// ulp is the distance of neighbours of a type near x.
func ulp(x float64, d safetensors.DType) float64 {
	_, e := math.Frexp(x)
	switch d {
	case safetensors.BF16:
		return math.Ldexp(1, e-8)
	case safetensors.F16:
		return math.Ldexp(1, e-11)
	}
	return math.Ldexp(1, e-24)
}

// compareConfig checks what the notes say of the output's config.json.
func compareConfig(t *testing.T, c oracleCase, out string) {
	t.Helper()
	want, ok := c.notes["config_json"].(map[string]any)
	if !ok {
		return
	}

	text, err := os.ReadFile(filepath.Join(out, "config.json"))
	if err != nil {
		t.Fatal(err)
	}

	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got["dtype"] == nil {
		got["dtype"] = got["torch_dtype"]
	}

	recipe, err := os.ReadFile(filepath.Join(c.dir, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}

	for key, v := range want {
		switch { // what the original program takes from a model that it picks by chance
		case key == "dtype" && !strings.Contains(string(recipe), "dtype:"):
			v = "float32"
		case key == "tie_word_embeddings":
			v = !writesHead(t, out)
		}

		if fmt.Sprint(got[key]) != fmt.Sprint(v) {
			t.Errorf("config.json: %s is %v, want %v", key, got[key], v)
		}
	}
}

// writesHead reports whether an output holds a head of its own.
func writesHead(t *testing.T, out string) bool {
	t.Helper()
	d, err := safetensors.OpenDir(out)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, ok := d.Info("lm_head.weight")
	return ok
}

// order takes the rows of an output to the places of the reference, by the text of tokens.
type order struct {
	size int
	from []int
}

func (o *order) permute(x []float32) []float32 {
	width := len(x) / o.size
	y := make([]float32, len(x))
	for i, j := range o.from {
		copy(y[i*width:(i+1)*width], x[j*width:(j+1)*width])
	}
	return y
}

// rowMap compares vocabularies, which may differ in the ids of tokens that the base lacks.
func rowMap(t *testing.T, c oracleCase, out string) *order {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "vocab.json"))
	if err != nil {
		return nil
	}

	var want map[string]int
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}

	got := tokenIDs(t, out)
	if len(got) != len(want) {
		t.Errorf("%d tokens, want %d", len(got), len(want))
	}

	config, err := os.ReadFile(filepath.Join(out, "config.json"))
	if err != nil {
		t.Fatal(err)
	}

	var rows struct {
		Vocab int `json:"vocab_size"`
	}
	if err := json.Unmarshal(config, &rows); err != nil {
		t.Fatal(err)
	}

	o := &order{size: rows.Vocab, from: make([]int, rows.Vocab)}
	for i := range o.from {
		o.from[i] = i
	}

	for token, id := range want {
		at, ok := got[token]
		if !ok {
			t.Errorf("token %q is missing", token)
			continue
		}
		o.from[id] = at
	}

	return o
}

// tokenIDs reads a tokenizer.json.
func tokenIDs(t *testing.T, dir string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}

	var tok struct {
		Model struct {
			Vocab map[string]int `json:"vocab"`
		} `json:"model"`
		Added []struct {
			ID      int    `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
	}

	if err := json.Unmarshal(text, &tok); err != nil {
		t.Fatal(err)
	}

	ids := tok.Model.Vocab
	for _, a := range tok.Added {
		ids[a.Content] = a.ID
	}

	return ids
}

// moments collects what random methods did.
type moments struct{ kept, total int64 }

// add looks at a tensor of a random merge of the family's model a: elements where it equals the base count for nothing.
func (m *moments) add(t *testing.T, c oracleCase, name string, x []float32) {
	t.Helper()
	other, err := safetensors.OpenDir(filepath.Join(filepath.Dir(c.dir), "inputs", fmt.Sprint(c.notes["family"]), "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	b, y := c.base(t, name), floats(t, other, name)
	for i := range x {
		if y[i] == b[i] {
			continue
		}

		m.total++
		if x[i] != b[i] {
			m.kept++
		}
	}
}

// check compares the kept share with the reference's, within four standard deviations of their difference.
func (m *moments) check(t *testing.T, c oracleCase) {
	t.Helper()
	if c.rule != "moments" {
		return
	}

	stats := c.notes["check"].(map[string]any)["stats"].(map[string]any)
	share, ok := stats["kept_share"].(float64)
	if !ok || m.total == 0 {
		t.Fatalf("no share in the notes, %d elements", m.total)
	}

	got := float64(m.kept) / float64(m.total)
	if sigma := math.Sqrt(share * (1 - share) * (1/float64(m.total) + 1/stats["elements"].(float64))); math.Abs(
		share-got) > 4*sigma {
		t.Errorf("kept %v of %d elements, want %v ± %v", got, m.total, share, 4*sigma)
	}
}
