package editeval

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/lm"
)

// Report is what a plan gave: [ResultsFile]. It is the same for the same plan, data and models, however they
// were worked on.
type Report struct {
	Plan     Plan          `json:"plan"`
	Contract string        `json:"contract,omitempty"`
	Records  int           `json:"records"` // in the files of edits
	Data     string        `json:"data"`    // hash of the records
	Counts   []int         `json:"counts"`
	Remarks  []string      `json:"remarks,omitempty"`
	Summary  []string      `json:"summary"` // sentences made of the figures
	Models   []ModelReport `json:"models"`
	// the models whose values are those of a quantised form
	Quantised []lm.Quantised `json:"source_quantization,omitempty"`

	Timings []UnitTimings `json:"-"` // [TimingsFile]
}

// ModelReport is what a model gave.
type ModelReport struct {
	Name       string `json:"name"`
	Identity   string `json:"identity"` // hash of what its answers depend on
	Parameters int64  `json:"parameters"`
	Device     string `json:"device"`
	// hash of the tokens that the covariance of keys comes from
	Statistics string           `json:"statistics,omitempty"`
	Base       []Ability        `json:"base"` // of the unedited model
	BaseSigns  map[string]Signs `json:"base_signs,omitempty"`
	Sequences  []SequenceReport `json:"sequences"`
	Rows       []Row            `json:"rows"` // by editor and count, the first without edits: means over seeds
}

// Signs are hints at a collapsed model, in words.
type Signs []string

// SequenceReport is a sequence.
type SequenceReport struct {
	Editor      string             `json:"editor"`
	Method      string             `json:"method"`
	Batch       int                `json:"batch"` // -1: all edits at once
	Seed        uint64             `json:"seed"`
	Folder      string             `json:"folder"` // of its samples, with the figures of every single edit
	HParams     edit.HParams       `json:"hparams"`
	TasksAs     string             `json:"tasks_as"`
	SumError    float64            `json:"sum_error"`
	Restored    bool               `json:"restored"`
	Damped      int                `json:"damped_covariances"`
	Fluency     *float64           `json:"fluency_before,omitempty"`
	Checkpoints []CheckpointReport `json:"checkpoints"`
	Fading      []Fade             `json:"fading"` // of what held at each count but the last, by the last
	// mean over edits of the best that an edit was at any count, minus what it is at the last: 0 or 1 each
	Forgetting float64 `json:"forgetting"`
}

// CheckpointReport is what was measured after a number of edits.
type CheckpointReport struct {
	Edits     int                    `json:"edits"`
	Failed    []int                  `json:"failed,omitempty"` // positions of edits that diverged and were left out
	Metrics   map[string]Interval    `json:"metrics"`          // of package edit
	Score     float64                `json:"score"`
	NonFinite int                    `json:"non_finite"`
	Retention []Bin                  `json:"retention"`  // a row of the retention matrix
	First     float64                `json:"first_held"` // of the first ten edits, or all if there are fewer
	Drift     *edit.Drift            `json:"drift"`
	Weights   float64                `json:"relative_weight_change"` // the largest ‖ΔW‖/‖W‖ of a matrix
	Norms     map[string]edit.Norms  `json:"norms,omitempty"`
	Fluency   *float64               `json:"fluency,omitempty"`
	Abilities []Ability              `json:"abilities"`
	Signs     map[string]Signs       `json:"signs,omitempty"`
	Audits    map[string]*task.Audit `json:"audits,omitempty"`
}

