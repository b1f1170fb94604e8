package corpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/arrow"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/parquet"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/scratch"
)

// File is an opened data file.
type File struct {
	*os.File
	// Records: it is JSON Lines, whatever its name says: the records of a Parquet or Arrow file, of a folder or
	// of several files, in a temporary file that goes when this one is closed.
	Records bool

	release func() error // of the folder of a temporary file; nil: it is none
}

// Close closes the file, and removes it if it is a temporary one.
func (f *File) Close() error {
	err := f.File.Close()
	if f.release != nil {
		err = errors.Join(err, f.release())
	}
	return err
}

// temporary makes a temporary file, which Close removes; that of a process that was killed goes with the next one.
func temporary() (*File, error) {
	dir, release, err := scratch.Folder("compress-corpus-")
	if err != nil {
		return nil, err
	}

	f, err := os.Create(filepath.Join(dir, "records.jsonl"))
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return &File{File: f, release: release}, nil
}

// Open opens a data file for reading. Of a Parquet or Arrow file, of a JSON file that is one list of records, of a
// folder of such and JSONL files or else of plain texts, and of the files that a pattern such as data/train-*.parquet
// fits, it gives the records, file after file in the order of their names; a plain text is one record. A folder that
// the datasets library saved is read in the order that it says itself. The errors wrap [ErrOptions], [ErrEmpty],
// [ErrRecord], [ErrUTF8], [ErrTooLarge], those of reading Parquet and Arrow, or are of the operating system.
func Open(path string) (*File, error) {
	files, err := parts(path)
	if err != nil {
		return nil, err
	}
	if files == nil {
		f, err := safefile.Open(path)
		return &File{File: f}, err
	}

	out, err := temporary()
	if err != nil {
		return nil, err
	}

	out.Records = true
	w := bufio.NewWriterSize(out, 1<<18)
	for _, name := range files {
		if err := appendLines(w, name); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", name, err), out.Close())
		}
	}
	if err := w.Flush(); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, out.Close())
	}

	return out, nil
}

// parts lists the files whose records a path stands for; nil: it is one file that is read as it is.
func parts(path string) ([]string, error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(path, "*?"):
		files, err := filepath.Glob(path)
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("%s: %w", path, fs.ErrNotExist)
		}
		slices.Sort(files)
		return files, err
	case err != nil:
		return nil, err
	case st.IsDir():
		return folder(path)
	case tables[ending(path)] != nil:
		return []string{path}, nil
	case ending(path) == ".json" && st.Mode().IsRegular(): // what cannot be read twice is not looked into
		is, err := list(path)
		if err != nil || !is {
			return nil, err
		}
		return []string{path}, nil
	}
	return nil, nil
}

// list says whether a JSON file is one list of records, as Alpaca and ShareGPT are distributed.
func list(path string) (bool, error) {
	r, done, err := unpacked(path)
	if err != nil {
		return false, err
	}
	defer done()
	return beginsList(r), nil
}

// beginsList says whether a list of objects or strings comes next, which is left to be read. What cannot be read is
// none: whoever reads it says why.
func beginsList(r *bufio.Reader) bool {
	head, _ := r.Peek(4096)
	inside, ok := bytes.CutPrefix(bytes.TrimSpace(head), []byte("["))
	inside = bytes.TrimSpace(inside)
	return ok && len(inside) > 0 && (inside[0] == '{' || inside[0] == '"')
}

// tables read the files of columns as records, by the ending of the name.
var tables = map[string]func(file string, w io.Writer) error{
	".parquet": parquet.Lines, ".arrow": arrow.Lines, ".feather": arrow.Lines,
}

// ending is the ending of a name by which its format is known.
func ending(name string) string {
	return filepath.Ext(strings.TrimSuffix(strings.ToLower(name), ".gz"))
}

// about are files that say what is in a folder of the datasets library or of a Hugging Face repository, or belong to a
// tokenizer.
var about = []string{
	"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json",
	"README.txt", "LICENSE.txt", "requirements.txt", "vocab.txt", "merges.txt",
}

// folder lists the data files of a folder: those with records, or where there are none the plain texts, which beside
// records are rather remarks about them.
func folder(dir string) ([]string, error) {
	if files, err := arrow.Saved(dir); files != nil || err != nil {
		return files, err
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}

	var files, texts []string
	for _, e := range entries {
		name := e.Name()
		switch end := ending(name); {
		case e.IsDir() || strings.HasPrefix(name, ".") || slices.Contains(about, name):
		case strings.HasPrefix(name, "cache-") && end == ".arrow":
			// What map and filter of the datasets library have left beside the data that they were called on.
		case tables[end] != nil || slices.Contains([]string{".jsonl", ".ndjson", ".json"}, end):
			files = append(files, filepath.Join(dir, name))
		case end == ".txt":
			texts = append(texts, filepath.Join(dir, name))
		}
	}

	if len(files) == 0 {
		files = texts
	}
	splits := map[string]bool{}
	for _, name := range files {
		if s := split(name); s != "" {
			splits[s] = true
		}
	}

	switch {
	case len(files) == 0:
		return nil, failure.Hinted(fmt.Errorf("%s: %w: a folder without .jsonl, .parquet, .arrow and .txt files", dir,
			ErrFolder), "name one file, or the folder in which they lie")
	case len(splits) > 1:
		pattern := "train*"
		if strings.HasSuffix(files[0], ".arrow") && !strings.HasPrefix(filepath.Base(files[0]), split(files[0])) {
			pattern = "*-train*.arrow"
		}
		return nil, failure.Hinted(fmt.Errorf("%s: %w: a folder with the splits of a data set side by side", dir,
			ErrFolder), "name the files of one of them by a pattern in quotes, such as '"+
			filepath.Join(dir, pattern)+"'")
	}
	return files, nil
}

