package searchcmd

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
	"github.com/modelcompress/compress/prune/structure"
)

// Of the last generation, so many go to the selection, besides the front.
const fromPopulation = 8

// rivals are the metrics that the winner is tested against, as published, of weights each with its own group. Of whole
// parts the first is the one that qualities are relative to, and those that the grammar has no statistics for are not
// measured.
func rivals(k structure.Kind, g gp.Grammar) (list []string) {
	if k == "" {
		return []string{"wanda", "ria", "pruner-zero", "magnitude"}
	}

	g.AllowOnlyW = true
	for i, x := range k.Known() {
		e, err := gp.Parse(x.Formula)
		if err == nil && i > 0 {
			_, err = g.Check(e, nil)
		}
		if err == nil {
			list = append(list, prune.FormulaPrefix+x.Formula)
		}
	}

	return list
}

// reference is the metric that qualities are relative to.
func (s *search) reference() string { return cmp.Or(s.o.ladder().Reference, fitness.Wanda) }

// The verdicts.
const (
	better  = "better"
	worse   = "worse"
	unclear = "not told apart"
)

// Finalist is a metric that was measured on the selection data.
type Finalist struct {
	Formula    string   `json:"formula"`
	Tree       *gp.Expr `json:"tree"`
	Size       int      `json:"size"`
	Origin     string   `json:"origin"`
	Generation int      `json:"generation"`
	Search     float64  `json:"search_quality"`    // on the rung full
	Selection  float64  `json:"selection_quality"` // the same on the selection data
	// none of the others is as small and as good on the selection data; not worse than Wanda's metric
	Front bool `json:"front"`
}

// errFinal: no candidate is left in the end.
var errFinal = errors.New("no candidate is usable on all the search data")

// choose measures the finalists on the selection data and takes the best.
func (s *search) choose(rep *Report, r *gp.Result) error {
	list := append([]gp.Individual{r.Best}, r.Front...)
	list = append(list, r.Population[:min(fromPopulation, len(r.Population))]...)
	var names []string
	for _, c := range list {
		if name := prune.FormulaPrefix + c.Formula; !slices.Contains(names, name) {
			names = append(names, name)
			rep.Finalists = append(rep.Finalists,
				Finalist{Formula: c.Formula, Tree: c.Tree, Size: c.Size, Origin: c.Origin, Generation: c.Generation})
		}
	}

	for _, rung := range []fitness.Rung{fitness.Full, fitness.Select} {
		got, err := s.ladder.Measure(s.Ctx, rung, names)
		if err != nil {
			return err
		}

		for i, m := range got {
			f := &rep.Finalists[i]
			q := math.Inf(1)
			if m.Rejected == "" {
				if q, err = s.ladder.Quality(s.Ctx, rung, m); err != nil {
					return err
				}
			}

			if rung == fitness.Full {
				f.Search = q
			} else {
				f.Selection = q
			}
		}
	}

	rep.Finalists = slices.DeleteFunc(rep.Finalists,
		func(f Finalist) bool { return math.IsInf(f.Search, 1) || math.IsInf(f.Selection, 1) })
	if len(rep.Finalists) == 0 {
		return errFinal
	}

	slices.SortStableFunc(rep.Finalists, func(a, b Finalist) int {
		return cmp.Or(cmp.Compare(a.Selection, b.Selection), cmp.Compare(a.Size, b.Size),
			cmp.Compare(a.Formula, b.Formula))
	})

	smallest := math.MaxInt
	for i := range rep.Finalists { // best first: the front gets smaller
		if f := &rep.Finalists[i]; f.Size < smallest && (i == 0 || f.Selection <= 1) {
			f.Front, smallest = true, f.Size
		}
	}

	rep.Winner = rep.Finalists[0]
	return s.confirm(fitness.Select, s.reference(), fitness.Dense, prune.FormulaPrefix+rep.Winner.Formula)
}

// errUntrue: what somebody measured is not what is measured here.
var errUntrue = errors.New("a measurement that a worker gave is not true")

// confirm measures metrics here, where others than this process may have measured them, before anything is made of
// them. The same program on the same kind of device gives the same bits; that is what makes a worker fit for this
// search in the first place.
func (s *search) confirm(rung fitness.Rung, names ...string) error {
	if !s.o.Shared() && !s.o.Resume {
		return nil // nobody else was there
	}

	given, err := s.ladder.Measure(s.Ctx, rung, names)
	if err != nil {
		return err
	}

	for i, name := range names {
		own, err := s.judge.Measure(s.Ctx, fitness.Task{Judge: s.judge.ID(), Rung: rung, Metric: name})
		if err != nil {
			return err
		}

		if own.Rejected != given[i].Rejected || !slices.Equal(own.Values, given[i].Values) {
			return fmt.Errorf("%s, rung %s: %w: it said %v%s, and here it is %v%s "+
				"(HINT: a worker lies or computes wrongly; start again without --resume, with workers that you know)",
				name, rung, errUntrue, given[i].Values, given[i].Rejected, own.Values, own.Rejected)
		}
	}

	return nil
}