// Interval is a mean over edits with its standard error and an interval of 95 %: Wilson's for fractions (of
// prompts: with as many independent ones as have that standard error), the normal one for magnitudes.
type Interval struct {
	edit.Stat
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Bin is a cell of the retention matrix: of the edits From to To, counted from 1 in the order in which they
// were written, how many hold, and for how many the whole answer is top-1.
type Bin struct {
	From  int     `json:"from"`
	To    int     `json:"to"`
	Held  float64 `json:"held"`
	Exact float64 `json:"exact"`
}

// Fade compares the edits that were there at a count with themselves at the last count.
type Fade struct {
	Edits  int     `json:"edits"`
	Then   float64 `json:"held_then"`
	Last   float64 `json:"held_at_last"`
	Lost   int     `json:"lost"`   // edits that held then and do not at last
	Gained int     `json:"gained"` // the other way round
	P      float64 `json:"p"`      // McNemar's exact test
}

// Ability is a figure of a task beside that of the unedited model on the same documents.
type Ability struct {
	Task           string  `json:"task"`
	Metric         string  `json:"metric"`
	Filter         string  `json:"filter"`
	Main           bool    `json:"main"` // the one figure of the task that tables, tests and curves take
	HigherIsBetter bool    `json:"higher_is_better"`
	N              int     `json:"n"`
	Value          Value   `json:"value"`
	Stderr         Value   `json:"stderr"` // null where there is no formula
	Base           Value   `json:"base"`
	Difference     Value   `json:"difference"`
	Low            Value   `json:"low"`  // of the difference, at 95 %
	High           Value   `json:"high"` //
	Test           string  `json:"test,omitempty"`
	P              float64 `json:"p"`
	Adjusted       float64 `json:"p_adjusted"` // by Holm's method, over all main figures of the model
	Lost           bool    `json:"lost"`       // worse, with an adjusted p below 0.05
}

// Alpha is the level of tests.
const Alpha = 0.05

// UnitTimings are the costs of a sequence.
type UnitTimings struct {
	Unit
	EditorName string   `json:"editor_name"`
	Restarts   int      `json:"restarts"`
	Timings    []Timing `json:"timings"` // by count
}

// Report puts together what lies in the folder for these models, and writes [ResultsFile] and [TimingsFile].
func (s *Study) Report(models []*Subject) (*Report, error) {
	r := &Report{
		Plan: s.Plan, Contract: s.Contract, Records: len(s.Records), Data: s.Data, Counts: s.Counts,
		Remarks: s.Remarks,
	}
	var earlier []UnitTimings // of a run that this one has widened
	if err := readJSON(filepath.Join(s.dir, TimingsFile), &earlier); err != nil && !missing(err) {
		return nil, err
	}

	for _, sub := range models {
		m, err := s.model(sub)
		if err != nil {
			return nil, err
		}

		r.Models = append(r.Models, *m)
		r.Quantised = append(r.Quantised, sub.quantised...)
		r.Remarks = append(slices.Clip(r.Remarks), sub.remarks...)

		for _, u := range s.Units([]string{sub.Name}) {
			t := UnitTimings{Unit: u, EditorName: s.Plan.Editors[u.Editor].Name}
			path := filepath.Join(s.dir, StateFolder, "timings", s.folder(u)+".json")
			if err := readJSON(path, &t); err != nil && !missing(err) {
				return nil, err
			}

			for _, e := range earlier {
				if e.Model == u.Model && e.EditorName == t.EditorName && e.Seed == u.Seed && t.Timings == nil {
					t.Restarts, t.Timings = e.Restarts, e.Timings
				}
			}

			r.Timings = append(r.Timings, t)
		}
	}

	r.Summary = r.summarize()
	return r, errors.Join(writeJSON(filepath.Join(s.dir, ResultsFile), r),
		writeJSON(filepath.Join(s.dir, TimingsFile), r.Timings))
}

// model puts a model's part together.
func (s *Study) model(sub *Subject) (*ModelReport, error) {
	m := &ModelReport{
		Name: sub.Name, Identity: sub.Identity, Parameters: sub.parameters, Device: sub.device,
		Statistics: sub.statistics,
	}
	var base Base
	if err := readJSON(filepath.Join(s.dir, baseFolder, sub.Name, editsFile), &base); err != nil {
		return nil, err
	}

	m.BaseSigns = signsOf(base.Signs)
	var err error
	if m.Base, err = s.abilities(sub, filepath.Join(baseFolder, sub.Name)); err != nil {
		return nil, err
	}

	for _, u := range s.Units([]string{sub.Name}) {
		q, err := s.sequence(sub, u)
		if err != nil {
			return nil, err
		}
		m.Sequences = append(m.Sequences, *q)
	}

	m.adjust()
	m.rows(s, &base)
	return m, nil
}

func signsOf(in map[string][]string) map[string]Signs {
	if len(in) == 0 {
		return nil
	}
	out := map[string]Signs{}
	for name, list := range in {
		out[name] = list
	}
	return out
}

// sequence reads the result of a unit.
func (s *Study) sequence(sub *Subject, u Unit) (*SequenceReport, error) {
	var q Sequence
	if err := readJSON(filepath.Join(s.dir, s.folder(u), sequenceFile), &q); err != nil {
		return nil, err
	}

	ed := s.Plan.Editors[u.Editor]
	r := &SequenceReport{
		Editor: ed.Name, Method: ed.Method, Batch: ed.Batch, Seed: u.Seed, Folder: filepath.ToSlash(s.folder(u)),
		HParams: q.HParams, TasksAs: q.TasksAs,
		SumError: q.SumError, Restored: q.Restored, Damped: q.Damped, Fluency: q.Fluency,
	}

	for i := range q.Checkpoints {
		c := &q.Checkpoints[i]
		out := CheckpointReport{
			Edits: c.Edits, Failed: c.Failed, Metrics: map[string]Interval{}, Score: c.Score, NonFinite: c.NonFinite,
			Retention: s.retention(c),
			Drift:     c.Drift, Norms: c.Norms, Fluency: c.Fluency, Signs: signsOf(c.Signs), Audits: c.Audits,
		}

		// The first edits of the sequence, at every count: whether later ones overwrite them.
		for _, m := range c.Records[:min(firstEdits, c.Edits)] {
			out.First += held(m) / float64(min(firstEdits, c.Edits))
		}
		for name, st := range c.Metrics {
			out.Metrics[name] = IntervalOf(name, st)
		}
		for _, n := range c.Norms {
			out.Weights = max(out.Weights, n.Relative)
		}

		var err error
		if out.Abilities, err = s.abilities(sub,
			filepath.Join(s.folder(u), fmt.Sprintf("edits-%d", c.Edits))); err != nil {
			return nil, err
		}

		r.Checkpoints = append(r.Checkpoints, out)
	}

	r.fade(q.Checkpoints)
	return r, nil
}

// IntervalOf is that of a metric of package edit, by its name: those with one prompt a record are fractions of
// edits, others but the magnitudes are means of fractions.
func IntervalOf(name string, st edit.Stat) Interval {
	i := Interval{Stat: st}
	switch {
	case name == "efficacy_success" || name == "efficacy_exact":
		i.Low, i.High = stats.Wilson(st.Mean, st.N)
	case strings.HasSuffix(name, "_magnitude"):
		i.Low, i.High = st.Mean-stats.Z95*st.Stderr, st.Mean+stats.Z95*st.Stderr
	default:
		i.Low, i.High = stats.Share(st.Mean, st.Stderr, st.N)
	}

	return i
}

// binWidth is how many edits a column of the retention matrix has: 1, 2 or 5 times a power of ten.
func (s *Study) binWidth() int {
	n := s.Counts[len(s.Counts)-1]
	for ten := 1; ; ten *= 10 {
		for _, w := range []int{1, 2, 5} {
			if w*ten*s.Plan.Bins >= n {
				return w * ten
			}
		}
	}
}

func (s *Study) retention(c *Checkpoint) []Bin {
	var out []Bin
	for from, w := 0, s.binWidth(); from < c.Edits; from += w {
		b := Bin{From: from + 1, To: min(from+w, c.Edits)}
		for _, m := range c.Records[from:b.To] {
			b.Held += held(m) / float64(b.To-from)
			b.Exact += m["efficacy_exact"] / float64(b.To-from)
		}
		out = append(out, b)
	}

	return out
}

// held reports whether an edit holds: the new answer is more probable than the old one, or is top-1 where no
// old one is known.
func held(m map[string]float64) float64 {
	if v, ok := m["efficacy_success"]; ok {
		return v
	}
	return m["efficacy_exact"]
}

// fade compares edits with themselves at later counts.
func (r *SequenceReport) fade(list []Checkpoint) {
	last := list[len(list)-1].Records
	for _, c := range list[:len(list)-1] {
		f := Fade{Edits: c.Edits}
		for i, m := range c.Records {
			then, now := held(m), held(last[i])
			f.Then, f.Last = f.Then+then/float64(c.Edits), f.Last+now/float64(c.Edits)

			switch {
			case then > now:
				f.Lost++
			case now > then:
				f.Gained++
			}
		}

		// The same records at two counts are pairs, so the test is McNemar's.
		f.P = stats.McNemar(f.Lost, f.Gained)
		r.Fading = append(r.Fading, f)
	}

	// Forgetting, as in continual learning: what was best at any count, less what is left at the end.
	for i, m := range last {
		best := held(m)
		for _, c := range list {
			if i < len(c.Records) {
				best = max(best, held(c.Records[i]))
			}
		}

		r.Forgetting += (best - held(m)) / float64(len(last))
	}
}

// abilities compares all tasks in a folder with those of the unedited model.
func (s *Study) abilities(sub *Subject, folder string) ([]Ability, error) {
	var out []Ability
	for _, t := range s.tasks {
		base, here := filepath.Join(s.dir, baseFolder, sub.Name, t.name), filepath.Join(s.dir, folder, t.name)
		c, err := task.Compare(base, here, task.CompareOptions{Draws: s.Plan.Draws})
		if err != nil {
			return nil, err
		}

		var results struct {
			Results map[string]map[string]any `json:"results"`
			Configs map[string]any            `json:"configs"`
			Groups  map[string][]string       `json:"group_subtasks"`
		}
		if err := readJSON(filepath.Join(here, ResultsFile), &results); err != nil {
			return nil, err
		}

		rows := c.Rows
		if _, group := results.Groups[t.name]; group {
			rows = pooled(t.name, slices.Sorted(maps.Keys(results.Configs)), rows)
		}

		for i := range rows {
			p := &rows[i]
			a := Ability{
				Task: p.Task, Metric: p.Metric, Filter: p.Filter, HigherIsBetter: p.HigherIsBetter, N: p.N,
				Value: Value(p.B), Base: Value(p.A),
				Difference: Value(p.Difference), Low: Value(p.Low), High: Value(p.High), Test: p.Test, P: p.P,
				Adjusted: 1, Stderr: Value(math.NaN()),
			}

			if math.IsNaN(p.B) && !math.IsNaN(p.A) { // a model that gives no numbers: no bootstrap can draw them
				a.P = 0
			}
			if se, ok := results.Results[p.Task][p.Metric+"_stderr,"+p.Filter].(float64); ok {
				a.Stderr = Value(se)
			} else if p.Task == t.name && len(rows) < len(c.Rows) { // a group's, as of one task with all its documents
				a.Stderr = Value(math.Sqrt(p.B * (1 - p.B) / float64(max(1, p.N-1))))
			}

			out = append(out, a)
		}
	}

	choose(out)
	return out, nil
}

// preferred are metrics in the order in which one of them stands for a task.
var preferred = []string{"acc", "exact_match", "word_perplexity", "perplexity", "acc_norm"}

// choose marks one figure of every task.
func choose(list []Ability) {
	best := map[string]int{}
	rank := func(i int) int {
		if k := slices.Index(preferred, list[i].Metric); k >= 0 {
			return k
		}
		return len(preferred)
	}

	for i := range list {
		if k, ok := best[list[i].Task]; !ok || rank(i) < rank(k) {
			best[list[i].Task] = i
		}
	}

	for _, i := range best {
		list[i].Main = true
	}
}

// adjust makes the probabilities of all main figures of the model those of one family.
func (m *ModelReport) adjust() {
	var all []*Ability
	var p []float64
	for i := range m.Sequences {
		for k := range m.Sequences[i].Checkpoints {
			list := m.Sequences[i].Checkpoints[k].Abilities
			for a := range list {
				if list[a].Main {
					all, p = append(all, &list[a]), append(p, list[a].P)
				}
			}
		}
	}

	for i, v := range stats.Holm(p) {
		a := all[i]
		a.Adjusted = v
		worse := float64(a.Difference) < 0 == a.HigherIsBetter && a.Difference != 0 || math.IsNaN(float64(a.Value))
		a.Lost = worse && v < Alpha
	}
}

// Row is an editor at a count: means over seeds. A Row without an editor is the unedited model.
type Row struct {
	Editor       string   `json:"editor,omitempty"`
	Edits        int      `json:"edits"`
	Seeds        int      `json:"seeds"`
	Held         Interval `json:"held"` // fraction of edits whose new answer is more probable than the old one
	Exact        Value    `json:"exact"`
	Paraphrase   Value    `json:"paraphrase"` // null: the records have no such prompts
	Trained      Value    `json:"paraphrase_trained"`
	Neighborhood Value    `json:"neighborhood"`
	// of the first ten edits, or all if there are fewer; null without edits
	First     Value                 `json:"first_held"`
	KL        Value                 `json:"drift_kl"`
	Agreement Value                 `json:"drift_agreement"`
	Weights   float64               `json:"relative_weight_change"`
	Failed    int                   `json:"failed"` // edits that diverged, in all seeds
	Abilities map[string]RowAbility `json:"abilities"`
	Signs     map[string]Signs      `json:"signs,omitempty"`
}

// RowAbility is the main figure of a task: means over seeds.
type RowAbility struct {
	Metric         string `json:"metric"`
	HigherIsBetter bool   `json:"higher_is_better"`
	Value          Value  `json:"value"`
	// 95 %: from the standard error of the documents where there is one, otherwise from the paired bootstrap of
	// the difference
	Low  Value `json:"low"`
	High Value `json:"high"`       //
	P    Value `json:"p_adjusted"` // the largest of all seeds
	Lost int   `json:"lost"`       // seeds in which it is significantly worse than unedited
}

// firstEdits is how many edits count as the first ones.
const firstEdits = 10

// rows makes the table.
func (m *ModelReport) rows(s *Study, base *Base) {
	m.Rows = append(m.Rows, m.unedited(base))
	for k, ed := range s.Plan.Editors {
		for i, count := range s.Counts {
			row := Row{Editor: ed.Name, Edits: count, Abilities: map[string]RowAbility{}}
			var list []*CheckpointReport
			for j := range m.Sequences {
				if j/len(s.Plan.Seeds) == k {
					list = append(list, &m.Sequences[j].Checkpoints[i])
				}
			}

			row.fill(list)
			m.Rows = append(m.Rows, row)
		}
	}
}

// unedited is the row of the model as it was, over all records that are edited.
func (m *ModelReport) unedited(base *Base) Row {
	row := Row{Seeds: 1, Abilities: map[string]RowAbility{}, KL: 0, Agreement: 1, Signs: m.BaseSigns}
	metric := func(name string) (float64, int) {
		var list []float64
		for _, k := range sortedKeys(base.Records) {
			if v, ok := base.Records[k][name]; ok {
				list = append(list, v)
			}
		}
		return stats.Mean(list), len(list)
	}

	fraction, n := metric("efficacy_success")
	row.Held.Mean = fraction
	row.Held.N = n
	row.First = Value(math.NaN())
	row.Held.Low, row.Held.High = stats.Wilson(fraction, n)
	set := func(to *Value, name string) {
		v, _ := metric(name)
		*to = Value(v)
	}

	set(&row.Exact, "efficacy_exact")
	set(&row.Paraphrase, "paraphrase_success")
	set(&row.Trained, "paraphrase_trained_success")
	set(&row.Neighborhood, "neighborhood_success")

	for _, a := range m.Base {
		if a.Main {
			row.Abilities[a.Task] = rowAbility([]Ability{a})
		}
	}

	if n == 0 { // no old answers are known
		row.Held.Mean, row.Held.N = float64(row.Exact), len(base.Records)
		row.Held.Low, row.Held.High = stats.Wilson(row.Held.Mean, row.Held.N)
	}

	return row
}

// fill takes the means over seeds.
func (r *Row) fill(list []*CheckpointReport) {
	r.Seeds = len(list)
	abilities := map[string][]Ability{}
	var first, kl, agreement []float64
	for _, c := range list {
		first = append(first, c.First)
		kl, agreement = append(kl, c.Drift.KL), append(agreement, c.Drift.Agreement)
		r.Weights, r.Failed = max(r.Weights, c.Weights), r.Failed+len(c.Failed)

		for _, a := range c.Abilities {
			if a.Main {
				abilities[a.Task] = append(abilities[a.Task], a)
			}
		}

		for t, signs := range c.Signs {
			if r.Signs == nil {
				r.Signs = map[string]Signs{}
			}
			r.Signs[t] = append(r.Signs[t], signs...)
			// A sign of any seed is one of the row.
			slices.Sort(r.Signs[t])
			r.Signs[t] = slices.Compact(r.Signs[t])
		}
	}

	r.metrics(list)
	r.First = Value(stats.Mean(first))
	r.KL = Value(stats.Mean(kl))
	r.Agreement = Value(stats.Mean(agreement))
	for t, all := range abilities {
		r.Abilities[t] = rowAbility(all)
	}
}

// metrics are those of the edits; the interval takes the edits of all seeds together.
func (r *Row) metrics(list []*CheckpointReport) {
	of := func(name string) (float64, int) {
		var values []float64
		n := 0
		for _, c := range list {
			if v, ok := c.Metrics[name]; ok {
				values, n = append(values, v.Mean), n+v.N
			}
		}
		return stats.Mean(values), n
	}

	fraction, n := of("efficacy_success")
	if n == 0 {
		fraction, n = of("efficacy_exact")
	}

	r.Held.Mean, r.Held.N = fraction, n
	r.Held.Low, r.Held.High = stats.Wilson(fraction, n)

	if n > 1 {
		// a mean of ones may be rounded to more than 1
		r.Held.Stderr = math.Sqrt(max(0, fraction*(1-fraction)) / float64(n-1))
	}

	for _, f := range []struct {
		to   *Value
		name string
	}{
		{&r.Exact, "efficacy_exact"},
		{&r.Paraphrase, "paraphrase_success"},
		{&r.Trained, "paraphrase_trained_success"},
		{&r.Neighborhood, "neighborhood_success"},
	} {
		v, _ := of(f.name)
		*f.to = Value(v)
	}
}

// rowAbility is the mean over seeds of a figure, with an interval.
func rowAbility(list []Ability) RowAbility {
	r := RowAbility{Metric: list[0].Metric, HigherIsBetter: list[0].HigherIsBetter}
	var values, low, high []float64
	for _, a := range list {
		v := float64(a.Value)
		values = append(values, v)

		if se := float64(a.Stderr); !math.IsNaN(se) && isFraction(a.Metric) {
			l, h := stats.Share(v, se, a.N)
			low, high = append(low, l), append(high, h)
		} else if !math.IsNaN(se) {
			low, high = append(low, v-stats.Z95*se), append(high, v+stats.Z95*se)
		} else {
			low, high = append(low, float64(a.Base+a.Low)), append(high, float64(a.Base+a.High))
		}

		r.P = max(r.P, Value(a.Adjusted))
		if a.Lost {
			r.Lost++
		}
	}

	r.Value, r.Low, r.High = Value(stats.Mean(values)), Value(stats.Mean(low)), Value(stats.Mean(high))
	if isFraction(r.Metric) {
		r.Low, r.High = max(r.Low, 0), min(r.High, 1)
	}

	return r
}

// isFraction reports whether a metric is a fraction of documents.
func isFraction(metric string) bool {
	return metric == "acc" || metric == "acc_norm" || metric == "exact_match"
}

func sortedKeys[K int | string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// label is a count for people.
func label(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// listed joins words.
func listed(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
