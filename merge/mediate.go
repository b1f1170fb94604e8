package merge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/merge/internal/conflict"
	"github.com/modelcompress/compress/merge/internal/experts"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/serve"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// mediation is a merge by mediate on its way.
type mediation struct {
	*work
	a        *analysis
	spec     *recipe.Mediate
	members  []int    // models of the plan, by name
	names    []string // of the members
	routed   map[int]bool
	average  *static
	dense    *static // nil: mean, base or an expert
	keep     experts.Keep
	manifest experts.Manifest
	parts    [][]*experts.Part // by routed tensor and member
}

// static is a method for the tensors of the dense model.
type static struct {
	method *method.Method
	sheet  *plan.Sheet
}

// mediate merges one document by mediate.
func mediate(ctx context.Context, r Recipe, doc *recipe.Document, named map[string]string, dst string,
	o Options,
) (report *Report, err error) {
	start := time.Now()
	w, err := prepareExperts(r, doc, named, o)
	defer func() { err = errors.Join(err, w.close()) }()

	if err != nil {
		return nil, err
	}
	if o.KeepZeros {
		return nil, fmt.Errorf("keep-zeros is not for %s, whose experts would put other values there: %w",
			recipe.Mediated, ErrOption)
	}

	for _, dir := range w.folders {
		if output.Same(dir, dst) {
			return nil, fmt.Errorf("%s: %w", dst, ErrInPlace)
		}
	}

	m, err := newMediation(w, true)
	if err != nil {
		return nil, err
	}

	job, err := m.identity()
	if err != nil {
		return nil, err
	}

	if m.a, err = w.analyse(ctx, m.spec.Density, nil); err != nil {
		return nil, err
	}
	if err := m.decide(); err != nil {
		return nil, err
	}
	if _, err := m.groups(func(string) bool { return false }); err != nil { // before anything is written
		return nil, err
	}

	w.warnings = m.a.report(m.spec.Granularity).Warnings
	m.manifest.Job = output.JobKept(job)
	out, err := output.Open(dst, output.Options{
		Overwrite: o.Overwrite, Resume: o.Resume, Job: job, Tensors: w.layout(),
		MaxShard: o.MaxShard, Readers: o.Workers, Every: o.journalEvery,
	})
	if err != nil {
		return nil, err
	}

	return w.fill(ctx, dst, job, out, func(report *Report) error { return m.run(ctx, out, report, start) })
}

// checkMediation resolves a recipe without writing anything. Which groups would be routed is not known before they are
// measured (see Conflict); the plan is that of the dense model with all averaged.
func checkMediation(r Recipe, o Options) (*Summary, error) {
	w, err := prepareExperts(r, r.docs[0], nil, o)
	defer w.close()

	if err != nil {
		return nil, err
	}

	m, err := newMediation(w, false)
	if err != nil {
		return nil, err
	}

	groups, err := m.groups(func(string) bool { return false })
	if err != nil {
		return nil, err
	}

	return w.summary(groups)
}

// newMediation checks what the recipe asks for; works tells that a device is needed for it now.
func newMediation(w *work, works bool) (*mediation, error) {
	m := &mediation{work: w, spec: w.doc.Mediate, routed: map[int]bool{}}
	for i := range w.plan.Models {
		if i != w.plan.Base && w.listed(i) {
			m.members = append(m.members, i)
		}
	}

	// The order of the recipe must not matter.
	slices.SortFunc(m.members, func(a, b int) int { return strings.Compare(w.modelName(a), w.modelName(b)) })
	for _, i := range m.members {
		m.names = append(m.names, w.modelName(i))
	}

	m.keep = experts.Keep{Kind: m.spec.Keep.Kind, Value: m.spec.Keep.Value}
	var err error
	if m.average, err = m.static(m.spec.Average); err != nil {
		return nil, err
	}

	switch m.spec.Dense.Kind {
	case "method":
		m.dense, err = m.static(m.spec.Dense.Merge)
	case "mean":
		m.dense, err = m.static(recipe.StaticMerge{Method: "linear"})
	}
	if err != nil {
		return nil, err
	}

	return m, m.checkRouter(works)
}

