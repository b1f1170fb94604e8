package ggufmodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcompress/compress/gguf"
)

// Types of tokens beside those that are read.
const (
	tokenNormal = 1
	tokenUnused = 5
	tokenByte   = 6
)

// addedScore is the score of tokens that are added to a vocabulary of SentencePiece, as llama.cpp's converter has it.
const addedScore = -1000

// tokenizerJSON is what is read of a tokenizer.json.
type tokenizerJSON struct {
	Added      []addedToken    `json:"added_tokens"`
	Normalizer json.RawMessage `json:"normalizer"`
	Pre        json.RawMessage `json:"pre_tokenizer"`
	Post       json.RawMessage `json:"post_processor"`
	Decoder    json.RawMessage `json:"decoder"`
	Model      struct {
		Type         string            `json:"type"`
		Vocab        json.RawMessage   `json:"vocab"`
		Merges       []json.RawMessage `json:"merges"`
		Unknown      string            `json:"unk_token"`
		ByteFallback bool              `json:"byte_fallback"`
		IgnoreMerges bool              `json:"ignore_merges"`
	} `json:"model"`
}

type addedToken struct {
	ID      int    `json:"id"`
	Content string `json:"content"`
	Special bool   `json:"special"`
}

// words makes the metadata of a tokenizer.
type words struct {
	*export
	json     tokenizerJSON
	settings map[string]json.RawMessage // tokenizer_config.json
	tokens   []string
	kinds    []int32
	scores   []float32
	merges   []string
}

// vocabulary writes the tokenizer; that there is none, where the checkpoint has none.
func (x *export) vocabulary() error {
	text, err := x.read("tokenizer.json")
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := x.read("tokenizer.model"); err == nil {
			return x.fault(ErrTokenizer, "it has a tokenizer.model and no tokenizer.json")
		}
		x.set(modelKey, gguf.Of("none"))
		return nil
	}
	if err != nil {
		return err
	}

	w := &words{export: x}
	if err := json.Unmarshal(text, &w.json); err != nil {
		return w.fault("it is not a tokenizer: %v", err)
	}
	if err := w.optional("tokenizer_config.json", &w.settings); err != nil {
		return err
	}

	return w.build()
}

// fault is an error about the tokenizer.json.
func (w *words) fault(format string, args ...any) error {
	return w.export.fault(ErrTokenizer, "tokenizer.json: "+format, args...)
}

// build writes the pairs in the order of llama.cpp's converter.
func (w *words) build() error {
	model, pre, err := w.model()
	if err != nil {
		return err
	}

	if space, ok := w.space(model); ok {
		w.set("tokenizer.ggml.add_space_prefix", gguf.Of(space))
	}
	if err := w.list(model == "llama"); err != nil {
		return err
	}

	w.set(modelKey, gguf.Of(model))
	w.set(preKey, gguf.Of(pre))
	w.set(tokensKey, gguf.List(w.tokens))
	if w.scores != nil {
		w.set(scoresKey, gguf.List(w.scores))
	}
	w.set(typesKey, gguf.List(w.kinds))
	if len(w.merges) > 0 && model == "gpt2" {
		w.set(mergesKey, gguf.List(w.merges))
	}

	return w.special()
}

// model finds out which of llama.cpp's tokenizers it is, and how it cuts text into words.
func (w *words) model() (model, pre string, err error) {
	m := &w.json.Model
	if m.Type != "" && m.Type != "BPE" {
		return "", "", w.fault("the model is %q; known: BPE", clip(m.Type))
	}
	if m.ByteFallback {
		return "llama", "default", nil
	}

	decoder := struct{ Type string }{}
	if err := json.Unmarshal(w.json.Decoder, &decoder); err != nil || decoder.Type != "ByteLevel" {
		return "", "", w.fault("its tokens are neither bytes (a decoder ByteLevel) nor text with byte_fallback")
	}

	pre = w.splitter
	if pre == "" {
		pre, err = w.findSplitter()
	} else if _, ok := splitters[pre]; !ok {
		err = w.fault("unknown splitter %q; known: %s", clip(pre), splitterNames())
	}

	return "gpt2", pre, err
}

// space reports whether a space is put in front of a text; !ok where nothing says so and the reader needs not be told.
func (w *words) space(model string) (is, ok bool) {
	if model == "llama" {
		is = bytes.Contains(w.json.Normalizer, []byte(`"Prepend"`)) ||
			bytes.Contains(w.json.Pre, []byte(`"Metaspace"`)) && !bytes.Contains(w.json.Pre, []byte(`"never"`))
		_, ok = w.settings["add_prefix_space"]
		return is, ok || !is
	}
	err := json.Unmarshal(w.settings["add_prefix_space"], &is)
	return is, err == nil
}

