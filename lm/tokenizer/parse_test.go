package tokenizer_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
)

func TestParseRefuses(t *testing.T) {
	const vocab = `"vocab":{"a":0,"b":1,"ab":2}`
	added := func(s string) string { return `{"model":{"type":"BPE",` + vocab + `},"added_tokens":[` + s + `]}` }
	post := func(s string) string { return `{"model":{"type":"BPE",` + vocab + `},"post_processor":` + s + `}` }
	dec := func(s string) string { return `{"model":{"type":"BPE",` + vocab + `},"decoder":` + s + `}` }
	for _, c := range []struct {
		name, file string
		want       error
	}{
		{"empty", ``, tokenizer.ErrSyntax},
		{"no model", `{}`, tokenizer.ErrSyntax},
		{"trailing data", `{"model":{"type":"BPE",` + vocab + `}} x`, tokenizer.ErrSyntax},
		{"invalid UTF-8", "{\"\xff\":1}", tokenizer.ErrSyntax},
		{"nesting", strings.Repeat(`{"a":`, 1000), tokenizer.ErrSyntax},
		{"unknown model", `{"model":{"type":"Markov",` + vocab + `}}`, tokenizer.ErrUnsupported},
		{"no vocab", `{"model":{"type":"BPE"}}`, tokenizer.ErrSyntax},
		{"vocab as list", `{"model":{"type":"BPE","vocab":[]}}`, tokenizer.ErrSyntax},
		{"negative id", `{"model":{"type":"BPE","vocab":{"a":-1}}}`, tokenizer.ErrTokenID},
		{"huge id", `{"model":{"type":"BPE","vocab":{"a":1099511627776}}}`, tokenizer.ErrTokenID},
		{"sparse id", `{"model":{"type":"BPE","vocab":{"a":20000000}}}`, tokenizer.ErrTokenID},
		{"fractional id", `{"model":{"type":"BPE","vocab":{"a":1.5}}}`, tokenizer.ErrSyntax},
		{"id twice", `{"model":{"type":"WordLevel","vocab":{"a":1,"b":1}}}`, tokenizer.ErrTokenID},
		{"token twice", `{"model":{"type":"WordPiece","vocab":{"a":1,"a":2}}}`, tokenizer.ErrVocab},
		{"merge of unknown", `{"model":{"type":"BPE",` + vocab + `,"merges":["a c"]}}`, tokenizer.ErrMerge},
		{"merge of unknown left", `{"model":{"type":"BPE",` + vocab + `,"merges":["c a"]}}`, tokenizer.ErrMerge},
		{"merge into unknown", `{"model":{"type":"BPE",` + vocab + `,"merges":["b a"]}}`, tokenizer.ErrMerge},
		{"merge of one", `{"model":{"type":"BPE",` + vocab + `,"merges":["ab"]}}`, tokenizer.ErrMerge},
		{"merge of three", `{"model":{"type":"BPE",` + vocab + `,"merges":[["a","b","a"]]}}`, tokenizer.ErrMerge},
		{"merge pair of one", `{"model":{"type":"BPE",` + vocab + `,"merges":[["a"]]}}`, tokenizer.ErrMerge},
		{"merge as number", `{"model":{"type":"BPE",` + vocab + `,"merges":[1]}}`, tokenizer.ErrSyntax},
		{
			"short merge", `{"model":{"type":"BPE",` + vocab + `,"merges":["a b"],"continuing_subword_prefix":"##"}}`,
			tokenizer.ErrMerge,
		},
		{"dropout", `{"model":{"type":"BPE",` + vocab + `,"dropout":0.1}}`, tokenizer.ErrUnsupported},
		{"empty Unigram", `{"model":{"type":"Unigram","vocab":[]}}`, tokenizer.ErrVocab},
		{"bad piece", `{"model":{"type":"Unigram","vocab":[["a"]]}}`, tokenizer.ErrSyntax},
		{"long piece", `{"model":{"type":"Unigram","vocab":[["a",1,2]]}}`, tokenizer.ErrSyntax},
		{"unk_id outside", `{"model":{"type":"Unigram","unk_id":5,"vocab":[["a",1]]}}`, tokenizer.ErrTokenID},
		{"added without content", added(`{"id":3}`), tokenizer.ErrSyntax},
		{"added negative", added(`{"id":-3,"content":"x"}`), tokenizer.ErrTokenID},
		{"added huge", added(`{"id":1099511627776,"content":"x"}`), tokenizer.ErrTokenID},
		{"added in place of another", added(`{"id":1,"content":"x"}`), tokenizer.ErrTokenID},
		{"added with another id", added(`{"id":5,"content":"a"}`), tokenizer.ErrTokenID},
		{"added too long", added(`{"id":3,"content":"` + strings.Repeat("x", 2000) + `"}`), tokenizer.ErrUnsupported},
		{"added as string", added(`"x"`), tokenizer.ErrSyntax},
		{
			"unknown normalizer", `{"model":{"type":"BPE",` + vocab + `},"normalizer":{"type":"Rot13"}}`,
			tokenizer.ErrUnsupported,
		},
		{
			"unknown pre-tokenizer", `{"model":{"type":"BPE",` + vocab + `},"pre_tokenizer":{"type":"Magic"}}`,
			tokenizer.ErrUnsupported,
		},
		{"unknown post-processor", post(`{"type":"Magic"}`), tokenizer.ErrUnsupported},
		{
			"template without token",
			post(`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],"pair":[]}`), tokenizer.ErrVocab,
		},
		{
			"template with unknown id",
			post(`{"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{"x":{"ids":[9]}}}`),
			tokenizer.ErrTokenID,
		},
		{
			"empty template", post(`{"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{}}`),
			tokenizer.ErrSyntax,
		},
		{
			"template of C", post(`{"type":"TemplateProcessing","single":[{"Sequence":{"id":"C"}}],"pair":[]}`),
			tokenizer.ErrSyntax,
		},
		{"Bert with unknown id", post(`{"type":"BertProcessing","sep":["x",9],"cls":["a",0]}`), tokenizer.ErrTokenID},
		{"Bert without sep", post(`{"type":"BertProcessing","cls":["a",0]}`), tokenizer.ErrSyntax},
		{"two templates", post(`{"type":"Sequence","processors":[{"type":"BertProcessing","sep":["a",0],"cls":["a",0]},
			{"type":"BertProcessing","sep":["a",0],"cls":["a",0]}]}`), tokenizer.ErrUnsupported},
		{"unknown decoder", dec(`{"type":"Magic"}`), tokenizer.ErrUnsupported},
		{"nested unknown decoder", dec(`{"type":"Sequence","decoders":[{"type":"Magic"}]}`), tokenizer.ErrUnsupported},
		{
			"decoder with pattern", dec(`{"type":"Replace","pattern":{"Regex":"a+"},"content":""}`),
			tokenizer.ErrUnsupported,
		},
	} {
		if _, err := tokenizer.Parse([]byte(c.file)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

// TestOldFiles reads what old files leave out: the model's type, and merges as strings.
func TestOldFiles(t *testing.T) {
	for _, model := range []string{
		`{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`,
		`{"vocab":{"a":0,"b":1,"ab":2},"continuing_subword_prefix":"##","unk_token":"a"}`,
		`{"vocab":{"a":0,"b":1,"ab":2},"unk_token":"a"}`,
		`{"vocab":[["a",-5],["b",-5],["ab",-1]],"unk_id":0}`,
	} {
		tok, err := tokenizer.Parse([]byte(`{"model":` + model + `,"truncation":{"max_length":1},"padding":{}}`))
		if err != nil {
			t.Errorf("%s: %v", model, err)
			continue
		}

		if ids := encode(t, tok, "ab", bare); !slices.Equal(ids, []int32{2}) {
			t.Errorf("%s: got %v", model, ids)
		}
	}
}
