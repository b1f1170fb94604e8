package task

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/modelcompress/compress/editeval/task/internal/engine"
	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/editeval/task/internal/score"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/lm"
)

// Results has the shape of lm-evaluation-harness' results.json. Figures are under the keys "metric,filter" and
// "metric_stderr,filter"; a standard error that there is none of is "N/A".
type Results struct {
	Results        map[string]map[string]any   `json:"results"`
	Groups         map[string]map[string]any   `json:"groups,omitempty"`
	GroupSubtasks  map[string][]string         `json:"group_subtasks"`
	Configs        map[string]any              `json:"configs"`
	Versions       map[string]any              `json:"versions"`
	NShot          map[string]int              `json:"n-shot"`
	HigherIsBetter map[string]map[string]*bool `json:"higher_is_better"`
	NSamples       map[string]Count            `json:"n-samples"`
	Config         Setup                       `json:"config"`
	TaskHashes     map[string]string           `json:"task_hashes"` // SHA-256 over the hashes of all samples, in order
	ModelSource    string                      `json:"model_source"`
	ModelName      string                      `json:"model_name"`
	ModelNameClean string                      `json:"model_name_sanitized"`
	Date           float64                     `json:"date"` // seconds since 1970, as start_time and end_time
	Start          float64                     `json:"start_time"`
	End            float64                     `json:"end_time"`
	BOSToken       []any                       `json:"tokenizer_bos_token"` // text and id
	EOSToken       []any                       `json:"tokenizer_eos_token"`
	PADToken       []any                       `json:"tokenizer_pad_token"`
	EOTID          *int32                      `json:"eot_token_id"`
	MaxLength      int                         `json:"max_length"`
	Prefix         int32                       `json:"prefix_token_id"`
	TokenizerHash  string                      `json:"tokenizer_hash"`
	System         *string                     `json:"system_instruction"`
	SystemHash     *string                     `json:"system_instruction_sha"`
	Multiturn      bool                        `json:"fewshot_as_multiturn"`
	ChatTemplate   *string                     `json:"chat_template"`
	ChatHash       *string                     `json:"chat_template_sha"`
	Audits         map[string]*Audit           `json:"audit"`
	Seconds        string                      `json:"total_evaluation_time_seconds"`
	// the model, where its values are those of a quantised form
	Quantised []lm.Quantised `json:"source_quantization,omitempty"`
	Remarks   []string       `json:"remarks,omitempty"` // what a reader of the results must know
	// lines of the journal and the cache that were dropped, their answers asked again; the results are the same
	// without them
	Damaged int `json:"-"`
}

// Count is how many documents a task has and how many were scored.
type Count struct {
	Original  int `json:"original"`
	Effective int `json:"effective"`
}

// Setup says how a run was made.
type Setup struct {
	Model      string `json:"model"`
	URL        string `json:"model_url,omitempty"`  // of the server that answered
	Parameters int64  `json:"model_num_parameters"` // 0: a server's, which does not say
	Device     string `json:"device"`
	Options
	FewshotSeed uint64 `json:"fewshot_seed"`
}

// notAvailable stands for a standard error that there is none of.
const notAvailable = "N/A"

func newResults(r *run, start time.Time) *Results {
	of, tok := r.subject, r.subject.tok
	res := &Results{
		TaskHashes: map[string]string{}, ModelSource: of.source, ModelName: of.name,
		ModelNameClean: sanitized(of.name),
		Date:           seconds(start), Start: seconds(start), BOSToken: token(tok, tok.BOS),
		EOSToken: token(tok, tok.EOS),
		PADToken: token(tok, tok.PAD),
		Results:  map[string]map[string]any{}, Groups: map[string]map[string]any{},
		GroupSubtasks: map[string][]string{},
		Configs:       map[string]any{},
		Versions:      map[string]any{}, NShot: map[string]int{}, HigherIsBetter: map[string]map[string]*bool{},
		NSamples: map[string]Count{},
		Audits:   map[string]*Audit{}, MaxLength: of.limit, Prefix: r.enc.Prefix, TokenizerHash: tok.Hash(),
		Config: Setup{
			Model: of.name, URL: of.url, Parameters: of.parameters, Device: of.device,
			Options: r.o, FewshotSeed: r.o.seed(),
		},
	}

	res.Quantised, res.Remarks = of.quantised, of.remarks
	if id, ok := tok.EOS(); ok {
		res.EOTID = &id
	}

	res.System, res.SystemHash = withHash(r.o.System)

	if c := r.o.Chat; c != nil {
		res.Multiturn = c.Multiturn
		res.ChatTemplate, res.ChatHash = withHash(c.Template)
	}

	return res
}

