// Package data reads the documents of tasks from files.
//
//	.jsonl .ndjson   one JSON object a line; blank lines are skipped
//	.json            a list of objects, an object that holds such a list under a field, or objects one after another
//	.csv .tsv        a header line, then records, as pandas reads them: columns of whole numbers, numbers or
//	                 True/False alone are read as such, whole numbers with empty cells as numbers with a
//	                 fraction; empty cells are None, and so are NA, None, nan, null and their like
//	.parquet         columns of any nesting of lists and groups (see package parquet)
//	.arrow .feather  the same, as the datasets library keeps its data (see package arrow)
//	.txt             one text a line, in the column text
//	.lst             one value a line, which becomes the column label of the records of the file before
//
// A name may be a pattern; its files are read in the order of their names. It may also be a folder that the datasets
// library wrote by save_to_disk, whose files are read in the order that it says. Where records differ in their keys,
// missing ones are None; a key whose numbers have fractions in some records has them in all (1 beside 2.5 is
// 1.0), as a column of the datasets library.
package data

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/arrow"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/parquet"
	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/safefile"
)

// The ways in which a data file can be wrong.
var (
	ErrNotFound = failure.New("no such data file", "give the folder of the data by --task-data")
	ErrRecord   = errors.New("bad record")
	ErrFormat   = errors.New("unknown format")
	ErrLimit    = errors.New("beyond a limit")
)

// known are the endings that tell a file's format whatever a task says.
var known = []string{"jsonl", "ndjson", "json", "csv", "tsv", "parquet", "txt", "arrow", "feather"}

const (
	maxLine    = 64 << 20
	maxRecords = 20_000_000
)

// Source says where the documents of a split are.
type Source struct {
	Files  []string // names or patterns
	Format string   // json, csv, tsv, parquet, arrow or text; "" to tell by the name
	Field  string   // of a JSON object
	Bases  []string // folders that names are relative to, in the order in which they are tried
}

// Load reads all documents.
func (s Source) Load() ([]*pyvalue.Dict, error) {
	var docs []*pyvalue.Dict
	last := 0 // records before the latest file
	for _, name := range s.Files {
		files, err := s.find(name)
		if err != nil {
			return nil, err
		}

		for _, file := range files {
			if filepath.Ext(file) == ".lst" {
				if err := addLabels(file, docs[last:]); err != nil {
					return nil, err
				}
				continue
			}

			some, err := s.read(file)
			if err != nil {
				return nil, err
			}

			last = len(docs)
			docs = append(docs, some...)
		}
	}

	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: no records: %w", strings.Join(s.Files, ", "), ErrRecord)
	}

	unify(docs)
	widen(docs)
	return docs, nil
}

// find looks for a name in the folders.
func (s Source) find(name string) ([]string, error) {
	var tried []string
	for _, base := range s.Bases {
		p := name
		if !filepath.IsAbs(name) {
			p = filepath.Join(base, filepath.FromSlash(name))
		}

		if files, err := filepath.Glob(p); err == nil && len(files) > 0 {
			slices.Sort(files)
			return saved(files)
		}

		if !slices.Contains(tried, p) {
			tried = append(tried, p)
		}
	}

	return nil, fmt.Errorf("%s: %w; looked for %s", name, ErrNotFound, strings.Join(tried, ", "))
}

// saved puts the data files of folders that the datasets library saved in the place of the folders.
func saved(names []string) ([]string, error) {
	var files []string
	for _, name := range names {
		some := []string{name}
		if st, err := os.Stat(name); err == nil && st.IsDir() {
			if some, err = arrow.Saved(name); err != nil {
				return nil, err
			}
			if some == nil {
				some = []string{name} // which says for itself that it is no file
			}
		}
		files = append(files, some...)
	}
	return files, nil
}

// Check checks that every file can be found, without reading any. The error wraps ErrNotFound.
func (s Source) Check() error {
	for _, name := range s.Files {
		if _, err := s.find(name); err != nil {
			return err
		}
	}
	return nil
}

// tables read the files of columns.
var tables = map[string]func(file string) ([]*pyvalue.Dict, error){
	"parquet": parquet.Read, "arrow": arrow.Read, "feather": arrow.Read,
}

