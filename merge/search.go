package merge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/tune"
)

// The files that Search writes.
const (
	BestName    = "best.yaml"     // the recipe with the best numbers
	JournalName = "journal.jsonl" // what was tried; an interrupted search continues from it
)

// Ways in which a search can fail, beside those of Models.
var (
	ErrJournal = tune.ErrJournal
	ErrScore   = tune.ErrScore
)

// SearchText is a text that candidates are measured on.
type SearchText struct {
	Name   string  `json:"name"`   // for the report
	Hash   string  `json:"hash"`   // of its content and of how it is cut, so that a search is only continued on the same texts
	Weight float64 `json:"weight"` // of its loss in the score; must be positive
	// Cut lays windows over the text for a model; it is called once, for the first candidate.
	Cut func(*lm.Model) (corpus.Windows, error) `json:"-"`
}

// SearchStep is a candidate that was measured.
type SearchStep = tune.Step

// SearchVariable is an open number of the recipe.
type SearchVariable = tune.Variable

// SearchOptions are the choices of a search. Device and Texts must be set.
type SearchOptions struct {
	Device      kernels.Device   `json:"-"`
	Texts       []SearchText     `json:"texts"`
	Generations int              `json:"generations"` // after the starting point; 0: 20
	Population  int              `json:"population"`  // candidates per generation; 0: 4 + 3·ln(number of open numbers)
	Sigma       float64          `json:"sigma"`       // spread at the start as a share of each range; 0: 0.25
	Seed        uint64           `json:"seed"`
	Merge       Options          `json:"merge"` // of every candidate; Overwrite, Resume and Progress do not matter
	Resume      bool             `json:"-"`     // continue an interrupted search
	Each        func(SearchStep) `json:"-"`     // called after every candidate; may be nil
}

// SearchReport says what a search found.
type SearchReport struct {
	Version   string           `json:"version"`
	Options   SearchOptions    `json:"options"`
	Variables []SearchVariable `json:"variables"`
	Values    []float64        `json:"values"` // the best ones, in the order of Variables
	// Score is the mean loss of the best candidate, in nats per token: of each text over its tokens, of the texts by weight.
	// Start is that of the starting point, -1 if it could not be measured.
	Score  float64      `json:"score"`
	Start  float64      `json:"start_score"`
	Steps  []SearchStep `json:"steps"`
	Recipe string       `json:"recipe"` // with the best values
}

// Search finds the open numbers of a recipe, written {search: [low, high]}, that make the loss on held-out texts least: by an
// evolution strategy (CMA-ES), each candidate merged into a folder below dst and measured there. dst gets the journal and the
// recipe with the best numbers; the merge itself is left to Models. The result depends on the recipe, the models, the texts, the
// options and the device, not on interruptions. path names the recipe and the folder that its paths are relative to.
func Search(ctx context.Context, path string, text []byte, dst string, o SearchOptions) (*SearchReport, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	space, err := tune.Parse(path, text)
	if err != nil {
		return nil, faulty(err)
	}
	if _, err := Parse(path, space.Recipe(space.Start())); err != nil {
		return nil, err
	}
	journal, old, err := openJournal(dst, o.job(text), o.Resume)
	if err != nil {
		return nil, err
	}
	defer journal.Close()
	s := &searching{path: path, o: o, scratch: filepath.Join(dst, ".candidate"), windows: make([]corpus.Windows, len(o.Texts))}
	defer os.RemoveAll(s.scratch)
	result, err := tune.Search(ctx, space, s.score, tune.Options{
		Generations: o.Generations, Population: o.Population, Sigma: o.Sigma, Seed: o.Seed, Journal: old, Append: durable{journal}, Each: o.Each,
	})
	if err != nil {
		return nil, err
	}
	report := &SearchReport{
		Version: output.Version(), Options: o, Variables: result.Variables, Values: result.Values, Score: result.Score, Start: result.Start,
		Steps: result.Steps, Recipe: string(result.Recipe),
	}
	return report, output.WriteFile(filepath.Join(dst, BestName), result.Recipe)
}

// validate returns every fault of the options, joined.
func (o SearchOptions) validate() error {
	errs := []error{o.Merge.Validate()}
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrOption))
	}
	if err := (tune.Options{Generations: o.Generations, Population: o.Population, Sigma: o.Sigma}).Validate(); err != nil {
		bad("%v", err)
	}
	if o.Device == nil {
		bad("a search needs a device")
	}
	if len(o.Texts) == 0 {
		bad("a search needs a text")
	}
	for _, t := range o.Texts {
		if !(t.Weight > 0) || math.IsInf(t.Weight, 1) || t.Cut == nil {
			bad("text %s: needs windows and a weight above 0, not %v", t.Name, t.Weight)
		}
	}
	return errors.Join(errs...)
}

