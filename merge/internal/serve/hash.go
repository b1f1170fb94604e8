package serve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/merge/internal/experts"
)

// Hash reads a file for its hash.
func Hash(ctx context.Context, path string) (experts.File, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return experts.File{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, contextReader{ctx, f})
	return experts.File{Name: filepath.Base(path), Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements [io.Reader].
func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// HashFolder lists the .safetensors files of a folder by name.
func HashFolder(ctx context.Context, dir string) ([]experts.File, error) {
	return hashThose(ctx, dir, weights)
}

// HashOthers lists the other plain files of a folder by name, but hidden ones and the model card, which is for
// people to change.
func HashOthers(ctx context.Context, dir string) ([]experts.File, error) {
	return hashThose(ctx, dir, func(name string) bool {
		return !weights(name) && name[0] != '.' &&
			name != "README.md"
	})
}

func weights(name string) bool { return filepath.Ext(name) == ".safetensors" }

func hashThose(ctx context.Context, dir string, wanted func(name string) bool) ([]experts.File, error) {
	entries, err := os.ReadDir(dir) // in the order of names
	if err != nil {
		return nil, err
	}

	var paths []string
	for _, e := range entries {
		if wanted(e.Name()) && !e.IsDir() {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}

	return HashFiles(ctx, paths)
}

// HashFiles hashes files in their order.
func HashFiles(ctx context.Context, paths []string) ([]experts.File, error) {
	var list []experts.File
	for _, path := range paths {
		f, err := Hash(ctx, path)
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}
