package searchcmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
)

// sound are flags of a search that can be.
func sound() Options {
	return Options{
		Windows: 8, Few: 2, Choose: 4, Report: 4, Samples: 2, Blocks: 1, Keep: .5, Population: 4, Generations: 3,
		Grammar: Paper, Pattern: []string{"unstructured"}, Sparsity: []string{"0.6"}, Mode: string(gp.Generational),
		Aim: string(gp.Best), Calib: []string{"c"}, Heldout: []string{"h"},
	}
}

// TestFlagsTogether: each flag that makes no sense by itself or beside others is refused in one line that names it.
func TestFlagsTogether(t *testing.T) {
	for want, change := range map[string]func(o *Options){
		"":                                 func(*Options) {},
		"--select and --test go together":  func(o *Options) { o.Select = []string{"s"} },
		"--test go together: three files":  func(o *Options) { o.Test = []string{"s"} },
		"2 to select and to test":          func(o *Options) { o.Choose = 1 },
		"want at least 1 to search":        func(o *Options) { o.Windows = 0 },
		"1 to search and to calibrate":     func(o *Options) { o.Samples = 0 },
		"--few 9: want 1 to --windows (8)": func(o *Options) { o.Few = 9 },
		"--few 0":                          func(o *Options) { o.Few = 0 },
		"--seqlen 1: want 2":               func(o *Options) { o.SeqLen = 1 },
		"--blocks 0":                       func(o *Options) { o.Blocks = 0 },
		"--population 1":                   func(o *Options) { o.Population = 1 },
		"--generations -1":                 func(o *Options) { o.Generations = -1 },
		"--keep NaN":                       func(o *Options) { o.Keep = math.NaN() },
		"--keep 0:":                        func(o *Options) { o.Keep = 0 },
		"--keep 1.5":                       func(o *Options) { o.Keep = 1.5 },
		"--paper-compat goes with --grammar paper": func(o *Options) { o.Compat, o.Grammar = true, Whole },
		"--calib is there 3 times for 2 models":    func(o *Options) { o.Calib = []string{"a", "b", "c"} },
		"--heldout is there 3 times":               func(o *Options) { o.Heldout = []string{"a", "b", "c"} },
		`--sparsity "1"`:                           func(o *Options) { o.Sparsity = []string{"1"} },
		`--sparsity "x"`:                           func(o *Options) { o.Sparsity = []string{"0.5", "x"} },
		"is there twice":                           func(o *Options) { o.Sparsity = []string{"0.5", " 0.50"} },
		"--grammar: want paper, full or symbols":   func(o *Options) { o.Grammar = "W,plus" },
		"--workers -1":                             func(o *Options) { o.Workers = -1 },
	} {
		o := sound()
		change(&o)
		said := clitest.Run(t, func(j *cli.Job) (any, error) { return nil, Check(j, []string{"m", "n"}, o) })
		if want == "" {
			if said.Code != 0 {
				t.Error(said.Stderr)
			}
			continue
		}
		clitest.Refused(t, said, want)
	}
}

// TestFlagsToLibraries: what the flags say reaches the library, and files go to their models.
func TestFlagsToLibraries(t *testing.T) {
	o := sound()
	o.Pattern, o.Sparsity = []string{"2:4", "unstructured", " 4:8"}, []string{"0.5", "0.6"}
	o.Generations = 0
	o.Parsimony = .1
	o.Patience = 3
	o.MaxEvals = 99
	said := clitest.Run(t, func(j *cli.Job) (any, error) {
		settings, g, opts, err := o.read(j, []string{"m"})
		if err != nil {
			return nil, err
		}

		var names []string
		for _, s := range settings {
			names = append(names, s.String())
		}
		if got := strings.Join(names, " "); got != "2:4 0.5 0.6 4:8" {
			t.Errorf("settings %s", got)
		}

		if g.AllowOnlyW || opts.Seed != 7 || opts.Population != 4 || opts.Generations != -1 || opts.Parsimony != .1 ||
			opts.Patience != 3 || opts.MaxEvals != 99 || opts.Seeds != nil || string(opts.Mode) != o.Mode {
			t.Errorf("%+v", opts)
		}
		return nil, nil
	}, "--seed=7")
	if said.Code != 0 {
		t.Fatal(said.Stderr)
	}

	o.Grammar, o.OnlyW = " W , sqrt,add ", true
	if g, err := o.grammar(); err != nil || len(g.Symbols) != 3 || !g.AllowOnlyW {
		t.Errorf("%d symbols, %v", len(g.Symbols), err)
	}

	if o.Compat = true; o.ladder() != (fitness.LadderOptions{Keep: 1}) {
		t.Errorf("the published search measured everybody: %+v", o.ladder())
	}
	if o.Compat = false; o.ladder() != (fitness.LadderOptions{Keep: .5}) {
		t.Errorf("%+v", o.ladder())
	}
	if forModel([]string{"a"}, 3) != "a" || forModel([]string{"a", "b"}, 1) != "b" {
		t.Error("files of models")
	}
}

