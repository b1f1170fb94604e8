package edit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which an edited folder can turn out to be none.
var (
	// ErrNotEdited: a folder has no journal of edits.
	ErrNotEdited = errors.New("this is no output of compress edit")
	// ErrOriginal: a checkpoint without its edits is not the model that was edited.
	ErrOriginal = failure.New("it is not the model that was edited",
		"edit verify with --base names the first tensor that differs")
	// ErrDiffers: a checkpoint is not its base plus its edits.
	ErrDiffers = errors.New("the edited model is not its base plus its edits")
)

// FolderJournal reads the journal of the edited checkpoint in a folder. Where a file beside the weights is not what
// was written with them, the error wraps [lm.ErrDamaged]: the state before the edits would not be the model's.
func FolderJournal(dir string) (*Journal, error) {
	journal, err := readJournal(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no %s: %w", dir, JournalName, ErrNotEdited)
	}
	if err != nil {
		return nil, err
	}

	if err := lm.Intact(dir, journal.Files); err != nil {
		return nil, fmt.Errorf("%w (HINT: put back what the model that was edited has there)", err)
	}

	return journal, nil
}

// reopen loads an edited checkpoint with its journal.
func reopen(ctx context.Context, dir string, dev kernels.Device, j *Journal, strict bool) (*lm.Model, *Editing, error) {
	m, err := lm.Load(ctx, dir, dev, lm.Options{})
	if err != nil {
		return nil, nil, err
	}

	// Whichever method comes next: a journal says of each step how it is applied.
	e, err := Open(m, j, strict, Options{Method: "ft"})
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}

	return m, e, nil
}

// Undone is what [UndoFolder] did.
type Undone struct {
	Dir     string   `json:"dir"`
	From    int      `json:"from"` // steps before
	To      int      `json:"to"`
	Removed []string `json:"removed"` // edits
	Tensors []string `json:"tensors"` // that were restored
}

// UndoFolder brings the edited checkpoint in a folder back to the state after its first steps, byte for byte: with 0 to
// the model that was edited. Files are replaced one at a time, each when it is complete; after an interruption the same
// call finishes the work. dev is what the model is loaded on.
func UndoFolder(ctx context.Context, dir string, dev kernels.Device, to int) (*Undone, error) {
	journal, err := FolderJournal(dir)
	if err != nil {
		return nil, err
	}
	if to < 0 || to > len(journal.Steps) {
		err := fmt.Errorf("%s: %w: cannot keep %d steps: %s has %d steps", dir, ErrSteps, to, JournalName,
			len(journal.Steps))
		return nil, failure.Hinted(err, fmt.Sprintf("--to takes 0 to %d", len(journal.Steps)))
	}

	m, e, err := reopen(ctx, dir, dev, journal, false)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	defer e.Close()

	// Where nothing is in the weights there is nothing to take out of them: all that would change is a journal of
	// another model.
	if len(e.Changed()) == 0 && len(journal.Steps) > 0 {
		if err := journal.belongs(ctx, dir); err != nil {
			return nil, err
		}
	}

	r := &Undone{Dir: dir, From: len(journal.Steps), To: to}
	for _, s := range journal.Steps[to:] {
		r.Removed = append(r.Removed, s.Edits...)
	}
	if err := e.Undo(to); err != nil {
		return nil, err
	}

	// The weights first: a journal that has more steps than the weights is known, and the same call goes on; one that
	// has fewer would leave edits that nobody knows of.
	if r.Tensors, err = rewrite(dir, e.Changed()); err != nil {
		return nil, err
	}

	var text bytes.Buffer
	of := Journal{Model: journal.Model, Files: journal.Files, Quantised: journal.Quantised}
	if err := e.WriteJournalOf(&text, of); err != nil {
		return nil, err
	}
	if err := safefile.WriteFile(filepath.Join(dir, JournalName), text.Bytes(), 0o644); err != nil {
		return nil, err
	}

	if to == 0 {
		if err := original(ctx, dir, journal.Model); err != nil {
			return nil, err
		}
	}

	return r, nil
}

