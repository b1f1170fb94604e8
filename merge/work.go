package merge

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/input"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vocab"
	"github.com/modelcompress/compress/safetensors"
)

// work is one document on its way: open inputs, the plan, and what the engine gets.
type work struct {
	recipe   Recipe
	doc      *recipe.Document
	o        Options
	method   *method.Method
	inputs   []plan.Input
	models   map[recipe.Ref]*input.Model
	folders  map[recipe.Ref]string
	plan     *plan.Plan
	words    *vocab.Vocabulary // nil: tokenizer files are copied
	stats    map[string]*safetensors.File
	warnings []string
	there    kernels.Device // that merges instead of the host; nil: none
}

// prepare opens the models of a document and resolves it. The caller closes the work, also after an error.
func prepare(r Recipe, doc *recipe.Document, named map[string]string, o Options) (*work, error) {
	w := newWork(r, doc, o)
	var err error
	if w.method, err = method.Find(doc.Method); err != nil {
		return w, fmt.Errorf("%s: %w", r.path, err)
	}
	return w, w.resolve(named)
}

func newWork(r Recipe, doc *recipe.Document, o Options) *work {
	return &work{
		there: stream.Away(o.Device), recipe: r, doc: doc, o: o, models: map[recipe.Ref]*input.Model{},
		folders: map[recipe.Ref]string{},
		stats:   map[string]*safetensors.File{},
	}
}

// resolve opens the models and plans every tensor.
func (w *work) resolve(named map[string]string) error {
	if err := w.open(named); err != nil {
		return err
	}

	missing, err := w.o.missing()
	if err != nil {
		return err
	}

	dtype, err := w.o.dtype()
	if err != nil {
		return err
	}

	w.plan, err = plan.Resolve(w.doc, w.inputs, method.Specs(),
		plan.Options{Missing: missing, Truncate: w.o.Truncate, DType: dtype})
	if err != nil {
		return faulty(err)
	}

	input.Lay(w.plan, w.models, w.doc.Mediate != nil)
	w.warnings = slices.Clone(w.plan.Warnings)
	return faulty(w.readVocabulary())
}

