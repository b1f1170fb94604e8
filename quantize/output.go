package quantize

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// output is the folder in the making.
type output struct {
	walk   *walk
	folder *lm.Folder
	config *quantized.Config   // of the matrices, for reading them back
	parts  map[string][]string // tensors of a matrix
	copies []string            // what is copied, in the source's order
	infos  map[string]safetensors.Info

	matrices map[string]Matrix // that an interrupted run has reported, by name
	folds    map[int][]Fold    // the same, by blocks

	size, quantised int64 // bytes of all tensors, and of those of quantised matrices
	buf             []byte
}

// maxConfig bounds what is read of a config.json.
const maxConfig = 64 << 20

// open starts the folder, or takes up what is there.
func (f *output) open(w *walk, config []byte, job string) (err error) {
	f.walk = w
	if f.config, err = quantized.ParseConfig(config); err != nil {
		return err
	}
	plan, err := f.plan()
	if err != nil {
		return err
	}

	// Before any work: a folder whose config.json does not say how it is quantised is of no use.
	text, err := weights.ReadFile(w.m.Path(), "config.json", maxConfig)
	if err == nil {
		_, err = withConfiguration(text, config)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.m.Path(), err)
	}

	f.folder, err = lm.OpenFolder(w.o.Out, plan, lm.FolderOptions{
		Overwrite: w.o.Overwrite, Resume: w.o.Resume, Fingerprint: job, Source: w.m.Path(), Model: w.m,
		Own: []string{RecordFile},
		Config: func(text []byte) []byte {
			// It could be changed a moment ago.
			changed, err := withConfiguration(text, config)
			if err != nil {
				return text
			}
			return changed
		},
	})
	if err == nil {
		f.found()
	}
	return err
}

// plan lists the tensors of the output: those of the source in its order, each matrix as its parts.
func (f *output) plan() (lm.FolderPlan, error) {
	w := f.walk
	f.parts = map[string][]string{}
	f.infos = map[string]safetensors.Info{}
	p := lm.FolderPlan{Metadata: map[string]string{}}
	maps.Copy(p.Metadata, w.source.Source().Metadata())
	if p.Metadata["format"] == "" {
		p.Metadata["format"] = "pt" // what other tools look for
	}
	p.Files = w.source.Layout(w.o.MaxShardSize)
	p.Files.Order = safetensors.OrderAligned

	chosen := map[string]lm.Linear{}
	for _, list := range w.chosen {
		for _, lin := range list {
			chosen[lin.Name] = lin
		}
	}

	shards := p.Files.ShardOf
	if shards != nil {
		p.Files.ShardOf = map[string]string{}
	}
	add := func(info safetensors.Info, name string) {
		p.Tensors = append(p.Tensors, info)
		f.infos[info.Name] = info
		f.size += info.Size
		if shards != nil {
			home, _ := w.source.Place(name)
			p.Files.ShardOf[info.Name] = shards[home]
		}
	}

	changed := map[string]bool{}
	for l := range w.chosen {
		for _, name := range w.floatsOf(l) {
			changed[name] = true
		}
	}

	for _, name := range w.source.Names() {
		lin, ok := chosen[name]
		if !ok {
			info := f.whole(name, chosen)
			if _, twice := f.infos[info.Name]; !twice {
				if !changed[name] {
					f.copies = append(f.copies, info.Name)
				}
				add(info, info.Name)
			}
			continue
		}

		g, err := w.newGrid(lin)
		if err != nil {
			return p, err
		}
		parts, err := g.form.parts(name, g)
		if err != nil {
			return p, err
		}
		for _, one := range parts {
			f.parts[name] = append(f.parts[name], one.Name)
			f.quantised += one.Size
			add(one.Info, name)
		}
	}

	return p, nil
}

// whole is the tensor that a parameter is copied with: the one of the source that holds it with others, where none of
// these is quantised, and otherwise its own.
func (f *output) whole(name string, chosen map[string]lm.Linear) safetensors.Info {
	w := f.walk
	stored, _ := w.source.Place(name)
	apart := slices.ContainsFunc(w.source.Parts(stored), func(p arch.Part) bool {
		_, ok := chosen[p.Name]
		return ok
	})
	if info, ok := w.source.Source().Info(stored); ok && !apart {
		return info
	}
	info, _ := w.source.Info(name)
	return info
}

