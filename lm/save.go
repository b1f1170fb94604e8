package lm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which saving can be refused.
var (
	ErrExists   = errors.New("output exists already")
	ErrOtherJob = errors.New("unfinished output belongs to another job")
	ErrInPlace  = errors.New("output is the folder of the model itself")
)

// SaveOptions of [Model.NewSaver].
type SaveOptions struct {
	// Overwrite replaces an existing checkpoint folder once the new one is complete. A folder that holds no checkpoint
	// is never replaced.
	Overwrite bool
	// Resume continues an unfinished output of the same job; it starts one if there is none.
	Resume bool
	// MaxShardSize splits the model anew, in bytes per file; 0: files as in the source.
	MaxShardSize int64
	// Fingerprint identifies the job. A resume with another one is refused. It goes into the metadata of the files,
	// so it must depend only on what the output depends on.
	Fingerprint string
	// DType converts all floating-point tensors; 0: as in the source.
	DType safetensors.DType
}

// jobKey is the metadata key of the fingerprint.
const jobKey = "compress.job"

// Saver writes a model to a folder that appears under its name only when it is complete. Until then everything is in a
// hidden folder beside it, with a journal of the finished tensors, from which an interrupted job continues. The
// model must stay open. It is used by one goroutine at a time.
//
// Besides the tensors the new folder gets, byte by byte, what tokenizers and generation need (config.json, with dtype changed
// where tensors are converted, generation_config.json, tokenizer files, chat templates) and licence files. Model cards are not
// copied: they describe another model.
type Saver struct {
	m       *Model
	opts    SaveOptions
	dir     string // final
	stage   string
	writer  *safetensors.DirWriter
	journal *journal
	infos   map[string]safetensors.Info // as written
	names   []string
	side    []string
	done    map[string]bool
	over    bool // Finish, Abort or Suspend has been called, or an earlier run had finished
	buf     []byte
}

// NewSaver starts, or with Resume continues, the output at dir. The errors wrap [ErrExists], [ErrOtherJob], [ErrInPlace], an
// error of package safetensors (such as no space: disk space is reserved now), or one of the operating system.
func (m *Model) NewSaver(dir string, o SaveOptions) (*Saver, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &Saver{
		m: m, opts: o, dir: dir, stage: filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".partial"),
		infos: map[string]safetensors.Info{}, done: map[string]bool{},
	}
	if complete, err := s.checkTarget(); err != nil || complete {
		return s, err
	}
	if s.side, err = sideFiles(m.dir); err != nil {
		return nil, err
	}
	if err := s.openStage(); err != nil {
		return nil, err
	}
	return s, nil
}

// plan lists the tensors to write.
func (s *Saver) plan() (tensors []safetensors.Info, metadata map[string]string, o safetensors.DirOptions) {
	src := s.m.source
	s.names = src.Names()
	for _, name := range s.names {
		info, _ := src.Info(name)
		if _, float := dtypes[info.DType]; float && s.opts.DType != 0 {
			info.DType = s.opts.DType
		}
		s.infos[name] = info
		tensors = append(tensors, info)
	}
	metadata = maps.Clone(src.Metadata())
	if metadata == nil {
		metadata = map[string]string{}
	}
	if metadata["format"] == "" {
		metadata["format"] = "pt" // what other tools look for
	}
	delete(metadata, jobKey)
	if s.opts.Fingerprint != "" {
		metadata[jobKey] = s.opts.Fingerprint
	}
	if s.opts.DType != 0 {
		o.Order = safetensors.OrderAligned
	}
	o.MaxShardSize = s.opts.MaxShardSize
	if src.Indexed() {
		o.IndexMetadata = stringsOf(src.IndexMetadata())
		if o.MaxShardSize == 0 {
			o.ShardOf = map[string]string{}
			for _, name := range s.names {
				o.ShardOf[name] = src.ShardOf(name)
			}
		}
	}
	return tensors, metadata, o
}

// stringsOf keeps the entries of an index's metadata that are strings; total_size is computed anew.
func stringsOf(raw map[string]json.RawMessage) map[string]string {
	all := map[string]string{}
	for key, value := range raw {
		var text string
		if key != "total_size" && json.Unmarshal(value, &text) == nil {
			all[key] = text
		}
	}
	return all
}

