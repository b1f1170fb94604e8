// Package searchcmd is the verbs search and worker: a search for pruning metrics over models, its measurements
// done by workers that take them from a queue.
package searchcmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
	"github.com/modelcompress/compress/prune/structure"
)

// Options are the flags of search.
type Options struct {
	Out                string
	Overwrite, Resume  bool
	Calib, Heldout     []string // one file for all models, or one for each
	Select, Test       []string // the same; without them the windows of Heldout are divided
	Samples, SeqLen    int
	Windows, Few       int // of the search data, and of it on the rung few
	Choose, Report     int // windows for selection and test
	Sparsity, Pattern  []string
	Blocks             int
	Keep               float64
	Structure          string // what formulas score: "" weights, or one of structure.Kinds
	Grammar            string
	OnlyW, Compat      bool
	Seeds              bool
	SeedFormulas       string // file of formulas that the first generation has beside the known ones
	Population         int
	Generations        int
	Mode, Aim          string
	Parsimony          float64
	Patience, MaxEvals int

	workers.Where
}

// The names of grammars.
const (
	Paper = "paper"
	Whole = "full"
)

// ErrFlags: flags that contradict each other.
var ErrFlags = cli.Usagef("unusable flags")

func (o *Options) validate(models int) error {
	if err := o.Where.Validate(); err != nil {
		return err
	}

	for _, c := range []struct {
		bad  bool
		text string
	}{
		{(len(o.Select) > 0) != (len(o.Test) > 0), "--select and --test go together: three files, or one " +
			"that is divided"},
		{
			o.Windows < 1 || o.Choose < 2 || o.Report < 2 || o.Samples < 1,
			"numbers of windows: want at least 1 to search and to calibrate, 2 to select and to test",
		},
		{o.Few > o.Windows || o.Few < 1, fmt.Sprintf("--few %d: want 1 to --windows (%d)", o.Few, o.Windows)},
		{o.SeqLen < 0 || o.SeqLen == 1, fmt.Sprintf("--seqlen %d: want 2 tokens or more", o.SeqLen)},
		{o.Blocks < 1, fmt.Sprintf("--blocks %d: want 1 or more", o.Blocks)},
		{o.Population < 2, fmt.Sprintf("--population %d: want 2 or more", o.Population)},
		{o.Generations < 0, fmt.Sprintf("--generations %d: want 0 (the first alone) or more", o.Generations)},
		{!(o.Keep > 0 && o.Keep <= 1), fmt.Sprintf("--keep %g: want more than 0, up to 1", o.Keep)},
		{o.Compat && o.Grammar != Paper, "--paper-compat goes with --grammar paper"},
		{
			o.Compat && o.SeedFormulas != "",
			"--paper-compat begins without known metrics, and --seed-formulas with some",
		},
		{o.Compat && o.Structure != "", "--paper-compat is of formulas for weights, without --structure"},
		{
			o.Structure != "" && !slices.Contains(structure.Kinds(), o.kind()),
			fmt.Sprintf("--structure %.60q: want one of %v", o.Structure, structure.Kinds()),
		},
	} {
		if c.bad {
			return fmt.Errorf("%w: %s", ErrFlags, c.text)
		}
	}

	for _, f := range []struct {
		name string
		list []string
	}{{"calib", o.Calib}, {"heldout", o.Heldout}, {"select", o.Select}, {"test", o.Test}} {
		if n := len(f.list); n > 1 && n != models {
			return fmt.Errorf("%w: --%s is there %d times for %d models; give it once, or once for each", ErrFlags,
				f.name, n, models)
		}
	}

	return nil
}

// forModel is the file of a flag for model i.
func forModel(list []string, i int) string {
	if len(list) == 1 {
		return list[0]
	}
	return list[i]
}

// kind is what formulas score; "": weights.
func (o *Options) kind() structure.Kind { return structure.Kind(o.Structure) }

