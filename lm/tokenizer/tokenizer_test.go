package tokenizer_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/lm/tokenizer"
)

var bare = tokenizer.EncodeOptions{NoSpecial: true}

// small loads a tokenizer of testdata.
func small(t testing.TB, name string) *tokenizer.Tokenizer {
	t.Helper()
	return load(t, "testdata/"+name+".json")
}

func smallNames(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no tokenizers in testdata")
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return names
}

func encode(t testing.TB, tok *tokenizer.Tokenizer, text string, o tokenizer.EncodeOptions) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, o)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestLlamaCppVectors(t *testing.T) {
	for vectors, name := range map[string]string{
		"gpt-2": "gpt2", "mpt": "gpt-neox-20b", "llama-spm": "llama-2", "phi-3": "llama-2", "llama-bpe": "llama-3",
		"qwen2": "qwen2",
	} {
		t.Run(vectors, func(t *testing.T) {
			base := sharedPath(t, "tokenizers/llama.cpp-vectors") + "/ggml-vocab-" + vectors + ".gguf"
			tok := load(t, sharedPath(t, big[name]))
			in, err := os.ReadFile(base + ".inp")
			if err != nil {
				t.Fatal(err)
			}

			out, err := os.ReadFile(base + ".out")
			if err != nil {
				t.Fatal(err)
			}

			texts := strings.Split(strings.TrimSuffix(string(in), "\n__ggml_vocab_test__\n"), "\n__ggml_vocab_test__\n")
			lines := strings.Split(string(out), "\n")
			for i, text := range texts {
				if got := strings.Trim(fmt.Sprint(encode(t, tok, text, bare)),
					"[]"); got != strings.TrimSpace(lines[i]) {
					t.Errorf("%q: got %s, want %s", text, got, lines[i])
				}
			}
		})
	}
}

func TestStories(t *testing.T) {
	dir := sharedPath(t, "models/stories260k")
	tok := load(t, dir)
	var golden struct {
		Prompts []struct {
			Prompt string
			IDs    []int32 `json:"input_ids"`
		}
		NLL struct {
			Text string
			IDs  []int32 `json:"input_ids"`
		}
	}

	readJSON(t, filepath.Join(dir, "golden.json"), &golden)

	for _, p := range golden.Prompts {
		if got := encode(t, tok, p.Prompt, tokenizer.EncodeOptions{}); !slices.Equal(got, p.IDs) {
			t.Errorf("%q: got %v, want %v", p.Prompt, got, p.IDs)
		}
	}

	if got := encode(t, tok, golden.NLL.Text, tokenizer.EncodeOptions{}); !slices.Equal(got, golden.NLL.IDs) {
		t.Errorf("story: got %v, want %v", got, golden.NLL.IDs)
	}
	if got := tok.Decode(golden.NLL.IDs, true); got != golden.NLL.Text {
		t.Errorf("story: got %q back", got)
	}

	bos, _ := tok.BOS()
	eos, _ := tok.EOS()
	adds, known := tok.AddsBOS()
	if bos != 1 || eos != 2 || !adds || !known || tok.VocabSize() != 512 {
		t.Errorf("BOS %d (added %v), EOS %d, %d tokens", bos, adds, eos, tok.VocabSize())
	}
}

// TestOwnModels loads the tokenizers of the project's own models and turns texts there and back.
func TestOwnModels(t *testing.T) {
	for _, dir := range []string{"nano/base", "lab/base"} {
		t.Run(dir, func(t *testing.T) {
			tok := load(t, sharedPath(t, dir))
			if eos, ok := tok.EOS(); !ok || eos != 0 || !tok.Special(0) {
				t.Errorf("EOS %d, %v", eos, ok)
			}

			text, err := os.ReadFile(sharedPath(t, "nano/text/valid.txt"))
			if err != nil {
				t.Fatal(err)
			}

			if got := tok.Decode(encode(t, tok, string(text), bare), false); got != string(text) {
				t.Error("the text does not come back")
			}
		})
	}
}