// openStage makes the staging folder or takes up the one that is there.
func (s *Saver) openStage() error {
	if err := os.MkdirAll(s.stage, 0o777); err != nil {
		return err
	}
	var err error
	if s.journal, err = openJournal(filepath.Join(s.stage, journalName)); err != nil {
		return err
	}
	tensors, metadata, o := s.plan()
	if s.opts.Resume {
		err = s.resume(tensors, metadata, o)
	} else {
		err = s.fresh(tensors, metadata, o)
	}
	if err != nil {
		return errors.Join(err, s.journal.close())
	}
	return nil
}

// resume takes up what the journal says is there.
func (s *Saver) resume(tensors []safetensors.Info, metadata map[string]string, o safetensors.DirOptions) error {
	if job, started := s.journal.job(); started && job != s.opts.Fingerprint {
		return fmt.Errorf("%s: %w: %q, this is %q; --overwrite starts anew", s.stage, ErrOtherJob, job, s.opts.Fingerprint)
	}
	var err error
	s.writer, err = safetensors.ReopenDir(s.stage, tensors, metadata, o)
	if errors.Is(err, safetensors.ErrNoPartial) {
		return s.fresh(tensors, metadata, o)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOtherJob, err)
	}
	for _, name := range s.journal.done() {
		if _, known := s.infos[name]; known && !s.writer.Done(name) {
			if err := s.writer.MarkDone(name); err != nil {
				return err
			}
		}
	}
	for _, name := range s.names {
		s.done[name] = s.writer.Done(name)
	}
	return nil
}

// fresh discards what an earlier run left in the staging folder and starts.
func (s *Saver) fresh(tensors []safetensors.Info, metadata map[string]string, o safetensors.DirOptions) error {
	entries, err := os.ReadDir(s.stage)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != journalName {
			if err := os.RemoveAll(filepath.Join(s.stage, e.Name())); err != nil {
				return err
			}
		}
	}
	if s.writer, err = safetensors.CreateDir(s.stage, tensors, metadata, o); err != nil {
		return errors.Join(err, os.RemoveAll(s.stage))
	}
	if err := s.writer.Sync(); err != nil {
		return err
	}
	return s.journal.start(s.opts.Fingerprint)
}

// Done reports whether a tensor is complete, from this run or an interrupted one.
func (s *Saver) Done(name string) bool { return s.done[name] }

// LoadDone lets the model use the finished tensors of an interrupted run: the named parameters get the saved values.
func (s *Saver) LoadDone(names ...string) error {
	for _, name := range names {
		p, err := s.m.param(name)
		if err != nil {
			return err
		}
		if !s.done[name] {
			return fmt.Errorf("%s: %s: %w", s.stage, name, safetensors.ErrIncomplete)
		}
		s.m.mu.Lock()
		s.m.drop(p)
		p.saver = s
		s.m.mu.Unlock()
	}
	return nil
}

// load reads a saved parameter back. The model's lock is held.
func (s *Saver) load(p *param) (kernels.Mat, error) {
	folder := s.stage
	if s.over {
		folder = s.dir
	}
	path := filepath.Join(folder, s.shardOf(p.name))
	f, err := safetensors.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		f, err = safetensors.Open(path + ".partial")
	}
	if err != nil {
		return kernels.Mat{}, err
	}
	defer f.Close()
	info, _ := f.Info(p.name)
	data, err := f.Bytes(p.name)
	if err != nil {
		return kernels.Mat{}, err
	}
	return s.m.upload(p, dtypes[info.DType], data)
}

func (s *Saver) shardOf(name string) string {
	if s.writer != nil {
		return s.writer.ShardOf(name)
	}
	d, err := safetensors.OpenDir(s.dir)
	if err != nil {
		return safetensors.SingleName
	}
	defer d.Close()
	return d.ShardOf(name)
}

// Save writes the current values of tensors and notes in the journal that they are there; when it returns, they survive a crash. A
// tensor that is done already is written again.
func (s *Saver) Save(names ...string) error {
	if s.over {
		return fmt.Errorf("%s: %w", s.dir, safetensors.ErrClosed)
	}
	for _, name := range names {
		if _, ok := s.infos[name]; !ok {
			return fmt.Errorf("%s: %.200q: %w", s.m.dir, name, ErrUnknownTensor)
		}
	}
	for _, name := range names {
		if err := s.write(name); err != nil {
			return err
		}
	}
	if err := s.writer.Sync(); err != nil {
		return err
	}
	if err := s.journal.add(names); err != nil {
		return err
	}
	for _, name := range names {
		s.done[name] = true
		if p := s.m.params[name]; p != nil && p.owned {
			p.saver = s
		}
	}
	return nil
}

// saveBatch is how many bytes Finish writes between two entries of the journal.
const saveBatch = 1 << 30

