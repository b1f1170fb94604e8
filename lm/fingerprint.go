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

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/internal/packed"
	"github.com/modelcompress/compress/safetensors"
)

// Fingerprint is the SHA-256, in hex, over config.json and every tensor's name, element type, shape and bytes
// in the files: what the model computes from, wherever it lies, however it is sharded, and whether or not
// experts lie in one tensor. That of a quantised model is the one of its values, as if they were stored as they are
// decoded: an adapter that was trained on it fits the converted model, and an edited model without its edits is that.
// Changes in memory do not count.
func (m *Model) Fingerprint(ctx context.Context) (string, error) {
	return m.print.get(func() (string, error) { return fingerprint(ctx, m.dir, m.source, nil) })
}

// Fingerprint is [Model.Fingerprint] of a checkpoint that is not loaded.
func Fingerprint(ctx context.Context, dir string) (string, error) {
	return FingerprintWith(ctx, dir, nil)
}

// FingerprintWith is the [Fingerprint] that a checkpoint has with these bytes of some of its tensors, by name, in the
// place of its own. A tensor that it does not have is an error.
func FingerprintWith(ctx context.Context, dir string, tensors map[string][]byte) (string, error) {
	source, err := weights.Open(ctx, dir)
	if err != nil {
		return "", err
	}
	defer source.Close()
	return fingerprint(ctx, dir, source, tensors)
}

func fingerprint(ctx context.Context, dir string, source *weights.Source, with map[string][]byte) (string, error) {
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

	for name := range with {
		if _, ok := tensors.Info(name); !ok {
			return "", fmt.Errorf("%s: no tensor %q", dir, name)
		}
	}
	return hashAll(ctx, config, tensors, with)
}

// hashAll is the SHA-256, in hex, over a configuration and every tensor's name, element type, shape and bytes, which
// are others of some.
func hashAll(ctx context.Context, config []byte, source *packed.Source, with map[string][]byte) (string, error) {
	// Sorted: the same tensors in other shards, or in another order, are the same model.
	names := slices.Sorted(slices.Values(source.Names()))
	sums := make([]string, len(names))
	g, ctx := mmapsafe.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))

	for i, name := range names {
		g.Go(func() (err error) {
			if data, ok := with[name]; ok {
				info, _ := source.Info(name)
				sums[i] = describe(name, info, sha256.Sum256(data))
				return nil
			}
			sums[i], err = hashTensor(ctx, source, name)
			return err
		})
	}

	if err := g.Wait(); err != nil {
		return "", err
	}

	// Hashes of tensors are hashed in turn, so that tensors can be read side by side.
	h := sha256.New()
	fmt.Fprintf(h, "%d\n%s\n", len(config), config)
	for _, line := range sums {
		fmt.Fprintln(h, line)
	}

	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashBuffers keeps the space of tensors that are hashed: beside a model that lies in the heap, what many tensors leave
// behind would not be collected for long.
var hashBuffers = sync.Pool{New: func() any { buf := make([]byte, 1<<20); return &buf }}

// hashTensor describes a tensor and its bytes, read through a small buffer.
func hashTensor(ctx context.Context, source *packed.Source, name string) (string, error) {
	info, _ := source.Info(name)
	h := sha256.New()
	space := hashBuffers.Get().(*[]byte)
	defer hashBuffers.Put(space)
	buf := *space
	for off := int64(0); ; {
		n, err := source.ReadAt(name, buf, off)
		h.Write(buf[:n])
		off += int64(n)
		if errors.Is(err, io.EOF) {
			return describe(name, info, [sha256.Size]byte(h.Sum(nil))), nil
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return "", err
		}
	}
}

// describe is the line of a tensor.
func describe(name string, info safetensors.Info, sum [sha256.Size]byte) string {
	return fmt.Sprintf("%q %s %v %x", name, info.DType, info.Shape, sum)
}

// onceHex is a fingerprint that is computed when it is first asked for, and kept unless that fails. The zero value
// is ready.
type onceHex struct {
	mu  sync.Mutex
	hex string
}

// get gives the fingerprint, from compute where there is none yet.
func (o *onceHex) get(compute func() (string, error)) (hex string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hex == "" {
		o.hex, err = compute()
	}
	return o.hex, err
}
