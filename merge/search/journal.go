package search

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/merge"
)

// ErrJournal: the journal is not that of this search, or is damaged.
var ErrJournal = failure.Others(failure.Misuse("journal does not belong to this search",
	"--resume takes the command that began the search; --overwrite starts over"))

// header is the first line of the journal.
type header struct {
	Job string `json:"job"` // identifies the search
}

// openJournal starts the journal of a search, which job identifies, or with resume reads that of an interrupted one.
// What is wrong with a journal is refused and left as it is: a search whose steps are not exactly those of the
// interrupted one would take another course. The errors wrap [merge.ErrExists] for one that is not to be continued, and
// [ErrJournal].
func openJournal(path, job string, resume bool) (j *stage.Journal, steps []Step, err error) {
	open := stage.NewJournal
	if resume {
		open = stage.OpenJournal
	}

	if j, err = open(path); errors.Is(err, fs.ErrExist) {
		return nil, nil, fmt.Errorf("%s: %w", path, merge.ErrExists)
	}
	if err != nil {
		return nil, nil, err
	}

	switch lines := j.Lines(); {
	case len(lines) == 0 && j.Fault() != nil:
		err = fmt.Errorf("%s: %w: its first line is damaged, or an earlier build of this program began it", path,
			ErrJournal)
	case len(lines) == 0:
		err = j.Start(header{job})
	default:
		steps, err = readSteps(j, path, job)
	}
	if err != nil {
		return nil, nil, errors.Join(err, j.Close())
	}

	return j, steps, nil
}

// readSteps reads the journal of an interrupted search.
func readSteps(j *stage.Journal, path, job string) (steps []Step, err error) {
	var h header
	if json.Unmarshal(j.Lines()[0], &h) != nil || h.Job != job {
		return nil, fmt.Errorf("%s: %w: recipe, what is measured, or options differ", path, ErrJournal)
	}

	for i, line := range j.Lines()[1:] {
		var step Step
		if err := json.Unmarshal(line, &step); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrJournal, j.At(i+2, err))
		}
		steps = append(steps, step)
	}

	if err := j.Fault(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJournal, err)
	}

	return steps, nil
}
