// Package parquet reads Parquet files into records: columns of booleans, numbers and texts, in lists and groups
// of any nesting, plain or with dictionaries, uncompressed or compressed with Snappy, gzip or Zstandard. This
// is what data sets are published in. Columns of other encodings (delta, byte streams) and encrypted files are
// refused by name, and columns of texts that are no UTF-8. Binaries are texts, with U+FFFD for bytes that are none.
package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/safefile"
)

// The ways in which a file can fail to be read.
var (
	ErrFormat      = errors.New("bad Parquet file")
	ErrUnsupported = errors.New("not supported in Parquet files")
)

// Bounds on what a file may ask for.
const (
	maxFooter = 64 << 20
	maxPage   = 1 << 30
	maxValues = 1 << 24 // of a column in a row group
	maxRows   = 1 << 24
)

var magic = []byte("PAR1")

// Read reads all records of a file.
func Read(file string) (rows []*pyvalue.Dict, err error) {
	err = safefile.Use(file, func(r io.ReaderAt, size int64) error {
		rows, err = read(r, size)
		return err
	})
	return rows, err
}

// Lines writes all records of a file as JSON, one a line, with one row group in memory at a time.
func Lines(file string, w io.Writer) error {
	return safefile.Use(file, func(r io.ReaderAt, size int64) error {
		return groups(r, size, func(rows []*pyvalue.Dict) error {
			for _, row := range rows {
				line, err := pyvalue.AppendJSON(nil, row)
				if err != nil {
					return err
				}
				if _, err := w.Write(append(line, '\n')); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// reader reads one file.
type reader struct {
	r    io.ReaderAt
	size int64
	root *node
}

func read(r io.ReaderAt, size int64) (all []*pyvalue.Dict, err error) {
	err = groups(r, size, func(rows []*pyvalue.Dict) error {
		all = append(all, rows...)
		return nil
	})
	return all, err
}

// groups gives the records of each row group to a function.
func groups(r io.ReaderAt, size int64, take func(rows []*pyvalue.Dict) error) error {
	footer, err := readFooter(r, size)
	if err != nil {
		return err
	}

	meta, _, err := parseThrift(footer)
	if err != nil {
		return err
	}

	in := &reader{r: r, size: size}
	if in.root, err = schema(meta.list(2)); err != nil {
		return err
	}
	if n := meta.int(3); n < 0 || n > maxRows {
		return fmt.Errorf("%w: %d rows", ErrFormat, n)
	}

	before := int64(0)
	for _, g := range meta.list(4) {
		group, ok := g.(fields)
		if !ok {
			return fmt.Errorf("%w: row group", ErrFormat)
		}

		rows, err := in.group(before, group)
		if err != nil {
			return err
		}
		if err := take(rows); err != nil {
			return err
		}
		before += int64(len(rows))
	}

	return nil
}

// readFooter gives the description at the end of the file.
func readFooter(r io.ReaderAt, size int64) ([]byte, error) {
	var tail [8]byte
	if size < 12 {
		return nil, fmt.Errorf("%w: %d bytes", ErrFormat, size)
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil {
		return nil, err
	}
	if string(tail[4:]) == "PARE" {
		return nil, fmt.Errorf("%w: encryption", ErrUnsupported)
	}

	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if !bytes.Equal(tail[4:], magic) || n > maxFooter || n > size-12 {
		return nil, fmt.Errorf("%w: no footer", ErrFormat)
	}

	footer := make([]byte, n)
	_, err := r.ReadAt(footer, size-8-n)
	return footer, err
}

// group reads the records of a row group, with so many before it.
func (in *reader) group(before int64, group fields) (rows []*pyvalue.Dict, err error) {
	n := group.int(3)
	chunks := group.list(1)
	if n < 0 || before+n > maxRows || len(chunks) != in.root.leaves {
		return nil, fmt.Errorf("%w: %d columns, %d rows in a row group", ErrFormat, len(chunks), n)
	}

	columns := make([][]entry, len(chunks))
	for i, c := range chunks {
		chunk, ok := c.(fields)
		if !ok {
			return nil, fmt.Errorf("%w: column %d", ErrFormat, i)
		}

		leaf, path := in.root.leaf(i)
		if columns[i], err = in.column(leaf, chunk.sub(3)); err != nil {
			return nil, fmt.Errorf("column %s: %w", leaf.name, err)
		}
		if row, err := noText(columns[i]); err != nil {
			return nil, fmt.Errorf("%w: row %d: column %s: %w", ErrFormat, before+row, strings.Join(path, "."), err)
		}
	}

	record := make([][]entry, len(columns))
	for range n {
		for i := range columns {
			end := 1
			for end < len(columns[i]) && columns[i][end].rep > 0 {
				end++
			}
			if len(columns[i]) == 0 {
				leaf, _ := in.root.leaf(i)
				return nil, fmt.Errorf("%w: column %s has fewer than %d rows", ErrFormat, leaf.name, n)
			}

			record[i], columns[i] = columns[i][:end], columns[i][end:]
		}

		rows = append(rows, in.root.record(record))
	}

	return rows, nil
}

// noText finds the first value of a column that is no UTF-8 though it should be, and the row that it is in.
func noText(column []entry) (row int64, err error) {
	row = -1
	for _, e := range column {
		if e.rep == 0 {
			row++
		}
		if err, ok := e.v.(error); ok {
			return max(0, row), err
		}
	}
	return 0, nil
}