// looksSpecial is how llama.cpp's converter finds tokens that are special, whatever the file says.
var looksSpecial = regexp.MustCompile(`^(<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>)$`)

// byteToken is how SentencePiece spells bytes.
var byteToken = regexp.MustCompile(`^<0x[0-9A-Fa-f]{2}>$`)

// list makes the lists of tokens, as many as the token table has rows.
func (w *words) list(pieces bool) error {
	var vocab map[string]int
	if err := json.Unmarshal(w.json.Model.Vocab, &vocab); err != nil {
		return w.fault("model.vocab: %v", err)
	}

	rows := w.config.Vocab
	w.tokens = make([]string, rows)
	w.kinds = make([]int32, rows)
	for i := range w.tokens {
		w.tokens[i] = fmt.Sprintf("[PAD%d]", i)
		w.kinds[i] = tokenUnused
	}

	taken := make(map[int]string, len(vocab))
	for text, id := range vocab {
		if err := w.place(taken, text, id); err != nil {
			return err
		}
		switch {
		case pieces && byteToken.MatchString(text):
			w.kinds[id] = tokenByte
		case pieces && text == w.json.Model.Unknown:
			w.kinds[id] = tokenUnknown
		case text == fmt.Sprintf("[PAD%d]", id):
		default:
			w.kinds[id] = tokenNormal
		}
	}

	for _, a := range w.json.Added {
		if err := w.place(taken, a.Content, a.ID); err != nil {
			return err
		}
		switch {
		case w.kinds[a.ID] == tokenUnknown:
		case a.Special || looksSpecial.MatchString(a.Content):
			w.kinds[a.ID] = tokenControl
		default:
			w.kinds[a.ID] = tokenUser
			w.tokens[a.ID] = strings.ReplaceAll(a.Content, "▁", " ") // as text has them
		}
	}

	if err := w.pairs(); err != nil || !pieces {
		return err
	}
	return w.rank(vocab)
}

// place enters a token, which must be the only one of its id.
func (w *words) place(taken map[int]string, text string, id int) error {
	if id < 0 || id >= len(w.tokens) {
		return w.fault("token %q is number %d, and the token table has %d rows", clip(text), id, len(w.tokens))
	}
	if other, ok := taken[id]; ok && other != text {
		return w.fault("%q and %q are both token %d", clip(min(other, text)), clip(max(other, text)), id)
	}
	taken[id] = text
	w.tokens[id] = text
	return nil
}

// pairs reads the merges: texts with a space between the tokens, or pairs.
func (w *words) pairs() error {
	w.merges = make([]string, len(w.json.Model.Merges))
	for i, text := range w.json.Model.Merges {
		var joined string
		var pair [2]string
		if json.Unmarshal(text, &joined) == nil {
			w.merges[i] = joined
			continue
		}
		if err := json.Unmarshal(text, &pair); err != nil {
			return w.fault("merge %d is %s, not two tokens", i, clip(string(text)))
		}
		for j, token := range pair {
			pair[j] = strings.ReplaceAll(token, " ", "Ġ")
		}
		w.merges[i] = pair[0] + " " + pair[1]
	}
	return nil
}

// rank gives tokens scores: those of the tokenizer.model where there is one. Otherwise the earlier merges have the
// higher ones, which makes the same words of the same letters.
func (w *words) rank(vocab map[string]int) error {
	w.scores = make([]float32, len(w.tokens))
	text, err := w.read("tokenizer.model")
	if err == nil {
		err = w.sentencePiece(text)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
		for i, merge := range w.merges {
			l, r, _ := strings.Cut(merge, " ")
			if id, ok := vocab[l+r]; ok && w.scores[id] == 0 {
				w.scores[id] = -float32(i + 1)
			}
		}
	}

	for _, a := range w.json.Added {
		w.scores[a.ID] = addedScore
	}
	for i, kind := range w.kinds {
		if kind == tokenUnused {
			w.scores[i] = 10 * addedScore
		}
	}

	return err
}

