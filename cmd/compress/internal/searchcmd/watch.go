package searchcmd

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/prune/fitness"
)

// climb is a candidate's way up the ladder.
type climb struct {
	formula string
	size    int
	quality float64
	fitness.Climb
}

// watch follows a search: what the candidates' ways up were, and how it goes.
type watch struct {
	s        *search
	start    time.Time // of the first generation that this run has measured
	skipped  int       // generations before that one, which the journal had
	climbs   []climb
	from     int // of the generation under way
	history  []Generation
	replayed int // candidates that were in the journal
	fresh    int
	err      error
}

// Generation is what is reported of one generation.
type Generation struct {
	gp.Generation
	Agreement []Agreement `json:"agreement"` // of the rungs, over the candidates of this generation
	Trust     []Trust     `json:"trust"`     // what decides how many of the next generation go on
}

// Trust is how well a rung is taken to order all candidates, from those of the search so far that climbed on.
type Trust struct {
	Rung     fitness.Rung `json:"rung"`
	Spearman *float64     `json:"spearman"` // with the rung above; null as long as too few have reached that
}

// Agreement is the rank correlation of two neighbouring rungs, over all candidates that reached both. These are
// the better part of their generations, so that it is lower than it would be over all candidates.
type Agreement struct {
	Lower    fitness.Rung `json:"lower"`
	Upper    fitness.Rung `json:"upper"`
	N        int          `json:"n"`
	Spearman *float64     `json:"spearman"` // null for fewer than two candidates, or equal ones
	Kendall  *float64     `json:"kendall"`
}

func newWatch(s *search) *watch { return &watch{s: s} }

// evaluated notes a candidate, replayed ones included.
func (w *watch) evaluated(e *gp.Expr, o gp.Outcome, _ gp.Counts) {
	c := climb{formula: e.String(), size: e.Size(), quality: o.Quality}
	if o.Rejected != "" {
		c.quality = math.NaN()
	}
	if len(o.Detail) > 0 && w.err == nil {
		w.err = json.Unmarshal(o.Detail, &c.Climb)
	}

	w.climbs = append(w.climbs, c)

	if w.s.team.Done == w.before() {
		w.replayed++
	} else {
		w.fresh++
	}
}

// before is how many measurements there were when the search began.
func (w *watch) before() int { return w.s.references }

// agreement compares neighbouring rungs.
func agreement(list []climb) []Agreement {
	rungs := []struct {
		name fitness.Rung
		of   func(c *climb) *float64
	}{
		{fitness.Layers, func(c *climb) *float64 { return c.Layers }},
		{fitness.Few, func(c *climb) *float64 { return c.Few }},
		{fitness.Full, func(c *climb) *float64 { return c.Full }},
	}

	var out []Agreement
	for i, up := range rungs[1:] {
		low := rungs[i]
		var a, b []float64
		for k := range list {
			if x, y := low.of(&list[k]), up.of(&list[k]); x != nil && y != nil {
				a, b = append(a, *x), append(b, *y)
			}
		}

		out = append(out,
			Agreement{low.name, up.name, len(a), number(stats.Spearman(a, b)), number(stats.Kendall(a, b))})
	}

	return out
}

// number is a figure of a report, nil where there is none.
func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// String is the agreement in a line of progress.
func (a Agreement) String() string {
	if a.Spearman == nil || a.Kendall == nil {
		return fmt.Sprintf("%s and %s too few candidates", a.Lower, a.Upper)
	}
	return fmt.Sprintf("%s and %s %.2f (%d candidates)", a.Lower, a.Upper, *a.Spearman, a.N)
}

// left is about how long the generations behind one take, by the pace of those that this run has measured; nothing
// where it has measured none, or none is left.
func (w *watch) left(number, of int, now time.Time) string {
	if w.fresh == 0 {
		w.start, w.skipped = now, number+1
		return ""
	}
	if number >= of {
		return ""
	}

	each := now.Sub(w.start) / time.Duration(number+1-w.skipped)
	return fmt.Sprintf("; about %v left", (each * time.Duration(of-number)).Round(time.Second))
}

// steer tells the ladder how candidates have climbed so far. It does so at the end of a generation, since of a batch
// in which a search was interrupted the journal has a part only.
func (w *watch) steer() []Trust {
	climbs := make([]fitness.Climb, len(w.climbs))
	for i, c := range w.climbs {
		climbs[i] = c.Climb
	}
	w.s.ladder.Steer(climbs)

	var out []Trust
	for _, r := range []fitness.Rung{fitness.Layers, fitness.Few} {
		t := Trust{Rung: r}
		if rho, known := w.s.ladder.Agreement(r); known {
			t.Spearman = &rho
		}
		out = append(out, t)
	}
	return out
}

// generation notes a generation and says how far the search is.
func (w *watch) generation(g gp.Generation) {
	one := Generation{g, agreement(w.climbs[w.from:]), w.steer()}
	w.from = len(w.climbs)
	w.history = append(w.history, one)
	var ranks []string
	for _, a := range one.Agreement {
		ranks = append(ranks, a.String())
	}

	left := w.left(g.Number, w.s.o.Generations, time.Now())
	c := g.Counts
	w.s.team.Note("generation %d of %d: best %.4f %s; %d on the front; %d measured, %d as good as seen before (%d the "+
		"same formula, %d the same masks), %d rejected (%d no metric, %d rank nothing, %d in the models); rank "+
		"correlation of neighbouring measurements: %s%s",
		g.Number, w.s.o.Generations, g.BestQuality, g.Best, g.Front, c.Evaluated, c.Repeated+c.SameMasks, c.Repeated,
		c.SameMasks,
		c.Illegal+c.Unusable+c.Rejected, c.Illegal, c.Unusable, c.Rejected, strings.Join(ranks, ", "), left)
}
