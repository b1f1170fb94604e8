package weights

import (
	"errors"
	"path/filepath"

	"github.com/modelcompress/compress/safetensors"
)

// store is the files of a model, and the tensors that lie in them as the model has them.
type store interface {
	Names() []string
	Info(name string) (safetensors.Info, bool)
	Bytes(name string) ([]byte, error)
	ReadAt(name string, p []byte, off int64) (int, error)
	View(name string, fn func(data []byte) error) error
	Release(name string) error
	Metadata() map[string]string

	// Drop gives back the memory behind what tensors are decoded from.
	Drop(parts []string) error
	// File is the path of the file that holds a tensor, or a part that one is decoded from.
	File(name string) string
	Files() []string
	DataSize() int64
	Close() error
}

// dirStore is files of safetensors, in which parts are tensors like others.
type dirStore struct {
	*safetensors.Dir
	single bool // one file, and Path is its path
}

// Drop implements [store].
func (d dirStore) Drop(parts []string) error {
	var errs []error
	for _, part := range parts {
		errs = append(errs, d.Release(part))
	}
	return errors.Join(errs...)
}

// File implements [store].
func (d dirStore) File(name string) string {
	if d.single {
		return d.Path()
	}
	return filepath.Join(d.Path(), d.ShardOf(name))
}

// Files implements [store].
func (d dirStore) Files() []string {
	list := d.Shards()
	for i, name := range list {
		list[i] = d.Shard(name).Path()
	}
	return list
}
