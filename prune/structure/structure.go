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
	"github.com/modelcompress/compress/prune"
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
	By     string `json:"by,omitempty"` // how layers are chosen: one of [Ways], or a formula; "" is [Greedy]
	// Layers that go, or those that stay, counted from 0, where they are not chosen; see [ParseLayers].
	DropLayers []int `json:"drop_layers,omitempty"`
	KeepLayers []int `json:"keep_layers,omitempty"`

	// What stays in every layer: neurons of its MLPs, heads of queries, heads of keys and values with all queries that
	// share them, and channels of the stream.
	FFN     Share `json:"ffn,omitzero"`
	Heads   Share `json:"heads,omitzero"`
	KVHeads Share `json:"kv_heads,omitzero"`
	Hidden  Share `json:"hidden,omitzero"`
	// Experts of mixtures that stay in every layer; ExpertScore is what they are chosen by, one of [ExpertScores]; ""
	// is [REAP].
	Experts     Share  `json:"experts,omitzero"`
	ExpertScore string `json:"expert_score,omitempty"`
	// Score is what neurons, heads and channels are chosen by: one of [WidthScores], a metric of prune, or, but for
	// channels, a formula of whole parts; "" is the first.
	Score string `json:"score,omitempty"`
	// NoRestore leaves the matrices behind neurons and heads as they are; otherwise what stays of them makes up for
	// what went, by [Restore].
	NoRestore bool `json:"no_restore,omitempty"`

	Generations int    `json:"generations,omitempty"` // of [Search]; 0: 20
	Offspring   int    `json:"offspring,omitempty"`   // of a generation; 0: 16
	Seed        uint64 `json:"seed,omitempty"`        // of the search

	// Known gives a figure that an interrupted run has measured, Note is told of each as it comes; nil: nobody is.
	Known func(key string) (float64, bool)  `json:"-"`
	Note  func(key string, v float64) error `json:"-"`
	// Progress gets how much of a stage is done; nil: nobody does.
	Progress func(stage string, done, of int64) `json:"-"`
}

// Plan is what [Choose] has come to.
type Plan struct {
	// Cut is what stays; of a plan from [Recall], only how much, and which layers.
	Cut     *arch.Cut `json:"-"`
	Options Options   `json:"options"` // with the defaults filled in
	Depth   *Depth    `json:"depth,omitempty"`
	Width   *Width    `json:"width,omitempty"`
	Experts *Experts  `json:"experts,omitempty"`
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

// narrows reports whether layers become narrower.
func (o *Options) narrows() bool {
	return !o.FFN.Zero() || !o.Heads.Zero() || !o.KVHeads.Zero() || !o.Hidden.Zero()
}

// Validate finds faults of the options by themselves.
func (o *Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}

	if !o.shortens() && o.Experts.Zero() && !o.narrows() {
		fault("nothing is to go")
	}
	faults = append(faults, o.listFaults()...)
	if o.By != "" && !slices.Contains(Ways(), o.By) {
		switch p, err := partsFormula(o.By); {
		case err != nil:
			fault("%v", err)
		case p == nil:
			fault("%.60q chooses no layers; known: %s, or a formula of whole layers as expr: or tree:", o.By,
				strings.Join(Ways(), ", "))
		default:
			faults = append(faults, suits(Blocks, p))
		}
	}
	if o.By != "" && o.Layers.Zero() && !o.listed() {
		fault("%s chooses layers, of which all stay", o.By)
	}
	if (o.Generations != 0 || o.Offspring != 0) && o.By != Search {
		fault("generations and offspring belong to %s", Search)
	}
	if o.Generations < 0 || o.Offspring < 0 {
		fault("generations and offspring are not negative")
	}

	if (o.Score != "" || o.NoRestore) && !o.narrows() {
		fault("scores and restoration are of neurons, heads and channels, of which all stay")
	}
	if o.Score == OBS && !o.Hidden.Zero() {
		fault("%s removes inputs of matrices, neurons and heads; channels go by another score, in another run", OBS)
	}
	if o.Score != "" && !slices.Contains(WidthScores(), o.Score) {
		faults = append(faults, o.scoreFault())
	}

	if o.ExpertScore != "" && o.Experts.Zero() {
		fault("%s chooses experts, of which all stay", o.ExpertScore)
	}
	if o.ExpertScore != "" && !slices.Contains(ExpertScores(), o.ExpertScore) {
		fault("%.60q chooses no experts; known: %s", o.ExpertScore, strings.Join(ExpertScores(), ", "))
	}
	if o.ExpertScore == Clusters && o.narrows() {
		fault("experts that are merged are narrowed by another run, on what this one gives")
	}

	return errors.Join(faults...)
}