// split is the part of a data set that a file belongs to by its name; empty: it does not say. The cache of the datasets
// library has it at the end of the name: imdb-train.arrow, imdb-train-00000-of-00002.arrow.
func split(name string) string {
	word := strings.ToLower(filepath.Base(name))
	if rest, ok := strings.CutSuffix(word, ".arrow"); ok {
		rest = shard.ReplaceAllString(rest, "")
		if s := beginsSplit(rest[strings.LastIndexByte(rest, '-')+1:]); s != "" {
			return s
		}
	}
	return beginsSplit(word)
}

// shard is what the datasets library puts behind the name of a file that is one of several.
var shard = regexp.MustCompile(`-\d+-of-\d+$`)

// beginsSplit is the part of a data set whose name a text begins with.
func beginsSplit(word string) string {
	for _, s := range []string{"train", "validation", "valid", "test", "dev", "eval"} {
		if rest, ok := strings.CutPrefix(word, s); ok && (rest == "" || strings.ContainsRune("-_.", rune(rest[0]))) {
			return s
		}
	}
	return ""
}

// appendLines writes the records of a file as JSON Lines.
func appendLines(w io.Writer, name string) error {
	end := ending(name)
	if lines := tables[end]; lines != nil {
		return lines(name, w)
	}
	if end != ".jsonl" && end != ".ndjson" && end != ".json" && end != ".txt" {
		return fmt.Errorf("%w: of several files, only .jsonl, .parquet, .arrow and .txt files are read", ErrOptions)
	}

	b, done, err := unpacked(name)
	if err != nil {
		return err
	}
	defer done()
	if end == ".txt" {
		return appendText(w, b)
	}
	if end == ".json" && beginsList(b) {
		return appendList(w, b)
	}
	last := &ends{w: w}
	if _, err := io.Copy(last, b); err != nil || last.byte == '\n' {
		return err
	}
	_, err = io.WriteString(w, "\n")
	return err
}

// unpacked opens a file to be read from its beginning, unpacked where its name says that it is packed, and without a
// byte order mark.
func unpacked(name string) (b *bufio.Reader, done func(), err error) {
	f, err := safefile.Open(name)
	if err != nil {
		return nil, nil, err
	}

	var r io.Reader = f
	if strings.HasSuffix(strings.ToLower(name), ".gz") {
		z, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<18))
		if err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
		r = &bounded{r: z, left: maxUnpacked}
	}

	b = bufio.NewReaderSize(r, 1<<18)
	if head, err := b.Peek(3); err == nil && string(head) == "\ufeff" {
		if _, err := b.Discard(3); err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
	}
	return b, func() { f.Close() }, nil
}

// appendList writes the elements of a JSON list, each on one line.
func appendList(w io.Writer, r io.Reader) error {
	// A record more than the decoder may have read ahead.
	part := &io.LimitedReader{R: r}
	d := json.NewDecoder(part)
	var line bytes.Buffer

	part.N = maxRecord
	if _, err := d.Token(); err != nil { // the bracket
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	for n := 1; ; n++ {
		part.N = maxRecord
		more := d.More()
		var record json.RawMessage
		var err error
		if more {
			err = d.Decode(&record)
		} else {
			_, err = d.Token()
		}
		switch {
		case err != nil && part.N == 0:
			return fmt.Errorf("record %d: %w: more than %d bytes", n, ErrTooLarge, maxRecord)
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("record %d: %w: the list ends in the middle; is the file whole?", n, ErrRecord)
		case err != nil:
			return fmt.Errorf("record %d: %w: %w", n, ErrRecord, err)
		case !more:
			if _, err := d.Token(); !errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: more after the end of the list", ErrRecord)
			}
			return nil
		}

		line.Reset()
		if err := json.Compact(&line, record); err != nil {
			return fmt.Errorf("record %d: %w: %w", n, ErrRecord, err)
		}
		line.WriteByte('\n')
		if _, err := w.Write(line.Bytes()); err != nil {
			return err
		}
	}
}

// appendText writes a plain text as one record, and an empty one as none.
func appendText(w io.Writer, r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, maxRecord+1))
	if err != nil || len(text) == 0 {
		return err
	}
	if len(text) > maxRecord {
		return fmt.Errorf("%w: a text of more than %d bytes among several (HINT: name this file alone)", ErrTooLarge,
			maxRecord)
	}
	// What is no UTF-8 would be replaced by the encoder.
	if !utf8.Valid(text) {
		return fmt.Errorf("%w at byte %d", ErrUTF8, invalidAt(text))
	}

	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(map[string]string{"text": string(text)})
}

// ends passes on what is written, and keeps the last byte of it.
type ends struct {
	w    io.Writer
	byte byte
}

func (e *ends) Write(p []byte) (int, error) {
	if len(p) > 0 {
		e.byte = p[len(p)-1]
	}
	return e.w.Write(p)
}
