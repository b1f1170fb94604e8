package gp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
)

// distance is a toy fitness: how far a metric's scores on a small matrix are, in rank terms, from those of a
// hidden formula.
func distance(t testing.TB, hidden string) Fitness {
	t.Helper()
	in := synthetic(rng.NewStream(99), 16, 64)
	want := scoresOf(t, mustParse(t, hidden), in)
	return Func(func(_ context.Context, e *Expr) (float64, error) {
		p, err := Compile(e)
		if err != nil {
			return 0, err
		}

		dst := kernels.MatOf(kernels.NewHost(kernels.F32, 16*64), 16, 64)
		if err := p.Eval(dst, in, Exec{Threads: 1}); err != nil {
			return 0, err
		}

		wrong := 0
		for i := range dst.Rows {
			a, b := dst.RowF32(i), want.RowF32(i)
			for j := 1; j < len(a); j++ {
				for k := range j {
					if (a[j] < a[k]) != (b[j] < b[k]) {
						wrong++
					}
				}
			}
		}

		return float64(wrong), nil
	})
}

func mustParse(t testing.TB, text string) *Expr {
	t.Helper()
	e, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func scoresOf(t testing.TB, e *Expr, in Inputs) kernels.Mat {
	t.Helper()
	return evalAny(t, e, in, nil)
}

func toy() Options {
	return Options{Seed: 3, Population: 24, Generations: 12, Mutation: 0.4, Workers: 2}
}

func bytesOf(t testing.TB, r *Result) []byte {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestSearchFinds: symbolic regression by ranks finds a hidden formula, or one that ranks alike.
func TestSearchFinds(t *testing.T) {
	for _, o := range []Options{
		{},
		{Mode: Steady},
		{Aim: Pareto},
		{Compat: true},
		{Aim: Pareto, Mode: Steady, Parsimony: 0.5},
	} {
		o.Seed = 1
		o.Population = 40
		o.Generations = 15
		o.Mutation = 0.3
		r, err := Search(t.Context(), PaperGrammar(), distance(t, "W*sqrt(X)"), o)
		if err != nil {
			t.Fatal(err)
		}

		if r.Best.Quality > 200 { // of 32256 pairs
			t.Errorf("%+v: best %s is %g pairs off", o, r.Best.Formula, r.Best.Quality)
		}

		c := r.Counts
		if sum := c.Illegal + c.Unusable + c.Repeated + c.SameMasks + c.Evaluated; sum != c.Generated {
			t.Errorf("counts %+v add up to %d", c, sum)
		}

		for i, m := range r.Front {
			if i > 0 && (m.Size <= r.Front[i-1].Size || m.Quality >= r.Front[i-1].Quality) {
				t.Errorf("front is not one: %+v", r.Front)
			}
		}
	}
}

// TestSearchDeterministic: neither workers nor a journal nor answering by batches change a byte of the result.
func TestSearchDeterministic(t *testing.T) {
	fit := distance(t, "W*mms(G) + log(X)")
	for _, mode := range []Mode{Generational, Steady} {
		o := toy()
		o.Mode = mode

		var first []byte
		for workers := range 4 {
			o.Workers = workers + 1
			r, err := Search(t.Context(), FullGrammar(), fit, o)
			if err != nil {
				t.Fatal(err)
			}

			got := bytesOf(t, r)
			if first == nil {
				first = got
			} else if !bytes.Equal(got, first) {
				t.Errorf("%s: %d workers give another result", mode, o.Workers)
			}
		}

		r, err := Search(t.Context(), FullGrammar(), batches{fit}, o)
		if err != nil {
			t.Fatal(err)
		}

		if !bytes.Equal(bytesOf(t, r), first) {
			t.Errorf("%s: batches give another result", mode)
		}
	}
}

type batches struct{ Fitness }

func (b batches) EvaluateBatch(ctx context.Context, list []*Expr) ([]Outcome, error) {
	out := make([]Outcome, len(list))
	for i := len(list) - 1; i >= 0; i-- {
		q, err := b.Evaluate(ctx, list[i])
		if err != nil {
			return nil, err
		}
		out[i] = Outcome{Quality: q}
	}
	return out, nil
}

// TestResume: a search that is cut off anywhere, in the middle of a line too, continues to the result and the
// journal of an uninterrupted one.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	fit := distance(t, "W*sqrt(X)")
	o := toy()
	o.FitnessID = "toy"
	o.Journal = filepath.Join(dir, "whole")
	r, err := Search(t.Context(), PaperGrammar(), fit, o)
	if err != nil {
		t.Fatal(err)
	}

	want := bytesOf(t, r)
	journal, err := os.ReadFile(o.Journal)
	if err != nil {
		t.Fatal(err)
	}

	if lines := bytes.Count(journal, []byte("\n")); lines != r.Counts.Evaluated+1 {
		t.Errorf("%d lines for %d evaluations", lines, r.Counts.Evaluated)
	}

	o.Journal, o.Resume = filepath.Join(dir, "cut"), true
	for _, cut := range []int{0, 1, 50, len(journal) / 3, len(journal) / 2, len(journal) - 1, len(journal)} {
		if err := os.WriteFile(o.Journal, journal[:cut], 0o644); err != nil {
			t.Fatal(err)
		}

		var asked atomic.Int64
		counting := Func(func(ctx context.Context, e *Expr) (float64, error) {
			asked.Add(1)
			return fit.Evaluate(ctx,
				e)
		})

		r, err := Search(t.Context(), PaperGrammar(), counting, o)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}

		if !bytes.Equal(bytesOf(t, r), want) {
			t.Errorf("cut at %d: another result", cut)
		}

		after, _ := os.ReadFile(o.Journal)
		if !bytes.Equal(after, journal) {
			t.Errorf("cut at %d: another journal", cut)
		}
		if kept := max(0, bytes.Count(journal[:cut], []byte("\n"))-1); int(asked.Load()) != r.Counts.Evaluated-kept {
			t.Errorf("cut at %d: %d evaluations repeated", cut, int(asked.Load())-r.Counts.Evaluated+kept)
		}
	}
}

