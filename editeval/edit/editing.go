package edit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/edit/internal/covariance"
	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// method is one way of editing.
type method struct {
	name   string
	form   form
	writes bool // changes weights
	batch  bool // writes several facts at once; the others take one after another
	needs  bool // always needs statistics
	whole  bool // takes a prompt as a whole, and looks for no subject in it
	apply  func(ctx context.Context, e *Editing, reqs []Encoded) (*change, error)
}

// form is the closed form of an edit, which several methods share; see spread.go.
type form uint8

const (
	weighed   form = iota // the covariance of keys, and earlier keys, weigh against the edit
	rooted                // the same at two sites, layers take the root of what is left (PMET)
	equal                 // the values are met but for a slack (EMMET)
	projected             // the edit keeps to a null space (AlphaEdit)
	renewed               // all facts so far are written anew into what was stored (LyapLock)
)

// methods is the closed table of methods.
func methods() []method {
	return []method{
		{name: "ft", writes: true, batch: true, whole: true, apply: fineTune},
		{name: "ft-l", writes: true, batch: true, whole: true, apply: fineTune},
		{name: "ft-m", writes: true, batch: true, whole: true, apply: fineTune},
		{name: "lora", writes: true, batch: true, whole: true, apply: fineTune},
		{name: "rome", writes: true, apply: rome},
		{name: "r-rome", writes: true, apply: rome},
		{name: "memit", form: weighed, writes: true, batch: true, needs: true, apply: spread},
		{name: "memit-seq", form: weighed, writes: true, batch: true, needs: true, apply: spread},
		{name: "encore", form: weighed, writes: true, batch: true, needs: true, apply: spread},
		{name: "pmet", form: rooted, writes: true, batch: true, needs: true, apply: spread},
		{name: "emmet", form: equal, writes: true, batch: true, needs: true, apply: spread},
		{name: "alphaedit", form: projected, writes: true, batch: true, needs: true, apply: spread},
		{name: "nas", form: projected, writes: true, batch: true, needs: true, apply: spread},
		{name: "lyaplock", form: renewed, writes: true, batch: true, needs: true, apply: spread},
		{name: "ultraedit", writes: true, batch: true, whole: true, apply: ultraEdit},
		{name: "grace", whole: true, apply: grace},
		{name: "wise", apply: wise},
		{name: "memoir", apply: memoir},
		{name: "ike", batch: true, whole: true, apply: inContext},
	}
}

// Methods are the names that [New] knows.
func Methods() []string {
	var names []string
	for _, m := range methods() {
		names = append(names, m.name)
	}
	return names
}

// find looks a method up.
func find(name string) (method, error) {
	for _, m := range methods() {
		if m.name == name {
			return m, nil
		}
	}
	if lower := strings.ToLower(name); slices.Contains(Methods(), lower) {
		return method{}, fmt.Errorf("%w %.100q; did you mean %q?", ErrMethod, name, lower)
	}
	if near := strictyaml.Near(name, Methods()); near != "" {
		return method{}, fmt.Errorf("%w %.100q; did you mean %q?", ErrMethod, name, near)
	}
	return method{}, fmt.Errorf("%w %.100q (known: %s)", ErrMethod, name, strings.Join(Methods(), ", "))
}

// Batches reports whether a method writes several facts at once.
func Batches(name string) bool {
	m, err := find(name)
	return err == nil && m.batch
}

// NeedsStatistics reports whether a method with these hyper-parameters needs the covariance of keys.
func NeedsStatistics(name string, h HParams) bool {
	m, err := find(name)
	return err == nil && (m.needs || h.Statistics && (name == "rome" || name == "r-rome"))
}

// NeedsSubject reports whether a method looks for the subject in a prompt. Unknown methods do.
func NeedsSubject(name string) bool {
	m, err := find(name)
	return err != nil || !m.whole
}

// NeedsBackground reports whether a method needs texts that have nothing to do with the edits.
func NeedsBackground(name string) bool { return name == kindWISE || name == kindMEMOIR }