// static looks a method up for as many models as there are.
func (m *mediation) static(s recipe.StaticMerge) (*static, error) {
	sheet, err := m.plan.Sheet(s, method.Specs())
	if err != nil {
		return nil, faulty(err)
	}

	found, err := method.Find(s.Method)
	if err != nil {
		return nil, err
	}

	n, inputs := len(m.members), len(m.members)
	if found.Spec.Base != recipe.BaseIgnored {
		inputs++
	}

	fits := func(n, least, most int) bool { return n >= least && (most == 0 || n <= most) }
	if sp := found.Spec; !fits(inputs, sp.MinInputs, sp.MaxInputs) || !fits(n, sp.MinModels, sp.MaxModels) {
		return nil, faultyRecipe{fmt.Errorf("%s: method %s does not take %d models", m.recipe.path, s.Method, n)}
	}

	return &static{found, sheet}, nil
}

// identity is the job of the merge: the prompts count beside what counts in every merge.
func (m *mediation) identity() (string, error) {
	job, err := m.job()
	if err != nil || len(m.spec.Router.Prompts) == 0 {
		return job, err
	}

	h := sha256.New()
	for _, p := range m.spec.Router.Prompts {
		f, err := serve.Hash(context.Background(), m.promptFile(p.File))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, p.Expert, f.Size, f.SHA256)
	}

	return output.JobAnd(job, hex.EncodeToString(h.Sum(nil)))
}

// decide measures the groups and chooses those that are routed.
func (m *mediation) decide() error {
	baseline := conflict.Baseline(len(m.members), m.spec.Density)
	m.manifest = experts.Manifest{
		FormatVersion: experts.FormatVersion, Version: build.Version(), Granularity: m.spec.Granularity,
		Metric:  m.spec.Metric,
		Density: m.spec.Density, Baseline: baseline, Average: m.spec.Average.Method, Dense: m.spec.Dense.Kind,
		Keep: experts.Rule(m.keep),
		Select: conflict.Rule{
			Name: m.spec.Select.Rule, Value: m.spec.Select.Value, Bytes: m.spec.Select.Bytes,
			Layers: m.spec.Select.Layers,
		},
		DType: m.plan.OutDType.String(), Indices: "U16", Groups: []experts.Group{}, Routed: []string{},
	}

	if m.plan.OutDType == 0 {
		m.manifest.DType = "as the inputs'"
	}

	random, _ := baseline.Of(m.spec.Metric)
	groups := m.a.grouped(m.spec.Granularity)
	var list []conflict.Candidate
	var eligible []int
	for i, g := range groups {
		num, den := g.Fraction(m.spec.Metric)
		d, _ := g.Measures().Of(m.spec.Metric)
		e := experts.Group{
			Name: g.Place.Group, Layer: g.Layer, Conflict: d, Numerator: num, Denominator: den,
			Bytes: m.bound(g), Eligible: g.Layer >= 0 || m.spec.RouteEmbeddings,
		}
		if random > 0 {
			e.Excess = d / random
		}

		m.manifest.Groups = append(m.manifest.Groups, e)

		if e.Eligible {
			list, eligible = append(list, conflict.Candidate{Conflict: d, Bytes: e.Bytes, Layer: g.Layer}),
				append(eligible, i)
		}
	}

	rule := m.manifest.Select
	if rule.Name == "budget" {
		rule.Bytes -= int64(len(m.members)) * fileOverhead
	}

	chosen, err := rule.Choose(list)
	if err != nil {
		return faultyRecipe{fmt.Errorf("%s: %w", m.recipe.path, err)}
	}

	for k, yes := range chosen {
		if !yes || len(m.members) < 2 { // a single model conflicts with nothing
			continue
		}

		m.manifest.Groups[eligible[k]].Routed = true

		for _, i := range groups[eligible[k]].Members {
			if n := m.a.counts[i].NonFinite; n > 0 {
				return fmt.Errorf("tensor %q: %d differences are not finite, so it cannot be routed: %w",
					m.plan.Tensors[m.a.tensors[i]].Name, n, ErrMethod)
			}
			if err := m.route(m.a.tensors[i]); err != nil {
				return err
			}
		}
	}

	for i := range m.plan.Tensors {
		if m.routed[i] {
			m.manifest.Routed = append(m.manifest.Routed, m.plan.Tensors[i].Name)
		}
	}

	return nil
}

// fileOverhead is more than the file of an expert takes beside its tensors and their entries.
const fileOverhead = 512

