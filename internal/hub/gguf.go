package hub

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
)

// ggufEnding is how names of GGUF files end, the one kind of file that is a model by itself.
const ggufEnding = ".gguf"

// file is a GGUF file of a model on the hub, as owner/name/FILE.gguf or owner/name@revision/FILE.gguf.
type file struct {
	Name
	path string // below the snapshot
}

// parseFile reads what may name a file, in the order in which it is looked for: a revision may have slashes too.
func parseFile(text string) (list []file) {
	if !strings.EqualFold(filepath.Ext(text), ggufEnding) {
		return nil
	}

	for i := range len(text) {
		if text[i] != '/' {
			continue
		}
		n, ok := Parse(text[:i])
		if path := text[i+1:]; ok && isRevision(path) {
			list = append(list, file{n, path})
		}
	}

	return list
}

// locate finds the file in a snapshot of the cache, where it leads to nothing but a blob; found is false without a
// snapshot. The error wraps [fs.ErrNotExist].
func (f file) locate(cache string) (path string, found bool, err error) {
	dir, found := f.Find(cache)
	if !found {
		return "", false, nil
	}

	root, err := safefile.OpenFolder(dir)
	if err != nil {
		return "", true, err
	}
	defer root.Close()

	if root.Inside(f.path) {
		return filepath.Join(dir, filepath.FromSlash(f.path)), true, nil
	}
	if _, err := root.Lstat(f.path); err == nil {
		return "", true, fmt.Errorf("%s/%s: %w: in the Hugging Face cache at %s it is a link that leads to no blob",
			f.Name, f.path, fs.ErrNotExist, cache)
	}

	err = fmt.Errorf("%s/%s: %w in the Hugging Face cache at %s", f.Name, f.path, fs.ErrNotExist, cache)
	if names := ggufs(dir); len(names) > 0 {
		const limit = 8
		return "", true, failure.Hinted(err, fmt.Sprintf("these are: %s/%s", f.Name,
			strings.Join(names[:min(len(names), limit)], ", "+f.Name.String()+"/")))
	}

	return "", true, failure.Hinted(err, f.hintPull())
}

// hintPull is how the file is downloaded.
func (f file) hintPull() string {
	return fmt.Sprintf("compress pull %s --include '%s' downloads it from the hub", f.Name, f.path)
}

// ggufs lists the GGUF files of a snapshot.
func ggufs(dir string) (names []string) {
	_ = fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.EqualFold(filepath.Ext(path), ggufEnding) {
			names = append(names, path)
		}
		return nil // what cannot be read is not listed
	})
	return names
}

// FindFile returns the GGUF file in a snapshot of a cache that a text names, and reports whether there is one.
func FindFile(cache, text string) (path string, ok bool) {
	for _, f := range parseFile(text) {
		if path, found, err := f.locate(cache); found {
			return path, err == nil
		}
	}
	return "", false
}

// locateFile finds the file that a text names; ok is false for a text that names none.
func locateFile(text string) (path string, ok bool, err error) {
	list := parseFile(text)
	if len(list) == 0 {
		return "", false, nil
	}
	if stat, err := os.Stat(list[0].ID()); err == nil && stat.IsDir() && list[0].Revision == "" {
		return "", false, nil // a folder goes first, and it has no such file
	}

	cache := CacheDir()
	for _, f := range list {
		if path, found, err := f.locate(cache); found {
			return path, true, err
		}
	}

	return "", true, failure.Hinted(fmt.Errorf("%s: %w, neither as a file nor in the Hugging Face cache at %s", text,
		fs.ErrNotExist, cache), list[0].hintPull())
}
