package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/modelcompress/compress/internal/tensorfile"
)

// DirOptions says how a folder is written. The zero value writes everything into model.safetensors.
type DirOptions struct {
	// Order of the tensors in each file; default OrderGiven. The split into shards follows the
	// caller's order in any case.
	Order Order
	// MaxShardSize bounds the data of a shard in bytes: a new shard starts where the next tensor
	// would exceed it; a larger tensor has a shard for itself. 0 means no bound. The names are
	// model-00001-of-0000N.safetensors, or model.safetensors if one is enough.
	MaxShardSize int64
	// ShardOf names the file of each tensor instead, every tensor and no other; plain names that
	// end in .safetensors. An index is written then unless the only file is model.safetensors.
	ShardOf map[string]string
	// IndexMetadata goes into the index beside total_size.
	IndexMetadata map[string]string
	// WriteAt writes tensors' bytes to a file of the output instead of [os.File.WriteAt], which nil means.
	WriteAt func(f *os.File, p []byte, off int64) (int, error)
}

// DirWriter writes a model as one file or several with an index. Its methods are those of Writer, over all files.
type DirWriter struct {
	dir     string
	writers []*Writer
	shardOf map[string]int
	names   []string // in the caller's order
	index   []byte   // nil: none is written
	madeDir bool

	mu       sync.Mutex // for Finish, Suspend and Abort
	finished bool
	closed   bool // suspended or aborted
	indexed  bool // Finish came as far as writing the index
}

// shardPlan is one file of the folder.
type shardPlan struct {
	name    string
	tensors []Info
}

// CreateDir starts a model in the folder dir, which is made if it is not there and must hold no .safetensors file,
// finished or not, of another output. Every file is laid out, its disk space reserved and its header written, as
// Create does, with the same metadata in each. The index is written by Finish, last.
//
// The errors are those of Create, and ErrShardPlan or ErrShardPath for options that do not fit.
func CreateDir(dir string, tensors []Info, metadata map[string]string, opts DirOptions) (*DirWriter, error) {
	d, err := newDirWriter(dir, tensors, metadata, opts)
	if err != nil {
		return nil, err
	}
	if err := d.create(); err != nil {
		return nil, errors.Join(err, d.Abort())
	}
	return d, nil
}

// ReopenDir continues a folder that CreateDir started with the same arguments, in this process or in one that was
// killed, even in the midst of Finish: files that have their final name already are checked and count as complete.
// See Reopen for the rest. The error wraps ErrNoPartial if none of the files is there, and ErrLayoutChanged if there
// are others.
func ReopenDir(dir string, tensors []Info, metadata map[string]string, opts DirOptions) (*DirWriter, error) {
	d, err := newDirWriter(dir, tensors, metadata, opts)
	if err != nil {
		return nil, err
	}
	if err := d.reopen(); err != nil {
		return nil, errors.Join(err, d.Suspend())
	}
	return d, nil
}

func newDirWriter(dir string, tensors []Info, metadata map[string]string, opts DirOptions) (*DirWriter, error) {
	shards, err := split(tensors, opts)
	if err != nil {
		return nil, locate(err, dir, "")
	}

	d := &DirWriter{dir: dir, shardOf: make(map[string]int, len(tensors))}
	nameOf := make(map[string]string, len(tensors))
	var total int64
	for i, shard := range shards {
		w, err := newWriter(filepath.Join(dir, shard.name), shard.tensors, metadata,
			Options{Order: opts.Order, WriteAt: opts.WriteAt})
		if err != nil {
			return nil, err
		}

		d.writers = append(d.writers, w)

		for _, t := range shard.tensors {
			if _, twice := nameOf[t.Name]; twice {
				return nil, locate(fault(ErrDuplicateKey, -1, "listed twice"), dir, t.Name)
			}
			d.shardOf[t.Name], nameOf[t.Name] = i, shard.name
		}

		total += w.layout.size - int64(len(w.layout.head))
	}

	for _, t := range tensors {
		d.names = append(d.names, t.Name)
	}
	if len(shards) > 1 || shards[0].name != SingleName {
		d.index, err = marshalIndex(total, opts.IndexMetadata, nameOf)
	}

	return d, locate(err, dir, "")
}

// split assigns the tensors to files.
func split(tensors []Info, opts DirOptions) ([]shardPlan, error) {
	if _, taken := opts.IndexMetadata["total_size"]; taken {
		return nil, fault(ErrShardPlan, -1, "total_size of the index is computed, not given")
	}
	if opts.ShardOf != nil {
		return splitByName(tensors, opts)
	}
	return splitBySize(tensors, opts.MaxShardSize)
}

