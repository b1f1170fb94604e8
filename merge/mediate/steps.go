package mediate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
	"github.com/modelcompress/compress/safetensors"
)

// Mediator makes the documents of recipes that merge by mediate: it is for the options of [merge.Models].
func Mediator() merge.Mediator { return merge.Mediator(job.NewMediator(steps)) }

// steps checks a document that is open; works: it is going to be made.
func steps(w *job.Work, works bool) (job.Steps, error) {
	if w.Doc.Base == nil {
		return nil, noBase(w.Recipe.Path)
	}
	if w.Options.KeepZeros {
		return nil, fmt.Errorf("%w: %w", errKeepZeros, merge.ErrOption)
	}
	return newMediation(w, works)
}

var errKeepZeros = failure.Misuse("zeros cannot be kept by mediate, whose experts would put other values there",
	"leave out --keep-zeros")

// mediation is a document by mediate on its way.
type mediation struct {
	*job.Work
	a        *analysis
	spec     *recipe.Mediate
	members  []int    // models of the plan, by name
	names    []string // of the members
	routed   map[int]bool
	average  *static
	dense    *static // nil: mean, base or an expert
	keep     experts.Keep
	manifest manifest
	parts    [][]*experts.Part // by routed tensor and member
	router   []string          // what was chosen for it
}

// static is a method for the tensors of the dense model.
type static struct {
	method *method.Method
	sheet  *plan.Sheet
}

// newMediation checks what the recipe asks for; works: it is going to be done, and a device has to be there for it.
func newMediation(w *job.Work, works bool) (*mediation, error) {
	m := &mediation{Work: w, spec: w.Doc.Mediate, routed: map[int]bool{}}
	for i := range w.Plan.Models {
		if i != w.Plan.Base && listed(w, i) {
			m.members = append(m.members, i)
		}
	}

	// The order of the recipe must not matter.
	slices.SortFunc(m.members, func(a, b int) int { return strings.Compare(modelName(w, a), modelName(w, b)) })
	for _, i := range m.members {
		m.names = append(m.names, modelName(w, i))
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
	sheet, err := m.Plan.Sheet(s, method.Specs())
	if err != nil {
		return nil, job.Faulty(err)
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
		return nil, job.Faultf(m.Recipe.Path, "method %s does not take %d models", s.Method, n)
	}

	return &static{found, sheet}, nil
}

// Identity implements [job.Steps]: the prompts count beside what counts in every merge.
func (m *mediation) Identity(ctx context.Context, key string) (string, error) {
	if len(m.spec.Router.Prompts) == 0 {
		return key, nil
	}

	h := sha256.New()
	for _, p := range m.spec.Router.Prompts {
		f, err := hash(ctx, m.promptFile(p.File))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, p.Expert, f.Size, f.SHA256)
	}
	if path := m.spec.Router.Foreign; path != "" {
		f, err := hash(ctx, m.promptFile(path))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, "foreign", f.Size, f.SHA256)
	}

	return output.JobAnd(key, hex.EncodeToString(h.Sum(nil)))
}

// Prepare implements [job.Steps]: it counts conflicts and decides what is routed.
func (m *mediation) Prepare(ctx context.Context, key string) (err error) {
	if m.a, err = analyse(ctx, m.Work, m.spec.Density, nil); err != nil {
		return err
	}
	if err := m.decide(); err != nil {
		return err
	}

	m.Warnings = m.a.report(m.spec.Granularity).Warnings
	m.manifest.Job = key
	return nil
}

