package runcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/hub"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/system"
)

// Bounds on what is hashed.
const (
	maxFiles = 20_000 // of a folder
	maxDepth = 16
	maxNotes = 64 << 20 // of the file of hashes
)

// settled is how old a change must be for the hash of a file to be remembered: a file may change again within
// one tick of its file system's clock.
const settled = 2 * time.Second

// ErrInput: a folder that cannot be taken for an input.
var ErrInput = errors.New("unusable input")

// hasher tells contents of files and folders. It remembers hashes of files that have not changed.
type hasher struct {
	mu    sync.Mutex
	notes map[string]string // by device, inode, size and times
	used  map[string]bool
	skip  string // folder of the run, which is no part of what it lies in
}

// newHasher takes over what an earlier run has noted. Notes that cannot be read are none.
func newHasher(file, skip string) *hasher {
	h := &hasher{notes: map[string]string{}, used: map[string]bool{}, skip: skip}
	if text, err := safefile.ReadFile(file, maxNotes); err == nil {
		_ = json.Unmarshal(text, &h.notes) // they are only a shortcut
	}
	return h
}

// save keeps the hashes that were of use.
func (h *hasher) save(file string) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	kept := map[string]string{}
	for key := range h.used {
		kept[key] = h.notes[key]
	}

	text, err := json.Marshal(kept)
	if err != nil {
		return err
	}

	return cli.WriteFile(file, text)
}

// identity is a hash of the content of a file or folder; that of a part of a split GGUF model is of all parts, since
// they are read with it. In a folder with weights the reports do not count, since they hold times, unless all is set.
func (h *hasher) identity(ctx context.Context, path string, all bool) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}

	t := &tree{h: h, all: all}
	if !st.IsDir() {
		parts := gguf.PartPaths(path)
		if len(parts) == 1 {
			return h.file(ctx, path, st)
		}
		for _, part := range parts {
			if err := t.add(ctx, part, filepath.Base(part)); err != nil {
				return "", err
			}
		}
		return cli.Fingerprint("parts", t.list), nil
	}

	if err := t.walk(ctx, path, "", 0); err != nil {
		return "", err
	}

	return cli.Fingerprint("folder", t.list), nil
}

// file is the hash of a file's content.
func (h *hasher) file(ctx context.Context, path string, st fs.FileInfo) (string, error) {
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s: %w", path, safefile.ErrNotRegular)
	}

	key, changed, err := system.State(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}

	h.mu.Lock()
	sum := h.notes[key]
	h.mu.Unlock()

	if sum == "" {
		if sum, err = cli.FileHash(ctx, path); err != nil {
			return "", err
		}
	}

	if time.Since(changed) > settled {
		h.mu.Lock()
		h.notes[key], h.used[key] = sum, true
		h.mu.Unlock()
	}

	return sum, nil
}

// tree collects the files of a folder.
type tree struct {
	h    *hasher
	all  bool
	list [][2]string // name and hash
}

// reports are files about a run beside its weights, which hold times, or how things were called.
var reports = []string{
	"README.md",
	"report.json", "report.html", "training.json", "training.html", "timings.json", "pruning.json",
	"merge.json",
}

// walk takes in a folder. Links to files are followed, as folders of downloaded models have them; links to
// folders are not.
func (t *tree) walk(ctx context.Context, dir, name string, depth int) error {
	if abs, err := filepath.Abs(dir); err == nil && abs == t.h.skip {
		return nil
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}

	model := slices.ContainsFunc(entries,
		func(e fs.DirEntry) bool {
			return strings.HasSuffix(e.Name(), ".safetensors") || strings.HasSuffix(e.Name(), ".gguf")
		})
	for _, e := range entries {
		path, inner := filepath.Join(dir, e.Name()), name+e.Name()
		switch {
		case len(t.list) >= maxFiles || depth > maxDepth:
			return fmt.Errorf("%s: %w: more than %d files or %d levels (HINT: name a smaller folder)", dir, ErrInput,
				maxFiles, maxDepth)
		case model && !t.all && slices.Contains(reports, e.Name()):
			continue
		case e.IsDir():
			if err := t.walk(ctx, path, inner+"/", depth+1); err != nil {
				return err
			}
			continue
		}

		if err := t.add(ctx, path, inner); err != nil {
			return err
		}
	}

	return nil
}

// add takes in a file by a name.
func (t *tree) add(ctx context.Context, path, name string) error {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() {
		t.list = append(t.list, [2]string{name, "no file"})
		return nil
	}

	sum, err := t.h.file(ctx, path, st)
	if err != nil {
		return err
	}

	t.list = append(t.list, [2]string{name, sum})
	return nil
}

// maxNested is how deep documents that name documents are followed.
const maxNested = 3

// named lists the files and folders that texts name: whole, or as parts between commas, equals signs and plus
// signs; and those that documents among them name, from the working directory or from where the document lies.
// Texts are as in a plan.
func named(texts []string, dir string) []string {
	seen := map[string]bool{}
	var list []string
	var take func(text, beside string, depth int)
	take = func(text, beside string, depth int) {
		for _, p := range pieces(text) {
			path := at(dir, p)
			if beside != "" && !filepath.IsAbs(path) {
				if _, err := os.Stat(path); err != nil {
					path = filepath.Join(beside, path)
				}
			}

			if dir, ok := hub.Find(p); ok {
				if _, err := os.Stat(path); err != nil {
					path = dir // a model by its name on the hub
				}
			}

			st, err := os.Stat(path)
			if err != nil || seen[path] || holdsAll(path) {
				continue
			}

			seen[path] = true
			list = append(list, path)

			if end := filepath.Ext(path); st.Mode().IsRegular() && (end == ".yaml" || end == ".yml") &&
				depth < maxNested && st.Size() <= 1<<20 {
				text, err := safefile.ReadFile(path, 1<<20)
				if err != nil {
					continue // it is counted by its hash, which says the same
				}

				for _, word := range words(string(text)) {
					take(word, filepath.Dir(path), depth+1)
				}
			}
		}
	}

	for _, t := range texts {
		take(t, "", 0)
	}

	return list
}

// holdsAll tells the working directory and the folders that it lies in, whose names are no names of inputs.
func holdsAll(path string) bool {
	here, errA := os.Getwd()
	abs, errB := filepath.Abs(path)
	rel, err := filepath.Rel(abs, here)
	return errors.Join(errA, errB, err) != nil || rel == "." || rel != ".." && !strings.HasPrefix(rel, "../")
}

// pieces are the parts of a text that may be names.
func pieces(text string) []string {
	if text == "" || len(text) > 4096 {
		return nil
	}
	list := append([]string{text}, strings.FieldsFunc(text, func(c rune) bool {
		return strings.ContainsRune(",=+;",
			c)
	})...)
	slices.Sort(list)
	return slices.Compact(list)
}

// words are the texts of a document that may be names, found without knowing its form.
func words(text string) (list []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		_, value, _ := strings.Cut(line, ": ")
		list = append(list, strings.Trim(value, `"'`), strings.Trim(strings.TrimPrefix(line, "- "), `"'`))
		list = append(list, strings.FieldsFunc(line, func(c rune) bool {
			return strings.ContainsRune(" \t\"'{}[],",
				c)
		})...)
	}

	slices.Sort(list)
	return slices.Compact(list)
}
