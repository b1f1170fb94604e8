// Package stage is how this program writes what has to be whole. An output folder grows in a hidden folder beside its
// final name ([Place]), which is locked as long as a process is at work on it, and gets the name in one step once
// everything in it is durable; what stood there before is exchanged for it, never mixed with it. A checkpoint
// ([Folder]) has a journal in the hidden folder of the tensors that are durable, with checksums, from which an
// interrupted job continues to the same bytes. Long work of other kinds keeps a [Journal] of its own;
// files of results are sealed with their hash ([WriteSealed]), and folders of them with their [Sums].
//
// One rule says what is taken up: what the same job, identified by its fingerprint, began under the same format and
// left undamaged. Anything else is refused with one line and stays as it is until the user gives it up.
//
// What stands beside the weights of a model travels to the models made of it: [Travels].
package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/safetensors"
)

// hintAnew is what to do about unfinished output that cannot be continued, in the words of the command line.
const hintAnew = "--overwrite without --resume starts anew"

// Ways in which an output can be refused.
var (
	ErrExists   = failure.Misuse("output already exists", "choose another --out, or pass --overwrite")
	ErrTarget   = failure.Misuse("not a folder to write to", "choose another --out")
	ErrInPlace  = failure.Misuse("output is the source itself", "choose another --out")
	ErrBusy     = errors.New("another process is at work on this output")
	ErrOtherJob = failure.Others(failure.Misuse("unfinished output belongs to another job", hintAnew))
	ErrChanged  = errors.New("it changed while it was in use")
	ErrDamaged  = errors.New("its bytes are not those that were written there")
)

// jobKey is the metadata key of the fingerprint.
const jobKey = "compress.job"

// Options of [Open].
type Options struct {
	Overwrite   bool     // replace an existing checkpoint folder once the new one is complete
	Resume      bool     // continue an unfinished output of the same job, or start one
	Fingerprint string   // identifies the job
	Source      string   // folder whose other files are copied
	Own         []string // names of further files of an existing folder that Overwrite may replace
	// Config changes the text of config.json on the way; nil copies it.
	Config func(text []byte) []byte
	// Files are what files of the source have in the output instead, by name; nil leaves a file out.
	Files map[string][]byte
	// Seen is what stood beside the weights of Source when it was opened, by [See]: it must not have changed since.
	Seen Seen
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
	place    *Place
	writer   *safetensors.DirWriter
	journal  *Journal
	side     []fs.FileInfo
	extra    map[string][]byte // files of the caller
	done     map[string]bool
	damaged  []string
	shards   map[string]string // of an output that was complete before
	complete bool              // everything is under the final name
	outdated bool              // what is there under the final name was made by the same kind of work, of other things
	over     bool
}

// Open starts, or with Resume continues, the output at dir. The errors wrap [ErrExists], [ErrTarget], [ErrOtherJob],
// [ErrInPlace], [ErrBusy], an error of package safetensors (disk space is reserved now), or one of the operating
// system.
func Open(dir string, p Plan, o Options) (*Folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}

	f := &Folder{opts: o, dir: safefile.Place(dir), done: map[string]bool{}}
	if err := Apart(o.Source, f.dir); err != nil {
		return nil, err
	}

	if o.Resume && f.finished() {
		if err := f.besideIntact(); err != nil {
			return nil, failure.Hinted(err, hintAnew)
		}
		f.complete = true
		return f, nil
	}

	if err := o.Seen.Unchanged(); err != nil {
		return nil, err
	}
	if f.side, err = sides(o.Source, o.stays); err != nil {
		return nil, err
	}
	if o.Fingerprint != "" {
		p.Metadata[jobKey] = o.Fingerprint
	}

	var rule Rule
	if o.Overwrite {
		rule = Replaceable(o.Source, o.Own...)
	}
	if f.place, err = Claim(f.dir, rule); err != nil {
		if errors.Is(err, ErrExists) && f.outdated {
			err = fmt.Errorf("%s: %w, and the source or the options have changed since it was made", f.dir, ErrExists)
		}
		return nil, err
	}
	if err := f.open(p); err != nil {
		return nil, errors.Join(err, f.place.Release())
	}

	return f, nil
}

