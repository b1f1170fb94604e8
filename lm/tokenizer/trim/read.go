package trim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/tokenizer"
)

var (
	// ErrNoTokenizer: a model has no tokenizer.json.
	ErrNoTokenizer = failure.New("no tokenizer.json, whose vocabulary could be trimmed",
		"transformers writes one: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)")
	// ErrKind: the tokenizer's model is not one whose tokens can be taken out.
	ErrKind = errors.New("a tokenizer whose vocabulary cannot be trimmed")
	// ErrFile: a file beside tokenizer.json does not say what it has to.
	ErrFile = errors.New("malformed file of a tokenizer")
)

// maxFile bounds what is read of one file, far above any tokenizer's.
const maxFile = 1 << 27

// Vocabulary is the tokenizer of a model with the files that name its ids, read to be made smaller. It never changes
// after [Read].
type Vocabulary struct {
	path  string
	tok   *tokenizer.Tokenizer
	texts map[string][]byte // files that name tokens or ids, as they are
	names []string          // of all files beside the weights

	root, model *orderedjson.Object // tokenizer.json, and its section of that name
	kind        string
	plain       map[string]int32 // the model's own tokens
	live        []bool           // by id: a token has it, and a text can yield it
	merges      []merge
	scores      []float64 // of Unigram, by id
	added       []*added
	named       []int32 // ids that the files name: they stay
	byteLevel   bool
}

// merge is an entry of the merge list.
type merge struct {
	left, right, into int32
	text              json.RawMessage
}

// added is an entry of added_tokens.
type added struct {
	id      int32
	content string
	fields  *orderedjson.Object
}

// Read reads the tokenizer of the model at path. The errors wrap [ErrNoTokenizer], [ErrKind] or [ErrFile], or are those
// of tokenizer.Load.
func Read(path string) (*Vocabulary, error) {
	v := &Vocabulary{path: path, texts: map[string][]byte{}}
	if err := v.readFiles(); err != nil {
		return nil, err
	}

	// The tokenizer's own reader first: it checks what the rest here relies on.
	var err error
	if v.tok, err = tokenizer.Load(path); err != nil {
		return nil, err
	}
	if err := v.parse(); err != nil {
		return nil, fmt.Errorf("%s: %w", weights.Place(path, tokenizerFile), err)
	}
	if err := v.findNamed(); err != nil {
		return nil, err
	}

	return v, nil
}

// Tokenizer is the tokenizer as it is.
func (v *Vocabulary) Tokenizer() *tokenizer.Tokenizer { return v.tok }

// Tokens is how many tokens there are, added ones included.
func (v *Vocabulary) Tokens() (n int) {
	for _, live := range v.live {
		if live {
			n++
		}
	}
	return n
}