// withHash is a text and its hash, nil where it is empty.
func withHash(text string) (*string, *string) {
	if text == "" {
		return nil, nil
	}
	h := hash(text)
	return &text, &h
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// token is a special token's text and id.
func token(tok engine.Tokens, of func() (int32, bool)) []any {
	id, ok := of()
	if !ok {
		return []any{"None", "None"}
	}
	text, _ := tok.Token(id)
	return []any{text, strconv.Itoa(int(id))}
}

// unfit are the characters that the harness replaces in the name of a model.
var unfit = regexp.MustCompile(`[\"<>:/|\\?*\[\]]+`)

func sanitized(name string) string { return unfit.ReplaceAllString(name, "__") }

// add aggregates a task.
func (r *Results) add(t *one, o *Options) error {
	name := t.Task.Name
	t.audit.finish(t)
	audit := t.audit // a copy: the task holds its documents and answers
	r.Audits[name] = &audit

	r.TaskHashes[name] = hash(t.hashes.String())
	r.Configs[name], r.Versions[name] = configOf(t), versionOf(t.Task)
	r.NShot[name] = t.Shots
	r.NSamples[name] = Count{t.Total, len(t.docs)}
	alias := t.Task.Alias
	if alias == "" {
		alias = name
	}

	row := map[string]any{"name": name, "alias": alias, "sample_len": len(t.docs)}
	better := map[string]*bool{}
	for _, m := range t.Task.Metrics {
		known, _ := metric.Find(m.Name) // the scorer has looked it up before
		better[m.Name] = m.HigherIsBetter
		if m.HigherIsBetter == nil {
			better[m.Name] = &known.HigherIsBetter
		}

		agg := aggregationOf(m, known)
		for _, filter := range t.scorer.Filters() {
			items := t.items[filter][m.Name]
			if err := agg.Check(items); err != nil {
				return fmt.Errorf("task %s: %s: %w", name, m.Name, err)
			}

			row[m.Name+","+filter] = number(agg.Of(items))
			row[m.Name+"_stderr,"+filter] = notAvailable
			if se, ok := agg.Stderr(items, o.draws()); ok {
				row[m.Name+"_stderr,"+filter] = number(se)
			}
		}
	}

	r.Results[name], r.HigherIsBetter[name] = row, better
	return nil
}

// aggregationOf is that of a metric in a task; names were checked when the task was prepared.
func aggregationOf(m taskfile.Metric, known metric.Metric) metric.Aggregation {
	name := m.Aggregation
	if name == "" {
		name = known.Aggregation
	}
	agg, _ := metric.FindAggregation(name)
	return agg
}

// number keeps JSON valid: what is not finite has no number.
func number(v float64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return v
}

// versionOf is a task's version as the harness writes it: as the definition has it, "Yaml" where it has none.
func versionOf(t *taskfile.Task) any {
	if m, ok := t.Raw.Get("metadata"); ok {
		if d, ok := m.(*pyvalue.Dict); ok {
			v, ok := d.Get("version")
			if f, isFloat := v.(float64); isFloat && !math.IsNaN(f) && !math.IsInf(f, 0) {
				return json.Number(pyvalue.Repr(f)) // 1.0 stays 1.0
			}
			if ok {
				return v
			}
		}
	}

	return "Yaml"
}

// configOf is the definition as written, with what the run has changed.
func configOf(t *one) any {
	out := map[string]any{}
	for _, k := range t.Task.Raw.Keys() {
		v, _ := t.Task.Raw.Get(k)
		if f, ok := v.(taskfile.Function); ok {
			v = "!function " + f.Name
		}
		out[k] = v
	}

	out["num_fewshot"] = t.Shots
	return out
}

// finish adds the groups.
func (r *Results) finish(s *Suite, took time.Duration) {
	r.Seconds, r.End = strconv.FormatFloat(took.Seconds(), 'f', -1, 64), r.Start+took.Seconds()

	for _, name := range slices.Backward(s.groups) { // inner groups come later
		g := s.lib.Groups[name]
		tasks, _, _ := s.lib.Members(name)
		r.GroupSubtasks[name] = g.Members
		r.Versions[name] = notAvailable
		if g.Version != "" {
			r.Versions[name] = g.Version
		}

		r.group(g, tasks)
	}

	for _, name := range s.groups {
		r.shots(name)
	}
	if len(r.Groups) == 0 {
		r.Groups = nil
	}
}

// group aggregates the tasks of a group.
func (r *Results) group(g *taskfile.Group, tasks []string) {
	alias := g.Alias
	if alias == "" {
		alias = g.Name
	}

	row := map[string]any{"name": g.Name, "alias": alias}
	total, better := 0, map[string]*bool{}
	for _, t := range tasks {
		total += r.NSamples[t].Effective

		for m, b := range r.HigherIsBetter[t] {
			// As in the harness, a group has no direction where its tasks disagree.
			if before, ok := better[m]; ok && before != nil && *before != *b {
				b = nil
			}
			better[m] = b
		}
	}

	row["sample_len"] = total
	counts := map[string]int{}
	for _, a := range g.Aggregates {
		for _, filter := range a.Filters {
			r.combine(row, counts, a, filter, tasks)
		}
	}

	if len(counts) > 0 {
		row["sample_count"] = counts
		r.Groups[g.Name] = row
	}

	r.Results[g.Name], r.HigherIsBetter[g.Name] = row, better
}

// shots gives a group the number of examples of its direct members, where they agree; groups inside that have
// none yet do not count, as in the harness.
func (r *Results) shots(group string) {
	known := map[int]bool{}
	for _, m := range r.GroupSubtasks[group] {
		if n, ok := r.NShot[m]; ok {
			known[n] = true
		}
	}

	if len(known) == 1 {
		for n := range known {
			r.NShot[group] = n
		}
	}
}

// combine adds a metric to a group's row, where all its tasks have it.
func (r *Results) combine(row map[string]any, counts map[string]int, a taskfile.Aggregate, filter string,
	tasks []string,
) {
	var values, errs []float64
	var sizes []int
	key, errKey := a.Metric+","+filter, a.Metric+"_stderr,"+filter
	n := 0
	for _, t := range tasks {
		v, ok := r.Results[t][key].(float64)
		if !ok {
			continue
		}

		values, sizes = append(values, v), append(sizes, r.NSamples[t].Effective)
		n += r.NSamples[t].Effective
		if se, ok := r.Results[t][errKey].(float64); ok {
			errs = append(errs, se)
		}
	}

	if len(values) == 0 {
		return
	}

	// The harness writes "N/A" where not every task has a standard error.
	row[key], row[errKey] = metric.Combined(values, sizes, a.WeightBySize), notAvailable

	if len(errs) == len(values) {
		row[errKey] = metric.Unweighted(errs)
		if a.WeightBySize {
			row[errKey] = metric.Pooled(errs, sizes)
		}
	}

	counts[key] = n
}

// Filters names the filters of a task's figures; "none" for a task without.
func (r *Results) Filters(task string) []string {
	var out []string
	for key := range r.Results[task] {
		if _, filter, ok := cutKey(key); ok && !slices.Contains(out, filter) {
			out = append(out, filter)
		}
	}

	slices.Sort(out)
	if len(out) == 0 {
		out = []string{score.Unnamed}
	}

	return out
}
