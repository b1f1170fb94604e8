package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// Checkpoint is a base model as it lies on the disk, with nothing loaded.
type Checkpoint struct {
	Dir     string
	Config  *lm.Config
	Source  safetensors.Source // as stored, quantised matrices decoded
	Tensors *lm.Tensors        // every parameter, also where several lie in one stored tensor
	Layout  *arch.Layout
	Modules []Module
}

// OpenCheckpoint opens a base. The errors are those of [lm.LoadConfig], of package safetensors
// and of [arch.Resolve].
func OpenCheckpoint(ctx context.Context, dir string) (*Checkpoint, error) {
	c := &Checkpoint{Dir: dir}
	var err error
	if c.Config, err = lm.LoadConfig(dir); err != nil {
		return nil, err
	}
	if c.Tensors, err = lm.OpenTensors(ctx, dir, c.Config); err != nil {
		return nil, err
	}
	c.Source = c.Tensors.Source()
	if c.Layout, err = arch.Resolve(c.Config, c.Tensors, false); err != nil {
		if slices.ContainsFunc(c.Source.Names(), func(n string) bool { return strings.HasSuffix(n, ".bitmask") }) {
			err = failure.Hinted(fmt.Errorf("%s: %w", dir, lm.ErrSavePacked),
				fmt.Sprintf("compress convert %s --out DIR unpacks them", dir))
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
