package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/safetensors"
)

// Inspect looks at a folder or a .safetensors file: at the headers, with values also at every number, and with
// verify also at the shapes that the configuration gives. A value that is not finite is an error with verify.
func Inspect(ctx context.Context, path string, values, verify bool, e Env) (*Inspection, error) {
	src, err := safetensors.OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()

	raw, err := readConfig(path)
	if err != nil {
		return nil, err
	}

	var config *arch.Config
	var parts map[string]*packed
	note := ""
	if raw != nil {
		config, err = parseConfig(filepath.Join(path, "config.json"), raw)
		if errors.Is(err, arch.ErrUnknown) {
			note = err.Error()
		} else if err != nil {
			return nil, err
		}

		if isPacked(raw) {
			if parts, err = packedParts(src); err != nil {
				return nil, err
			}
		}
	}

	var table *arch.Arch
	if config != nil {
		table = config.Arch
	}

	each := separate(src, table)
	r := newInspection(path, each, config, parts)
	r.Note = note

	if values || verify {
		if err := r.readValues(ctx, each, e); err != nil {
			return nil, err
		}
	}

	if verify {
		if err := r.verifyPacked(ctx, src, parts, structureOf(raw)); err != nil {
			return nil, err
		}
		return r, r.verify(ctx, path, config != nil, e)
	}

	return r, nil
}

// verify checks what the headers, read already, cannot tell: every value, and the shapes against the configuration.
func (r *Inspection) verify(ctx context.Context, path string, loads bool, e Env) error {
	var first *TensorReport
	bad := 0
	for i := range r.List {
		if r.List[i].NonFinite != "" {
			bad++
			if first == nil {
				first = &r.List[i]
			}
		}
	}

	if first != nil {
		return fmt.Errorf("%s: tensor %q: element %s is NaN or infinite (%d of %d tensors have such values)",
			filepath.Join(path, first.file), first.Name, first.NonFinite, bad, len(r.List))
	}

	r.Verified = []string{"headers", "offsets", "values"}
	if !loads {
		return nil
	}

	m, err := lm.Load(ctx, path, e.Device, lm.Options{Stream: true})
	if err != nil {
		return err
	}
	defer m.Close()

	r.Verified = append(r.Verified, "shapes")
	tok, err := tokenizer.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err == nil {
		err = FitTokenizer(path, tok, m.Config())
	}
	if err == nil {
		r.Verified = append(r.Verified, "tokenizer")
	}

	return err
}

// FitTokenizer tells whether a model knows every token of a tokenizer. A model may have more: rows that fill
// its table up.
func FitTokenizer(path string, tok *tokenizer.Tokenizer, c *arch.Config) error {
	if tok.VocabSize() <= c.Vocab {
		return nil
	}

	table := ""
	for _, t := range c.Arch.Tensors {
		if t.Role == arch.Embed {
			table = t.Name
		}
	}

	return fmt.Errorf("%s: the tokenizer has %d token ids, but tensor %q and vocab_size of config.json have %d: "+
		"they do not belong together",
		filepath.Join(path, "tokenizer.json"), tok.VocabSize(), table, c.Vocab)
}
