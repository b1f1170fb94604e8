package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
)

// Dir is a model in a folder: one safetensors file, or several (shards) that an index brings together. It reads like
// a File. All methods but Close may be called from several goroutines at once.
type Dir struct {
	path    string
	index   *index // nil without an index file
	shards  []string
	files   map[string]*File
	shardOf map[string]string
	unused  []string
}

// OpenDir opens the model in the folder at path: by model.safetensors.index.json if there is one, otherwise
// model.safetensors, otherwise the only file whose name ends in .safetensors. The path of a single .safetensors file
// is accepted as well.
//
// Every header is checked, and index and shards must agree tensor by tensor. Shards must be plain file names in
// the folder, which a name in the index cannot lead out of; an entry of the folder that is a symbolic link is followed
// (in a snapshot of the cache of the Hugging Face hub to a blob alone). The errors
// wrap ErrNoModel, ErrIndex, ErrShardPath, ErrMissingShard, ErrMissingTensor, ErrExtraTensor, or a rule of the
// format as Open's do.
func OpenDir(path string) (*Dir, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}

	if !stat.IsDir() {
		return openSingle(path)
	}

	root, err := safefile.OpenFolder(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	defer root.Close()

	d := &Dir{path: path, files: map[string]*File{}, shardOf: map[string]string{}}
	if err := d.open(root); err != nil {
		_ = d.Close()
		return nil, err
	}

	return d, nil
}

// openSingle opens one file as a folder of one shard.
func openSingle(path string) (*Dir, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}

	base := filepath.Base(path)
	d := &Dir{path: path, shards: []string{base}, files: map[string]*File{base: f}, shardOf: map[string]string{}}
	for i := range f.header.tensors {
		d.shardOf[f.header.tensors[i].Name] = base
	}

	return d, nil
}

func (d *Dir) open(root *safefile.Folder) error {
	names, err := folderNames(root)
	if err != nil {
		return locate(err, d.path, "")
	}

	single, err := d.choose(root, names)
	if err != nil {
		return err
	}

	if d.index != nil {
		d.shards = d.index.shards
		err = d.checkPresent(names)
	} else {
		d.shards = []string{single}
	}
	if err != nil {
		return err
	}

	for _, shard := range d.shards {
		if err := d.openShard(root, shard); err != nil {
			return err
		}
	}

	for _, name := range names {
		if strings.HasSuffix(name, extension) && d.files[name] == nil {
			d.unused = append(d.unused, name)
		}
	}

	return d.checkIndex()
}

// folderNames lists the folder, sorted.
func folderNames(root *safefile.Folder) ([]string, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// choose finds what the folder is opened by: it sets the index, or gives the single file.
func (d *Dir) choose(root *safefile.Folder, names []string) (single string, err error) {
	if _, found := slices.BinarySearch(names, IndexName); found {
		d.index, err = readIndex(root, d.path, IndexName)
		return "", err
	}

	if _, found := slices.BinarySearch(names, SingleName); found {
		return SingleName, nil
	}

	candidates := slices.DeleteFunc(slices.Clone(names),
		func(name string) bool { return !strings.HasSuffix(name, extension) })
	if len(candidates) == 1 {
		return candidates[0], nil
	}

	return "", locate(fault(ErrNoModel, -1, "%s", describeFolder(names, candidates)), d.path, "")
}

// describeFolder says what stands in a folder instead of a model.
func describeFolder(names, candidates []string) string {
	missing := "neither " + IndexName + " nor " + SingleName
	if len(candidates) > 1 {
		return fmt.Sprintf("%s, and several other files: %s; name one of them", missing, clipNames(candidates))
	}

	var other []string
	for _, name := range names {
		switch filepath.Ext(name) {
		case ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz", ".partial":
			other = append(other, name)
		}
	}

	switch {
	case len(other) > 0:
		return fmt.Sprintf("%s, only %s: convert to safetensors first, or resume what is unfinished", missing,
			clipNames(other))
	case len(names) == 0:
		return missing + "; the folder is empty"
	}

	return fmt.Sprintf("%s; found %s", missing, clipNames(names))
}

// checkPresent reports all missing shards at once.
func (d *Dir) checkPresent(names []string) error {
	var missing []string
	for _, shard := range d.shards {
		if _, found := slices.BinarySearch(names, shard); !found {
			missing = append(missing, shard)
		}
	}

	if len(missing) == 0 {
		return nil
	}

	return locate(fault(ErrMissingShard, -1, "%d of %d that %s names: %s",
		len(missing), len(d.shards), IndexName, clipNames(missing)), d.path, "")
}

// openShard opens one shard and compares it with the index.
func (d *Dir) openShard(root *safefile.Folder, shard string) error {
	path := filepath.Join(d.path, shard)
	raw, err := openInside(root, d.path, shard)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrMissingShard, err)
		}
		return err
	}

	f, err := openFile(raw, path)
	if err != nil {
		return err
	}

	d.files[shard] = f

	for i := range f.header.tensors {
		name := f.header.tensors[i].Name
		if d.index != nil && d.index.shardOf[name] != shard {
			return locate(d.extra(name), path, name)
		}
		d.shardOf[name] = shard
	}

	return nil
}