// read reads one file.
func (s Source) read(file string) ([]*pyvalue.Dict, error) {
	format := s.Format
	ext := strings.TrimPrefix(filepath.Ext(file), ".")
	tabs := format == "tsv" && (ext == "csv" || ext == "txt") // a table by any of its names
	if !tabs && (format == "" || slices.Contains(known, ext)) {
		format = ext
	}

	if table := tables[format]; table != nil {
		rows, err := table(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return rows, nil
	}

	f, err := safefile.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	switch format {
	case "jsonl", "ndjson":
		return readLines(file, f)
	case "json":
		return s.readJSON(file, f)
	case "csv":
		return readTable(file, f, ',')
	case "tsv":
		return readTable(file, f, '\t')
	case "txt", "text":
		return readText(file, f)
	}

	return nil, fmt.Errorf("%s: %w %q; known: jsonl, json, csv, tsv, parquet, arrow, txt", file, ErrFormat, format)
}

// eachLine calls f with every line and its number, from 1.
func eachLine(file string, r io.Reader, f func(n int, line []byte) error) error {
	return eachPart(file, r, bufio.ScanLines, func(n int, line []byte) error {
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		return f(n, line)
	})
}

// eachPart calls f for every part that split finds, each of which is text of a bounded length.
func eachPart(file string, r io.Reader, split bufio.SplitFunc, f func(n int, part []byte) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 1<<16), maxLine)
	sc.Split(split)

	n := 0
	for sc.Scan() {
		n++
		line := sc.Bytes()
		if !utf8.Valid(line) {
			return fmt.Errorf("%s:%d: not UTF-8 text: %w", file, n, ErrRecord)
		}
		if err := f(n, line); err != nil {
			return err
		}
	}

	if err := sc.Err(); err != nil {
		return fmt.Errorf("%s:%d: %w", file, n+1, err)
	}

	return nil
}

func readLines(file string, r io.Reader) ([]*pyvalue.Dict, error) {
	var docs []*pyvalue.Dict
	err := eachLine(file, r, func(n int, line []byte) error {
		if len(bytes.TrimSpace(line)) == 0 {
			return nil
		}

		v, err := pyvalue.ParseJSON(line)
		if err != nil {
			return fmt.Errorf("%s:%d: %w: %w", file, n, ErrRecord, err)
		}

		d, ok := v.(*pyvalue.Dict)
		if !ok {
			return fmt.Errorf("%s:%d: a %s, want an object: %w", file, n, pyvalue.Kind(v), ErrRecord)
		}

		docs = append(docs, d)
		return tooMany(file, docs)
	})

	return docs, err
}

func tooMany(file string, docs []*pyvalue.Dict) error {
	if len(docs) > maxRecords {
		return fmt.Errorf("%s: more than %d records: %w", file, maxRecords, ErrLimit)
	}
	return nil
}

// readJSON reads a list of objects, an object with a field, or objects one after another.
func (s Source) readJSON(file string, r io.Reader) ([]*pyvalue.Dict, error) {
	d := json.NewDecoder(r)
	d.UseNumber()

	var docs []*pyvalue.Dict
	for {
		v, err := pyvalue.ReadJSON(d)
		if errors.Is(err, io.ErrUnexpectedEOF) && !d.More() && len(docs) > 0 {
			return docs, nil
		}

		if err != nil {
			return nil, fmt.Errorf("%s: byte %d: %w: %w", file, d.InputOffset(), ErrRecord, err)
		}

		if s.Field != "" {
			if v, err = field(file, v, s.Field); err != nil {
				return nil, err
			}
		}

		some, err := objects(file, v)
		if err != nil {
			return nil, err
		}

		docs = append(docs, some...)
		if err := tooMany(file, docs); err != nil {
			return nil, err
		}
	}
}

func field(file string, v any, name string) (any, error) {
	if d, ok := v.(*pyvalue.Dict); ok {
		if inner, ok := d.Get(name); ok {
			return inner, nil
		}
		return nil, fmt.Errorf("%s: no field %q; there are %s: %w", file, name, strings.Join(d.Keys(), ", "), ErrRecord)
	}
	return nil, fmt.Errorf("%s: a %s, want an object with the field %q: %w", file, pyvalue.Kind(v), name, ErrRecord)
}

func objects(file string, v any) ([]*pyvalue.Dict, error) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}

	docs := make([]*pyvalue.Dict, 0, len(list))
	for i, x := range list {
		d, ok := x.(*pyvalue.Dict)
		if !ok {
			return nil, fmt.Errorf("%s: record %d is a %s, want an object: %w", file, i, pyvalue.Kind(x), ErrRecord)
		}
		docs = append(docs, d)
	}

	return docs, nil
}

func readTable(file string, r io.Reader, comma rune) ([]*pyvalue.Dict, error) {
	br := bufio.NewReader(r)
	if b, err := br.Peek(3); err == nil && string(b) == "\ufeff" {
		br.Discard(3)
	}

	c := csv.NewReader(br)
	c.Comma, c.LazyQuotes = comma, comma == '\t'
	header, err := c.Read()
	if err != nil {
		return nil, tableFault(file, err)
	}

	var rows [][]string
	for {
		row, err := c.Read()
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			return nil, tableFault(file, err)
		}
		if len(rows) >= maxRecords {
			return nil, fmt.Errorf("%s: more than %d records: %w", file, maxRecords, ErrLimit)
		}

		for j, cell := range row {
			if slices.Contains(missing, cell) {
				row[j] = ""
			}
		}

		rows = append(rows, row)
	}

	docs := make([]*pyvalue.Dict, len(rows))
	for i := range docs {
		docs[i] = pyvalue.NewDict()
	}

	for j, name := range header {
		convert := columnType(rows, j)
		for i, row := range rows {
			docs[i].Set(name, convert(row[j]))
		}
	}

	return docs, nil
}