func splitBySize(tensors []Info, limit int64) ([]shardPlan, error) {
	if limit < 0 {
		return nil, fault(ErrShardPlan, -1, "a shard size of %d bytes", limit)
	}

	shards := []shardPlan{{}}
	var used int64
	for _, t := range tensors {
		size, err := t.DType.ByteSize(t.Shape)
		if err != nil {
			return nil, locate(err, "", t.Name)
		}

		last := &shards[len(shards)-1]
		if limit > 0 && size > 0 && len(last.tensors) > 0 && size > limit-used {
			shards = append(shards, shardPlan{})
			last, used = &shards[len(shards)-1], 0
		}

		last.tensors = append(last.tensors, t)
		used += size
	}

	for i := range shards {
		shards[i].name = fmt.Sprintf("model-%05d-of-%05d%s", i+1, len(shards), extension)
	}
	if len(shards) == 1 {
		shards[0].name = SingleName
	}

	return shards, nil
}

func splitByName(tensors []Info, opts DirOptions) ([]shardPlan, error) {
	if opts.MaxShardSize != 0 {
		return nil, fault(ErrShardPlan, -1, "MaxShardSize and ShardOf exclude each other")
	}
	if len(opts.ShardOf) != len(tensors) {
		return nil, fault(ErrShardPlan, -1, "ShardOf names %d tensors, the model has %d", len(opts.ShardOf),
			len(tensors))
	}

	byName := map[string][]Info{}
	for _, t := range tensors {
		shard, ok := opts.ShardOf[t.Name]
		if !ok {
			return nil, locate(fault(ErrShardPlan, -1, "ShardOf does not name it"), "", t.Name)
		}

		if !plainName(shard) || !strings.HasSuffix(shard, extension) || shard == extension {
			return nil,
				locate(fault(ErrShardPath, -1, "%q must be a plain name that ends in %s", clip(shard), extension), "",
					t.Name)
		}

		byName[shard] = append(byName[shard], t)
	}

	if len(byName) == 0 {
		return []shardPlan{{name: SingleName}}, nil
	}
	if len(byName) > 1 && byName[SingleName] != nil {
		return nil, fault(ErrShardPlan, -1, "other tools would read %s alone and miss the other shards", SingleName)
	}

	var shards []shardPlan
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		shards = append(shards, shardPlan{name, byName[name]})
	}

	return shards, nil
}

func (d *DirWriter) create() error {
	if _, err := os.Stat(d.dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(d.dir, 0o777); err != nil {
			return locate(err, d.dir, "")
		}
		d.madeDir = true
	}

	if err := d.checkFolder(false); err != nil {
		return err
	}
	if err := d.checkSpace(d.writers); err != nil {
		return err
	}

	for _, w := range d.writers {
		if err := w.create(); err != nil {
			return err
		}
	}

	return nil
}

// checkSpace refuses files that do not fit onto the disk together.
func (d *DirWriter) checkSpace(writers []*Writer) error {
	files := make([]*tensorfile.Writer, len(writers))
	for i, w := range writers {
		files[i] = w.file
	}
	return locate(tensorfile.CheckSpace(d.dir, files), d.dir, "")
}

// checkFolder looks for model files that are not of this output. A resumed output may have its own under their final
// names; one that starts may only find its own unfinished ones.
func (d *DirWriter) checkFolder(resumed bool) error {
	own := map[string]bool{IndexName: resumed && d.index != nil, IndexName + partialSuffix: true}
	for _, w := range d.writers {
		base := filepath.Base(w.Path())
		own[base], own[base+partialSuffix] = resumed, true
	}

	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return locate(err, d.dir, "")
	}

	for _, e := range entries {
		name := e.Name()
		plain := strings.TrimSuffix(name, partialSuffix)
		if own[name] || plain != IndexName && !strings.HasSuffix(plain, extension) {
			continue
		}
		if resumed {
			return locate(fault(ErrLayoutChanged, -1, "%q is not of this output", name), d.dir, "")
		}

		return locate(fault(ErrExists, -1, "the folder must hold no other model"), filepath.Join(d.dir, name), "")
	}

	return nil
}

func (d *DirWriter) reopen() error {
	if err := d.checkFolder(true); err != nil {
		return err
	}

	var fresh []*Writer
	for _, w := range d.writers {
		err := w.reopen()
		if errors.Is(err, ErrNoPartial) {
			fresh = append(fresh, w)
		} else if err != nil {
			return err
		}
	}

	if len(fresh) == 0 {
		d.finished = d.published()
		return nil
	}

	if len(fresh) == len(d.writers) {
		return locate(fault(ErrNoPartial, -1, "none of the %d files is there", len(fresh)), d.dir, "")
	}
	if err := d.checkSpace(fresh); err != nil {
		return err
	}

	for _, w := range fresh { // killed before CreateDir had made them
		if err := w.create(); err != nil {
			return err
		}
	}

	return nil
}