// decide measures the groups and chooses those that are routed.
func (m *mediation) decide() error {
	baseline := randomSigns(len(m.members), m.spec.Density)
	m.manifest = manifest{
		FormatVersion: formatVersion, Version: build.Version(), Granularity: m.spec.Granularity,
		Metric:  m.spec.Metric,
		Density: m.spec.Density, Baseline: baseline, Average: m.spec.Average.Method, Dense: m.spec.Dense.Kind,
		Keep: experts.Rule(m.keep),
		Select: rule{
			Name: m.spec.Select.Rule, Value: m.spec.Select.Value, Bytes: m.spec.Select.Bytes,
			Layers: m.spec.Select.Layers,
		},
		DType: m.Plan.OutDType.String(), Indices: "U16", Groups: []groupChoice{}, Routed: []string{},
	}

	if m.Plan.OutDType == 0 {
		m.manifest.DType = "as the inputs'"
	}

	random, _ := baseline.Of(m.spec.Metric)
	groups := m.a.grouped(m.spec.Granularity)
	var list []candidate
	var eligible []int
	for i, g := range groups {
		num, den := g.Fraction(m.spec.Metric)
		d, _ := g.Measures().Of(m.spec.Metric)
		e := groupChoice{
			Name: g.place.Group, Layer: g.Layer, Conflict: d, Numerator: num, Denominator: den,
			Bytes: m.bound(g), Eligible: g.Layer >= 0 || m.spec.RouteEmbeddings,
		}
		if random > 0 {
			e.Excess = d / random
		}

		m.manifest.Groups = append(m.manifest.Groups, e)

		if e.Eligible {
			list, eligible = append(list, candidate{Conflict: d, Bytes: e.Bytes, Layer: g.Layer}),
				append(eligible, i)
		}
	}

	rule := m.manifest.Select
	if rule.Name == "budget" {
		rule.Bytes -= int64(len(m.members)) * fileOverhead
	}

	chosen, err := rule.Choose(list)
	if err != nil {
		return job.Faultf(m.Recipe.Path, "%w", err)
	}

	for k, yes := range chosen {
		if !yes || len(m.members) < 2 { // a single model conflicts with nothing
			continue
		}

		m.manifest.Groups[eligible[k]].Routed = true

		for _, i := range groups[eligible[k]].Members {
			if n := m.a.counts[i].NonFinite; n > 0 {
				return fmt.Errorf("tensor %q: %d differences are not finite, so it cannot be routed: %w",
					m.Plan.Tensors[m.a.tensors[i]].Name, n, merge.ErrMethod)
			}
			if err := m.route(m.a.tensors[i]); err != nil {
				return err
			}
		}
	}

	for i := range m.Plan.Tensors {
		if m.routed[i] {
			m.manifest.Routed = append(m.manifest.Routed, m.Plan.Tensors[i].Name)
		}
	}

	return nil
}

// fileOverhead is more than the file of an expert takes beside its tensors and their entries.
const fileOverhead = 512

// bound is the most bytes that all experts take for a group.
func (m *mediation) bound(g *tally) (sum int64) {
	for _, i := range g.Members {
		t := &m.Plan.Tensors[m.a.tensors[i]]
		sum += int64(len(m.members)) * m.keep.Bound(t.Name, t.Shape, t.DType)
	}
	return sum
}

// route marks a tensor.
func (m *mediation) route(i int) error {
	t := &m.Plan.Tensors[i]
	if m.Arranged(t) {
		return fmt.Errorf("tensor %q: rows that a tokenizer setting arranges cannot be routed: %w", t.Name,
			merge.ErrMethod)
	}
	if t.DType == safetensors.F64 {
		return fmt.Errorf("tensor %q is %s, which cannot be routed; choose another dtype: %w", t.Name, t.DType,
			merge.ErrMethod)
	}

	m.routed[i] = true
	return nil
}

// Groups implements [job.Steps]: the tensors of the dense model.
func (m *mediation) Groups(done func(name string) bool) ([]stream.Group, error) {
	// Two lists, since a routed tensor may be merged by another method than the rest.
	average, dense := m.NewGroups(done), m.NewGroups(done)
	for i := range m.Plan.Tensors {
		groups, by := average, m.average
		if m.routed[i] {
			groups, by = dense, m.dense
		}

		t := m.Plan.Tensors[i]
		// A mean of equal values can round to others, and every expert would store what is between them.
		t.Copy = t.Copy || m.routed[i] && m.spec.Dense.Kind != "method" && m.unchanged(i)
		found, err := m.denseTensor(&t, by)
		if err != nil {
			return nil, err
		}
		if err := groups.Add(found, &t); err != nil {
			return nil, err
		}
	}

	list, err := average.List()
	if err != nil {
		return nil, err
	}

	more, err := dense.List()
	return append(list, more...), err
}

