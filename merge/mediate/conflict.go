package mediate

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
)

// ConflictOptions are the choices of Conflict. The zero value takes what a mediate recipe says, or the defaults of one.
type ConflictOptions struct {
	// CPU threads to compute with; 0: one for each processor (GOMAXPROCS). The result does not depend on it
	Threads int   `json:"threads,omitempty"`
	Memory  int64 `json:"memory"` // bytes of anonymous memory; 0: merge.DefaultMemory
	// fraction of the largest differences that count; 0: the recipe's, or 0.2; 1: all
	Density     float64 `json:"density,omitempty"`
	Granularity string  `json:"granularity,omitempty"` // layer, block or tensor; "": the recipe's, or layer
	// AllowNonFinite takes NaN and infinities in the inputs for no difference, and counts them, instead of
	// refusing them.
	AllowNonFinite bool                 `json:"allow_non_finite,omitempty"`
	Device         kernels.Device       `json:"-"` // a GPU counts what it can; nil: the CPU
	Progress       func(merge.Progress) `json:"-"` // may be nil
}

// Conflict measures how much the models of a recipe contradict each other in their differences to the base: for
// every tensor, and for layers, halves of layers or tensors as groups. Only the recipe's last document counts,
// and nothing is written.
func Conflict(ctx context.Context, r merge.Recipe, o ConflictOptions) (*ConflictReport, error) {
	own, err := o.merging()
	if err != nil {
		return nil, err
	}

	all, err := job.Handle(r).Merges()
	if err != nil {
		return nil, err
	}

	if len(all.Docs) != 1 {
		return nil, fmt.Errorf("recipe with %d documents, conflict takes one: %w", len(all.Docs), merge.ErrOption)
	}

	doc := all.Docs[0]
	if doc.Base == nil {
		return nil, noBase(all.Path)
	}

	start := time.Now()
	w, err := job.Open(ctx, all, doc, nil, own)
	if err != nil {
		return nil, err
	}
	defer w.Close() // it was only read

	density, granularity := o.settings(doc)
	a, err := analyse(ctx, w, density, o.Progress)
	if err != nil {
		return nil, err
	}

	report := a.report(granularity)
	if report.Advice, err = a.advise(doc.Mediate, granularity); err != nil {
		return nil, job.Faultf(all.Path, "%w", err)
	}
	report.Seconds = time.Since(start).Seconds()
	return report, nil
}

// noBase is the error about a recipe that leaves open what the models differ from.
func noBase(path string) error { return job.Faultf(path, "differences need a base_model") }

// merging checks the options and gives those of the job.
func (o ConflictOptions) merging() (job.Options, error) {
	own := job.Options{Threads: o.Threads, Memory: o.Memory, AllowNonFinite: o.AllowNonFinite, Device: o.Device}
	if !(o.Density >= 0 && o.Density <= 1) {
		return own, fmt.Errorf("density %v: want 0 to 1: %w", o.Density, merge.ErrOption)
	}
	if o.Granularity != "" && !slices.Contains(granularities(), o.Granularity) {
		return own, fmt.Errorf("granularity %.50q: want %s: %w", o.Granularity,
			strings.Join(granularities(), ", "), merge.ErrOption)
	}
	return own, merge.Options{Threads: o.Threads, Memory: o.Memory}.Validate()
}

// settings are the options where they say something, else the recipe's, else the defaults.
func (o ConflictOptions) settings(doc *recipe.Document) (density float64, granularity string) {
	density, granularity = 0.2, "layer"
	if doc.Mediate != nil {
		density, granularity = doc.Mediate.Density, doc.Mediate.Granularity
	}
	if o.Density > 0 {
		density = o.Density
	}
	if o.Granularity != "" {
		granularity = o.Granularity
	}

	return density, granularity
}

// analysis is what was counted of every tensor.
type analysis struct {
	w       *job.Work
	density float64
	inputs  []int // the models that are compared, by their place in the plan
	counts  []*counts
	tensors []int // which tensors of the plan those are
	skipped []string
	result  *stream.Result
}

