package ggufmodel

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/orderedjson"
)

// Keys of the tokenizer.
const (
	modelKey    = "tokenizer.ggml.model"
	preKey      = "tokenizer.ggml.pre"
	tokensKey   = "tokenizer.ggml.tokens"
	typesKey    = "tokenizer.ggml.token_type"
	scoresKey   = "tokenizer.ggml.scores"
	mergesKey   = "tokenizer.ggml.merges"
	templateKey = "tokenizer.chat_template"
)

// Types of tokens.
const (
	tokenUnknown = 2
	tokenControl = 3
	tokenUser    = 4
)

// vocabulary is the tokenizer of a file.
type vocabulary struct {
	*metadata
	model  string
	tokens []string
	kinds  []int64 // types of tokens; nil where the file has none
	ids    map[string]int
	named  map[int]bool // tokens that the file gives a meaning of their own
	begin  bool         // texts begin with the token for that
	end    bool
}

// newVocabulary reads the tokens; nil where the file has no tokenizer. rows is the length of the token table.
func newVocabulary(m *metadata, rows int) (*vocabulary, error) {
	v := &vocabulary{metadata: m}
	var err error
	if v.model, err = m.text(modelKey); err != nil {
		return nil, err
	}
	if v.model == "" || v.model == "none" || v.model == "no_vocab" {
		return nil, nil
	}

	list := m.values[tokensKey]
	tokens, ok := list.Strings()
	if !ok || len(tokens) == 0 {
		return nil, m.fault(ErrTokenizer, tokensKey, "%v is not a list of tokens", list)
	}
	v.tokens = tokens
	if len(v.tokens) > rows {
		return nil, m.fault(ErrTokenizer, tokensKey, "%d tokens, and the token table has %d rows", len(v.tokens), rows)
	}

	if kinds, ok := m.values[typesKey]; ok {
		if v.kinds, ok = kinds.Ints(); !ok || len(v.kinds) < len(v.tokens) {
			return nil, m.fault(ErrTokenizer, typesKey, "%v does not give %d types", kinds, len(v.tokens))
		}
	}

	return v, v.index()
}

// index fills the table of ids.
func (v *vocabulary) index() error {
	v.ids = make(map[string]int, len(v.tokens))
	for i, text := range v.tokens {
		if !utf8.ValidString(text) {
			return v.fault(ErrTokenizer, tokensKey, "token %d is not valid UTF-8", i)
		}
		if text == "" {
			text = fmt.Sprintf("[EMPTY_%d]", i) // as llama.cpp names it
			v.tokens[i] = text
		}
		if other, twice := v.ids[text]; twice {
			return v.fault(ErrTokenizer, tokensKey, "%q is token %d and token %d", clip(text), other, i)
		}
		v.ids[text] = i
	}

	v.named = map[int]bool{}
	for _, name := range []string{
		"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id",
	} {
		id, ok, err := v.special(name)
		if err != nil {
			return err
		}
		if ok {
			v.named[id] = true
		}
	}

	return nil
}

// kind is the type of a token, 1 where the file does not say. Those that end a text, and their like, are never text.
func (v *vocabulary) kind(id int) int64 {
	if v.named[id] {
		return tokenControl
	}
	if v.kinds == nil {
		return 1
	}
	return v.kinds[id]
}

// flag reads a key that is true or false.
func (v *vocabulary) flag(name string, absent bool) (bool, error) {
	key := "tokenizer.ggml." + name
	value, ok := v.values[key]
	if !ok {
		return absent, nil
	}
	is, ok := value.Bool()
	if !ok {
		return false, v.fault(ErrTokenizer, key, "%v is neither true nor false", value)
	}
	return is, nil
}

// special gives a special token; !ok where the file names none.
func (v *vocabulary) special(name string) (id int, ok bool, err error) {
	id, ok, err = v.tokenID(name)
	if err == nil && ok && id >= len(v.tokens) {
		return 0, false, v.fault(ErrTokenizer, "tokenizer.ggml."+name, "%d, and there are %d tokens", id, len(v.tokens))
	}
	return id, ok, err
}

