package benchcmd

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/safefile"
)

// Comparison is two reports side by side.
type Comparison struct {
	A           string  `json:"a"`
	B           string  `json:"b"`
	Clock       string  `json:"clock"`     // cpu or wall
	Tolerance   float64 `json:"tolerance"` // a ratio above 1 + tolerance + noise is a regression
	SameKind    bool    `json:"same_machine"`
	Rows        []Row   `json:"rows"`
	OnlyA       []Label `json:"only_a,omitempty"`
	OnlyB       []Label `json:"only_b,omitempty"`
	Slower      int     `json:"regressions"`
	Faster      int     `json:"improvements"`
	Undecided   int     `json:"undecided"`    // regressions would be if it weren't for the noise
	MedianRatio float64 `json:"median_ratio"` // of all rows
}

// Label names a figure.
type Label struct {
	Suite   string `json:"suite"`
	Name    string `json:"name"`
	Threads int    `json:"threads"`
}

// Row is one figure of both reports.
type Row struct {
	Label
	A       float64 `json:"seconds_a"`
	B       float64 `json:"seconds_b"`
	Ratio   float64 `json:"ratio"` // B over A
	Noise   float64 `json:"noise"` // half the quartiles' distance of both over their medians, added up
	Verdict string  `json:"verdict"`
}

// Verdicts of a row.
const (
	same   = "same"
	slower = "slower"
	faster = "faster"
	unsure = "undecided"
)

// CompareOptions say what counts as a regression.
type CompareOptions struct {
	Tolerance float64
	Wall      bool // compare the clock's time in place of the processor's
	Check     bool // a regression is a failure
}

// Compare prints two reports side by side.
func Compare(j *cli.Job, a, b string, o CompareOptions) (*Comparison, error) {
	if !(o.Tolerance >= 0) || math.IsInf(o.Tolerance, 1) { // with no number nothing would ever be slower
		return nil, cli.Usagef("--tolerance %g: want 0 or more", o.Tolerance)
	}

	first, err := read(a)
	if err != nil {
		return nil, err
	}

	second, err := read(b)
	if err != nil {
		return nil, err
	}

	c := contrast(first, second, o)
	c.A, c.B = a, b
	if len(c.Rows) == 0 {
		return nil, fmt.Errorf("%s and %s have no figure in common", a, b)
	}

	j.Table(c.table())
	if !c.SameKind {
		j.Remark("the reports are of different machines: %s and %s", first.Machine, second.Machine)
	}

	if o.Check && c.Slower > 0 {
		return nil, fmt.Errorf("%d of %d figures are slower by more than %.0f %% and their noise", c.Slower,
			len(c.Rows), 100*o.Tolerance)
	}

	return c, nil
}

// maxReport bounds what is read of a report.
const maxReport = 64 << 20

// read opens a report.
func read(path string) (*Report, error) {
	data, err := safefile.ReadFile(path, maxReport)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(data, r); err != nil || len(r.Cases) == 0 {
		return nil, fmt.Errorf("%s: no report of bench (HINT: compress bench all --report %s)", path, path)
	}
	return r, nil
}

// contrast puts figures of the same name and number of threads side by side, in the order of the first report.
func contrast(a, b *Report, o CompareOptions) *Comparison {
	c := &Comparison{
		Clock: "cpu", Tolerance: o.Tolerance,
		SameKind: a.Machine.Model == b.Machine.Model && a.Machine.Processors == b.Machine.Processors,
	}
	if o.Wall {
		c.Clock = "wall"
	}

	other := map[Label]Figure{}
	for _, f := range b.Cases {
		other[f.label()] = f
	}

	var ratios []float64
	for _, f := range a.Cases {
		g, ok := other[f.label()]
		if !ok {
			c.OnlyA = append(c.OnlyA, f.label())
			continue
		}

		delete(other, f.label())
		row := f.beside(g, o)
		ratios = append(ratios, row.Ratio)
		c.count(row.Verdict)
		c.Rows = append(c.Rows, row)
	}

	for _, f := range b.Cases {
		if _, left := other[f.label()]; left {
			c.OnlyB = append(c.OnlyB, f.label())
		}
	}

	c.MedianRatio = quantile(ratios, 0.5)
	return c
}

func (f *Figure) label() Label { return Label{f.Suite, f.Name, f.Threads} }

// time is the time that is compared: the processor's, unless it is too short to be told, or the clock's.
func (f *Figure) time(wall bool) float64 {
	if wall || f.CPU == 0 {
		return f.Seconds
	}
	return f.CPU
}

// noise is how far apart the middle half of the repetitions lies, from its middle, as a share of the median.
func (f *Figure) noise() float64 {
	if f.Seconds == 0 {
		return 0
	}
	return (f.High - f.Low) / 2 / f.Seconds
}

// beside compares two figures.
func (f *Figure) beside(g Figure, o CompareOptions) Row {
	wall := o.Wall || f.CPU == 0 || g.CPU == 0
	r := Row{Label: f.label(), A: f.time(wall), B: g.time(wall), Noise: f.noise() + g.noise(), Verdict: same}
	if r.A > 0 {
		r.Ratio = r.B / r.A
	}

	switch {
	case r.Ratio > 1+o.Tolerance+r.Noise:
		r.Verdict = slower
	case r.Ratio > 1+o.Tolerance:
		r.Verdict = unsure
	case r.Ratio > 0 && 1/r.Ratio > 1+o.Tolerance+r.Noise:
		r.Verdict = faster
	}

	return r
}

func (c *Comparison) count(verdict string) {
	switch verdict {
	case slower:
		c.Slower++
	case faster:
		c.Faster++
	case unsure:
		c.Undecided++
	}
}

func (c *Comparison) table() *report.Table {
	t := &report.Table{
		Columns: report.Columns("suite", "case", "threads", "ms before|%.3f", "ms after|%.3f", "ratio|%.2f",
			"noise|%.2f", "verdict"),
		Note: fmt.Sprintf("%s time; %d slower by more than %.0f %% and the noise, %d faster, %d within the noise, "+
			"%d the same; median ratio %.3f",
			c.Clock, c.Slower, 100*c.Tolerance, c.Faster, c.Undecided, len(c.Rows)-c.Slower-c.Faster-c.Undecided,
			c.MedianRatio),
	}

	for _, r := range c.Rows {
		t.Add(r.Suite, r.Name, r.Threads, 1e3*r.A, 1e3*r.B, r.Ratio, r.Noise, r.Verdict)
	}

	return t
}