func TestInfo(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile("testdata/llama2.json")
	if err != nil {
		t.Fatal(err)
	}

	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	write("tokenizer.json", string(data))
	write("tokenizer_config.json",
		`{"bos_token":{"content":"<s>","lstrip":false},"eos_token":"nowhere","add_eos_token":false}`)
	write("special_tokens_map.json", `{"eos_token":"</s>","pad_token":"<mask>"}`)

	tok := load(t, dir)
	bos, ok1 := tok.BOS()
	_, ok2 := tok.EOS()
	pad, ok3 := tok.PAD()

	wantBOS, _ := tok.TokenID("<s>")
	wantPAD, _ := tok.TokenID("<mask>")
	adds, known := tok.AddsEOS()
	if bos != wantBOS || !ok1 || ok2 || pad != wantPAD || !ok3 || adds || !known {
		t.Errorf("BOS %d %v, EOS %v, PAD %d %v, adds %v %v", bos, ok1, ok2, pad, ok3, adds, known)
	}

	write("tokenizer_config.json", `{"bos_token":[1]}`)
	if _, err := tokenizer.Load(dir); !errors.Is(err, tokenizer.ErrSyntax) {
		t.Errorf("got %v", err)
	}
	if _, err := tokenizer.Load(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestTokens(t *testing.T) {
	tok := small(t, "llama3")
	for id := range int32(tok.VocabSize()) {
		text, ok := tok.Token(id)
		if back, found := tok.TokenID(text); !ok || !found || back != id {
			t.Errorf("%d is %q, which is %d", id, text, back)
		}
	}

	if _, ok := tok.Token(-1); ok {
		t.Error("-1 is a token")
	}
	if _, ok := tok.Token(int32(tok.VocabSize())); ok {
		t.Error("the size of the vocabulary is a token")
	}
	if tok.Special(-1) || len(tok.Hash()) != 64 {
		t.Error("special -1, or no hash")
	}
	if got := tok.Decode([]int32{-5, 1 << 30}, false); got != "" {
		t.Errorf("no tokens give %q", got)
	}
	if bos, ok := tok.BOS(); !ok || !tok.Special(bos) {
		t.Errorf("BOS by the template: %d, %v", bos, ok)
	}
}

func TestSpecialAsText(t *testing.T) {
	tok := small(t, "gpt2")
	mark, _ := tok.TokenID("<s>")
	if ids := encode(t, tok, "a<s>b", bare); !slices.Contains(ids, mark) {
		t.Errorf("<s> is not recognised in %v", ids)
	}
	ids := encode(t, tok, "a<s>b", tokenizer.EncodeOptions{SpecialAsText: true})
	if slices.Contains(ids, mark) || tok.Decode(ids, true) != "a<s>b" {
		t.Errorf("<s> is recognised in %v", ids)
	}
}

// byteLevel are the tokenizers of testdata that give every text back: byte-level ones without added tokens. (An added
// token such as é is not written in bytes but decoded as if it were, by the format's rules.)
var byteLevel = []string{
	"possessive", "deepseek", "split_contiguous", "split_merged_with_next",
	"split_merged_with_previous",
}

// anyText draws texts, among them special tokens and hard characters.
func anyText() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.OneOf(
			rapid.SampledFrom([]string{
				" ", "  ", "\n", "the", "Ann", "<s>", "<mask>", "é", "e\u0301", "'s", "123", "中", "😀", "▁", "[XY]",
				"Big Cat",
				"\u200d", "ﬁ", "<0x41>", strings.Repeat("\u0301", 40), strings.Repeat("ab", 50), "\xff", "\xe4\xb8",
			}), rapid.String()), 0, 10).Draw(t, "parts")
		return strings.Join(parts, "")
	})
}

func TestRoundTrip(t *testing.T) {
	for _, name := range byteLevel {
		tok := small(t, name)
		rapid.Check(t, func(t *rapid.T) {
			text := strings.ToValidUTF8(anyText().Draw(t, "text"), "")
			ids, err := tok.Encode(text, bare)
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.Decode(ids, false); got != text {
				t.Fatalf("%s: %q comes back as %q", name, text, got)
			}
		})
	}
}

// TestSameIDs checks, for every kind of tokenizer, that ids don't depend on offsets or on what was encoded before, that
// spans are in bounds and begin and end between characters, and that streaming gives the decoded text.
func TestSameIDs(t *testing.T) {
	for _, name := range smallNames(t) {
		used := small(t, name)
		rapid.Check(t, func(t *rapid.T) {
			text := anyText().Draw(t, "text")
			ids, err := used.Encode(text, tokenizer.EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}

			again, spans, err := used.EncodeOffsets(text, tokenizer.EncodeOptions{})
			if err != nil || !slices.Equal(ids, again) || len(spans) != len(ids) {
				t.Fatalf("%s: %q: %v, with offsets %v, %d spans, %v", name, text, ids, again, len(spans), err)
			}

			for _, sp := range spans {
				if sp.Start < 0 || sp.Start > sp.End || sp.End > len(text) {
					t.Fatalf("%s: %q: span %v", name, text, sp)
				}
				if part := text[sp.Start:sp.End]; utf8.ValidString(text) && !utf8.ValidString(part) {
					t.Fatalf("%s: %q: span %v cuts a character", name, text, sp)
				}
			}
		})
	}
}

