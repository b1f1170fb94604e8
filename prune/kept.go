package prune

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
)

// isComparison reports whether a folder is that of a comparison: nothing is there that none writes.
func isComparison(dir string) bool {
	entries, err := os.ReadDir(dir)
	found := false
	for _, e := range entries {
		if !slices.Contains(comparisonFiles, e.Name()) {
			return false
		}
		found = found || e.Name() == journalName
	}

	return err == nil && found
}

// removeComparison removes what a comparison has written, but not the folder. The journal, which marks the folder, goes
// last: after a crash the rest can still be removed.
func removeComparison(dir string) (err error) {
	for _, name := range comparisonFiles {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	return err
}

// folderName names the model of a run: its target and method, and the beginning of its fingerprint where they
// do not fit into a name.
func (r *plannedRun) folderName() string {
	label := strings.ReplaceAll(r.Target+"-"+r.Method, ":", "-")
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("+-.@", r) {
			return r
		}
		return '_'
	}, label)

	if len(plain) > 60 {
		plain = plain[:60]
	}
	if plain != label && len(r.key) >= 8 {
		plain += "-" + r.key[:8]
	}

	return plain
}

// errChanged: a kept model is not what the run wrote.
var errChanged = errors.New("it is not as the run wrote it")

// intact compares a kept model with the checksums of its files. Runs of earlier versions have none.
func intact(ctx context.Context, folder string, done *Outcome) error {
	if _, err := os.Stat(folder); err != nil || done.Files == nil {
		return err
	}

	now, err := checksums(ctx, folder)
	if err != nil {
		return err
	}

	for _, name := range slices.Sorted(maps.Keys(done.Files)) {
		if now[name] != done.Files[name] {
			return fmt.Errorf("%s: %w", filepath.Join(folder, name), errChanged)
		}
	}

	return nil
}

// checksums are the SHA-256 of the files in a folder, by their paths in it.
func checksums(ctx context.Context, folder string) (map[string]string, error) {
	sums := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err == nil {
			sums[name], err = checksum(ctx, path)
		}
		return err
	})

	return sums, err
}

// checksum reads piece by piece, so that an interrupt is heard within a file of gigabytes.
func checksum(ctx context.Context, path string) (string, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()

	h, piece := sha256.New(), make([]byte, 1<<20)
	for ctx.Err() == nil {
		n, err := f.Read(piece)
		h.Write(piece[:n])
		if err == io.EOF {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
	}

	return "", ctx.Err()
}
