package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
	"github.com/modelcompress/compress/testdata"
)

// bed keeps what cases stand on: checkpoints in a temporary folder until the end of a run, memory until the end
// of a suite.
type bed struct {
	seed uint64
	dir  string
	undo []func()

	remove func() error // removes dir
}

// folder is a place for files.
func (b *bed) folder() (string, error) {
	if b.dir == "" {
		dir, release, err := scratch.Folder("compress-bench-")
		if err != nil {
			return "", err
		}
		b.dir, b.remove = dir, release
	}
	return b.dir, nil
}

// once makes a folder of the bed, unless it is there.
func (b *bed) once(name string, fill func(dir string) error) (string, error) {
	root, err := b.folder()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, name)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	return dir, fill(dir)
}

// random is the folder of a checkpoint of random weights; models of different numbers have different weights.
func (b *bed) random(s shape, d safetensors.DType, number int) (string, error) {
	name := fmt.Sprintf("random-%s-%dx%d-%d", d, s.hidden, s.blocks, number)
	return b.once(name, func(dir string) error { return s.write(dir, d, b.seed+uint64(number)) })
}

// cast is a random F32 checkpoint in BF16.
func (b *bed) cast(ctx context.Context, s shape, dev kernels.Device) (string, error) {
	from, err := b.random(s, safetensors.F32, 0)
	if err != nil {
		return "", err
	}
	return b.once(filepath.Base(from)+"-bf16", func(dir string) error {
		_, err := checkpoint.Convert(ctx, from, dir, checkpoint.ConvertOptions{DType: safetensors.BF16, Device: dev})
		return err
	})
}

// nano is the folder with the program's own small model, in base, and its texts, in text.
func (b *bed) nano() (string, error) {
	return b.once("nano", func(dir string) error {
		files, err := fs.Sub(testdata.Nano, "nano")
		if err != nil {
			return err
		}
		return os.CopyFS(dir, files)
	})
}

// load opens a model until the suite ends.
func (b *bed) load(ctx context.Context, dir string, dev kernels.Device, o lm.Options) (*lm.Model, error) {
	m, err := lm.Load(ctx, dir, dev, o)
	if err == nil {
		b.later(func() { m.Close() })
	}
	return m, err
}

// later does something at the end of the suite, the last first.
func (b *bed) later(f func()) { b.undo = append(b.undo, f) }

func (b *bed) release() {
	for i := range b.undo {
		b.undo[len(b.undo)-1-i]()
	}
	b.undo = nil
}

func (b *bed) close() {
	b.release()
	if b.dir != "" {
		_ = b.remove() // it is temporary, and swept by the next run
	}
}
