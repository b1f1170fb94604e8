package vocabulary_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer/trim"
	"github.com/modelcompress/compress/prune/vocabulary"
)

const (
	nano    = "../../testdata/nano/base"
	calib   = "../../testdata/nano/text/calib.txt"
	heldOut = "../../testdata/nano/text/test.txt"
)

func load(t *testing.T, dir string) *lm.Model {
	t.Helper()
	m, err := lm.Load(t.Context(), dir, ref.New(), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// copied is nano in a folder of its own, with other files.
func copied(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(nano)); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestTrim: the rows that stay have their bits, and logits and losses are those of the model.
func TestTrim(t *testing.T) {
	m, out := load(t, nano), filepath.Join(t.TempDir(), "out")
	r, err := vocabulary.Trim(t.Context(), m, vocabulary.Options{
		From: []string{calib}, HeldOut: []string{heldOut}, MinCount: 20, Out: out,
	})
	if err != nil {
		t.Fatal(err)
	}

	if r.Before != 768 || r.After%64 != 0 || r.After >= 700 || r.RowsAfter != r.After || r.Bytes <= r.BytesAfter {
		t.Errorf("%+v", r)
	}
	if !slices.Equal(r.Tensors, []string{"model.embed_tokens.weight"}) || len(r.Notes) != 0 {
		t.Errorf("%v %v", r.Tensors, r.Notes)
	}
	// plain loops over the same numbers in the same order
	if r.Logits == nil || !r.Logits.Equal || r.Logits.Sequences == 0 || r.Logits.Mass < 0.5 || r.Logits.Mass > 1 {
		t.Errorf("%+v", r.Logits)
	}
	h := r.HeldOut[0].Changed
	if h.Changed == 0 || h.Changed >= h.Documents || h.Lost < h.Changed || h.After <= h.Tokens {
		t.Errorf("%+v", h)
	}

	kept, err := vocabulary.Kept(r.Kept)
	if err != nil || len(kept) != r.RowsAfter || !slices.IsSorted(kept) {
		t.Fatal(len(kept), err)
	}
	small := load(t, out)
	if small.Config().Vocab != len(kept) {
		t.Error(small.Config().Vocab)
	}

	for _, name := range m.Tensors() {
		a, b := tensor(t, m, name), tensor(t, small, name)
		if name != "model.embed_tokens.weight" {
			if !bytes.Equal(a, b) {
				t.Errorf("%s differs", name)
			}
			continue
		}
		width := len(b) / len(kept)
		for i, old := range kept {
			if !bytes.Equal(b[i*width:][:width], a[int(old)*width:][:width]) {
				t.Fatalf("row %d is not row %d of before", i, old)
			}
		}
	}

	sameLosses(t, m, small, kept)
}

func tensor(t *testing.T, m *lm.Model, name string) []byte {
	t.Helper()
	info, ok := m.Info(name)
	if !ok {
		t.Fatal(name)
	}
	data := make([]byte, info.Size)
	if _, err := m.Source().ReadAt(name, data, 0); err != nil {
		t.Fatal(err)
	}
	return data
}

// sameLosses: losses of tokens that stayed fall, by the logarithm of the probability that the tokens that stayed had
// together, which is less than that of all.
func sameLosses(t *testing.T, m, small *lm.Model, kept []int32) {
	t.Helper()
	tok, err := small.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	w, err := corpus.Cut(t.Context(), calib, tok, corpus.CutOptions{SeqLen: 48, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}

	ids := w.IDs[0]
	old := make([]int32, len(ids))
	for i, id := range ids {
		old[i] = kept[id]
	}
	a, err := m.Forward(t.Context(), [][]int32{old}, lm.ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := small.Forward(t.Context(), [][]int32{ids}, lm.ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range a.LossPerToken[0] {
		const rounding = 1e-5 // of sums of up to 768 exponentials in F32
		if y := b.LossPerToken[0][i]; y > x+rounding {
			t.Errorf("token %d: a loss of %g, and %g before", i, y, x)
		}
	}
}

// TestSameBytes: a run that is interrupted and continued, and one again, give the same folder.
func TestSameBytes(t *testing.T) {
	m, dir := load(t, nano), t.TempDir()
	once := filepath.Join(dir, "once")
	o := vocabulary.Options{From: []string{heldOut}, MinCount: 30, Out: once}
	if _, err := vocabulary.Trim(t.Context(), m, o); err != nil {
		t.Fatal(err)
	}

	o.Out, o.Resume = filepath.Join(dir, "twice"), true
	ctx, cancel := context.WithCancel(t.Context())
	o.Progress = func(stage string, _ int64) {
		if stage == vocabulary.StageCompare {
			cancel()
		}
	}
	if _, err := vocabulary.Trim(ctx, m, o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	o.Progress = nil
	for range 2 { // the second finds everything done
		if _, err := vocabulary.Trim(t.Context(), m, o); err != nil {
			t.Fatal(err)
		}
	}

	for _, name := range []string{
		"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
		vocabulary.RecordFile,
	} {
		if !bytes.Equal(read(t, filepath.Join(once, name)), read(t, filepath.Join(o.Out, name))) {
			t.Errorf("%s differs", name)
		}
	}

	o.Out, o.Resume = once, false
	if _, err := vocabulary.Trim(t.Context(), m, o); !errors.Is(err, lm.ErrExists) {
		t.Error(err)
	}
}

// TestTemplate: what the chat template writes stays, also in the months to come, and conversations are counted as it
// writes them.
func TestTemplate(t *testing.T) {
	const template = `{{ "Quibble zygote " }}{{ strftime_now("%B") }}{% for m in messages %}{{ "<" + m.role + ">" + ` +
		`m.content }}{% endfor %}`
	dir := copied(t, map[string]string{"chat_template.jinja": template})
	chats := write(t, filepath.Join(t.TempDir(), "chats.jsonl"),
		`{"messages": [{"role": "user", "content": "What is five?"}, {"role": "assistant", "content": "A number."}]}`)

	out := filepath.Join(t.TempDir(), "out")
	m := load(t, dir)
	r, err := vocabulary.Trim(t.Context(), m, vocabulary.Options{From: []string{chats}, Out: out})
	if err != nil || len(r.Notes) != 0 || r.Texts[0].Changed.Documents != 1 {
		t.Fatalf("%+v %v", r, err)
	}

	was, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	v, err := trim.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	is, err := load(t, out).Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	kept, err := vocabulary.Kept(r.Kept)
	if err != nil {
		t.Fatal(err)
	}
	s := &trim.Selection{Old: kept, New: make([]int32, v.Tokenizer().VocabSize())}
	for i := range s.New {
		s.New[i] = int32(slices.Index(kept, int32(i)))
	}

	var c trim.Change
	for _, text := range []string{
		"Quibble zygote September<user>What is five?<assistant>A number.", "Quibble zygote January<system>Hello",
	} {
		if _, _, same, err := trim.Compare(&c, s, was, is, text, false); err != nil || !same {
			t.Errorf("%q is encoded differently (%v)", text, err)
		}
	}
}

// TestNotes: what a reader of the result has to know.
func TestNotes(t *testing.T) {
	dir := copied(t, map[string]string{
		"chat_template.jinja": "{% unknown %}", "tokenizer.model": "x", "token_mappings.json": "{}", "other.txt": "y",
	})
	foreign := write(t, filepath.Join(t.TempDir(), "foreign.txt"), "Çà et là, où l'été dörrt\n\nΩ\n")
	english := write(t, filepath.Join(t.TempDir(), "english.txt"), "one two three four five six seven\n")
	out := filepath.Join(t.TempDir(), "out")

	r, err := vocabulary.Trim(t.Context(), load(t, dir), vocabulary.Options{
		From: []string{english}, HeldOut: []string{english, calib, foreign}, Out: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{"the chat template cannot be read", calib + ": ", "another language"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %q among %q", want, notes)
		}
	}
	if strings.Contains(notes, english) {
		t.Errorf("%q", notes)
	}

	if !slices.Equal(r.LeftOut, []string{"token_mappings.json", "tokenizer.model"}) {
		t.Error(r.LeftOut)
	}
	for name, want := range map[string]bool{"tokenizer.model": false, "token_mappings.json": false, "other.txt": true} {
		if _, err := os.Stat(filepath.Join(out, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPadded: a table with more rows than the tokenizer has tokens, and a configuration that names such a row.
func TestPadded(t *testing.T) {
	config := strings.Replace(string(read(t, filepath.Join(nano, "config.json"))), `"pad_token_id": null`,
		`"pad_token_id": 700`, 1)
	dir := copied(t, map[string]string{
		"tokenizer.json": string(read(t, "../../lm/tokenizer/testdata/gpt2.json")), "config.json": config,
	})
	out := filepath.Join(t.TempDir(), "out")
	r, err := vocabulary.Trim(t.Context(), load(t, dir), vocabulary.Options{From: []string{calib}, Out: out})
	if err != nil {
		t.Fatal(err)
	}
	// 328 tokens and the named row; rows up to 384 come from behind the tokens.
	if r.Before != 328 || r.After != 328 || r.Rows != 768 || r.RowsAfter != 384 || !r.Logits.Equal {
		t.Errorf("%+v", r)
	}

	var c struct {
		Vocab int `json:"vocab_size"`
		PAD   int `json:"pad_token_id"`
	}
	if err := json.Unmarshal(read(t, filepath.Join(out, "config.json")), &c); err != nil || c.Vocab != 384 {
		t.Fatal(c, err)
	}
	if kept, err := vocabulary.Kept(r.Kept); err != nil || kept[c.PAD] != 700 {
		t.Error(c, err)
	}
}

// TestRefused: bad input is one error, and leaves nothing behind.
func TestRefused(t *testing.T) {
	tmp := t.TempDir()
	ids := write(t, filepath.Join(tmp, "ids.json"), "[[1, 2]]")
	blank := write(t, filepath.Join(tmp, "blank.jsonl"), `{"text": ""}`+"\n")
	bare := copied(t, nil)
	if err := os.Remove(filepath.Join(bare, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}

	empty := write(t, filepath.Join(tmp, "empty.txt"), "")
	for name, x := range map[string]struct {
		dir  string
		o    vocabulary.Options
		want error
	}{
		"no text":      {nano, vocabulary.Options{}, vocabulary.ErrNoText},
		"empty text":   {nano, vocabulary.Options{From: []string{empty}}, corpus.ErrEmpty},
		"empty record": {nano, vocabulary.Options{From: []string{calib, blank}}, vocabulary.ErrNoText},
		"ids":          {nano, vocabulary.Options{From: []string{ids}}, corpus.ErrOptions},
		"too rare":     {nano, vocabulary.Options{From: []string{calib}, MinCount: 1 << 40}, trim.ErrNone},
		"too small":    {nano, vocabulary.Options{From: []string{calib}, Size: 256}, trim.ErrSize},
		"all":          {nano, vocabulary.Options{From: []string{calib}, Size: 768}, trim.ErrNothing},
		"no tokenizer": {bare, vocabulary.Options{From: []string{calib}}, trim.ErrNoTokenizer},
		"no held-out": {
			nano, vocabulary.Options{From: []string{heldOut}, MinCount: 9, HeldOut: []string{"none"}}, os.ErrNotExist,
		},
	} {
		x.o.Out = filepath.Join(tmp, "out")
		if _, err := vocabulary.Trim(t.Context(), load(t, x.dir), x.o); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*out*")); len(left) != 0 {
		t.Error(left)
	}

	for _, text := range []string{"x", "3-1", "1-", "-", "1-99999999999"} {
		if _, err := vocabulary.Kept(text); !errors.Is(err, vocabulary.ErrKept) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