// TestResumeAfterFailure: an error of the fitness and a cancelled context leave a journal to go on with.
func TestResumeAfterFailure(t *testing.T) {
	fit := distance(t, "W*sqrt(X)")
	o := toy()
	whole, err := Search(t.Context(), PaperGrammar(), fit, o)
	if err != nil {
		t.Fatal(err)
	}

	o.Journal, o.Resume = filepath.Join(t.TempDir(), "j"), true
	broken := errors.New("out of memory")
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int64
	failing := Func(func(ctx context.Context, e *Expr) (float64, error) {
		switch n.Add(1) {
		case 30:
			return 0, broken
		case 90:
			cancel()
		}
		return fit.Evaluate(ctx, e)
	})

	if _, err := Search(ctx, PaperGrammar(), failing, o); !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	if _, err := Search(ctx, PaperGrammar(), failing, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}

	r, err := Search(t.Context(), PaperGrammar(), fit, o)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(bytesOf(t, r), bytesOf(t, whole)) {
		t.Error("another result")
	}
}

// TestJournalRefused: journals of other searches and damaged ones.
func TestJournalRefused(t *testing.T) {
	fit := distance(t, "W*sqrt(X)")
	o := toy()
	o.Generations, o.FitnessID = 2, "a"
	o.Journal = filepath.Join(t.TempDir(), "j")
	if _, err := Search(t.Context(), PaperGrammar(), fit, o); err != nil {
		t.Fatal(err)
	}
	if _, err := Search(t.Context(), PaperGrammar(), fit, o); !errors.Is(err, ErrJournal) {
		t.Errorf("an existing journal without Resume: %v", err)
	}

	o.Resume = true
	journal, _ := os.ReadFile(o.Journal)

	for name, change := range map[string]func(o *Options, g *Grammar){
		"seed":    func(o *Options, _ *Grammar) { o.Seed++ },
		"options": func(o *Options, _ *Grammar) { o.Tournament = 7 },
		"fitness": func(o *Options, _ *Grammar) { o.FitnessID = "b" },
		"grammar": func(_ *Options, g *Grammar) { g.MaxSize = 12 },
	} {
		c, g := o, PaperGrammar()
		change(&c, &g)
		if _, err := Search(t.Context(), g, fit, c); !errors.Is(err, ErrJournal) {
			t.Errorf("another %s: %v", name, err)
		}
	}

	lines := bytes.SplitAfter(journal, []byte("\n"))
	other := `{"gp_journal":2,"seed":"one","more":true}`

	whole := fmt.Appendf(nil, "%s\t%08x\n", other, crc32.ChecksumIEEE([]byte(other)))
	for name, text := range map[string][]byte{
		"a changed byte":  bytes.Replace(journal, []byte(`"quality":`), []byte(`"quality":1`), 1),
		"a missing line":  bytes.Join(append(append([][]byte{}, lines[:3]...), lines[4:]...), nil),
		"another version": whole,
		"no journal":      []byte("hello\n"),
		"a swapped pair":  bytes.Join(append(append([][]byte{}, lines[0], lines[2], lines[1]), lines[3:]...), nil),
	} {
		if err := os.WriteFile(o.Journal, text, 0o644); err != nil {
			t.Fatal(err)
		}

		_, err := Search(t.Context(), PaperGrammar(), fit, o)
		if !errors.Is(err, ErrJournal) ||
			name == "another version" &&
				!strings.Contains(err.Error(), ":1: unusable journal: version 2, this program writes 1") {
			t.Errorf("%s: %v", name, err)
		}

		if after, _ := os.ReadFile(o.Journal); !bytes.Equal(after, text) {
			t.Errorf("%s: a refused journal was changed", name)
		}
	}
}

