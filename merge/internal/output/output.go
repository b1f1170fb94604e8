// Package output writes the folder of a merge, as package stage has folders written: until it is complete everything
// lies in a hidden folder beside it, with a journal of the tensors that are durable, from which an interrupted merge
// continues to the same bytes. Unlike the folders of package stage itself, it is written part by part, by several
// goroutines, and read back from the device while it is written.
package output

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which an output can be refused, or turn out wrong.
var (
	ErrOption   = failure.Misuse("option out of range", "")
	ErrExists   = stage.ErrExists
	ErrOtherJob = stage.ErrOtherJob
	ErrBusy     = stage.ErrBusy
	ErrInPlace  = failure.Misuse("output is the folder of an input", "")
	ErrVerify   = failure.New("output does not hold what was written", "")
)

// ErrChanged is [ErrVerify] of a finished output, with what can be done about it.
var ErrChanged = fmt.Errorf("%w%w", ErrVerify, failure.New("", "--overwrite without --resume merges anew"))

// errBegun: a resumed merge cannot continue what is there.
var errBegun = failure.Misuse("another merge or another build of this program began it, or its journal is damaged",
	"--overwrite without --resume starts anew")

// ManifestName is the file that records how the output was made.
const ManifestName = "merge.json"

// JournalName is the file of an unfinished output that goes before it gets its name.
const JournalName = "journal.jsonl"

const (
	// journalFormat is the first thing that a journal says. It changes whenever an unfinished output of an earlier
	// build can not be continued by this one.
	journalFormat = "compress merge 4"
	partialSuffix = ".partial" // of a file that safetensors is writing
	manifestMax   = 64 << 20

	// An earlier build wrote in a hidden folder with another suffix and another journal.
	earlierSuffix  = ".merging"
	earlierJournal = ".merge-journal.jsonl"
)

// syncBytes and syncTime are how much is written between two entries of the journal.
const (
	syncBytes = 256 << 20
	syncTime  = 5 * time.Second
)

// Options of [Open].
type Options struct {
	Overwrite bool   // replace an existing folder once the new one is complete
	Resume    bool   // continue an unfinished output of the same job, or start one
	Job       string // identifies recipe, inputs and choices, see [JobOf]; the manifest keeps a part of it
	Tensors   []safetensors.Info
	// tensors to write in place of those that lie in them, which are still written and noted by their own names
	Joints   []arch.Joint
	MaxShard int64 // bytes per file, 0: no bound
	Readers  int   // goroutines that read back at the end; 0, or more than 2: 2
	Every    int64 // bytes written between two entries of the journal; 0: 256 MiB, or what five seconds write
}

// Folder is an output in the making.
type Folder struct {
	o        Options
	dir      string // final
	place    *stage.Place
	writer   *safetensors.DirWriter
	files    Files
	journal  *stage.Journal
	complete bool
	inside   map[string]inside // tensors that lie in others

	mu      sync.Mutex
	left    map[string]int             // of the others, how many of their parts are not written
	sums    map[string][]sum           // of finished chunks
	pending []string                   // tensors written since the last entry
	notes   map[string]json.RawMessage // about tensors, by their names
	noted   []string                   // those that no entry has
	bytes   int64
	last    time.Time // of the last entry
	syncing bool
	failure error
	idle    *sync.Cond // a commit has ended, or what behind waits for is there
	behind  behind
}

// sum is the checksum of a part of a tensor.
type sum struct {
	Off int64  `json:"o"`
	Len int64  `json:"n"`
	Sum uint64 `json:"c"`
}

// header is the first line of the journal.
type header struct {
	Format string `json:"format"`
	Job    string `json:"job"`
}

// entry is a further line: tensors that are durable, with the checksums of their parts, and what is noted of them.
type entry struct {
	Done  map[string][]sum           `json:"done,omitempty"`
	Notes map[string]json.RawMessage `json:"notes,omitempty"` // see [Folder.Note]
}

// Open starts, or with Resume continues, the output at dir. Disk space is reserved now. The errors wrap [ErrExists],
// [ErrOtherJob], [ErrBusy], an error of package safetensors, or one of the operating system.
func Open(dir string, o Options) (*Folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}

	f := &Folder{
		o: o, dir: safefile.Place(dir), sums: map[string][]sum{}, notes: map[string]json.RawMessage{}, last: time.Now(),
	}
	f.idle = sync.NewCond(&f.mu)
	f.join()

	// Only tidied up: the run may have been killed before the folder that it replaced was gone.
	if o.Resume && f.made() {
		f.complete = true
		return f, errors.Join(f.intact(), f.tidy())
	}

	// Before the folder is claimed: to be told that this is another merge's result is better than that it exists.
	if o.Resume && !o.Overwrite {
		if err := f.foreign(); err != nil {
			return nil, err
		}
	}

	var rule stage.Rule
	if o.Overwrite {
		rule = replaceable
	}
	if f.place, err = stage.Claim(f.dir, rule); err != nil {
		return nil, err
	}
	if err := f.open(); err != nil {
		return nil, errors.Join(err, f.place.Release())
	}

	return f, nil
}