// write gives the text of the tokenizer.json.
func (v *vocabulary) write(mergesByID bool) ([]byte, error) {
	switch v.model {
	case "gpt2":
		return v.byteLevel()
	case "llama":
		return v.sentencePiece(mergesByID)
	}
	return nil, v.fault(ErrTokenizer, modelKey, "unknown model %q; known: gpt2, llama", clip(v.model))
}

// byteLevel writes a tokenizer whose tokens are bytes, spelled as letters.
func (v *vocabulary) byteLevel() ([]byte, error) {
	name, err := v.text(preKey)
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = "default" // as llama.cpp reads old files
	}
	s, ok := splitters[name]
	if !ok {
		return nil, v.fault(ErrTokenizer, preKey, "unknown name %q; known: %s", clip(name), splitterNames())
	}
	if err := v.ends(s.begin); err != nil {
		return nil, err
	}

	merges, err := v.merges()
	if err != nil {
		return nil, err
	}
	pre, err := s.sequence()
	if err != nil {
		return nil, err
	}

	normalizer := "null"
	if s.nfc {
		normalizer = `{"type":"NFC"}`
	}

	return v.file(parts{
		normalizer: normalizer, pre: string(pre), merges: merges, whole: s.whole,
		decoder: `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`,
	})
}

// merges reads the pairs of tokens in the order in which they are joined.
func (v *vocabulary) merges() ([][2]string, error) {
	value, ok := v.values[mergesKey]
	list, isList := value.Strings()
	if ok && !isList {
		return nil, v.fault(ErrTokenizer, mergesKey, "%v is not a list of merges", value)
	}

	pairs := make([][2]string, len(list))
	for i, text := range list {
		l, r, ok := strings.Cut(text, " ")
		if !ok || strings.Contains(r, " ") {
			return nil, v.fault(ErrTokenizer, mergesKey, "merge %d is %q, not two tokens with a space between", i,
				clip(text))
		}
		for _, token := range []string{l, r, l + r} {
			if _, ok := v.ids[token]; !ok {
				return nil, v.fault(ErrTokenizer, mergesKey, "merge %d is %q, and %q is no token", i, clip(text),
					clip(token))
			}
		}
		pairs[i] = [2]string{l, r}
	}

	return pairs, nil
}

