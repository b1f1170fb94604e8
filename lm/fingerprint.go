package lm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// fingerprint is computed once.
type fingerprint struct {
	mu  sync.Mutex
	hex string
}

// Fingerprint is the SHA-256, in hex, over config.json and every tensor's name, element type, shape and bytes in the files:
// what the model computes from, wherever it lies and however it is sharded. Changes in memory do not count.
func (m *Model) Fingerprint(ctx context.Context) (string, error) {
	m.print.mu.Lock()
	defer m.print.mu.Unlock()
	if m.print.hex != "" {
		return m.print.hex, nil
	}
	config, err := readSmall(m.dir, "config.json")
	if err != nil {
		return "", err
	}
	names := slices.Sorted(slices.Values(m.source.Names()))
	sums := make([]string, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		g.Go(func() (err error) {
			sums[i], err = m.hashTensor(ctx, name)
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
	m.print.hex = hex.EncodeToString(h.Sum(nil))
	return m.print.hex, nil
}

// hashTensor describes a tensor and its bytes, read through a small buffer.
func (m *Model) hashTensor(ctx context.Context, name string) (string, error) {
	info, _ := m.source.Info(name)
	h, buf := sha256.New(), make([]byte, 1<<20)
	for off := int64(0); ; {
		n, err := m.source.ReadAt(name, buf, off)
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