func TestSearchRefuses(t *testing.T) {
	fit := Func(func(context.Context, *Expr) (float64, error) { return 1, nil })
	for name, c := range map[string]struct {
		g    Grammar
		o    Options
		want error
	}{
		"no W":              {Grammar{Symbols: []Symbol{G, X, Add}}, Options{}, ErrGrammar},
		"no operators":      {Grammar{Symbols: []Symbol{W, G}}, Options{}, ErrGrammar},
		"unary only":        {Grammar{Symbols: []Symbol{W, G, Sqr}}, Options{}, ErrGrammar},
		"only div":          {Grammar{Symbols: []Symbol{W, X, Div}}, Options{Population: 4}, ErrGrammar},
		"unknown symbol":    {Grammar{Symbols: []Symbol{W, G, Add, 200}}, Options{}, ErrGrammar},
		"population":        {PaperGrammar(), Options{Population: 1}, ErrOptions},
		"probability":       {PaperGrammar(), Options{Crossover: 1.5, Mutation: math.NaN()}, ErrOptions},
		"mode":              {PaperGrammar(), Options{Mode: "other", Aim: "none"}, ErrOptions},
		"resume of nothing": {PaperGrammar(), Options{Resume: true}, ErrOptions},
		"a bad seed":        {PaperGrammar(), Options{Seeds: []*Expr{{Sym: Add}}}, ErrOptions},
	} {
		if _, err := Search(t.Context(), c.g, fit, c.o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	o := toy()
	o.Generations = -1
	if r, err := Search(t.Context(), PaperGrammar(), fit, o); err != nil || len(r.History) != 1 {
		t.Errorf("the first generation alone: %v", err)
	}

	o.Population, o.Generations = 4, 1
	none := Func(func(context.Context, *Expr) (float64, error) { return math.NaN(), nil })
	if _, err := Search(t.Context(), PaperGrammar(), none, o); !errors.Is(err, ErrGrammar) {
		t.Errorf("a fitness that refuses everything: %v", err)
	}
}

// TestRejections: candidates that the fitness refuses are counted and never become members.
func TestRejections(t *testing.T) {
	fit := distance(t, "W*sqrt(X)")
	picky := Func(func(ctx context.Context, e *Expr) (float64, error) {
		switch {
		case e.Uses(Exp):
			return 0, ErrRejected
		case e.Uses(Tanh):
			return math.Inf(1), nil
		}
		return fit.Evaluate(ctx, e)
	})

	r, err := Search(t.Context(), PaperGrammar(), picky, toy())
	if err != nil {
		t.Fatal(err)
	}

	if r.Counts.Rejected == 0 {
		t.Error("none counted")
	}

	for _, m := range append(r.Population, r.Front...) {
		if m.Tree.Uses(Exp) || m.Tree.Uses(Tanh) {
			t.Errorf("%s is a member", m.Formula)
		}
	}
}

func TestStops(t *testing.T) {
	o := toy()
	o.Patience = 1
	r, err := Search(t.Context(), PaperGrammar(), Func(func(context.Context, *Expr) (float64, error) { return 1, nil }),
		o)
	if err != nil || r.Stopped != "patience" || len(r.History) > 20 {
		t.Errorf("%v, stopped by %q", err, r.Stopped)
	}

	o.Patience, o.MaxEvals = 0, 30
	if r, err = Search(t.Context(), PaperGrammar(), distance(t, "W*G"), o); err != nil || r.Stopped != "evaluations" {
		t.Errorf("%v, stopped by %q", err, r.Stopped)
	}
}
