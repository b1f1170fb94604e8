package task

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/editeval/task/internal/score"
	"github.com/modelcompress/compress/editeval/task/internal/store"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/internal/stage"
)

// hash is the SHA-256 of a text, in hexadecimal digits, as the harness has it.
func hash(s string) string { return stage.Sum([]byte(s)) }

// sample is the JSON line of a document and a filter: the harness' keys, and with them the tokens of each request.
func sample(t *one, d *document, answers []store.Answer, filter string, o score.Outcome) ([]byte, error) {
	row := pyvalue.NewDict()
	row.Set("doc_id", int64(d.ID))
	row.Set("doc", d.Doc)
	row.Set("target", pyvalue.Str(d.Target))
	row.Set("arguments", arguments(t, d))
	var resps []any
	for _, a := range answers {
		resps = append(resps, []any{response(t, a)})
	}

	// The harness has one number for a document that was cut into windows.
	if t.Task.OutputType == taskfile.Rolling {
		said := likelihoods(t, answers)
		resps = []any{[]any{pyvalue.Str(said[0].LL)}}
	}

	row.Set("resps", resps)
	row.Set("filtered_resps", filtered(resps, o))
	row.Set("filter", filter)
	var names []any
	for _, m := range t.Task.Metrics {
		names = append(names, m.Name)
	}

	row.Set("metrics", names)
	for i, h := range hashesOf(d) {
		row.Set([]string{"doc_hash", "prompt_hash", "target_hash"}[i], h)
	}
	for _, m := range t.Task.Metrics {
		row.Set(m.Name, figure(m.Name, o.Items[m.Name]))
	}

	row.Set("tokens", tokens(d))

	if d.Examples != nil {
		var rows []any
		for _, i := range d.Examples {
			rows = append(rows, int64(i))
		}
		row.Set("examples", rows)
	}

	line, err := pyvalue.AppendJSON(nil, row)
	return append(line, '\n'), err
}

// hashesOf are those of a document, its first prompt (of a rolling text, the text) and its target.
func hashesOf(d *document) [3]string {
	prompt := d.Requests[0].Context
	if d.all != nil {
		prompt = d.Requests[0].Continuation
	}
	return [3]string{hash(pretty(d.Doc)), hash(prompt), hash(pyvalue.Str(d.Target))}
}

// arguments are the requests as the harness writes them.
func arguments(t *one, d *document) *pyvalue.Dict {
	out := pyvalue.NewDict()
	for i, q := range d.Requests {
		args := pyvalue.NewDict()
		switch t.Task.OutputType {
		case taskfile.Rolling:
			args.Set("arg_0", q.Continuation)
		case taskfile.GenerateUntil:
			args.Set("arg_0", q.Context)
			args.Set("arg_1", t.Task.Generation.Kwargs)
		default:
			args.Set("arg_0", q.Context)
			args.Set("arg_1", q.Continuation)
		}

		out.Set(fmt.Sprintf("gen_args_%d", i), args)
	}

	return out
}

// response is an answer as the harness writes it: numbers as texts.
func response(t *one, a store.Answer) any {
	if t.Task.OutputType == taskfile.GenerateUntil {
		return a.Text
	}
	return []any{pyvalue.Str(a.LL), pyvalue.Str(a.Greedy)}
}

// filtered is what is left of the answers after the filter.
func filtered(resps []any, o score.Outcome) []any {
	if o.Filtered != nil {
		return []any{o.Filtered}
	}
	var out []any
	for _, r := range resps {
		out = append(out, r.([]any)[0])
	}
	return out
}

// figure is what a document contributes to a metric.
func figure(name string, x metric.Item) any {
	switch {
	case x.Probs != nil:
		var p []any
		for _, v := range x.Probs {
			p = append(p, v)
		}
		return []any{int64(x.Gold), p}
	case name == "f1" || name == "mcc":
		return []any{int64(x.Gold), int64(x.Pred)}
	case x.N != 0:
		return []any{x.X, x.N}
	}

	return x.X
}

// tokens counts those of each request: of the context, of what is scored, and those that the model saw.
func tokens(d *document) []any {
	var out []any
	for _, s := range d.seqs {
		c := pyvalue.NewDict()
		c.Set("context", int64(s.Before))
		c.Set("scored", int64(len(s.Target)))
		c.Set("input", int64(len(s.IDs)))
		out = append(out, c)
	}

	for _, p := range d.prompts {
		c := pyvalue.NewDict()
		c.Set("context", int64(d.before))
		c.Set("input", int64(len(p.IDs)))
		out = append(out, c)
	}

	return out
}

// pretty is json.dumps(doc, indent=2, ensure_ascii=False), which the harness hashes.
func pretty(v any) string {
	var b strings.Builder
	indent(&b, v, "\n")
	return b.String()
}

func indent(b *strings.Builder, v any, line string) {
	inner := line + "  "
	switch v := v.(type) {
	case *pyvalue.Dict:
		if v.Len() == 0 {
			b.WriteString("{}")
			return
		}

		for i, k := range v.Keys() {
			b.WriteString(map[bool]string{true: "{", false: ","}[i == 0] + inner)
			indent(b, k, inner)
			b.WriteString(": ")
			x, _ := v.Get(k)
			indent(b, x, inner)
		}

		b.WriteString(line + "}")
	case []any:
		if len(v) == 0 {
			b.WriteString("[]")
			return
		}

		for i, x := range v {
			b.WriteString(map[bool]string{true: "[", false: ","}[i == 0] + inner)
			indent(b, x, inner)
		}

		b.WriteString(line + "]")
	default:
		text, err := pyvalue.AppendJSON(nil, v)
		if err == nil {
			b.Write(text)
		}
	}
}