// besides are the folders that methods write beside the weights, and what is in them.
var besides = map[string][]string{"mediator": {"mediator.json", "router.safetensors", "expert-*.safetensors"}}

// replaceable is the rule of what may be replaced: a checkpoint and what belongs to one, and of everything else only
// what is still as the merge wrote it that made the folder.
func replaceable(dir string) error {
	m, _ := manifest(dir) // there may be none
	var own []string
	for name, sum := range m.Files {
		if have, err := digest(filepath.Join(dir, filepath.Base(name))); err == nil && have == sum {
			own = append(own, filepath.Base(name))
		}
	}
	for name, patterns := range besides {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		foreign := func(e os.DirEntry) bool {
			fits := func(p string) bool { ok, _ := filepath.Match(p, e.Name()); return ok }
			return !e.Type().IsRegular() || !slices.ContainsFunc(patterns, fits)
		}
		if err == nil && !slices.ContainsFunc(entries, foreign) {
			own = append(own, name+"/")
		}
	}

	return stage.Replaceable("", own...)(dir)
}

// made reports whether the finished folder is the outcome of this job, of which its manifest keeps what does not
// depend on times and places.
func (f *Folder) made() bool {
	job, ok := Job(f.dir)
	st, err := os.Stat(filepath.Join(f.dir, ManifestName))
	return ok && err == nil && jobMade(job, st.ModTime(), f.o.Job)
}

// foreign refuses to resume where a finished output stands that this job did not make, and says what tells them apart.
func (f *Folder) foreign() error {
	m, err := manifest(f.dir)
	if err != nil || m.Job == "" {
		return nil // it is not finished, or nothing of ours
	}

	why := "it is finished, and another recipe, other models or other options made it"
	switch {
	case m.Version != build.Version():
		why = fmt.Sprintf("it is finished, and another build of this program made it (%.60s; this is %s)",
			strconv.QuoteToASCII(m.Version), build.Version())
	case m.Job == JobKept(f.o.Job):
		why = "it is finished, and files of its recipe or its models have changed since"
	}

	return fmt.Errorf("%s: %w: %s", f.dir, ErrExists, why)
}

// tidy removes what a run left that was stopped after its output had its name: the replaced folder under the hidden
// name, or the journal that an earlier build removed last.
func (f *Folder) tidy() error {
	if err := os.Remove(filepath.Join(f.dir, earlierJournal)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := os.Lstat(stage.Hidden(f.dir)); err != nil {
		return nil
	}

	left, err := stage.Begin(f.dir, func(string) error { return nil })
	if err != nil {
		return err
	}

	return left.Abandon()
}

// made is what a manifest says of how a folder was made.
type made struct {
	Version string            `json:"version"` // of the build
	Job     string            `json:"job"`
	Files   map[string]string `json:"files"` // see [Sums]
}

// manifest reads that of a finished folder.
func manifest(dir string) (m made, err error) {
	file, err := safefile.Open(filepath.Join(dir, ManifestName))
	if err != nil {
		return m, err
	}
	defer file.Close()
	err = json.NewDecoder(io.LimitReader(file, manifestMax)).Decode(&m)
	return m, err
}

// Job reads which job made a finished folder.
func Job(dir string) (string, bool) {
	m, err := manifest(dir)
	return m.Job, err == nil && m.Job != ""
}

// Sums are the SHA-256 of the files of a folder that lie beside the weights, for its manifest.
func Sums(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}

	sums := map[string]string{}
	for _, e := range entries {
		name := e.Name()
		if !e.Type().IsRegular() || name == ManifestName || name == JournalName || weights(name) {
			continue
		}
		if sums[name], err = digest(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}

	return sums, nil
}

// weights reports whether a file has tensors, whose sums are taken while they are written.
func weights(name string) bool {
	ext := filepath.Ext(name)
	return ext == ".safetensors" || ext == partialSuffix
}

func digest(path string) (string, error) {
	file, err := safefile.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()

	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}

	return hex.EncodeToString(h.Sum(nil)), nil
}