// analyse counts conflicts tensor by tensor.
func analyse(ctx context.Context, w *job.Work, density float64, progress func(merge.Progress)) (*analysis, error) {
	a := &analysis{w: w, density: density}
	for i := range w.Plan.Models {
		if i != w.Plan.Base && listed(w, i) {
			a.inputs = append(a.inputs, i)
		}
	}

	if len(a.inputs) == 0 || len(a.inputs) > maxModels {
		return nil, fmt.Errorf("%s: %d models beside the base, want 1 to %d: %w", w.Recipe.Path, len(a.inputs),
			maxModels, merge.ErrMethod)
	}

	var groups []stream.Group
	var total int64
	for i := range w.Plan.Tensors {
		it, err := a.item(i)
		if err != nil {
			return nil, err
		}

		if it == nil {
			a.skipped = append(a.skipped, w.Plan.Tensors[i].Name)
			continue
		}

		c := newCounts(len(a.inputs))
		a.counts, a.tensors = append(a.counts, c), append(a.tensors, i)
		groups = append(groups, counting(it, density, c))
		total += it.Tensor.N * int64(it.DType.Bits()/8)
	}

	o := w.Engine()
	if progress != nil {
		var done atomic.Int64
		o.Progress = func(n int64) { progress(merge.Progress{Done: done.Add(n), Total: total}) }
	}

	result, err := stream.Inspect(ctx, groups, o)
	a.result = result
	return a, err
}

// listed reports whether some tensor comes from a model.
func listed(w *job.Work, model int) bool {
	return slices.ContainsFunc(w.Plan.Tensors, func(t plan.Tensor) bool {
		return slices.ContainsFunc(t.Sources, func(s plan.TensorSource) bool { return s.Model == model })
	})
}

// item is the engine's view of a tensor with all models and the base; nil if they cannot be compared.
func (a *analysis) item(i int) (*stream.Item, error) {
	t := &a.w.Plan.Tensors[i]
	if !dtype.IsFloat(t.DType) || t.Base < 0 || len(t.Sources) != len(a.inputs)+1 {
		return nil, nil
	}

	own := *t
	own.Copy = false
	it, _, err := a.w.Item(job.Mediated, &own)
	if err == nil && (it.Base == nil || len(it.X) != len(a.inputs)) {
		return nil, nil
	}

	return it, err
}

// foreign is the length of a difference, as a fraction of the base's, from which on a base is doubted to be the models'
// ancestor: of two models that were trained apart the difference is about as long as √2 of either.
const foreign = 0.9

// report puts the counts together.
func (a *analysis) report(granularity string) *ConflictReport {
	w := a.w
	r := &ConflictReport{
		Version: build.Version(), Base: w.Plan.Models[w.Plan.Base].String(), Density: a.density,
		Granularity: granularity,
		Baseline:    randomSigns(len(a.inputs), a.density), Skipped: a.skipped, Warnings: w.Warnings,
		BytesIn: w.Plan.Summary().BytesIn, OnDevice: a.result.OnDevice,
	}

	for _, m := range a.inputs {
		r.Models = append(r.Models, modelName(w, m))
	}

	whole := newTally("", -1, len(a.inputs))
	for i, c := range a.counts {
		t := &w.Plan.Tensors[a.tensors[i]]
		one := newTally(t.Name, t.Block, len(a.inputs))
		one.Add(c, i)
		whole.Add(c, i)
		r.Tensors = append(r.Tensors, one.row(r.Baseline))
	}

	for _, g := range a.grouped(granularity) {
		r.Groups = append(r.Groups, g.row(r.Baseline))
	}

	// Ratios of the sums of all tensors: a mean over tensors would weigh a norm like a matrix.
	r.Whole, r.Warnings = whole.row(r.Baseline), append(r.Warnings, whole.Warnings()...)
	for i, shift := range r.Whole.Shift {
		// The base may simply be the wrong one, and then every figure of the report is about something else.
		if shift > foreign {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s differs from the base by %.2f of the base's length: is "+
				"%s its ancestor?", r.Models[i], shift, r.Base))
		}
	}

	return r
}

// modelName is what a model is called: its name in the recipe, or the last part of its path.
func modelName(w *job.Work, model int) string {
	ref := w.Plan.Models[model]
	for i := range w.Doc.Models {
		if m := &w.Doc.Models[i]; m.Ref == ref && m.Name != "" {
			return m.Name
		}
	}

	name := path.Base(strings.TrimRight(ref.Model.Path, "/"))
	if ref.Adapter.Path != "" {
		name += "+" + path.Base(strings.TrimRight(ref.Adapter.Path, "/"))
	}

	return name
}

// grouped sums the counts of groups: what comes before the layers, those in order, what comes after.
func (a *analysis) grouped(granularity string) []*tally {
	var list []*tally
	for i, c := range a.counts {
		t := &a.w.Plan.Tensors[a.tensors[i]]
		at := placeOf(t.Name, t.Block, t.Role, granularity)
		k := slices.IndexFunc(list, func(g *tally) bool { return g.place.Group == at.Group })
		if k < 0 {
			k = len(list)
			list = append(list, newTally(at.Group, at.Layer, len(a.inputs)))
		}

		list[k].Add(c, i)
	}

	sortTallies(list)
	return list
}
