package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

// journalName is the file in the hidden folder that notes which tensors are finished.
const journalName = "journal.jsonl"

// journalFormat is the first thing that the journal of a folder says. It changes whenever an unfinished folder of an
// earlier build can not be continued by this one.
const journalFormat = "compress folder 2"

// header is the first line of the journal of a folder.
type header struct {
	Format string `json:"format"`
	Job    string `json:"job"`
}

// finished is another line: tensors that are durable, the CRC-32C of their bytes, and what the caller says of them.
type finished struct {
	Done   []string        `json:"done"`
	Sums   []uint32        `json:"sums"`
	Remark json.RawMessage `json:"remark,omitempty"`
}

// openJournal opens the journal of the folder and cuts off what a crash or a fault of the disk has left of its end: the
// tensors that are not noted are written again.
func (f *Folder) openJournal() error {
	var err error
	if f.journal, err = OpenJournal(filepath.Join(f.place.Dir, journalName)); err != nil {
		return err
	}
	if f.journal.Fault() != nil && len(f.journal.Lines()) > 0 {
		return f.journal.Keep(len(f.journal.Lines()))
	}
	return nil
}

// sameJob returns nil if the journal is that of this job or has not begun. The error wraps [ErrOtherJob].
func (f *Folder) sameJob() error {
	lines := f.journal.Lines()
	if len(lines) == 0 && f.journal.Fault() == nil {
		return nil
	}

	var h header
	if len(lines) == 0 || json.Unmarshal(lines[0], &h) != nil || h.Format != journalFormat {
		return fmt.Errorf("%s: %w: its journal is damaged, or another build of this program began it", f.place.Dir,
			ErrOtherJob)
	}
	if h.Job != f.opts.Fingerprint {
		return fmt.Errorf("%s: %w: the source or the options have changed since it was begun", f.place.Dir, ErrOtherJob)
	}

	return nil
}

// noted lists the tensors that the journal has, in the order in which they were first noted, and their latest
// checksums; nil where there is none.
func (f *Folder) noted() (sums map[string]*uint32, names []string) {
	sums = map[string]*uint32{}
	for i, line := range f.journal.Lines() {
		var e finished
		if i == 0 || json.Unmarshal(line, &e) != nil {
			continue
		}

		for i, name := range e.Done {
			if _, known := sums[name]; !known {
				names = append(names, name)
			}

			sums[name] = nil
			if i < len(e.Sums) {
				sums[name] = &e.Sums[i]
			}
		}
	}

	return sums, names
}

// end closes what the folder has open.
func (f *Folder) end() error { return errors.Join(f.journal.Close(), f.place.Release()) }

// note enters tensors in the journal, which are durable before; the note is when it returns.
func (f *Folder) note(names []string, sums []uint32, remark json.RawMessage) error {
	if len(names) == 0 {
		return nil
	}
	return f.journal.Add(finished{Done: names, Sums: sums, Remark: remark})
}

// Remarks are those of the interrupted run, in the order of its [Folder.CommitWith].
func (f *Folder) Remarks() (list []json.RawMessage) {
	if f.journal == nil {
		return nil
	}
	for i, line := range f.journal.Lines() {
		var e finished
		if i > 0 && json.Unmarshal(line, &e) == nil && e.Remark != nil {
			list = append(list, e.Remark)
		}
	}
	return list
}