// bound is the most bytes that all experts take for a group.
func (m *mediation) bound(g *conflict.Tally) (sum int64) {
	for _, i := range g.Members {
		t := &m.plan.Tensors[m.a.tensors[i]]
		sum += int64(len(m.members)) * m.keep.Bound(t.Name, t.Shape, t.DType)
	}
	return sum
}

// route marks a tensor.
func (m *mediation) route(i int) error {
	t := &m.plan.Tensors[i]
	if m.mapped(t) {
		return fmt.Errorf("tensor %q: rows that a tokenizer setting arranges cannot be routed: %w", t.Name, ErrMethod)
	}
	if t.DType == safetensors.F64 {
		return fmt.Errorf("tensor %q is %s, which cannot be routed; choose another dtype: %w", t.Name, t.DType,
			ErrMethod)
	}

	m.routed[i] = true
	return nil
}

// groups makes what the engine runs for the dense model.
func (m *mediation) groups(done func(name string) bool) ([]stream.Group, error) {
	var list []stream.Group
	together := map[*static][]*stream.Item{}
	for i := range m.plan.Tensors {
		t := m.plan.Tensors[i]
		s := m.average
		if m.routed[i] {
			s = m.dense
		}

		it, plain, err := m.denseItem(&t, s)
		if err != nil {
			return nil, err
		}

		it.Done = done(t.Name)

		switch {
		case plain:
			list = append(list, copied(it))
		case s.method.Global != nil && s.method.Global(it.Tensor.Params):
			together[s] = append(together[s], it)
		default:
			m.method = s.method
			if list, err = m.group(list, []*stream.Item{it}); err != nil {
				return nil, err
			}
		}
	}

	for _, s := range []*static{m.average, m.dense} {
		if items := together[s]; len(items) > 0 {
			m.method = s.method
			var err error
			if list, err = m.group(list, items); err != nil {
				return nil, err
			}
		}
	}

	return list, nil
}

// denseItem is the engine's view of a tensor of the dense model; plain tells that it is a copy.
func (m *mediation) denseItem(t *plan.Tensor, s *static) (it *stream.Item, plain bool, err error) {
	base := t.Base
	sources := t.Sources
	t.Sources, t.Base = nil, -1
	for _, k := range m.members {
		if i := slices.IndexFunc(sources, func(s plan.TensorSource) bool { return s.Model == k }); i >= 0 {
			t.Sources = append(t.Sources, sources[i])
		}
	}

	if t.Copy || !dtype.IsFloat(t.DType) || len(t.Sources) == 0 {
		t.Copy, t.Sources = true, sources
		m.method = m.average.method
		return m.item(t)
	}

	if s == nil {
		return m.chosenItem(t, sources, base)
	}

	if m.method = s.method; s.method.Spec.Base != recipe.BaseIgnored && base >= 0 {
		t.Base = len(t.Sources)
		t.Sources = append(t.Sources, sources[base])
	}

	t.Params = s.sheet.At(t)
	for _, p := range s.method.Spec.Params {
		if p.Required && p.Name == "weight" && !t.Params.Has("weight") {
			t.Params["weight"] = *recipe.NumberValue(1)
		} else if p.Required && !t.Params.Has(p.Name) {
			return nil, false, faultyRecipe{
				fmt.Errorf("%s: method %s needs the parameter %s", m.recipe.path, s.method.Spec.Name, p.Name),
			}
		}
	}

	t.Sources = slices.Clone(t.Sources)
	for i := range t.Sources {
		t.Sources[i].Params = t.Params
	}

	return m.item(t)
}

// chosenItem copies a tensor of the base or of one expert.
func (m *mediation) chosenItem(t *plan.Tensor, sources []plan.TensorSource, base int) (*stream.Item, bool, error) {
	t.Copy = true

	if m.spec.Dense.Kind == "base" {
		t.Sources = sources[base : base+1]
		m.method = m.average.method
		return m.item(t)
	}

	i := slices.Index(m.names, m.spec.Dense.Expert)
	k := slices.IndexFunc(t.Sources, func(s plan.TensorSource) bool { return i >= 0 && s.Model == m.members[i] })
	if k < 0 {
		return nil, false, fmt.Errorf("tensor %q: expert %s has no such tensor: %w", t.Name, m.spec.Dense.Expert,
			ErrMissing)
	}

	t.Sources = t.Sources[k : k+1]
	m.method = m.average.method
	return m.item(t)
}

