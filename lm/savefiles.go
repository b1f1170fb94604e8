package lm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/safetensors"
)

// sidePatterns are the files beside the weights that a changed model still needs.
var sidePatterns = []string{
	"config.json", "generation_config.json", "tokenizer*.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt", "merges.txt",
	"special_tokens_map.json", "added_tokens.json", "chat_template*", "token_mappings.json", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*",
}

// sideFiles lists the files of a folder to copy. A link that leaves the folder is an error, as everywhere.
func sideFiles(dir string) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !slices.ContainsFunc(sidePatterns, func(p string) bool { ok, _ := filepath.Match(p, e.Name()); return ok }) {
			continue
		}
		stat, err := root.Stat(e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, e.Name()), err)
		}
		if stat.Mode().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// copySide copies the files beside the weights into the staging folder.
func (s *Saver) copySide() error {
	root, err := os.OpenRoot(s.m.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range s.side {
		if err := s.copyFile(root, name); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(s.stage, name), err)
		}
	}
	return syncFolder(s.stage)
}

func (s *Saver) copyFile(root *os.Root, name string) error {
	in, err := root.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	var from io.Reader = in
	if name == "config.json" && s.opts.DType != 0 {
		text, err := io.ReadAll(io.LimitReader(in, maxConfigSize))
		if err != nil {
			return err
		}
		from = bytes.NewReader(renameDType(text, s.opts.DType))
	}
	out, err := os.OpenFile(filepath.Join(s.stage, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, from)
	return errors.Join(err, out.Sync(), out.Close())
}

// renameDType changes the values of dtype and torch_dtype in a configuration and nothing else.
func renameDType(text []byte, t safetensors.DType) []byte {
	name := map[safetensors.DType]string{
		safetensors.F32: `"float32"`, safetensors.BF16: `"bfloat16"`, safetensors.F16: `"float16"`, safetensors.F64: `"float64"`,
	}[t]
	d := json.NewDecoder(bytes.NewReader(text))
	depth, key := 0, ""
	var out []byte
	copied := 0
	for expectKey := true; ; {
		start := int(d.InputOffset())
		token, err := d.Token()
		if err != nil {
			return append(out, text[copied:]...)
		}
		end := int(d.InputOffset())
		switch v := token.(type) {
		case json.Delim:
			depth += map[json.Delim]int{'{': 1, '[': 1, '}': -1, ']': -1}[v]
			expectKey = depth == 1
			continue
		case string:
			if depth == 1 && !expectKey && (key == "dtype" || key == "torch_dtype") {
				at := start + bytes.IndexByte(text[start:end], '"')
				out = append(append(out, text[copied:at]...), name...)
				copied = end
			}
			key = v
		}
		if depth == 1 {
			expectKey = !expectKey
		}
	}
}

// checkTarget decides whether the output may be written. complete: an earlier run of the same job had finished it.
func (s *Saver) checkTarget() (complete bool, err error) {
	if _, float := dtypes[s.opts.DType]; s.opts.DType != 0 && !float {
		return false, fmt.Errorf("%w: %s; known: F32, BF16, F16, F64", ErrDType, s.opts.DType)
	}
	if err := s.checkSource(); err != nil {
		return false, err
	}
	entries, err := os.ReadDir(s.dir)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(entries) == 0:
		return false, nil
	case err != nil:
		return false, err
	case s.opts.Resume && s.finished():
		s.over = true
		return true, nil
	case !s.opts.Overwrite:
		return false, fmt.Errorf("%s: %w and is not empty; --overwrite replaces it", s.dir, ErrExists)
	case !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Name() == "config.json" || strings.HasSuffix(e.Name(), ".safetensors")
	}):
		return false, fmt.Errorf("%s: %w and holds no checkpoint, so it is not replaced", s.dir, ErrExists)
	}
	return false, nil
}

// checkSource refuses an output that is, or that holds, the folder of the model.
func (s *Saver) checkSource() error {
	source, err := filepath.Abs(s.m.dir)
	if err != nil {
		return err
	}
	target, err := os.Stat(s.dir)
	if err != nil {
		return nil // not there, so it holds nothing
	}
	for at := source; ; at = filepath.Dir(at) {
		if stat, err := os.Stat(at); err == nil && os.SameFile(stat, target) {
			return fmt.Errorf("%s: %w", s.dir, ErrInPlace)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// finished reports whether the folder at the final name is the complete output of this job.
func (s *Saver) finished() bool {
	if s.opts.Fingerprint == "" {
		return false
	}
	d, err := safetensors.OpenDir(s.dir)
	if err != nil {
		return false
	}
	defer d.Close()
	if d.Metadata()[jobKey] != s.opts.Fingerprint {
		return false
	}
	for _, name := range d.Names() {
		s.done[name] = true
	}
	return true
}

// publish gives the staged folder its final name. An existing one is exchanged for it in one step, then removed.
func (s *Saver) publish() error {
	parent := filepath.Dir(s.dir)
	if err := syncFolder(s.stage); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	case len(entries) == 0:
		if err := os.Remove(s.dir); err != nil {
			return err
		}
	case !s.opts.Overwrite:
		return fmt.Errorf("%s: %w: it appeared meanwhile", s.dir, ErrExists)
	default:
		return errors.Join(exchange(s.stage, s.dir), syncFolder(parent), os.RemoveAll(s.stage), s.journal.close())
	}
	if err := os.Rename(s.stage, s.dir); err != nil {
		return err
	}
	return errors.Join(syncFolder(parent), s.journal.close())
}

func syncFolderOf(path string) error { return syncFolder(filepath.Dir(path)) }

// syncFolder makes the names in a folder durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