// Options configure [New].
type Options struct {
	Method     string      // its name, one of [Methods]
	HParams    *HParams    // nil: those of [Defaults]
	Separator  []int32     // in-context editing: what stands after every fact
	Statistics *Statistics // for methods that need them
	// Anchors are the facts whose values give the length that values are brought to where HParams.Anchor asks for
	// that, measured before the first edit; none: those of the first batch.
	Anchors []Encoded
	// Background are texts that have nothing to do with the edits, for methods that need them ([NeedsBackground]): as
	// many tokens as [BackgroundOf] takes are enough.
	Background [][]int32
	Seed       uint64 // of random starts (GRACE without Warm, LoRA) and of the masks of side memories
	Threads    int    // CPU threads of float64 linear algebra; 0: one for each processor
	// deltas leave elements alone that are zero before all edits: a pruned matrix keeps its pattern
	KeepZeros bool
}

// Editing is a model under edit. It must be used by one goroutine at a time, and nobody else may change the
// matrices that it edits.
type Editing struct {
	m          *lm.Model
	method     method
	hp         HParams
	seed       uint64
	zeros      bool // elements that are zero stay so
	sep        []int32
	solver     linalg.Solver
	cov        covariance.Covariance
	weights    map[string]*weight
	order      []string // of the weights
	anchors    []Encoded
	past       past
	null       map[int]linalg.Matrix // AlphaEdit: basis of the null space, by layer
	beside     sidecar               // what was learnt beside the weights; nil: nothing
	detach     func()
	background [][]int32
	reads      linalg.Matrix // what the matrix of a side memory reads there
	gives      linalg.Matrix // and gives
	context    []int32       // IKE: what stands before every prompt
	steps      []Step
}

// New prepares a method for a model. Nothing changes yet.
func New(m *lm.Model, o Options) (*Editing, error) {
	method, err := find(o.Method)
	if err != nil {
		return nil, err
	}

	e := &Editing{
		m: m, method: method, seed: o.Seed, zeros: o.KeepZeros, sep: o.Separator,
		solver: linalg.Solver{Threads: o.Threads, Device: m.Device()}, weights: map[string]*weight{},
		anchors: o.Anchors, background: o.Background, past: newPast(), null: map[int]linalg.Matrix{},
	}
	if o.HParams != nil {
		e.hp = *o.HParams
	} else if e.hp, err = Defaults(o.Method, m.Config()); err != nil {
		return nil, err
	}

	if err := e.hp.Validate(m.Blocks()); err != nil {
		return nil, err
	}
	if one := !method.batch || method.form == equal || strings.HasPrefix(method.name, "ft") ||
		method.name == "lora"; one && len(e.hp.Layers) != 1 {
		return nil, fmt.Errorf("%w: layers: %s writes to one layer, not %d", ErrOptions, method.name, len(e.hp.Layers))
	}

	for _, b := range e.hp.Layers {
		if method.name == "ike" {
			break // it writes nowhere
		}
		if _, err := site.Linear(m, b, arch.Down); err != nil {
			return nil, err
		}
	}
	if method.name == "ultraedit" {
		if _, err := e.matrices(); err != nil {
			return nil, err
		}
	}

	if NeedsStatistics(method.name, e.hp) && o.Statistics == nil {
		return nil, fmt.Errorf("%w: %s needs the covariance of keys (HINT: give a text to collect it from)",
			ErrStatistics, method.name)
	}

	if err := e.hp.besides(method.name); err != nil {
		return nil, err
	}
	if NeedsBackground(method.name) && len(o.Background) == 0 {
		return nil, fmt.Errorf("%w: %s holds facts against ordinary text (HINT: give a text for statistics)",
			ErrStatistics, method.name)
	}

	e.cov = covariance.Covariance{Stats: o.Statistics.moments(), Solver: e.solver}
	switch ridge := e.hp.NormLambda; {
	case method.form == equal: // which factors a covariance of its own
	case e.hp.Lambda > 0:
		e.cov.Ridge = ridge / e.hp.Lambda
	default:
		e.cov.Share = ridge
	}

	return e, nil
}

// HParams are the hyper-parameters in use.
func (e *Editing) HParams() HParams { return e.hp }

// Damped lists the covariances that had to be made positive definite.
func (e *Editing) Damped() []Damping {
	var out []Damping
	for _, d := range e.cov.Damped {
		out = append(out, Damping(d))
	}
	return out
}

// Steps are the edits so far.
func (e *Editing) Steps() []Step { return e.steps }

// Model is what is edited.
func (e *Editing) Model() *lm.Model { return e.m }

// Codebook is what GRACE has learnt; nil for other methods.
func (e *Editing) Codebook() *Codebook {
	b, _ := e.beside.(*Codebook)
	return b
}

