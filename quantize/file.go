package quantize

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/quantize/imatrix"
	"github.com/modelcompress/compress/quantize/internal/typemix"
	"github.com/modelcompress/compress/safetensors"
)

// FileOptions says how to write a model as one GGUF file.
type FileOptions struct {
	// Scheme is one of layout gguf: a mixture of types by llama.cpp's name for it.
	Scheme Scheme `json:"scheme"`
	// Types give tensors of the file other types than the mixture does; of several that name one the last counts.
	Types []TypeRule `json:"types,omitempty"`
	// Importance weighs the errors of columns; nil: no column counts more than another.
	Importance *imatrix.File `json:"-"`
	// Imatrix is the name of the file that Importance came from, which the output names.
	Imatrix string `json:"imatrix,omitempty"`

	Name string `json:"name,omitempty"` // general.name; empty: the last part of the model's path
	// Origin is what a report calls the model where its folder is one that does not stay; empty: the path.
	Origin string `json:"-"`

	Out       string `json:"-"` // file to write
	Overwrite bool   `json:"-"` // replace a file there
	Resume    bool   `json:"-"` // continue an interrupted run of the same job, or start one
	Threads   int    `json:"-"` // CPU threads; 0: one for each processor

	Progress func(done, of int64) `json:"-"` // values of all; nil: nobody is told
}

// TypeRule gives matrices a type.
type TypeRule struct {
	Pattern string `json:"pattern"` // of names, as of package path: those in the file, or those of modules in a folder
	Type    string `json:"type"`    // q6_k, f16, …; in a folder w8a16, …
}

// FileReport is what a run did.
type FileReport struct {
	Options FileOptions  `json:"options"`
	Version string       `json:"version"`
	Model   FileModel    `json:"model"`
	Tensors []FileTensor `json:"tensors"`
	Total   FileTotal    `json:"total"`
	Notes   []string     `json:"notes"`
	Seconds float64      `json:"quantise_seconds"`
	// Finished: an earlier run of the same job has written the file; this one wrote nothing.
	Finished bool `json:"finished,omitempty"`
}

// FileModel identifies the model.
type FileModel struct {
	Path         string `json:"path"`
	Architecture string `json:"architecture"` // as GGUF spells it
}

// FileTensor is a tensor of the file.
type FileTensor struct {
	Name     string  `json:"name"`
	Type     string  `json:"type"`
	Shape    []int64 `json:"shape"` // outermost first
	Bytes    int64   `json:"bytes"`
	Weighted bool    `json:"weighted,omitempty"` // by an importance
}

// FileTotal sums a file up.
type FileTotal struct {
	Tensors int   `json:"tensors"`
	Weights int64 `json:"weights"`
	Bytes   int64 `json:"bytes"` // of all tensors
	// BytesIn is what the tensors of the model take, those of a quantised one as the floats that they stand for.
	BytesIn int64            `json:"bytes_in"`
	Types   map[string]int64 `json:"types"` // values of each type
	// BitsPerWeight is 8·Bytes over Weights.
	BitsPerWeight float64 `json:"bits_per_weight"`
}