// unchanged reports whether a tensor of the plan is the base's in every expert.
func (m *mediation) unchanged(i int) bool {
	at := slices.Index(m.a.tensors, i)
	if at < 0 {
		return false
	}
	c := m.a.counts[at]
	for k := range c.Models {
		if c.Gram[k*c.Models+k] != 0 {
			return false
		}
	}
	return c.NonFinite == 0
}

// denseTensor sets a tensor up for the dense model, with the experts as sources, and gives the method that merges it,
// unless it is a copy; nil for by copies the base or one expert.
func (m *mediation) denseTensor(t *plan.Tensor, by *static) (*method.Method, error) {
	base := t.Base
	sources := t.Sources
	t.Sources, t.Base = nil, -1
	for _, k := range m.members {
		if i := slices.IndexFunc(sources, func(s plan.TensorSource) bool { return s.Model == k }); i >= 0 {
			t.Sources = append(t.Sources, sources[i])
		}
	}

	if t.Copy || !dtype.IsFloat(t.DType) || len(t.Sources) == 0 {
		// Nothing can be averaged here: the tensor is taken as it is from the first source, the base included.
		t.Copy, t.Sources = true, sources
		return m.average.method, nil
	}

	if by == nil {
		return m.average.method, m.choose(t, sources, base)
	}

	if by.method.Spec.Base != recipe.BaseIgnored && base >= 0 {
		t.Base = len(t.Sources)
		t.Sources = append(t.Sources, sources[base])
	}

	t.Params = by.sheet.At(t)
	for _, p := range by.method.Spec.Params {
		// A recipe without weights means all experts alike.
		if p.Required && p.Name == "weight" && !t.Params.Has("weight") {
			t.Params["weight"] = *recipe.NumberValue(1)
		} else if p.Required && !t.Params.Has(p.Name) {
			return nil, job.Faultf(m.Recipe.Path, "method %s needs the parameter %s", by.method.Spec.Name, p.Name)
		}
	}

	// Parameters are the method's, not those that the recipe gives a model; and the plan's own list stays as it is.
	t.Sources = slices.Clone(t.Sources)
	for i := range t.Sources {
		t.Sources[i].Params = t.Params
	}

	return by.method, nil
}

// choose makes a tensor a copy of the base's or of one expert's.
func (m *mediation) choose(t *plan.Tensor, sources []plan.TensorSource, base int) error {
	t.Copy = true

	if m.spec.Dense.Kind == "base" {
		t.Sources = sources[base : base+1]
		return nil
	}

	i := slices.Index(m.names, m.spec.Dense.Expert)
	k := slices.IndexFunc(t.Sources, func(s plan.TensorSource) bool { return i >= 0 && s.Model == m.members[i] })
	if k < 0 {
		return fmt.Errorf("tensor %q: expert %s has no such tensor: %w", t.Name, m.spec.Dense.Expert, merge.ErrMissing)
	}

	t.Sources = t.Sources[k : k+1]
	return nil
}

// Begin implements [job.Steps]: the decisions come before the weights.
func (m *mediation) Begin(dir string) error {
	side := filepath.Join(dir, sideFolder)
	if err := os.RemoveAll(side); err != nil { // of an interrupted run; the experts are made again
		return err
	}
	if err := os.MkdirAll(side, 0o777); err != nil {
		return err
	}
	return m.manifest.Write(side)
}