// open begins in the hidden folder, or takes up what is there.
func (f *Folder) open(p Plan) error {
	if err := f.place.Ours(); err != nil {
		return err
	}
	if err := f.openJournal(); err != nil {
		return err
	}

	var err error
	if f.opts.Resume {
		err = f.resume(p)
	} else {
		err = f.fresh(p)
	}
	if err != nil {
		return errors.Join(err, f.journal.Close())
	}

	return nil
}

// resume takes up what the journal says is there.
func (f *Folder) resume(p Plan) error {
	if err := f.sameJob(); err != nil {
		return err
	}

	var err error
	f.writer, err = safetensors.ReopenDir(f.place.Dir, p.Tensors, p.Metadata, p.Files)
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
	entries, err := os.ReadDir(f.place.Dir)
	if err != nil {
		return err
	}

	for _, e := range entries {
		if e.Name() == journalName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.place.Dir, e.Name())); err != nil {
			return err
		}
	}

	if err := f.journal.Start(header{Format: journalFormat, Job: f.opts.Fingerprint}); err != nil {
		return err
	}
	if f.writer, err = safetensors.CreateDir(f.place.Dir, p.Tensors, p.Metadata, p.Files); err != nil {
		return errors.Join(err, os.RemoveAll(f.place.Dir))
	}

	return nil
}

// Done reports whether a tensor is complete, from this run or an interrupted one.
func (f *Folder) Done(name string) bool { return f.done[name] }

// Complete reports whether an earlier run of the same job, or Finish, has finished the output.
func (f *Folder) Complete() bool { return f.complete }

// Dir is the folder's final name, absolute.
func (f *Folder) Dir() string { return f.dir }

// Closed reports whether nothing can be written any more.
func (f *Folder) Closed() bool { return f.complete || f.over }

// Writer is where tensors are written.
func (f *Folder) Writer() *safetensors.DirWriter { return f.writer }

// Commit makes tensors durable that were written, and notes that they are there and the checksums of their bytes.
func (f *Folder) Commit(names []string) error { return f.CommitWith(names, nil) }

// CommitWith is Commit with a remark, JSON of the caller's or nil, which [Folder.Remarks] of a run that continues gives
// back.
func (f *Folder) CommitWith(names []string, remark json.RawMessage) error {
	if err := f.writer.Sync(); err != nil {
		return err
	}

	sums, err := f.sums(names)
	if err != nil {
		return err
	}

	if err := f.note(names, sums, remark); err != nil {
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

	path := filepath.Join(f.place.Dir, f.writer.ShardOf(name))
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
	if err := f.copySides(); err != nil {
		return err
	}
	if err := f.journal.Remove(); err != nil {
		return err
	}
	if err := f.place.publish(); err != nil {
		return err
	}

	f.complete = true
	return f.end()
}

// Suspend ends the run and leaves the unfinished output for one with Resume.
func (f *Folder) Suspend() error {
	if f.Closed() {
		return nil
	}
	f.over = true
	return errors.Join(f.writer.Suspend(), f.end())
}

// Abort ends the run and removes the unfinished output.
func (f *Folder) Abort() error {
	if f.Closed() {
		return nil
	}
	f.over = true
	return errors.Join(f.writer.Abort(), f.journal.Close(), f.place.Abandon())
}

// Made reports whether the folder at dir is the complete output of a job, as [Options].Fingerprint names it: for
// callers who would have to work before they know what [Open] asks for.
func Made(dir, job string) bool {
	f := &Folder{opts: Options{Fingerprint: job}, dir: safefile.Place(dir), done: map[string]bool{}}
	return f.finished()
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

	if job := d.Metadata()[jobKey]; job != f.opts.Fingerprint {
		f.outdated = job != ""
		return false
	}

	f.shards = map[string]string{}
	for _, name := range d.Names() {
		f.done[name], f.shards[name] = true, d.ShardOf(name)
	}

	return true
}
