package adapter

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// Checkpoint is a base model as it lies in a folder, with nothing loaded.
type Checkpoint struct {
	Dir     string
	Config  *lm.Config
	Source  *safetensors.Dir
	Layout  *arch.Layout
	Modules []Module
}

// OpenCheckpoint opens the base in a folder. The errors are those of [lm.LoadConfig], of package safetensors and of [arch.Resolve].
func OpenCheckpoint(dir string) (*Checkpoint, error) {
	c := &Checkpoint{Dir: dir}
	var err error
	if c.Config, err = lm.LoadConfig(dir); err != nil {
		return nil, err
	}
	if c.Source, err = safetensors.OpenDir(dir); err != nil {
		return nil, err
	}
	if c.Layout, err = arch.Resolve(c.Config, stored{c.Source}, false); err != nil {
		if slices.ContainsFunc(c.Source.Names(), func(n string) bool { return strings.HasSuffix(n, ".bitmask") }) {
			err = fmt.Errorf("%s: %w (HINT: compress convert %s --out DIR unpacks them)", dir, lm.ErrSavePacked, dir)
		}
		return nil, errors.Join(err, c.Source.Close())
	}
	c.Modules = Modules(c.Config, c.Layout)
	return c, nil
}

// PathOf is the path of the module that a parameter belongs to.
func (c *Checkpoint) PathOf(p arch.Param) string { return modulePath(c.Config, p) }

// Close closes the files.
func (c *Checkpoint) Close() error { return c.Source.Close() }

// stored is the tensors of a folder.
type stored struct{ *safetensors.Dir }

// Shape implements [arch.Source].
func (s stored) Shape(name string) ([]int64, bool) {
	info, ok := s.Info(name)
	return info.Shape, ok
}

// File implements [arch.Source].
func (s stored) File(name string) string {
	if shard := s.ShardOf(name); shard != "" {
		return filepath.Join(s.Path(), shard)
	}
	return s.Path()
}
