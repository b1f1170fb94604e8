package dataset

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

func load(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(filepath.Join("..", "..", "..", "testdata", "nano", "base"))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func read(t testing.TB, tok Tokenizer, name, text string, o Options) (corpus.Windows, Counts, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	if o.SeqLen == 0 {
		o.SeqLen = 64
	}
	return Read(context.Background(), path, tok, o)
}

// counted is the text of the tokens whose loss counts.
func counted(tok *tokenizer.Tokenizer, w corpus.Windows, i int) string {
	var ids []int32
	for k, y := range w.Labels[i] {
		if y >= 0 {
			ids = append(ids, w.IDs[i][k])
		}
	}
	return tok.Decode(ids, true)
}

// TestRecords: of texts everything counts, of prompts and conversations the answers, each with the token that ends it.
func TestRecords(t *testing.T) {
	tok := load(t)
	eos, _ := tok.EOS()
	chat := func(messages []Message) (string, [][2]int, error) {
		text := ""
		var answers [][2]int
		for _, m := range messages {
			from := len(text)
			text += m.Content + "; "
			if m.Role == "assistant" {
				answers = append(answers, [2]int{from, len(text)})
			}
		}

		return text, answers, nil
	}

	w, counts, err := read(t, tok, "x.jsonl", `{"text": "The plumber plays."}
"A bare text."

{"prompt": "Where was he born?", "completion": " Porto"}
{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two three"}, {"role": "user", "content": [{"type": "text", "text": "four"}]}, {"role": "assistant", "content": "five"}]}
`, Options{Chat: chat})
	if err != nil || len(w.IDs) != 4 || counts.Records != 4 || counts.Blank != 1 {
		t.Fatal(len(w.IDs), counts, err)
	}

	if !slices.Equal(w.IDs[0], w.Labels[0]) || w.IDs[0][len(w.IDs[0])-1] != eos {
		t.Errorf("%v, labels %v", w.IDs[0], w.Labels[0])
	}
	if s := counted(tok, w, 2); strings.TrimSpace(s) != "Porto" || w.Labels[2][len(w.Labels[2])-1] != eos {
		t.Errorf("%q counts", s)
	}

	if s := counted(tok, w, 3); !strings.Contains(s, "two three") || !strings.Contains(s, "five") ||
		strings.Contains(s, "four") || strings.Contains(s, "one") {
		t.Errorf("%q counts", s)
	}
}

// TestForeignForms: records of Alpaca's and ShareGPT's form are conversations, whose answers count; without a chat
// template the former are prompts with completions, and the latter refused.
func TestForeignForms(t *testing.T) {
	tok := load(t)
	chat := func(messages []Message) (string, [][2]int, error) {
		text := ""
		var answers [][2]int
		for _, m := range messages {
			from := len(text)
			text += m.Role + " " + m.Content + "; "
			if m.Role == "assistant" {
				answers = append(answers, [2]int{from, len(text)})
			}
		}
		return text, answers, nil
	}

	alpaca := `{"instruction": "Say two.", "input": "Now.", "output": "two three"}` + "\n"
	share := `{"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "four five"}]}` + "\n"
	w, counts, err := read(t, tok, "x.jsonl", alpaca+share, Options{Chat: chat})
	if err != nil || len(w.IDs) != 2 || counts.Records != 2 {
		t.Fatal(len(w.IDs), counts, err)
	}
	for i, want := range []string{"assistant two three", "assistant four five"} {
		if s := counted(tok, w, i); !strings.Contains(s, want) || strings.Contains(s, "user") {
			t.Errorf("%q counts", s)
		}
	}

	list := "[" + strings.ReplaceAll(strings.TrimSpace(alpaca+share), "\n", ",\n ") + "]\n"
	all, counts, err := read(t, tok, "x.json", list, Options{Chat: chat})
	if err != nil || counts.Records != 2 || !slices.EqualFunc(all.IDs, w.IDs, slices.Equal) {
		t.Errorf("one list: %v, %v", counts, err)
	}
	_, _, err = read(t, tok, "x.jsonl", strings.ReplaceAll(list, "\n", ""), Options{Chat: chat})
	if err == nil || !strings.HasSuffix(err.Error(), "line 1: bad record: a list, where an object is expected") {
		t.Errorf("a list that is called lines: %v", err)
	}

	w, _, err = read(t, tok, "x.jsonl", alpaca, Options{})
	if err != nil || strings.TrimSpace(counted(tok, w, 0)) != "two three" ||
		!strings.Contains(tok.Decode(w.IDs[0], true), "Say two.\n\nNow.\n\ntwo") {
		t.Errorf("%q, %v", tok.Decode(w.IDs[0], true), err)
	}

	for text, want := range map[string]string{
		share: "chat template",
		`{"conversations": [{"from": "narrator", "value": "x"}]}`: "known: human",
		`{"instruction": "x"}`: "instruction with output",
	} {
		if _, _, err := read(t, tok, "x.jsonl", text, Options{}); !errors.Is(err, corpus.ErrRecord) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestCut: long texts become several sequences without a loss of tokens; answers are cut at their end.
func TestCut(t *testing.T) {
	tok := load(t)
	text := strings.Repeat("The plumber plays the piano. ", 20)
	whole, _, err := read(t, tok, "x.txt", text, Options{SeqLen: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}

	w, counts, err := read(t, tok, "x.txt", text, Options{SeqLen: 16})
	if err != nil || counts.Cut != 0 || counts.Split != 1 || w.Mode != corpus.Window {
		t.Fatal(counts, w.Mode, err)
	}

	if !slices.Equal(slices.Concat(w.IDs...), whole.IDs[0]) {
		t.Error("cutting changes the tokens")
	}

	w, counts, err = read(t, tok, "x.jsonl", `{"prompt": "`+text+`", "completion": "x"}`, Options{SeqLen: 16})
	if err != nil || counts.Cut != 1 || len(w.IDs[0]) != 16 {
		t.Error(counts, err)
	}
}

func TestFaults(t *testing.T) {
	tok := load(t)
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"empty": {"\n\n", corpus.ErrEmpty}, "no JSON": {"{", corpus.ErrRecord},
		"no known key": {`{"txt": "a"}`, corpus.ErrRecord},
		"a number":     {"3", corpus.ErrRecord}, "not UTF-8": {"\"\xff\"", corpus.ErrUTF8},
		"no template": {`{"messages": []}`, corpus.ErrRecord},
		"picture":     {`{"messages": [{"role": "user", "content": [{"type": "image"}]}]}`, corpus.ErrRecord},
	} {
		if _, _, err := read(t, tok, "x.jsonl", c.text, Options{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, _, err := read(t, nil, "x.txt", "a", Options{}); !errors.Is(err, corpus.ErrNoTokenizer) {
		t.Error(err)
	}
}

// FuzzRecord: no line panics.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		`"a"`, `{"text": "a"}`, `{"prompt": "a", "completion": "b"}`,
		`{"messages": [{"role": "assistant", "content": "c"}]}`,
		`{"messages": [{"content": [{"type": "text", "text": "d"}]}]}`, "\"\\ud800\"", "[]",
	} {
		f.Add(s)
	}

	tok := load(f)
	f.Fuzz(func(t *testing.T, line string) {
		defer fuzzlimit.Watch(t, len(line))()

		r := &reader{tok: tok, o: Options{SeqLen: 8, Chat: func(m []Message) (string, [][2]int, error) {
			return "abc",
				[][2]int{{1, 2}}, nil
		}}}

		if line = strings.TrimSpace(line); line == "" || r.record([]byte(line)) != nil {
			return
		}

		for _, s := range r.list {
			if len(s.ids) != len(s.labels) || len(s.ids) > 8 {
				t.Fatalf("%d ids, %d labels", len(s.ids), len(s.labels))
			}
		}
	})
}

// TestEmptyCompletions: completions without a token are counted.
func TestEmptyCompletions(t *testing.T) {
	text := `{"prompt": "a", "completion": ""}` + "\n" + `{"prompt": "a", "completion": "b"}` + "\n"
	if _, c, err := read(t, load(t), "x.jsonl", text, Options{}); err != nil || c.Empty != 1 || c.Records != 2 {
		t.Errorf("%+v %v", c, err)
	}
}
