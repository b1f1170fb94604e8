// Package mergecmd runs the verbs that merge models and measure how they conflict: merge, its search and statistics,
// conflict, experts.
package mergecmd

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
)

// Options are the flags of the verb.
type Options struct {
	Out, DType, Shard, Memory, Missing             string
	Layout                                         string // of a mixture of experts
	AllowSame                                      bool   // a mixture's experts may all be one model
	Ties                                           string // which of equal elements stay
	KeepZeros                                      bool
	DryRun, Truncate, NonFinite, Overwrite, Resume bool
	Tensors                                        bool // print a line for each tensor of a plan
}

// MethodList names all methods, for the help.
func MethodList() string {
	var names []string
	for _, m := range merge.Methods() {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}

// Run merges, or with DryRun shows the plan.
func Run(j *cli.Job, path string, o Options) (any, error) {
	opts, err := o.library(j)
	if err != nil {
		return nil, err
	}

	if o.Out == "" && !o.DryRun { // with both nothing is written: people add --dry-run to the command that they have
		return nil, cli.Usagef("--out is not given (HINT: add --out DIR, or --dry-run to see the plan)")
	}

	r, err := merge.Read(path)
	if err != nil {
		return nil, j.Excerpted(err)
	}

	if r.Mixture() {
		if o.KeepZeros {
			return nil, cli.Usagef("--keep-zeros is not for mixtures of experts, whose tensors are copies")
		}
		return mix(j, r, o, opts)
	}

	if o.Layout != "split" || o.AllowSame {
		return nil, cli.Usagef("--layout and --allow-same are for mixtures of experts, which %s is not", path)
	}
	if o.DryRun {
		return dryRun(j, r, opts, o.Tensors)
	}
	if opts.Device, err = j.Device(); err != nil {
		return nil, err
	}

	bar := j.ByteBars()
	opts.Progress = func(p merge.Progress) { bar.Show(strings.TrimSpace("merging "+p.Document), p.Done, p.Total) }
	result, err := merge.Models(j.Ctx, r, o.Out, opts)
	bar.End()
	if err != nil {
		return nil, j.Excerpted(err)
	}

	show(j, result, o.Out)

	if i := opts.Device.Info(); !i.Host && result.OnDevice < result.Tensors {
		j.Remark("%s merged %d of %d tensors and the CPU the others: a GPU computes linear, task_arithmetic, ties "+
			"(with --ties index) and dare, of tensors of one element type", i.Name,
			result.OnDevice, result.Tensors)
	}

	return Result{result, o.Out, result.Seconds, result.BytesPerSecond, result.OnDevice}, nil
}

// Result is the report of a merge with what only this run knows.
type Result struct {
	*merge.Report
	Out            string  `json:"out"`
	Seconds        float64 `json:"merge_seconds"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	// that a GPU merged; the CPU merged the others
	OnDevice int `json:"tensors_on_device"`
}

// Check finds what is wrong with flags by themselves.
func Check(j *cli.Job, o Options) error {
	_, err := o.library(j)
	return err
}

// library makes the options of the library from the flags.
func (o Options) library(j *cli.Job) (merge.Options, error) {
	threads, err := j.Threads()
	if err != nil {
		return merge.Options{}, err
	}

	memory, err := cli.Bytes("memory", o.Memory)
	if err != nil {
		return merge.Options{}, err
	}

	if o.Shard == "keep" {
		return merge.Options{}, cli.Usagef("--max-shard-size keep: a merge has several sources; give a size or none")
	}

	shard, err := cli.ShardSize(o.Shard)
	if err != nil {
		return merge.Options{}, err
	}

	opts := merge.Options{
		Threads: threads, Memory: memory, Seed: j.Seed, DType: o.DType, MaxShard: shard,
		Missing:  merge.Missing(o.Missing),
		Truncate: o.Truncate, AllowNonFinite: o.NonFinite, Overwrite: o.Overwrite, Resume: o.Resume,
		Ties: merge.TieBreak(o.Ties), KeepZeros: o.KeepZeros, Mediator: mediate.Mediator(),
	}

	return opts, cli.Usage(opts.Validate())
}

// dryRun shows what a merge would do.
func dryRun(j *cli.Job, r merge.Recipe, o merge.Options, all bool) (any, error) {
	s, err := merge.Check(j.Ctx, r, o)
	if err != nil {
		return nil, j.Excerpted(err)
	}
	for _, one := range append(s.Before[:len(s.Before):len(s.Before)], s) {
		showPlan(j, one, all)
	}
	return s, nil
}

// planTable shows where tensors come from, those of a kind on one line unless all are asked for.
func planTable(s *merge.Summary, all bool) *report.Table {
	from := func(p merge.Planned) string { return strings.Join(p.Sources, "; ") }
	groups, ok := cli.Grouped(s.Plan, all, func(p merge.Planned) string { return p.Name },
		func(p merge.Planned) string { return fmt.Sprint(p.DType, p.Shape, cli.Kind(from(p))) })
	if !ok {
		t := &report.Table{Columns: report.Columns("tensor", "type", "shape", "from")}
		for _, p := range s.Plan {
			t.Add(p.Name, p.DType, shape(p.Shape), from(p))
		}
		return t
	}

	t := &report.Table{
		Columns: report.Columns("tensors", "layers", "number", "type", "shape", "from"), Note: cli.OnePerKind,
	}
	for _, g := range groups {
		p := g.Items[0]
		source := from(p)
		if len(g.Items) > 1 {
			source = cli.Kind(source)
		}
		t.Add(g.Kind, g.Where, len(g.Items), p.DType, shape(p.Shape), source)
	}
	return t
}

// showPlan shows what the merge of one document would do.
func showPlan(j *cli.Job, s *merge.Summary, all bool) {
	t := &report.Table{Columns: report.Columns("", "")}
	if s.Document != "" {
		t.Add("document", s.Document)
	}

	t.Add("method", s.Method)
	t.Add("models", strings.Join(s.Models, ", "))
	t.Add("configuration from", s.Donor)
	t.Add("tensors", cli.Thousands(int64(s.Tensors)))
	t.Add("parameters", cli.Thousands(s.Parameters))
	t.Add("read", cli.Size(s.BytesIn))
	t.Add("written", cli.Size(s.BytesOut))
	t.Add("memory", cli.Size(s.Memory))
	j.Table(t)
	j.Table(planTable(s, all))
	warn(j, s.Warnings)
}

// show prints what was merged.
func show(j *cli.Job, r *merge.Report, out string) {
	warn(j, r.Warnings)
	if r.Zeros != nil && len(r.Zeros.Lost) > 0 && r.Zeros.From == "" {
		j.Note("--keep-zeros keeps the zeros of the base, or of the first model of a recipe without one")
	}
	if asked, err := j.Threads(); err == nil && r.Threads > 0 && r.Threads < cmp.Or(asked, runtime.GOMAXPROCS(0)) {
		j.Note("--memory leaves room for %d of %d threads", r.Threads, cmp.Or(asked, runtime.GOMAXPROCS(0)))
	}

	for _, n := range r.NonFinite {
		if n.Model == "" {
			j.Note("warning: tensor %q: %d values of the merged one are not finite, though all of the inputs' are",
				n.Tensor, n.Output)
			continue
		}

		j.Note("warning: tensor %q of %s has %d NaN and %d infinite values; of the merged one %d are not finite",
			n.Tensor, n.Model, n.NaN, n.Inf, n.Output)
	}

	t := &report.Table{Columns: report.Columns("", "")}
	t.Add("method", r.Method)
	t.Add("tensors", cli.Thousands(int64(r.Tensors)))
	t.Add("parameters", cli.Thousands(r.Parameters))
	t.Add("read", cli.Size(r.BytesIn))
	t.Add("written", cli.Size(r.BytesOut))

	if r.Ties != nil {
		rule := "those that stay are random"
		if r.Ties.Rule == merge.TieIndex {
			rule = "those of the lower index stay"
		}
		t.Add("at a threshold", fmt.Sprintf("%s of %s differences (%.1f %%); %s", cli.Thousands(r.Ties.Tied),
			cli.Thousands(r.Ties.Elements), 100*float64(r.Ties.Tied)/float64(r.Ties.Elements), rule))
	}

	if r.Zeros != nil && r.Zeros.From != "" {
		t.Add("kept zeros", fmt.Sprintf("%s, as in %s; the merge had made %s of them another value",
			cli.Thousands(r.Zeros.Kept), r.Zeros.From, cli.Thousands(r.Zeros.Restored)))
	}

	if m := r.Mediation; m != nil {
		t.Add("experts", strings.Join(m.Experts, ", "))
		t.Add("routed groups", fmt.Sprintf("%d of %d", len(m.Routed), m.Groups))
		t.Add("beside the dense model", cli.Size(m.ExpertBytes))
		if m.Kept != "" {
			t.Add("kept of the differences", m.Kept)
		}
		if m.RouterAccuracy != nil {
			t.Add("router, on held-out prompts", fmt.Sprintf("%.1f %%", 100**m.RouterAccuracy))
		}
		for _, line := range m.Router {
			t.Add("router", line)
		}
	}

	t.Note = "in " + out
	if r.Seconds > 0 {
		t.Add("rate", cli.Size(int64(r.BytesPerSecond))+"/s")
	}

	j.Table(t)
}

// warn prints warnings, the first few of many.
func warn(j *cli.Job, warnings []string) {
	const most = 20
	for _, w := range warnings[:min(len(warnings), most)] {
		j.Note("warning: %s", w)
	}
	if n := len(warnings) - most; n > 0 {
		j.Note("and %d warnings more; all are in the report", n)
	}
}

// shape writes dimensions.
func shape(dims []int64) string {
	list := make([]string, len(dims))
	for i, d := range dims {
		list[i] = cli.Thousands(d)
	}
	return strings.Join(list, " × ")
}
