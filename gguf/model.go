package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/modelcompress/compress/internal/tensorfile"
)

// Keys of split files, as llama.cpp's llama-gguf-split writes them.
const (
	splitNoKey      = "split.no"    // from 0 on
	splitCountKey   = "split.count" // of files
	splitTensorsKey = "split.tensors.count"
)

// partFormat is how the file of a part ends: its number from 1 on, and the number of parts.
const partFormat = "-%05d-of-%05d.gguf"

// partName is that, to be found.
var partName = regexp.MustCompile(`-(\d{5})-of-(\d{5})\.gguf$`)

// Model is a model in one GGUF file or in several, the parts of a split one. It reads like a [File]. All methods but
// Close may be called from several goroutines at once.
type Model struct {
	path   string
	parts  []*File
	partOf map[string]*File
	opener func(path string) (*os.File, error)
}

// OpenModel opens the file at path and, if it is a part of a split model, whichever, all others, which lie beside it
// under the names that llama.cpp gives them: NAME-00001-of-0000N.gguf. The parts must agree with each other.
//
// The errors are those of [Open], [ErrMissingPart] with the names of all that are missing, [ErrSplit], or
// [ErrDuplicate] for a tensor that two parts have.
func OpenModel(path string) (*Model, error) { return OpenModelWith(path, tensorfile.Open) }

// OpenModelWith is [OpenModel] for callers that decide for themselves which links are followed: open opens the file of
// a path for reading, of every part.
func OpenModelWith(path string, open func(path string) (*os.File, error)) (*Model, error) {
	first, err := openWith(path, open)
	if err != nil {
		return nil, err
	}

	m := &Model{path: path, partOf: map[string]*File{}, opener: open}
	if err := m.open(first); err != nil {
		_ = m.Close()
		return nil, err
	}

	return m, nil
}

// open opens the parts beside the one that is open.
func (m *Model) open(given *File) error {
	count, no, err := given.split()
	if err != nil || count <= 1 {
		m.parts = []*File{given}
		if err != nil {
			return err
		}
		return m.add(given)
	}

	paths, err := partPaths(m.path, count, no)
	if err != nil {
		m.parts = []*File{given}
		return err
	}

	for i, path := range paths {
		part := given
		if i != no {
			if part, err = openWith(path, m.opener); err != nil {
				m.parts = append(m.parts, given)
				return err
			}
		}

		m.parts = append(m.parts, part)
		if err := m.addPart(part, count, i); err != nil {
			m.parts = append(m.parts, given)
			return err
		}
	}

	return m.checkTotal()
}

// split returns the number of parts that the file's model is split into, 1 if it is whole, and which one this is.
func (f *File) split() (count, no int, err error) {
	n, ok := f.header.metadata.Get(splitCountKey)
	if !ok {
		return 1, 0, nil
	}

	c, cOK := n.Uint()
	v, _ := f.header.metadata.Get(splitNoKey)
	i, iOK := v.Uint()
	if !cOK || !iOK || c > 99999 || i >= max(c, 1) {
		return 0, 0, locate(fault(ErrSplit, -1, "%s %v, %s %v", splitNoKey, v, splitCountKey, n), f.path, "")
	}

	return int(c), int(i), nil
}

// partPaths lists the files of a split model by the name of one of them, if they are all there.
func partPaths(path string, count, no int) ([]string, error) {
	ending := fmt.Sprintf(partFormat, no+1, count)
	prefix, ok := strings.CutSuffix(path, ending)
	if !ok {
		return nil, locate(fault(ErrSplit, -1, "part %d of %d must have a name that ends in %s, so that the others "+
			"are found", no+1, count, ending), path, "")
	}

	paths := make([]string, count)
	var missing []string
	for i := range paths {
		paths[i] = prefix + fmt.Sprintf(partFormat, i+1, count)
		if _, err := os.Stat(paths[i]); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, filepath.Base(paths[i]))
		}
	}

	if len(missing) > 0 {
		return nil, locate(fault(ErrMissingPart, -1, "%d of %d: %s", len(missing), count, clipNames(missing)), path, "")
	}

	return paths, nil
}

