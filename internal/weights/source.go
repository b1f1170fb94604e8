// Package weights opens the tensors of a model and the files beside them, in whatever form the model lies on the disk:
//
//	a folder of safetensors files, or one such file
//	a folder whose config.json has a quantization_config that package quantized knows, or one of GPTQ's matrices from
//	before that, with these settings in quantize_config.json
//	a GGUF file, or any part of a split one
//	a folder that holds the GGUF files of one model, and no safetensors
//
// [Open] gives the tensors as the model without quantisation has them, by their names in its safetensors folder: those
// that are stored in few bits have the element type in which the reference implementation of their format has their
// values, all of which are numbers of it, and are decoded as they are read. [ReadFile] and [Files] give the files
// beside the weights as they belong to these tensors: config.json has no quantization_config, and its dtype holds the
// values; for GGUF files they are made of the metadata. Everything is keyed by the path that the user gave, so that
// this stays what messages, reports and adapters name.
//
// # Memory
//
// A tensor that lies in its file as the model has it is a view of the file. Another is decoded window by window into
// what the reader gives, on all processors; only windows that a read begins or ends within are kept, a few megabytes
// of them. The pages of what was decoded are given back to the system as reading goes on, so that a model of any
// size can be streamed through [Source.ReadAt].
package weights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// Source is the open tensors of a model. All methods but Close may be called from several goroutines at once.
type Source struct {
	path   string
	stored safetensors.Source // the tensors that lie in the files as they are
	files  files
	dir    *safetensors.Dir  // what both are of; nil: a GGUF file
	names  []string          // of all tensors, where some are decoded; otherwise nil
	plain  map[string]bool   // those that are not decoded; nil where none is
	coded  map[string]*coded // those that are
	unused []string

	quantisation string
	windows      windows
}

// UsualShard is the most bytes of a file where those of the source cannot be kept: of a model that is made of a
// quantised one, or cut smaller.
const UsualShard = 5e9

var _ safetensors.Source = (*Source)(nil)

// Open opens the model at path. The errors are those of [safetensors.OpenDir] and of [quantized.Open], with the path,
// an [arch.ConfigError] for a quantization_config that is not understood, and for GGUF files those of [gguf.OpenModel]
// and [ggufmodel.New]. A quantised model enters the record of the context, see [Recorded].
func Open(ctx context.Context, path string) (*Source, error) {
	f, err := formOf(path)
	if err != nil {
		return nil, err
	}

	s, err := f.open()
	if err != nil {
		return nil, err
	}

	note(ctx, s)
	return s, nil
}

// OpenStored opens the files of a model as they are, to be looked at. Tensors of safetensors are what is stored, also
// where they are quantised; those of GGUF have their names and shapes there and are decoded where that is possible, see
// [Source.Opaque]. The errors are those of [safetensors.OpenDir] and of [gguf.OpenModel].
func OpenStored(path string) (*Source, error) {
	f, err := formOf(path)
	if err != nil {
		return nil, err
	}
	if f.gguf != "" {
		return f.openStoredGGUF()
	}
	return f.openDir()
}

// openDir opens the safetensors files of a folder, or one of them, as they are.
func (f *form) openDir() (*Source, error) {
	dir, err := safetensors.OpenDir(f.path)
	if err != nil {
		return nil, err
	}
	return &Source{path: f.path, stored: dir, files: dirFiles{dir, !f.folder}, dir: dir}, nil
}

// open opens the model.
func (f *form) open() (*Source, error) {
	if f.gguf != "" {
		return f.openGGUF()
	}

	s, err := f.openDir()
	if err != nil || !f.folder {
		return s, err
	}

	config, err := f.storedConfig()
	if err == nil && config != nil {
		err = s.decode(config.quantised)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}

	return s, nil
}

// decode finds the quantised matrices of a folder.
func (s *Source) decode(c *quantized.Config) error {
	if c == nil {
		return nil
	}

	m, err := quantized.Open(s.dir, c)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}

	formats := map[string]bool{}
	found := map[string]*coded{}
	plain := map[string]bool{}
	of := map[string]string{} // parts
	for _, name := range m.Names() {
		matrix := m.Matrix(name)
		if matrix == nil {
			plain[name] = true
			continue
		}

		found[name] = newCoded(matrix, matrix.Parts)
		formats[matrix.Format] = true
		for _, part := range matrix.Parts {
			of[part] = name
		}
	}

	// such as bitsandbytes' settings for a model that is quantised when it is loaded
	if len(found) == 0 {
		return nil
	}

	s.coded = found
	s.plain = plain
	s.unused = m.Unused()
	s.quantisation = describe(c.Method, formats)
	s.order(of)
	return nil
}