// Context is what in-context editing puts before every prompt; nil for other methods.
func (e *Editing) Context() []int32 { return e.context }

// change is what a method does to a model.
type change struct {
	deltas  []Delta
	codes   []Code
	part    *Part // of a side memory
	context []int32
	past    past             // what the edits after it will know of it
	goals   []*optimize.Goal // of methods that search values
	skipped []int            // requests whose values are too long for their anchor
	losses  [][]float64      // of those that train, by edit

	keys  map[int]linalg.Matrix // [n, in]: what the solve used, by layer
	resid map[int]linalg.Matrix // [n, out]
}

// Step is one application of a method: an edit, or a batch of edits.
type Step struct {
	Method  string   `json:"method"`
	Edits   []string `json:"edits"` // what was edited, for people
	Deltas  []Delta  `json:"deltas,omitempty"`
	Linear  string   `json:"linear,omitempty"` // of the codebook or the side memory
	Codes   []Code   `json:"codes,omitempty"`
	Part    *Part    `json:"memory,omitempty"`
	Context []int32  `json:"context,omitempty"`
	past    past     // what later edits know of it
	// SHA-256 of the stored bytes of every edited matrix afterwards
	State   map[string]string `json:"state,omitempty"`
	History [][]Loss          `json:"-"`
	Losses  [][]float64       `json:"-"`
	// requests of the batch that were left out, because their optimisation diverged
	Failed []int `json:"-"`
	// and those whose value is more than twice as long as the anchor, so that it is left as it was
	Skipped []int `json:"-"`
}

// Apply writes one batch of facts; methods that write one at a time refuse several. An optimisation that
// diverges leaves its request out, and the step names it; where it was the only one, the error wraps
// [ErrDiverged]. After any error the model is as it was.
func (e *Editing) Apply(ctx context.Context, reqs []Encoded, names []string) (*Step, error) {
	if len(reqs) == 0 {
		return nil, fmt.Errorf("%w: no edits", ErrOptions)
	}
	if len(reqs) > 1 && !e.method.batch {
		return nil, fmt.Errorf("%w: %s writes one fact at a time, not %d", ErrOptions, e.method.name, len(reqs))
	}

	for i := range reqs {
		if err := reqs[i].Validate(); err != nil {
			return nil, fmt.Errorf("edit %d: %w", i, err)
		}
	}

	// A method may have changed weights to see what comes of it. They go back to the last step, and commit applies the
	// change from there, by the same way as Undo and a journal do: only so are all three the same to the last byte.
	c, err := e.method.apply(ctx, e, reqs)
	for _, w := range e.weights {
		w.back()
	}
	if err == nil {
		err = errors.Join(e.finite(c), c.learnt())
	}
	if err != nil {
		return nil, errors.Join(err, e.restore())
	}

	s := Step{
		Method: e.method.name, Edits: names, Deltas: c.deltas, Codes: c.codes, Part: c.part, past: c.past,
		Context: c.context, Losses: c.losses, Skipped: c.skipped,
	}
	if s.aside() {
		l, err := site.Linear(e.m, e.hp.Layers[0], arch.Down)
		if err != nil {
			return nil, err
		}
		s.Linear = l.Name
	}

	for i, g := range c.goals {
		var h []Loss
		for _, l := range g.History {
			h = append(h, Loss(l))
		}
		s.History = append(s.History, h)

		if g.Failed {
			s.Failed = append(s.Failed, i)
		}
	}

	if err := e.commit(&s); err != nil {
		return nil, errors.Join(err, e.restore())
	}

	return &e.steps[len(e.steps)-1], nil
}

// Farthest is the largest ‖ΔW‖/‖W‖ of a step of fine-tuning (FT, FT-L, FT-M, LoRA), which stays below 1 where
// it works: a model whose matrix is moved by a hundred times its norm knows nothing any more. The other methods
// are bound by Clamp.
const Farthest = 100

// learnt refuses what training has made worse than it was: a loss that is higher at the end than at the start.
func (c *change) learnt() error {
	for _, h := range c.losses {
		if n := len(h); n > 1 && h[n-1] > h[0] {
			return fmt.Errorf(
				"%w: the loss is %.4g after %d steps, and was %.4g before (HINT: a smaller learning_rate)", ErrDiverged,
				h[n-1], n-1, h[0])
		}
	}
	return nil
}

