// Package arrow reads Arrow files into records: the streams that the datasets library of Hugging Face keeps its data
// in (save_to_disk, its cache), and the files with a footer that pandas, Polars and pyarrow write as Feather. Columns
// of booleans, numbers and texts are read, in lists and structs of any nesting, with or without dictionaries,
// uncompressed or compressed with LZ4 or Zstandard. The records are those that a Parquet file of the same table gives
// (package parquet): binaries are texts, with U+FFFD for bytes that are none, dates and times whole numbers. Decimals,
// intervals, maps, unions and runs are refused by name, and columns of texts that are no UTF-8.
//
// The library arrow-go decodes what a message holds. It trusts what a message says about itself, so every message is
// checked and unpacked here before it gets it.
package arrow

import (
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/safefile"
)

// The ways in which a file can fail to be read.
var (
	ErrFormat      = errors.New("bad Arrow file")
	ErrUnsupported = errors.New("not supported in Arrow files")
)

// Read reads all records of a file.
func Read(file string) (rows []*pyvalue.Dict, err error) {
	err = safefile.Use(file, func(r io.ReaderAt, size int64) error {
		rows, err = read(r, size)
		return err
	})
	return rows, err
}

// Lines writes all records of a file as JSON, one a line, with one record batch in memory at a time.
func Lines(file string, w io.Writer) error {
	return safefile.Use(file, func(r io.ReaderAt, size int64) error {
		var line []byte
		return records(r, size, func(row *pyvalue.Dict) (err error) {
			if line, err = pyvalue.AppendJSON(line[:0], row); err != nil {
				return err
			}
			line = append(line, '\n')
			_, err = w.Write(line)
			return err
		})
	})
}

func read(r io.ReaderAt, size int64) (all []*pyvalue.Dict, err error) {
	err = records(r, size, func(row *pyvalue.Dict) error {
		all = append(all, row)
		return nil
	})
	return all, err
}

// records gives every record to a function.
func records(r io.ReaderAt, size int64, take func(row *pyvalue.Dict) error) error {
	left := newAllowance(size)
	in, err := newSource(r, size, left)
	if err != nil {
		return err
	}

	var batches *ipc.Reader
	err = guarded(func() (err error) {
		batches, err = ipc.NewReaderFromMessageReader(in, ipc.WithAllocator(left))
		return err
	})
	if err != nil {
		return in.fault(err)
	}
	defer batches.Release()

	values := converter{left: left}
	before := int64(0) // rows of other batches
	for n := 0; ; n++ {
		more := false
		err := guarded(func() error {
			more = batches.Next()
			return batches.Err()
		})
		if err != nil {
			return in.fault(fmt.Errorf("record batch %d: %w", n, err))
		}
		if !more {
			return in.fault(nil)
		}

		batch := batches.RecordBatch()
		for i := range batch.NumRows() {
			var row *pyvalue.Dict
			if err := guarded(func() (err error) {
				row, err = values.record(batch, int(i))
				return err
			}); err != nil {
				return wrapped(fmt.Errorf("row %d: %w", before+i, err))
			}
			if err := take(row); err != nil {
				return err
			}
		}
		before += batch.NumRows()
	}
}

// guarded calls the library, which panics where a message does not fit what it says about itself.
func guarded(do func() error) (err error) {
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case error:
			err = fault
		default:
			err = fmt.Errorf("%v", fault)
		}
	}()
	return do()
}

// wrapped is an error of the library as one of this package, and one of this package as it is.
func wrapped(err error) error {
	if errors.Is(err, ErrFormat) || errors.Is(err, ErrUnsupported) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrFormat, err)
}
