package mediate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/merge/internal/output"
)

// hash reads a file for its hash.
func hash(ctx context.Context, path string) (hashedFile, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return hashedFile{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, contextReader{ctx, f})
	return hashedFile{Name: filepath.Base(path), Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, err
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

// hashFolder lists the .safetensors files of a folder by name.
func hashFolder(ctx context.Context, dir string) ([]hashedFile, error) {
	return hashThose(ctx, dir, isWeights)
}

// hashOthers lists the other plain files of a folder by name, but hidden ones and the model card, which is for
// people to change.
func hashOthers(ctx context.Context, dir string) ([]hashedFile, error) {
	return hashThose(ctx, dir, func(name string) bool {
		return !isWeights(name) && name[0] != '.' && name != "README.md" && name != output.JournalName
	})
}

func isWeights(name string) bool { return filepath.Ext(name) == ".safetensors" }

func hashThose(ctx context.Context, dir string, wanted func(name string) bool) ([]hashedFile, error) {
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

	return hashFiles(ctx, paths)
}

// hashFiles hashes files in their order.
func hashFiles(ctx context.Context, paths []string) ([]hashedFile, error) {
	var list []hashedFile
	for _, path := range paths {
		f, err := hash(ctx, path)
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}