// finite refuses deltas that are not numbers.
func (e *Editing) finite(c *change) error {
	for i := range c.deltas {
		d := &c.deltas[i]
		for _, m := range []linalg.Matrix{d.left, d.right, d.dense} {
			if err := m.CheckFinite(); err != nil {
				return fmt.Errorf("%w: tensor %q: %w", ErrDiverged, d.Linear, err)
			}
		}
	}
	return nil
}

// commit makes a step part of the model's history: every weight becomes the sum of what was stored and all deltas.
func (e *Editing) commit(s *Step) error {
	if err := e.replay(s); err != nil {
		return err
	}

	for i := range s.Deltas {
		d := &s.Deltas[i]
		if err := e.weights[d.Linear].measure(d); err != nil {
			return err
		}
		if far := d.Norms.Relative; len(s.Losses) > 0 && e.weights[d.Linear].norm > 0 && !(far <= Farthest) {
			return fmt.Errorf("%w: tensor %q would change by %.4g times its norm, more than %d (HINT: a smaller "+
				"learning_rate or clamp)", ErrDiverged, d.Linear, far, Farthest)
		}
	}

	e.steps = append(e.steps, *s)
	return nil
}

// replay applies a step and notes, or checks, what the matrices are afterwards.
func (e *Editing) replay(s *Step) error {
	state := map[string]string{}

	for i := range s.Deltas {
		d := &s.Deltas[i]
		w, err := e.weight(d.Linear)
		if err != nil {
			return err
		}

		if err := w.add(d); err != nil {
			return err
		}
	}

	// In the order in which matrices were first edited, not that of a map: messages must not differ from run to run.
	for _, name := range e.order {
		if !slices.ContainsFunc(s.Deltas, func(d Delta) bool { return d.Linear == name }) {
			continue
		}

		sum, err := e.weights[name].store(e.m)
		if err != nil {
			return err
		}

		state[name] = sum

		if want, ok := s.State[name]; ok && want != sum {
			return fmt.Errorf("%w: tensor %q is not what the journal says after %d steps", ErrJournal, name,
				len(e.steps)+1)
		}
	}

	if s.State == nil && len(state) > 0 {
		s.State = state
	}

	if s.aside() {
		if err := e.attach(s); err != nil {
			return err
		}
	}

	e.past.add(s.past)
	if s.Context != nil {
		e.context = s.Context
	}

	return nil
}

// named finds a linear.
func named(m *lm.Model, name string) (lm.Linear, error) {
	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			if l.Name == name {
				return l, nil
			}
		}
	}
	return lm.Linear{}, fmt.Errorf("%w: the model has no matrix %.200q", ErrJournal, name)
}

// weight takes a matrix under care, or gives the one that is.
func (e *Editing) weight(name string) (*weight, error) {
	if w, ok := e.weights[name]; ok {
		return w, nil
	}

	l, err := named(e.m, name)
	if err != nil {
		return nil, err
	}

	w, err := open(e.m, l)
	if err != nil {
		return nil, err
	}

	e.weights[name], e.order = w, append(e.order, name)
	return w, nil
}

// restore brings the model back to the last step.
func (e *Editing) restore() error { return e.Undo(len(e.steps)) }

// Undo goes back to the state after the first n steps, byte for byte.
func (e *Editing) Undo(n int) error {
	if n < 0 || n > len(e.steps) {
		return fmt.Errorf("%w: cannot go back to step %d of %d", ErrSteps, n, len(e.steps))
	}

	// From the stored bytes up again, and not by subtracting deltas: sums of floats don't go back to where they were.
	kept := e.steps[:n:n]
	for _, name := range e.order {
		if err := e.weights[name].reset(); err != nil {
			return err
		}
		if _, err := e.weights[name].store(e.m); err != nil {
			return err
		}
	}

	e.context = nil
	if e.beside != nil {
		e.beside.clear()
	}

	e.past = newPast()
	e.steps = nil
	for i := range kept {
		if err := e.replay(&kept[i]); err != nil {
			return err
		}
		e.steps = append(e.steps, kept[i])
	}

	return nil
}

// Close detaches what was put beside the model's weights. The weights stay edited.
func (e *Editing) Close() {
	if e.detach != nil {
		e.detach()
		e.detach = nil
	}
}
