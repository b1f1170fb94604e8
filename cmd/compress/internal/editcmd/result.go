package editcmd

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/report"
)

// Result is the report of the verb.
type Result struct {
	Method         string                `json:"method"`
	Edits          string                `json:"edits"`
	Out            string                `json:"out"`
	Count          int                   `json:"count"`
	Batch          int                   `json:"batch"`
	HParams        edit.HParams          `json:"hparams"`
	Statistics     *Statistics           `json:"statistics,omitempty"`
	Damped         []edit.Damping        `json:"damped,omitempty"` // covariances that were not positive definite
	Remarks        []edit.Remark         `json:"record_remarks,omitempty"`
	Skipped        []edit.Remark         `json:"skipped,omitempty"` // faulty records, by their place in the file
	Failed         []Failure             `json:"failed,omitempty"`
	SecondsPerEdit float64               `json:"seconds_per_edit"`
	Metrics        map[string]float64    `json:"metrics"`
	Stderr         map[string]float64    `json:"metrics_stderr"`
	N              map[string]int        `json:"metrics_n"`
	Before         map[string]float64    `json:"metrics_before"`
	Drift          *edit.Drift           `json:"drift"`
	Norms          map[string]edit.Norms `json:"norms"`
	// ‖final - base - Σ deltas‖/‖Σ deltas‖: what rounding to the stored type leaves
	SumError    float64              `json:"sum_error"`
	Texts       *Texts               `json:"texts,omitempty"`
	TextsBefore *Texts               `json:"texts_before,omitempty"`
	Steps       []Step               `json:"steps"`
	Records     []map[string]float64 `json:"records"`
}

// Finished is the report of a run that is continued though it was complete.
type Finished struct {
	Method   string `json:"method"`
	Edits    string `json:"edits"`
	Out      string `json:"out"`
	Finished bool   `json:"finished_before"`
}

// Failure is an edit that was left out.
type Failure struct {
	Index int    `json:"index"`
	Why   string `json:"why"`
}

// Step is one step of the journal.
type Step struct {
	First  int                   `json:"first"` // record
	Edits  int                   `json:"edits"`
	Norms  map[string]edit.Norms `json:"norms,omitempty"`
	Losses []float64             `json:"losses,omitempty"` // the last of every optimisation
}

// Texts are figures of generated texts.
type Texts struct {
	Fluency float64 `json:"fluency"` // mean n-gram entropy
	// mean cosine with texts about subjects of which the new answer is true
	Consistency float64 `json:"consistency,omitempty"`
	N           int     `json:"n"` // texts
}

// before notes the metrics of the model as it was.
func (r *Result) before(j *edit.Judgement) {
	r.Before = map[string]float64{}
	for name, s := range j.Stats {
		r.Before[name] = s.Mean
	}
	r.Before["score"] = j.Score
}

// after notes those of the edited one.
func (r *Result) after(j *edit.Judgement, records []edit.Record) {
	r.Count = len(records)
	r.Metrics = map[string]float64{}
	r.Stderr = map[string]float64{}
	r.N = map[string]int{}
	for name, s := range j.Stats {
		r.Metrics[name] = s.Mean
		r.Stderr[name] = s.Stderr
		r.N[name] = s.N
	}

	r.Metrics["score"], r.Metrics["non_finite"] = j.Score, float64(j.NonFinite)
	r.Metrics["drift_kl"], r.Metrics["drift_argmax_agreement"] = r.Drift.KL, r.Drift.Agreement

	if r.Texts != nil {
		r.Metrics["fluency"] = r.Texts.Fluency
		if r.Texts.Consistency > 0 {
			r.Metrics["consistency"] = r.Texts.Consistency
		}
	}

	r.Records = j.Records
}

// Signs of a model that has collapsed.
const (
	keptLittle  = 0.05 // share of prompts with the same likeliest token
	driftedMuch = 1.0  // nats: little agreement over few prompts is no sign without it
)

