package taskfile

import (
	"errors"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// reader takes values out of a dictionary and collects what is wrong.
type reader struct {
	doc    *document
	dict   *pyvalue.Dict
	used   map[string]bool
	faults *[]error
}

func (d *document) reader(dict *pyvalue.Dict, faults *[]error) *reader {
	return &reader{doc: d, dict: dict, used: map[string]bool{}, faults: faults}
}

func (r *reader) fail(key string, err error, format string, args ...any) {
	if v, _ := r.dict.Get(key); len(python(v)) > 0 {
		return // named already, with the way out
	}
	*r.faults = append(*r.faults, r.doc.fault(r.dict, key, err, format, args...))
}

// get takes a value; nil if it is not there.
func (r *reader) get(key string) any {
	r.used[key] = true
	v, _ := r.dict.Get(key)
	return v
}

// end complains about keys that nobody took.
func (r *reader) end() {
	known := make([]string, 0, len(r.used))
	for k := range r.used {
		known = append(known, k)
	}

	slices.Sort(known)

	for _, k := range r.dict.Keys() {
		if !r.used[k] {
			r.fail(k, ErrUnknownKey, "%q (HINT: %s)", k, strings.TrimPrefix(strictyaml.Suggest(k, known), "; "))
		}
	}
}

func (r *reader) text(key, without string) string {
	switch v := r.get(key).(type) {
	case nil:
		return without
	case string:
		return v
	case int64, float64:
		return pyvalue.Str(v)
	default:
		r.fail(key, ErrValue, "%s is a %s, want text", key, kindOf(v))
	}

	return without
}

func (r *reader) bool(key string, without bool) bool {
	switch v := r.get(key).(type) {
	case nil:
	case bool:
		return v
	default:
		r.fail(key, ErrValue, "%s is %s, want true or false", key, pyvalue.Repr(v))
	}
	return without
}

func (r *reader) int(key string, lo int) *int {
	v := r.get(key)
	if v == nil {
		return nil
	}

	n, ok := v.(int64)
	if !ok || n < int64(lo) || n > 1<<31 {
		r.fail(key, ErrValue, "%s is %s, want a whole number from %d on", key, pyvalue.Repr(v), lo)
		return nil
	}

	i := int(n)
	return &i
}

func (r *reader) number(key string) float64 {
	v := r.get(key)
	f, ok := pyvalue.Number(v)
	if !ok && v != nil {
		r.fail(key, ErrValue, "%s is %s, want a number", key, pyvalue.Repr(v))
	}
	return f
}

// texts takes a text or a list of them.
func (r *reader) texts(key string) []string {
	switch v := r.get(key).(type) {
	case nil:
	case string:
		return []string{v}
	case []any:
		out := make([]string, 0, len(v))
		for _, x := range v {
			s, ok := x.(string)
			if !ok {
				r.fail(key, ErrValue, "%s holds a %s, want texts", key, kindOf(x))
				return nil
			}
			out = append(out, s)
		}

		return out
	default:
		r.fail(key, ErrValue, "%s is a %s, want a text or a list of texts", key, kindOf(v))
	}

	return nil
}

func (r *reader) ints(key string) []int {
	v, ok := r.get(key).([]any)
	if !ok {
		return nil
	}

	out := make([]int, 0, len(v))
	for _, x := range v {
		n, ok := x.(int64)
		if !ok || n < 0 {
			r.fail(key, ErrValue, "%s holds %s, want row numbers", key, pyvalue.Repr(x))
			return nil
		}
		out = append(out, int(n))
	}

	return out
}

func (r *reader) function(key string) *Function {
	switch v := r.get(key).(type) {
	case nil:
	case Function:
		return &v
	default:
		r.fail(key, ErrValue, "%s is a %s, want a !function", key, kindOf(v))
	}
	return nil
}

// field takes what may be a text, a number, a list or a function.
func (r *reader) field(key string) any {
	v := r.get(key)
	if f, ok := v.(float64); ok {
		r.fail(key, ErrValue, "%s is %g, want a text, a whole number, a list or a !function", key, f)
		return nil
	}
	return v
}

func kindOf(v any) string {
	if f, ok := v.(Function); ok {
		return "!function " + f.Name
	}
	return pyvalue.Kind(v)
}

// dicts takes a list of dictionaries.
func (r *reader) dicts(key string) []*pyvalue.Dict {
	v := r.get(key)
	if v == nil {
		return nil
	}
	if d, ok := v.(*pyvalue.Dict); ok {
		return []*pyvalue.Dict{d}
	}

	list, ok := v.([]any)
	out := make([]*pyvalue.Dict, 0, len(list))
	for _, x := range list {
		var d *pyvalue.Dict
		if d, ok = x.(*pyvalue.Dict); !ok {
			break
		}
		out = append(out, d)
	}
	if !ok {
		r.fail(key, ErrValue, "%s is no list of keys and values", key)
	}

	return out
}

// ignoredKeys change nothing here: the harness reads them for downloads, decontamination and display.
var ignoredKeys = []string{
	"dataset_name", "doc_to_decontamination_query", "should_decontaminate", "unsafe_code",
	"group",
}

// FewshotIndices is a key that has no effect in lm-evaluation-harness 0.4.13, and none here, so that prompts
// are the same.
const FewshotIndices = "fewshot_indices"

// task decodes a task.
func (d *document) task() (*Task, error) {
	faults := pythonOf(d.root)
	r := d.reader(d.root, &faults)
	t := &Task{
		Name: r.text("task", ""), Alias: r.text("task_alias", ""), Tags: r.texts("tag"), Path: d.path, Raw: d.root,
		TrainingSplit: r.text("training_split", ""), ValidationSplit: r.text("validation_split", ""),
		TestSplit:   r.text("test_split", ""),
		ProcessDocs: r.function("process_docs"), OutputType: r.text("output_type", GenerateUntil),
		DocToText: r.field("doc_to_text"), DocToTarget: r.field("doc_to_target"), DocToChoice: r.field("doc_to_choice"),
		ProcessResults: r.function("process_results"), Description: r.field("description"),
		TargetDelimiter: r.text("target_delimiter", " "),
		GenPrefix:       r.text("gen_prefix", ""), NumFewshot: r.int("num_fewshot", 0),
		FewshotDelimiter: r.text("fewshot_delimiter", "\n\n"), Repeats: 1,
	}

	r.get("include")
	if n := r.int("repeats", 1); n != nil {
		t.Repeats = *n
	}

	for _, k := range ignoredKeys {
		if r.get(k) != nil {
			t.Ignored = append(t.Ignored, k)
		}
	}

	t.Version = d.version(r)
	t.dataset(r)
	t.fewshot(d, r, &faults)
	t.generation(d, r, &faults)
	t.filters(d, r, &faults)
	t.metrics(d, r, &faults)
	t.check(r)
	r.end()

	return t, errors.Join(faults...)
}

// version takes metadata; whatever else is there belongs to its writer.
func (d *document) version(r *reader) string {
	switch m := r.get("metadata").(type) {
	case nil:
	case *pyvalue.Dict:
		if v, ok := m.Get("version"); ok {
			return pyvalue.Str(v)
		}
	default:
		r.fail("metadata", ErrValue, "metadata is a %s, want keys and values", kindOf(m))
	}

	return ""
}

func (t *Task) check(r *reader) {
	known := []string{MultipleChoice, LogLikelihood, Rolling, GenerateUntil}
	if !slices.Contains(known, t.OutputType) {
		r.fail("output_type", ErrValue, "output_type %q; known: %s", t.OutputType, strings.Join(known, ", "))
	}

	// In a fixed order, as the message names them all.
	for _, need := range []struct {
		key     string
		missing bool
	}{
		{"task", t.Name == ""},
		{"test_split or validation_split", t.TestSplit == "" && t.ValidationSplit == ""},
		{"doc_to_text", t.DocToText == nil && t.OutputType != Rolling},
		{"doc_to_target", t.DocToTarget == nil},
		{"doc_to_choice", t.DocToChoice == nil && t.OutputType == MultipleChoice},
	} {
		if need.missing {
			r.fail(need.key, ErrMissing, "%s", need.key)
		}
	}

	if strings.ContainsAny(t.Name, "/\\ \t\n") || strings.HasPrefix(t.Name, ".") {
		r.fail("task", ErrValue, "task %q: a name has no slashes and spaces and does not begin with a dot", t.Name)
	}
}

// dataset takes the keys that say where documents are.
func (t *Task) dataset(r *reader) {
	path := r.text("dataset_path", "")
	kwargs, _ := r.get("dataset_kwargs").(*pyvalue.Dict)

	formats := map[string]string{"json": "", "csv": "", "parquet": "parquet", "arrow": "arrow", "text": "text"}
	if format, ok := formats[path]; ok {
		t.Format = format
	} else if path != "" {
		r.fail("dataset_path", ErrUnsupported, "dataset_path %q is not on this machine: data come from local files, "+
			"as in dataset_path: json with dataset_kwargs: {data_files: {test: FILE}}; the hub's data", path)
		if kwargs == nil {
			return // what is missing has been said
		}
	}

	if kwargs == nil {
		r.fail("dataset_kwargs", ErrMissing, "dataset_kwargs with data_files")
		return
	}

	k := r.doc.reader(kwargs, r.faults)
	t.Field = k.text("field", "")

	for _, key := range []string{"trust_remote_code", "split", "delimiter", "sep"} {
		v := k.get(key)
		if v == nil || key != "delimiter" && key != "sep" {
			continue
		}

		switch v {
		case ",":
		case "\t":
			t.Format = "tsv"
		default:
			k.fail(key, ErrUnsupported, "%s %s; known: a comma and a tab", key, pyvalue.Repr(v))
		}
	}

	t.Data = map[string][]string{}
	switch files := k.get("data_files").(type) {
	case *pyvalue.Dict:
		f := r.doc.reader(files, r.faults)
		for _, split := range files.Keys() {
			t.Data[split] = f.texts(split)
		}
	case string, []any:
		t.Data["train"] = k.texts("data_files")
	default:
		r.fail("dataset_kwargs", ErrMissing, "data_files in dataset_kwargs")
	}

	k.end()

	for _, key := range []string{"training_split", "validation_split", "test_split", "fewshot_split"} {
		if split, ok := r.dict.Get(key); ok && split != nil && t.Data[pyvalue.Str(split)] == nil {
			r.fail(key, ErrValue, "%s %q has no data_files", key, pyvalue.Str(split))
		}
	}
}

func (t *Task) fewshot(d *document, r *reader, faults *[]error) {
	f := Fewshot{
		Sampler: "default", Split: r.text("fewshot_split", ""), ProcessDocs: t.ProcessDocs, DocToText: t.DocToText,
		DocToTarget: t.DocToTarget,
		DocToChoice: t.DocToChoice, GenPrefix: t.GenPrefix, TargetDelimiter: t.TargetDelimiter,
		FewshotDelimiter: t.FewshotDelimiter,
	}

	if dict, ok := r.get("fewshot_config").(*pyvalue.Dict); ok {
		k := d.reader(dict, faults)
		f.Sampler, f.Split = k.text("sampler", f.Sampler), k.text("split", f.Split)
		if k.ints("fewshot_indices") != nil { // lm-evaluation-harness 0.4.13 reads it and draws from all documents
			t.Ignored = append(t.Ignored, FewshotIndices)
		}

		f.GenPrefix = k.text("gen_prefix", f.GenPrefix)
		f.TargetDelimiter, f.FewshotDelimiter = k.text("target_delimiter", f.TargetDelimiter),
			k.text("fewshot_delimiter", f.FewshotDelimiter)
		if p := k.function("process_docs"); p != nil {
			f.ProcessDocs = p
		}

		for _, e := range []struct {
			key string
			to  *any
		}{{"doc_to_text", &f.DocToText}, {"doc_to_target", &f.DocToTarget}, {"doc_to_choice", &f.DocToChoice}} {
			if v := k.field(e.key); v != nil {
				*e.to = v
			}
		}

		if _, f.HasSamples = dict.Get("samples"); f.HasSamples {
			for _, s := range k.dicts("samples") {
				f.Samples = append(f.Samples, s)
			}
		}

		if f.Sampler != "default" && f.Sampler != "first_n" {
			k.fail("sampler", ErrValue, "sampler %q; known: default, first_n", f.Sampler)
		}

		k.end()
	}

	t.Fewshot = f
}

// DefaultTokens is how many tokens are generated where a task does not say.
const DefaultTokens = 256

// generation takes generation_kwargs; what they lack, and what counts where there are none, is the harness'.
func (t *Task) generation(d *document, r *reader, faults *[]error) {
	kwargs := pyvalue.NewDict()
	given, has := r.get("generation_kwargs").(*pyvalue.Dict)
	if has {
		for _, key := range given.Keys() {
			v, _ := given.Get(key)
			if f, ok := pyvalue.Number(v); ok && key == "temperature" {
				v = f
			}
			kwargs.Set(key, v)
		}

		d.keys[kwargs] = d.keys[given]
	} else {
		kwargs.Set("temperature", 0.0)
		kwargs.Set("do_sample", false)
		kwargs.Set("max_gen_toks", int64(DefaultTokens))
	}

	if _, ok := kwargs.Get("until"); !ok {
		kwargs.Set("until", []any{t.FewshotDelimiter})
	}

	k := d.reader(kwargs, faults)
	g := Generation{
		Kwargs: kwargs, Until: k.texts("until"), Sample: k.bool("do_sample", false),
		Temperature: k.number("temperature"),
	}

	for _, key := range []string{"max_gen_toks", "max_new_tokens", "max_tokens"} { // the first one counts
		if n := k.int(key, 1); n != nil && g.MaxTokens == 0 {
			g.MaxTokens = *n
		}
	}

	if said, _ := kwargs.Get("do_sample"); said == nil { // the harness decides by the temperature
		g.Sample = g.Temperature > 0
	}

	if g.Sample && g.Temperature > 0 {
		k.fail("temperature", ErrUnsupported,
			"sampled generation; only greedy generation is reproducible (HINT: do_sample: false)")
	}

	k.end()
	t.Generation = g
}

func (t *Task) filters(d *document, r *reader, faults *[]error) {
	for _, dict := range r.dicts("filter_list") {
		k := d.reader(dict, faults)
		f := Filter{Name: k.text("name", "none")}
		for _, step := range k.dicts("filter") {
			name, _ := step.Get("function")
			s, ok := name.(string)
			if !ok {
				k.fail("filter", ErrMissing, "function of a filter")
				continue
			}
			f.Steps = append(f.Steps, Step{s, step})
		}

		k.end()
		t.Filters = append(t.Filters, f)
	}
}

func (t *Task) metrics(d *document, r *reader, faults *[]error) {
	for _, dict := range r.dicts("metric_list") {
		k := d.reader(dict, faults)
		m := Metric{
			Name: k.text("metric", ""), Aggregation: k.text("aggregation", ""),
			IgnoreCase:  k.bool("ignore_case", false),
			IgnorePunct: k.bool("ignore_punctuation", false), IgnoreNumbers: k.bool("ignore_numbers", false),
			IgnoreRegexes: k.texts("regexes_to_ignore"),
		}

		if _, ok := dict.Get("higher_is_better"); ok {
			b := k.bool("higher_is_better", true)
			m.HigherIsBetter = &b
		}

		if k.bool("hf_evaluate", false) {
			k.fail("hf_evaluate", ErrUnsupported, "metrics of the evaluate package")
		}
		if m.Name == "" {
			k.fail("metric", ErrMissing, "metric")
		}

		k.end()
		t.Metrics = append(t.Metrics, m)
	}

	if len(t.Metrics) == 0 {
		t.Metrics = defaultMetrics[t.OutputType]
	}
}

// defaultMetrics are those of a task that names none.
var defaultMetrics = map[string][]Metric{
	MultipleChoice: {{Name: "acc"}, {Name: "acc_norm"}},
	LogLikelihood:  {{Name: "perplexity"}, {Name: "acc"}},
	Rolling:        {{Name: "word_perplexity"}, {Name: "byte_perplexity"}, {Name: "bits_per_byte"}},
	GenerateUntil:  {{Name: "exact_match"}},
}

// group decodes a group; inline gives the tasks and groups that are written inside of it.
func (d *document) group(root *pyvalue.Dict) (g *Group, inline map[int]*pyvalue.Dict, err error) {
	inline = map[int]*pyvalue.Dict{}
	faults := pythonOf(root, "task")
	r := d.reader(root, &faults)
	g = &Group{Name: r.text("group", ""), Alias: r.text("group_alias", ""), Path: d.path, Version: d.version(r)}

	r.get("include")
	r.get("tag")
	members, _ := r.get("task").([]any)
	if s, ok := r.get("task").(string); ok {
		members = []any{s}
	}

	for _, m := range members {
		switch m := m.(type) {
		case string:
			g.Members = append(g.Members, m)
		case *pyvalue.Dict:
			name, _ := m.Get("group")
			if name == nil {
				name, _ = m.Get("task")
			}

			s, ok := name.(string)
			if !ok {
				r.fail("task", ErrMissing, "name of a task inside group %q", g.Name)
				continue
			}

			inline[len(g.Members)] = m
			g.Members = append(g.Members, s)
		default:
			r.fail("task", ErrValue, "group %q holds a %s, want names", g.Name, kindOf(m))
		}
	}

	if len(g.Members) == 0 {
		r.fail("task", ErrMissing, "tasks of group %q", g.Name)
	}

	for _, dict := range r.dicts("aggregate_metric_list") {
		k := d.reader(dict, &faults)
		a := Aggregate{
			Metric: k.text("metric", "acc"), WeightBySize: k.bool("weight_by_size", true),
			Filters: k.texts("filter_list"),
		}
		if agg := k.text("aggregation", "mean"); agg != "mean" {
			k.fail("aggregation", ErrUnsupported, "aggregation %q of a group; known: mean", agg)
		}
		if len(a.Filters) == 0 {
			a.Filters = []string{"none"}
		}

		k.end()
		g.Aggregates = append(g.Aggregates, a)
	}

	r.end()
	return g, inline, errors.Join(faults...)
}
