package fitness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/structure"
)

// The ways in which judging fails. Test with errors.Is.
var (
	ErrOptions = failure.Misuse("unusable settings of the fitness", "")
	ErrSubject = errors.New("unusable model")
	ErrTask    = errors.New("unusable task")
	ErrOverlap = failure.Misuse("sets of data overlap", "")
)

// version changes with whatever changes what is measured.
const version = 2

// Rung is a way to measure, from cheap to dear.
type Rung string

// The rungs; see the package documentation.
const (
	Layers Rung = "layers"
	Few    Rung = "few"
	Full   Rung = "full"
	Select Rung = "select"
	Test   Rung = "test"
)

// Dense is the name of the metric that prunes nothing.
const Dense = "dense"

// Setting says how much is pruned.
type Setting struct {
	Sparsity float64       `json:"sparsity"` // 0 with an N:M pattern
	Pattern  prune.Pattern `json:"pattern"`
}

// String is the pattern, or the sparsity if there is none.
func (t Setting) String() string {
	if t.Pattern.Structured() {
		return t.Pattern.String()
	}
	return fmt.Sprint(t.Sparsity)
}

// Options of a judge. The zero value prunes half of the weights.
type Options struct {
	Settings []Setting   `json:"settings"` // default: sparsity 0.5
	Symbols  []gp.Symbol `json:"symbols"`  // that expressions may use, for the statistics; default: the paper's
	// Structure says that formulas score whole parts of models, of which Settings' sparsity is the share that goes; "":
	// they score weights.
	Structure structure.Kind `json:"structure,omitempty"`

	Blocks  int    `json:"blocks"`      // sampled for the rung layers; default 3
	Windows int    `json:"few_windows"` // of the search data for the rung few; default 8
	Benches int    `json:"-"`           // measurements at the same time, each with weights of its own; default 1
	Dir     string `json:"-"`           // folder for files of gradients, kept; default: a temporary one
	// Note is told of files of gradients that were damaged since they were written, and are made anew, and of
	// those that are made while measurements go on; from any goroutine. nil: nobody.
	Note func(text string) `json:"-"`
	// Plan is told what getting a model ready will take, before that begins; nil: nobody, and no time is spent on it.
	Plan func(p Setup) `json:"-"`
	// Progress is told how far a stage of getting a model ready is; nil: nobody.
	Progress func(model, stage string, done, of int64) `json:"-"`
}

func (o *Options) setDefaults() error {
	if len(o.Settings) == 0 {
		o.Settings = []Setting{{Sparsity: 0.5}}
	}
	if len(o.Symbols) == 0 {
		o.Symbols = gp.PaperSymbols()
		if o.Structure != "" {
			o.Symbols = gp.PartsGrammar(o.Structure.Terminals()...).Symbols
		}
	}
	if o.Structure != "" && !slices.Contains(structure.Kinds(), o.Structure) {
		return fmt.Errorf("%w: nobody takes out %q; known: %v", ErrOptions, o.Structure, structure.Kinds())
	}

	for _, d := range []struct {
		p *int
		v int
	}{{&o.Blocks, 3}, {&o.Windows, 8}, {&o.Benches, 1}} {
		if *d.p == 0 {
			*d.p = d.v
		}
		if *d.p < 1 {
			return fmt.Errorf("%w: %d blocks, %d windows, %d benches", ErrOptions, o.Blocks, o.Windows, o.Benches)
		}
	}

	for _, t := range o.Settings {
		if err := (prune.Options{Sparsity: t.Sparsity, Pattern: t.Pattern}).Validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrOptions, err)
		}
		if t.Sparsity == 0 && !t.Pattern.Structured() {
			return fmt.Errorf("%w: sparsity 0 tells no metric from another", ErrOptions)
		}
		if t.Pattern.Structured() && o.Structure != "" {
			return fmt.Errorf("%w: pattern %s is of weights, and whole %s go", ErrOptions, t.Pattern, o.Structure)
		}
	}

	return nil
}