// collapse says when the edits have destroyed the model: it kept next to nothing of what it answered, or lies
// further from what it was than a model that knows nothing would.
func (r *run) collapse() {
	d, vocab := r.r.Drift, r.m.Config().Vocab
	if d.Prompts == 0 || d.KL <= math.Log(float64(vocab)) && (d.Agreement > keptLittle || d.KL < driftedMuch) {
		return
	}

	hints := []string{"fewer edits"}
	if r.r.Statistics != nil && r.o.Stats == "" {
		hints = append(hints, "--stats with text of the kind that the model was trained on")
	}

	hints = append(hints, "another --method: grace leaves the weights alone, ft-l bounds what it changes")
	r.Remark("the edited model has collapsed: its top-1 predictions stay the same at %.0f %% of %d prompts "+
		"that the edits should not touch, and it drifted by %.2f nats (HINT: %s)",
		100*d.Agreement, d.Prompts, d.KL, strings.Join(hints, "; or "))
}

// step notes a step.
func (r *Result) step(lo, hi int, s *edit.Step) {
	out := Step{First: lo, Edits: hi - lo, Norms: map[string]edit.Norms{}}
	for _, d := range s.Deltas {
		out.Norms[d.Linear] = d.Norms
	}
	for _, h := range s.History {
		out.Losses = append(out.Losses, h[len(h)-1].Total)
	}
	for _, h := range s.Losses {
		out.Losses = append(out.Losses, h[len(h)-1])
	}
	for _, i := range s.Failed {
		r.Failed = append(r.Failed, Failure{lo + i, edit.ErrDiverged.Error()})
	}

	r.Steps = append(r.Steps, out)
}

// texts generates from some records' prompts and measures what comes out.
func (r *run) texts(to **Texts) error {
	t := &Texts{}
	var collection []string
	references := map[int]string{}
	for i := range r.records {
		rec := &r.records[i]
		var list []string
		for _, p := range rec.Same {
			list = append(list, p+" "+rec.New)
		}

		references[i] = strings.Join(list, " ")
		collection = append(collection, list...)
	}

	consistent := 0
	for i := range min(r.o.Texts, len(r.records)) {
		texts, err := r.e.Texts(r.Ctx, r.x, &r.records[i], r.Seed)
		if err != nil {
			return err
		}

		for _, text := range texts {
			t.Fluency += edit.Fluency(text)
			t.N++
		}

		if references[i] != "" {
			t.Consistency += edit.Consistency(strings.Join(texts, " "), references[i], collection)
			consistent++
		}
	}

	if t.N == 0 {
		return nil
	}

	t.Fluency /= float64(t.N)
	t.Consistency /= float64(max(consistent, 1))
	*to = t

	return nil
}

// table has the metrics before and after, with an interval of what they are after; figures that are no means
// over edits have none.
func (r *Result) table() *report.Table {
	t := &report.Table{
		Columns: report.Columns("metric", "before|%.3f", "after|%.3f", "95 %"),
		Note:    "95 %: intervals over edits, Wilson's for shares",
	}

	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		before, ok := r.Before[name]
		if !ok {
			continue
		}

		var span any
		if n := r.N[name]; n > 1 || n == 1 && !strings.HasSuffix(name, "_magnitude") { // one value has no spread
			i := editeval.IntervalOf(name, edit.Stat{Mean: r.Metrics[name], Stderr: r.Stderr[name], N: n})
			span = fmt.Sprintf("%.3f to %.3f", i.Low, i.High)
		}

		t.Add(name, before, r.Metrics[name], span)
	}

	return t
}

// print shows the figures.
func (r *run) print() {
	r.Table(r.r.table())
	r.Printf("%d edits by %s (%s) in %s: drift %.4f nats, %.0f%% of top-1 predictions kept\n", r.r.Count, r.r.Method,
		r.hp.Source, r.o.Out, r.r.Drift.KL, 100*r.r.Drift.Agreement)
	if r.r.Method == "grace" || r.r.Method == "ike" {
		r.Note("the weights are as they were: what was learnt lies in %s, which compress edit reads", edit.JournalName)
	}
}
