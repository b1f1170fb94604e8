package weights

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/safetensors"
)

const (
	ggufEnding = ".gguf"
	ggufMagic  = "GGUF"
)

// namedGGUF reports whether a name is that of a GGUF file.
func namedGGUF(name string) bool { return strings.EqualFold(filepath.Ext(name), ggufEnding) }

// IsGGUF reports whether a path leads to a GGUF file, by the ending of its name or, as a blob of the hub's cache has
// none, by its first bytes.
func IsGGUF(path string) bool {
	stat, err := os.Stat(path)
	switch {
	case err != nil || stat.IsDir():
		return false
	case namedGGUF(path):
		return true
	case !stat.Mode().IsRegular() || strings.HasSuffix(path, ".safetensors"):
		return false
	}

	f, err := safefile.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()

	var magic [len(ggufMagic)]byte
	_, err = io.ReadFull(f, magic[:])
	return err == nil && string(magic[:]) == ggufMagic
}

// SeveralError is the error about a folder that holds GGUF files of several models.
type SeveralError struct {
	Dir   string
	Names []string // of the files, of split ones one part
}

// Error says which they are.
func (e *SeveralError) Error() string {
	const limit = 8
	more := ""
	if n := len(e.Names) - limit; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s: the folder holds several GGUF models: name one of them: %q%s", e.Dir,
		e.Names[:min(len(e.Names), limit)], more)
}

// Hint shows how one is named.
func (e *SeveralError) Hint() string { return "such as " + filepath.Join(e.Dir, e.Names[0]) }

// Several is a [SeveralError] where a path leads to a folder with several GGUF models.
func Several(path string) error {
	_, err := formOf(path)
	if s := new(SeveralError); errors.As(err, &s) {
		return s
	}
	return nil
}

// findGGUF finds the GGUF file that a folder is a model by, of a split one the first part that is there: nothing where
// it holds files of safetensors, or none of GGUF.
func findGGUF(dir string) (path string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}

	var found []string
	split := map[string]bool{}
	for _, e := range entries { // sorted, so that the parts of a model come in order
		name := e.Name()
		if strings.HasSuffix(name, ".safetensors") || name == safetensors.IndexName {
			return "", nil
		}
		if !namedGGUF(name) || isFolder(dir, e) {
			continue
		}

		if no, count, part := gguf.IsPart(name); part {
			whole := strings.TrimSuffix(name, fmt.Sprintf("-%05d-of-%05d%s", no, count, ggufEnding))
			whole = fmt.Sprintf("%s/%d", whole, count)
			if split[whole] {
				continue
			}
			split[whole] = true
		}
		found = append(found, name)
	}

	if len(found) > 1 {
		models := slices.DeleteFunc(slices.Clone(found), func(name string) bool {
			return isHelper(filepath.Join(dir, name))
		})
		if len(models) == 0 {
			models = found[:1] // which says what it is when it is opened
		}
		found = models
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return filepath.Join(dir, found[0]), nil
	}

	return "", &SeveralError{dir, found}
}

// isFolder reports whether an entry is a folder, or a link to one.
func isFolder(dir string, e fs.DirEntry) bool {
	if e.Type()&fs.ModeSymlink == 0 {
		return e.IsDir()
	}
	stat, err := os.Stat(filepath.Join(dir, e.Name()))
	return err == nil && stat.IsDir()
}

// helperName reports whether a name is as llama.cpp's tools call what stands beside a model.
func helperName(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "mmproj") || strings.HasPrefix(name, "imatrix")
}

// helpers keeps what the headers of GGUF files in folders with several say, since every reading of a file beside the
// weights asks for it, and a header with a vocabulary takes a moment.
var helpers sync.Map // path to helper

type helper struct {
	size   int64
	time   time.Time
	helper bool
}

// isHelper reports whether a GGUF file is no model but what goes with one: a projector of images, a matrix of
// importances, an adapter. Where the file cannot be read its name decides.
func isHelper(path string) bool {
	stat, err := os.Stat(path)
	if err != nil || !stat.Mode().IsRegular() {
		return helperName(filepath.Base(path))
	}
	if v, ok := helpers.Load(path); ok && v.(helper).size == stat.Size() && v.(helper).time.Equal(stat.ModTime()) {
		return v.(helper).helper
	}

	h := helper{stat.Size(), stat.ModTime(), helperName(filepath.Base(path))}
	if file, err := gguf.OpenModelWith(path, openPart); err == nil {
		h.helper = kindOf(file.Metadata()) != ""
		_ = file.Close()
	}
	helpers.Store(path, h)

	return h.helper
}

// kindOf says what a file is that is no model; empty for a model.
func kindOf(m gguf.Metadata) string {
	text := func(key string) string {
		v, _ := m.Get(key)
		s, _ := v.Text()
		return s
	}

	switch kind := text("general.type"); {
	case kind != "" && kind != "model":
		return kind
	case text("general.architecture") == "clip":
		return "mmproj"
	}
	return ""
}

// openModel opens a GGUF file that is a model.
func openModel(path string) (*gguf.Model, error) {
	file, err := gguf.OpenModelWith(path, openPart)
	if err != nil {
		return nil, err
	}
	if kind := kindOf(file.Metadata()); kind != "" {
		return nil, errors.Join(fmt.Errorf("%s: a GGUF file, but no model: it says that it is of the type %.40q", path,
			kind), file.Close())
	}
	return file, nil
}

// openPart opens a file by the rules of [safefile.Folder], which follows links out of a snapshot of the hub's cache to
// blobs alone.
func openPart(path string) (*os.File, error) {
	dir, name := snapshotOf(path)
	root, err := safefile.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	f, err := root.OpenFile(name, os.O_RDONLY|system.NonBlock, 0)
	if err == nil {
		return f, nil
	}

	if _, there := os.Stat(path); there == nil && !errors.Is(err, fs.ErrPermission) {
		return nil, errOutside
	}
	if p := new(fs.PathError); errors.As(err, &p) {
		err = &fs.PathError{Op: "open", Path: path, Err: p.Err}
	}

	return nil, err
}

var errOutside = errors.New("a link that leads out of the snapshot of the hub's cache to no blob of it is not followed")

// snapshotOf cuts a path into the folder whose links count and the name of the file in it: the snapshot of the hub's
// cache, of which the file may be in a folder, or the folder of the file.
func snapshotOf(path string) (dir, name string) {
	dir, name = filepath.Split(path)
	dir = cmp.Or(dir, ".")
	whole, err := filepath.Abs(path)
	if err != nil {
		return dir, name
	}

	for at := filepath.Dir(whole); filepath.Dir(at) != at; at = filepath.Dir(at) {
		up := filepath.Dir(at)
		if filepath.Base(up) == "snapshots" && strings.HasPrefix(filepath.Base(filepath.Dir(up)), "models--") {
			return at, strings.TrimPrefix(whole, at+string(filepath.Separator))
		}
	}

	return dir, name
}
