package editcmd

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/safetensors"
)

// Verified is the report of edit verify.
type Verified struct {
	Dir      string  `json:"dir"`
	Base     string  `json:"base,omitempty"`
	Steps    int     `json:"steps"`
	Matrices int     `json:"matrices"`  // that the steps change
	SumError float64 `json:"sum_error"` // ‖final - base - Σ deltas‖/‖Σ deltas‖: what rounding to the stored type leaves
}

// errDiffers: a checkpoint is not its base plus its edits.
var errDiffers = errors.New("the edited model is not its base plus its edits")

// Verify checks that an edited checkpoint has, to the last bit, the rounded sum of what its journal says it had
// and of all deltas, and with a base that this is where it began.
func Verify(j *cli.Job, dir, base string) (any, error) {
	journal, err := journalOf(dir)
	if err != nil {
		return nil, err
	}

	if err := intact(dir, journal); err != nil {
		return nil, err
	}

	m, e, err := reopen(j, dir, journal, true)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	defer e.Close()

	r := &Verified{Dir: dir, Base: base, Steps: len(journal.Steps), Matrices: len(e.Changed())}
	if r.SumError, err = e.CheckSum(); err != nil {
		return nil, err
	}

	// nothing of the journal is in the weights: they must be those that it began with
	if r.Matrices == 0 && journal.Model != "" {
		sum, err := m.Fingerprint(j.Ctx)
		if err != nil {
			return nil, err
		}

		if sum != journal.Model {
			return nil, fmt.Errorf("%s: its weights are not those that %s was made with: %w", dir, edit.JournalName,
				errDiffers)
		}
	}

	if base != "" {
		if err := e.Undo(0); err != nil {
			return nil, err
		}
		if err := sameTensors(base, m.Source(), e.Changed()); err != nil {
			return nil, err
		}
	}

	j.Printf("%s: %d steps, %d matrices: to the last bit base + deltas as the stored type rounds them, which leaves "+
		"%.2g of the deltas\n", dir, r.Steps, r.Matrices, r.SumError)
	return r, nil
}

// sameTensors compares every tensor of a base with what an edited checkpoint has or, where edits changed it, had.
func sameTensors(base string, edited *safetensors.Dir, before map[string][]byte) error {
	src, err := safetensors.OpenDir(base)
	if err != nil {
		return err
	}
	defer src.Close()

	for _, name := range edited.Names() {
		want, err := src.Bytes(name)
		if err != nil {
			return err
		}

		got, ok := before[name]
		if !ok {
			if got, err = edited.Bytes(name); err != nil {
				return err
			}
		}

		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s: tensor %q: %w", base, name, errDiffers)
		}

		_, _ = src.Release(name), edited.Release(name)
	}

	return nil
}
