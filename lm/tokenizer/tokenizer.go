package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// Tokenizer converts text to token ids and back. It is made by Load or Parse, never changes afterwards and is safe for
// concurrent use.
type Tokenizer struct {
	hash    string
	tokens  []token          // by id
	ids     map[string]int32 // the model's vocabulary
	added   addedVocab
	norm    []prepare.Normalizer
	pre     []prepare.Splitter
	model   model
	post    postProcessor
	decoder []decodeStep
	// byteDecoder: the decoder is ByteLevel alone, so that each token gives its bytes whatever stands around it.
	byteDecoder bool
	info        info
	pool        sync.Pool // *encoder
}

// token is one entry of the vocabulary.
type token struct {
	text string
	kind tokenKind
}

type tokenKind uint8

const (
	tokenNone    tokenKind = iota // no token has this id
	tokenModel                    // in the model's vocabulary
	tokenAdded                    // listed in added_tokens
	tokenSpecial                  // listed in added_tokens as special
)

// Load reads a tokenizer: path is a tokenizer.json file, or a model that has one beside its weights or, in a GGUF file,
// what it is made of. A tokenizer_config.json (or special_tokens_map.json) beside it, where present, says which tokens
// are BOS, EOS and PAD.
func Load(path string) (*Tokenizer, error) {
	model, name := path, "tokenizer.json"
	if st, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	} else if !st.IsDir() && !weights.IsGGUF(path) {
		model, name = filepath.Split(filepath.Clean(path))
	}

	files, err := weights.OpenFiles(filepath.Clean(model))
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	defer files.Close()

	data, err := files.Read(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failure.Hinted(fmt.Errorf("tokenizer: %w", err),
			"put the tokenizer.json of its base into the model's folder, or give token ids")
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}

	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", weights.Place(files.Path(), name), err)
	}

	if err := t.readInfo(files); err != nil {
		return nil, err
	}

	return t, nil
}

// maxFile bounds the size of a tokenizer.json; the largest in use have some 40 MB. Tables take up to about
// fifty times the space of the text they come from.
const maxFile = 1 << 27

// Parse reads the text of a tokenizer.json of at most 128 MiB. BOS, EOS and PAD are then known only as far as
// the post-processor says.
func Parse(data []byte) (*Tokenizer, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrSyntax, len(data), maxFile)
	}

	sum := sha256.Sum256(data)
	t := &Tokenizer{hash: hex.EncodeToString(sum[:])}
	t.info = info{bos: -1, eos: -1, pad: -1}
	t.pool.New = func() any { return newEncoder(t) }
	f, err := splitFile(string(data))
	if err != nil {
		return nil, err
	}

	if err := t.build(f); err != nil {
		return nil, err
	}

	return t, nil
}

// sections of a tokenizer.json that matter here.
type sections struct {
	added, normalizer, pre, post, decoder, model config.Value
}

func splitFile(data string) (f sections, err error) {
	c, err := config.NewCursor(data)
	if err != nil {
		return f, err
	}

	at := map[string]*config.Value{
		"added_tokens": &f.added, "normalizer": &f.normalizer, "pre_tokenizer": &f.pre,
		"post_processor": &f.post, "decoder": &f.decoder, "model": &f.model,
	}

	err = c.Object(func(key string) error {
		v, err := c.Raw()
		if p := at[key]; p != nil {
			*p = v
		}
		return err
	})
	if err == nil {
		err = c.End()
	}
	if err == nil && f.model.Absent() {
		err = fmt.Errorf("%w: no section \"model\"", ErrSyntax)
	}

	return f, err
}

// build makes every component. The model comes first: the added tokens need its vocabulary, and the pre-tokenizer
// needs to know what the model accepts.
func (t *Tokenizer) build(f sections) (err error) {
	if t.model, err = t.buildModel(f.model); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if t.norm, err = prepare.Normalizers(f.normalizer); err != nil {
		return fmt.Errorf("normalizer: %w", err)
	}
	if err = t.buildAdded(f.added); err != nil {
		return fmt.Errorf("added_tokens: %w", err)
	}
	if t.pre, err = prepare.Splitters(f.pre); err != nil {
		return fmt.Errorf("pre_tokenizer: %w", err)
	}
	if t.post, err = t.buildPost(f.post); err != nil {
		return fmt.Errorf("post_processor: %w", err)
	}
	if err = t.buildDecoder(f.decoder); err != nil {
		return fmt.Errorf("decoder: %w", err)
	}

	t.useRawBytes()
	return nil
}

// useRawBytes drops the mapping of bytes to printable characters where the model can read bytes as they are: a
// byte-level BPE whose last pre-tokenizer is ByteLevel.
func (t *Tokenizer) useRawBytes() {
	m, ok := t.model.(*bpe)
	if !ok || len(t.pre) == 0 {
		return
	}
	last, ok := t.pre[len(t.pre)-1].(*prepare.ByteLevel)
	if ok && m.acceptBytes() {
		last.Raw = true
	}
}

// Hash returns the SHA-256 of the tokenizer.json, in lower-case hexadecimal.
func (t *Tokenizer) Hash() string { return t.hash }

// VocabSize returns one more than the largest token id, added tokens included: the least number of rows that an
// embedding for this tokenizer needs.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// TokenID returns the id of a token by its text as the file spells it ("Ġthe", "▁the", "<s>").
func (t *Tokenizer) TokenID(text string) (int32, bool) {
	if id, ok := t.added.ids[text]; ok {
		return id, true
	}
	id, ok := t.ids[text]
	return id, ok
}

// Token returns the text of a token as the file spells it. It reports false for an id that no token has.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if id < 0 || int(id) >= len(t.tokens) || t.tokens[id].kind == tokenNone {
		return "", false
	}
	return t.tokens[id].text, true
}

// Special reports whether id is a special token (one that Decode can skip).
func (t *Tokenizer) Special(id int32) bool {
	return id >= 0 && int(id) < len(t.tokens) && t.tokens[id].kind == tokenSpecial
}

// BOS returns the id of the token that begins a sequence, if the configuration beside the file names one or the
// post-processor writes one in front.
func (t *Tokenizer) BOS() (int32, bool) { return t.info.bos, t.info.bos >= 0 }

// EOS returns the id of the token that ends a sequence, if the configuration names one or the post-processor writes
// one at the end.
func (t *Tokenizer) EOS() (int32, bool) { return t.info.eos, t.info.eos >= 0 }

// PAD returns the id of the padding token, if the configuration names one.
func (t *Tokenizer) PAD() (int32, bool) { return t.info.pad, t.info.pad >= 0 }

// AddsBOS reports what tokenizer_config.json says in add_bos_token; known is false when it says nothing. It is
// information only: Encode does what the file's post-processor says.
func (t *Tokenizer) AddsBOS() (add, known bool) { return flagOf(t.info.addBOS) }

// AddsEOS is AddsBOS for add_eos_token.
func (t *Tokenizer) AddsEOS() (add, known bool) { return flagOf(t.info.addEOS) }

func flagOf(p *bool) (value, known bool) { return p != nil && *p, p != nil }
