package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"

	"github.com/modelcompress/compress/internal/safefile"
)

// Fingerprint is the SHA-256 of the parts' JSON, in hex: equal for equal parts, in every run. It panics for
// values that JSON does not have.
func Fingerprint(parts ...any) string {
	text, err := json.Marshal(parts)
	if err != nil {
		panic("compress: a part of a fingerprint has no JSON form")
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// FileHash is the SHA-256 of a file's content, in hex, for fingerprints that must not depend on names.
func FileHash(ctx context.Context, path string) (string, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()

	h, buf := sha256.New(), make([]byte, 1<<20)
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
	}

	return "", ctx.Err()
}