// job identifies a search, so that a journal is only continued by the same one.
func (o SearchOptions) job(text []byte) string {
	o.Merge.Workers, o.Merge.Memory = 0, 0
	h := sha256.New()
	// Options are numbers and texts, which JSON can always express.
	_ = json.NewEncoder(h).Encode(map[string]any{"format": 1, "version": output.Version(), "recipe": string(text), "options": o})
	return hex.EncodeToString(h.Sum(nil))
}

// durable is a file whose every write is on disk when it returns.
type durable struct{ f *os.File }

// Write implements io.Writer.
func (d durable) Write(p []byte) (int, error) {
	n, err := d.f.Write(p)
	if err == nil {
		err = d.f.Sync()
	}
	return n, err
}

// journalLimit bounds what is read of a journal.
const journalLimit = 1 << 30

// openJournal starts the journal of a search, or reads that of an interrupted one and positions behind its last whole line.
func openJournal(dst, job string, resume bool) (f *os.File, steps []byte, err error) {
	if err := os.MkdirAll(dst, 0o777); err != nil {
		return nil, nil, err
	}
	head, err := json.Marshal(map[string]string{"job": job})
	if err != nil {
		return nil, nil, err
	}
	head = append(head, '\n')
	path := filepath.Join(dst, JournalName)
	if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	text, err := io.ReadAll(io.LimitReader(f, journalLimit))
	switch {
	case err != nil:
		return nil, nil, err
	case len(text) > 0 && !resume:
		return nil, nil, fmt.Errorf("%s: %w", path, ErrExists)
	case bytes.HasPrefix(text, head):
		steps = text[len(head) : bytes.LastIndexByte(text, '\n')+1]
	case bytes.IndexByte(text, '\n') >= 0:
		return nil, nil, fmt.Errorf("%s: %w: recipe, texts or options differ", path, ErrJournal)
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt(append(head[:len(head):len(head)], steps...), 0)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekEnd)
	}
	return f, steps, err
}

// searching is what the candidates of a search share.
type searching struct {
	path    string
	o       SearchOptions
	scratch string
	windows []corpus.Windows
	cut     bool
}

// score merges and measures a candidate. What is wrong with a candidate's numbers alone makes it a bad one; everything else
// ends the search.
func (s *searching) score(ctx context.Context, text []byte) (float64, error) {
	r, err := Parse(s.path, text)
	if err != nil {
		return 0, err
	}
	if err := os.RemoveAll(s.scratch); err != nil {
		return 0, err
	}
	defer os.RemoveAll(s.scratch)
	dir := filepath.Join(s.scratch, "merged")
	if err := os.MkdirAll(s.scratch, 0o777); err != nil {
		return 0, err
	}
	o := s.o.Merge
	o.Overwrite, o.Resume, o.Progress = false, false, nil
	if _, err := Models(ctx, r, dir, o); err != nil {
		return 0, candidates(err)
	}
	model, err := lm.Load(ctx, dir, s.o.Device, lm.Options{AllowExtra: true})
	if err != nil {
		return 0, err
	}
	defer model.Close()
	return s.measure(ctx, model)
}

// candidates marks errors that come from a candidate's numbers.
func candidates(err error) error {
	for _, own := range []error{ErrMethod, ErrOverflow, lm.ErrNonFinite} {
		if errors.Is(err, own) {
			return fmt.Errorf("%w: %w", tune.ErrCandidate, err)
		}
	}
	return err
}

// measure gives a model's loss over all texts.
func (s *searching) measure(ctx context.Context, model *lm.Model) (float64, error) {
	if !s.cut {
		for i, t := range s.o.Texts {
			w, err := t.Cut(model)
			if err != nil {
				return 0, err
			}
			if len(w.IDs) == 0 {
				return 0, fmt.Errorf("text %s gives no window: %w", t.Name, ErrOption)
			}
			s.windows[i] = w
		}
		s.cut = true
	}
	var sum, weight float64
	for i, t := range s.o.Texts {
		loss, err := mean(ctx, model, s.windows[i])
		if err != nil {
			return 0, candidates(err)
		}
		sum, weight = sum+t.Weight*loss, weight+t.Weight
	}
	return sum / weight, nil
}

// mean is a model's loss over the tokens of a text, one window at a time.
func mean(ctx context.Context, model *lm.Model, w corpus.Windows) (float64, error) {
	var sum float64
	counted := 0
	for i, ids := range w.IDs {
		o := lm.ForwardOptions{}
		if w.Labels != nil {
			o.Labels = w.Labels[i : i+1]
		}
		r, err := model.Forward(ctx, [][]int32{ids}, o)
		if err != nil {
			return 0, err
		}
		sum, counted = sum+r.Loss*float64(r.Counted), counted+r.Counted
	}
	if counted == 0 {
		return 0, fmt.Errorf("no token to predict: %w", ErrOption)
	}
	return sum / float64(counted), nil
}