// Finish implements [job.Steps]: everything that needs the finished dense model, which is experts and router, and most
// of the manifest.
func (m *mediation) Finish(ctx context.Context, dir string) (*job.Mediation, error) {
	side := filepath.Join(dir, sideFolder)
	result := &job.Mediation{Groups: len(m.manifest.Groups), Experts: m.names}
	for _, g := range m.manifest.Groups {
		if g.Routed {
			result.Routed = append(result.Routed, g.Name)
		}
	}

	// Experts first, as they are what the finished dense model leaves over; hashes last, of files that do not
	// change any more.
	if err := m.writeExperts(ctx, dir, side); err != nil {
		return nil, err
	}
	if err := m.writeRouter(ctx, dir, side); err != nil {
		return nil, err
	}

	if r := m.manifest.Router; r != nil && r.HeldOut > 0 {
		accuracy := r.Accuracy
		result.RouterAccuracy = &accuracy
		result.Router = m.router
	}

	if err := m.hashAll(ctx, dir, side); err != nil {
		return nil, err
	}
	for _, f := range m.manifest.Files {
		result.ExpertBytes += f.Size
	}
	result.Kept = m.kept()

	// Which encoding is the smallest is known only by the data: the rule has chosen by an upper bound.
	if n, b := m.manifest.ExpertBytes(), m.spec.Select.Bytes; m.spec.Select.Rule == "budget" && n > b {
		return nil, fmt.Errorf("experts take %d bytes, the budget is %d: %w", n, b, merge.ErrMemory)
	}

	return result, nil
}

// kept says in words what the experts keep, and what of their differences is lost.
func (m *mediation) kept() string {
	if len(m.parts) == 0 {
		return ""
	}

	var lost []string
	for k, name := range m.names {
		energy, gone := 0.0, 0.0
		for _, parts := range m.parts {
			energy, gone = energy+parts[k].Energy, gone+parts[k].Lost
		}
		if energy > 0 {
			lost = append(lost, fmt.Sprintf("%s %.1f %%", name, 100*math.Sqrt(gone/energy)))
		}
	}
	if len(lost) == 0 {
		return ""
	}

	return experts.Forms(m.parts) + "; error " + strings.Join(lost, ", ")
}

// Seal implements [job.Steps]: the manifest is complete when everything else lies in the folder.
func (m *mediation) Seal(ctx context.Context, dir string) (err error) {
	if m.manifest.Others, err = hashOthers(ctx, dir); err != nil {
		return err
	}
	m.manifest.Complete = true
	return m.manifest.Write(filepath.Join(dir, sideFolder))
}

// Intact implements [job.Steps]: what the manifest lists beside the dense weights is as it was written.
func (m *mediation) Intact(ctx context.Context, dir string) error {
	written, err := readManifest(dir)
	if err != nil {
		return err
	}

	for _, f := range written.Files {
		if err := compareHash(ctx, filepath.Join(dir, sideFolder, f.Name), f); err != nil {
			return err
		}
	}

	for _, f := range written.Others {
		if err := compareHash(ctx, filepath.Join(dir, f.Name), f); err != nil {
			return err
		}
	}

	return nil
}

// hashAll notes what was read and written.
func (m *mediation) hashAll(ctx context.Context, dir, side string) error {
	base, err := m.sourceOf(ctx, m.Plan.Base)
	if err != nil {
		return err
	}

	m.manifest.Base = base

	for i := range m.manifest.Experts {
		if m.manifest.Experts[i].Source, err = m.sourceOf(ctx, m.members[i]); err != nil {
			return err
		}
	}

	if m.manifest.Files, err = hashFolder(ctx, side); err != nil {
		return err
	}

	m.manifest.Weights, err = hashFolder(ctx, dir)
	return err
}

// sourceOf lists the files of a model.
func (m *mediation) sourceOf(ctx context.Context, model int) (sourceModel, error) {
	ref := m.Plan.Models[model]
	files, err := hashFiles(ctx, m.Models[ref].Files())
	return sourceModel{Path: ref.String(), Files: files}, err
}