// sentencePiece takes the scores of a tokenizer.model.
func (w *words) sentencePiece(text []byte) error {
	pieces, err := readPieces(text)
	if err != nil {
		return w.export.fault(ErrTokenizer, "tokenizer.model: %v", err)
	}
	for i, p := range pieces[:min(len(pieces), len(w.tokens))] {
		w.scores[i] = p.score
		if p.text != w.tokens[i] && w.kinds[i] != tokenControl && w.kinds[i] != tokenUser {
			return w.export.fault(ErrTokenizer, "token %d is %q in tokenizer.json and %q in tokenizer.model", i,
				clip(w.tokens[i]), clip(strings.ToValidUTF8(p.text, "\uFFFD")))
		}
	}
	return nil
}

// special writes the tokens that have a meaning of their own, and the template of chats.
func (w *words) special() error {
	ids := map[string]int{}
	var config map[string]json.RawMessage
	if err := w.optional("config.json", &config); err != nil {
		return err
	}

	for _, one := range [][2]string{
		{"bos", "bos"}, {"eos", "eos"}, {"unk", "unknown"}, {"sep", "seperator"}, {"pad", "padding"}, {"mask", "mask"},
	} {
		id, ok := w.named(one[0])
		if !ok {
			id = -1
			if json.Unmarshal(config[one[0]+"_token_id"], &id) != nil || config[one[0]+"_token_id"] == nil {
				id = -1
			}
		}
		if id >= 0 && id < len(w.tokens) && id <= math.MaxInt32 {
			ids[one[0]] = id
			w.set("tokenizer.ggml."+one[1]+"_token_id", gguf.Of(uint32(id)))
		}
	}

	for _, end := range []string{"bos", "eos"} {
		adds, known := w.adds(end, ids)
		if known || end == "bos" { // llama.cpp would add it to some vocabularies
			w.set("tokenizer.ggml.add_"+end+"_token", gguf.Of(adds))
		}
	}

	return w.template()
}

// named finds the special token of the tokenizer_config.json among the added ones.
func (w *words) named(name string) (id int, ok bool) {
	text := w.settings[name+"_token"]
	var content string
	var object struct{ Content string }
	if json.Unmarshal(text, &content) != nil && json.Unmarshal(text, &object) == nil {
		content = object.Content
	}
	i := slices.IndexFunc(w.json.Added, func(a addedToken) bool { return a.Content == content })
	if content == "" || i < 0 {
		return 0, false
	}
	return w.json.Added[i].ID, true
}

// processor is a step of a post_processor.
type processor struct {
	Type       string
	Processors []processor
	Single     []struct {
		Special struct{ ID string } `json:"SpecialToken"`
	}
}

// adds reports whether texts begin or end with a token, by the post_processor or else the settings.
func (w *words) adds(end string, ids map[string]int) (is, known bool) {
	var post processor
	if json.Unmarshal(w.json.Post, &post) == nil {
		for _, p := range append([]processor{post}, post.Processors...) {
			switch {
			case p.Type == "ByteLevel":
				known = true
			case p.Type == "TemplateProcessing" && len(p.Single) > 1:
				name := p.Single[0].Special.ID
				if end == "eos" {
					name = p.Single[len(p.Single)-1].Special.ID
				}
				if name == "" {
					continue
				}
				id, ok := ids[end]
				is = ok && w.isToken(name, id)
				known = true
			}
		}
	}
	if known {
		return is, true
	}

	text := w.settings["add_"+end+"_token"]
	if err := json.Unmarshal(text, &is); err == nil && text != nil {
		known = true
	}
	return is, known
}

// isToken reports whether a token has a text.
func (w *words) isToken(text string, id int) bool {
	return w.tokens[id] == text ||
		slices.ContainsFunc(w.json.Added, func(a addedToken) bool { return a.ID == id && a.Content == text })
}

// template writes the templates of chats: one, or several with names.
func (w *words) template() error {
	var one string
	var several []struct{ Name, Template string }
	text := w.settings["chat_template"]
	if text == nil || string(text) == "null" {
		raw, err := w.read("chat_template.jinja")
		if err == nil {
			w.set(templateKey, gguf.Of(strings.ToValidUTF8(string(raw), "\uFFFD")))
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}

	if json.Unmarshal(text, &one) == nil {
		w.set(templateKey, gguf.Of(one))
		return nil
	}
	if err := json.Unmarshal(text, &several); err != nil {
		return w.export.fault(ErrTokenizer, "tokenizer_config.json: chat_template: %v", err)
	}

	var names []string
	for _, t := range several {
		key := templateKey
		if t.Name != "default" {
			key += "." + t.Name
			names = append(names, t.Name)
		}
		w.set(key, gguf.Of(t.Template))
	}
	if len(names) > 0 {
		w.set("tokenizer.chat_templates", gguf.List(names))
	}

	return nil
}