// Judge measures metrics. Its methods may be called from several goroutines at once.
type Judge struct {
	o        Options
	subjects []*subject
	benches  chan *bench
	release  func() error // of a temporary folder; nil: there is none
}

// NewJudge opens the models and gathers their statistics. The errors are those of Subject.Open, of package
// prune, [ErrOptions] and [ErrSubject].
func NewJudge(ctx context.Context, subjects []Subject, o Options) (_ *Judge, err error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}

	j := &Judge{o: o, benches: make(chan *bench, o.Benches)}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.Close())
		}
	}()

	for range o.Benches {
		j.benches <- &bench{models: make([]*lm.Model, len(subjects))}
	}

	if o.Dir == "" {
		if o.Dir, j.release, err = scratch.Folder("compress-fitness-"); err != nil {
			return nil, err
		}
	}

	j.o.Dir = o.Dir
	if len(subjects) == 0 {
		return nil, fmt.Errorf("%w: no model", ErrOptions)
	}

	for _, s := range subjects {
		if err := s.check(o); err != nil {
			return nil, err
		}

		own := &subject{Subject: s, o: &j.o}
		j.subjects = append(j.subjects, own)
		if err := own.prepare(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}

	return j, nil
}

// check says what a subject lacks.
func (s *Subject) check(o Options) error {
	for _, w := range []struct {
		name string
		w    corpus.Windows
		min  int
	}{{"calibration", s.Calib, 1}, {"search", s.Search, o.Windows}, {"selection", s.Select, 2}, {"test", s.Test, 2}} {
		if len(w.w.IDs) < w.min {
			return fmt.Errorf("%s: %w: %d %s windows; want at least %d", s.Name, ErrOptions, len(w.w.IDs), w.name,
				w.min)
		}

		for i, ids := range w.w.IDs {
			if len(ids) < 2 {
				return fmt.Errorf("%s: %w: %s window %d has %d tokens; want at least 2", s.Name, ErrOptions, w.name, i,
					len(ids))
			}
		}
	}

	return nil
}

// Cases names what every measurement consists of: each model with each setting, model by model.
func (j *Judge) Cases() []string {
	var list []string
	for _, s := range j.subjects {
		for _, t := range j.o.Settings {
			list = append(list, s.Name+" "+t.String())
		}
	}
	return list
}

// ID identifies what the measurements depend on, besides the program: models, data and options.
func (j *Judge) ID() string {
	parts := []string{fmt.Sprint(version)}
	for _, s := range j.subjects {
		parts = append(parts, s.id)
	}
	text, err := json.Marshal(j.o)
	if err != nil {
		panic("fitness: options that JSON cannot hold") // numbers and names only
	}
	return digest(append(parts, string(text))...)
}

// Probe makes small matrices of the first model for gp's check of legality: rows of up to three layers of
// unlike inputs.
//
// Formulas of whole parts have a probe of their own in package gp, and get none here.
func (j *Judge) Probe() *gp.Probe {
	if j.o.Structure != "" {
		return nil
	}

	const rows, most = 16, 3
	var parts []gp.Inputs
	seen := map[string]bool{}
	for _, m := range j.subjects[0].matrices {
		kind := fmt.Sprint(m.linear.Role)
		if seen[kind] || m.blind || len(parts) == most || m.linear.Block < j.subjects[0].dense.Blocks()/2 {
			continue
		}

		seen[kind] = true
		in := m.in
		n := min(rows, in.W.Rows)
		in.W, in.G = f32Rows(in.W, n), f32Rows(in.G, n)
		parts = append(parts, in)
	}

	if len(parts) == 0 {
		return nil
	}

	return gp.NewProbe(parts...)
}

// f32Rows copies n rows, spread over the matrix.
func f32Rows(m kernels.Mat, n int) kernels.Mat {
	out := kernels.MatOf(kernels.NewHost(kernels.F32, n*m.Cols), n, m.Cols)
	for k := range n {
		widen(out.RowF32(k), m, k*m.Rows/n)
	}
	return out
}

