package editcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// Undone is the report of edit undo.
type Undone struct {
	Dir     string   `json:"dir"`
	From    int      `json:"from"` // steps before
	To      int      `json:"to"`
	Removed []string `json:"removed"` // edits
	Tensors []string `json:"tensors"` // that were restored
}

// errOriginal: a checkpoint without its edits is not the model that was edited.
var errOriginal = errors.New("it is not the model that was edited")

// journalOf reads the journal of an output of the verb.
func journalOf(dir string) (*edit.Journal, error) {
	journal, err := readJournal(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no %s: this is no output of compress edit", dir, edit.JournalName)
	}
	return journal, err
}

// reopen opens an edited checkpoint with its journal.
func reopen(j *cli.Job, dir string, journal *edit.Journal, strict bool) (*lm.Model, *edit.Editing, error) {
	m, err := j.Load(dir, lm.Options{})
	if err != nil {
		return nil, nil, err
	}

	hp, err := edit.Defaults("ft", m.Config())
	if err == nil {
		var e *edit.Editing
		if e, err = edit.Open(m, journal, strict, edit.Options{Method: "ft", HParams: &hp}); err == nil {
			return m, e, nil
		}
	}

	return nil, nil, errors.Join(err, m.Close())
}

// intact refuses an edited checkpoint of which a file beside the weights is not what was written with them: the
// state before the edits would not be the model's.
func intact(dir string, journal *edit.Journal) error {
	if err := lm.Intact(dir, journal.Files); err != nil {
		return fmt.Errorf("%w (HINT: put back what the model that was edited has there)", err)
	}
	return nil
}

// Undo brings an edited checkpoint back to the state after its first steps.
func Undo(j *cli.Job, dir string, to int) (any, error) {
	journal, err := journalOf(dir)
	if err != nil {
		return nil, err
	}

	if to < 0 || to > len(journal.Steps) {
		return nil, cli.Usagef("--to %d: %s has %d steps", to, edit.JournalName, len(journal.Steps))
	}
	if err := intact(dir, journal); err != nil {
		return nil, err
	}

	m, e, err := reopen(j, dir, journal, false)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	defer e.Close()

	r := &Undone{Dir: dir, From: len(journal.Steps), To: to}
	for _, s := range journal.Steps[to:] {
		r.Removed = append(r.Removed, s.Edits...)
	}
	if err := e.Undo(to); err != nil {
		return nil, err
	}
	if r.Tensors, err = rewrite(m.Source(), e.Changed()); err != nil {
		return nil, err
	}

	var text bytes.Buffer
	if err := e.WriteJournalOf(&text, edit.Journal{Model: journal.Model, Files: journal.Files}); err != nil {
		return nil, err
	}
	if err := cli.WriteFile(filepath.Join(dir, edit.JournalName), text.Bytes()); err != nil {
		return nil, err
	}

	if to == 0 {
		if err := original(j, dir, journal.Model); err != nil {
			return nil, err
		}
	}

	j.Printf("%s: %d of %d steps kept, %d edits taken out\n", dir, to, r.From, len(r.Removed))
	return r, nil
}

// original checks that a checkpoint without its edits is the model that its journal began with, if that says
// which: matrices that no edit changed may have been damaged, or replaced, meanwhile.
func original(j *cli.Job, dir, model string) error {
	if model == "" {
		return nil
	}

	src, err := safetensors.OpenDir(dir)
	if err != nil {
		return err
	}
	defer src.Close()

	sum, err := lm.Fingerprint(j.Ctx, dir, src)
	if err == nil && sum != model {
		err = fmt.Errorf("%s: the edits are taken out, but its other weights, or its config.json, are not those "+
			"that %s was made with: %w (HINT: edit verify %[1]s --base BASE names the first tensor)", dir,
			edit.JournalName, errOriginal)
	}

	return err
}

// rewrite replaces the files that hold tensors which have to change, one by one; each is replaced when it is complete.
func rewrite(src *safetensors.Dir, values map[string][]byte) ([]string, error) {
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

func rewriteShard(f *safetensors.File, path string, values map[string][]byte) error {
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
