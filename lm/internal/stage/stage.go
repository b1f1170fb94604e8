// Package stage writes a checkpoint folder that appears under its name only when it is complete. Until then
// everything is in a hidden folder beside it, with a journal of the finished tensors, from which an interrupted
// job continues.
package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which an output can be refused.
var (
	ErrExists   = failure.Misuse("output exists already", "")
	ErrOtherJob = failure.Misuse("unfinished output belongs to another job", "")
	ErrInPlace  = failure.Misuse("output is the folder of the model itself", "")
	ErrChanged  = errors.New("it changed while it was in use")
	ErrDamaged  = errors.New("its bytes are not those that were written there")
)

// jobKey is the metadata key of the fingerprint.
const jobKey = "compress.job"

// Options of [Open].
type Options struct {
	Overwrite   bool   // replace an existing checkpoint folder once the new one is complete
	Resume      bool   // continue an unfinished output of the same job, or start one
	Fingerprint string // identifies the job
	Source      string // folder whose other files are copied
	// Config changes the text of config.json on the way; nil copies it.
	Config func(text []byte) []byte
}

// Plan is what goes into the files.
type Plan struct {
	Tensors  []safetensors.Info
	Metadata map[string]string
	Files    safetensors.DirOptions
}

// Folder is an output in the making. It is used by one goroutine at a time.
type Folder struct {
	opts     Options
	dir      string // final
	stage    string
	writer   *safetensors.DirWriter
	journal  *journal
	side     []fs.FileInfo
	extra    map[string][]byte // files of the caller
	done     map[string]bool
	damaged  []string
	shards   map[string]string // of an output that was complete before
	complete bool              // everything is under the final name
	over     bool
}

// Open starts, or with Resume continues, the output at dir. The errors wrap [ErrExists], [ErrOtherJob],
// [ErrInPlace], an error of package safetensors (disk space is reserved now), or one of the operating system.
func Open(dir string, p Plan, o Options) (*Folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}

	dir = safefile.Place(dir)
	f := &Folder{
		opts: o, dir: dir, stage: filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".partial"),
		done: map[string]bool{},
	}

	if err := f.checkTarget(); err != nil || f.complete {
		return f, err
	}
	if f.side, err = sideFiles(o.Source); err != nil {
		return nil, err
	}
	if o.Fingerprint != "" {
		p.Metadata[jobKey] = o.Fingerprint
	}
	if err := f.open(p); err != nil {
		return nil, err
	}

	return f, nil
}

// open makes the staging folder or takes up the one that is there.
func (f *Folder) open(p Plan) error {
	if err := scratch.Leftover(f.stage, journalName); err != nil && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	if err := os.MkdirAll(f.stage, 0o777); err != nil {
		return err
	}
	if stat, err := os.Lstat(f.stage); err != nil || !stat.IsDir() {
		return fmt.Errorf("%s: not a folder of its own, so nothing is written there; remove it", f.stage)
	}

	var err error
	if f.journal, err = openJournal(filepath.Join(f.stage, journalName)); err != nil {
		return err
	}

	if f.opts.Resume {
		err = f.resume(p)
	} else {
		err = f.fresh(p)
	}
	if err != nil {
		return errors.Join(err, f.journal.close())
	}

	return nil
}

// resume takes up what the journal says is there.
func (f *Folder) resume(p Plan) error {
	if job, started := f.journal.job(); started && job != f.opts.Fingerprint {
		return fmt.Errorf("%s: %w: %q, this is %q; --overwrite without --resume starts anew", f.stage, ErrOtherJob, job,
			f.opts.Fingerprint)
	}

	var err error
	f.writer, err = safetensors.ReopenDir(f.stage, p.Tensors, p.Metadata, p.Files)
	if errors.Is(err, safetensors.ErrNoPartial) {
		return f.fresh(p)
	}

	if errors.Is(err, safetensors.ErrLayoutChanged) {
		return fmt.Errorf("%w: %w", ErrOtherJob, err)
	}
	if err != nil {
		return err
	}
	if err := f.takeUp(); err != nil {
		return errors.Join(err, f.writer.Suspend())
	}
	for _, t := range p.Tensors {
		f.done[t.Name] = f.writer.Done(t.Name)
	}

	return nil
}

// fresh discards what an earlier run left in the staging folder and starts.
func (f *Folder) fresh(p Plan) error {
	entries, err := os.ReadDir(f.stage)
	if err != nil {
		return err
	}

	for _, e := range entries {
		if e.Name() == journalName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.stage, e.Name())); err != nil {
			return err
		}
	}

	if err := f.journal.start(f.opts.Fingerprint); err != nil {
		return err
	}
	if f.writer, err = safetensors.CreateDir(f.stage, p.Tensors, p.Metadata, p.Files); err != nil {
		return errors.Join(err, os.RemoveAll(f.stage))
	}

	return nil
}

// Done reports whether a tensor is complete, from this run or an interrupted one.
func (f *Folder) Done(name string) bool { return f.done[name] }

// Complete reports whether an earlier run of the same job, or Finish, has finished the output.
func (f *Folder) Complete() bool { return f.complete }

// Closed reports whether nothing can be written any more.
func (f *Folder) Closed() bool { return f.complete || f.over }