// Validate returns every fault of the options, joined; nil if there is none.
func (o FileOptions) Validate() error {
	var faults []error
	mix, ok := typemix.Named(o.Scheme.Name)
	if !ok || o.Scheme.Layout != ggufLayout {
		_, err := SchemeByName(o.Scheme.Name)
		if err == nil {
			err = fmt.Errorf("%w: scheme %s is one of folders", ErrOptions, o.Scheme.Name)
		}
		faults = append(faults, err)
	}
	if mix.Weighted && o.Importance == nil && o.Imatrix == "" {
		faults = append(faults, failure.Hinted(fmt.Errorf("%w: scheme %s without an importance matrix, which leaves "+
			"nothing useful of a model and is refused by llama-quantize, too", ErrOptions, mix.Name),
			"--imatrix FILE, which compress imatrix writes, or the scheme q2_k"))
	}
	for _, r := range o.Types {
		if _, err := path.Match(r.Pattern, ""); err != nil || r.Pattern == "" {
			faults = append(faults, fmt.Errorf("%w: type %s: %q is no pattern", ErrOptions, r.Type, r.Pattern))
		}
		if _, _, err := typeNamed(r.Type); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// typeNamed finds a type that tensors can be written in.
func typeNamed(name string) (gguf.Type, *quantized.Block, error) {
	block, ok := quantized.BlockNamed(strings.ToUpper(name))
	if !ok || !block.Encodes() {
		return 0, nil, fmt.Errorf("%w: type %q; known: %s", ErrOptions, name, strings.Join(TypeNames(), ", "))
	}
	t, err := gguf.ParseType(block.Name)
	return t, block, err
}

// TypeNames lists the types that tensors of a GGUF file can be given.
func TypeNames() []string {
	var names []string
	for _, name := range []string{
		"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
		"IQ4_NL", "IQ4_XS", "MXFP4",
	} {
		if b, ok := quantized.BlockNamed(name); ok && b.Encodes() {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}

// File writes a model as one GGUF file: every tensor is read, rounded and written in pieces, so that memory stays at a
// few megabytes a thread whatever the size of the model. The bytes are those of llama.cpp's converter and quantiser;
// see [Scheme]. What the format cannot hold, or llama.cpp would compute otherwise, is an error before anything is
// written. The file appears when it is complete; after an interruption the same call with Resume continues it.
func File(ctx context.Context, model string, o FileOptions) (*FileReport, error) {
	start := time.Now()
	if err := o.Validate(); err != nil {
		return nil, err
	}

	f, err := openFile(ctx, model, o)
	if err != nil {
		return nil, err
	}
	defer f.close()

	if err := f.assign(); err != nil {
		return nil, err
	}
	if err := f.write(ctx); err != nil {
		return nil, err
	}

	f.report.Total.BytesIn = f.bytesIn()
	f.report.Seconds = time.Since(start).Seconds()
	return f.report, nil
}

// file is one run.
type file struct {
	o       FileOptions
	mix     typemix.Mix
	model   string
	source  *weights.Source
	export  *ggufmodel.Export
	report  *FileReport
	types   []string // of each tensor, in their order
	written atomic.Int64
}

// openFile opens the model and plans the file.
func openFile(ctx context.Context, model string, o FileOptions) (_ *file, err error) {
	f := &file{o: o, model: model}
	f.mix, _ = typemix.Named(o.Scheme.Name)
	defer func() {
		if err != nil {
			f.close()
		}
	}()

	if f.source, err = weights.Open(ctx, model); err != nil {
		return nil, err
	}
	if f.export, err = f.source.Export(ggufmodel.ExportOptions{
		Name: o.Name, FileType: f.mix.FileType, AllowExtra: true,
	}); err != nil {
		return nil, err
	}

	recorded := o // without what a report should not hold on to
	recorded.Importance = nil
	recorded.Progress = nil
	f.report = &FileReport{
		Options: recorded, Version: build.Version(), Notes: []string{}, Tensors: []FileTensor{},
		Model: FileModel{
			Path: origin(o.Origin, model), Architecture: textOf(f.export.Metadata, "general.architecture"),
		},
		Total: FileTotal{Types: map[string]int64{}},
	}
	if f.export.Lost != "" {
		f.report.Notes = append(f.report.Notes, f.export.Lost)
	}

	return f, nil
}

func textOf(m gguf.Metadata, key string) string {
	v, _ := m.Get(key)
	s, _ := v.Text()
	return s
}

func (f *file) close() {
	if f.source != nil {
		_ = f.source.Close()
	}
}

// assign gives each tensor its type.
func (f *file) assign() error {
	list := make([]typemix.Tensor, len(f.export.Tensors))
	for i, t := range f.export.Tensors {
		shape := make([]uint64, len(t.Shape))
		for k, n := range t.Shape {
			shape[len(shape)-1-k] = uint64(n)
		}
		list[i] = typemix.Tensor{Name: t.Name, Shape: shape, Type: f.kept(t)}
	}

	c := f.export.Config
	model := typemix.Model{
		Architecture: f.report.Model.Architecture, Layers: c.Layers, Heads: c.Heads, KVHeads: c.KVHeads,
		Experts: c.Experts,
	}
	wanted, err := f.mix.Wanted(model, list, f.o.Importance != nil)
	if err == nil {
		f.types, err = f.mix.Types(model, list, f.o.Importance != nil)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.model, err)
	}

	if err := f.override(list); err != nil {
		return err
	}
	f.noteTypes(list, wanted)
	return nil
}

// note adds a remark to the report.
func (f *file) note(format string, args ...any) {
	f.report.Notes = append(f.report.Notes, fmt.Sprintf(format, args...))
}

// several counts matrices.
func several(n int) string {
	if n == 1 {
		return "1 matrix"
	}
	return fmt.Sprintf("%d matrices", n)
}

// noteTypes notes types that are not those that the mixture is called by: of matrices whose rows its blocks do not
// divide, and of models that have none of what it is for.
func (f *file) noteTypes(list []typemix.Tensor, wanted []string) {
	type change struct{ from, to string }
	counts := map[change]int{}
	var order []change
	base := false
	for i, t := range list {
		base = base || f.types[i] == f.mix.Base || wanted[i] == f.mix.Base
		if f.types[i] == wanted[i] || f.types[i] != typemix.Fit(wanted[i], t.Shape[0]) {
			continue // or the user has another type for it
		}
		c := change{wanted[i], f.types[i]}
		if counts[c] == 0 {
			order = append(order, c)
		}
		counts[c]++
	}

	for _, c := range order {
		block := 0
		if b, ok := quantized.BlockNamed(c.from); ok {
			block = b.Elements
		}
		f.note("%s got %s instead of %s, since blocks of %d do not divide their rows", several(counts[c]), c.to,
			c.from, block)
	}
	if !base {
		f.note("no matrix is %s: %s gives it to the experts of mixtures, and this model has none", f.mix.Base,
			f.o.Scheme.Name)
	}
}

// kept is the type of a tensor that is not quantised: as it is stored, for matrices.
func (f *file) kept(t *ggufmodel.Target) string {
	if t.Matrix && len(t.Sources) > 0 {
		switch info, _ := f.source.Info(f.export.Stored(t.Sources[0]).From); info.DType {
		case safetensors.F16:
			return "F16"
		case safetensors.BF16:
			return "BF16"
		}
	}
	return "F32"
}

// override gives tensors the types that the user has for them.
func (f *file) override(list []typemix.Tensor) error {
	for _, r := range f.o.Types {
		_, block, err := typeNamed(r.Type)
		if err != nil {
			return err
		}

		used := false
		for i, t := range list {
			if ok, _ := path.Match(r.Pattern, t.Name); !ok || !f.export.Tensors[i].Matrix {
				continue // vectors and routers have their type whatever is asked
			}
			if t.Shape[0]%uint64(block.Elements) != 0 {
				return fmt.Errorf("tensor %q: %w: rows of %d are not made of blocks of %d, which %s has", t.Name,
					ErrLayout, t.Shape[0], block.Elements, block.Name)
			}
			f.types[i] = block.Name
			used = true
		}
		if !used {
			return fmt.Errorf("%w: type %s: no matrix of the file is named like %q", ErrOptions, r.Type, r.Pattern)
		}
	}
	return nil
}

// write writes the file.
func (f *file) write(ctx context.Context) error {
	if err := f.checkImportance(); err != nil {
		return err
	}
	f.describe()

	i := -1 // tensors are asked about in their order
	o := ggufmodel.WriteOptions{
		Overwrite: f.o.Overwrite, Threads: f.o.Threads, Read: f.source.RowReader(f.export),
		As: func(t *ggufmodel.Target) (ggufmodel.Encoding, error) {
			i++
			return f.encoding(t, f.types[i])
		},
	}

	j, err := f.journal()
	if err != nil {
		return err
	}
	if j.finished {
		return errors.Join(f.already(), j.Remove())
	}
	o.Journal = j
	return j.end(ctx, f.o.Out, f.export.Write(ctx, f.o.Out, o))
}

// encoding is how a tensor is stored.
func (f *file) encoding(t *ggufmodel.Target, name string) (ggufmodel.Encoding, error) {
	as, block, err := typeNamed(name)
	if err != nil {
		return ggufmodel.Encoding{}, err
	}

	weigh := f.importance(t, block)
	bytes := int64(0)
	if bytes, err = as.ByteSize(t.Shape); err != nil {
		return ggufmodel.Encoding{}, err
	}
	values := int64(t.Rows()) * int64(t.Cols())
	f.report.Tensors = append(f.report.Tensors, FileTensor{
		Name: t.Name, Type: as.String(), Shape: t.Shape, Bytes: bytes, Weighted: weigh != nil,
	})
	total := &f.report.Total
	total.Tensors++
	total.Weights += values
	total.Bytes += bytes
	total.Types[as.String()] += values
	total.BitsPerWeight = 8 * float64(total.Bytes) / float64(total.Weights)

	all := f.values()
	return ggufmodel.Encoding{Type: as, Encode: func(dst []byte, rows []float32, first int) error {
		err := encode(block, t, dst, rows, first, weigh)
		if f.o.Progress != nil {
			f.o.Progress(f.written.Add(int64(len(rows))), all)
		}
		return err
	}}, nil
}

// already fills the report of a file that an earlier run has finished.
func (f *file) already() error {
	for i, t := range f.export.Tensors {
		if _, err := f.encoding(t, f.types[i]); err != nil {
			return err
		}
	}
	f.report.Finished = true
	return nil
}

// bytesIn is what the model's tensors take.
func (f *file) bytesIn() (n int64) {
	for _, name := range f.source.Names() {
		info, _ := f.source.Info(name)
		n += info.Size
	}
	return n
}

// values is how many values all tensors have.
func (f *file) values() (n int64) {
	for _, t := range f.export.Tensors {
		n += int64(t.Rows()) * int64(t.Cols())
	}
	return n
}

// encode writes rows of a tensor as blocks; weigh gives the importance for a matrix of a stack, nil for none.
func encode(block *quantized.Block, t *ggufmodel.Target, dst []byte, rows []float32, first int,
	weigh func(matrix int) []float32,
) error {
	cols := t.Cols()
	if weigh == nil {
		return block.Encode(dst, rows, cols, nil)
	}

	// Each matrix of a stack has an importance of its own.
	tall := t.Rows()
	if len(t.Shape) == 3 {
		tall = int(t.Shape[1])
	}
	for n := len(rows) / cols; n > 0; {
		k := min(n, tall-first%tall)
		size := block.Size(k * cols)
		if err := block.Encode(dst[:size], rows[:k*cols], cols, weigh(first/tall)); err != nil {
			return err
		}
		dst, rows = dst[size:], rows[k*cols:]
		first, n = first+k, n-k
	}
	return nil
}

// importance finds what the columns of a tensor count.
func (f *file) importance(t *ggufmodel.Target, block *quantized.Block) func(matrix int) []float32 {
	if f.o.Importance == nil || !block.Weighted() || !t.Matrix {
		return nil
	}
	e, ok := f.o.Importance.Entry(t.Name)
	if !ok {
		return nil
	}

	list := make([][]float32, e.Matrices())
	for i := range list {
		list[i] = e.Importance(i)
	}
	return func(matrix int) []float32 { return list[min(matrix, len(list)-1)] }
}

// checkImportance compares an importance matrix with the tensors, and puts down where it came from.
func (f *file) checkImportance() error {
	m := f.o.Importance
	if m == nil {
		return nil
	}

	used := 0
	var without []string
	for i, t := range f.export.Tensors {
		e, ok := m.Entry(t.Name)
		if !ok {
			if f.mix.Needs(t.Name, f.types[i]) {
				without = append(without, t.Name)
			}
			continue
		}
		used++
		if e.Inputs != t.Cols() {
			if err := e.Split(t.Cols()); err != nil {
				return err
			}
		}
		mats := 1
		if len(t.Shape) == 3 {
			mats = int(t.Shape[0])
		}
		if n := e.Matrices(); n != mats && n != 1 {
			return fmt.Errorf("%w: entry %q is of %d matrices, and the tensor has %d", imatrix.ErrOther, e.Name, n,
				mats)
		}
	}
	f.noteImportance()
	if used == 0 {
		return fmt.Errorf("%w: it names none of its tensors; the first entry is %q", imatrix.ErrOther,
			m.Entries[0].Name)
	}

	if len(without) > 0 {
		return fmt.Errorf("%w: it has nothing of tensor %q and %d others, which %s needs", imatrix.ErrOther, without[0],
			len(without)-1, f.mix.Name)
	}

	add := func(key string, v gguf.Value) {
		f.export.Metadata = append(f.export.Metadata, gguf.Entry{Key: "quantize.imatrix." + key, Value: v})
	}
	add("file", gguf.Of(filepath.Base(f.o.Imatrix)))
	if n := len(m.Datasets); n > 0 {
		add("dataset", gguf.Of(m.Datasets[0]))
	}
	add("entries_count", gguf.Of(uint32(len(m.Entries))))
	if m.Chunks > 0 {
		add("chunks_count", gguf.Of(uint32(m.Chunks)))
	}
	return nil
}

// noteImportance notes matrices that an importance matrix leaves out or gives nothing.
func (f *file) noteImportance() {
	var missing, zero []string
	for i, t := range f.export.Tensors {
		block, ok := quantized.BlockNamed(f.types[i])
		if !t.Matrix || !ok || !block.Weighted() {
			continue
		}
		e, ok := f.o.Importance.Entry(t.Name)
		if !ok {
			if t.Block >= 0 { // llama-imatrix leaves embeddings and outputs out
				missing = append(missing, t.Name)
			}
			continue
		}
		for m := range e.Matrices() {
			if !slices.ContainsFunc(e.Importance(m), func(v float32) bool { return v != 0 }) {
				zero = append(zero, t.Name)
				break
			}
		}
	}

	if len(missing) > 0 {
		f.note("%s without an entry in the importance matrix, rounded alone; the first is %q", several(len(missing)),
			missing[0])
	}
	if len(zero) > 0 {
		f.note("%s with an importance of 0 throughout, which becomes 0 as llama-quantize has it; the first is %q",
			several(len(zero)), zero[0])
	}
	if n := f.o.Importance.Trailing; n > 0 {
		f.note("%d bytes at the end of the importance matrix are not read", n)
	}
}

// describe notes what a reader has to know.
func (f *file) describe() {
	if f.o.Importance == nil && slices.Contains([]string{"Q2_K", "Q3_K", "IQ4_XS"}, f.mix.Base) {
		f.report.Notes = append(f.report.Notes, fmt.Sprintf("%s without an importance matrix loses much; compress "+
			"imatrix makes one", f.o.Scheme.Name))
	}
}