// Task is one measurement: a metric on one rung.
type Task struct {
	Judge string `json:"judge"` // ID of the judge that it is for
	Rung  Rung   `json:"rung"`
	// a name or formula as prune.MetricByName takes it, or "dense"; on the rungs layers and few a formula
	Metric string `json:"metric"`
}

// ID identifies a task.
func (t Task) ID() string { return digest(t.Judge, string(t.Rung), t.Metric)[:40] }

// Measure is the answer to a task. Losses are in nats a token.
type Measure struct {
	Values []float64 `json:"values,omitempty"` // one for each case: relative error or mean loss
	// on the rungs select and test: the mean loss of every window, for each case
	Windows  [][]float64 `json:"windows,omitempty"`
	Rejected string      `json:"rejected,omitempty"` // why the metric is unusable
	// NearTies are, on a device away from the host and the rungs that prune in full, the weights of each case
	// of which the host may choose otherwise; see [prune.Tensor].
	NearTies []int64 `json:"near_ties,omitempty"`
}

// Measure does a task; it waits for a bench to be free. A metric that can't rank the weights of a model is an
// answer, not an error.
func (j *Judge) Measure(ctx context.Context, t Task) (Measure, error) {
	if id := j.ID(); t.Judge != id {
		return Measure{}, fmt.Errorf("%w: it is for models, data or options %.12s; these are %.12s", ErrTask, t.Judge,
			id)
	}

	var b *bench
	select {
	case b = <-j.benches:
	case <-ctx.Done():
		return Measure{}, ctx.Err()
	}
	defer func() { j.benches <- b }()

	var out Measure
	var err error
	switch {
	case !slices.Contains(append(slices.Clone(rungs), Select, Test), t.Rung):
		return out, fmt.Errorf("%w: rung %q", ErrTask, t.Rung)
	case j.o.Structure != "":
		out, err = j.structural(ctx, b, t)
	case t.Rung == Layers || t.Rung == Few:
		out, err = j.quick(ctx, b, t)
	default:
		out, err = j.whole(ctx, b, t)
	}

	// What a metric makes of the weights is its own doing, and an answer; everything else is an error of the search.
	for _, reason := range []error{gp.ErrNonFinite, gp.ErrConstant, prune.ErrNonFinite, prune.ErrConstant} {
		if errors.Is(err, reason) {
			return Measure{Rejected: reason.Error()}, nil
		}
	}

	if err != nil {
		return Measure{}, fmt.Errorf("%s, rung %s: %w", t.Metric, t.Rung, err)
	}

	for _, v := range out.Values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return Measure{Rejected: "the loss is not finite"}, nil
		}
	}

	return out, nil
}

// Answers finds out whether a measure can be the answer to a task: it has as many values as the judge has cases and
// data, all of them finite and none below zero, or a reason why there are none. Where the measure was taken elsewhere
// this says nothing about its truth.
func (j *Judge) Answers(t Task, m Measure) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: the answer to %.100s on the rung %.20s has %s", ErrTask, t.Metric, t.Rung,
			fmt.Sprintf(format, args...))
	}

	// Answers may come from workers elsewhere and are not taken on trust.
	if m.Rejected != "" {
		if len(m.Values)+len(m.Windows)+len(m.NearTies) > 0 {
			return bad("values although the metric is said to be unusable")
		}
		return nil
	}

	cases := len(j.subjects) * len(j.o.Settings)
	if len(m.Values) != cases {
		return bad("%d values for %d cases", len(m.Values), cases)
	}
	if !areLosses(m.Values) {
		return bad("a value that is no loss")
	}
	if n := len(m.NearTies); n != 0 && n != cases ||
		slices.ContainsFunc(m.NearTies, func(v int64) bool { return v < 0 }) {
		return bad("%d numbers of near ties for %d cases", n, cases)
	}

	if t.Rung != Select && t.Rung != Test {
		if len(m.Windows) > 0 {
			return bad("windows")
		}
		return nil
	}

	if len(m.Windows) != cases {
		return bad("windows of %d cases, not %d", len(m.Windows), cases)
	}

	for k, v := range m.Windows {
		want := len(j.subjects[k/len(j.o.Settings)].set(t.Rung).data.IDs)
		if len(v) != want || !areLosses(v) || mean(v) != m.Values[k] {
			return bad("%d windows of case %d, not the losses of %d", len(v), k+1, want)
		}
	}

	return nil
}

