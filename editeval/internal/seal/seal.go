// Package seal tells whether files of results are still what they were when they were finished.
// It is a package of its own because a sealed folder of a study must not be opened by any other way than this one.
package seal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
)

// ErrDamaged: a file is not what was written.
var ErrDamaged = errors.New("damaged since it was written")

// maxFile bounds the files that are read.
const maxFile = 2 << 30

// sealed is a value in a file, with the hash of its text.
type sealed struct {
	Sum   string          `json:"sha256"`
	Value json.RawMessage `json:"value"`
}

// Write writes a value with its hash, in a folder that is made if need be.
func Write(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}

	if text, err = json.Marshal(sealed{Sum(text), text}); err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o777)
	}
	if err != nil {
		return err
	}

	return safefile.WriteFile(path, text, 0o666)
}

// Read reads a value back. The error wraps [ErrDamaged] where the file is there and is not what was written.
func Read(path string, v any) error {
	text, err := safefile.ReadFile(path, maxFile)
	if err != nil {
		return err
	}

	var s sealed
	if err := json.Unmarshal(text, &s); err != nil || Sum(s.Value) != s.Sum {
		return fmt.Errorf("%s: %w", path, ErrDamaged)
	}
	if err := json.Unmarshal(s.Value, v); err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrDamaged, err)
	}

	return nil
}

// Sum is the SHA-256 of a text, in hexadecimal digits.
func Sum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Sums are those of all files below a folder, by their paths in it, hidden ones apart. A folder that is not
// there has none.
func Sums(dir string) (map[string]string, error) {
	sums := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return nil
		}
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}

		f, err := safefile.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()

		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}

		name, err := filepath.Rel(dir, path)
		sums[name] = hex.EncodeToString(h.Sum(nil))
		return err
	})

	return sums, err
}

// Check compares a folder with its sums of some time ago. Files that came later do no harm. The error wraps
// [ErrDamaged], or is one of a file.
func Check(dir string, want map[string]string) error {
	have, err := Sums(dir)
	if err != nil {
		return err
	}

	for name, sum := range want {
		if have[name] != sum {
			return fmt.Errorf("%s: %w", filepath.Join(dir, name), ErrDamaged)
		}
	}

	return nil
}