// Finish writes the tensors that are not done, then everything else, and gives the folder its name. After an error it may be called
// again; a cancelled context leaves the output to be suspended or aborted.
func (s *Saver) Finish(ctx context.Context) error {
	if s.over {
		return nil
	}
	var batch []string
	var size int64
	for _, name := range s.names {
		if s.done[name] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		batch, size = append(batch, name), size+s.infos[name].Size
		if size >= saveBatch {
			if err := s.Save(batch...); err != nil {
				return err
			}
			batch, size = batch[:0], 0
		}
	}
	if err := s.Save(batch...); err != nil {
		return err
	}
	if err := s.writer.Finish(); err != nil {
		return err
	}
	if err := s.copySide(); err != nil {
		return err
	}
	if err := s.journal.remove(); err != nil {
		return err
	}
	if err := s.publish(); err != nil {
		return err
	}
	s.over = true
	return nil
}

// Suspend ends the run and leaves the unfinished output for one with Resume.
func (s *Saver) Suspend() error {
	if s.over {
		return nil
	}
	s.over = true
	return errors.Join(s.writer.Suspend(), s.journal.close())
}

// Abort ends the run and removes the unfinished output.
func (s *Saver) Abort() error {
	if s.over {
		return nil
	}
	s.over = true
	return errors.Join(s.writer.Abort(), s.journal.close(), os.RemoveAll(s.stage))
}

// write writes one tensor: from the file where it is unchanged, otherwise the model's value.
func (s *Saver) write(name string) error {
	want := s.infos[name].DType
	stored, _ := s.m.source.Info(name)
	p := s.m.params[name]
	if p == nil && slices.Contains(s.m.tied, name) {
		p = s.m.embed
	}
	if p != nil && (p.owned || p.saver != nil) {
		value, err := s.value(p)
		if err != nil {
			return err
		}
		return s.writeMat(name, value, want)
	}
	if stored.DType == want {
		if s.buf == nil {
			s.buf = make([]byte, 4<<20)
		}
		return safetensors.Copy(s.writer, name, s.m.source, name, s.buf)
	}
	return s.convert(name, stored, want)
}

func (s *Saver) value(p *param) (kernels.Mat, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	err := s.m.bind(p)
	return p.mat, err
}

// pieceLen is how many elements are converted or downloaded at a time.
const pieceLen = 1 << 20

// writeMat writes a matrix of the device, converted where it must be.
func (s *Saver) writeMat(name string, x kernels.Mat, want safetensors.DType) error {
	flat := x.Reshape(1, x.Len())
	t := dtypes[want]
	size := t.Size()
	piece, err := s.m.dev.Alloc(t, min(pieceLen, flat.Cols))
	if err != nil {
		return err
	}
	defer piece.Free()
	raw := make([]byte, piece.Len*size)
	for lo := 0; lo < flat.Cols; lo += pieceLen {
		hi := min(lo+pieceLen, flat.Cols)
		s.m.ops.Convert(kernels.MatOf(piece, 1, hi-lo), flat.ColRange(lo, hi))
		part := raw[:(hi-lo)*size]
		if err := s.m.dev.Download(part, piece, 0); err != nil {
			return err
		}
		if err := s.writer.WriteAt(name, part, int64(lo*size)); err != nil {
			return err
		}
	}
	return nil
}

// convert writes an unchanged tensor in another type, piece by piece.
func (s *Saver) convert(name string, stored safetensors.Info, want safetensors.DType) error {
	from, to := dtypes[stored.DType], dtypes[want]
	n := int(stored.Elements())
	a, err := s.m.dev.Alloc(from, min(pieceLen, n))
	if err != nil {
		return err
	}
	defer a.Free()
	b, err := s.m.dev.Alloc(to, min(pieceLen, n))
	if err != nil {
		return err
	}
	defer b.Free()
	raw := make([]byte, a.Len*max(from.Size(), to.Size()))
	for lo := 0; lo < n; lo += pieceLen {
		k := min(pieceLen, n-lo)
		in, out := raw[:k*from.Size()], raw[:k*to.Size()]
		if _, err := s.m.source.ReadAt(name, in, int64(lo*from.Size())); err != nil {
			return err
		}
		if err := s.m.dev.Upload(a, 0, in); err != nil {
			return err
		}
		s.m.ops.Convert(kernels.MatOf(b, 1, k), kernels.MatOf(a, 1, k))
		if err := s.m.dev.Download(out, b, 0); err != nil {
			return err
		}
		if err := s.writer.WriteAt(name, out, int64(lo*to.Size())); err != nil {
			return err
		}
	}
	return nil
}
