package merge

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
	"github.com/modelcompress/compress/merge/internal/conflict"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
)

// Measures are six metrics of conflict between models.
type Measures = conflict.Measures

// ConflictTotals are the exact counts behind them.
type ConflictTotals = conflict.Totals

// Metrics lists the names of the metrics of conflict; the first is the default.
func Metrics() []string { return conflict.Metrics() }

// ConflictOptions are the choices of Conflict. The zero value takes what a mediate recipe says, or the defaults of one.
type ConflictOptions struct {
	// goroutines that compute; 0: GOMAXPROCS. The result does not depend on it
	Workers int   `json:"workers,omitempty"`
	Memory  int64 `json:"memory"` // bytes of anonymous memory; 0: DefaultMemory
	// share of the largest differences that count; 0: the recipe's, or 0.2; 1: all
	Density     float64 `json:"density,omitempty"`
	Granularity string  `json:"granularity,omitempty"` // layer, block or tensor; "": the recipe's, or layer
	// AllowNonFinite takes NaN and infinities in the inputs for no difference, and counts them, instead of
	// refusing them.
	AllowNonFinite bool           `json:"allow_non_finite,omitempty"`
	Device         kernels.Device `json:"-"` // away from the host, counts what it can; nil: the host
	Progress       func(Progress) `json:"-"` // may be nil
}

// ConflictGroup is a tensor, or a group of tensors, and how much the models contradict each other there.
type ConflictGroup = conflict.Group

// ConflictReport is how much models contradict each other. Nothing in it depends on the number of workers or on
// how the files are split, but for Seconds.
type ConflictReport = conflict.Report

// Conflict measures how much the models of a recipe contradict each other in their differences to the base: for
// every tensor, and for layers, halves of layers or tensors as groups. Only the recipe's last document counts,
// and nothing is written.
func Conflict(ctx context.Context, r Recipe, o ConflictOptions) (*ConflictReport, error) {
	own, err := o.merging()
	if err != nil {
		return nil, err
	}

	if err := r.merges(); err != nil {
		return nil, err
	}
	if len(r.docs) != 1 {
		return nil, fmt.Errorf("recipe with %d documents, conflict takes one: %w", len(r.docs), ErrOption)
	}

	start := time.Now()
	w, err := prepareExperts(r, r.docs[0], nil, own)
	defer w.close()

	if err != nil {
		return nil, err
	}

	density, granularity := o.settings(w.doc)
	a, err := w.analyse(ctx, density, o.Progress)
	if err != nil {
		return nil, err
	}

	report := a.report(granularity)
	report.Seconds = time.Since(start).Seconds()
	return report, nil
}