// order lists the tensors as they lie in the files, those that are decoded by the first of their parts.
func (s *Source) order(of map[string]string) {
	listed := map[string]bool{}
	for _, name := range s.dir.Names() {
		if matrix, part := of[name]; part {
			name = matrix
		} else if !s.plain[name] {
			continue
		}
		if !listed[name] {
			s.names = append(s.names, name)
		}
		listed[name] = true
	}
}

// describe names a method, and the formats of the matrices where they have other names.
func describe(method string, formats map[string]bool) string {
	var names []string
	for f := range formats {
		if f != method {
			names = append(names, strings.TrimPrefix(f, method+"-"))
		}
	}
	if len(names) == 0 {
		return method
	}

	slices.Sort(names)
	return method + " " + strings.Join(names, ", ")
}

// Path is the path that Open was called with.
func (s *Source) Path() string { return s.path }

// Origin is the path of what holds the tensors: the GGUF file that a folder is a model by, otherwise that of the model.
func (s *Source) Origin() string {
	if g, ok := s.files.(*ggufFiles); ok {
		return g.file.Path()
	}
	return s.path
}

// Quantisation says in which form values are stored that are decoded, such as "gptq" or "GGUF Q4_K, Q6_K"; empty for
// models of floating-point numbers.
func (s *Source) Quantisation() string { return s.quantisation }

// Matrix is how a tensor that is decoded is stored; nil for one that lies in its file as it is.
func (s *Source) Matrix(name string) *quantized.Matrix {
	if c := s.coded[name]; c != nil {
		return c.matrix
	}
	return nil
}

// Kernel is the format of package kernels in which rows of a tensor can be had in the bits in which they are stored, by
// [Source.Codes]; 0: they cannot, or are not quantised.
func (s *Source) Kernel(name string) kernels.QuantFormat {
	if c := s.coded[name]; c != nil && !c.turned && c.matrix.Rows == c.rows && c.matrix.Cols == c.cols {
		return c.matrix.Kernel()
	}
	return 0
}

// Codes gives n rows from first on of a tensor that has a [Source.Kernel]: what the rows are decoded from, but for the
// rounding of the values to the tensor's type. view reports that the codes are a view of the files, valid until Close;
// otherwise all is a copy, and the pages that it was made of are given back.
func (s *Source) Codes(name string, first, n int) (w kernels.Quantised, view bool, err error) {
	c := s.coded[name]
	err = mmapsafe.Do(func() error {
		w, view, err = c.matrix.Codes(first, n)
		return err
	})
	if err != nil {
		return kernels.Quantised{}, false, fmt.Errorf("%s: %w", s.File(name), err)
	}

	if !view {
		_ = s.files.Drop(s.windows.spent(c, w.SizeBytes())) // costs memory alone
	}
	return w, view, nil
}

// Decoded reports whether a tensor is decoded: Bytes makes a copy then, and not a view.
func (s *Source) Decoded(name string) bool { return s.coded[name] != nil }

// Unused lists the tensors of the files that quantise what flows through the model, and are no part of it.
func (s *Source) Unused() []string { return slices.Clone(s.unused) }

// Names lists the tensors in the order of their data.
func (s *Source) Names() []string {
	if s.coded == nil {
		return s.stored.Names()
	}
	return slices.Clone(s.names)
}

// Info says what a tensor is; false if there is none of that name.
func (s *Source) Info(name string) (safetensors.Info, bool) {
	if c := s.coded[name]; c != nil {
		info := c.info
		info.Shape = slices.Clone(info.Shape)
		return info, true
	}
	if s.plain != nil && !s.plain[name] { // a part of a matrix
		return safetensors.Info{}, false
	}
	return s.stored.Info(name)
}

// File is the path of the file that holds a tensor, of the model for an unknown one.
func (s *Source) File(name string) string {
	if c := s.coded[name]; c != nil {
		name = c.parts[0]
	}
	return s.files.File(name)
}

// Files lists the paths of the files that hold the tensors.
func (s *Source) Files() []string { return s.files.Files() }

// Shards lists the base names of the files, sorted.
func (s *Source) Shards() []string {
	list := s.files.Files()
	for i, path := range list {
		list[i] = filepath.Base(path)
	}
	return list
}

