package editeval

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
)

// A sequence that is finished is gone on with when a plan has more counts: its rows stay, and its edits are
// read from a journal beside the results rather than made again.

// keptJournal is the journal of a finished sequence in its folder. It is hidden: hashes of results leave it out.
const keptJournal = ".edits.journal"

// largestJournal bounds what is kept: methods that change whole matrices write one for every edit.
const largestJournal = 256 << 20

// keepJournal keeps the edits of a finished sequence that lie in whole batches, if there is room for them.
func (q *sequence) keepJournal() error {
	path := q.journalPath(q.state.Applied)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() > largestJournal {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Rename(path, filepath.Join(q.dir, keptJournal))
}

// tidy does what a finished sequence still had to do when it was killed behind its result.
func (q *sequence) tidy(job string) error {
	if q.unfinished(job) {
		if err := q.keepJournal(); err != nil {
			return err
		}
	}
	return os.RemoveAll(q.kept)
}

// widens reports whether the sequence begins as a finished one did.
func (q *sequence) widens(before *Sequence) bool {
	if before.Edits != q.edits || len(before.Checkpoints) == 0 || len(before.Checkpoints) >= len(q.s.Counts) ||
		before.Probes < 1 {
		return false
	}

	for i := range before.Checkpoints {
		if before.Checkpoints[i].Edits != q.s.Counts[i] {
			return false
		}
	}

	return before.Probes <= before.Checkpoints[len(before.Checkpoints)-1].Edits
}

// widen takes over what a finished sequence has measured, and its edits if their journal is there.
func (q *sequence) widen(job string, before *Sequence) error {
	done := before.Checkpoints[len(before.Checkpoints)-1]
	q.state = state{Job: job, Probes: before.Probes, Fluency: before.Fluency, Checkpoints: before.Checkpoints}
	if err := errors.Join(os.RemoveAll(q.kept), os.MkdirAll(q.kept, 0o777)); err != nil {
		return err
	}

	// Edits of one batch of all cannot be added to: more facts are another solution.
	if q.ed.Batch != whole {
		// Only whole batches stay: the last, incomplete one would have held more with more edits.
		applied := done.Edits - done.Edits%q.ed.Batch
		err := os.Rename(filepath.Join(q.dir, keptJournal), q.journalPath(applied))
		switch {
		// Without the journal the measurements still hold; the edits are made again.
		case err == nil && q.readable(q.journalPath(applied)):
			q.state.Applied, q.journal = applied, applied
			q.state.Failed = slices.DeleteFunc(slices.Clone(done.Failed), func(i int) bool { return i >= applied })
		case err == nil:
			if err := os.Remove(q.journalPath(applied)); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}

	return q.save()
}

// readable reports whether a journal of edits is what was written, every line of which has a hash.
func (q *sequence) readable(path string) bool {
	f, err := safefile.Open(path)
	if err == nil {
		_, err = edit.ReadJournal(f)
		err = errors.Join(err, f.Close())
	}
	if err != nil && q.s.Note != nil {
		q.s.Note(fmt.Sprintf("%s: %v: the edits are made again", path, err))
	}
	return err == nil
}

// keepCounts adds the counts that the folder has results of, if these are of the same edits and tasks: a plan
// that names others adds rows, and takes none away.
func (s *Study) keepCounts() error {
	var before Report
	if err := readJSON(filepath.Join(s.dir, ResultsFile), &before); err != nil {
		return nil // there is none, or it is damaged and written anew
	}
	if before.Data != s.Data {
		return nil
	}

	was, err := likeness(before.Plan)
	if err != nil {
		return err
	}

	is, err := likeness(s.Plan)
	if err != nil || was != is {
		return err
	}

	var kept []string
	for _, c := range before.Counts {
		if !slices.Contains(s.Counts, c) && c <= len(s.Records) {
			s.Counts = append(s.Counts, c)
			kept = append(kept, label(c, "edit"))
		}
	}

	slices.Sort(s.Counts)
	if len(kept) > 0 {
		s.remark("the folder has measurements after %s, which stay", strings.Join(kept, ", "))
	}

	return nil
}

// likeness is a hash of what plans that share their rows have in common.
func likeness(p Plan) (string, error) {
	p.File = ""
	p.Models = nil
	p.Editors = nil
	p.Counts = nil
	p.Seeds = nil
	return stage.Fingerprint(p)
}
