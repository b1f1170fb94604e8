package modelcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/charmbracelet/x/term"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// Texts says where texts are: in Text itself, or one on each line of File ("-" is stdin).
type Texts struct {
	Text, File string
	IDs        bool // the texts are token ids: a line of a .jsonl file may be an array
}

// Each calls do for every text; errors name file and line. A pipe that gives nothing does not outlast ctx.
func (o Texts) Each(ctx context.Context, do func(string) error) error {
	if o.File == "" {
		if !utf8.ValidString(o.Text) {
			return errors.New("--text: not valid UTF-8")
		}
		return do(o.Text)
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()

	lines, failed := make(chan string), make(chan error, 1)
	go func() { failed <- o.read(ctx, lines) }()

	for n := 1; ; n++ {
		var line string
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case line = <-lines:
		}

		if err := o.text(line, do); err != nil {
			return fmt.Errorf("%s: line %d: %w", o.File, n, err)
		}
	}
}

// read sends the lines of the file. To open a pipe, and to read from it, can take any time.
func (o Texts) read(ctx context.Context, lines chan<- string) error {
	in := os.Stdin
	if o.File != "-" {
		f, err := os.Open(o.File)
		if err != nil {
			return err
		}
		defer f.Close()

		if st, err := f.Stat(); err == nil && st.Mode()&fs.ModeDevice != 0 && !term.IsTerminal(f.Fd()) {
			return fmt.Errorf("%s: a device", o.File)
		}

		in = f
	}

	r := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := readLine(r)
		if err == io.EOF && line == "" {
			return nil
		}

		if err != nil && err != io.EOF {
			return err
		}

		select {
		case lines <- strings.TrimSuffix(line, "\n"): // a carriage return is part of the text
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// maxLine bounds a line in bytes, so that an endless one does not take all memory.
const maxLine = 256 << 20

// errLine: a line is longer than maxLine.
var errLine = fmt.Errorf("a line of more than %d MiB", maxLine>>20)

// readLine is ReadString up to the next line break, with a limit.
func readLine(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		part, err := r.ReadSlice('\n')
		if b.Len()+len(part) > maxLine {
			return "", errLine
		}

		b.Write(part)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return b.String(), err
		}
	}
}

// text takes the text of a line and calls do for it.
func (o Texts) text(text string, do func(string) error) (err error) {
	if strings.HasSuffix(o.File, ".jsonl") {
		text, err = jsonText(text, o.IDs)
	} else if !utf8.ValidString(text) {
		err = errors.New("not valid UTF-8")
	}
	if err != nil {
		return err
	}
	return do(text)
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

// DecodeLine turns ids, separated by blanks or commas, into text.
func DecodeLine(tok *tokenizer.Tokenizer, line string, skipSpecial bool) (string, error) {
	var ids []int32
	for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" ,\t\r[]", r) }) {
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
