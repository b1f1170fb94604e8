// Package reportcmd is the work of the verbs about what the program says: it turns the JSON reports of past runs into
// tables and charts, holds their schemas, and writes the manual pages.
package reportcmd

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/report"
)

// Run is what was found in a report: single values, and lists of objects as tables.
type Run struct {
	Tables []*report.Table
	name   string
	path   string // that the user gave, of a job of a plan with its name
	leaves []leaf
	charts []*report.Chart
	// what it says of models whose values are those of a quantised form
	sources []string
}

// leaf is a single value and where it stands, such as "total.sparsity".
type leaf struct {
	path  string
	value any
}

// figures are the values that are worth comparing between runs, by the last part of their place, and how they
// are named.
var figures = []struct {
	key, name string
	plot      bool
}{
	{"ppl", "perplexity", true},
	{"stderr", "±", false},
	{"nll", "nll", false},
	{"kl", "KL, nats", true},
	{"same_top", "same top token", false},
	{"model_bytes", "bytes of the model", true},
	{"loss", "loss", true},
	{"sparsity", "zeros in matrices", true},
	{"overall", "zeros overall", false},
	{"parameters", "parameters", false},
	{"bytes_out", "bytes", true},
	{"tokens_per_second", "tokens/s", true},
	{"seconds", "seconds", true},
	{"cpu_seconds", "processor seconds", false},
	{"peak_memory_bytes", "peak memory", false},
	{"seqlen", "seqlen", false},
	{"tokens", "tokens", false},
	{"acc", "accuracy", true},
	{"acc_norm", "accuracy, normalised by length", true},
	{"exact_match", "exact match", true},
	{"bits_per_byte", "bits a byte", true},
}

// known finds the figure of a place; ok is false where it is none that is worth showing.
func known(path string) (name string, plot, ok bool) {
	// The names of tasks may end in data.
	if strings.Contains("."+path, ".data.") || strings.HasPrefix(path, "calibration.") ||
		strings.HasPrefix(path, "audit.") || strings.HasPrefix(path, "flags.") {
		return "", false, false
	}

	key, _, _ := strings.Cut(lastPart(path), ",") // evaluations name metric and filter
	for _, f := range figures {
		if f.key == key {
			return f.name, f.plot, true
		}
	}

	return "", false, false
}

// label is a place for people: of an evaluation the task and the metric, and the filter where there is one, as the same
// metric may stand there with another.
func label(path string) string {
	rest, ok := strings.CutPrefix(path, "results.")
	if !ok {
		return path
	}

	at := strings.LastIndexByte(rest, '.')
	if at < 0 {
		return path
	}

	return rest[:at] + " " + strings.TrimSuffix(rest[at+1:], ",none")
}

// said are places whose meaning for a reader is not that of their last part.
var said = map[string]string{
	"options.metric": "metric", "options.pattern": "pattern", "model.path": "model", "path": "path",
	"version": "version of the program", "device.name": "device", "plan": "plan",
	"options.sparsity": "zeros asked for", "seqlen": "tokens of a window", "stderr": "± of the perplexity",
	"nll": "loss, nats a token", "overall": "zeros overall",
}

// stages are parts of a place that say when something was measured.
var stages = []string{"before", "after", "dense", "against", "best"}

// inWords is a label for people: "perplexity after" for perplexity.after.ppl. Evaluations keep task and metric.
func inWords(label string) string {
	if text, ok := said[label]; ok {
		return text
	}
	if strings.Contains(label, " ") { // a task and its metric
		return label
	}
	name, _, ok := known(label)
	if !ok {
		return words(label)
	}

	for part := range strings.SplitSeq(label, ".") {
		if slices.Contains(stages, part) {
			return name + " " + part
		}
	}
	return name
}

// words is a key of a report without its underscores.
func words(key string) string { return strings.NewReplacer("_", " ", ".", " ").Replace(key) }

// readable is a table of a report with headings for people.
func readable(t *report.Table) *report.Table {
	out := *t
	out.Title = words(t.Title)
	out.Columns = slices.Clone(t.Columns)
	for i := range out.Columns {
		out.Columns[i].Name = words(t.Columns[i].Name)
	}
	out.Rows = make([][]any, len(t.Rows))
	for r, row := range t.Rows {
		out.Rows[r] = slices.Clone(row)
		for c := range row {
			out.Rows[r][c] = separated(t.Columns[c].Name, row[c])
		}
	}
	out.Folded = len(t.Rows) > longTable
	return &out
}

// longTable is from how many rows on a page shows the title of a table alone.
const longTable = 60

// separated writes large counts of bytes with separators.
func separated(label string, v any) any {
	if n, ok := whole(v).(int64); ok && strings.Contains(label, "bytes") {
		return cli.Thousands(n)
	}
	return v
}

// aside are columns of a table of jobs that say how they were run, not what came of it.
var aside = []string{"command", "key", "log", "worker"}