// Tested is a metric on the test data of a case.
type Tested struct {
	Metric     string  `json:"metric"`
	Loss       float64 `json:"nll"` // mean over windows, nats a token
	SE         float64 `json:"nll_stderr"`
	Perplexity float64 `json:"ppl"`
	PPLSE      float64 `json:"stderr"`
	// Versus is its loss less the winner's, window by window: above 0 where the winner is better. Adjusted is
	// for the rivals of the case. Nil for the winner itself and for the dense model.
	Versus  *stats.Versus `json:"versus_winner,omitempty"`
	Low     float64       `json:"ci95_low,omitempty"` // of the difference
	High    float64       `json:"ci95_high,omitempty"`
	Verdict string        `json:"winner_is,omitempty"` // better, worse or not told apart, at 5 % after adjustment
	Failed  string        `json:"failed,omitempty"`    // why it could not be measured
	// NearTies are weights of the mask that a graphics processor chose, of which the CPU may choose otherwise.
	NearTies int64 `json:"near_ties,omitempty"`
}

// Case is a model with a sparsity or pattern on the test data.
type Case struct {
	Name    string   `json:"case"`
	Windows int      `json:"windows"`
	Metrics []Tested `json:"metrics"`
}

// test measures the front, the rivals and the dense model on the test data, once.
func (s *search) test(rep *Report) error {
	known := rivals(s.o.kind(), s.grammar)
	names := append([]string{fitness.Dense}, known...)
	for _, f := range rep.Finalists {
		if name := prune.FormulaPrefix + f.Formula; f.Front && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}

	got, err := s.ladder.Measure(s.Ctx, fitness.Test, names)
	if err != nil {
		return err
	}

	winner := got[slices.Index(names, prune.FormulaPrefix+rep.Winner.Formula)]
	if winner.Rejected != "" {
		return fmt.Errorf("%s on the test data: %w: %s", rep.Winner.Formula, errFinal, winner.Rejected)
	}
	if err := s.confirm(fitness.Test, fitness.Dense, prune.FormulaPrefix+rep.Winner.Formula); err != nil {
		return err
	}

	for k, name := range s.judge.Cases() {
		c := Case{Name: name, Windows: len(winner.Windows[k])}
		var tests []*stats.Versus
		for i, m := range got {
			t := Tested{Metric: names[i], Failed: m.Rejected}
			if m.Rejected == "" {
				t.measure(m.Windows[k])
				if k < len(m.NearTies) {
					t.NearTies = m.NearTies[k]
				}

				if names[i] != fitness.Dense && names[i] != prune.FormulaPrefix+rep.Winner.Formula {
					t.Versus = stats.NewVersus(m.Windows[k], winner.Windows[k])
					t.Versus.Best = rep.Winner.Formula
					half := t.Versus.HalfWidth()
					t.Low, t.High = t.Versus.Difference-half, t.Versus.Difference+half
					if slices.Contains(known, names[i]) {
						tests = append(tests, t.Versus)
					}
				}
			}

			c.Metrics = append(c.Metrics, t)
		}

		stats.AdjustHolm(tests)
		for i := range c.Metrics {
			c.Metrics[i].judge(known)
		}

		rep.Test = append(rep.Test, c)
	}

	return nil
}

func (t *Tested) measure(windows []float64) {
	n := float64(len(windows))
	for _, v := range windows {
		t.Loss += v / n
	}

	square := 0.0
	for _, v := range windows {
		square += (v - t.Loss) * (v - t.Loss)
	}

	t.SE = math.Sqrt(square / (n - 1) / n)
	t.Perplexity = math.Exp(t.Loss)
	t.PPLSE = t.Perplexity * t.SE
}

// judge puts the test of a rival in words.
func (t *Tested) judge(rivals []string) {
	switch {
	case t.Versus == nil || !slices.Contains(rivals, t.Metric):
	case !(t.Versus.Adjusted < 0.05): // NaN too: nothing was found out
		t.Verdict = unclear
	case t.Versus.Difference > 0:
		t.Verdict = better
	default:
		t.Verdict = worse
	}
}
