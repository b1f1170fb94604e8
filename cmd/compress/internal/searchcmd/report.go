package searchcmd

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
	"github.com/modelcompress/compress/prune/structure"
)

// Report is the record of a search: the same bytes for any number of workers, anywhere, and for a search that
// was interrupted.
type Report struct {
	Command     string                `json:"command"`
	Structure   structure.Kind        `json:"structure,omitempty"` // what formulas score; absent: weights
	Version     string                `json:"version"`
	Seed        uint64                `json:"seed"`
	Device      string                `json:"device_features"`
	Models      []Model               `json:"models"`
	Cases       []string              `json:"cases"`
	Options     gp.Options            `json:"options"`
	Grammar     gp.Grammar            `json:"grammar"`
	Ladder      fitness.LadderOptions `json:"ladder"`
	JournalHash string                `json:"journal_sha256"`
	Stopped     string                `json:"stopped"`

	Winner    Finalist    `json:"winner"`
	Finalists []Finalist  `json:"finalists"` // best first
	Test      []Case      `json:"test"`
	Saved     []Step      `json:"steps"`
	Agreement []Agreement `json:"agreement"` // of the rungs, over the whole search
	Traits    []Trait     `json:"traits"`    // what cheap formulas have in common
	Counts    gp.Counts   `json:"counts"`

	History []Generation `json:"history"`
	Climbs  []Climbed    `json:"candidates"` // in the order of the journal

	// the models whose values are those of a quantised form
	Quantised []lm.Quantised `json:"source_quantization,omitempty"`
	Remarks   []string       `json:"remarks,omitempty"` // what a reader must know
}

// Climbed is a candidate with its qualities on the rungs that it reached.
type Climbed struct {
	Formula string   `json:"formula"`
	Size    int      `json:"size"`
	Quality *float64 `json:"quality"` // null: rejected
	fitness.Climb
}

// Step is one of the means that keep candidates from dearer ones.
type Step struct {
	Name    string  `json:"step"`
	Stopped int     `json:"stopped"` // candidates that went no further
	Share   float64 `json:"share"`   // of all that were generated
}

// report is what the search itself gives.
func (s *search) report(r *gp.Result, journal string) *Report {
	rep := &Report{
		Command: "compress search", Structure: s.o.kind(), Version: compress.Version(), Seed: s.Seed,
		Models: s.models, Cases: s.judge.Cases(),
		Options: r.Options, Grammar: r.Grammar,
		Ladder: s.o.ladder(), JournalHash: journal, Stopped: r.Stopped, Agreement: agreement(s.watch.climbs),
		Counts: r.Counts, History: s.watch.history,
	}

	for _, m := range s.models {
		rep.Quantised = append(rep.Quantised, m.quantised...)
		rep.Remarks = append(rep.Remarks, m.remarks...)
	}
	if dev, err := s.Job.Device(); err == nil {
		rep.Device = strings.Join(dev.Info().Features, " ")
	}

	layers, few := 0, 0
	for _, c := range s.watch.climbs {
		rep.Climbs = append(rep.Climbs, Climbed{c.formula, c.size, number(c.quality), c.Climb})

		switch {
		case c.Full != nil || number(c.quality) == nil:
		case c.Few != nil:
			few++
		default:
			layers++
		}
	}

	n := r.Counts
	for _, step := range []struct {
		name string
		n    int
	}{
		{"structure: not a metric", n.Illegal},
		{"the formula, simplified, was there before", n.Repeated},
		{"probe: scores that rank nothing", n.Unusable},
		{"probe: the same masks as another", n.SameMasks},
		{"models: scores that rank nothing", n.Rejected},
		{"rung layers: others were better", layers},
		{"rung few: others were better", few},
		{"measured in full", n.Evaluated - n.Rejected - layers - few},
	} {
		rep.Saved = append(rep.Saved, Step{step.name, step.n, float64(step.n) / float64(n.Generated)})
	}

	return rep
}

