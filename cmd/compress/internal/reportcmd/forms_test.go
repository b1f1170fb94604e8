package reportcmd

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/internal/report"
)

// TestFiguresOfTasks: every figure of an evaluation has a column with a name of its own, whatever its task is called
// and by which filter it was taken; what describes data or the calibration has none.
func TestFiguresOfTasks(t *testing.T) {
	r, err := Read(write(t, "eval.json", `{"results": {
		"wikidata": {"acc,none": 0.5, "acc_stderr,none": 0.1},
		"gsm8k": {"exact_match,strict-match": 0.25, "exact_match,flexible-extract": 0.75},
		"v1.2": {"acc,none": 1}},
		"data": {"tokens": 9}, "perplexity": {"data": {"seqlen": 5}}, "calibration": {"seqlen": 7},
		"audit": {"x": {"acc": 1}},
		"seqlen": 128, "big": 1}`))
	if err != nil {
		t.Fatal(err)
	}

	side := SideBySide([]*Run{r})
	var names []string
	for _, c := range side.Columns {
		names = append(names, c.Name)
	}
	want := []string{
		"run",
		"seqlen",
		"wikidata acc",
		"v1.2 acc",
		"gsm8k exact_match,strict-match",
		"gsm8k exact_match,flexible-extract",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}

	text, err := side.MarshalJSON()
	if err != nil || !strings.Contains(string(text), `"gsm8k exact_match,strict-match":0.25`) ||
		!strings.Contains(string(text), `"gsm8k exact_match,flexible-extract":0.75`) {
		t.Errorf("%v: %s", err, text)
	}

	again := *r
	again.name = "again"
	var titles []string
	for _, c := range compareCharts(SideBySide([]*Run{r, &again})) {
		titles = append(titles, c.Title+": "+c.X.Label)
	}
	if want := []string{
		"wikidata acc: accuracy", "v1.2 acc: accuracy", "gsm8k exact_match,strict-match: exact match",
		"gsm8k exact_match,flexible-extract: exact match",
	}; !slices.Equal(titles, want) {
		t.Errorf("charts %q", titles)
	}
}

// TestFront: sizes and divergences from the baseline of most runs are drawn under its name, without its folder; runs
// against another one are named.
func TestFront(t *testing.T) {
	run := func(name, baseline string, size, kl float64) *Run {
		return &Run{name: name, leaves: []leaf{{"model_bytes", size}, {"against.kl", kl}, {"against.model", baseline}}}
	}
	for baseline, want := range map[string]string{
		"/models/small": "small", "small/": "small", `C:\models\small`: "small", "base": "base",
	} {
		c, left := front([]*Run{
			run("a", baseline, 1e6, 0.5), run("b", baseline, 2e6, 0.25), run("c", baseline, 3e6, 0.75),
			run("d", "other", 1e6, 0.1),
		})
		if c == nil || c.Title != "Size and divergence from "+want || !slices.Equal(left, []string{"d"}) {
			t.Fatalf("%+v, left %q", c, left)
		}
		on, off := c.Series[0].Names, c.Series[1].Names
		if !slices.Equal(on, []string{"a", "b"}) || !slices.Equal(off, []string{"c"}) {
			t.Errorf("%q on the front, %q off it", on, off)
		}
	}
}

