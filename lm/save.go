package lm

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which saving can be refused.
var (
	ErrExists   = stage.ErrExists
	ErrTarget   = stage.ErrTarget // it is no folder, or holds something else than a checkpoint
	ErrBusy     = stage.ErrBusy   // another process writes it
	ErrOtherJob = stage.ErrOtherJob
	ErrInPlace  = stage.ErrInPlace
	ErrDamaged  = stage.ErrDamaged
	ErrCut      = arch.ErrCut // [SaveOptions].Cut is not of the model, or its architecture has no form for what is left
	// ErrFileName: [Saver.AddFile] got a name that it cannot use.
	ErrFileName = stage.ErrFileName
	// ErrSavePacked refuses to save a model with packed matrices.
	ErrSavePacked = failure.Misuse("a model whose matrices are packed as bitmasks is not saved", "")
)

// SaveOptions of [Model.NewSaver].
type SaveOptions struct {
	// Overwrite replaces an existing checkpoint folder once the new one is complete. A folder that holds no checkpoint,
	// or other files beside it, is never replaced.
	Overwrite bool
	// Own are names of further files beside the weights that Overwrite may replace, such as those that
	// [Saver.AddFile] writes.
	Own []string
	// Resume continues an unfinished output of the same job; it starts one if there is none.
	Resume bool
	// MaxShardSize splits the model anew, in bytes per file; 0: files as in the source.
	MaxShardSize int64
	// Fingerprint identifies the job. A resume with another one is refused. It goes into the metadata of the files,
	// so it must depend only on what the output depends on.
	Fingerprint string
	// DType converts all floating-point tensors; 0: as in the source.
	DType safetensors.DType
	// Cut writes what it says of the model, as a smaller one; nil: all. Names are those of the model throughout:
	// [Saver.Save] of a tensor of which nothing stays does nothing. The errors of [Model.NewSaver] wrap [ErrCut], too.
	Cut *arch.Cut
	// Files are what files beside the weights have in the output instead, by name, such as those of a tokenizer whose
	// tokens Cut takes out; nil leaves a file out.
	Files map[string][]byte
}

// Saver writes a model to a folder that appears under its name only when it is complete. Until then everything is in a
// hidden folder beside it, with a journal of the finished tensors, from which an interrupted job continues. The
// model must stay open. It is used by one goroutine at a time.
//
// Besides the tensors the new folder gets, byte by byte, every file beside the weights of the model (config.json with
// dtype changed where tensors are converted), except records of how this program made that model, and what
// [SaveOptions].Files says otherwise.
type Saver struct {
	m      *Model
	opts   SaveOptions
	folder *stage.Folder
	infos  map[string]safetensors.Info // as written
	cut    *cutting                    // nil: the whole model

	written map[string]bool // parameters in this run
	carrier carrier         // what it holds is freed at the end of each save
}

// NewSaver starts, or with Resume continues, the output at dir. An existing folder that is not empty is refused
// unless Overwrite or Resume says otherwise. The errors wrap [ErrExists], [ErrOtherJob], [ErrInPlace],
// [ErrSavePacked], an error of package safetensors (such as no space: disk space is reserved now), or one of
// the operating system.
func (m *Model) NewSaver(dir string, o SaveOptions) (*Saver, error) {
	if m.Packed() {
		return nil, failure.Hinted(fmt.Errorf("%s: %w", m.dir, ErrSavePacked),
			fmt.Sprintf("compress convert %s --out DIR unpacks them", m.dir))
	}

	s := &Saver{
		m: m, opts: o, infos: map[string]safetensors.Info{}, written: map[string]bool{}, carrier: carrier{dev: m.dev},
	}
	so := stage.Options{
		Overwrite: o.Overwrite, Own: o.Own, Resume: o.Resume, Fingerprint: o.Fingerprint, Source: m.dir,
		Files: o.Files, Seen: m.seen,
	}
	if o.DType != 0 {
		if !dtype.IsFloat(o.DType) {
			return nil, fmt.Errorf("%w: %s; known: F32, BF16, F16, F64", ErrDType, o.DType)
		}
		so.Config = func(text []byte) []byte { return renameDType(text, o.DType) }
	}
	if o.Cut != nil {
		if err := s.smaller(&so); err != nil {
			return nil, err
		}
	}

	var err error
	if s.folder, err = stage.Open(dir, s.plan(), so); err != nil {
		return nil, err
	}

	return s, nil
}

// plan lists the tensors to write: those of the source, in its order and files unless the options say otherwise.
func (s *Saver) plan() stage.Plan {
	if s.cut != nil {
		return s.planCut()
	}

	p := planLike(s.m.source, s.opts.DType, s.opts.MaxShardSize, dtype.IsFloat)
	for _, info := range p.Tensors {
		s.infos[info.Name] = info
	}
	return p
}

// Done reports whether a tensor is complete, from this run or an interrupted one. Parameters that lie in one
// stored tensor are complete together.
func (s *Saver) Done(name string) bool {
	to, _, stays := s.target(name)
	return !stays || s.folder.Done(to)
}