// sentencePiece writes a tokenizer whose tokens are text with ▁ for spaces, joined by the scores of what comes out.
func (v *vocabulary) sentencePiece(mergesByID bool) ([]byte, error) {
	if err := v.ends(true); err != nil {
		return nil, err
	}
	prefix, err := v.flag("add_space_prefix", true)
	if err != nil {
		return nil, err
	}

	v.respell()
	merges, err := v.merges()
	if err != nil {
		return nil, err
	}
	if len(merges) == 0 {
		scores, err := v.scores(mergesByID)
		if err != nil {
			return nil, err
		}
		merges = v.derive(scores)
	}

	p := parts{
		normalizer: `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`, pre: "null", merges: merges, pieces: true,
		decoder: `{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},` +
			`{"type":"ByteFallback"},{"type":"Fuse"}]}`,
	}
	if prefix {
		p.normalizer = `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + p.normalizer + `]}`
		p.decoder = strings.TrimSuffix(p.decoder, "]}") + `,{"type":"Strip","content":" ","start":1,"stop":0}]}`
	}

	return v.file(p)
}

// respell writes tokens of spaces alone as merges find them; files have them as the text that they stand for.
func (v *vocabulary) respell() {
	for i, text := range v.tokens {
		if strings.Trim(text, " ") != "" {
			continue
		}
		spelled := strings.Repeat("▁", len(text))
		if _, taken := v.ids[spelled]; taken {
			continue
		}

		delete(v.ids, text)
		v.ids[spelled] = i
		v.tokens[i] = spelled
		if v.kinds != nil {
			v.kinds[i] = 1
		}
	}
}

// scores reads the scores of tokens; in vocabularies whose scores say nothing, earlier ones are better.
func (v *vocabulary) scores(byID bool) ([]float64, error) {
	if byID {
		scores := make([]float64, len(v.tokens))
		for i := range scores {
			scores[i] = -float64(i)
		}
		return scores, nil
	}

	value, ok := v.values[scoresKey]
	scores, isList := value.Floats()
	if !ok || !isList || len(scores) < len(v.tokens) {
		return nil, v.fault(ErrTokenizer, scoresKey, "%v does not give %d scores", value, len(v.tokens))
	}
	if i := slices.IndexFunc(scores, func(x float64) bool { return math.IsNaN(x) }); i >= 0 {
		return nil, v.fault(ErrTokenizer, scoresKey, "the score of token %d is not a number", i)
	}

	return scores, nil
}

// derive lists all pairs of tokens that make a token, the best results first. Of one token's pairs, those with a longer
// left part come first, as transformers orders them.
func (v *vocabulary) derive(scores []float64) [][2]string {
	const longest = 256 // bytes; longer ones are added tokens
	type merge struct {
		pair  [2]string
		score float64
		sizes [2]int // in characters
	}

	var list []merge
	for i, text := range v.tokens {
		if len(text) > longest {
			continue
		}
		runes := 0
		all := utf8.RuneCountInString(text)
		for at := range text {
			if at > 0 {
				_, left := v.ids[text[:at]]
				_, right := v.ids[text[at:]]
				if left && right {
					list = append(list, merge{[2]string{text[:at], text[at:]}, scores[i], [2]int{runes, all - runes}})
				}
			}
			runes++
		}
	}

	slices.SortStableFunc(list, func(a, b merge) int {
		switch {
		case a.score != b.score:
			if a.score > b.score {
				return -1
			}
			return 1
		case a.sizes[0] != b.sizes[0]:
			return b.sizes[0] - a.sizes[0]
		}
		return b.sizes[1] - a.sizes[1]
	})

	pairs := make([][2]string, len(list))
	for i := range list {
		pairs[i] = list[i].pair
	}

	return pairs
}

// ends reads whether texts begin and end with the tokens for that.
func (v *vocabulary) ends(begin bool) (err error) {
	if v.begin, err = v.flag("add_bos_token", begin); err != nil {
		return err
	}
	v.end, err = v.flag("add_eos_token", false)
	return err
}

// parts is what differs between files of tokenizers; the texts are JSON.
type parts struct {
	normalizer, pre, decoder string
	merges                   [][2]string
	whole                    bool // ignore_merges
	pieces                   bool // with byte fallback and an unknown token
}

// file writes a tokenizer.json.
func (v *vocabulary) file(p parts) ([]byte, error) {
	post, err := v.post()
	if err != nil {
		return nil, err
	}

	unknown := "null"
	if p.pieces {
		if unknown, err = v.unknown(); err != nil {
			return nil, err
		}
	}

	size := 0
	for _, t := range v.tokens {
		size += 3*len(t) + 48
	}
	b := make([]byte, 0, size)
	b = append(b, `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[`...)
	b = v.added(b)
	b = append(b, `],"normalizer":`+p.normalizer+`,"pre_tokenizer":`+p.pre+`,"post_processor":`+post+`,"decoder":`...)
	b = append(b, p.decoder...)
	b = append(b, `,"model":{"type":"BPE","dropout":null,"unk_token":`+unknown...)
	b = append(b, `,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":`...)
	b = strconv.AppendBool(b, p.pieces)
	b = append(b, `,"byte_fallback":`...)
	b = strconv.AppendBool(b, p.pieces)
	b = append(b, `,"ignore_merges":`...)
	b = strconv.AppendBool(b, p.whole)

	b = append(b, `,"vocab":{`...)
	for i, t := range v.tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, t)
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(i), 10)
	}

	b = append(b, `},"merges":[`...)
	for i, pair := range p.merges {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = appendString(b, pair[0])
		b = append(b, ',')
		b = appendString(b, pair[1])
		b = append(b, ']')
	}

	return append(b, "]}}\n"...), nil
}

// added lists the tokens that are cut out of a text before it is tokenised.
func (v *vocabulary) added(b []byte) []byte {
	first := true
	for i, t := range v.tokens {
		kind := v.kind(i)
		if kind != tokenControl && kind != tokenUser && kind != tokenUnknown {
			continue
		}

		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, `{"id":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"content":`...)
		b = appendString(b, t)
		b = append(b, `,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":`...)
		b = strconv.AppendBool(b, kind != tokenUser)
		b = append(b, '}')
	}
	return b
}