// metricName is a metric in a table: a formula without its prefix, and of whole parts its name too, if it has one.
func (r *Report) metricName(s string) string {
	s = strings.TrimPrefix(s, prune.FormulaPrefix)
	if r.Structure == "" {
		return s
	}
	for _, x := range r.Structure.Known() {
		if x.Formula == s {
			return x.Name + ": " + s
		}
	}
	return s
}

// yardstick names what qualities are relative to.
func yardstick(k structure.Kind) string {
	if k == "" {
		return "Wanda's metric"
	}
	return k.Known()[0].Name
}

// tables gives the test of every case.
func (r *Report) tables() []*report.Table {
	var out []*report.Table
	for _, c := range r.Test {
		t := &report.Table{
			Title: c.Name,
			Columns: report.Columns("metric", "perplexity|%.4f", "±|%.2g", "loss - winner's|%+.4f", "95 % interval",
				"p|%.2g", "the winner is"),
			Note: fmt.Sprintf("%d windows; ± is a standard error over windows; the losses, in nats a token, are "+
				"compared window by window; p of a paired t-test, adjusted for the rivals of the case (Holm)",
				c.Windows),
		}

		near := int64(0)
		for _, m := range c.Metrics {
			near += m.NearTies
		}
		if near > 0 {
			t.Note += fmt.Sprintf("; %d near ties: weights of these masks of which the CPU may choose otherwise", near)
		}

		for _, m := range c.Metrics {
			name := r.metricName(m.Metric)
			if m.Metric == prune.FormulaPrefix+r.Winner.Formula {
				name += " (the winner)"
			}

			interval := fmt.Sprintf("%+.4f to %+.4f", m.Low, m.High)
			switch {
			case m.Failed != "":
				t.Add(name, nil, nil, nil, nil, nil, m.Failed)
			case m.Versus == nil:
				t.Add(name, m.Perplexity, m.PPLSE, nil, nil, nil, nil)
			case m.Verdict == "":
				t.Add(name, m.Perplexity, m.PPLSE, m.Versus.Difference, interval, nil, nil)
			default:
				t.Add(name, m.Perplexity, m.PPLSE, m.Versus.Difference, interval, m.Versus.Adjusted, m.Verdict)
			}
		}

		out = append(out, t)
	}

	return out
}

// verdicts counts what the winner is against a rival.
func (r *Report) verdicts(rival string) (won, same, lost int) {
	for _, c := range r.Test {
		for _, m := range c.Metrics {
			if m.Metric == rival {
				switch m.Verdict {
				case better:
					won++
				case worse:
					lost++
				case unclear:
					same++
				}
			}
		}
	}

	return won, same, lost
}

// show prints the outcome.
func (s *search) show(sum *Summary) {
	r := sum.Report
	for _, t := range r.tables() {
		s.Table(t)
	}

	s.Printf("best: %s\n", r.Winner.Formula)

	for _, rival := range rivals(r.Structure, r.Grammar) {
		b, n, w := r.verdicts(rival)
		s.Printf("against %-12s better in %d of %d cases, not significantly different in %d, worse in %d\n",
			r.metricName(rival)+":", b, len(r.Test), n, w)
	}

	s.Printf("%s evaluated in %.0f s, %.0f an hour, %.2f measurements at a time; journal %.16s\n",
		counted(s.watch.fresh, "candidate"), sum.SearchSecs, sum.PerHour, sum.Parallel, r.JournalHash)
	disk := int64(0)
	for _, p := range sum.Setup.Estimate {
		disk += p.Disk
	}

	s.Printf("getting ready took %.0f s; gradients took up to %s in %s, which is gone\n", sum.Setup.Seconds,
		cli.Size(disk), s.place.path(stateDir))
	s.Printf("%s, %s, %s and %s are in %s\n", bestFile, journalFile, reportFile, pageFile, s.o.Out)
}