// original checks that a checkpoint without its edits is the model that its journal began with, if that says
// which: matrices that no edit changed may have been damaged, or replaced, meanwhile.
func original(ctx context.Context, dir, model string) error {
	if model == "" {
		return nil
	}

	sum, err := lm.Fingerprint(ctx, dir)
	if err == nil && sum != model {
		err = fmt.Errorf("%s: the edits are taken out, but its other weights, or its config.json, are not those "+
			"that %s was made with: %w", dir, JournalName, ErrOriginal)
	}

	return err
}

// rewrite replaces the files that hold tensors which have to change, one by one; each is replaced when it is complete.
func rewrite(dir string, values map[string][]byte) ([]string, error) {
	src, err := safetensors.OpenDir(dir) // as editing has written it
	if err != nil {
		return nil, err
	}
	defer src.Close()

	shards := map[string][]string{}
	var changed []string
	for name, want := range values {
		now, err := src.Bytes(name)
		if err != nil {
			return nil, err
		}

		if !bytes.Equal(now, want) {
			shards[src.ShardOf(name)] = append(shards[src.ShardOf(name)], name)
			changed = append(changed, name)
		}
	}

	slices.Sort(changed)

	for _, base := range src.Shards() {
		if len(shards[base]) == 0 {
			continue
		}
		if err := rewriteShard(src.Shard(base), filepath.Join(src.Path(), base), values); err != nil {
			return nil, err
		}
	}

	return changed, nil
}

// rewriteShard writes a file with other values of some tensors, in the same order and with the same metadata.
func rewriteShard(f *safetensors.File, path string, values map[string][]byte) error {
	// Order and metadata are kept, so that an undone file has the same bytes as before the edit.
	var infos []safetensors.Info
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		infos = append(infos, info)
	}

	w, err := safetensors.Create(path, infos, f.Metadata(), safetensors.Options{Overwrite: true})
	if err != nil {
		return err
	}

	for _, name := range f.Names() {
		data, ok := values[name]
		if !ok {
			if data, err = f.Bytes(name); err != nil {
				return errors.Join(err, w.Abort())
			}
		}

		if err := w.WriteTensor(name, data); err != nil {
			return errors.Join(err, w.Abort())
		}
	}

	return w.Finish()
}

// Verified is what [VerifyFolder] found.
type Verified struct {
	Dir      string  `json:"dir"`
	Base     string  `json:"base,omitempty"`
	Steps    int     `json:"steps"`
	Matrices int     `json:"matrices"`  // that the steps change
	SumError float64 `json:"sum_error"` // ‖final - base - Σ deltas‖/‖Σ deltas‖: what rounding to the stored type leaves
}

// VerifyFolder checks that the edited checkpoint in a folder has, to the last bit, the rounded sum of what its journal
// says it had and of all deltas. With base, the folder of the model that was edited, everything else must be that
// model's. The error wraps [ErrDiffers] or [ErrJournal] where it is not so.
func VerifyFolder(ctx context.Context, dir, base string, dev kernels.Device) (*Verified, error) {
	journal, err := FolderJournal(dir)
	if err != nil {
		return nil, err
	}

	m, e, err := reopen(ctx, dir, dev, journal, true)
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
		sum, err := m.Fingerprint(ctx)
		if err != nil {
			return nil, err
		}

		if sum != journal.Model {
			return nil, fmt.Errorf("%s: its weights are not those that %s was made with: %w", dir, JournalName,
				ErrDiffers)
		}
	}

	if base == "" {
		return r, nil
	}

	if err := e.Undo(0); err != nil {
		return nil, err
	}
	if err := sameTensors(ctx, base, m.Source(), e.Changed()); err != nil {
		return nil, err
	}

	return r, nil
}

// sameTensors compares every tensor of a base with what an edited checkpoint has or, where edits changed it, had.
func sameTensors(ctx context.Context, base string, edited safetensors.Source, before map[string][]byte) error {
	src, err := weights.Open(ctx, base)
	if err != nil {
		return err
	}
	defer src.Close()

	for _, name := range edited.Names() {
		want, err := src.Bytes(name)
		if err != nil {
			return err
		}

		// An edited tensor is compared by what the journal kept of it: its present values are meant to differ.
		got, ok := before[name]
		if !ok {
			if got, err = edited.Bytes(name); err != nil {
				return err
			}
		}

		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s: tensor %q: %w", base, name, ErrDiffers)
		}

		// Released one by one: otherwise both checkpoints would be resident in memory at the end.
		_, _ = src.Release(name), edited.Release(name)
	}

	return nil
}
