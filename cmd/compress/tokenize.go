package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/texts"
	"github.com/modelcompress/compress/lm/tokenizer"
)

type tokenizeFlags struct {
	text, file        string
	decode, noSpecial bool
}

func (a *app) tokenizeCmd() *cobra.Command {
	var o tokenizeFlags
	cmd := a.newVerb("tokenize MODEL (--text S | --file F)", "Turn text into token ids, or back",
		"Prints the token ids of a text, one output line for each input line. MODEL is a folder or a tokenizer.json. "+
			"A .jsonl file holds one JSON string, or an object with \"text\", a line. With --json: one array of arrays. "+
			"--decode reads ids, separated by blanks or commas, and prints text.",
		"compress tokenize testdata/nano/base --text 'Question: 14 + 6 ='", cobra.ExactArgs(1),
		func(j *job, args []string) (any, error) { return tokenize(j, args[0], o) })
	f := cmd.Flags()
	f.StringVar(&o.text, "text", "", "the text itself")
	f.StringVar(&o.file, "file", "", "a file with one text a line (- is stdin)")
	f.BoolVar(&o.decode, "decode", false, "turn ids into text")
	f.BoolVar(&o.noSpecial, "no-special", false, "add no special tokens; with --decode: leave them out of the text")
	cmd.MarkFlagsOneRequired("text", "file")
	cmd.MarkFlagsMutuallyExclusive("text", "file")
	return cmd
}

// tokenLines and textLines are what --json prints.
type (
	tokenLines [][]int32
	textLines  []string
)

func (tokenLines) raw() {}
func (textLines) raw()  {}

func tokenize(j *job, path string, o tokenizeFlags) (any, error) {
	tok, err := tokenizer.Load(path)
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriter(j.out())
	ids, decoded := tokenLines{}, textLines{}
	err = texts.Source{Text: o.text, File: o.file, IDs: o.decode}.Each(func(text string) error {
		if err := j.ctx.Err(); err != nil {
			return err
		}
		if o.decode {
			s, err := texts.DecodeLine(tok, text, o.noSpecial)
			if err == nil {
				fmt.Fprintln(out, s)
				decoded = append(decoded, s)
			}
			return err
		}
		line, err := tok.Encode(text, tokenizer.EncodeOptions{NoSpecial: o.noSpecial})
		if err != nil {
			return err
		}
		fmt.Fprintln(out, strings.Trim(fmt.Sprint(line), "[]"))
		if j.json || j.report != "" {
			ids = append(ids, append([]int32{}, line...))
		}
		return nil
	})
	if err = errors.Join(err, out.Flush()); err != nil {
		return nil, err
	}
	if o.decode {
		return decoded, nil
	}
	return ids, nil
}
