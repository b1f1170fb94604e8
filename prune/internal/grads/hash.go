package grads

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/safetensors"
)

// Hash is the SHA-256, in hex, of the tensors of a .safetensors file or folder: names in order, types, shapes
// and bytes. It does not depend on where the file is, how it is split or in which order it holds its tensors.
func Hash(ctx context.Context, path string) (string, error) {
	f, err := safetensors.OpenDir(path)
	if err != nil {
		return "", err
	}
	defer f.Close()

	h, piece := sha256.New(), make([]byte, 1<<20)
	for _, name := range slices.Sorted(slices.Values(f.Names())) {
		info, _ := f.Info(name)
		fmt.Fprintf(h, "%q %s %v %d\n", name, info.DType, info.Shape, info.Size)

		for at := int64(0); at < info.Size; {
			if err := ctx.Err(); err != nil {
				return "", err
			}

			n, err := f.ReadAt(name, piece[:min(int64(len(piece)), info.Size-at)], at)
			if err != nil {
				return "", err
			}

			h.Write(piece[:n])
			at += int64(n)
		}
	}

	return hex.EncodeToString(h.Sum(nil)), nil
}
