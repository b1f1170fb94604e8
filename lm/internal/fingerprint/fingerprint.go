// Package fingerprint hashes what a model computes from.
package fingerprint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/safetensors"
)

// Tensors is what [Of] reads.
type Tensors interface {
	// Names lists the tensors.
	Names() []string
	// Info says what a tensor is.
	Info(name string) (safetensors.Info, bool)
	// ReadAt copies a part of a tensor, as [safetensors.Dir.ReadAt] does.
	ReadAt(name string, p []byte, off int64) (int, error)
}

// Of is the SHA-256, in hex, over a configuration and every tensor's name, element type, shape and bytes.
func Of(ctx context.Context, config []byte, source Tensors) (string, error) {
	names := slices.Sorted(slices.Values(source.Names()))
	sums := make([]string, len(names))
	g, ctx := mmapsafe.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))

	for i, name := range names {
		g.Go(func() (err error) {
			sums[i], err = tensor(ctx, source, name)
			return err
		})
	}

	if err := g.Wait(); err != nil {
		return "", err
	}

	h := sha256.New()
	fmt.Fprintf(h, "%d\n%s\n", len(config), config)
	for _, line := range sums {
		fmt.Fprintln(h, line)
	}

	return hex.EncodeToString(h.Sum(nil)), nil
}

// tensor describes a tensor and its bytes, read through a small buffer.
func tensor(ctx context.Context, source Tensors, name string) (string, error) {
	info, _ := source.Info(name)
	h, buf := sha256.New(), make([]byte, 1<<20)
	for off := int64(0); ; {
		n, err := source.ReadAt(name, buf, off)
		h.Write(buf[:n])
		off += int64(n)
		if errors.Is(err, io.EOF) {
			return fmt.Sprintf("%q %s %v %x", name, info.DType, info.Shape, h.Sum(nil)), nil
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return "", err
		}
	}
}