// missing are the cells that pandas, and with it the datasets library, reads as empty.
var missing = []string{
	"#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
	"NaN", "None", "n/a",
	"nan", "null",
}

// tableFault says where a table cannot be read.
func tableFault(file string, err error) error {
	var pe *csv.ParseError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s:%d: %w: %w", file, pe.Line, ErrRecord, pe.Err)
	}
	return fmt.Errorf("%s: %w: %w", file, ErrRecord, err)
}

// columnType finds the type that all cells of a column have. Empty cells are None.
func columnType(rows [][]string, j int) func(s string) any {
	types := []func(s string) (any, bool){
		func(s string) (any, bool) {
			n, err := strconv.ParseInt(s, 10, 64)
			return n, err == nil
		},
		func(s string) (any, bool) {
			f, err := strconv.ParseFloat(s, 64)
			return f, err == nil && strings.ContainsAny(s, "0123456789")
		},
		func(s string) (any, bool) { return s == "True" || s == "true", slices.Contains(truths, s) },
	}

	filled := 0
	for _, row := range rows {
		if row[j] != "" {
			filled++
		}
	}

	if filled < len(rows) {
		types = types[1:] // numbers with gaps have fractions
	}

	for _, parse := range types {
		fits := filled > 0
		for _, row := range rows {
			if _, ok := parse(row[j]); row[j] != "" && !ok {
				fits = false
				break
			}
		}

		if fits {
			return orNone(func(s string) any { v, _ := parse(s); return v })
		}
	}

	return orNone(func(s string) any { return s })
}

// orNone reads an empty cell as None.
func orNone(read func(s string) any) func(s string) any {
	return func(s string) any {
		if s == "" {
			return nil
		}
		return read(s)
	}
}

var truths = []string{"True", "true", "False", "false"}

// readText makes a record of every line, as the loader of the datasets package does that the harness uses: Python's
// text mode ends a line at \n, \r\n and a \r alone, lines without text are records too, and a byte order mark is text.
func readText(file string, r io.Reader) ([]*pyvalue.Dict, error) {
	var docs []*pyvalue.Dict
	err := eachPart(file, r, universalLines, func(_ int, line []byte) error {
		d := pyvalue.NewDict()
		d.Set("text", string(line))
		docs = append(docs, d)
		return tooMany(file, docs)
	})
	return docs, err
}

// universalLines splits where Python's text mode does.
func universalLines(data []byte, atEOF bool) (advance int, line []byte, err error) {
	end := bytes.IndexAny(data, "\r\n")
	switch {
	case end < 0 && atEOF && len(data) > 0:
		return len(data), data, nil
	case end < 0:
		return 0, nil, nil
	case data[end] == '\n':
		return end + 1, data[:end:end], nil
	case end+1 < len(data) && data[end+1] == '\n':
		return end + 2, data[:end:end], nil
	case end+1 < len(data) || atEOF:
		return end + 1, data[:end:end], nil
	}
	return 0, nil, nil // whether \n follows is not read yet
}

// addLabels reads values that belong to records.
func addLabels(file string, docs []*pyvalue.Dict) error {
	f, err := safefile.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()

	var labels []any
	err = eachLine(file, f, func(_ int, line []byte) error {
		s := strings.TrimSpace(string(line))
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			labels = append(labels, n)
			return nil
		}
		labels = append(labels, s)
		return nil
	})
	if err == nil && len(labels) != len(docs) {
		err = fmt.Errorf("%s: %d labels for %d records: %w", file, len(labels), len(docs), ErrRecord)
	}

	for i := 0; err == nil && i < len(docs); i++ {
		docs[i].Set("label", labels[i])
	}

	return err
}

// unify gives every record the keys of all.
func unify(docs []*pyvalue.Dict) {
	known := map[string]bool{}
	var keys []string
	for _, d := range docs {
		for _, k := range d.Keys() {
			if !known[k] {
				known[k] = true
				keys = append(keys, k)
			}
		}
	}

	for _, d := range docs {
		if d.Len() == len(keys) {
			continue
		}

		for _, k := range keys {
			if _, ok := d.Get(k); !ok {
				d.Set(k, nil)
			}
		}
	}
}

// widen gives whole numbers a fraction where a key has numbers of both kinds and nothing else beside None.
func widen(docs []*pyvalue.Dict) {
	for _, k := range docs[0].Keys() {
		whole := false
		broken := false
		other := false
		for _, d := range docs {
			switch v, _ := d.Get(k); v.(type) {
			case nil:
			case int64:
				whole = true
			case float64:
				broken = true
			default:
				other = true
			}
		}

		if !whole || !broken || other {
			continue
		}

		for _, d := range docs {
			v, _ := d.Get(k)
			if n, ok := v.(int64); ok {
				d.Set(k, float64(n))
			}
		}
	}
}
