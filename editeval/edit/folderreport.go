package edit

import (
	"context"
	"math"
	"strings"
)

// FolderReport is what [ApplyFolder] did and measured. Metrics are those of [Editing.Judge], with the drift and what
// generated texts gave.
type FolderReport struct {
	Method         string             `json:"method"`
	Count          int                `json:"count"` // records
	Batch          int                `json:"batch"` // facts that were written at once
	HParams        HParams            `json:"hparams"`
	Statistics     *Collected         `json:"statistics,omitempty"`     // nil: the method needs none
	Damped         []Damping          `json:"damped,omitempty"`         // covariances that were not positive definite
	Remarks        []Remark           `json:"record_remarks,omitempty"` // on records
	Failed         []LeftOut          `json:"failed,omitempty"`
	SecondsPerEdit float64            `json:"seconds_per_edit"`
	Metrics        map[string]float64 `json:"metrics"`
	Stderr         map[string]float64 `json:"metrics_stderr"`
	N              map[string]int     `json:"metrics_n"`
	Before         map[string]float64 `json:"metrics_before"` // of the model before these edits
	Drift          *Drift             `json:"drift"`
	Norms          map[string]Norms   `json:"norms"` // of all edits together, by matrix
	// ‖final - base - Σ deltas‖/‖Σ deltas‖: what rounding to the stored type leaves
	SumError    float64              `json:"sum_error"`
	Texts       *TextFigures         `json:"texts,omitempty"`
	TextsBefore *TextFigures         `json:"texts_before,omitempty"`
	Example     *TextExample         `json:"example,omitempty"` // of the first record
	Steps       []FolderStep         `json:"steps"`
	Records     []map[string]float64 `json:"records"` // metrics of each

	vocab int // of the model

	// Finished: an earlier call had finished this run, and nothing was done; of all else only Method and HParams
	// are set.
	Finished bool `json:"-"`
}

// Collected says what the covariance of keys was collected from.
type Collected struct {
	Source string `json:"source"` // file
	Data   string `json:"data"`   // hash of the tokens
	Tokens int    `json:"tokens"`
}

// tooLong says why a method with anchored values left a fact alone.
const tooLong = "its value is more than twice as long as those of other facts"

// LeftOut is a record that was not written: its optimisation diverged or led astray, or another one overrules it.
type LeftOut struct {
	Index int    `json:"index"`
	Why   string `json:"why"`
}

// FolderStep is one step of the journal: an edit, or a batch of edits.
type FolderStep struct {
	First  int              `json:"first"` // record
	Edits  int              `json:"edits"`
	Norms  map[string]Norms `json:"norms,omitempty"`
	Losses []float64        `json:"losses,omitempty"` // the last of every optimisation
}

// TextFigures measure what a model makes of generation prompts.
type TextFigures struct {
	Fluency float64 `json:"fluency"` // mean n-gram entropy, see [Fluency]
	// mean cosine with texts about subjects of which the new answer is true, see [Consistency]
	Consistency float64 `json:"consistency,omitempty"`
	N           int     `json:"n"` // generated texts
}

// TextExample is what the model says to a prompt, always its most probable token, before and after the edits.
type TextExample struct {
	Prompt string `json:"prompt"`
	Before string `json:"before"` // without the prompt
	After  string `json:"after"`
}

// exampleTokens is how many tokens an example continues a prompt by.
const exampleTokens = 12

// Signs of a model that has collapsed.
const (
	keptLittle  = 0.05 // fraction of prompts with the same top-1 token
	driftedMuch = 1.0  // nats: little agreement over few prompts is no sign without it
)

// Collapsed reports whether the edits have destroyed the model: it kept next to none of its top-1 predictions, or lies
// further from what it was than a model that knows nothing would.
func (r *FolderReport) Collapsed() bool {
	d := r.Drift
	if d == nil || d.Prompts == 0 {
		return false
	}
	// ln(vocabulary) is the divergence of the uniform distribution from one that is sure of its token.
	return d.KL > math.Log(float64(r.vocab)) || d.Agreement <= keptLittle && d.KL >= driftedMuch
}

// before notes the metrics of the model as it was.
func (r *FolderReport) before(j *Judgement) {
	r.Before = map[string]float64{}
	for name, s := range j.Stats {
		r.Before[name] = s.Mean
	}
	r.Before["score"] = j.Score

	for i, m := range j.Records {
		if m["efficacy_exact"] == 1 {
			r.Remarks = append(r.Remarks, Remark{Index: i, What: "the model gives the new answer already"})
		}
	}
}

// after notes those of the edited one.
func (r *FolderReport) after(j *Judgement) {
	r.Count = len(j.Records)
	r.Records = j.Records
	r.Metrics = map[string]float64{}
	r.Stderr = map[string]float64{}
	r.N = map[string]int{}
	for name, s := range j.Stats {
		r.Metrics[name] = s.Mean
		r.Stderr[name] = s.Stderr
		r.N[name] = s.N
	}

	r.Metrics["score"] = j.Score
	r.Metrics["non_finite"] = float64(j.NonFinite)
	r.Metrics["drift_kl"] = r.Drift.KL
	r.Metrics["drift_argmax_agreement"] = r.Drift.Agreement

	if r.Texts != nil {
		r.Metrics["fluency"] = r.Texts.Fluency
		if r.Texts.Consistency > 0 {
			r.Metrics["consistency"] = r.Texts.Consistency
		}
	}
}

// step notes a step.
func (r *FolderReport) step(first int, which []int, s *Step) {
	out := FolderStep{First: first, Edits: len(which), Norms: map[string]Norms{}}
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
		r.Failed = append(r.Failed, LeftOut{which[i], ErrDiverged.Error()})
	}
	for _, i := range s.Skipped {
		r.Failed = append(r.Failed, LeftOut{which[i], tooLong})
	}

	r.Steps = append(r.Steps, out)
}

// measure measures the edited model.
func (r *folderRun) measure(ctx context.Context, base *Baseline) (err error) {
	if r.report.Drift, err = r.e.Drift(ctx, base); err != nil {
		return err
	}

	after, err := r.e.Judge(ctx, r.x, r.records)
	if err != nil {
		return err
	}

	if r.report.Texts, err = r.texts(ctx); err != nil {
		return err
	}
	if r.report.Example.After, err = r.e.continued(ctx, r.x, r.report.Example.Prompt); err != nil {
		return err
	}

	r.report.after(after)
	if r.report.Norms, err = r.e.Norms(); err != nil {
		return err
	}

	r.report.Damped = r.e.Damped()
	r.report.SumError, err = r.e.CheckSum()

	return err
}

// texts continues some records' generation prompts and measures what comes out; nil where no text was asked for.
func (r *folderRun) texts(ctx context.Context) (*TextFigures, error) {
	t := &TextFigures{}
	references := make([]string, len(r.records)) // texts of which the new answer of a record is true
	var collection []string
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
		texts, err := r.e.Texts(ctx, r.x, &r.records[i], r.o.Seed)
		if err != nil {
			return nil, err
		}

		for _, text := range texts {
			t.Fluency += Fluency(text)
			t.N++
		}

		if references[i] != "" {
			t.Consistency += Consistency(strings.Join(texts, " "), references[i], collection)
			consistent++
		}
	}

	if t.N == 0 {
		return nil, nil
	}

	t.Fluency /= float64(t.N)
	t.Consistency /= float64(max(consistent, 1))

	return t, nil
}