// settings are the sparsities and patterns.
func (o *Options) settings() ([]fitness.Setting, error) {
	var list []fitness.Setting
	sparsity := o.Sparsity
	switch {
	case len(sparsity) > 0:
	case o.Structure != "":
		sparsity = []string{"0.25"}
	default:
		sparsity = []string{"0.5"}
	}

	for _, text := range o.Pattern {
		p, err := prune.ParsePattern(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}

		if p.Structured() && o.Structure != "" {
			return nil, fmt.Errorf("%w: --pattern %s is of weights, and with --structure whole %s go", ErrFlags, p,
				o.Structure)
		}
		if p.Structured() {
			list = append(list, fitness.Setting{Pattern: p})
			continue
		}

		for _, text := range sparsity {
			s, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil || !(s > 0 && s < 1) {
				return nil, fmt.Errorf("%w: --sparsity %q; want more than 0 and less than 1", ErrFlags, text)
			}
			list = append(list, fitness.Setting{Sparsity: s})
		}
	}

	seen := map[fitness.Setting]bool{}
	for _, s := range list {
		if seen[s] {
			return nil, fmt.Errorf("%w: %s is there twice", ErrFlags, s)
		}
		seen[s] = true
	}

	return list, nil
}

// grammar is the search space: a name, or symbols separated by commas.
func (o *Options) grammar() (gp.Grammar, error) {
	g := gp.PaperGrammar()
	switch {
	case o.Grammar == Paper && o.Structure != "":
		g = gp.PartsGrammar(o.kind().Terminals()...)
	case o.Grammar == Paper:
	case o.Grammar == Whole && o.Structure != "":
		g.Symbols = slices.Concat(gp.Symbols(), gp.Reductions(), o.kind().Terminals())
	case o.Grammar == Whole:
		g = gp.FullGrammar()
	default:
		g.Symbols = nil
		for name := range strings.SplitSeq(o.Grammar, ",") {
			s, err := gp.SymbolByName(strings.TrimSpace(name))
			if err != nil {
				return g, fmt.Errorf("%w: --grammar: want %s, %s or symbols separated by commas: %w", ErrFlags, Paper,
					Whole, err)
			}
			g.Symbols = append(g.Symbols, s)
		}
	}

	g.AllowOnlyW = o.OnlyW
	if err := g.Validate(); err != nil {
		return g, cli.Usage(err)
	}

	return g, o.suits(g)
}

// suits refuses symbols that the formulas of this search cannot have.
func (o *Options) suits(g gp.Grammar) error {
	for _, s := range g.Symbols {
		own := o.Structure != "" && (slices.Contains(gp.Reductions(), s) || slices.Contains(o.kind().Terminals(), s))
		if !own && !slices.Contains(gp.Symbols(), s) {
			return fmt.Errorf("%w: --grammar: %s is of formulas for whole parts, and none of --structure %q", ErrFlags,
				s, o.Structure)
		}
	}
	return nil
}

// search are the options of the search itself.
func (o *Options) search(g gp.Grammar, seed uint64) (gp.Options, error) {
	s := gp.Options{
		Seed: seed, Population: o.Population, Generations: o.Generations, Mode: gp.Mode(o.Mode), Aim: gp.Aim(o.Aim),
		Parsimony: o.Parsimony,
		Patience:  o.Patience, MaxEvals: o.MaxEvals, Compat: o.Compat,
	}

	if o.Generations == 0 {
		s.Generations = -1 // 0 would be the default
	}
	if o.Seeds && !o.Compat {
		s.Seeds = gp.Seeds(g)
	}
	if err := o.addFormulas(&s, g); err != nil {
		return s, err
	}

	return s, cli.Usage(s.Validate())
}

// maxFormulas bounds the file of --seed-formulas, in bytes.
const maxFormulas = 1 << 20

// addFormulas takes in the formulas of a file.
func (o *Options) addFormulas(s *gp.Options, g gp.Grammar) error {
	if o.SeedFormulas == "" {
		return nil
	}
	text, err := safefile.ReadFile(o.SeedFormulas, maxFormulas)
	if err != nil {
		return fmt.Errorf("--seed-formulas: %w", err)
	}
	list, err := g.ParseLines(string(text))
	switch {
	case err != nil:
		return cli.Usagef("--seed-formulas %s: %w", o.SeedFormulas, err)
	case len(list) == 0:
		return cli.Usagef("--seed-formulas %s: no formula in it", o.SeedFormulas)
	}

	for _, e := range list {
		if !slices.ContainsFunc(s.Seeds, e.Equal) {
			s.Seeds = append(s.Seeds, e)
		}
	}
	return nil
}

// ladder says how many climb; the published search measured everybody in full.
func (o *Options) ladder() fitness.LadderOptions {
	if o.Compat {
		return fitness.LadderOptions{Keep: 1}
	}
	l := fitness.LadderOptions{Keep: o.Keep}
	if o.Structure != "" {
		l.Reference = prune.FormulaPrefix + o.kind().Known()[0].Formula
	}
	return l
}
