package mergecmd

import (
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge/mediate"
)

// ExportOptions are the flags of experts export.
type ExportOptions struct {
	Task, Weights, Out, Shard string
	Overwrite, Resume         bool
}

// Export writes a checkpoint.
func Export(j *cli.Job, dir string, o ExportOptions) (any, error) {
	threads, err := j.Threads()
	if err != nil {
		return nil, err
	}

	if o.Shard == "keep" {
		return nil, cli.Usagef("--max-shard-size keep: give a size or none")
	}

	shard, err := cli.ShardSize(o.Shard)
	if err != nil {
		return nil, err
	}

	e, err := open(j, dir)
	if err != nil {
		return nil, err
	}
	defer e.Close()

	weights, err := openmodel.ParseWeights(e, o.Weights)
	if o.Task != "" {
		weights, err = e.Weights(map[string]float64{o.Task: 1})
		err = cli.Usage(err)
	}
	if err != nil {
		return nil, err
	}

	bar := j.ByteBars()
	r, err := e.Export(j.Ctx, o.Out, weights, mediate.ExportOptions{
		Threads: threads, MaxShard: shard, Overwrite: o.Overwrite, Resume: o.Resume,
		Progress: func(done, total int64) { bar.Show("exporting", done, total) },
	})

	bar.End()
	if err != nil {
		return nil, err
	}

	j.Printf("%s: %d tensors, %s in %s\n", openmodel.WeightsText(e.Names(), weights), r.Tensors, cli.Size(r.Bytes),
		o.Out)
	return r, nil
}

// open opens a mediated folder.
func open(j *cli.Job, dir string) (*mediate.Experts, error) {
	if err := cli.ModelFolder(dir); err != nil {
		return nil, err
	}
	if !mediate.IsFolder(dir) {
		return nil, fmt.Errorf("%s: no mediator/mediator.json, so it is not a folder that merge_method: mediate wrote",
			dir)
	}
	return mediate.Open(j.Ctx, dir)
}

// Verify checks a folder.
func Verify(j *cli.Job, dir string) (any, error) {
	e, err := open(j, dir)
	if err != nil {
		return nil, err
	}
	defer e.Close()

	v, err := e.Verify(j.Ctx)
	if err != nil {
		return nil, err
	}

	t := &report.Table{Columns: report.Columns("expert", "tensors", "kept", "size", "error|%.4f", "")}
	for _, x := range v.Experts {
		how := "as noted"
		if x.Measured {
			how = "measured"
		}
		t.Add(x.Name, x.Tensors, cli.Thousands(x.Kept), cli.Size(x.Bytes), x.Error, how)
	}

	t.Note = fmt.Sprintf("%d files are what the manifest says, %s", v.Files, cli.Size(v.Bytes))
	j.Table(t)
	return v, nil
}

// RouteOptions are the flags of experts route.
type RouteOptions struct {
	Prompt, File, Features string
	Policy                 mediate.Policy
}

// Routing is a routed prompt.
type Routing struct {
	Prompt  string             `json:"prompt,omitempty"`
	Weights map[string]float64 `json:"weights"`
	mediate.Verdict
}

// Route shows where prompts go.
func Route(j *cli.Job, dir string, o RouteOptions) (any, error) {
	if err := o.Policy.Validate(); err != nil {
		return nil, cli.Usage(err)
	}

	e, err := open(j, dir)
	if err != nil {
		return nil, err
	}
	defer e.Close()

	var list []Routing
	if o.Features != "" {
		list, err = routeFeatures(e, o)
	} else {
		list, err = routePrompts(j, e, dir, o)
	}
	if err != nil {
		return nil, err
	}

	t := &report.Table{Columns: report.Columns("prompt", "goes to", "uncertainty|%.3f", "foreign|%.2f", "")}
	for i, r := range list {
		outside := ""
		if r.Outside {
			outside = "like no expert's"
		}

		weights, err := e.Weights(r.Weights)
		if err != nil {
			return nil, err
		}

		t.Add(short(r.Prompt, i), openmodel.WeightsText(e.Names(), weights), r.Uncertainty, r.Distance, outside)
	}

	j.Table(t)
	return struct {
		Routes []Routing `json:"routes"`
	}{list}, nil
}

// short is the beginning of a prompt, or its number.
func short(prompt string, i int) string {
	if prompt == "" {
		return fmt.Sprint(i)
	}
	if r := []rune(prompt); len(r) > 40 {
		prompt = string(r[:40]) + "…"
	}
	return fmt.Sprintf("%q", prompt)
}

// routing puts a decision together.
func routing(e *mediate.Experts, prompt string, w []float64, v mediate.Verdict) Routing {
	r := Routing{Prompt: prompt, Weights: map[string]float64{}, Verdict: v}
	for i, n := range e.Names() {
		r.Weights[n] = w[i]
	}
	return r
}

func routeFeatures(e *mediate.Experts, o RouteOptions) ([]Routing, error) {
	rows, err := mediate.ReadFeatures(o.Features)
	if err != nil {
		return nil, err
	}

	var list []Routing
	for i, f := range rows {
		w, v, err := e.Judge(f, o.Policy)
		if err != nil {
			return nil, fmt.Errorf("%s: row %d: %w", o.Features, i, err)
		}
		list = append(list, routing(e, "", w, v))
	}

	return list, nil
}

func routePrompts(j *cli.Job, e *mediate.Experts, dir string, o RouteOptions) ([]Routing, error) {
	prompts := []string{o.Prompt}
	if o.File != "" {
		var err error
		if prompts, err = mediate.ReadPrompts(o.File); err != nil {
			return nil, err
		}
	}

	tok, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}

	m, err := j.Load(dir, lm.Options{})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	r, err := e.Attach(m, 0)
	if err != nil {
		return nil, err
	}

	var list []Routing
	for _, p := range prompts {
		ids, err := tok.Encode(p, tokenizer.EncodeOptions{})
		if err != nil {
			return nil, err
		}

		w, v, err := r.Route(j.Ctx, ids, o.Policy)
		if err != nil {
			return nil, fmt.Errorf("prompt %.60q: %w", p, err)
		}

		list = append(list, routing(e, p, w, v))
	}

	return list, nil
}
