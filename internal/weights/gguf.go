package weights

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/safetensors"
)

// openGGUF opens a GGUF file as the checkpoint that it was made of.
func (f *form) openGGUF() (*Source, error) {
	file, err := openModel(f.gguf)
	if err != nil {
		return nil, err
	}

	model, err := ggufmodel.New(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return f.sourceOf(file, model)
}

// openStoredGGUF opens the tensors of a GGUF file as they are, whatever the file is.
func (f *form) openStoredGGUF() (*Source, error) {
	file, err := gguf.OpenModelWith(f.gguf, openPart)
	if err != nil {
		return nil, err
	}
	return f.sourceOf(file, ggufmodel.Stored(file))
}

// sourceOf gives the tensors of an open file, which is closed where that fails.
func (f *form) sourceOf(file *gguf.Model, model *ggufmodel.Model) (*Source, error) {
	g := &ggufFiles{file: file, model: model}
	s := &Source{
		path: f.path, stored: g, files: g, names: model.Names(), plain: map[string]bool{}, coded: map[string]*coded{},
	}
	if model.Quantised() {
		s.quantisation = model.Quantisation()
	}

	for _, name := range s.names {
		var err error
		if _, s.plain[name], err = model.Bytes(name); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		if s.plain[name] {
			continue
		}

		info, _ := g.Info(name)
		c := newCoded(model.Matrix(name), g.parts(name))
		c.info = info
		s.coded[name] = c
	}

	return s, nil
}

// ggufFiles is the files of a GGUF model, and the tensors that lie in them as the checkpoint has them.
type ggufFiles struct {
	file  *gguf.Model
	model *ggufmodel.Model
	read  atomic.Int64 // bytes that were copied since pages were given back
}

// Pair is a key of a GGUF file's metadata with its value, as people read it.
type Pair struct {
	Key   string `json:"key"`
	Value string `json:"value"` // in one line, of an array the first items
}

// Opaque is a tensor of a GGUF file that nothing here decodes.
type Opaque struct {
	Name, Type string
	Shape      []int64
	Size       int64 // in bytes
}

// Header lists the metadata of a GGUF file; nil for other sources.
func (s *Source) Header() (pairs []Pair) {
	g, ok := s.files.(*ggufFiles)
	if !ok {
		return nil
	}
	for _, e := range g.file.Metadata() {
		pairs = append(pairs, Pair{e.Key, e.Value.String()})
	}
	return pairs
}

// Opaque lists the tensors that a GGUF file of [OpenStored] has beside those that can be read.
func (s *Source) Opaque() (list []Opaque) {
	if g, ok := s.files.(*ggufFiles); ok {
		for _, info := range g.model.Opaque() {
			list = append(list, Opaque{info.Name, info.Type.String(), info.Shape, info.Size})
		}
	}
	return list
}

// StoredSize is the bytes that a tensor of a GGUF file takes there, by its name there; 0 in other sources.
func (s *Source) StoredSize(name string) int64 {
	g, ok := s.files.(*ggufFiles)
	if !ok {
		return 0
	}
	info, _ := g.file.Info(name)
	return info.Size
}

// MadeConfig is the config.json that is made of a GGUF file, also where a file beside it cannot be made; nil for other
// sources.
func (s *Source) MadeConfig() []byte {
	if g, ok := s.files.(*ggufFiles); ok {
		return g.model.ConfigText()
	}
	return nil
}

// parts are the tensors of the files that one is made of.
func (g *ggufFiles) parts(name string) []string {
	place := g.model.Place(name)
	if place == "" {
		return nil
	}
	return strings.Split(place, " and ")
}

// Names implements [safetensors.Source].
func (g *ggufFiles) Names() []string { return g.model.Names() }

// Info implements [safetensors.Source].
func (g *ggufFiles) Info(name string) (safetensors.Info, bool) {
	info, ok := g.model.Info(name)
	info.Size, _ = info.DType.ByteSize(info.Shape) // the shape is that of tensors of a file
	return info, ok
}

// Metadata implements [safetensors.Source].
func (g *ggufFiles) Metadata() map[string]string { return map[string]string{"format": "pt"} }

// Bytes implements [safetensors.Source].
func (g *ggufFiles) Bytes(name string) ([]byte, error) {
	data, _, err := g.model.Bytes(name)
	return data, err
}

// ReadAt implements [safetensors.Source].
func (g *ggufFiles) ReadAt(name string, p []byte, off int64) (n int, err error) {
	data, err := g.Bytes(name)
	if err != nil {
		return 0, err
	}
	if off < 0 || off > int64(len(data)) {
		return 0, fmt.Errorf("%s: tensor %q: %w: offset %d, size %d", g.File(name), name, safetensors.ErrRange, off,
			len(data))
	}

	err = mmapsafe.Do(func() error {
		n = copy(p, data[off:])
		return nil
	})
	if err != nil {
		return 0, err
	}
	if g.read.Add(int64(n)) > spentBytes {
		g.read.Store(0)
		_ = g.Release(name) // costs memory alone
	}
	if n < len(p) {
		return n, io.EOF
	}

	return n, nil
}

// Release implements [safetensors.Source].
func (g *ggufFiles) Release(name string) error { return g.Drop(g.parts(name)) }

// Close implements [safetensors.Source].
func (g *ggufFiles) Close() error { return g.file.Close() }

// Drop implements [files].
func (g *ggufFiles) Drop(parts []string) error {
	var errs []error
	for _, part := range parts {
		errs = append(errs, g.file.Release(part))
	}
	return errors.Join(errs...)
}

// File implements [files].
func (g *ggufFiles) File(name string) string {
	if parts := g.parts(name); len(parts) > 0 {
		name = parts[0]
	}
	if f := g.file.PartOf(name); f != nil {
		return f.Path()
	}
	return g.file.Path()
}

// Files implements [files].
func (g *ggufFiles) Files() (paths []string) {
	for _, f := range g.file.Parts() {
		paths = append(paths, f.Path())
	}
	return paths
}

// DataSize implements [files].
func (g *ggufFiles) DataSize() int64 { return g.file.DataSize() }

// made keeps what is made of the metadata of GGUF files, of the latest few: a tokenizer takes a moment to write.
var made struct {
	sync.Mutex
	list []*madeFiles // the latest last
}

// madeFiles is what stands beside the weights of a GGUF file, in the state of a moment.
type madeFiles struct {
	path string
	size int64
	time time.Time
	once sync.Once
	all  map[string][]byte
	err  error
}

const maxMade = 8

// filesOf gives the files that are made of a GGUF file, and its time. They must not be changed.
func filesOf(path string) (map[string][]byte, time.Time, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}, err
	}

	x := madeOf(path, stat)
	x.once.Do(func() { x.all, x.err = makeFiles(path) })
	return x.all, x.time, x.err
}

func madeOf(path string, stat fs.FileInfo) *madeFiles {
	made.Lock()
	defer made.Unlock()

	for _, x := range made.list {
		if x.path == path && x.size == stat.Size() && x.time.Equal(stat.ModTime()) {
			return x
		}
	}

	made.list = slices.DeleteFunc(made.list, func(x *madeFiles) bool { return x.path == path })
	if len(made.list) == maxMade {
		made.list = slices.Delete(made.list, 0, 1)
	}
	x := &madeFiles{path: path, size: stat.Size(), time: stat.ModTime()}
	made.list = append(made.list, x)

	return x
}

func makeFiles(path string) (all map[string][]byte, err error) {
	file, err := openModel(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	err = mmapsafe.Do(func() error {
		model, err := ggufmodel.New(file)
		if err == nil {
			all, err = model.Files()
		}
		return err
	})

	return all, err
}
