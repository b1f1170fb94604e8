package edit

import (
	"context"
	"math"

	"github.com/modelcompress/compress/editeval/edit/internal/site"

	"github.com/modelcompress/compress/lm"
)

// item is a prompt, an answer to score, and what the model makes of it.
type item struct {
	prompt, answer []int32

	nll   float64 // mean over the answer's tokens
	right int     // tokens of it that are top-1, each given those before
	bad   bool    // not finite
}

func (x *item) exact() bool { return !x.bad && x.right == len(x.answer) }

// score runs items through the model as it is: with the codebook's answers at the last tokens of prompts, and
// the context in front.
func (e *Editing) score(ctx context.Context, items []*item) error {
	for _, c := range site.Chunks(items, func(x *item) int { return len(e.context) + len(x.prompt) + len(x.answer) }) {
		if err := e.scoreSome(ctx, items[c[0]:c[1]]); err != nil {
			return err
		}
	}
	return nil
}

func (e *Editing) scoreSome(ctx context.Context, items []*item) error {
	var ids [][]int32
	var at []int       // rows of the prompts' last tokens
	var rowsOf []int32 // rows that predict an answer's tokens
	var want [][]int32
	start := 0
	for _, x := range items {
		p := e.prompt(x.prompt)
		text := append(append([]int32(nil), p...), x.answer...)
		ids, at = append(ids, text), append(at, start+len(p)-1)
		for i, id := range x.answer {
			rowsOf, want = append(rowsOf, int32(start+len(p)-1+i)), append(want, []int32{id})
		}

		start += len(text)
	}

	h, err := e.run(ctx, ids, at)
	if err != nil {
		return err
	}
	defer h.Free()

	losses, best, err := e.m.Score(ctx, h, rowsOf, want)
	if err != nil {
		return err
	}

	i := 0
	for _, x := range items {
		for _, id := range x.answer {
			x.nll += losses[i][0] / float64(len(x.answer))
			if best[i] == id {
				x.right++
			}
			x.bad = x.bad || best[i] < 0 || !site.Finite(losses[i])
			i++
		}
	}

	return nil
}

// prompt is a prompt with the context in front.
func (e *Editing) prompt(ids []int32) []int32 {
	if len(e.context) == 0 {
		return ids
	}
	return append(append([]int32(nil), e.context...), follow(ids, e.m.Config().BOS, true)...)
}

// run runs whole sequences; a codebook answers at the given rows.
func (e *Editing) run(ctx context.Context, ids [][]int32, at []int) (*lm.Hidden, error) {
	if e.beside != nil {
		e.beside.listen(at, false)
		defer e.beside.listen(nil, true)
	}

	h, err := e.m.Embed(ids)
	if err != nil {
		return nil, err
	}

	for b := range e.m.Blocks() {
		if err := e.m.RunBlock(ctx, b, h, nil); err != nil {
			h.Free()
			return nil, err
		}
	}

	return h, nil
}

// Stat is a mean over records. Stderr is that of the mean; 0 for one record.
type Stat struct {
	Mean   float64 `json:"mean"`
	Stderr float64 `json:"stderr"`
	N      int     `json:"n"`
}

// Judgement is what was measured, by name; see [Editing.Judge]. Values that no record has the prompts for are absent.
type Judgement struct {
	Stats   map[string]Stat      `json:"stats"`
	Records []map[string]float64 `json:"records"`
	// harmonic mean of efficacy, paraphrase and neighbourhood success; 0 if one is 0
	Score float64 `json:"score"`
	// answers whose likelihood is not a number: they count as failures
	NonFinite int `json:"non_finite"`
}

// panel is a group of items of one record: a true and a new answer for each of some prompts.
type panel struct {
	name       string
	fresh, old []*item
	stay       bool // the true answer shall win
}

// Judge measures edits the way of ROME and MEMIT (summarize.py), with s the mean of -log p over an answer's
// tokens: success is s(true) > s(new) and magnitude p(new) - p(true), for the prompt itself (efficacy), its
// paraphrases (paraphrase, and paraphrase_trained), and the other way round for other subjects with the same
// true answer (neighborhood). *_exact: all tokens of the wanted answer are top-1; *_accuracy: their
// fraction. locality and portability: the fraction of right tokens of the answers that the file gives. A mean is over
// prompts of a record first, then over records.
func (e *Editing) Judge(ctx context.Context, x *Encoder, records []Record) (*Judgement, error) {
	// All items of all records are scored together: passes are filled across records.
	list := make([][]panel, len(records))
	var items []*item
	for i := range records {
		var err error
		if list[i], err = x.probes(&records[i]); err != nil {
			return nil, err
		}
		for _, p := range list[i] {
			items = append(append(items, p.fresh...), p.old...)
		}
	}

	if err := e.score(ctx, items); err != nil {
		return nil, err
	}

	j := &Judgement{Stats: map[string]Stat{}}
	for _, probes := range list {
		m := map[string]float64{}
		for _, p := range probes {
			// A record without paraphrases or other subjects has no harmonic mean; it counts in the means of what
			// it has.
			p.book(m)
		}
		if es, ps, ns, ok := three(m); ok {
			m["score"] = harmonic(es, ps, ns)
		}

		j.Records = append(j.Records, m)
	}

	for _, it := range items {
		if it.bad {
			j.NonFinite++
		}
	}

	j.summarize()
	return j, nil
}

