package edit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm"
)

// Memory is what edits keep outside of the weights: GRACE's codebook, and the facts that in-context editing
// puts before every prompt. Whoever runs an edited checkpoint without them runs another model.
type Memory struct {
	Linear  string  // of the codebook
	Codes   []Code  // its entries; none: there is no codebook
	Context []int32 // tokens before every prompt; none: no edit is in context
}

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

		// A model has one adapter at one layer; entries of two could not be looked up by one key.
		if len(s.Codes) > 0 && m.Linear != "" && m.Linear != s.Linear {
			return fmt.Errorf("%w: codebooks at %.200q and at %.200q", ErrJournal, m.Linear, s.Linear)
		}

		for _, c := range s.Codes {
			m.Linear = s.Linear
			var ok bool
			if m.Codes, ok = entered(m.Codes, c); !ok {
				return fmt.Errorf("%w: entry %d of the codebook comes after %d", ErrJournal, c.Index, len(m.Codes))
			}
		}

		return nil
	})
	if err != nil || len(m.Codes) == 0 && len(m.Context) == 0 {
		return nil, err
	}

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

// Attach lets the codebook answer at every token whose key is near; undo takes it off again. The publication
// asks it at the last token of a prompt alone, which nobody can tell inside a text. Without a codebook nothing
// happens.
func (m *Memory) Attach(to *lm.Model) (undo func(), err error) {
	if len(m.Codes) == 0 {
		return func() {}, nil
	}

	l, err := named(to, m.Linear)
	if err != nil {
		return nil, err
	}

	b := &Codebook{Linear: l.Name, rows: site.Rows{Dev: to.Device()}}
	if err := b.enter(l, m.Codes); err != nil {
		return nil, err
	}

	return to.Attach(b, l.Name)
}
