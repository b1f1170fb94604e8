// Package job opens what a document of a recipe merges and resolves it: models and adapters, the plan of every tensor,
// the output's tokenizer, statistics, and from these what the engine of package stream runs. A merge into a folder, the
// split of models into a dense part and experts, and a search that merges in memory are the same job until there.
package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/input"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vocab"
	"github.com/modelcompress/compress/safetensors"
)

// DefaultMemory is the memory that a merge may take if the options do not say.
const DefaultMemory = 1 << 30

// Options are the choices that a recipe does not make, as the work needs them.
type Options struct {
	Threads        int   // goroutines that compute; 0: GOMAXPROCS
	Memory         int64 // bytes of anonymous memory for buffers and statistics; 0: DefaultMemory
	Seed           uint64
	DType          string         // of the output, see [DType]; empty: as the recipe says
	Missing        string         // what becomes of tensors that some models lack, see [Missing]
	Truncate       bool           // vocabularies that differ are cut to the rows that all models have
	AllowNonFinite bool           // NaN and infinities are merged and counted
	RandomTies     bool           // random numbers, not indices, decide which of equal elements stay at a threshold
	KeepZeros      bool           // elements that are 0 in the base, or the first model, stay 0
	Device         kernels.Device // nil: the CPU
	KnownOwners    bool           // that files of statistics are of the models that they weigh was found before
	Outlined       bool           // what earlier documents make is there without its values
}

// DType is the type that an option names, 0 if the recipe decides.
func DType(name string) (safetensors.DType, error) {
	switch name {
	case "":
		return 0, nil
	case "bfloat16", "bf16":
		return safetensors.BF16, nil
	case "float16", "f16", "fp16":
		return safetensors.F16, nil
	case "float32", "f32", "fp32":
		return safetensors.F32, nil
	case "float64", "f64", "fp64":
		return safetensors.F64, nil
	}

	return 0, fmt.Errorf("dtype %.50q: want bfloat16, float16, float32 or float64", name)
}

// Missing is what an option says about tensors that some models lack.
func Missing(name string) (plan.Missing, error) {
	switch name {
	case "", "error":
		return plan.MissingError, nil
	case "merge":
		return plan.MissingMerge, nil
	case "copy":
		return plan.MissingCopy, nil
	case "skip":
		return plan.MissingSkip, nil
	}

	return 0, fmt.Errorf("missing %.50q: want error, merge, copy or skip", name)
}

// Work is one document on its way: open inputs, the plan, and what the engine gets.
type Work struct {
	Recipe   Recipe
	Doc      *recipe.Document
	Options  Options
	Method   *method.Method // of mediate, its entry for reports alone: its tensors are merged by other methods
	Inputs   []plan.Input
	Models   map[recipe.Ref]*input.Model
	Folders  map[recipe.Ref]string
	Plan     *plan.Plan
	Warnings []string

	words *vocab.Vocabulary // nil: tokenizer files are copied
	stats map[string]*safetensors.File
	empty map[string]bool // folders whose tensors have no values yet
	away  kernels.Device  // that merges instead of the CPU; nil: none
}

// Mediated is how reports describe mediate, and that its tensors have a base.
var Mediated = &method.Method{
	Summary: "mean where models agree, experts where they conflict",
	Spec:    recipe.Method{Name: recipe.Mediated, Base: recipe.BaseRequired},
}

// Open opens the models of a document and resolves it to a plan of its tensors. named are the folders of the results
// of earlier documents, by name.
func Open(ctx context.Context, r Recipe, doc *recipe.Document, named map[string]string, o Options) (*Work, error) {
	w := &Work{
		Recipe: r, Doc: doc, Options: o, Method: Mediated, away: stream.Away(o.Device),
		Models: map[recipe.Ref]*input.Model{}, Folders: map[recipe.Ref]string{},
		stats: map[string]*safetensors.File{}, empty: map[string]bool{},
	}
	if o.Outlined {
		for _, dir := range named {
			w.empty[dir] = true
		}
	}

	if doc.Mediate == nil {
		found, err := method.Find(doc.Method)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Path, err)
		}
		w.Method = found
	}

	if err := w.resolve(ctx, named); err != nil {
		return nil, errors.Join(err, w.Close())
	}

	return w, nil
}

