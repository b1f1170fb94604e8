package stage

import (
	"bytes"
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

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/safefile"
)

// maxConfigSize bounds what is read of config.json.
const maxConfigSize = 4 << 20

// sidePatterns are the files beside the weights that a changed model still needs.
var sidePatterns = []string{
	"config.json", "generation_config.json", "tokenizer*.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt",
	"merges.txt",
	"special_tokens_map.json", "added_tokens.json", "chat_template*", "token_mappings.json", "LICENSE*", "LICENCE*",
	"NOTICE*", "USE_POLICY*",
}

// sideFiles describes the files of a folder to copy. A link that leaves the folder is an error, as everywhere.
func sideFiles(dir string) ([]fs.FileInfo, error) {
	root, err := safefile.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}

	var files []fs.FileInfo
	for _, e := range entries {
		if !slices.ContainsFunc(sidePatterns, func(p string) bool { ok, _ := filepath.Match(p, e.Name()); return ok }) {
			continue
		}

		stat, err := root.Stat(e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, e.Name()), err)
		}

		if stat.Mode().IsRegular() {
			files = append(files, stat)
		}
	}

	return files, nil
}

// Beside gives the SHA-256 of what Finish writes beside the weights for the source's files, by name; nil where
// the output was complete before.
func (f *Folder) Beside() (map[string]string, error) {
	root, err := safefile.OpenFolder(f.opts.Source)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	var sums map[string]string
	for _, file := range f.side {
		in, err := f.content(root, file)
		if err != nil {
			return nil, err
		}

		h := sha256.New()
		_, err = io.Copy(h, in)
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, err
		}
		if sums == nil {
			sums = map[string]string{}
		}

		sums[file.Name()] = hex.EncodeToString(h.Sum(nil))
	}

	return sums, nil
}

// besideIntact compares the files beside the weights of a complete output with what they are copies of. The
// error wraps [ErrDamaged].
func (f *Folder) besideIntact() error {
	side, err := sideFiles(f.opts.Source)
	if err != nil {
		return err
	}

	whole := &Folder{opts: f.opts, side: side}
	sums, err := whole.Beside()
	if err != nil {
		return err
	}

	return Intact(f.dir, sums)
}

// Intact compares files of a folder with checksums that [Folder.Beside] gave. The error wraps [ErrDamaged] and
// names the first that differs or is missing.
func Intact(dir string, sums map[string]string) error {
	root, err := safefile.OpenFolder(dir)
	if err != nil {
		return err
	}
	defer root.Close()

	for _, name := range slices.Sorted(maps.Keys(sums)) {
		in, err := root.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is missing: %w", filepath.Join(dir, name), ErrDamaged)
		}

		if err != nil {
			return err
		}

		h := sha256.New()
		_, err = io.Copy(h, in)
		if err := errors.Join(err, in.Close()); err != nil {
			return err
		}
		if hex.EncodeToString(h.Sum(nil)) != sums[name] {
			return fmt.Errorf("%s: %w", filepath.Join(dir, name), ErrDamaged)
		}
	}

	return nil
}

// copySide copies the files beside the weights into the staging folder.
func (f *Folder) copySide() error {
	root, err := safefile.OpenFolder(f.opts.Source)
	if err != nil {
		return err
	}
	defer root.Close()

	for _, file := range f.side {
		if err := f.copyFile(root, file); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(f.stage, file.Name()), err)
		}
	}

	if err := f.writeExtra(); err != nil {
		return err
	}

	return syncFolder(f.stage)
}

// copyFile copies a file that is still what it was when the job began.
func (f *Folder) copyFile(root *safefile.Folder, file fs.FileInfo) error {
	in, err := f.content(root, file)
	if err != nil {
		return err
	}
	defer in.Close()

	out, err := os.OpenFile(filepath.Join(f.stage, file.Name()), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW,
		0o666)
	if err != nil {
		return err
	}

	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// content is what a file beside the weights has in the output.
func (f *Folder) content(root *safefile.Folder, file fs.FileInfo) (io.ReadCloser, error) {
	name := file.Name()
	in, err := root.Open(name)
	if err != nil {
		return nil, err
	}

	if now, err := in.Stat(); err != nil || now.Size() != file.Size() || !now.ModTime().Equal(file.ModTime()) {
		return nil, errors.Join(err, fmt.Errorf("%s: %w", filepath.Join(f.opts.Source, name), ErrChanged), in.Close())
	}
	if name != "config.json" || f.opts.Config == nil {
		return in, nil
	}

	text, err := io.ReadAll(io.LimitReader(in, maxConfigSize))
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, err
	}

	return io.NopCloser(bytes.NewReader(f.opts.Config(text))), nil
}
