package modelcmd

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// TokenizeOptions say what becomes ids, or text.
type TokenizeOptions struct {
	Text, File string // the text itself, or a file with one text a line
	Decode     bool   // turn ids into text
	NoSpecial  bool   // add no special tokens; with Decode: leave them out
}

// tokenLines and textLines are what --json prints.
type (
	tokenLines [][]int32
	textLines  []string
)

func (tokenLines) Raw() {}
func (textLines) Raw()  {}

// Tokenize prints the ids of texts, or the texts of ids.
func Tokenize(j *cli.Job, path string, o TokenizeOptions) (any, error) {
	tok, err := tokenizer.Load(path)
	if err != nil {
		return nil, err
	}

	out := bufio.NewWriter(j.Stream())
	ids, decoded := tokenLines{}, textLines{}
	err = Texts{Text: o.Text, File: o.File, IDs: o.Decode}.Each(j.Ctx, func(text string) error {
		if err := j.Ctx.Err(); err != nil {
			return err
		}

		if o.Decode {
			s, err := DecodeLine(tok, text, o.NoSpecial)
			if err == nil {
				fmt.Fprintln(out, s)
				decoded = append(decoded, s)
			}
			return err
		}

		line, err := tok.Encode(text, tokenizer.EncodeOptions{NoSpecial: o.NoSpecial})
		if err != nil {
			return err
		}

		fmt.Fprintln(out, strings.Trim(fmt.Sprint(line), "[]"))
		if j.Reports() {
			ids = append(ids, append([]int32{}, line...))
		}

		return nil
	})

	if err = errors.Join(err, out.Flush()); err != nil {
		return nil, err
	}
	if o.Decode {
		return decoded, nil
	}

	return ids, nil
}