// Damaged lists the tensors of an interrupted run whose bytes are not those that it wrote; they are not done.
func (s *Saver) Damaged() []string { return s.folder.Damaged() }

// Beside gives the SHA-256 of the files of the model that the output gets beside the weights, by name; see [Intact].
func (s *Saver) Beside() (map[string]string, error) { return s.folder.Beside() }

// Intact compares files of a folder with checksums that [Saver.Beside] gave when they were written. The error
// wraps [ErrDamaged] and names the first file that differs or is missing.
func Intact(dir string, sums map[string]string) error { return stage.Intact(dir, sums) }

// Remarks are those of the interrupted run that this one continues, in the order of its SaveWith.
func (s *Saver) Remarks() []json.RawMessage { return s.folder.Remarks() }

// Complete reports whether the output is under its name: after Finish, or because an earlier run of the same
// job had finished it.
func (s *Saver) Complete() bool { return s.folder.Complete() }

// LoadDone lets the model use the finished tensors of an interrupted run: the named parameters get the saved values.
func (s *Saver) LoadDone(names ...string) error {
	for _, name := range names {
		p, err := s.m.param(name)
		if err != nil {
			return err
		}

		if !s.Done(name) {
			return fmt.Errorf("%s: %w", name, safetensors.ErrIncomplete)
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
	stored, first, _ := s.target(p.Name)
	f, err := s.folder.Open(stored)
	if err != nil {
		return kernels.Mat{}, err
	}
	defer f.Close()

	info, _ := f.Info(stored)
	data, err := f.Bytes(stored)
	if err != nil {
		return kernels.Mat{}, err
	}

	t := dtype.Of(info.DType)
	data = data[int(first)*t.Size():]
	if s.cut != nil {
		return s.m.upload(p, t, s.loadPiece(p, data, t))
	}

	return s.m.upload(p, t, data[:p.rows*p.cols*t.Size()])
}

// Save writes the current values of tensors and notes in the journal that they are there; when it returns, they
// survive a crash. A tensor that is done already is written again. Parameters that lie in one stored tensor are
// noted, and safe, once all of them are saved.
func (s *Saver) Save(names ...string) error { return s.SaveWith(nil, names...) }

// SaveWith is Save with a remark, JSON of the caller's or nil, which Remarks of a run that continues gives back.
func (s *Saver) SaveWith(remark json.RawMessage, names ...string) error {
	if s.folder.Closed() {
		return fmt.Errorf("%s: %w", s.m.dir, safetensors.ErrClosed)
	}

	defer s.carrier.free()

	// All names first: a batch is not half written because of the last name.
	for _, name := range names {
		if !s.known(name) {
			return fmt.Errorf("%s: %.200q: %w", s.m.dir, name, ErrUnknownTensor)
		}
	}

	var whole []string
	for _, name := range names {
		if err := s.write(name); err != nil {
			return err
		}

		s.written[name] = true
		stored, _ := s.m.dense.Place(name)
		to, _, stays := s.target(stored)
		if stays && s.whole(stored) && !slices.Contains(whole, to) {
			whole = append(whole, to)
		}
	}

	if err := s.folder.CommitWith(whole, remark); err != nil {
		return err
	}

	// Values that were saved can be read back from the output, so their memory may go.
	for _, name := range names {
		if p := s.m.params[name]; p != nil && p.owned {
			p.saver = s
		}
	}

	return nil
}

// whole reports whether all of a stored tensor has been written, and not only some of its parameters.
func (s *Saver) whole(stored string) bool {
	return !slices.ContainsFunc(s.m.dense.Parts(stored), func(p arch.Part) bool {
		_, _, stays := s.target(p.Name)
		return stays && !s.written[p.Name]
	})
}

// saveBatch is how many bytes Finish writes between two entries of the journal.
const saveBatch = 1 << 30

// Finish writes the tensors that are not done, then everything else, and gives the folder its name. After an
// error it may be called again; a cancelled context leaves the output to be suspended or aborted.
func (s *Saver) Finish(ctx context.Context) error {
	if s.folder.Complete() {
		return nil
	}

	// Written in batches: a commit flushes to disk.
	var batch []string
	var size int64
	for _, name := range s.m.source.Names() {
		to, _, stays := s.target(name)
		if !stays || s.folder.Done(to) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}

		batch, size = append(batch, name), size+s.infos[to].Size
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

	return s.folder.Finish()
}

// Suspend ends the run and leaves the unfinished output for one with Resume.
func (s *Saver) Suspend() error { return s.folder.Suspend() }

// Abort ends the run and removes the unfinished output.
func (s *Saver) Abort() error { return s.folder.Abort() }

// write writes one tensor, or what is left of one that holds several parameters: from the file where it is
// unchanged, otherwise the model's value.
func (s *Saver) write(name string) error {
	if parts := s.m.dense.Parts(name); parts != nil {
		for _, p := range parts {
			if s.written[p.Name] {
				continue
			}
			if err := s.write(p.Name); err != nil {
				return err
			}

			s.written[p.Name] = true
		}

		return nil
	}

	to, first, stays := s.target(name)
	switch {
	case !stays:
		return nil
	case s.cut != nil:
		return s.writePiece(name)
	}

	want := s.infos[to].DType
	info, _ := s.m.dense.Info(name)
	p := s.m.params[name]
	// A tied head that the checkpoint stores is written from the table that stands for it.
	if p == nil && slices.Contains(s.m.tied, name) {
		p = s.m.embed
	}

	if p != nil && (p.owned || p.saver != nil) {
		value, err := s.value(p)
		if err != nil {
			return err
		}
		return s.carrier.writeMat(s.folder, to, first, value, dtype.Of(want))
	}

	// Bytes go from file to file where neither value nor type has changed.
	if to == name && info.DType == want {
		return safetensors.Copy(s.folder.Writer(), name, s.m.source, name, atLeast(&s.carrier.raw, 4<<20))
	}

	return s.carrier.convert(s.folder, s.m.dense, placed{Info: info, To: to, First: first}, dtype.Of(info.DType),
		dtype.Of(want))
}

func (s *Saver) value(p *param) (kernels.Mat, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	err := s.m.bind(p)
	return p.Value, err
}

// Dir is the folder that the output is, or will be, in.
func (s *Saver) Dir() string { return s.folder.Dir() }

// AddFile adds a small file of the caller's to the output: Finish writes it beside the weights. It does nothing
// once the output is complete. The error wraps [ErrFileName] for a name that is no plain file name, or that the
// weights or a file of the source have.
func (s *Saver) AddFile(name string, data []byte) error { return s.folder.AddFile(name, data) }

// Folder is a checkpoint in the making that is written tensor by tensor: it appears under its name when it is
// complete, and an interrupted one is continued. [Saver] is built on it; it is for outputs whose tensors are
// not those of one open model. It is used by one goroutine at a time.
type Folder struct{ inner *stage.Folder }

// FolderPlan is what goes into a [Folder]'s files.
type FolderPlan struct {
	Tensors  []safetensors.Info
	Metadata map[string]string // not nil
	Files    safetensors.DirOptions
}

// FolderOptions of [OpenFolder].
type FolderOptions struct {
	Overwrite   bool     // replace an existing checkpoint folder once the new one is complete
	Resume      bool     // continue an unfinished output of the same job, or start one
	Fingerprint string   // identifies the job
	Source      string   // folder whose other files are copied
	Own         []string // names of further files of an existing folder that Overwrite may replace
	// Config changes the text of config.json on the way; nil copies it.
	Config func(text []byte) []byte
	// Files are what files of the source have in the output instead, by name; nil leaves a file out.
	Files map[string][]byte
	// Model is the one of Source, where it is open: what stands beside its weights must be what it was.
	Model *Model
}

// OpenFolder starts, or with Resume continues, the output at dir. The errors are those of [Model.NewSaver].
func OpenFolder(dir string, p FolderPlan, o FolderOptions) (*Folder, error) {
	so := stage.Options{
		Overwrite: o.Overwrite, Resume: o.Resume, Fingerprint: o.Fingerprint, Source: o.Source, Own: o.Own,
		Config: o.Config, Files: o.Files,
	}
	if o.Model != nil {
		so.Seen = o.Model.seen
	}
	f, err := stage.Open(dir, stage.Plan(p), so)
	if err != nil {
		return nil, err
	}
	return &Folder{f}, nil
}

// Writer is where tensors are written.
func (f *Folder) Writer() *safetensors.DirWriter { return f.inner.Writer() }

// Commit makes tensors durable that were written, and notes that they are there and the checksums of their bytes.
func (f *Folder) Commit(names []string) error { return f.inner.Commit(names) }

// CommitWith is Commit with a remark, JSON of the caller's, which Remarks of a run that continues gives back.
func (f *Folder) CommitWith(names []string, remark json.RawMessage) error {
	return f.inner.CommitWith(names, remark)
}

// Remarks are those of the interrupted run that this one continues, in their order.
func (f *Folder) Remarks() []json.RawMessage { return f.inner.Remarks() }

// Done reports whether a tensor is complete, from this run or an interrupted one.
func (f *Folder) Done(name string) bool { return f.inner.Done(name) }

// Damaged lists the tensors of an interrupted run whose bytes are not those that it wrote; they are not done.
func (f *Folder) Damaged() []string { return f.inner.Damaged() }

// Open opens the file that holds a tensor, finished or not.
func (f *Folder) Open(name string) (*safetensors.File, error) { return f.inner.Open(name) }

// AddFile adds a small file that Finish writes beside the weights; see [Saver.AddFile].
func (f *Folder) AddFile(name string, data []byte) error { return f.inner.AddFile(name, data) }

// Complete reports whether an earlier run of the same job, or Finish, has finished the output.
func (f *Folder) Complete() bool { return f.inner.Complete() }

// Finish adds the other files and gives the folder its name. All tensors must be done. After an error it may be
// called again.
func (f *Folder) Finish() error { return f.inner.Finish() }

// Suspend ends the run and leaves the unfinished output for one with Resume.
func (f *Folder) Suspend() error { return f.inner.Suspend() }

// Abort ends the run and removes the unfinished output.
func (f *Folder) Abort() error { return f.inner.Abort() }
