package lm

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// nanoBase is the small model of the repository, which has a tokenizer.
var nanoBase = filepath.Join("..", "testdata", "nano", "base")

func TestSequenceLosses(t *testing.T) {
	s := &SequenceLosses{}
	for _, row := range [][]float64{{1, 2, 3}, {2, 3, 4}, {3, 4, 5}} {
		s.Add(row, nil)
	}
	// Window means 2, 3, 4: mean 3, standard deviation 1, so the error of the mean is 1/√3.
	if m, se := s.Mean(); math.Abs(m-3) > 1e-12 || se == nil || math.Abs(*se-1/math.Sqrt(3)) > 1e-12 || s.Tokens != 9 {
		t.Errorf("mean %v ± %v over %d tokens", m, se, s.Tokens)
	}
	if got := s.Means(); len(got) != 3 || got[0] != 2 || got[1] != 3 || got[2] != 4 {
		t.Errorf("means of the windows: %v", got)
	}

	s = &SequenceLosses{}
	s.Add([]float64{5, 7}, []int32{1, corpus.Ignore, 2})
	if m, se := s.Mean(); m != 7 || se != nil || s.Tokens != 1 {
		t.Errorf("mean %v over %d tokens: a token that is context only was counted", m, s.Tokens)
	}
}

// TestPerplexity: the figure is exp of the mean loss of the sequences as Forward gives it, whatever the batches; all of
// the work is told; labels that are context only do not count.
func TestPerplexity(t *testing.T) {
	ctx := context.Background()
	m := load(t, recipe{config: tiny()["llama"], seed: 3, std: 0.3}.write(t, t.TempDir()), cpuDevice(t, 2), Options{})

	ids := tokens(5, m.config.Vocab, 9, 4, 7, 2)
	w := corpus.New(ids, "made up")
	for _, labels := range [][][]int32{nil, ids} {
		w.Labels = nil
		for i, row := range labels {
			row = slices.Clone(row)
			row[i%len(row)] = corpus.Ignore
			w.Labels = append(w.Labels, row)
		}

		want, n := 0.0, 0
		var means []float64
		for i, row := range ids {
			o := ForwardOptions{}
			if w.Labels != nil {
				o.Labels = w.Labels[i : i+1]
			}
			r := forward(t, m, [][]int32{row}, o)
			want += r.Loss * float64(r.Counted)
			n += r.Counted
			means = append(means, r.Loss)
		}

		done := int64(0)
		r, err := m.Perplexity(ctx, w, func(more int64) { done += more })
		if err != nil {
			t.Fatal(err)
		}

		// Rows that run together are multiplied in other blocks, whose float32 sums of some 64 terms round apart.
		if math.Abs(r.NLL-want/float64(n)) > 2e-6 || r.Perplexity != math.Exp(r.NLL) || r.Tokens != int64(n) {
			t.Errorf("%v over %d tokens, want %v over %d", r.NLL, r.Tokens, want/float64(n), n)
		}
		for i, v := range r.WindowNLL {
			if math.Abs(v-means[i]) > 2e-6 {
				t.Errorf("sequence %d: %v, want %v", i, v, means[i])
			}
		}
		if *r.Stderr != *r.NLLStderr*r.Perplexity || r.Windows != len(ids) || r.Data.Hash != w.Hash {
			t.Errorf("%+v", r)
		}
		if done != m.LossWork(w) {
			t.Errorf("%d of %d is told", done, m.LossWork(w))
		}
	}
}

// TestPerplexityOfNothingFinite: a loss that is not finite is an error that says how to find the weights.
func TestPerplexityOfNothingFinite(t *testing.T) {
	m := load(t, recipe{config: tiny()["gpt2"]}.write(t, t.TempDir()), cpuDevice(t, 1), Options{})
	s := &SequenceLosses{}
	s.Add([]float64{1, math.Inf(1)}, nil)
	if _, err := s.Perplexity(m, corpus.Windows{}); err == nil || strings.Contains(err.Error(), "--") ||
		!strings.Contains(failure.Hint(err), "--verify") {
		t.Errorf("%v (%s)", err, failure.Hint(err))
	}
}