// TestSeedFormulas: formulas of a file join the known ones, each once; what is wrong with the file is said, and where.
func TestSeedFormulas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "formulas")
	seeds := func(o Options, text string) (int, error) {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		o.SeedFormulas, o.Population = path, 4
		s, err := o.search(gp.PaperGrammar(), 1)
		return len(s.Seeds), err
	}

	known := len(gp.Seeds(gp.PaperGrammar()))
	o := Options{Seeds: true}
	if n, err := seeds(o, "W*sqrt(X)\nsqrt(W)*log(X)\n"); n != known+1 || err != nil {
		t.Errorf("%d seeds beside %d, %v", n, known, err)
	}
	if n, err := seeds(Options{}, "W*sqrt(X)\n"); n != 1 || err != nil {
		t.Errorf("%d seeds, %v", n, err)
	}
	for text, says := range map[string]string{
		"# none\n": "no formula", "\nW*(": "formulas: line 2, column 4", "W*H": "formulas: line 1",
	} {
		if _, err := seeds(o, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	o.SeedFormulas = path + "x"
	if _, err := o.search(gp.PaperGrammar(), 1); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestFoldersOfSearches: which folder a search takes, which it refuses and why, and what is left of one.
func TestFoldersOfSearches(t *testing.T) {
	write := func(dir string, names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}

	for name, c := range map[string]struct {
		files []string
		o     Options
		want  error
		text  string
		left  []string
	}{
		"empty": {nil, Options{}, nil, "", nil},
		"of somebody": {
			[]string{"a.txt"}, Options{Overwrite: true}, checkpoint.ErrTarget, "a.txt is not from a search", nil,
		},
		"a search": {[]string{journalFile}, Options{}, checkpoint.ErrExists, "--resume continues it", nil},
		"a report alone": {
			[]string{reportFile}, Options{Overwrite: true}, checkpoint.ErrTarget, "it has no journal.jsonl", nil,
		},
		"resumed": {
			[]string{journalFile, bestFile}, Options{Resume: true}, nil, "", []string{stateDir, bestFile, journalFile},
		},
		"overwritten": {[]string{journalFile, bestFile}, Options{Overwrite: true}, nil, "", nil},
		"both: resume has it": {
			[]string{journalFile}, Options{Overwrite: true, Resume: true}, nil, "", []string{stateDir, journalFile},
		},
		"finished": {
			[]string{journalFile, pageFile, reportFile},
			Options{Resume: true},
			nil, "",
			[]string{stateDir, journalFile, pageFile, reportFile},
		},
	} {
		dir := filepath.Join(t.TempDir(), "out")
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		write(dir, c.files...)
		c.o.Out = dir
		p, err := take(&c.o)
		if c.want != nil {
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}

		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := take(&Options{Out: dir, Resume: true}); !errors.Is(err, cli.ErrBusy) {
			t.Errorf("%s: a second search: %v", name, err)
		}
		if err := p.release(); err != nil {
			t.Errorf("%s: %v", name, err)
		}

		var left []string
		entries, _ := os.ReadDir(dir) // it may be gone
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if !slices.Equal(left, c.left) {
			t.Errorf("%s: %q is left, want %q", name, left, c.left)
		}
	}
}

// TestVersionsOfJournals: the journal of another version is refused with its place; one that says nothing is left to
// who opens it.
func TestVersionsOfJournals(t *testing.T) {
	p := &place{dir: t.TempDir()}
	if err := p.writtenBy("1.2"); err != nil {
		t.Errorf("no journal: %v", err)
	}

	for text, ok := range map[string]bool{
		"{\"fitness\":\"1.2 abc\"}\tsum\n": true, "{\"fitness\":\"1.3 abc\"}\tsum\n": false,
		"{\"fitness\":\"abc\"}\n": true,
		"{\"fitn":                 true, "": true, "\n{\"fitness\":\"1.3 abc\"}": true,
	} {
		if err := os.WriteFile(p.path(journalFile), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		err := p.writtenBy("1.2")
		if (err == nil) != ok || err != nil && (!errors.Is(err, gp.ErrJournal) ||
			!strings.Contains(err.Error(), "journal.jsonl:1: ") ||
			!strings.Contains(err.Error(), "compress 1.3 wrote it, this is 1.2")) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestFiguresOnTestData: mean, standard error and perplexity of windows, by hand.
func TestFiguresOnTestData(t *testing.T) {
	var m Tested
	m.measure([]float64{1, 2, 3, 6})
	// the mean is 3, the squares of the differences add up to 14, and 14/3/4 is the variance of the mean
	if se := math.Sqrt(14. / 12); m.Loss != 3 || math.Abs(m.SE-se) > 1e-12 || m.Perplexity != math.Exp(3) ||
		math.Abs(m.PPLSE-se*math.Exp(3)) > 1e-9 {
		t.Errorf("%+v", m)
	}

	for _, c := range []struct {
		metric string
		versus *stats.Versus
		want   string
	}{
		{"wanda", nil, ""},
		{"expr:W", &stats.Versus{Difference: 1}, ""},
		{"wanda", &stats.Versus{Difference: 1, Adjusted: .049}, better},
		{"ria", &stats.Versus{Difference: -1, Adjusted: .049}, worse},
		{"magnitude", &stats.Versus{Difference: 1, Adjusted: .05}, unclear},
	} {
		m := Tested{Metric: c.metric, Versus: c.versus}
		m.judge(rivals("", gp.Grammar{}))
		if m.Verdict != c.want {
			t.Errorf("%s, %+v: %q, want %q", c.metric, c.versus, m.Verdict, c.want)
		}
	}
}

// TestTablesOfTests: each metric has a row with what was found out about it, near ties are counted in the note.
func TestTablesOfTests(t *testing.T) {
	r := &Report{Winner: Finalist{Formula: "W*X"}, Test: []Case{{Name: "nano 0.6", Windows: 8, Metrics: []Tested{
		{Metric: fitness.Dense, Perplexity: 1.5, PPLSE: .25},
		{
			Metric:     "wanda",
			Perplexity: 2,
			PPLSE:      .1,
			Versus:     &stats.Versus{Difference: .125, Adjusted: .03},
			Low:        .1,
			High:       .15,
			Verdict:    better,
			NearTies:   2,
		},
		{Metric: prune.FormulaPrefix + "W*X", Perplexity: 1.75, PPLSE: .1, NearTies: 3},
		{
			Metric:     prune.FormulaPrefix + "W",
			Perplexity: 3,
			PPLSE:      .1,
			Versus:     &stats.Versus{Difference: -.5},
			Low:        -1,
			High:       0,
		},
		{Metric: "ria", Failed: "constant"},
	}}}}

	table := r.tables()[0]
	var rows []string
	for i := range table.Rows {
		var cells []string
		for c := range table.Columns {
			cells = append(cells, table.Cell(i, c))
		}
		rows = append(rows, strings.Join(cells, "|"))
	}

	want := []string{
		"dense|1.5000|0.25||||",
		"wanda|2.0000|0.1|+0.1250|+0.1000 to +0.1500|0.03|better",
		"W*X (the winner)|1.7500|0.1||||",
		"W|3.0000|0.1|-0.5000|-1.0000 to +0.0000||",
		"ria||||||constant",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(table.Note, "8 windows; ") || !strings.Contains(table.Note, "; 5 near ties: ") {
		t.Error(table.Note)
	}

	// losses above the dense model's: of the winner, and of each rival
	r.Cases = []string{"nano 0.6"}
	for i, loss := range []float64{.5, .75, .625, 1, 0} {
		r.Test[0].Metrics[i].Loss = loss
	}
	bars := r.tested().Charts[0]
	if bars.Series[0].Name != "W*X" || bars.Series[0].Y[0] != .125 || bars.Series[1].Name != "wanda" ||
		bars.Series[1].Y[0] != .25 {
		t.Errorf("%+v", bars.Series)
	}
}

// TestCourse: outliers are left out of the chart of sizes, generations have their places, and what kept candidates from
// being measured adds up to all of them.
func TestCourse(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	r := &Report{
		Climbs: []Climbed{
			{Size: 1, Climb: fitness.Climb{Full: v(.9)}},
			{Size: 2, Climb: fitness.Climb{Full: v(1.1)}},
			{Size: 3, Climb: fitness.Climb{Full: v(2.2)}},
			{Size: 4, Climb: fitness.Climb{Full: v(2.3)}},
			{Size: 5},
		},
		Finalists: []Finalist{
			{Formula: "a", Size: 3, Selection: .8, Front: true},
			{Formula: "b", Size: 9, Selection: .9},
		},
		History: []Generation{
			{Generation: gp.Generation{Number: 0, BestQuality: 1, Median: 2}, Agreement: make([]Agreement, 2)},
			{Generation: gp.Generation{Number: 1, BestQuality: .5}, Agreement: []Agreement{{Spearman: v(.25)}, {}}},
		},
	}

	s := r.trees()
	if got := s.Charts[0].Series; fmt.Sprint(got[0].X, got[1].X) != "[1 2 3 4] [3]" { // the median of four is 2.2
		t.Errorf("%v and %v", got[0], got[1])
	}
	r.Climbs[2].Full = v(1)
	if got := r.trees().Charts[0].Series[0]; fmt.Sprint(got.X, got.Y) != "[1 2 3] [0.9 1.1 1]" {
		t.Errorf("%v", got)
	}

	course := r.course()
	if got := course.Charts[0].Series[0].Y; fmt.Sprint(got) != "[1 0.5]" {
		t.Errorf("the best so far: %v", got)
	}
	if got := course.Charts[2].Series; fmt.Sprint(got[0].X, got[0].Y, len(got[1].X)) != "[1] [0.25] 0" {
		t.Errorf("agreements: %v", got)
	}
	if counted(1, "case") != "1 case" || counted(0, "case") != "0 cases" {
		t.Error("words for counts")
	}
}

// TestSearchesTimeLeft: generations that the journal had took no time, and say nothing about those to come.
func TestSearchesTimeLeft(t *testing.T) {
	now := time.Now()
	w := &watch{start: now.Add(-time.Hour)}
	for number := range 3 {
		if got := w.left(number, 10, now); got != "" {
			t.Errorf("generation %d was in the journal: %q", number, got)
		}
	}

	w.fresh = 1
	if got := w.left(3, 10, now.Add(time.Minute)); got != "; about 7m0s left" { // a minute each, seven to come
		t.Errorf("%q", got)
	}
	if got := w.left(5, 10, now.Add(6*time.Minute)); got != "; about 10m0s left" { // two minutes each
		t.Errorf("%q", got)
	}
	if got := w.left(10, 10, now.Add(time.Hour)); got != "" {
		t.Errorf("at the end: %q", got)
	}

	w = &watch{start: now, fresh: 4}
	if got := w.left(0, 4, now.Add(10*time.Second)); got != "; about 40s left" {
		t.Errorf("a new search: %q", got)
	}
}

// TestNamesOfModels: names tell models apart, each is the end of its path, and no shorter ends would do.
func TestNamesOfModels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{"a", "b", "c"})
		paths := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "parts"), "/")
		}), 1, 5, rapid.ID).Draw(t, "paths")

		names := named(paths)
		longest := 0
		for i, n := range names {
			if !strings.HasSuffix("/"+paths[i], "/"+n) || slices.Contains(names[:i], n) {
				t.Fatalf("%q are called %q", paths, names)
			}
			longest = max(longest, strings.Count(n, "/"))
		}

		if longest == 0 {
			return
		}
		seen := map[string]bool{}
		for _, p := range paths {
			all := strings.Split(p, "/")
			seen[strings.Join(all[max(0, len(all)-longest):], "/")] = true
		}
		if len(seen) == len(paths) {
			t.Fatalf("%q are called %q, and fewer parts would do", paths, names)
		}
	})
}

// TestLazyJudges: a judge is made once, its fault stays, and none is made after the end.
func TestLazyJudges(t *testing.T) {
	made := 0
	broken := errors.New("no memory")
	l := &lazyJudge{make: func() (*fitness.Judge, error) { made++; return nil, broken }}
	for range 3 {
		if _, err := l.get(); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	l.close()
	if made != 1 {
		t.Errorf("made %d times", made)
	}

	ended := &lazyJudge{make: func() (*fitness.Judge, error) { t.Error("made after the end"); return nil, nil }}
	ended.close()
	if _, err := ended.get(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