// done reports whether tensors are complete.
func (f *output) done(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !f.folder.Done(name) })
}

// write writes the tensors of a matrix.
func (f *output) write(name string, g *grid) error {
	parts, err := g.form.parts(name, g)
	if err != nil {
		return err
	}
	for _, one := range parts {
		if err := f.folder.Writer().WriteTensor(one.Name, one.fill(g)); err != nil {
			return err
		}
	}
	return nil
}

// finding is what a report says of a block, which is kept with its tensors for the report of a run that continues: it
// comes from values that are gone by then.
type finding struct {
	Matrices []Matrix `json:"matrices"`
	Folds    []Fold   `json:"folds,omitempty"`
}

// commit makes tensors of a block durable, with what was found.
func (f *output) commit(names []string, found finding) error {
	if len(names) == 0 {
		return nil
	}
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	return f.folder.CommitWith(names, text)
}

// found takes up what an interrupted run kept: the last finding of each matrix and fold.
func (f *output) found() {
	f.matrices, f.folds = map[string]Matrix{}, map[int][]Fold{}
	for _, text := range f.folder.Remarks() {
		var one finding
		if json.Unmarshal(text, &one) != nil {
			continue // of a later build: the report has less
		}
		for _, m := range one.Matrices {
			f.matrices[m.Name] = m
		}
		for i, fold := range one.Folds {
			if i == 0 {
				f.folds[fold.Block] = nil
			}
			f.folds[fold.Block] = append(f.folds[fold.Block], fold)
		}
	}
}

// read opens a matrix that has been written.
func (f *output) read(name string) (m *quantized.Matrix, end func() error, err error) {
	file, err := f.folder.Open(f.parts[name][0])
	if err != nil {
		return nil, nil, err
	}

	found, err := quantized.Open(only{file, f.parts[name]}, f.config)
	if err == nil {
		m = found.Matrix(name)
	}
	if m == nil {
		_ = file.Close()
		return nil, nil, err
	}
	return m, file.Close, nil
}

// only is some tensors of a file.
type only struct {
	*safetensors.File
	names []string
}

// Names lists the tensors.
func (o only) Names() []string { return o.names }

// Info says what a tensor is; false for others than those.
func (o only) Info(name string) (safetensors.Info, bool) {
	for _, n := range o.names {
		if n == name {
			return o.File.Info(name)
		}
	}
	return safetensors.Info{}, false
}

// commitBatch is how many bytes are copied between two entries of the journal, each of which flushes to the disk.
const commitBatch = 1 << 30

// rest copies what is not quantised.
func (f *output) rest(ctx context.Context, progress func(done, of int64)) error {
	if f.buf == nil {
		f.buf = make([]byte, 4<<20)
	}

	total := int64(0)
	for _, name := range f.copies {
		total += f.infos[name].Size
	}

	var batch []string
	written, pending := int64(0), int64(0)
	for _, name := range f.copies {
		if err := ctx.Err(); err != nil {
			return err
		}

		progress(written, total)
		size := f.infos[name].Size
		written += size
		if f.folder.Done(name) {
			continue
		}
		if err := f.copy(name); err != nil {
			return err
		}

		batch, pending = append(batch, name), pending+size
		if pending >= commitBatch {
			if err := f.folder.Commit(batch); err != nil {
				return err
			}
			batch, pending = batch[:0], 0
		}
	}

	if len(batch) == 0 {
		return nil
	}
	return f.folder.Commit(batch)
}

// copy writes a tensor as it is.
func (f *output) copy(name string) error {
	size := f.infos[name].Size
	read := f.walk.source.ReadAt
	if _, ok := f.walk.source.Info(name); !ok {
		read = f.walk.source.Source().ReadAt // it holds several parameters
	}
	for off := int64(0); off < size; {
		n, err := read(name, f.buf[:min(int64(len(f.buf)), size-off)], off)
		if err != nil {
			return err
		}
		if err := f.folder.Writer().WriteAt(name, f.buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}