// Dir is the safetensors folder that has all tensors as they are; nil where some are decoded.
func (s *Source) Dir() *safetensors.Dir {
	if s.coded != nil {
		return nil
	}
	return s.dir
}

// DataSize is the bytes of all tensors together, as stored.
func (s *Source) DataSize() int64 { return s.files.DataSize() }

// Metadata gives the free-form strings of the headers; of a quantised model the format alone, since the others may
// describe how it is quantised.
func (s *Source) Metadata() map[string]string {
	all := s.stored.Metadata()
	if s.coded == nil || all["format"] == "" {
		return all
	}
	return map[string]string{"format": all["format"]}
}

// Layout is how the tensors are divided among the files of a new checkpoint: of at most maxShard bytes each, or where
// that is 0 as they are here, and those of a quantised model as is usual.
func (s *Source) Layout(maxShard int64) safetensors.DirOptions {
	o := safetensors.DirOptions{MaxShardSize: maxShard}
	switch {
	case maxShard != 0:
	case s.coded != nil || s.dir == nil:
		o.MaxShardSize = UsualShard
	case s.dir.Indexed():
		o.ShardOf = map[string]string{}
		for _, name := range s.dir.Names() {
			o.ShardOf[name] = s.dir.ShardOf(name)
		}
	}
	return o
}

// Bytes gives a read-only view of a tensor, valid until Close, or a copy of one that is decoded.
func (s *Source) Bytes(name string) ([]byte, error) {
	c := s.coded[name]
	if c == nil {
		return s.stored.Bytes(name)
	}

	data := make([]byte, c.info.Size)
	_, err := s.ReadAt(name, data, 0)
	return data, err
}

// View calls fn with a tensor's data, safe against a shortened file; see [safetensors.File.View].
func (s *Source) View(name string, fn func(data []byte) error) error {
	data, err := s.Bytes(name)
	if err != nil {
		return err
	}
	return mmapsafe.Do(func() error { return fn(data) })
}

// ReadAt copies a part of a tensor; see [safetensors.File.ReadAt].
func (s *Source) ReadAt(name string, p []byte, off int64) (int, error) {
	c := s.coded[name]
	if c == nil {
		return s.stored.ReadAt(name, p, off)
	}

	if off < 0 || off > c.info.Size {
		return 0, fmt.Errorf("%s: tensor %q: %w: offset %d, size %d", s.File(name), name, safetensors.ErrRange, off,
			c.info.Size)
	}

	n := min(int64(len(p)), c.info.Size-off)
	if err := mmapsafe.Do(func() error { return s.windows.read(c, p[:n], off) }); err != nil {
		return 0, fmt.Errorf("%s: %w", s.File(name), err)
	}

	_ = s.files.Drop(s.windows.spent(c, n)) // costs memory alone
	if n < int64(len(p)) {
		return int(n), io.EOF
	}

	return int(n), nil
}

// Narrow reports whether [Source.ReadBF16] knows a tensor: a matrix that is decoded to F32 row by row.
func (s *Source) Narrow(name string) bool {
	c := s.coded[name]
	return c != nil && !c.turned && c.info.DType == safetensors.F32 && c.matrix.Narrow() &&
		c.matrix.Rows == c.rows && c.matrix.Cols == c.cols
}

// ReadBF16 decodes rows of a tensor that is [Source.Narrow], rounded to bfloat16 with ties to even, to p, which has
// exactly as many bytes: what [Source.ReadAt] and a conversion give, in one step. Nothing is kept for the next read.
func (s *Source) ReadBF16(name string, p []byte, first, n int) error {
	c := s.coded[name]
	errs := make([]error, (n+c.step-1)/c.step)
	err := mmapsafe.Do(func() error {
		mmapsafe.Each(0, len(errs), func(i int) {
			at := i * c.step
			rows := min(c.step, n-at)
			errs[i] = c.matrix.DecodeBF16(p[2*at*c.cols:][:2*rows*c.cols], first+at, rows)
		})
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.File(name), err)
	}

	_ = s.files.Drop(s.windows.spent(c, int64(len(p)))) // costs memory alone
	return nil
}

// Release gives back the memory behind a tensor; views of it stay valid.
func (s *Source) Release(name string) error {
	c := s.coded[name]
	if c == nil {
		return s.stored.Release(name)
	}

	s.windows.forget(c)
	return s.files.Drop(c.parts)
}

// Close ends all views.
func (s *Source) Close() error {
	s.windows.clear()
	return s.stored.Close()
}
