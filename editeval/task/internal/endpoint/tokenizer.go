package endpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Tokenizer is that of a server: POST /tokenize, as this program, vLLM and llama.cpp have it. It asks for every text,
// one after another.
type Tokenizer struct {
	c       *Client
	ctx     context.Context // of the run; the interface of tokenizers has none
	content bool            // llama.cpp's form
	special map[string]token
}

// token is a special token.
type token struct {
	text string
	id   int32
}

// hintTokenizer says what to do where a server has no tokenizer.
const hintTokenizer = "name the folder of the model's tokenizer.json with --tokenizer"

// OpenTokenizer finds out in which form the server has its tokenizer, and its special tokens.
func OpenTokenizer(ctx context.Context, c *Client) (*Tokenizer, error) {
	t := &Tokenizer{c: c, ctx: ctx, special: map[string]token{}}
	ids, err := t.encode("a", true)
	if err == nil && len(ids) == 0 || errors.Is(err, ErrRefused) || errors.Is(err, ErrAnswer) {
		t.content = true
		ids, err = t.encode("a", true)
	}
	if err == nil && len(ids) == 0 {
		err = fmt.Errorf("%s: %w: no tokens", c.beside("/tokenize"), ErrAnswer)
	}
	if err != nil {
		return nil, absent(err)
	}

	// vLLM's and this program's form; then llama.cpp's.
	var names map[string]any
	info := c.beside("/tokenizer_info")
	info.RawQuery = url.Values{"model": {c.Model}}.Encode()
	err = c.ask(ctx, http.MethodGet, info, nil, &names)
	if errors.Is(err, ErrAbsent) {
		err = c.ask(ctx, http.MethodGet, c.beside("/props"), nil, &names)
	}
	if err != nil {
		return nil, absent(err)
	}

	for _, name := range []string{"bos_token", "eos_token", "pad_token"} {
		text, _ := names[name].(string)
		if text == "" {
			continue
		}
		ids, err := t.encode(text, true)
		if err != nil {
			return nil, err
		}
		if len(ids) != 1 {
			return nil, failure.Hinted(fmt.Errorf("%s: %w: the %s is %d tokens", c.beside("/tokenize"), ErrAnswer, name,
				len(ids)), hintTokenizer)
		}
		t.special[name] = token{text, ids[0]}
	}
	return t, nil
}

// absent hints at another way where the server's tokenizer cannot be used.
func absent(err error) error {
	if errors.Is(err, ErrAbsent) || errors.Is(err, ErrAnswer) || errors.Is(err, ErrRefused) {
		return failure.Hinted(err, hintTokenizer)
	}
	return err
}

// Encode implements the interface of tokenizers.
func (t *Tokenizer) Encode(text string, o tokenizer.EncodeOptions) ([]int32, error) {
	if text == "" && o.NoSpecial {
		return nil, nil
	}
	return t.encode(text, o.NoSpecial)
}

func (t *Tokenizer) encode(text string, plain bool) ([]int32, error) {
	body := map[string]any{"model": t.c.Model, "prompt": text, "add_special_tokens": !plain}
	if t.content {
		body = map[string]any{"content": text, "add_special": !plain, "parse_special": true}
	}

	var a struct {
		Tokens []int32 `json:"tokens"`
	}
	err := t.c.ask(t.ctx, http.MethodPost, t.c.beside("/tokenize"), body, &a)
	return a.Tokens, err
}

// Token gives the text of a special token; of others it is not known.
func (t *Tokenizer) Token(id int32) (string, bool) {
	for _, s := range t.special {
		if s.id == id {
			return s.text, true
		}
	}
	return "", false
}

// BOS is the start token.
func (t *Tokenizer) BOS() (int32, bool) { return t.id("bos_token") }

// EOS is the end token.
func (t *Tokenizer) EOS() (int32, bool) { return t.id("eos_token") }

// PAD is the token that fills up.
func (t *Tokenizer) PAD() (int32, bool) { return t.id("pad_token") }

func (t *Tokenizer) id(name string) (int32, bool) {
	s, ok := t.special[name]
	return s.id, ok
}

// Hash tells tokenizers apart by whose they are: what they hold is not known.
func (t *Tokenizer) Hash() string {
	sum := sha256.Sum256([]byte("tokenizer of " + t.c.Address() + " " + t.c.Model))
	return hex.EncodeToString(sum[:])
}