// resolve opens the models and plans every tensor.
func (w *Work) resolve(ctx context.Context, named map[string]string) error {
	if err := w.open(ctx, named); err != nil {
		return err
	}

	missing, err := Missing(w.Options.Missing)
	if err != nil {
		return err
	}

	dtype, err := DType(w.Options.DType)
	if err != nil {
		return err
	}

	w.Plan, err = plan.Resolve(w.Doc, w.Inputs, method.Specs(),
		plan.Options{Missing: missing, Truncate: w.Options.Truncate, DType: dtype})
	if err != nil {
		return Faulty(err)
	}

	input.Lay(w.Plan, w.Models, w.Doc.Mediate != nil)
	w.Warnings = slices.Clone(w.Plan.Warnings)
	if err := Faulty(w.readVocabulary()); err != nil {
		return err
	}
	return w.ownStatistics(ctx)
}

// open opens every model that the document mentions.
func (w *Work) open(ctx context.Context, named map[string]string) error {
	folders, err := w.Doc.Folders(w.Recipe.Places(named))
	if err != nil {
		return err
	}

	for _, ref := range w.Doc.References() {
		dir := folders[ref.Model]
		m, err := input.Open(ctx, ref.String(), dir, folders[ref.Adapter])
		if err != nil {
			return err
		}

		w.Models[ref], w.Folders[ref] = m, dir
		config, err := readFile(dir, "config.json")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}

		w.Inputs = append(w.Inputs, plan.Input{Ref: ref, Dir: dir, Tensors: m.Infos(), Config: config})
	}

	return nil
}

