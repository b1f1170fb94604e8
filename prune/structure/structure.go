package structure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
)

// ErrOptions is the error for options that make no sense, by themselves or for a model.
var ErrOptions = failure.Misuse("bad options for what is cut out", "")

// Share says how much of something stays: a number, or all but a share that goes. The zero value keeps all.
type Share struct {
	Keep int     `json:"keep,omitempty"`
	Drop float64 `json:"drop,omitempty"` // between 0 and 1
}

// ParseShare reads "24", which stay, or "25%", which go.
func ParseShare(text string) (Share, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		x, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(x > 0 && x < 100) {
			return Share{}, fmt.Errorf("%w: %q: the share that goes is more than 0%% and less than 100%%",
				ErrOptions, text)
		}
		return Share{Drop: x / 100}, nil
	}

	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return Share{}, fmt.Errorf("%w: %q: want how many stay, such as 24, or the share that goes, such as 25%%",
			ErrOptions, text)
	}

	return Share{Keep: n}, nil
}

// Zero reports whether all stay.
func (s Share) Zero() bool { return s == Share{} }

// Of is how many of n stay: a share that goes is rounded to the nearest whole number of them.
func (s Share) Of(n int) int {
	switch {
	case s.Keep > 0:
		return s.Keep
	case s.Drop > 0:
		return n - int(math.Round(s.Drop*float64(n)))
	}
	return n
}

// Options of [Choose].
type Options struct {
	Layers Share  `json:"layers,omitzero"`
	By     string `json:"by,omitempty"` // how layers are chosen: one of [Ways]; "" is [Greedy]

	Generations int    `json:"generations,omitempty"` // of [Search]; 0: 20
	Offspring   int    `json:"offspring,omitempty"`   // of a generation; 0: 16
	Seed        uint64 `json:"seed,omitempty"`        // of the search

	// Known gives a figure that an interrupted run has measured, Note is told of each as it comes; nil: nobody is.
	Known func(key string) (float64, bool)  `json:"-"`
	Note  func(key string, v float64) error `json:"-"`
	// Progress gets how much of the work is done, in tokens that pass a layer; nil: nobody does.
	Progress func(done, of int64) `json:"-"`
}

// Plan is what [Choose] has come to.
type Plan struct {
	Cut     *arch.Cut `json:"-"`
	Options Options   `json:"options"` // with the defaults filled in
	Depth   *Depth    `json:"depth,omitempty"`
	Notes   []string  `json:"-"` // what is to be said of the smaller model's configuration
}

// Depth is which layers stay, and why.
type Depth struct {
	Layers  int    `json:"layers"` // of the model
	Kept    []int  `json:"kept"`
	Dropped []int  `json:"dropped"` // greedy: in the order in which they went
	By      string `json:"by"`

	// Scores are the layers' own where there are such; with angular, those of as many layers in a row from each as go.
	Scores []float64 `json:"scores,omitempty"`
	// Loss is that of the model without what went, on the calibration text in nats a token; of greedy and search.
	Loss []float64 `json:"loss,omitempty"`
	// KL is the divergence from the whole model, before the search and behind it.
	KL []float64 `json:"kl,omitempty"`
}

// Validate finds faults of the options by themselves.
func (o *Options) Validate() error {
	var faults []error
	if o.Layers.Zero() {
		faults = append(faults, fmt.Errorf("%w: nothing is to go", ErrOptions))
	}
	if o.By != "" && !slices.Contains(Ways(), o.By) {
		faults = append(faults, fmt.Errorf("%w: %.60q chooses no layers; known: %s", ErrOptions, o.By,
			strings.Join(Ways(), ", ")))
	}
	if (o.Generations != 0 || o.Offspring != 0) && o.By != Search {
		faults = append(faults, fmt.Errorf("%w: generations and offspring belong to %s", ErrOptions, Search))
	}
	if o.Generations < 0 || o.Offspring < 0 {
		faults = append(faults, fmt.Errorf("%w: generations and offspring are not negative", ErrOptions))
	}
	return errors.Join(faults...)
}

// fill puts the defaults in.
func (o Options) fill() Options {
	if o.By == "" {
		o.By = Greedy
	}
	if o.By == Search && o.Generations == 0 {
		o.Generations = 20
	}
	if o.By == Search && o.Offspring == 0 {
		o.Offspring = 16
	}
	if o.Known == nil {
		o.Known = func(string) (float64, bool) { return 0, false }
	}
	if o.Note == nil {
		o.Note = func(string, float64) error { return nil }
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	return o
}

// Check returns what Choose would refuse before it measures anything. The errors wrap [ErrOptions] or [lm.ErrCut].
func Check(m *lm.Model, calib corpus.Windows, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}

	n := m.Blocks()
	keep := o.Layers.Of(n)
	switch {
	case keep > n:
		return fmt.Errorf("%w: %d layers are to stay, the model has %d", ErrOptions, keep, n)
	case keep == n:
		return fmt.Errorf("%w: all %d layers stay", ErrOptions, n)
	case keep < 1:
		return fmt.Errorf("%w: none of %d layers stays", ErrOptions, n)
	case len(calib.IDs) == 0:
		return fmt.Errorf("%w: no calibration text, by which layers are told apart", ErrOptions)
	}

	// What the architecture has no form for, whichever layers stay.
	_, _, err := m.Smaller(&arch.Cut{Layers: upTo(keep)})
	return err
}

func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// Choose decides by a calibration text what stays of a model, which remains as it is. Errors wrap [ErrOptions],
// [lm.ErrCut], or are the model's and the context's.
func Choose(ctx context.Context, m *lm.Model, calib corpus.Windows, o Options) (*Plan, error) {
	if err := Check(m, calib, o); err != nil {
		return nil, err
	}

	p := &Plan{Options: o.fill()}
	d := &depth{m: m, calib: calib, o: p.Options, keep: o.Layers.Of(m.Blocks())}
	var err error
	if p.Depth, err = d.choose(ctx); err != nil {
		return nil, err
	}

	p.Cut = &arch.Cut{Layers: p.Depth.Kept}
	_, p.Notes, err = m.Smaller(p.Cut)
	return p, err
}