// appendString writes a text that is valid UTF-8 as JSON.
func appendString(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}

		b = append(b, s[from:i]...)
		from = i + 1
		if c < 0x20 {
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		} else {
			b = append(b, '\\', c)
		}
	}

	b = append(b, s[from:]...)
	return append(b, '"')
}

// unknown gives the unknown token as JSON: the one that is named, or the one of that type.
func (v *vocabulary) unknown() (string, error) {
	id, ok, err := v.special("unknown_token_id")
	if err != nil {
		return "", err
	}
	if !ok && v.kinds != nil {
		id = slices.Index(v.kinds[:len(v.tokens)], tokenUnknown)
		ok = id >= 0
	}
	if !ok {
		return "null", nil
	}
	return string(appendString(nil, v.tokens[id])), nil
}

// post writes the template with the tokens that texts begin and end with.
func (v *vocabulary) post() (string, error) {
	var before, after []any
	specials := map[string]any{}
	for _, one := range []struct {
		adds bool
		name string
		to   *[]any
	}{{v.begin, "bos_token_id", &before}, {v.end, "eos_token_id", &after}} {
		if !one.adds {
			continue
		}
		id, ok, err := v.special(one.name)
		if err != nil {
			return "", err
		}
		if !ok {
			continue
		}

		token := v.tokens[id]
		*one.to = append(*one.to, token)
		specials[token] = map[string]any{"id": token, "ids": []int{id}, "tokens": []string{token}}
	}
	if len(specials) == 0 {
		return "null", nil
	}

	places := func(sequence string, typeID int) (list []any) {
		add := func(tokens []any) {
			for _, t := range tokens {
				list = append(list, map[string]any{"SpecialToken": map[string]any{"id": t, "type_id": typeID}})
			}
		}
		add(before)
		list = append(list, map[string]any{"Sequence": map[string]any{"id": sequence, "type_id": typeID}})
		add(after)
		return list
	}

	text, err := orderedjson.Text(map[string]any{
		"type": "TemplateProcessing", "single": places("A", 0), "pair": append(places("A", 0), places("B", 1)...),
		"special_tokens": specials,
	})
	return string(text), err
}

// settings writes tokenizer_config.json and special_tokens_map.json.
func (v *vocabulary) settings(positions int) (config, names []byte, err error) {
	var c, s orderedjson.Object
	for _, one := range [][2]string{
		{"bos_token", "bos_token_id"},
		{"eos_token", "eos_token_id"},
		{"unk_token", "unknown_token_id"},
		{"pad_token", "padding_token_id"},
	} {
		id, ok, err := v.special(one[1])
		if err != nil {
			return nil, nil, err
		}
		if ok {
			s.Set(one[0], appendString(nil, v.tokens[id]))
			c.Set(one[0], s.Get(one[0]))
		}
	}

	// The class that takes a tokenizer.json as it is; those of families write some of its components anew.
	c.Set("tokenizer_class", quote("PreTrainedTokenizerFast"))
	c.Set("add_bos_token", json.RawMessage(strconv.FormatBool(v.begin)))
	c.Set("add_eos_token", json.RawMessage(strconv.FormatBool(v.end)))
	c.Set("clean_up_tokenization_spaces", json.RawMessage("false"))
	c.Set("model_max_length", json.RawMessage(strconv.Itoa(positions)))

	template, err := v.text(templateKey)
	if err != nil {
		return nil, nil, err
	}
	if template != "" {
		c.Set("chat_template", quote(strings.ToValidUTF8(template, "\uFFFD")))
	}

	if config, err = c.Indent(); err != nil {
		return nil, nil, err
	}
	names, err = s.Indent()
	return config, names, err
}

// ending lists texts of tokens that end an answer, of which llama.cpp takes the first that a vocabulary has where the
// file names none.
var ending = []string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
	"[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
}

// turnEnd finds the token that ends an answer by its text; !ok where there is none.
func (v *vocabulary) turnEnd() (id int, ok bool) {
	if v == nil {
		return 0, false
	}
	for _, text := range ending {
		if id, ok = v.ids[text]; ok {
			return id, true
		}
	}
	return 0, false
}