// merging checks the options and gives those of a merge.
func (o ConflictOptions) merging() (Options, error) {
	own := Options{Workers: o.Workers, Memory: o.Memory, AllowNonFinite: o.AllowNonFinite, Device: o.Device}
	if !(o.Density >= 0 && o.Density <= 1) {
		return own, fmt.Errorf("density %v: want 0 to 1: %w", o.Density, ErrOption)
	}
	if o.Granularity != "" && !slices.Contains(conflict.Granularities(), o.Granularity) {
		return own, fmt.Errorf("granularity %.50q: want %s: %w", o.Granularity,
			strings.Join(conflict.Granularities(), ", "), ErrOption)
	}
	return own, own.Validate()
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

// prepareExperts opens a recipe whose models are compared with its base, whatever its method. The caller closes
// the work, also after an error.
func prepareExperts(r Recipe, doc *recipe.Document, named map[string]string, o Options) (*work, error) {
	if doc.Base == nil {
		return &work{}, faultyRecipe{fmt.Errorf("%s: differences need a base_model", r.path)}
	}

	var w *work
	var err error
	if doc.Mediate == nil {
		w, err = prepare(r, doc, named, o)
	} else {
		w = newWork(r, doc, o)
		err = w.resolve(named)
	}

	w.method = &method.Method{Summary: summary, Spec: recipe.Method{Name: recipe.Mediated, Base: recipe.BaseRequired}}
	return w, err
}

// analysis is what was counted of every tensor.
type analysis struct {
	w       *work
	density float64
	inputs  []int // the models that are compared, by their place in the plan
	counts  []*conflict.Counts
	tensors []int // which tensors of the plan those are
	skipped []string
	result  *stream.Result
}

// analyse counts conflicts tensor by tensor.
func (w *work) analyse(ctx context.Context, density float64, progress func(Progress)) (*analysis, error) {
	a := &analysis{w: w, density: density}
	for i := range w.plan.Models {
		if i != w.plan.Base && w.listed(i) {
			a.inputs = append(a.inputs, i)
		}
	}

	if len(a.inputs) == 0 || len(a.inputs) > conflict.MaxModels {
		return nil, fmt.Errorf("%s: %d models beside the base, want 1 to %d: %w", w.recipe.path, len(a.inputs),
			conflict.MaxModels, ErrMethod)
	}

	var groups []stream.Group
	var total int64
	for i := range w.plan.Tensors {
		it, err := a.item(i)
		if err != nil {
			return nil, err
		}

		if it == nil {
			a.skipped = append(a.skipped, w.plan.Tensors[i].Name)
			continue
		}

		c := conflict.NewCounts(len(a.inputs))
		a.counts, a.tensors = append(a.counts, c), append(a.tensors, i)
		groups = append(groups, conflict.Work(it, density, c))
		total += it.Tensor.N * int64(it.DType.Bits()/8)
	}

	o := w.streaming()
	if progress != nil {
		var done atomic.Int64
		o.Progress = func(n int64) { progress(Progress{Done: done.Add(n), Total: total}) }
	}

	result, err := stream.Inspect(ctx, groups, o)
	a.result = result
	return a, err
}

// listed tells whether some tensor comes from a model.
func (w *work) listed(model int) bool {
	return slices.ContainsFunc(w.plan.Tensors, func(t plan.Tensor) bool {
		return slices.ContainsFunc(t.Sources, func(s plan.TensorSource) bool { return s.Model == model })
	})
}

// item is the engine's view of a tensor with all models and the base; nil if they cannot be compared.
func (a *analysis) item(i int) (*stream.Item, error) {
	t := &a.w.plan.Tensors[i]
	if !dtype.IsFloat(t.DType) || t.Base < 0 || len(t.Sources) != len(a.inputs)+1 {
		return nil, nil
	}

	own := *t
	own.Copy = false
	it, _, err := a.w.item(&own)
	if err == nil && (it.Base == nil || len(it.X) != len(a.inputs)) {
		return nil, nil
	}

	return it, err
}

// foreign is the length of a difference, as a share of the base's, from which on a base is doubted to be the models'
// ancestor: of two models that were trained apart the difference is about as long as √2 of either.
const foreign = 0.9

// report puts the counts together.
func (a *analysis) report(granularity string) *ConflictReport {
	w := a.w
	r := &ConflictReport{
		Version: build.Version(), Base: w.plan.Models[w.plan.Base].String(), Density: a.density,
		Granularity: granularity,
		Baseline:    conflict.Baseline(len(a.inputs), a.density), Skipped: a.skipped, Warnings: w.warnings,
		BytesIn: w.plan.Summary().BytesIn, There: a.result.There,
	}

	for _, m := range a.inputs {
		r.Models = append(r.Models, w.modelName(m))
	}

	whole := conflict.NewTally("", -1, len(a.inputs))
	for i, c := range a.counts {
		t := &w.plan.Tensors[a.tensors[i]]
		one := conflict.NewTally(t.Name, t.Block, len(a.inputs))
		one.Add(c, i)
		whole.Add(c, i)
		r.Tensors = append(r.Tensors, one.Group(r.Baseline))
	}

	for _, g := range a.grouped(granularity) {
		r.Groups = append(r.Groups, g.Group(r.Baseline))
	}

	r.Whole, r.Warnings = whole.Group(r.Baseline), append(r.Warnings, whole.Warnings()...)
	for i, shift := range r.Whole.Shift {
		if shift > foreign {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s differs from the base by %.2f of the base's length: is "+
				"%s its ancestor?", r.Models[i], shift, r.Base))
		}
	}

	return r
}

// modelName is what a model is called: its name in the recipe, or the last part of its path.
func (w *work) modelName(model int) string {
	ref := w.plan.Models[model]
	for i := range w.doc.Models {
		if m := &w.doc.Models[i]; m.Ref == ref && m.Name != "" {
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
func (a *analysis) grouped(granularity string) []*conflict.Tally {
	var list []*conflict.Tally
	for i, c := range a.counts {
		t := &a.w.plan.Tensors[a.tensors[i]]
		at := conflict.PlaceOf(t.Name, t.Block, t.Role, granularity)
		k := slices.IndexFunc(list, func(g *conflict.Tally) bool { return g.Place.Group == at.Group })
		if k < 0 {
			k = len(list)
			list = append(list, conflict.NewTally(at.Group, at.Layer, len(a.inputs)))
		}

		list[k].Add(c, i)
	}

	conflict.Sort(list)
	return list
}