// TestSidesOfRuns: the comparison turned on its side has the same figures, whole numbers have all their digits, and
// what a run does not have is empty.
func TestSidesOfRuns(t *testing.T) {
	a := &Run{name: "a", leaves: []leaf{{"parameters", 1234567890.0}, {"ppl", 2.5}, {"ppl.words", "x"}}}
	b := &Run{name: "b", leaves: []leaf{{"ppl", 3.0}, {"seconds", 1e20}}}
	side := SideBySide([]*Run{a, b})
	up := Upright(side)
	if len(up.Rows) != len(side.Columns)-1 || len(up.Columns) != 3 || up.Columns[2].Name != "b" {
		t.Fatalf("%v", up.Rows)
	}
	for r := range side.Rows {
		for c := 1; c < len(side.Columns); c++ {
			if up.Rows[c-1][r+1] != side.Rows[r][c] {
				t.Errorf("%v here and %v there", up.Rows[c-1][r+1], side.Rows[r][c])
			}
		}
	}

	if side.Cell(0, 2) != "1234567890" || side.Rows[1][2] != nil || side.Cell(1, 3) != "1e+20" {
		t.Errorf("%v", side.Rows)
	}
	for v, want := range map[any]any{2.0: int64(2), 2.5: 2.5, 1e300: 1e300, "x": "x", true: true} {
		if got := whole(v); got != want {
			t.Errorf("%v becomes %v", v, got)
		}
	}
	for path, want := range map[string]string{"peak_memory_bytes": "2.5 MB", "ppl": "2.5e+06", "tokens": "2,500,001"} {
		v := 2.5e6
		if path == "tokens" {
			v++
		}
		if path == "ppl" {
			v += .25
		}
		if got := figure(path, v); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestChartsOfTables: experts of a block share a cell, which has their mean, and a cell without a matrix is no number;
// a chart of bars has no bar for what was not measured.
func TestChartsOfTables(t *testing.T) {
	table := &report.Table{Title: "tensors", Columns: report.Columns("block", "role", "sparsity")}
	table.Add(int64(0), "up", .25)
	table.Add(int64(0), "up", .75)
	table.Add(int64(1), "q", int64(1))

	c := chartsOf(table)[0]
	if fmt.Sprint(c.Labels) != "[0 1]" || len(c.Series) != 2 || c.Series[0].Y[0] != .5 ||
		!math.IsNaN(c.Series[0].Y[1]) ||
		c.Series[1].Y[1] != 1 {
		t.Errorf("%v %v", c.Labels, c.Series)
	}

	cases := &report.Table{Title: "cases", Columns: report.Columns("name", "of_peak", "of_bandwidth")}
	cases.Add("a", .5, nil)
	cases.Add("b", nil, nil)
	cases.Add("c", .25, .75)
	list := chartsOf(cases)
	if len(list) != 1 || list[0].Title != "cases: of peak" ||
		fmt.Sprint(list[0].Labels, list[0].Series[0].Y) != "[a c] [0.5 0.25]" {
		t.Errorf("%+v", list)
	}
	for range 40 {
		cases.Add("d", .5, .5)
	}
	if list := chartsOf(cases); list != nil {
		t.Errorf("%d charts of many rows", len(list))
	}
}

// TestManualPages: a page to the letter, with nothing that roff would take for a request.
func TestManualPages(t *testing.T) {
	root := &cobra.Command{Use: "compress", Version: "1.2-x", Short: "A toolkit"}
	verb := &cobra.Command{
		Use: "try MODEL", Short: `Try it - "quick"`, Long: "First.\n\n.Second 'line' of \\n — wide.",
		Example: "compress try m\n.hidden", Run: func(*cobra.Command, []string) {},
	}
	verb.Flags().Int("samples", 8, "`N` windows")
	root.AddCommand(
		verb,
		&cobra.Command{Use: "other", Short: "Other", Hidden: true, Run: func(*cobra.Command, []string) {}},
	)

	want := `.TH "COMPRESS\-TRY" 1 "` + edition + `" "compress 1.2\-x" "Manual of compress"
.SH NAME
compress\-try \- Try it \- \(dqquick\(dq
.SH SYNOPSIS
\fBcompress try MODEL [flags]\fR
.SH DESCRIPTION
First.
.PP
\&.Second \(aqline\(aq of \en \[u2014] wide.
.SH OPTIONS
.SS Data
.TP
\fB\-\-samples N\fR
windows (default: 8)
.SH EXAMPLES
.nf
compress try m
\&.hidden
.fi
.SH EXIT STATUS
.TP
\fB0\fR
done
.TP
\fB1\fR
the work failed
.TP
\fB2\fR
the command line, a recipe or a plan is wrong, or an output exists
.TP
\fB130\fR
interrupted (verbs with \-\-resume can continue)
.SH SEE ALSO
\fBcompress\fR(1)
`
	if diff := cmp.Diff(want, string(ManualPage(verb))); diff != "" {
		t.Error(diff)
	}

	out := filepath.Join(t.TempDir(), "man")
	said := clitest.Run(t, func(j *cli.Job) (any, error) { return WriteManual(j, root, out) })
	if m, ok := said.Result.(*Manual); !ok || !slices.Equal(m.Pages, []string{"compress.1", "compress-try.1"}) ||
		said.Stdout != "2 pages in "+out+"; man -l "+out+"/compress.1 shows one\n" {
		t.Errorf("%+v", said)
	}

	file := write(t, "file", "x")
	clitest.Refused(t, clitest.Run(t, func(j *cli.Job) (any, error) { return WriteManual(j, root, file) }),
		"--out "+file+": a file (HINT: name a folder)")
}

// TestBrokenManuals: pages that were written before a failure are taken back, with the folder if it was made for them;
// what was there before stays.
func TestBrokenManuals(t *testing.T) {
	root := &cobra.Command{Use: "compress", Short: "A toolkit"}
	root.AddCommand(&cobra.Command{Use: "try", Short: "Try", Run: func(*cobra.Command, []string) {}})

	out := t.TempDir()
	if err := os.Mkdir(filepath.Join(out, "compress-try.1"), 0o777); err != nil { // in the way of the second page
		t.Fatal(err)
	}
	said := clitest.Run(t, func(j *cli.Job) (any, error) { return WriteManual(j, root, out) })
	if said.Code != 1 {
		t.Fatalf("%+v", said)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 1 || !entries[0].IsDir() {
		t.Errorf("%v is left, %v", entries, err)
	}

	made := filepath.Join(t.TempDir(), "new")
	r := &Manual{Out: made, fresh: []string{"a.1"}}
	if err := os.MkdirAll(made, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(made, "a.1"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := r.remove(true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(made); !os.IsNotExist(err) {
		t.Errorf("the folder stays: %v", err)
	}
}

// TestFormsOfReports: the ending names the form, an output that is there is replaced only when asked, and no report is
// replaced by what is made of it.
func TestFormsOfReports(t *testing.T) {
	in := write(t, "run.json", `{"command": "compress prune", "ppl": 2.5, "tensors": [{"name": "a|b", "zeros": 3}]}`)
	dir := t.TempDir()
	run := func(out string, overwrite bool, paths ...string) clitest.Said {
		return clitest.Run(t, func(j *cli.Job) (any, error) {
			j.Inputs = paths
			return Write(j, paths, out, overwrite)
		})
	}

	for form, want := range map[string]string{
		"csv": "run,ppl\nrun,2.5\n",
		"md": "| run | perplexity |\n|---|---:|\n| run | 2.5 |\n\n**tensors**\n\n| name | zeros |\n" +
			"|---|---:|\n| a\\|b | 3 |\n", "html": "",
	} {
		out := filepath.Join(dir, "report."+form)
		if said := run(out, false, in); said.Code != 0 || !strings.HasSuffix(said.Stdout, "written to "+out+"\n") {
			t.Errorf("%+v", said)
		}

		text, err := os.ReadFile(out)
		if err != nil || want != "" && string(text) != want ||
			want == "" && !bytes.Contains(text, []byte("compress prune")) {
			t.Errorf("%s: %v, %s", form, err, text)
		}

		clitest.Refused(t, run(out, false, in), "output already exists")
		if said := run(out, true, in); said.Code != 0 {
			t.Errorf("%+v", said)
		}
	}

	clitest.Refused(t, run("report.pdf", false, in), "--out report.pdf: want a name that ends in .html, .md, ")
	md := write(t, "in.md", `{"ppl": 1}`)
	clitest.Refused(t, run(md, true, md), "it is an input of this run")
	if said := run(filepath.Join(dir, "x.csv"), false, write(t, "none.json", "{}")); said.Code != 1 ||
		!strings.Contains(said.Stderr, "none.json: there is nothing in it") {
		t.Errorf("%+v", said)
	}
}

// TestInWords: figures have names for people, before and after are told apart, and a number that two keys give is shown
// once.
func TestInWords(t *testing.T) {
	r, err := Read(write(t, "prune.json", `{"command": "compress prune", "version": "1.2", "flags": {"sparsity": 0.5},
		"options": {"sparsity": 0.5}, "total": {"sparsity": 0.5}, "model_bytes": 1234567,
		"perplexity": {"before": {"ppl": 9.5}, "after": {"ppl": 11.25}}}`))
	if err != nil {
		t.Fatal(err)
	}

	table := InWords(SideBySide([]*Run{r}))
	var names []string
	for _, c := range table.Columns {
		names = append(names, c.Name)
	}
	want := []string{"run", "perplexity before", "perplexity after", "bytes of the model", "zeros asked for"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if table.Cell(0, 3) != "1,234,567" {
		t.Error(table.Cell(0, 3))
	}

	var b strings.Builder
	if err := Page([]*Run{r}, table).HTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"total.sparsity", "flags.", "perplexity.before", "options."} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("the page has the key %q", bad)
		}
	}
	if strings.Count(b.String(), "1.2<") != 1 {
		t.Error("the version does not stand there once")
	}
}