// areLosses reports whether values are finite and none is below zero.
func areLosses(list []float64) bool {
	return !slices.ContainsFunc(list, func(v float64) bool { return !(v >= 0) || math.IsInf(v, 0) })
}

// quick measures with the statistics of the dense models.
func (j *Judge) quick(ctx context.Context, b *bench, t Task) (out Measure, err error) {
	var p *gp.Program
	if t.Metric != Dense {
		text, ok := strings.CutPrefix(t.Metric, prune.FormulaPrefix)
		if !ok {
			return out, fmt.Errorf("%w: the rung takes formulas only", ErrTask)
		}

		e, err := gp.Parse(text)
		if err == nil {
			p, err = gp.Compile(e)
		}
		if err != nil {
			return out, fmt.Errorf("%w: %w", ErrTask, err)
		}
	}

	for at, s := range j.subjects {
		if t.Rung == Layers {
			if p == nil {
				return out, fmt.Errorf("%w: the rung takes formulas only", ErrTask)
			}

			v, err := b.layers(ctx, s, at, p, j.o.Settings)
			if err != nil {
				return out, err
			}

			out.Values = append(out.Values, v...)
			continue
		}

		for _, setting := range j.o.Settings {
			m, err := b.model(ctx, s, at)
			if err == nil && p != nil {
				err = b.mask(ctx, m, s, p, setting)
			}

			var v []float64
			if err == nil {
				v, err = losses(ctx, m, s.Search.IDs[:j.o.Windows])
			}
			if err != nil {
				return out, fmt.Errorf("%s, %s: %w", s.Name, setting, err)
			}

			out.Values = append(out.Values, mean(v))
		}
	}

	return out, nil
}

// whole measures what prune.Model makes.
func (j *Judge) whole(ctx context.Context, b *bench, t Task) (out Measure, err error) {
	var metric prune.Metric
	if t.Metric != Dense {
		if metric, err = prune.MetricByName(t.Metric); err != nil {
			return out, fmt.Errorf("%w: %w", ErrTask, err)
		}
	}

	for at, s := range j.subjects {
		set := s.set(t.Rung)
		for _, setting := range j.o.Settings {
			var m *lm.Model
			var near int64
			if t.Metric == Dense {
				m, err = b.model(ctx, s, at)
			} else {
				m, near, err = b.pruned(ctx, s, at, t.Rung, metric, setting)
			}

			var v []float64
			if err == nil {
				v, err = losses(ctx, m, set.data.IDs)
			}
			if err != nil {
				return out, fmt.Errorf("%s, %s: %w", s.Name, setting, err)
			}

			out.Values = append(out.Values, mean(v))
			if !m.Device().Info().Host {
				out.NearTies = append(out.NearTies, near)
			}
			if t.Rung != Full {
				out.Windows = append(out.Windows, v)
			}
		}
	}

	return out, nil
}

// All does tasks, as many at a time as there are benches.
func (j *Judge) All(ctx context.Context, tasks []Task) ([]Measure, error) {
	out := make([]Measure, len(tasks))
	g, ctx := mmapsafe.WithContext(ctx)
	g.SetLimit(j.o.Benches)

	for i, t := range tasks {
		g.Go(func() (err error) {
			out[i], err = j.Measure(ctx, t)
			return err
		})
	}

	return out, g.Wait()
}

// Close closes the models, after the last measurement.
func (j *Judge) Close() error {
	var faults []error
	for range cap(j.benches) {
		faults = append(faults, (<-j.benches).close())
	}
	for _, s := range j.subjects {
		faults = append(faults, s.close())
	}
	if j.release != nil {
		faults = append(faults, j.release())
	}

	return errors.Join(faults...)
}

func mean(v []float64) (m float64) {
	for _, x := range v {
		m += x / float64(len(v))
	}
	return m
}

// digest is a hash of texts, their lengths included.
func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
