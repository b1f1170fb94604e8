package stage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/regular"
)

// maxConfigSize bounds what is read of config.json.
const maxConfigSize = 4 << 20

// sidePatterns are the files beside the weights that a changed model still needs.
var sidePatterns = []string{
	"config.json", "generation_config.json", "tokenizer*.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt", "merges.txt",
	"special_tokens_map.json", "added_tokens.json", "chat_template*", "token_mappings.json", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*",
}

// sideFiles describes the files of a folder to copy. A link that leaves the folder is an error, as everywhere.
func sideFiles(dir string) ([]fs.FileInfo, error) {
	root, err := regular.OpenFolder(dir)
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

// copySide copies the files beside the weights into the staging folder.
func (f *Folder) copySide() error {
	root, err := regular.OpenFolder(f.opts.Source)
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
func (f *Folder) copyFile(root *regular.Folder, file fs.FileInfo) error {
	name := file.Name()
	in, err := root.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	if now, err := in.Stat(); err != nil || now.Size() != file.Size() || !now.ModTime().Equal(file.ModTime()) {
		return errors.Join(err, fmt.Errorf("%s: %w", filepath.Join(f.opts.Source, name), ErrChanged))
	}
	var from io.Reader = in
	if name == "config.json" && f.opts.Config != nil {
		text, err := io.ReadAll(io.LimitReader(in, maxConfigSize))
		if err != nil {
			return err
		}
		from = bytes.NewReader(f.opts.Config(text))
	}
	out, err := os.OpenFile(filepath.Join(f.stage, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, from)
	return errors.Join(err, out.Sync(), out.Close())
}
