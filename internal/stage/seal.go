package stage

import (
	"bytes"
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

// maxSealed bounds the sealed files that are read.
const maxSealed = 2 << 30

// sealed is a value in a file, with the hash of its text.
type sealed struct {
	Sum   string          `json:"sha256"`
	Value json.RawMessage `json:"value"`
}

// WriteSealed writes a value as JSON with its SHA-256, in a folder that is made if need be.
func WriteSealed(path string, v any) error {
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

// ReadSealed reads the value of [WriteSealed] back. The error wraps [ErrDamaged] where the file is there and is not
// what was written.
func ReadSealed(path string, v any) error {
	text, err := safefile.ReadFile(path, maxSealed)
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

// Fingerprint is the SHA-256 of the parts' JSON, in hexadecimal digits: equal for equal parts, in every run. The error
// is about a part that JSON does not have, such as NaN.
func Fingerprint(parts ...any) (string, error) {
	text, err := json.Marshal(parts)
	return Sum(text), err
}

// SealLine is a value as a line of its own, behind its [Sum] and a space.
func SealLine(value []byte) []byte { return SealAfter("", value) }

// UnsealLine is the value of a line of [SealLine], which comes without its end; false for one that is damaged.
func UnsealLine(line []byte) (value []byte, ok bool) { return unsealAfter("", line) }

// SealAfter is [SealLine] for a line whose sum covers last, that of the line before, too.
func SealAfter(last string, value []byte) []byte {
	line := make([]byte, 0, 2*sha256.Size+len(value)+2)
	line = append(append(line, sumAfter(last, value)...), ' ')
	return append(append(line, value...), '\n')
}

func unsealAfter(last string, line []byte) (value []byte, ok bool) {
	sum, value, ok := bytes.Cut(line, []byte{' '})
	return value, ok && string(sum) == sumAfter(last, value)
}

func sumAfter(last string, value []byte) string {
	h := sha256.New()
	h.Write([]byte(last))
	h.Write(value)
	return hex.EncodeToString(h.Sum(nil))
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

// CheckSums compares a folder with its [Sums] of some time ago. Files that came later do no harm. The error wraps
// [ErrDamaged], or is one of a file.
func CheckSums(dir string, want map[string]string) error {
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
