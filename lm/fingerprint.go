package lm

import (
	"context"

	"github.com/modelcompress/compress/lm/internal/fingerprint"
	"github.com/modelcompress/compress/safetensors"
)

// Fingerprint is the SHA-256, in hex, over config.json and every tensor's name, element type, shape and bytes in the files:
// what the model computes from, wherever it lies and however it is sharded. Changes in memory do not count.
func (m *Model) Fingerprint(ctx context.Context) (string, error) {
	return m.print.Get(func() (string, error) { return Fingerprint(ctx, m.dir, m.source) })
}

// Fingerprint is [Model.Fingerprint] of a checkpoint folder that is not loaded.
func Fingerprint(ctx context.Context, dir string, source *safetensors.Dir) (string, error) {
	config, err := readSmall(dir, "config.json")
	if err != nil {
		return "", err
	}
	return fingerprint.Of(ctx, config, source)
}
