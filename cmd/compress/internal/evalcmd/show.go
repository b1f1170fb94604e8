package evalcmd

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/report"
)

// show prints the figures, and remarks about what stands behind them.
func show(j *cli.Job, r *task.Results) {
	j.Table(table(r))

	if r.Damaged > 0 {
		j.Note("%d lines of kept answers were damaged or without a checksum: they were dropped, and their "+
			"requests asked again", r.Damaged)
	}

	for _, name := range slices.Sorted(maps.Keys(r.Audits)) {
		if n := r.Config.Shots; n != nil && *n > 0 && r.NShot[name] == 0 {
			j.Note("%s: no examples, as its definition wants: --num-fewshot %d changes nothing here, as in "+
				"lm-evaluation-harness 0.4.13", name, *n)
		}
		remarks(j, name, r.Audits[name], r.ChatTemplate == nil)
	}
}

// table has a row for each figure of tasks and groups.
func table(r *task.Results) *report.Table {
	t := &report.Table{
		Columns: report.Columns("task", "version", "filter", "n-shot", "metric", "value|%.4f", "± |%.4f", "n", "right"),
	}
	for _, name := range slices.Sorted(maps.Keys(r.Audits)) {
		rows(t, r, name, r.Results[name], r.Audits[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.Groups)) {
		rows(t, r, name, r.Groups[name], nil)
	}
	return t
}

// markdown is the table as it is pasted into model cards and issues.
func markdown(r *task.Results) ([]byte, error) {
	var b bytes.Buffer
	err := table(r).Markdown(&b)
	return b.Bytes(), err
}

// rows adds the figures of a task or group.
func rows(t *report.Table, r *task.Results, name string, figures map[string]any, a *task.Audit) {
	for _, key := range slices.Sorted(maps.Keys(figures)) {
		metric, filter, ok := strings.Cut(key, ",")
		if !ok || strings.HasSuffix(metric, "_stderr") {
			continue
		}

		se := figures[metric+"_stderr,"+filter]
		if se == nil {
			se = "N/A"
		}

		var right any
		if a != nil {
			if k, ok := a.Right[key]; ok {
				right = fmt.Sprintf("%d of %d", k, a.Documents)
			}
		}

		v := figures[key]
		if v == nil {
			v = "not finite"
		}

		t.Add(name, fmt.Sprint(r.Versions[name]), filter, r.NShot[name], metric, v, se, figures["sample_len"], right)
	}
}

// remarks names documents that were cut or do not count, and signs of a collapsed model; plain: there was no chat
// template.
func remarks(j *cli.Job, name string, a *task.Audit, plain bool) {
	note := func(n int, what string) {
		if n > 0 {
			j.Note("%s: %d of %d documents %s", name, n, a.Documents, what)
		}
	}

	note(a.Truncated, "are longer than the context and were cut from the left")
	note(a.OutOfRange, "have a right choice that is none of the choices, and count as wrong")
	note(a.NonFinite, "have answers that are not finite numbers, and count as wrong")

	if slices.Contains(a.Ignored, "fewshot_indices") {
		j.Note("%s: fewshot_indices changes nothing, as in lm-evaluation-harness 0.4.13 (HINT: examples from a "+
			"split or from samples)", name)
	}

	if signs := a.Signs(); len(signs) > 0 {
		hint := ""
		if plain && a.NonFinite == 0 {
			hint = " (HINT: an instruct model may only miss its template: --apply-chat-template)"
		}
		j.Note("%s: signs of a collapsed model: %s%s", name, strings.Join(signs, ", "), hint)
	}
}

func showList(j *cli.Job, list []task.Definition) {
	t := &report.Table{Columns: report.Columns("name", "kind", "version", "output", "n-shot", "metrics", "data of")}
	for _, d := range list {
		var shots any
		if d.Shots != nil {
			shots = *d.Shots
		}

		what := strings.Join(d.Metrics, ", ")
		if d.Kind != "task" {
			what = fmt.Sprintf("%d members", len(d.Members))
		}

		t.Add(d.Name, d.Kind, d.Version, d.Output, shots, what, sourceOf(d.Origins))
	}

	j.Table(t)
}

// sourceOf names where data are, by the first file.
func sourceOf(list []task.Origin) string {
	switch {
	case len(list) == 0:
		return ""
	case list[0].Dataset != "":
		return list[0].Dataset
	}
	u, err := url.Parse(list[0].URL)
	if err != nil {
		return list[0].URL
	}
	return u.Host
}

func showEach(j *cli.Job, list []task.Definition) {
	for _, d := range list {
		j.Printf("%s (%s) %s\n", d.Name, d.Kind, d.Path)
		shots, until := "", ""
		if d.Shots != nil {
			shots = strconv.Itoa(*d.Shots)
		}
		if d.Output == "generate_until" {
			until = fmt.Sprintf("%q or %d tokens", d.Until, d.Tokens)
		}

		for _, line := range [][2]string{
			{"version", d.Version},
			{"output", d.Output},
			{"metrics", strings.Join(d.Metrics, ", ")},
			{"members", strings.Join(d.Members, ", ")},
			{"data", strings.Join(d.Data, ", ")},
			{"examples", shots},
			{"prompt", d.Template},
			{"choices", d.Choices},
			{"target", d.Target},
			{"until", until},
			{"filters", strings.Join(d.Filters, "\n")},
		} {
			if line[1] != "" {
				j.Printf("  %-8s %s\n", line[0], strings.ReplaceAll(line[1], "\n", "\n           "))
			}
		}
		for i := range d.Origins {
			j.Printf("  %-8s %s\n", "get", d.Origins[i].Command("data"))
		}
	}
}

func showChecked(j *cli.Job, list []task.Checked) {
	t := &report.Table{Columns: report.Columns("task", "documents", "requests", "n-shot", "state")}
	for _, c := range list {
		state := "fine"
		switch {
		case c.Err != "":
			state = "FAULT"
		case c.NoData != "":
			state = "no data here"
		}

		t.Add(c.Task, c.Documents, c.Requests, c.Shots, state)
	}

	j.Table(t)

	for _, c := range list {
		if c.NoData != "" {
			j.Note("%s", withHint(c.NoData, c.Hint))
		}
		if len(c.Ignored) > 0 {
			j.Note("%s: keys that change nothing here: %s", c.Task, strings.Join(c.Ignored, ", "))
		}
		if len(list) == 1 && c.Prompt != "" {
			j.Printf("first prompt: %q\nanswers: %q\n", c.Prompt, c.Answers)
		}
	}
}

// withHint is a fault with what helps, where that is known.
func withHint(fault, hint string) string {
	if hint == "" {
		return fault
	}
	return fault + " (HINT: " + hint + ")"
}

func showComparison(j *cli.Job, c *task.Comparison) {
	t := &report.Table{Columns: report.Columns("task", "filter", "metric", "n", "A|%.4f", "B|%.4f", "B-A|%+.4f",
		"low|%+.4f", "high|%+.4f", "only A", "only B", "p|%.4g", "test")}
	for _, r := range c.Rows {
		t.Add(r.Task, r.Filter, r.Metric, r.N, r.A, r.B, r.Difference, r.Low, r.High, r.OnlyA, r.OnlyB, r.P, r.Test)
	}

	t.Note = fmt.Sprintf("A: %s, B: %s; low and high: 95 %% interval of B-A over documents; only: documents where "+
		"one run is better", c.A, c.B)
	j.Table(t)
	for _, r := range c.Remarks {
		j.Note("%s", r)
	}

	for _, r := range c.Rows {
		if r.Unpaired > 0 {
			j.Note("%s: %d documents are in one run only and left out", r.Task, r.Unpaired)
		}
	}
}
