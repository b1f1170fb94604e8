package recipe

import (
	"strings"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// Vocabulary says whose tokens the output has.
type Vocabulary uint8

// The vocabularies.
const (
	Union    Vocabulary = iota // the base's and every token that another model has
	FromBase                   // the base's
	FromRef                    // those of Tokenizer.Model
)

// Tokenizer is the recipe's wish for the output's tokenizer.
type Tokenizer struct {
	strictyaml.Place
	Vocabulary Vocabulary
	Model      Ref // for FromRef
	Tokens     []Token
	Multiple   int // pad_to_multiple_of: rows are filled up to a multiple of it; 0: not
}

// Token is a rule for the embedding row of one token, which is added to the vocabulary if it is not there.
type Token struct {
	strictyaml.Place
	Text   string
	Source TokenSource
	Force  bool // models that have a row of their own take the source's all the same
}

// TokenKind says what the source of a row is.
type TokenKind uint8

// The kinds of sources.
const (
	TokenDefault TokenKind = iota // none given
	TokenModel                    // the same token of Model
	TokenText                     // the token Text of Model
	TokenID                       // row ID of Model
	TokenZero                     // zeros
)

// TokenSource is where the row of a token comes from.
type TokenSource struct {
	Kind  TokenKind
	Model Ref
	Text  string
	ID    int
}

// references lists the models that a tokenizer names.
func (t *Tokenizer) references() []Ref {
	out := []Ref{t.Model}
	for _, x := range t.Tokens {
		out = append(out, x.Source.Model)
	}
	return out
}

// tokenizer decodes tokenizer_source or tokenizer.
func tokenizer(r *strictyaml.Reader, o *strictyaml.Object) *Tokenizer {
	short, long := o.Get("tokenizer_source"), o.Get("tokenizer")
	switch {
	case short != nil && long != nil:
		r.Add(short.Place, strictyaml.ErrValue, "tokenizer_source and tokenizer exclude each other")
		return nil
	case short != nil:
		t := &Tokenizer{Place: short.Place}
		vocabulary(r, short, t)
		return t
	case long == nil:
		return nil
	}

	t := &Tokenizer{Place: long.Place}
	x := r.Object(long, "tokenizer")
	if v := x.Get("source"); v != nil {
		vocabulary(r, v, t)
	}
	if v := x.Get("pad_to_multiple_of"); v != nil {
		t.Multiple = r.Int(v, "pad_to_multiple_of", 1, 1<<20)
	}
	if v := x.Get("tokens"); v != nil {
		tokens(r, v, t)
	}

	x.Close()
	return t
}

// vocabulary decodes "union", "base" or a model.
func vocabulary(r *strictyaml.Reader, n *strictyaml.Node, t *Tokenizer) {
	switch {
	case n.Kind == strictyaml.Scalar && n.Text == "union":
		t.Vocabulary = Union
	case n.Kind == strictyaml.Scalar && n.Text == "base":
		t.Vocabulary = FromBase
	default:
		t.Vocabulary, t.Model = FromRef, DecodeRef(r, n, "the tokenizer's source")
	}
}

// tokens decodes the rules of single tokens.
func tokens(r *strictyaml.Reader, n *strictyaml.Node, t *Tokenizer) {
	if n.Kind != strictyaml.Map {
		r.Add(n.Place, strictyaml.ErrType, "tokens must be a map of tokens, not %s", n.Kind)
	}

	for _, e := range n.Entries {
		x := Token{Place: e.Place, Text: e.Key}
		o := r.Object(e.Value, "the rule of a token")
		if v := o.Get("source"); v != nil {
			x.Source = tokenSource(r, v)
		}
		if v := o.Get("force"); v != nil {
			x.Force = r.Bool(v, "force")
		}

		o.Close()
		if x.Force && x.Source.Kind == TokenDefault {
			r.Add(e.Place, strictyaml.ErrMissingKey, "force: true needs a source to take the row of %q from", e.Key)
		}
		if e.Key == "" {
			r.Add(e.Place, strictyaml.ErrValue, "a token cannot be empty")
		}

		t.Tokens = append(t.Tokens, x)
	}
}

// tokenSource decodes a model, {kind: model_token, …} or {kind: zero}.
func tokenSource(r *strictyaml.Reader, n *strictyaml.Node) TokenSource {
	if n.Kind != strictyaml.Map || n.Get("kind") == nil {
		return TokenSource{Kind: TokenModel, Model: DecodeRef(r, n, "the token's source")}
	}

	o := r.Object(n, "the source of a token")
	kind := "zero"
	if v := o.Need("kind"); v != nil {
		kind = r.Choice(v, "kind", "model_token", "zero")
	}

	if kind != "model_token" {
		o.Close()
		return TokenSource{Kind: TokenZero}
	}

	out := TokenSource{Kind: TokenText}
	if v := o.Need("model"); v != nil {
		out.Model = DecodeRef(r, v, "model")
	}

	text, id := o.Get("token"), o.Get("token_id")
	if (text == nil) == (id == nil) {
		r.Add(n.Place, strictyaml.ErrValue, "a model_token needs exactly one of token and token_id")
	}

	if text != nil {
		out.Text = r.Text(text, "token")
	} else if id != nil {
		out.Kind, out.ID = TokenID, r.Int(id, "token_id", 0, 1<<30)
	}

	o.Close()
	return out
}

// Templates lists the chat templates that go by a name.
func Templates() []string { return []string{"alpaca", "chatml", "exaone", "llama3", "mistral"} }

// chatTemplate decodes the wish for a chat template: a literal has at least 20 bytes and a brace.
func chatTemplate(r *strictyaml.Reader, n *strictyaml.Node) string {
	text := r.Text(n, "chat_template")
	if n.Kind != strictyaml.Scalar || text == "auto" || len(text) >= 20 && strings.Contains(text, "{") {
		return text
	}
	return r.Choice(n, "chat_template", append([]string{"auto"}, Templates()...)...)
}