// plain leaves out of a table of jobs what is aside.
func plain(t *report.Table) *report.Table {
	if column(t, "state") < 0 || column(t, "command") < 0 {
		return t
	}

	out := &report.Table{Title: t.Title}
	var keep []int
	for i, c := range t.Columns {
		if !slices.Contains(aside, c.Name) {
			keep = append(keep, i)
			out.Columns = append(out.Columns, c)
		}
	}

	for _, row := range t.Rows {
		var cells []any
		for _, i := range keep {
			cells = append(cells, row[i])
		}
		out.Add(cells...)
	}

	return out
}

const (
	maxDepth = 4   // of objects in objects
	maxRows  = 400 // of a table on the page
)

// collect walks a report.
func (r *Run) collect(prefix string, list *orderedjson.Object, depth int) error {
	for key, value := range list.All() {
		if err := r.member(prefix+key, value, depth); err != nil {
			return err
		}
	}
	return nil
}

// member takes up one value of a report.
func (r *Run) member(path string, value json.RawMessage, depth int) error {
	if orderedjson.Is(value) {
		inner, err := orderedjson.Parse(value)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}

		if depth < maxDepth {
			return r.collect(path+".", inner, depth+1)
		}

		return nil
	}

	var rows []json.RawMessage
	if json.Unmarshal(value, &rows) == nil && rows != nil {
		return r.table(path, rows)
	}

	var v any
	if json.Unmarshal(value, &v) == nil && v != nil {
		r.leaves = append(r.leaves, leaf{path, v})
	}

	return nil
}

// table keeps a list of objects, and nothing of other lists. Columns are the single values of the first object.
func (r *Run) table(path string, rows []json.RawMessage) error {
	if len(rows) == 0 {
		return nil
	}

	t := &report.Table{Title: path}
	for i, raw := range rows {
		if !orderedjson.Is(raw) {
			return nil
		}

		row, err := orderedjson.Parse(raw)
		if err != nil {
			return fmt.Errorf("%s[%d]: %w", path, i, err)
		}

		if i == 0 {
			for key, value := range row.All() {
				if _, ok := scalar(value); ok {
					t.Columns = append(t.Columns, report.Column{Name: key})
				}
			}
		}

		var cells []any
		for _, c := range t.Columns {
			v, _ := scalar(row.Get(c.Name))
			cells = append(cells, v)
		}

		t.Add(cells...)
	}

	t = plain(t)
	r.charts = append(r.charts, chartsOf(t)...)

	if len(t.Rows) > maxRows {
		t.Note = fmt.Sprintf("the first %d of %d rows", maxRows, len(t.Rows))
		t.Rows = t.Rows[:maxRows]
	}

	r.Tables = append(r.Tables, t)
	return nil
}

// scalar decodes a single value; whole numbers become int64 so that they print as such.
func scalar(raw json.RawMessage) (any, bool) {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return nil, false
	}

	switch x := v.(type) {
	case float64:
		if x == float64(int64(x)) && !strings.ContainsAny(string(raw), ".eE") {
			return int64(x), true
		}
		return x, true
	case string, bool, nil:
		return x, true
	}

	return nil, false
}

// version is that of the program that made the run; "" where the report does not say.
func (r *Run) version() string {
	i := slices.IndexFunc(r.leaves, func(l leaf) bool { return l.path == "version" })
	if i < 0 {
		return ""
	}
	text, _ := r.leaves[i].value.(string)
	return text
}

// title is the command that made the run.
func (r *Run) title() string {
	for _, l := range r.leaves {
		if l.path == "command" {
			return fmt.Sprint(l.value)
		}
	}
	return r.name
}

// facts are the figures and the words that identify the run.
func (r *Run) facts() []report.Fact {
	var out []report.Fact
	add := func(name, value string) {
		// One number that stands in two places, as a count and an option do, is said once.
		twice := slices.ContainsFunc(out, func(f report.Fact) bool {
			return f.Value == value && (f.Name == name || strings.HasPrefix(f.Name, "zeros") &&
				strings.HasPrefix(name, "zeros"))
		})
		if !twice {
			out = append(out, report.Fact{Name: name, Value: value})
		}
	}
	for _, l := range r.leaves {
		_, _, ok := known(l.path)
		named := slices.Contains([]string{
			"options.metric", "options.pattern", "model.path", "path", "device.name", "plan",
		}, l.path)

		if v, isNumber := l.value.(float64); isNumber && ok {
			add(inWords(label(l.path)), figure(l.path, v))
		} else if s, isText := l.value.(string); isText && named {
			add(inWords(l.path), s)
		}
	}

	return out
}

func lastPart(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// figure prints a value for people.
func figure(path string, v float64) string {
	switch {
	case strings.HasSuffix(path, "bytes") || strings.HasSuffix(path, "bytes_out"):
		return fmt.Sprintf("%.1f MB", v/1e6)
	case v == float64(int64(v)) && math.Abs(v) < 1<<53:
		return cli.Thousands(int64(v))
	}
	return fmt.Sprintf("%.5g", v)
}