func TestStreamDecoder(t *testing.T) {
	for _, name := range smallNames(t) {
		if name == "words" || name == "prefix" || strings.HasSuffix(name, "cased") {
			continue // these decoders tidy up across tokens
		}

		tok := small(t, name)
		for _, skip := range []bool{false, true} {
			rapid.Check(t, func(t *rapid.T) {
				text := strings.ReplaceAll(strings.ToValidUTF8(anyText().Draw(t, "text"), ""), "\ufffd", "")
				ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
				if err != nil {
					t.Fatal(err)
				}

				want := tok.Decode(ids, skip)
				if strings.Contains(want, "\ufffd") {
					return // text that does not survive
				}

				d := tok.StreamDecoder(skip)
				var got strings.Builder
				for _, id := range ids {
					part := d.Next(id)
					if !utf8.ValidString(part) {
						t.Fatalf("%s: %q is not whole characters", name, part)
					}
					got.WriteString(part)
				}

				got.WriteString(d.Flush())
				if got.String() != want {
					t.Fatalf("%s: got %q, want %q", name, got.String(), want)
				}
			})
		}
	}
}

func TestStreamIncomplete(t *testing.T) {
	tok := small(t, "gpt2")
	ids := encode(t, tok, "😀", bare)
	if len(ids) < 2 {
		t.Fatalf("😀 is %v", ids)
	}

	d := tok.StreamDecoder(false)
	for _, id := range ids[:len(ids)-1] {
		if got := d.Next(id); got != "" {
			t.Errorf("part of a character gives %q", got)
		}
	}

	if got := d.Flush(); got != "\ufffd" {
		t.Errorf("the rest is %q", got)
	}

	spm := small(t, "llama2")
	part, _ := spm.TokenID("<0xE4>")
	d = spm.StreamDecoder(false)
	n := 0
	for range 100 {
		n += len(d.Next(part))
	}
	if n += len(d.Flush()); n < 100 {
		t.Errorf("100 lone bytes give %d bytes of text", n)
	}
}

func TestConcurrent(t *testing.T) {
	for _, name := range []string{"llama2", "llama3", "unigram", "uncased", "deepseek"} {
		tok := small(t, name)
		var texts []string
		readJSON(t, "testdata/golden/inputs.json", &texts)
		want := make([][]int32, len(texts))
		for i, s := range texts {
			want[i] = encode(t, tok, s, bare)
		}

		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range texts {
					i = (i + g*7) % len(texts)
					if got, err := tok.Encode(texts[i], bare); err != nil || !slices.Equal(got, want[i]) {
						t.Errorf("%s: %q: got %v, want %v, %v", name, texts[i], got, want[i], err)
					}
				}
			})
		}

		wg.Wait()
	}
}

func TestAppendEncode(t *testing.T) {
	tok := small(t, "gpt2")
	ids, err := tok.AppendEncode([]int32{7}, "the cat", bare)
	if want := append([]int32{7}, encode(t, tok, "the cat", bare)...); err != nil || !slices.Equal(ids, want) {
		t.Errorf("got %v, want %v, %v", ids, want, err)
	}
}

// TestOddTexts encodes texts without words; one that took quadratic time would not end.
func TestOddTexts(t *testing.T) {
	for _, name := range smallNames(t) {
		tok := small(t, name)
		for kind, text := range oddTexts(1 << 16) {
			ids, err := tok.Encode(text, bare)
			if err != nil {
				t.Errorf("%s: %s: %v", name, kind, err)
			}

			if back := tok.Decode(ids, false); slices.Contains(byteLevel, name) && kind != "noise" && back != text {
				t.Errorf("%s: %s does not come back", name, kind)
			}
		}
	}
}

func TestNoUnknown(t *testing.T) {
	for _, model := range []string{
		`{"type":"Unigram","vocab":[["a",-1]]}`,
		`{"type":"WordPiece","vocab":{"a":0}}`,
		`{"type":"WordLevel","vocab":{"a":0}}`,
		`{"type":"BPE","unk_token":"?","vocab":{"a":0},"merges":[]}`,
	} {
		tok, err := tokenizer.Parse([]byte(`{"model":` + model + `}`))
		if err != nil {
			t.Fatal(err)
		}

		if ids, err := tok.Encode("b", bare); !errors.Is(err, tokenizer.ErrNoUnknown) {
			t.Errorf("%s: got %v, %v", model, ids, err)
		}
		if _, _, err := tok.EncodePair("a", "b", bare); !errors.Is(err, tokenizer.ErrNoUnknown) {
			t.Errorf("%s: pair: got %v", model, err)
		}
		if _, _, err := tok.EncodeOffsets("b", bare); !errors.Is(err, tokenizer.ErrNoUnknown) {
			t.Errorf("%s: offsets: got %v", model, err)
		}
	}

	tok, err := tokenizer.Parse([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`))
	if err != nil {
		t.Fatal(err)
	}

	if ids := encode(t, tok, "abba", bare); !slices.Equal(ids, []int32{0, 0}) {
		t.Errorf("got %v", ids)
	}
}

func TestPatternCost(t *testing.T) {
	tok, err := tokenizer.Parse([]byte(`{"model":{"type":"WordLevel","unk_token":"?","vocab":{"?":0}},
		"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?:a|aa)+b"},"behavior":"Isolated"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tok.Encode(strings.Repeat("a", 1000), bare); !errors.Is(err, tokenizer.ErrPatternCost) {
		t.Errorf("got %v", err)
	}
}