// extra says what the index has for a tensor that it does not give to the shard that holds it.
func (d *Dir) extra(name string) error {
	if other, ok := d.index.shardOf[name]; ok {
		return fault(ErrExtraTensor, -1, "%s places it in %q", IndexName, clip(other))
	}
	return fault(ErrExtraTensor, -1, "%s does not name it", IndexName)
}

// checkIndex finds tensors that the index names and no shard holds.
func (d *Dir) checkIndex() error {
	if d.index == nil || len(d.index.shardOf) == len(d.shardOf) {
		return nil
	}

	var missing []string
	for name := range d.index.shardOf {
		if _, ok := d.shardOf[name]; !ok {
			missing = append(missing, name)
		}
	}

	slices.Sort(missing)
	shard := d.index.shardOf[missing[0]]
	return locate(fault(ErrMissingTensor, -1, "%d tensors are missing: %s", len(missing), clipNames(missing)),
		filepath.Join(d.path, shard), missing[0])
}

// Path gives the path that OpenDir was called with.
func (d *Dir) Path() string { return d.path }

// Shards lists the base names of the files, sorted.
func (d *Dir) Shards() []string { return slices.Clone(d.shards) }

// Shard gives one of the files by its base name, for what belongs to a file alone, such as its own metadata; nil if
// there is none. It is closed with d.
func (d *Dir) Shard(base string) *File { return d.files[base] }

// ShardOf gives the base name of the file that holds a tensor, "" for an unknown tensor.
func (d *Dir) ShardOf(name string) string { return d.shardOf[name] }

// Indexed reports whether the folder was opened by its index file.
func (d *Dir) Indexed() bool { return d.index != nil }

// IndexMetadata gives a copy of the index file's metadata as JSON texts, nil without an index. Its total_size is what
// the file says; files with a wrong one are common, and DataSize gives the true one.
func (d *Dir) IndexMetadata() map[string]json.RawMessage {
	if d.index == nil {
		return nil
	}
	return maps.Clone(d.index.metadata)
}

// Unused lists the .safetensors files of the folder that are no part of the model, sorted.
func (d *Dir) Unused() []string { return slices.Clone(d.unused) }

// DataSize gives the bytes of all tensors together.
func (d *Dir) DataSize() int64 {
	var total int64
	for _, f := range d.files {
		for i := range f.header.tensors {
			total += f.header.tensors[i].Size
		}
	}
	return total
}

// Names lists the tensors: shard by shard in the order of Shards, in each in the order of their data.
func (d *Dir) Names() []string {
	names := make([]string, 0, len(d.shardOf))
	for _, shard := range d.shards {
		names = append(names, d.files[shard].Names()...)
	}
	return names
}

// Info says what a tensor is and where it lies in its shard; false if there is none of that name.
func (d *Dir) Info(name string) (Info, bool) { return d.file(name).Info(name) }

// Metadata gives the __metadata__ of all shards together, nil if none has any. Where shards differ about a key, the
// first in the order of Shards holds; Shard gives each file's own.
func (d *Dir) Metadata() map[string]string {
	var all map[string]string
	for _, shard := range slices.Backward(d.shards) {
		m := d.files[shard].header.metadata
		if all == nil {
			all = maps.Clone(m)
		} else {
			maps.Copy(all, m)
		}
	}

	return all
}

// file finds the shard of a tensor; for an unknown one it gives a file without tensors, whose methods say so.
func (d *Dir) file(name string) *File {
	if f, ok := d.files[d.shardOf[name]]; ok {
		return f
	}
	return &File{path: d.path, header: &header{}}
}

// Bytes gives a tensor's data without copying it; see File.Bytes.
func (d *Dir) Bytes(name string) ([]byte, error) { return d.file(name).Bytes(name) }

// ReadAt copies a part of a tensor; see File.ReadAt.
func (d *Dir) ReadAt(name string, p []byte, off int64) (int, error) {
	return d.file(name).ReadAt(name, p, off)
}

// Release gives back the memory behind a tensor's view; see File.Release.
func (d *Dir) Release(name string) error { return d.file(name).Release(name) }

// View calls fn with a tensor's data, safe against a shortened file; see File.View.
func (d *Dir) View(name string, fn func(data []byte) error) error { return d.file(name).View(name, fn) }

// Close closes all files; see File.Close.
func (d *Dir) Close() error {
	var errs []error
	for _, shard := range slices.Sorted(maps.Keys(d.files)) {
		errs = append(errs, d.files[shard].Close())
	}
	return errors.Join(errs...)
}
