package gp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
)

// ErrJournal says that a journal is damaged or belongs to another search.
var ErrJournal = errors.New("unusable journal")

// journalVersion changes with whatever changes the course of a search.
const journalVersion = 1

// header is the first line.
type header struct {
	Journal int    `json:"gp_journal"` // the version
	Seed    uint64 `json:"seed"`
	Grammar string `json:"grammar"`
	Options string `json:"options"`
	Fitness string `json:"fitness"`
}

// entry is any following line: one evaluation.
type entry struct {
	N        int     `json:"n"`
	Formula  string  `json:"formula"`
	Quality  float64 `json:"quality"`
	Rejected string  `json:"rejected,omitempty"`
}

func (e *entry) outcome() Outcome { return Outcome{e.Quality, e.Rejected} }

// journal is an append-only file of lines, each JSON followed by a tab and the CRC-32 of everything up to there. A nil
// journal keeps nothing.
type journal struct {
	path  string
	file  *os.File
	sum   uint32
	lines []entry // to be replayed
	used  int
	n     int // entries in the file
}

// openJournal creates the journal of a search, or opens the one to go on with.
func openJournal(g Grammar, o Options) (*journal, error) {
	if o.Journal == "" {
		return nil, nil
	}
	hash, err := o.hash()
	if err != nil {
		return nil, err
	}
	head := header{journalVersion, o.Seed, g.Hash(), hash, o.FitnessID}
	j := &journal{path: o.Journal}
	flags := os.O_RDWR | os.O_CREATE
	if !o.Resume {
		flags |= os.O_EXCL
	}
	j.file, err = os.OpenFile(o.Journal, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s: %w: it exists; resume it or choose another name", o.Journal, ErrJournal)
	}
	if err != nil {
		return nil, err
	}
	if err := j.open(head); err != nil {
		return nil, errors.Join(err, j.file.Close())
	}
	return j, nil
}

// open reads what is there, and writes the header of a new journal.
func (j *journal) open(head header) error {
	text, err := io.ReadAll(j.file)
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole < len(text) { // the last line was being written
		if err := j.file.Truncate(int64(whole)); err != nil {
			return err
		}
	}
	if _, err := j.file.Seek(int64(whole), io.SeekStart); err != nil {
		return err
	}
	if whole == 0 {
		return j.write(head)
	}
	return j.read(text[:whole], head)
}

func (j *journal) read(text []byte, head header) error {
	for number := 1; len(text) > 0; number++ {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		text = rest
		body, mark, ok := bytes.Cut(line, []byte{'\t'})
		j.sum = crc32.Update(j.sum, crc32.IEEETable, body)
		if !ok || string(mark) != fmt.Sprintf("%08x", j.sum) {
			return fmt.Errorf("%s:%d: %w: the line is damaged", j.path, number, ErrJournal)
		}
		if number == 1 {
			var h header
			if err := strict(body, &h); err != nil {
				return fmt.Errorf("%s:1: %w: %v", j.path, ErrJournal, err)
			}
			if err := h.differs(head); err != nil {
				return fmt.Errorf("%s:1: %w: %w", j.path, ErrJournal, err)
			}
			continue
		}
		var e entry
		if err := strict(body, &e); err != nil || e.N != number-1 {
			return fmt.Errorf("%s:%d: %w: not evaluation %d (%v)", j.path, number, ErrJournal, number-1, err)
		}
		j.lines = append(j.lines, e)
	}
	j.n = len(j.lines)
	return nil
}

func strict(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// differs says what two headers differ in.
func (h header) differs(o header) error {
	switch {
	case h.Journal != o.Journal:
		return fmt.Errorf("version %d, this program writes %d", h.Journal, o.Journal)
	case h.Seed != o.Seed:
		return fmt.Errorf("seed %d, not %d", h.Seed, o.Seed)
	case h.Grammar != o.Grammar:
		return errors.New("another grammar")
	case h.Fitness != o.Fitness:
		return fmt.Errorf("another fitness: %q, not %q", h.Fitness, o.Fitness)
	case h.Options != o.Options:
		return errors.New("other options")
	}
	return nil
}

// next returns the next evaluation to be replayed, nil if there is none. It must be of the formula.
func (j *journal) next(formula string) (*entry, error) {
	if j.left() == 0 {
		return nil, nil
	}
	e := &j.lines[j.used]
	if j.used++; e.Formula != formula {
		return nil, fmt.Errorf("%s:%d: %w: it holds %s where this search evaluates %s", j.path, j.used+1, ErrJournal, e.Formula, formula)
	}
	return e, nil
}

// left counts the evaluations that have not been replayed.
func (j *journal) left() int {
	if j == nil {
		return 0
	}
	return len(j.lines) - j.used
}

func (j *journal) append(formula string, o Outcome) error {
	if j == nil {
		return nil
	}
	j.n++
	return j.write(entry{j.n, formula, o.Quality, o.Rejected})
}

// write adds a line in one call.
func (j *journal) write(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	j.sum = crc32.Update(j.sum, crc32.IEEETable, body)
	_, err = j.file.Write(fmt.Appendf(body, "\t%08x\n", j.sum))
	return err
}

func (j *journal) sync() error {
	if j == nil {
		return nil
	}
	return j.file.Sync()
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	return j.file.Close()
}
