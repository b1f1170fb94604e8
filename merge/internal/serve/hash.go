package serve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/merge/internal/experts"
)

// Hash reads a file for its hash.
func Hash(ctx context.Context, path string) (experts.File, error) {
	f, err := os.Open(path)
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
	entries, err := os.ReadDir(dir) // in the order of names
	if err != nil {
		return nil, err
	}
	var list []experts.File
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".safetensors" {
			continue
		}
		f, err := Hash(ctx, filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}