// Close closes everything that is open.
func (w *Work) Close() error {
	var errs []error
	for _, m := range w.Models {
		errs = append(errs, m.Close())
	}
	for _, f := range w.stats {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Engine is how the engine is to run.
func (w *Work) Engine() stream.Options {
	workers := w.Options.Threads
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	return stream.Options{
		Threads: workers, Memory: cmp.Or(w.Options.Memory, DefaultMemory), AllowNonFinite: w.Options.AllowNonFinite,
		Device: w.Options.Device,
	}
}

// Layout lists the output's tensors.
func (w *Work) Layout() []safetensors.Info {
	list := make([]safetensors.Info, len(w.Plan.Tensors))
	for i, t := range w.Plan.Tensors {
		list[i] = safetensors.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	return list
}

// Groups makes what the engine runs for a document by one method. done reports which tensors an interrupted run has
// finished.
func (w *Work) Groups(done func(name string) bool) ([]stream.Group, error) {
	g := w.NewGroups(done)
	for i := range w.Plan.Tensors {
		if err := g.Add(w.Method, &w.Plan.Tensors[i]); err != nil {
			return nil, err
		}
	}
	return g.List()
}

// Groups are tensors on their way to the engine: each for itself, or all together where their method has to see all
// of them before it knows what becomes of one.
type Groups struct {
	w        *Work
	done     func(name string) bool
	list     []stream.Group
	method   *method.Method // of those together
	together []*stream.Item
}

// NewGroups are no tensors yet. done reports which of them an interrupted run has finished.
func (w *Work) NewGroups(done func(name string) bool) *Groups { return &Groups{w: w, done: done} }

// Add adds a tensor that a method merges, or that is copied.
func (g *Groups) Add(m *method.Method, t *plan.Tensor) error {
	it, copied, err := g.w.Item(m, t)
	if err != nil {
		return err
	}

	it.Done = g.done(t.Name)

	switch {
	case copied:
		own := stream.Group{Items: []*stream.Item{it}}
		if it.Raw == nil {
			own.Program = method.Copy()
		}
		g.list = append(g.list, own)
	case m.Global != nil && m.Global(it.Tensor.Params):
		g.method = m
		g.together = append(g.together, it)
	default:
		return g.run(m, []*stream.Item{it})
	}

	return nil
}

// List are the groups; nothing can be added any more.
func (g *Groups) List() ([]stream.Group, error) {
	if len(g.together) > 0 {
		if err := g.run(g.method, g.together); err != nil {
			return nil, err
		}
	}
	return g.list, nil
}

// run makes the program of tensors that are merged together.
func (g *Groups) run(m *method.Method, items []*stream.Item) error {
	var tensors []*method.Tensor
	for _, it := range items {
		tensors = append(tensors, it.Tensor)
	}

	p, err := m.New(tensors)
	if err != nil {
		return g.w.placed(err)
	}

	g.w.Warnings = append(g.w.Warnings, p.Warnings...)
	g.list = append(g.list,
		stream.Group{Items: items, Program: p, Task: stream.TaskOf(g.w.away, m.Spec.Name, tensors)})
	return nil
}

// placed gives an error about parameters its place in the recipe.
func (w *Work) placed(err error) error {
	var p *method.ParameterError
	switch {
	case errors.As(err, &p):
		return Faulty(w.Plan.Blame(err, p.Name, p.Value))
	case errors.Is(err, method.ErrZeroWeight):
		return Faulty(w.Plan.Blame(err, "weight", 0))
	}
	return fmt.Errorf("%s: %w", w.Recipe.Path, err)
}

// Item is the engine's view of a tensor that a method merges; of one that is copied instead, as bytes if Raw is set,
// copied is true.
func (w *Work) Item(m *method.Method, t *plan.Tensor) (it *stream.Item, copied bool, err error) {
	// The random numbers of a tensor hang on its name, not on its number: leaving out a tensor doesn't change the
	// others.
	h := fnv.New64a()
	h.Write([]byte(t.Name))
	tensor := &method.Tensor{
		Name: t.Name, Shape: t.Shape, N: safetensors.Info{Shape: t.Shape}.Elements(), Params: t.Params,
		Vocab: t.VocabAxis >= 0, Seed: [2]uint64{w.Options.Seed, h.Sum64()},
		RandomTies: w.Options.RandomTies,
	}

	it = &stream.Item{Tensor: tensor, DType: t.DType}
	if t.Copy || m.Spec.Name == "passthrough" && unscaled(t) {
		return it, true, w.copy(it, t)
	}

	base := -1
	if m.Spec.Base != recipe.BaseIgnored {
		base = t.Base
	}

	for i := range t.Sources {
		s := &t.Sources[i]
		src, err := w.Source(it, t, s)
		if err != nil {
			return nil, false, err
		}

		// Zeros are kept where the base has them, or the first model if there is none.
		if i == max(t.Base, 0) && w.Options.KeepZeros {
			it.Mask = src
		}

		// Where the method ignores the base, it is an input like the others.
		if i == base {
			tensor.Base, it.Base = true, src
			continue
		}

		in := method.Input{Model: s.Model, Name: w.Plan.Models[s.Model].String(), Params: s.Params}
		if err := w.statistics(m, it, &in, s); err != nil {
			return nil, false, err
		}

		tensor.Inputs = append(tensor.Inputs, in)
		it.X, it.Models = append(it.X, src), append(it.Models, in.Name)
	}

	if base >= 0 {
		it.Models = append(it.Models, w.Plan.Models[t.Sources[base].Model].String())
	}

	return it, false, nil
}

// unscaled reports whether passthrough leaves the elements as they are.
func unscaled(t *plan.Tensor) bool {
	return len(t.Sources) == 1 && (!t.Sources[0].Params.Has("scale") || t.Sources[0].Params.Number("scale") == 1)
}

// copy sets up a tensor that is its first source: as bytes where the type stays, otherwise element by element.
func (w *Work) copy(it *stream.Item, t *plan.Tensor) error {
	s := &t.Sources[0]
	name := w.Plan.Models[s.Model].String()
	it.Models = []string{name}

	rounds := w.Plan.DType != 0 && w.Plan.DType != s.Info.DType && dtype.IsFloat(s.Info.DType)
	if s.Info.DType == t.DType && !rounds && !w.Arranged(t) && slices.Equal(s.Info.Shape, t.Shape) {
		raw, err := w.model(s).Raw(s.Info.Name)
		if err != nil {
			return err
		}
		it.Raw = raw
	}

	if it.Raw != nil && !dtype.IsFloat(t.DType) {
		return nil
	}

	src, err := w.Source(it, t, s)
	if err != nil {
		return err
	}

	it.X = []stream.Source{src}
	it.Tensor.Inputs = []method.Input{{Model: s.Model, Name: name, Params: s.Params}}
	return nil
}

func (w *Work) model(s *plan.TensorSource) *input.Model { return w.Models[w.Plan.Models[s.Model]] }

// Source reads a tensor of a model in the shape of the output.
func (w *Work) Source(it *stream.Item, t *plan.Tensor, s *plan.TensorSource) (stream.Source, error) {
	if w.Arranged(t) {
		return w.mappedSource(it, t, s)
	}

	src, err := w.model(s).Source(s.Info.Name, w.Plan.DType)
	if err != nil {
		return nil, err
	}

	if slices.Equal(s.Info.Shape, t.Shape) {
		return src, nil
	}
	// Leading rows of a longer tensor are its first elements.
	if len(s.Info.Shape) == len(t.Shape) && len(t.Shape) > 0 && s.Info.Shape[0] >= t.Shape[0] &&
		slices.Equal(s.Info.Shape[1:], t.Shape[1:]) {
		return src, nil
	}

	return nil, fmt.Errorf("tensor %q of %s has shape %v, the output's is %v: %w", s.Info.Name, w.Plan.Models[s.Model],
		s.Info.Shape, t.Shape, method.ErrShape)
}