// published reports whether everything has its final name already.
func (d *DirWriter) published() bool {
	if slices.ContainsFunc(d.writers, func(w *Writer) bool { return !w.file.Finished() }) {
		return false
	}
	_, err := os.Lstat(filepath.Join(d.dir, IndexName))
	return d.index == nil || err == nil
}

// Path gives the folder.
func (d *DirWriter) Path() string { return d.dir }

// Shards lists the base names of the files, in the order of the split.
func (d *DirWriter) Shards() []string {
	var names []string
	for _, w := range d.writers {
		names = append(names, filepath.Base(w.Path()))
	}
	return names
}

// ShardOf gives the base name of the file that a tensor goes to, "" for an unknown tensor.
func (d *DirWriter) ShardOf(name string) string {
	i, ok := d.shardOf[name]
	if !ok {
		return ""
	}
	return filepath.Base(d.writers[i].Path())
}

// writer finds the file of a tensor; for an unknown one it gives a file without tensors, whose methods say so.
func (d *DirWriter) writer(name string) *Writer {
	if i, ok := d.shardOf[name]; ok {
		return d.writers[i]
	}
	return &Writer{file: tensorfile.New(d.dir, &tensorfile.Layout{}, tensorfile.Options{})}
}

// WriteTensor writes all bytes of a tensor; see Writer.WriteTensor.
func (d *DirWriter) WriteTensor(name string, data []byte) error {
	return d.writer(name).WriteTensor(name, data)
}

// WriteAt writes a part of a tensor; see Writer.WriteAt.
func (d *DirWriter) WriteAt(name string, p []byte, off int64) error {
	return d.writer(name).WriteAt(name, p, off)
}

// MarkDone says that a resumed output has all bytes of a tensor already; see Writer.MarkDone.
func (d *DirWriter) MarkDone(name string) error { return d.writer(name).MarkDone(name) }

// Done reports whether all bytes of a tensor are there; tensors without bytes always are.
func (d *DirWriter) Done(name string) bool { return d.writer(name).Done(name) }

// Remaining lists the tensors that are not completely written, in the caller's order.
func (d *DirWriter) Remaining() []string {
	return slices.DeleteFunc(slices.Clone(d.names), d.Done)
}

// Position is where a tensor's first byte lies in its file, 0 for an unknown tensor.
func (d *DirWriter) Position(name string) int64 {
	r, _ := d.writer(name).file.Region(name)
	return r.Offset
}

// Sync returns once everything written before is durable; see Writer.Sync.
func (d *DirWriter) Sync() error {
	for _, w := range d.writers {
		if err := w.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// Suspend flushes and closes the unfinished files and leaves them for ReopenDir.
func (d *DirWriter) Suspend() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var errs []error
	for _, w := range d.writers {
		errs = append(errs, w.Suspend())
	}
	return errors.Join(errs...)
}

// Finish checks that every tensor is complete before it renames the first file, finishes the files one by one and
// writes the index last, so that the folder opens only when all is there. After an error it may be called again, or
// the folder aborted or resumed. See Writer.Finish.
func (d *DirWriter) Finish() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.finished {
		return nil
	}
	if d.closed {
		return locate(fault(ErrClosed, -1, "it was aborted or suspended"), d.dir, "")
	}

	for _, w := range d.writers {
		if err := locate(w.file.Complete(), w.Path(), ""); err != nil {
			return err
		}
	}

	for _, w := range d.writers {
		if err := w.Finish(); err != nil {
			return err
		}
	}

	if d.index != nil {
		d.indexed = true
		path := filepath.Join(d.dir, IndexName)
		if err := writeAtomic(path, d.index); err != nil {
			return locate(err, path, "")
		}
	}

	d.finished = true
	return nil
}

// writeAtomic writes a small file as the large ones are written, without tensors.
func writeAtomic(path string, data []byte) error {
	w := tensorfile.New(path, &tensorfile.Layout{Head: data, Size: int64(len(data))},
		tensorfile.Options{Overwrite: true})
	if err := w.Create(); err != nil {
		return err
	}

	err := w.Finish()
	if err != nil {
		err = errors.Join(err, w.Abort())
	}
	return err
}

// Abort removes all files of an unfinished folder, those that Finish had renamed before it failed among them, and the
// folder itself if CreateDir made it and nothing else is in it. After Finish or Suspend it does nothing.
func (d *DirWriter) Abort() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.finished || d.closed {
		return nil
	}

	d.closed = true
	var errs []error
	if d.indexed {
		errs = append(errs, os.RemoveAll(filepath.Join(d.dir, IndexName)))
	}

	for _, w := range d.writers {
		errs = append(errs, w.Abort())
		if w.file.Finished() {
			errs = append(errs, os.Remove(w.Path()))
		}
	}

	if d.madeDir {
		_ = os.Remove(d.dir) // fails, rightly, if something else is in it
	}

	return errors.Join(errs...)
}