// addPart checks that a file is the part that its name says, and takes its tensors.
func (m *Model) addPart(f *File, count, no int) error {
	c, i, err := f.split()
	if err != nil {
		return err
	}
	if c != count || i != no {
		return locate(fault(ErrSplit, -1, "it says that it is part %d of %d, and its name part %d of %d", i+1, c, no+1,
			count), f.path, "")
	}
	return m.add(f)
}

func (m *Model) add(f *File) error {
	for i := range f.header.tensors {
		name := f.header.tensors[i].Name
		if other, twice := m.partOf[name]; twice {
			return locate(fault(ErrDuplicate, -1, "%s has it too", filepath.Base(other.path)), f.path, name)
		}
		m.partOf[name] = f
	}
	return nil
}

// checkTotal compares the tensors of all parts with the number that the first one gives.
func (m *Model) checkTotal() error {
	v, ok := m.parts[0].header.metadata.Get(splitTensorsKey)
	if !ok {
		return nil
	}
	if n, ok := v.Uint(); !ok || n != uint64(len(m.partOf)) {
		return keyed(locate(fault(ErrSplit, -1, "%v, and the parts have %d tensors", v, len(m.partOf)),
			m.parts[0].path, ""), splitTensorsKey)
	}
	return nil
}

// IsPart reports whether a file's name is that of one part of a split model, and which: from 1 to count.
func IsPart(path string) (no, count int, ok bool) {
	found := partName.FindStringSubmatch(path)
	if found == nil {
		return 0, 0, false
	}

	_, err := fmt.Sscanf(found[1]+" "+found[2], "%d %d", &no, &count)
	return no, count, err == nil && 0 < no && no <= count
}

// PartPaths lists the files that the model at path is read from, by its name and without opening one: the parts of a
// split model that are there, whichever of them is named, or the file itself.
func PartPaths(path string) (paths []string) {
	no, count, ok := IsPart(path)
	if !ok {
		return []string{path}
	}

	prefix := strings.TrimSuffix(path, fmt.Sprintf(partFormat, no, count))
	for i := range count {
		part := prefix + fmt.Sprintf(partFormat, i+1, count)
		if _, err := os.Stat(part); err == nil || i+1 == no {
			paths = append(paths, part)
		}
	}

	return paths
}

// Path gives the path that OpenModel was called with.
func (m *Model) Path() string { return m.path }

// Parts lists the files, in order.
func (m *Model) Parts() []*File { return append([]*File(nil), m.parts...) }

// PartOf gives the file that holds a tensor, nil for an unknown one.
func (m *Model) PartOf(name string) *File { return m.partOf[name] }

// Metadata gives the key-value pairs of the first part, which describe the whole model; those of the others describe
// the split.
func (m *Model) Metadata() Metadata { return m.parts[0].Metadata() }

// DataSize gives the bytes of all tensors together.
func (m *Model) DataSize() (total int64) {
	for _, f := range m.parts {
		for i := range f.header.tensors {
			total += f.header.tensors[i].Size
		}
	}
	return total
}

// Names lists the tensors: part by part, in each in the order of their data.
func (m *Model) Names() []string {
	names := make([]string, 0, len(m.partOf))
	for _, f := range m.parts {
		names = append(names, f.Names()...)
	}
	return names
}

// file finds the part of a tensor; for an unknown one it gives the first, whose methods say so.
func (m *Model) file(name string) *File {
	if f := m.partOf[name]; f != nil {
		return f
	}
	return m.parts[0]
}

// Info says what a tensor is and where it lies in its part; false if there is none of that name.
func (m *Model) Info(name string) (Info, bool) { return m.file(name).Info(name) }

// Bytes gives a tensor's data without copying it; see [File.Bytes].
func (m *Model) Bytes(name string) ([]byte, error) { return m.file(name).Bytes(name) }

// ReadAt copies a part of a tensor; see [File.ReadAt].
func (m *Model) ReadAt(name string, p []byte, off int64) (int, error) {
	return m.file(name).ReadAt(name, p, off)
}

// Release gives back the memory behind a tensor's view; see [File.Release].
func (m *Model) Release(name string) error { return m.file(name).Release(name) }

// View calls fn with a tensor's data, safe against a shortened file; see [File.View].
func (m *Model) View(name string, fn func(data []byte) error) error {
	return m.file(name).View(name, fn)
}

// Close closes all files; see [File.Close].
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.parts {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