func three(m map[string]float64) (es, ps, ns float64, ok bool) {
	es, a := m["efficacy_success"]
	ps, b := m["paraphrase_success"]
	ns, c := m["neighborhood_success"]
	return es, ps, ns, a && b && c
}

// harmonic is the harmonic mean, 0 if one value is.
func harmonic(v ...float64) float64 {
	s := 0.0
	for _, x := range v {
		if x <= 0 {
			return 0
		}
		s += 1 / x
	}
	return float64(len(v)) / s
}

// summarize fills in the means over records.
func (j *Judgement) summarize() {
	values := map[string][]float64{}
	for _, m := range j.Records {
		for name, v := range m {
			values[name] = append(values[name], v)
		}
	}

	delete(values, "score")
	for name, list := range values {
		j.Stats[name] = stat(list)
	}

	es := j.Stats["efficacy_success"]
	ps := j.Stats["paraphrase_success"]
	ns := j.Stats["neighborhood_success"]
	if es.N > 0 && ps.N > 0 && ns.N > 0 {
		j.Score = harmonic(es.Mean, ps.Mean, ns.Mean)
	}
}

func stat(list []float64) Stat {
	n := float64(len(list))
	mean, s := 0.0, 0.0
	for _, v := range list {
		mean += v / n
	}
	for _, v := range list {
		s += (v - mean) * (v - mean)
	}

	st := Stat{Mean: mean, N: len(list)}
	if len(list) > 1 {
		st.Stderr = math.Sqrt(s / (n - 1) / n)
	}

	return st
}

// probes are the prompts of a record.
func (x *Encoder) probes(r *Record) ([]panel, error) {
	var out []panel
	for _, g := range []struct {
		name    string
		prompts []string
		stay    bool
	}{
		{"efficacy", []string{r.Full()}, false},
		{"paraphrase", r.Rephrase, false},
		{"paraphrase_trained", r.Trained, false},
		{"neighborhood", r.Near, true},
	} {
		p := panel{name: g.name, stay: g.stay}
		for _, text := range g.prompts {
			if err := x.item(&p.fresh, text, r.New); err != nil {
				return nil, err
			}
			if r.True == "" {
				continue
			}
			if err := x.item(&p.old, text, r.True); err != nil {
				return nil, err
			}
		}

		out = append(out, p)
	}

	// In a fixed order: which items share a pass shows in the last digits of all of them.
	for _, g := range []struct {
		name      string
		questions []Question
	}{{"locality", r.Far}, {"portability", r.Ported}} {
		p := panel{name: g.name}
		for _, q := range g.questions {
			if err := x.item(&p.fresh, q.Prompt, q.Answer); err != nil {
				return nil, err
			}
		}

		out = append(out, p)
	}

	return out, nil
}

func (x *Encoder) item(list *[]*item, prompt, answer string) error {
	p, err := x.Prompt(prompt)
	if err != nil {
		return err
	}

	a, err := x.Answer(prompt, answer)
	if err != nil {
		return err
	}

	*list = append(*list, &item{prompt: p, answer: a})
	return nil
}

// book enters a probe's figures.
func (p *panel) book(m map[string]float64) {
	wanted := p.fresh
	if p.stay {
		// For another subject the true answer is the one that an edit must not touch.
		wanted = p.old
	}

	n := float64(len(wanted))
	for i, w := range wanted {
		m[p.name+"_accuracy"] += float64(w.right) / float64(len(w.answer)) / n
		// Here the file gives one answer and nothing it competes with: tokens are all there is to count.
		if p.name == "locality" || p.name == "portability" {
			continue
		}

		m[p.name+"_exact"] += truth(w.exact()) / n
		if len(p.old) == 0 {
			continue
		}

		other := p.old[i]
		if p.stay {
			other = p.fresh[i]
		}

		// A loss that is not finite is never a success, on whichever side.
		m[p.name+"_success"] += truth(!w.bad && !other.bad && w.nll < other.nll) / n
		m[p.name+"_magnitude"] += (probability(w) - probability(other)) / n
	}
}

// probability is the geometric mean of the tokens' probabilities.
func probability(x *item) float64 {
	if x.bad {
		return 0
	}
	return math.Exp(-x.nll)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
