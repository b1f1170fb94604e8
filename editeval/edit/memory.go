package edit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm"
)

// Memory is what edits keep outside of the weights: GRACE's codebook, the side memory of WISE or MEMOIR, and the facts
// that in-context editing puts before every prompt. Whoever runs an edited checkpoint without them runs another model.
type Memory struct {
	Linear  string  // of the codebook or the side memory
	Codes   []Code  // entries of the codebook; none: there is no codebook
	Context []int32 // tokens before every prompt; none: no edit is in context

	steps []Step // that wrote beside the weights
	model string // fingerprint of the model before the first edit; empty: unknown
	mixed bool   // other edits of the journal are in the weights
}

// ErrForeign: edits lie beside weights that they were not made for.
var ErrForeign = failure.New("it was made for other weights, or another config.json, than lie here",
	"edit this model itself, or remove edits.journal to go on without the edits")

// ReadMemory reads the memory of the checkpoint in a folder: nil where it has no journal, or one whose edits
// are all in the weights. Errors wrap [ErrJournal], or are those of the file.
func ReadMemory(dir string) (*Memory, error) {
	path := filepath.Join(dir, JournalName)
	f, err := safefile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()

	m, err := readMemory(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	return m, nil
}

func readMemory(r io.Reader) (*Memory, error) {
	m := &Memory{}
	j := &Journal{}
	err := j.lines(r, func(s *Step) error {
		if s.Context != nil {
			m.Context = s.Context
		}

		if !s.aside() {
			m.mixed = m.mixed || s.Context == nil
			return nil
		}

		// A model has one memory at one layer; entries of two could not be looked up by one key.
		if len(m.steps) > 0 && (m.Linear != s.Linear || m.steps[0].kind() != s.kind()) {
			return fmt.Errorf("%w: %s at %.200q and %s at %.200q", ErrJournal, m.steps[0].kind(), m.Linear, s.kind(),
				s.Linear)
		}

		m.Linear, m.steps = s.Linear, append(m.steps, *s)
		for _, c := range s.Codes {
			var ok bool
			if m.Codes, ok = entered(m.Codes, c); !ok {
				return fmt.Errorf("%w: entry %d of the codebook comes after %d", ErrJournal, c.Index, len(m.Codes))
			}
		}

		return nil
	})
	if err != nil || len(m.steps) == 0 && len(m.Context) == 0 {
		return nil, err
	}

	m.model = j.Model
	return m, nil
}

// entered writes an entry into a list.
func entered(list []Code, c Code) ([]Code, bool) {
	if c.Index < 0 || c.Index > len(list) {
		return list, false
	}
	if c.Index == len(list) {
		return append(list, c), true
	}
	list[c.Index] = c
	return list, true
}

// Attach lets the memory answer at every token that it takes for its own; undo takes it off again. The publications ask
// it about prompts, whose ends nobody can tell inside a text. Without a memory nothing happens.
func (m *Memory) Attach(to *lm.Model) (undo func(), err error) {
	if len(m.steps) == 0 {
		return func() {}, nil
	}

	l, err := named(to, m.Linear)
	if err != nil {
		return nil, err
	}

	b := newSidecar(to, l, &m.steps[0])
	for i := range m.steps {
		if err := b.enter(l, &m.steps[i]); err != nil {
			return nil, err
		}
	}

	return to.Attach(b, l.Name)
}

// Belongs returns an error that wraps [ErrForeign] where the memory was made for other weights than those of a model,
// which are read whole: keys would be compared with what another model computes. A memory that does not say which model
// it was made for belongs to any whose matrices it fits.
func (m *Memory) Belongs(ctx context.Context, to *lm.Model) error {
	if m.model == "" || len(m.steps) == 0 {
		return nil
	}

	sum, err := to.Fingerprint(ctx)
	if err != nil || sum == m.model {
		return err
	}
	if m.mixed {
		j, err := readJournal(to.Path())
		if err != nil {
			return err
		}
		return j.belongs(ctx, to.Path())
	}
	return foreign(to.Path())
}

// belongs returns an error that wraps [ErrForeign] where the checkpoint in a folder, without what its edits have
// changed, is not the model that the journal began with.
func (j *Journal) belongs(ctx context.Context, dir string) error {
	if j.Model == "" {
		return nil
	}

	before := map[string][]byte{}
	for _, b := range j.bases {
		before[b.Linear] = b.Data
	}
	sum, err := lm.FingerprintWith(ctx, dir, before)
	if err == nil && sum != j.Model {
		err = foreign(dir)
	}
	return err
}

// foreign says in which folder a journal is not that of its weights.
func foreign(dir string) error { return fmt.Errorf("%s: %s: %w", dir, JournalName, ErrForeign) }

// Describe says what the memory is, and how much it holds; empty where there is none.
func (m *Memory) Describe() (name, size string) {
	switch {
	case len(m.Codes) > 0:
		return "codebook", fmt.Sprintf("%d entries", len(m.Codes))
	case len(m.steps) > 0:
		return "side memory", fmt.Sprintf("%s, %d edits", m.steps[0].kind(), len(m.steps))
	}
	return "", ""
}