// TestFolderPerplexity: the functions of folders are what their parts are: cut as the options say, by default to the
// length that the model has, with its own tokenizer.
func TestFolderPerplexity(t *testing.T) {
	ctx := context.Background()
	text := filepath.Join("..", "testdata", "nano", "text", "test.txt")
	dev := cpuDevice(t, 2)

	var last, total int64
	o := PerplexityOptions{Cut: corpus.CutOptions{Convention: corpus.Rolling, SeqLen: 48, Stride: 20, Limit: 3}}
	o.Progress = func(done, all int64) { last, total = done, all }
	got, err := Perplexity(ctx, nanoBase, text, dev, o)
	if err != nil {
		t.Fatal(err)
	}
	if last != total || total == 0 {
		t.Errorf("told of %d of %d", last, total)
	}
	if got.Convention != "rolling" || got.Stride != 20 || got.SeqLen != 48 || got.Windows != 3 {
		t.Errorf("%+v", got)
	}

	m := load(t, nanoBase, dev, Options{})
	w, err := m.Cut(ctx, text, o.Cut)
	if err != nil {
		t.Fatal(err)
	}

	want, err := m.Perplexity(ctx, w, nil)
	if err != nil || got.NLL != want.NLL || got.Data.Hash != want.Data.Hash {
		t.Errorf("%v and %v, %v", got.NLL, want.NLL, err)
	}

	if w, err = m.Cut(ctx, text, corpus.CutOptions{Limit: 1}); err != nil || w.SeqLen != m.DefaultSeqLen() {
		t.Errorf("windows of %d tokens by default, %v", w.SeqLen, err)
	}
	if _, err := Perplexity(ctx, t.TempDir(), text, dev, o); err == nil {
		t.Error("an empty folder has a perplexity")
	}
}

// TestGenerateText: pieces joined are the text; the text is what the ids say behind the prompt; the prompt may end
// where the tokenizer would merge on; what ends the generation of ids ends this one.
func TestGenerateText(t *testing.T) {
	ctx := context.Background()
	dev := cpuDevice(t, 2)
	m := load(t, nanoBase, dev, Options{})
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}

	for _, prompt := range []string{"Question: 14 + 6 =", "The ", "né", "ab\n"} {
		var pieces strings.Builder
		o := TextOptions{Text: func(s string) { pieces.WriteString(s) }}
		o.MaxTokens = 12
		o.Temperature = 1.5
		o.Stop = []int32{}
		o.Seed = 4

		r, err := Generate(ctx, nanoBase, prompt, dev, o)
		if err != nil {
			t.Fatal(err)
		}

		ids, err := tok.Encode(prompt, tokenizer.EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}

		fresh, err := m.Generate(ctx, ids, o.GenerateOptions)
		if err != nil || !slices.Equal(fresh, r.IDs) || !slices.Equal(ids, r.PromptIDs) || len(fresh) != 12 {
			t.Errorf("%q: ids %v and %v, %v", prompt, r.IDs, fresh, err)
		}
		if whole := tok.Decode(append(ids, fresh...), true); r.Prompt != prompt || prompt+r.Text != whole {
			t.Errorf("%q + %q is not %q", r.Prompt, r.Text, whole)
		}
		if pieces.String() != r.Text {
			t.Errorf("%q came as %q", r.Text, pieces.String())
		}

		n := 0
		o.Each = func(int32) bool { n++; return n < 3 }
		r, err = m.GenerateText(ctx, tok, prompt, o)
		if err != nil || !slices.Equal(r.IDs, fresh[:3]) {
			t.Errorf("%q: %v of %v, %v", prompt, r.IDs, fresh, err)
		}
	}
}

// TestGenerateTextRefuses: no tokenizer, one of another model, nothing to continue.
func TestGenerateTextRefuses(t *testing.T) {
	ctx := context.Background()
	dir := recipe{config: tiny()["gpt2"]}.write(t, t.TempDir())
	dev := cpuDevice(t, 1)
	if _, err := Generate(ctx, dir, "a", dev, TextOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a tokenizer: %v", err)
	}

	large := load(t, nanoBase, dev, Options{})
	tok, err := large.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}

	small := load(t, dir, dev, Options{})
	if err := small.fits(tok); err == nil || !strings.Contains(err.Error(), "do not belong together") {
		t.Errorf("%d ids for %d: %v", tok.VocabSize(), small.config.Vocab, err)
	}

	if ids, _ := tok.Encode("", tokenizer.EncodeOptions{}); len(ids) == 0 {
		if _, err := large.GenerateText(ctx, tok, "", TextOptions{}); !errors.Is(err, ErrInput) {
			t.Errorf("nothing to continue: %v", err)
		}
	}
}