// intact compares the files of a finished folder with the sums of its manifest, and looks whether its weights can be
// read. Their values are not compared: they have no sums.
func (f *Folder) intact() error {
	m, err := manifest(f.dir)
	if err != nil {
		return err
	}
	if err := stage.Intact(f.dir, m.Files); errors.Is(err, stage.ErrDamaged) {
		return fmt.Errorf("%w: %w", err, ErrChanged)
	} else if err != nil {
		return err
	}

	written, err := safetensors.OpenDir(f.dir)
	if err != nil {
		return fmt.Errorf("%w: %w", err, ErrChanged)
	}
	defer written.Close()

	for _, t := range f.o.Tensors {
		name := f.within(t.Name).name
		if _, ok := written.Info(name); !ok {
			return fmt.Errorf("%s: the tensor %q is missing: %w", f.dir, name, ErrChanged)
		}
	}

	return nil
}

func (f *Folder) options() safetensors.DirOptions {
	return safetensors.DirOptions{Order: safetensors.OrderAligned, MaxShardSize: f.o.MaxShard, WriteAt: f.files.WriteAt}
}

// metadata is what readers of the format look for.
func metadata() map[string]string { return map[string]string{"format": "pt"} }

// open begins in the hidden folder, or takes up what is there.
func (f *Folder) open() error {
	if err := f.place.Ours(earlierJournal); err != nil {
		return err
	}
	if err := f.earlier(); err != nil {
		return err
	}

	var err error
	if f.journal, err = stage.OpenJournal(filepath.Join(f.place.Dir, JournalName)); err != nil {
		return err
	}

	if f.o.Resume {
		err = f.resume()
	} else {
		err = f.fresh()
	}
	if err != nil {
		return errors.Join(err, f.journal.Close())
	}

	return nil
}

// earlier refuses to resume where an earlier build has left an unfinished output, which this one cannot read, and
// removes that where all begins anew.
func (f *Folder) earlier() error {
	dir := filepath.Join(filepath.Dir(f.dir), "."+filepath.Base(f.dir)+earlierSuffix)
	if _, err := os.Lstat(filepath.Join(dir, earlierJournal)); err != nil {
		return nil
	}
	if f.o.Resume {
		return fmt.Errorf("%s: %w: %w", dir, ErrOtherJob, errBegun)
	}
	return os.RemoveAll(dir)
}

// resume takes up what the journal says is there.
func (f *Folder) resume() error {
	lines := f.journal.Lines()
	if len(lines) == 0 && f.journal.Fault() == nil {
		return f.fresh()
	}

	var h header
	if len(lines) == 0 || json.Unmarshal(lines[0], &h) != nil || h.Format != journalFormat || h.Job != f.o.Job {
		return fmt.Errorf("%s: %w: %w", f.place.Dir, ErrOtherJob, errBegun)
	}

	// What a crash or a fault of the disk has left of the journal's end goes: the tensors that it noted are written
	// again.
	if f.journal.Fault() != nil {
		if err := f.journal.Keep(len(lines)); err != nil {
			return err
		}
	}

	var err error
	f.writer, err = safetensors.ReopenDir(f.place.Dir, f.o.Tensors, metadata(), f.options())
	if errors.Is(err, safetensors.ErrNoPartial) {
		return f.fresh()
	}

	if err != nil {
		return err
	}
	if err := f.takeUp(lines[1:]); err != nil {
		return errors.Join(err, f.writer.Suspend())
	}

	return nil
}

// takeUp marks the tensors that entries of the journal name.
func (f *Folder) takeUp(lines [][]byte) error {
	for _, line := range lines {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s: %w: %w", f.place.Dir, err, stage.ErrJournal)
		}

		maps.Copy(f.notes, e.Notes)

		for name, sums := range e.Done {
			f.sums[name] = sums
			if f.writer.Done(name) {
				continue
			}
			if err := f.writer.MarkDone(name); err != nil {
				return err
			}
		}
	}

	return nil
}

// fresh discards what an earlier run left and starts.
func (f *Folder) fresh() error {
	entries, err := os.ReadDir(f.place.Dir)
	if err != nil {
		return err
	}

	for _, e := range entries {
		if e.Name() == JournalName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.place.Dir, e.Name())); err != nil {
			return err
		}
	}

	if err := f.journal.Start(header{Format: journalFormat, Job: f.o.Job}); err != nil {
		return err
	}
	if f.writer, err = safetensors.CreateDir(f.place.Dir, f.o.Tensors, metadata(), f.options()); err != nil {
		return errors.Join(err, os.RemoveAll(f.place.Dir))
	}

	return safefile.SyncFolder(filepath.Dir(f.place.Dir))
}

// Complete reports that an earlier run of the same job has finished the output.
func (f *Folder) Complete() bool { return f.complete }

// Done reports whether a tensor is complete, from this run or an interrupted one.
func (f *Folder) Done(name string) bool { return f.writer.Done(f.within(name).name) }

// Shards lists the names of the files.
func (f *Folder) Shards() []string { return f.writer.Shards() }

