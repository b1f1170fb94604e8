package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// eachText calls do for every text of the flags; errors name file and line.
func eachText(o tokenizeFlags, do func(string) error) error {
	if o.file == "" {
		if !utf8.ValidString(o.text) {
			return errors.New("--text: not valid UTF-8")
		}
		return do(o.text)
	}
	in := os.Stdin
	if o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	r := bufio.NewReaderSize(in, 1<<20)
	for n := 1; ; n++ {
		line, err := r.ReadString('\n')
		if err == io.EOF && line == "" {
			return nil
		}
		if err != nil && err != io.EOF {
			return err
		}
		text := strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if strings.HasSuffix(o.file, ".jsonl") {
			text, err = jsonText(text, o.decode)
		} else if err = nil; !utf8.ValidString(text) {
			err = errors.New("not valid UTF-8")
		}
		if err == nil {
			err = do(text)
		}
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", o.file, n, err)
		}
	}
}

// jsonText reads a JSON string, an object with "text", or (for --decode) an array of ids.
func jsonText(line string, ids bool) (string, error) {
	form := errors.New(`neither a JSON string nor an object with "text"`)
	line = strings.TrimSpace(line)
	switch {
	case line == "":
		return "", fmt.Errorf("a blank line: %w", form)
	case !utf8.ValidString(line):
		return "", errors.New("not valid UTF-8")
	case ids && line[0] == '[':
		return line, nil
	case line[0] == '"':
		var s string
		err := json.Unmarshal([]byte(line), &s)
		return s, err
	case line[0] != '{':
		return "", form
	}
	var object struct{ Text *string }
	if err := json.Unmarshal([]byte(line), &object); err != nil {
		return "", err
	}
	if object.Text == nil {
		return "", form
	}
	return *object.Text, nil
}

func decodeLine(tok *tokenizer.Tokenizer, line string, skipSpecial bool) (string, error) {
	var ids []int32
	for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" ,\t[]", r) }) {
		id, err := strconv.ParseInt(word, 10, 32)
		if err != nil {
			return "", fmt.Errorf("%q is not a token id", word)
		}
		if _, ok := tok.Token(int32(id)); !ok {
			return "", fmt.Errorf("no token has the id %d (the vocabulary has %d)", id, tok.VocabSize())
		}
		ids = append(ids, int32(id))
	}
	return tok.Decode(ids, skipSpecial), nil
}