// scoreFault says what is wrong with a score of neurons, heads and channels that is no name of this package.
func (o *Options) scoreFault() error {
	p, err := partsFormula(o.Score)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrOptions, err)
	case p == nil:
		if _, err := prune.MetricByName(o.Score); err != nil {
			return fmt.Errorf("%w: score: besides %s, %w", ErrOptions, strings.Join(WidthScores(), ", "), err)
		}
		return nil
	case !o.Hidden.Zero():
		return fmt.Errorf("%w: score %s is of neurons and heads; channels go by %s, %s or a metric of weights",
			ErrOptions, p.Expr, WandaSP, Minitron)
	}
	return suits(Neurons, p)
}

// spelled writes out the formula of a file, so that what is recorded says it.
func spelled(score string) string {
	if e, ok, err := prune.Expression(score); ok && err == nil {
		return prune.FormulaPrefix + e.String()
	}
	return score
}

// fill puts the defaults in.
func (o Options) fill() Options {
	if o.By == "" && !o.Layers.Zero() {
		o.By = Greedy
	}
	if o.Score == "" && o.narrows() {
		o.Score = WandaSP
	}
	o.By, o.Score = spelled(o.By), spelled(o.Score)
	if o.ExpertScore == "" && !o.Experts.Zero() {
		o.ExpertScore = REAP
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
		o.Progress = func(string, int64, int64) {}
	}
	return o
}

// Check returns what Choose would refuse before it measures anything. The errors wrap [ErrOptions] or [lm.ErrCut].
func Check(m *lm.Model, calib corpus.Windows, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}

	n := m.Blocks()
	if err := o.checkLayers(n); err != nil {
		return err
	}
	if len(calib.IDs) == 0 && o.NeedsCalibration() {
		return fmt.Errorf("%w: no calibration text, by which it is decided what goes", ErrOptions)
	}

	layers := o.given(n)
	if layers == nil && !o.Layers.Zero() {
		layers = upTo(o.keeps(n))
	}
	_, _, err := o.alike(m, calib, layers)

	return err
}

// alike is a cut as large as that of the options, as if everything were alike but the layers, of which these stay. What
// the architecture has no form for it refuses, whichever parts stay.
func (o *Options) alike(m *lm.Model, calib corpus.Windows, layers []int) (*arch.Cut, []string, error) {
	w, err := newWidth(m, calib, o.fill())
	if err != nil {
		return nil, nil, err
	}

	k := &arch.Cut{Layers: layers}
	if o.narrows() {
		w.take(k)
	}
	if err := o.takeExperts(m.Config(), k); err != nil {
		return nil, nil, err
	}
	_, notes, err := m.Smaller(k)

	return k, notes, err
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

	p := &Plan{Options: o.fill(), Cut: &arch.Cut{}}
	if o.shortens() {
		d := &depth{m: m, calib: calib, o: p.Options, keep: o.keeps(m.Blocks())}
		d.progress = p.Options.within(ChoosingLayers)
		var err error
		if p.Depth, err = d.choose(ctx); err != nil {
			return nil, err
		}
		p.Cut.Layers = p.Depth.Kept
	}
	if !o.Experts.Zero() {
		n, err := o.expertCount(m.Config())
		if err != nil {
			return nil, err
		}
		x := &experts{m: m, calib: calib, by: p.Options.ExpertScore, keep: n}
		x.progress = p.Options.within(ChoosingExperts)
		if p.Experts, err = x.choose(ctx, p.Cut); err != nil {
			return nil, err
		}
	}
	if o.narrows() {
		w, err := newWidth(m, calib, p.Options)
		if err != nil {
			return nil, err
		}
		w.progress = p.Options.within(Scoring)
		if p.Width, err = w.choose(ctx, p.Cut); err != nil {
			return nil, err
		}
	}

	var err error
	_, p.Notes, err = m.Smaller(p.Cut)

	return p, err
}

// The stages of a run, as [Options].Progress names them.
const (
	ChoosingLayers  = "choosing layers"
	ChoosingExperts = "choosing experts"
	Scoring         = "scoring"
	Merging         = "merging experts"
	Restoring       = "restoring"
)

// within is the progress of a stage.
func (o *Options) within(stage string) func(done, of int64) {
	return func(done, of int64) { o.Progress(stage, done, of) }
}