// run merges into an open output, adds the experts and finishes it.
func (m *mediation) run(ctx context.Context, out *output.Folder, report *Report, start time.Time) error {
	side := filepath.Join(out.Stage(), experts.Folder)
	if err := os.RemoveAll(side); err != nil { // of an interrupted run; the experts are made again
		return err
	}
	if err := os.MkdirAll(side, 0o777); err != nil {
		return err
	}
	if err := m.manifest.Write(side); err != nil { // the decisions come before the weights
		return err
	}

	groups, err := m.groups(out.Done)
	if err != nil {
		return err
	}

	o := m.streaming()
	o.Written, o.Noted = out.Written, func(name string, n stream.Note) error { return out.Note(name, n) }
	var done atomic.Int64
	if m.o.Progress != nil {
		o.Progress = func(n int64) { m.o.Progress(Progress{m.doc.Name, done.Add(n), report.BytesOut}) }
	}
	if _, err := stream.Run(ctx, groups, out, o); err != nil {
		return err
	}

	report.Seconds = time.Since(start).Seconds()
	report.BytesPerSecond = float64(report.BytesOut) / report.Seconds
	return out.Finish(func(dir string) error {
		if err := m.finish(ctx, dir, report); err != nil {
			return err
		}

		report.Warnings = m.warnings
		if err := m.noted(report, out.Notes()); err != nil {
			return err
		}

		report.Seconds = time.Since(start).Seconds()
		m.method = &method.Method{
			Summary: summary,
			Spec:    recipe.Method{Name: recipe.Mediated, Base: recipe.BaseRequired},
		}
		if err := m.sideFiles(dir, out.Shards(), report); err != nil {
			return err
		}

		return m.seal(ctx, dir)
	})
}

// summary describes the method on model cards.
const summary = "mean where models agree, experts where they conflict"

// finish makes everything that needs the finished dense model: experts and router, and most of the manifest.
func (m *mediation) finish(ctx context.Context, dir string, report *Report) error {
	side := filepath.Join(dir, experts.Folder)
	report.Mediation = &Mediation{Groups: len(m.manifest.Groups), Experts: m.names}
	for _, g := range m.manifest.Groups {
		if g.Routed {
			report.Mediation.Routed = append(report.Mediation.Routed, g.Name)
		}
	}

	if err := m.writeExperts(ctx, dir, side); err != nil {
		return err
	}
	if err := m.writeRouter(ctx, dir, side); err != nil {
		return err
	}

	if r := m.manifest.Router; r != nil && r.HeldOut > 0 {
		accuracy := r.Accuracy
		report.Mediation.RouterAccuracy = &accuracy
	}

	if err := m.hashAll(ctx, dir, side); err != nil {
		return err
	}
	for _, f := range m.manifest.Files {
		report.Mediation.ExpertBytes += f.Size
	}
	if n, b := m.manifest.ExpertBytes(), m.spec.Select.Bytes; m.spec.Select.Rule == "budget" && n > b {
		return fmt.Errorf("experts take %d bytes, the budget is %d: %w", n, b, ErrMemory)
	}

	return nil
}

// seal completes the manifest when everything else lies in the folder.
func (m *mediation) seal(ctx context.Context, dir string) (err error) {
	if m.manifest.Others, err = serve.HashOthers(ctx, dir); err != nil {
		return err
	}
	m.manifest.Complete = true
	return m.manifest.Write(filepath.Join(dir, experts.Folder))
}

// hashAll notes what was read and written.
func (m *mediation) hashAll(ctx context.Context, dir, side string) error {
	base, err := m.sourceOf(ctx, m.plan.Base)
	if err != nil {
		return err
	}

	m.manifest.Base = base

	for i := range m.manifest.Experts {
		if m.manifest.Experts[i].Source, err = m.sourceOf(ctx, m.members[i]); err != nil {
			return err
		}
	}

	if m.manifest.Files, err = serve.HashFolder(ctx, side); err != nil {
		return err
	}

	m.manifest.Weights, err = serve.HashFolder(ctx, dir)
	return err
}

// sourceOf lists the files of a model.
func (m *mediation) sourceOf(ctx context.Context, model int) (experts.Source, error) {
	ref := m.plan.Models[model]
	files, err := serve.HashFiles(ctx, m.models[ref].Files())
	return experts.Source{Path: ref.String(), Files: files}, err
}
