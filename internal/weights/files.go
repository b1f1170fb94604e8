package weights

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
)

// Files are the files beside the weights of a model. Names of more than one part are those in folders of it. It is used
// by one goroutine at a time.
type Files struct {
	form *form
	root *safefile.Folder  // nil: the model is a file
	made map[string][]byte // in the place of files of these names, nil for none, or beside them; see text
	time time.Time         // of those made
}

// quantisers are files that say how weights are quantised, beside what config.json says. They do not belong to the
// values.
var quantisers = []string{oldName, "quant_config.json", "hf_quant_config.json"}

// OpenFiles finds the files beside the weights of the model at path. Where that is one file of weights, there are none
// but those that are made of it. The error is one of the operating system, or of a GGUF file.
func OpenFiles(path string) (*Files, error) {
	f, err := formOf(path)
	if err != nil {
		return nil, err
	}

	x := &Files{form: f}
	if f.gguf != "" {
		x.made, x.time, err = filesOf(f.gguf)
	}
	if err == nil && f.folder {
		x.root, err = safefile.OpenFolder(path)
	}
	return x, err
}

// text is what is made in the place of a file; made is false for one that is read as it is. The errors are those of
// [Open].
func (x *Files) text(name string) (text []byte, made bool, err error) {
	if name == configName || slices.Contains(quantisers, name) {
		err = x.replace()
	}
	text, made = x.made[name]
	return text, made, err
}

// replace makes what stands in the place of files of a folder whose weights are quantised. That is left until it is
// asked for, since it takes the headers of all weights.
func (x *Files) replace() error {
	if x.made != nil || x.root == nil {
		return nil
	}

	text, err := x.form.plainConfig()
	if err != nil {
		return err
	}

	x.made = map[string][]byte{}
	if text == nil {
		return nil
	}

	stat, err := x.root.Stat(configName)
	if err != nil {
		return err
	}

	x.time = stat.ModTime()
	x.made[configName] = text
	for _, name := range quantisers {
		x.made[name] = nil
	}

	return nil
}

// Path is the path that OpenFiles was called with.
func (x *Files) Path() string { return x.form.path }

// Close closes the folder.
func (x *Files) Close() error {
	if x.root == nil {
		return nil
	}
	return x.root.Close()
}

// missing is the error about a file that is not there.
func (x *Files) missing(name string) error {
	if x.form.gguf != "" && name == tokenizerName {
		return noTokenizer(x.form.gguf)
	}
	return &fs.PathError{Op: "open", Path: filepath.Join(x.form.path, name), Err: fs.ErrNotExist}
}

const tokenizerName = "tokenizer.json"

// noTokenizer is the error about a GGUF file that tells nothing of a vocabulary.
func noTokenizer(path string) error {
	return failure.Hinted(fmt.Errorf("%s: the GGUF file holds no tokenizer: %w", path, fs.ErrNotExist),
		"put the file into a folder of its own, with the model's tokenizer.json, and name the folder")
}

// Names lists the files, without folders and those in folders, sorted.
func (x *Files) Names() ([]string, error) {
	if err := x.replace(); err != nil {
		return nil, err
	}

	names := map[string]bool{}
	if x.root != nil {
		entries, err := os.ReadDir(x.form.path)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			names[e.Name()] = !e.IsDir()
		}
	}

	for name, text := range x.made {
		names[name] = text != nil
	}
	maps.DeleteFunc(names, func(_ string, there bool) bool { return !there })

	return slices.Sorted(maps.Keys(names)), nil
}

// In lists the files of a folder among the files, sorted; none where it is not there.
func (x *Files) In(folder string) ([]string, error) {
	if x.root == nil {
		return nil, nil
	}
	entries, err := fs.ReadDir(x.root.FS(), folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Inside reports whether a file is read without following a link out of the folder; see [safefile.Folder.Inside].
func (x *Files) Inside(name string) bool {
	if text, made, _ := x.text(name); made {
		return text != nil
	}
	return x.root != nil && x.root.Inside(name)
}

// Stat describes a file.
func (x *Files) Stat(name string) (fs.FileInfo, error) {
	text, made, err := x.text(name)
	switch {
	case err != nil:
		return nil, err
	case text != nil:
		return described{name, int64(len(text)), x.time}, nil
	case made || x.root == nil:
		return nil, x.missing(name)
	}
	return x.root.Stat(name)
}

// Open opens a regular file for reading. The error wraps [safefile.ErrNotRegular], is one of the operating system, or,
// about the configuration of quantised weights, one of [Open].
func (x *Files) Open(name string) (fs.File, error) {
	text, made, err := x.text(name)
	switch {
	case err != nil:
		return nil, err
	case text != nil:
		return &opened{Reader: bytes.NewReader(text), info: described{name, int64(len(text)), x.time}}, nil
	case made || x.root == nil:
		return nil, x.missing(name)
	}

	f, err := safefile.In(x.root, name)
	if errors.Is(err, fs.ErrNotExist) && x.form.gguf != "" && name == tokenizerName {
		return nil, noTokenizer(x.form.gguf)
	}
	if err != nil {
		return nil, x.placed(err)
	}
	return f, nil
}

// placed gives an error of the operating system, which knows the name below the folder alone, the whole path.
func (x *Files) placed(err error) error {
	var p *fs.PathError
	if !errors.As(err, &p) || filepath.IsAbs(p.Path) {
		return err
	}
	return &fs.PathError{Op: "open", Path: filepath.Join(x.form.path, p.Path), Err: p.Err}
}

// Read reads a whole file of at most limit bytes. The error wraps [safefile.ErrTooLarge], or is one of [Files.Open].
func (x *Files) Read(name string, limit int64) ([]byte, error) {
	f, err := x.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s: %w: more than %d bytes", Place(x.form.path, name), safefile.ErrTooLarge, limit)
	}

	return text, err
}

// ReadFile reads a whole file of at most limit bytes beside the weights of the model at path, or what is made in its
// place. The errors are those of [OpenFiles] and [Files.Read].
func ReadFile(path, name string, limit int64) ([]byte, error) {
	x, err := OpenFiles(path)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	return x.Read(name, limit)
}

// opened is a text that is read as a file.
type opened struct {
	*bytes.Reader
	info described
}

// Stat implements fs.File.
func (o *opened) Stat() (fs.FileInfo, error) { return o.info, nil }

// Close implements fs.File.
func (o *opened) Close() error { return nil }

// described is what is known of a text that is read as a file.
type described struct {
	name string
	size int64
	time time.Time
}

// Name implements fs.FileInfo, as do those below.
func (d described) Name() string { return d.name }

// Size is the length of the text.
func (d described) Size() int64 { return d.size }

// Mode is that of a file which is read.
func (d described) Mode() fs.FileMode { return 0o444 }

// ModTime is that of the file which the text is made of.
func (d described) ModTime() time.Time { return d.time }

// IsDir is false.
func (d described) IsDir() bool { return false }

// Sys is nothing.
func (d described) Sys() any { return nil }