// Position is where a tensor's first byte lies in its file.
func (f *Folder) Position(name string) int64 {
	at := f.within(name)
	return f.writer.Position(at.name) + at.first
}

// WriteAt writes a part of a tensor; several goroutines may call it at once.
func (f *Folder) WriteAt(name string, p []byte, off int64) error {
	at := f.within(name)
	name, off = at.name, off+at.first
	f.enter()
	err := f.writer.WriteAt(name, p, off)
	s := sum{off, int64(len(p)), vec.Checksum(p)}
	f.mu.Lock()
	defer f.mu.Unlock()

	f.leave()
	if err != nil {
		return err
	}

	f.sums[name] = append(f.sums[name], s)
	f.bytes += s.Len
	f.queue(name, s)

	return nil
}

// Written notes that all parts of a tensor are written. Now and then what was written is made durable and
// entered in the journal, beside further work.
func (f *Folder) Written(name string) error {
	name = f.within(name).name
	f.mu.Lock()
	defer f.mu.Unlock()

	f.left[name]--
	if f.left[name] > 0 { // other parts of it are to come
		return f.failure
	}

	f.pending = append(f.pending, name)
	if f.failure != nil || f.syncing || !f.due() {
		return f.failure
	}

	done := map[string][]sum{}
	for _, n := range f.pending {
		done[n] = slices.Clone(f.sums[n])
	}

	f.pending = nil
	f.bytes = 0
	f.syncing = true
	f.last = time.Now()
	go f.commit(entry{Done: done, Notes: f.unnoted()})
	return nil
}

// Note keeps what is known of a tensor that is about to be [Folder.Written]: with the journal it outlives an
// interruption.
func (f *Folder) Note(name string, note any) error {
	text, err := json.Marshal(note)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notes[name] = text
	f.noted = append(f.noted, name)
	return nil
}

// Notes are those of all tensors, of this run and of interrupted ones.
func (f *Folder) Notes() map[string]json.RawMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.notes)
}

// unnoted gives the notes that the journal lacks, which it is about to have.
func (f *Folder) unnoted() map[string]json.RawMessage {
	list := map[string]json.RawMessage{}
	for _, n := range f.noted {
		list[n] = f.notes[n]
	}
	f.noted = nil
	return list
}

// due reports whether it is time for an entry.
func (f *Folder) due() bool {
	if f.o.Every > 0 {
		return f.bytes >= f.o.Every
	}
	return f.bytes >= syncBytes || time.Since(f.last) >= syncTime
}

// commit makes tensors durable and enters them.
func (f *Folder) commit(e entry) {
	err := f.writer.Sync()
	if err == nil {
		err = f.journal.Add(e)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.syncing = false
	f.failure = errors.Join(f.failure, err)
	f.idle.Broadcast()
}

// settle waits for a commit under way.
func (f *Folder) settle() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.syncing {
		f.idle.Wait()
	}
	return f.failure
}

// Finish completes the files, reads back what ReadBehind has not, adds what side writes to the folder and gives
// it its final name.
func (f *Folder) Finish(side func(dir string) error) error {
	if f.complete {
		return nil
	}

	f.halt()
	if err := f.catchUp(); err != nil {
		return err
	}
	if err := errors.Join(f.files.Close(), f.writer.Finish()); err != nil {
		return err
	}
	if err := f.verify(); err != nil {
		return err
	}
	if err := side(f.place.Dir); err != nil {
		return err
	}
	if err := f.journal.Remove(); err != nil {
		return err
	}

	return errors.Join(f.journal.Close(), f.place.Publish())
}

// catchUp makes everything durable that is written and enters it in the journal.
func (f *Folder) catchUp() error {
	if err := f.settle(); err != nil {
		return err
	}

	f.mu.Lock()
	done := map[string][]sum{}
	for _, n := range f.pending {
		done[n] = f.sums[n]
	}

	f.pending = nil
	notes := f.unnoted()
	f.mu.Unlock()
	if len(done) == 0 {
		return nil
	}
	if err := f.writer.Sync(); err != nil {
		return err
	}

	return f.journal.Add(entry{Done: done, Notes: notes})
}

// Suspend leaves the unfinished output for a later run with Resume.
func (f *Folder) Suspend() error {
	if f.complete {
		return nil
	}
	f.halt()
	return errors.Join(f.catchUp(), f.files.Close(), f.writer.Suspend(), f.journal.Close(),
		f.place.Release())
}

// Abort removes the unfinished output.
func (f *Folder) Abort() error {
	if f.complete {
		return nil
	}
	f.halt()
	_ = f.settle() // the output goes anyway
	return errors.Join(f.files.Close(), f.writer.Abort(), f.journal.Close(), f.place.Abandon())
}

// WriteFile writes a file of the folder durably.
func WriteFile(path string, data []byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}