// readFiles reads what names tokens or ids.
func (v *Vocabulary) readFiles() error {
	files, err := weights.OpenFiles(v.path)
	if err != nil {
		return err
	}
	defer files.Close()

	if v.names, err = files.Names(); err != nil {
		return err
	}

	for _, name := range []string{
		tokenizerFile, tokenizerConfig, specialTokens, addedTokens, vocabJSON, vocabText, mergesText, modelConfig,
		generationConfig,
	} {
		text, err := files.Read(name, maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		v.texts[name] = text
	}

	if v.texts[tokenizerFile] == nil {
		return fmt.Errorf("%s: %w", v.path, ErrNoTokenizer)
	}

	return nil
}

// parse reads tokenizer.json.
func (v *Vocabulary) parse() error {
	var err error
	if v.root, err = orderedjson.Parse(v.texts[tokenizerFile]); err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	if v.model, err = orderedjson.Parse(v.root.Get("model")); err != nil {
		return fmt.Errorf("%w: model: %w", ErrFile, err)
	}

	v.model.Decode("type", &v.kind)
	if v.kind == "" {
		v.kind = guess(v.model)
	}

	switch v.kind {
	case "BPE", "WordPiece", "WordLevel":
		err = v.readMap()
	case "Unigram":
		err = v.readList()
	default:
		err = fmt.Errorf("%w: its model is of type %q; known: BPE, Unigram, WordLevel, WordPiece", ErrKind, v.kind)
	}
	if err != nil {
		return err
	}

	v.byteLevel = mentionsByteLevel(v.root)
	if err := errors.Join(v.readMerges(), v.readAdded()); err != nil {
		return err
	}

	// Of two equal pieces of a list only the later one is live.
	v.live = make([]bool, v.tok.VocabSize())
	for _, id := range v.plain {
		v.live[id] = true
	}
	for _, a := range v.added {
		if _, ok := v.tok.Token(a.id); ok {
			v.live[a.id] = true
		}
	}

	return nil
}

// guess names the model of old files, which don't.
func guess(model *orderedjson.Object) string {
	switch {
	case model.Has("merges"):
		return "BPE"
	case strings.HasPrefix(strings.TrimSpace(string(model.Get("vocab"))), "["):
		return "Unigram"
	case model.Has("continuing_subword_prefix"):
		return "WordPiece"
	}
	return "WordLevel"
}

// mentionsByteLevel reports whether text becomes bytes before the model sees it.
func mentionsByteLevel(root *orderedjson.Object) bool {
	return slices.ContainsFunc([]string{"normalizer", "pre_tokenizer"}, func(key string) bool {
		return hasType(root.Get(key), "ByteLevel", 0)
	})
}

// maxDepth bounds how deeply components are looked into; the tokenizer's reader allows fewer levels.
const maxDepth = 32

// hasType reports whether a component, or one of a sequence, is of a type.
func hasType(text json.RawMessage, kind string, depth int) bool {
	o, err := orderedjson.Parse(text)
	if err != nil || depth > maxDepth {
		return false
	}

	var own string
	o.Decode("type", &own)
	if own == kind {
		return true
	}

	for _, key := range []string{"pretokenizers", "normalizers"} {
		var list []json.RawMessage
		o.Decode(key, &list)
		if slices.ContainsFunc(list, func(one json.RawMessage) bool { return hasType(one, kind, depth+1) }) {
			return true
		}
	}

	return false
}

// readMap reads a vocabulary of ids by tokens.
func (v *Vocabulary) readMap() error {
	if err := json.Unmarshal(v.model.Get("vocab"), &v.plain); err != nil {
		return fmt.Errorf("%w: model.vocab: %w", ErrFile, err)
	}
	return nil
}

// readList reads a vocabulary of tokens with scores. Of two equal ones the later counts, as for the tokenizer.
func (v *Vocabulary) readList() error {
	var list [][2]json.RawMessage
	if err := json.Unmarshal(v.model.Get("vocab"), &list); err != nil {
		return fmt.Errorf("%w: model.vocab: %w", ErrFile, err)
	}

	v.plain = make(map[string]int32, len(list))
	v.scores = make([]float64, len(list))
	for id, entry := range list {
		var token string
		err := errors.Join(json.Unmarshal(entry[0], &token), json.Unmarshal(entry[1], &v.scores[id]))
		if err != nil {
			return fmt.Errorf("%w: entry %d of model.vocab: %w", ErrFile, id, err)
		}
		v.plain[token] = int32(id)
	}

	return nil
}

// readMerges reads the merge list of BPE.
func (v *Vocabulary) readMerges() error {
	if v.kind != "BPE" || !v.model.Has("merges") {
		return nil
	}

	var list []json.RawMessage
	if err := json.Unmarshal(v.model.Get("merges"), &list); err != nil {
		return fmt.Errorf("%w: model.merges: %w", ErrFile, err)
	}

	var prefix string
	v.model.Decode("continuing_subword_prefix", &prefix)

	v.merges = make([]merge, 0, len(list))
	for i, text := range list {
		pair, err := parts(text)
		if err != nil || len(pair[1]) < len(prefix) {
			return fmt.Errorf("%w: merge %d: %.100s", ErrFile, i, text)
		}

		m := merge{text: text}
		var ok [3]bool
		m.left, ok[0] = v.plain[pair[0]]
		m.right, ok[1] = v.plain[pair[1]]
		m.into, ok[2] = v.plain[pair[0]+pair[1][len(prefix):]]
		if ok != [3]bool{true, true, true} {
			return fmt.Errorf("%w: merge %d names a token that is not in the vocabulary: %.100s", ErrFile, i, text)
		}
		v.merges = append(v.merges, m)
	}

	return nil
}

// parts are the two tokens of a merge: "left right", or a list of them.
func parts(text json.RawMessage) (pair [2]string, err error) {
	var list []string
	if json.Unmarshal(text, &list) == nil && len(list) == len(pair) {
		return [2]string(list), nil
	}

	var line string
	if err := json.Unmarshal(text, &line); err != nil {
		return pair, err
	}

	var ok bool
	if pair[0], pair[1], ok = strings.Cut(line, " "); !ok {
		return pair, ErrFile
	}
	return pair, nil
}

// readAdded reads added_tokens.
func (v *Vocabulary) readAdded() error {
	var list []json.RawMessage
	v.root.Decode("added_tokens", &list)
	for i, text := range list {
		o, err := orderedjson.Parse(text)
		if err != nil {
			return fmt.Errorf("%w: added token %d: %w", ErrFile, i, err)
		}

		a := &added{fields: o}
		if !o.Decode("id", &a.id) || !o.Decode("content", &a.content) {
			return fmt.Errorf("%w: added token %d has no id or no content", ErrFile, i)
		}
		v.added = append(v.added, a)
	}

	return nil
}