// Writer is where tensors are written.
func (f *Folder) Writer() *safetensors.DirWriter { return f.writer }

// Commit makes tensors durable that were written, and notes that they are there and the checksums of their bytes.
func (f *Folder) Commit(names []string) error {
	if err := f.writer.Sync(); err != nil {
		return err
	}

	sums, err := f.sums(names)
	if err != nil {
		return err
	}

	if err := f.journal.add(names, sums); err != nil {
		return err
	}
	for _, name := range names {
		f.done[name] = true
	}

	return nil
}

// Open opens the file that holds a tensor, finished or not.
func (f *Folder) Open(name string) (*safetensors.File, error) {
	if f.complete {
		shard := f.shards[name]
		if f.writer != nil {
			shard = f.writer.ShardOf(name)
		}
		return safetensors.Open(filepath.Join(f.dir, shard))
	}

	path := filepath.Join(f.stage, f.writer.ShardOf(name))
	file, err := safetensors.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return safetensors.Open(path + ".partial")
	}

	return file, err
}

// Finish adds the other files and gives the folder its name. All tensors must be done. After an error it may be
// called again.
func (f *Folder) Finish() error {
	if f.complete {
		return nil
	}
	if err := f.writer.Finish(); err != nil {
		return err
	}
	if err := f.copySide(); err != nil {
		return err
	}
	if err := f.journal.remove(); err != nil {
		return err
	}
	if err := f.publish(); err != nil {
		return err
	}

	f.complete = true
	return nil
}

// Suspend ends the run and leaves the unfinished output for one with Resume.
func (f *Folder) Suspend() error {
	if f.Closed() {
		return nil
	}
	f.over = true
	return errors.Join(f.writer.Suspend(), f.journal.close())
}

// Abort ends the run and removes the unfinished output.
func (f *Folder) Abort() error {
	if f.Closed() {
		return nil
	}
	f.over = true
	return errors.Join(f.writer.Abort(), f.journal.close(), os.RemoveAll(f.stage))
}

// checkTarget decides whether the output may be written, and whether it is complete already.
func (f *Folder) checkTarget() error {
	if err := f.checkSource(); err != nil {
		return err
	}

	entries, err := os.ReadDir(f.dir)
	link, linkErr := os.Lstat(f.dir)
	switch {
	case errors.Is(err, os.ErrNotExist) && linkErr == nil && link.Mode()&os.ModeSymlink != 0:
		return fmt.Errorf("%s: %w as a link to nothing; choose another name", f.dir, ErrExists)
	case errors.Is(err, os.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return err
	case f.opts.Resume && f.finished():
		if err := f.besideIntact(); err != nil {
			return fmt.Errorf("%w; --overwrite without --resume starts anew", err)
		}
		f.complete = true
		return nil
	case !f.opts.Overwrite:
		return fmt.Errorf("%s: %w and is not empty; --overwrite replaces it", f.dir, ErrExists)
	case !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Name() == "config.json" || strings.HasSuffix(e.Name(), ".safetensors")
	}):
		return fmt.Errorf("%s: %w and holds no checkpoint, so it is not replaced", f.dir, ErrExists)
	}

	return nil
}

// checkSource refuses an output that is, or that holds, the folder of the model.
func (f *Folder) checkSource() error {
	source, err := filepath.Abs(f.opts.Source)
	if err != nil {
		return err
	}

	target, err := os.Stat(f.dir)
	if err != nil {
		return nil // not there, so it holds nothing
	}

	for at := source; ; at = filepath.Dir(at) {
		if stat, err := os.Stat(at); err == nil && os.SameFile(stat, target) {
			return fmt.Errorf("%s: %w", f.dir, ErrInPlace)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// finished reports whether the folder at the final name is the complete output of this job.
func (f *Folder) finished() bool {
	if f.opts.Fingerprint == "" {
		return false
	}

	d, err := safetensors.OpenDir(f.dir)
	if err != nil {
		return false
	}
	defer d.Close()

	if d.Metadata()[jobKey] != f.opts.Fingerprint {
		return false
	}

	f.shards = map[string]string{}
	for _, name := range d.Names() {
		f.done[name], f.shards[name] = true, d.ShardOf(name)
	}

	return true
}

// publish gives the staged folder its final name. An existing one is exchanged for it in one step, then removed.
func (f *Folder) publish() error {
	parent := filepath.Dir(f.dir)
	if err := syncFolder(f.stage); err != nil {
		return err
	}

	entries, err := os.ReadDir(f.dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	case len(entries) == 0:
		if err := os.Remove(f.dir); err != nil {
			return err
		}
	case !f.opts.Overwrite:
		return fmt.Errorf("%s: %w: it appeared meanwhile", f.dir, ErrExists)
	default:
		if err := exchange(f.stage, f.dir); err != nil {
			return err
		}
		return errors.Join(syncFolder(parent), os.RemoveAll(f.stage), f.journal.close())
	}

	if err := os.Rename(f.stage, f.dir); err != nil {
		return err
	}

	return errors.Join(syncFolder(parent), f.journal.close())
}

func syncFolderOf(path string) error { return syncFolder(filepath.Dir(path)) }

// syncFolder makes the names in a folder durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
