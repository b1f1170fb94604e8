package gp

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/stage"
)

// ErrJournal says that a journal is damaged or belongs to another search.
var ErrJournal = stage.ErrJournal

// journalVersion changes with whatever changes the course of a search.
const journalVersion = 1

// header is the first line of a journal.
type header struct {
	Journal int    `json:"gp_journal"` // the version
	Seed    uint64 `json:"seed"`
	Grammar string `json:"grammar"`
	Options string `json:"options"`
	Fitness string `json:"fitness"`
}

// entry is any following line: one evaluation.
type entry struct {
	Formula string `json:"formula"`
	Outcome
}

// openJournal creates the journal of a search, or opens the one to go on with.
func openJournal(g Grammar, o Options) (*replay[entry], error) {
	if o.Journal == "" {
		return nil, nil
	}
	hash, err := o.hash()
	if err != nil {
		return nil, err
	}
	head := header{journalVersion, o.Seed, g.Hash(), hash, o.FitnessID}
	return openReplay[header, entry](o.Journal, o.Resume, head, head.differs)
}

// differs says what another header differs in.
func (h header) differs(found header) error {
	switch {
	case found.Journal != h.Journal:
		return fmt.Errorf("version %d, this program writes %d", found.Journal, h.Journal)
	case found.Seed != h.Seed:
		return fmt.Errorf("seed %d, not %d", found.Seed, h.Seed)
	case found.Grammar != h.Grammar:
		return errors.New("another grammar")
	case found.Fitness != h.Fitness:
		return fmt.Errorf("another fitness: %q, not %q", found.Fitness, h.Fitness)
	case found.Options != h.Options:
		return errors.New("other options")
	}

	return nil
}
