package weights

import (
	"errors"
	"path/filepath"

	"github.com/modelcompress/compress/safetensors"
)

// files are those of a model. Names are of tensors, or of parts that one is decoded from.
type files interface {
	// Drop gives back the memory behind parts.
	Drop(parts []string) error
	// File is the path of the file that holds something, of the model for an unknown name.
	File(name string) string
	// Files lists the paths of all.
	Files() []string
	// DataSize is the bytes of all tensors together.
	DataSize() int64
}

// dirFiles is files of safetensors, in which parts are tensors like others.
type dirFiles struct {
	*safetensors.Dir
	single bool // one file, and Path is its path
}

// Drop implements [files].
func (d dirFiles) Drop(parts []string) error {
	var errs []error
	for _, part := range parts {
		errs = append(errs, d.Release(part))
	}
	return errors.Join(errs...)
}

// File implements [files].
func (d dirFiles) File(name string) string {
	if d.single {
		return d.Path()
	}
	return filepath.Join(d.Path(), d.ShardOf(name))
}

// Files implements [files].
func (d dirFiles) Files() []string {
	list := d.Shards()
	for i, name := range list {
		list[i] = d.Shard(name).Path()
	}
	return list
}