// open opens every model that the document mentions.
func (w *work) open(named map[string]string) error {
	folders, err := w.doc.Folders(w.recipe.places(named))
	if err != nil {
		return err
	}

	for _, ref := range w.doc.References() {
		dir := folders[ref.Model]
		m, err := input.Open(ref.String(), dir, folders[ref.Adapter])
		if err != nil {
			return err
		}

		w.models[ref], w.folders[ref] = m, dir
		config, err := readFile(filepath.Join(dir, "config.json"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}

		w.inputs = append(w.inputs, plan.Input{Ref: ref, Dir: dir, Tensors: m.Infos(), Config: config})
	}

	return nil
}

// sideLimit bounds small files that are read whole.
const sideLimit = 64 << 20

func readFile(path string) ([]byte, error) { return safefile.ReadFile(path, sideLimit) }

// close closes everything that is open.
func (w *work) close() error {
	var errs []error
	for _, m := range w.models {
		errs = append(errs, m.Close())
	}
	for _, f := range w.stats {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// layout lists the output's tensors.
func (w *work) layout() []safetensors.Info {
	list := make([]safetensors.Info, len(w.plan.Tensors))
	for i, t := range w.plan.Tensors {
		list[i] = safetensors.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	return list
}

// copied is the group of a tensor that is taken over as it is.
func copied(it *stream.Item) stream.Group {
	g := stream.Group{Items: []*stream.Item{it}}
	if it.Raw == nil {
		g.Program = method.Copy()
	}
	return g
}

// groups makes what the engine runs. done tells which tensors an interrupted run has finished.
func (w *work) groups(done func(name string) bool) ([]stream.Group, error) {
	var groups []stream.Group
	var together []*stream.Item
	for i := range w.plan.Tensors {
		t := &w.plan.Tensors[i]
		it, plain, err := w.item(t)
		if err != nil {
			return nil, err
		}

		it.Done = done(t.Name)

		switch {
		case plain:
			groups = append(groups, copied(it))
		case w.method.Global != nil && w.method.Global(t.Params):
			together = append(together, it)
		default:
			if groups, err = w.group(groups, []*stream.Item{it}); err != nil {
				return nil, err
			}
		}
	}

	if len(together) > 0 {
		return w.group(groups, together)
	}

	return groups, nil
}

// group appends a group of tensors that are merged together, unless all of them are done.
func (w *work) group(groups []stream.Group, items []*stream.Item) ([]stream.Group, error) {
	var tensors []*method.Tensor
	for _, it := range items {
		tensors = append(tensors, it.Tensor)
	}

	p, err := w.method.New(tensors)
	if err != nil {
		return nil, w.placed(err)
	}

	w.warnings = append(w.warnings, p.Warnings...)
	return append(groups,
		stream.Group{Items: items, Program: p, Task: stream.TaskOf(w.there, w.method.Spec.Name, tensors)}), nil
}

// placed gives an error about parameters its place in the recipe.
func (w *work) placed(err error) error {
	var p *method.ParameterError
	switch {
	case errors.As(err, &p):
		return faulty(w.plan.Blame(err, p.Name, p.Value))
	case errors.Is(err, method.ErrZeroWeight):
		return faulty(w.plan.Blame(err, "weight", 0))
	}
	return fmt.Errorf("%s: %w", w.recipe.path, err)
}

// item makes the engine's view of a tensor. plain tells that it is copied, as bytes if Raw is set.
func (w *work) item(t *plan.Tensor) (it *stream.Item, plain bool, err error) {
	h := fnv.New64a()
	h.Write([]byte(t.Name))
	tensor := &method.Tensor{
		Name: t.Name, Shape: t.Shape, N: safetensors.Info{Shape: t.Shape}.Elements(), Params: t.Params,
		Vocab: t.VocabAxis >= 0, Seed: [2]uint64{w.o.Seed, h.Sum64()},
		Drawn: w.o.Ties != TieIndex,
	}

	it = &stream.Item{Tensor: tensor, DType: t.DType}
	if t.Copy || w.method.Spec.Name == "passthrough" && unscaled(t) {
		return it, true, w.copied(it, t)
	}

	base := -1
	if w.method.Spec.Base != recipe.BaseIgnored {
		base = t.Base
	}

	for i := range t.Sources {
		s := &t.Sources[i]
		src, err := w.source(it, t, s)
		if err != nil {
			return nil, false, err
		}

		if i == max(t.Base, 0) && w.o.KeepZeros {
			it.Mask = src
		}

		if i == base {
			tensor.Base, it.Base = true, src
			continue
		}

		in := method.Input{Model: s.Model, Name: w.plan.Models[s.Model].String(), Params: s.Params}
		if err := w.statistics(it, &in, s); err != nil {
			return nil, false, err
		}

		tensor.Inputs = append(tensor.Inputs, in)
		it.X, it.Models = append(it.X, src), append(it.Models, in.Name)
	}

	if base >= 0 {
		it.Models = append(it.Models, w.plan.Models[t.Sources[base].Model].String())
	}

	return it, false, nil
}

// unscaled tells whether passthrough leaves the elements as they are.
func unscaled(t *plan.Tensor) bool {
	return len(t.Sources) == 1 && (!t.Sources[0].Params.Has("scale") || t.Sources[0].Params.Number("scale") == 1)
}

// copied sets up a tensor that is its first source: as bytes where the type stays, otherwise element by element.
func (w *work) copied(it *stream.Item, t *plan.Tensor) error {
	s := &t.Sources[0]
	name := w.plan.Models[s.Model].String()
	it.Models = []string{name}

	rounds := w.plan.DType != 0 && w.plan.DType != s.Info.DType && dtype.IsFloat(s.Info.DType)
	if s.Info.DType == t.DType && !rounds && !w.mapped(t) && slices.Equal(s.Info.Shape, t.Shape) {
		raw, err := w.model(s).Raw(s.Info.Name)
		if err != nil {
			return err
		}
		it.Raw = raw
	}

	if it.Raw != nil && !dtype.IsFloat(t.DType) {
		return nil
	}

	src, err := w.source(it, t, s)
	if err != nil {
		return err
	}

	it.X = []stream.Source{src}
	it.Tensor.Inputs = []method.Input{{Model: s.Model, Name: name, Params: s.Params}}
	return nil
}

func (w *work) model(s *plan.TensorSource) *input.Model { return w.models[w.plan.Models[s.Model]] }

// source reads a tensor of a model in the shape of the output.
func (w *work) source(it *stream.Item, t *plan.Tensor, s *plan.TensorSource) (stream.Source, error) {
	if w.mapped(t) {
		return w.mappedSource(it, t, s)
	}

	src, err := w.model(s).Source(s.Info.Name, w.plan.DType)
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

	return nil, fmt.Errorf("tensor %q of %s has shape %v, the output's is %v: %w", s.Info.Name, w.plan.Models[s.Model],
		s.Info.Shape, t.Shape, method.ErrShape)
}

// statistics finds what an input's file of statistics says about a tensor.
func (w *work) statistics(it *stream.Item, in *method.Input, s *plan.TensorSource) error {
	if w.method.Stat == "" {
		return nil
	}

	f, err := w.statFile(s.Params.Text(w.method.Stat))
	if err != nil {
		return err
	}

	info, ok := f.Info(s.Info.Name)
	if !ok {
		it.Stat = append(it.Stat, nil)
		return nil
	}

	data, err := f.Bytes(info.Name)
	if err != nil {
		return err
	}

	// a failing release costs memory alone
	src, err := stream.NewMapped(data, info.DType, 0, func() { _ = f.Release(info.Name) })
	if err != nil {
		return fmt.Errorf("%s: tensor %q: %w", f.Path(), info.Name, err)
	}

	in.Stat = info.Shape
	it.Stat = append(it.Stat, src)
	return nil
}

// statFile opens a file of statistics once; paths are tried as they are, then from the recipe.
func (w *work) statFile(path string) (*safetensors.File, error) {
	if f := w.stats[path]; f != nil {
		return f, nil
	}

	f, err := safetensors.Open(path)
	if errors.Is(err, os.ErrNotExist) && !filepath.IsAbs(path) {
		f, err = safetensors.Open(filepath.Join(filepath.Dir(w.recipe.path), path))
	}
	if err != nil {
		return nil, fmt.Errorf("statistics: %w", err)
	}

	w.stats[path] = f
	return f, nil
}
