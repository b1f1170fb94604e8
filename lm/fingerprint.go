package lm

import (
	"context"

	"github.com/modelcompress/compress/lm/internal/fingerprint"
	"github.com/modelcompress/compress/lm/internal/packed"
	"github.com/modelcompress/compress/safetensors"
)

// Fingerprint is the SHA-256, in hex, over config.json and every tensor's name, element type, shape and bytes
// in the files: what the model computes from, wherever it lies, however it is sharded, and whether or not
// experts lie in one tensor. Changes in memory do not count.
func (m *Model) Fingerprint(ctx context.Context) (string, error) {
	return m.print.Get(func() (string, error) { return Fingerprint(ctx, m.dir, m.source) })
}

// Fingerprint is [Model.Fingerprint] of a checkpoint folder that is not loaded.
func Fingerprint(ctx context.Context, dir string, source *safetensors.Dir) (string, error) {
	config, err := readSmall(dir, "config.json")
	if err != nil {
		return "", err
	}

	c, err := LoadConfig(dir)
	if err != nil {
		return "", err
	}

	tensors, err := packed.Find(source, c, false)
	if err != nil {
		return "", err
	}

	return fingerprint.Of(ctx, config, tensors)
}
