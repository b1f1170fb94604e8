// Package parquet reads Parquet files into records.
package parquet

import (
	"errors"

	"github.com/modelcompress/compress/editeval/task/internal/value"
)

// ErrFormat: the file is no Parquet file that can be read.
var ErrFormat = errors.New("bad Parquet file")

// Read reads all records of a file.
func Read(file string) ([]*value.Dict, error) { return nil, ErrFormat }
