package task

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/editeval/task/internal/engine"
	"github.com/modelcompress/compress/editeval/task/internal/metric"
	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/editeval/task/internal/score"
	"github.com/modelcompress/compress/editeval/task/internal/store"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// ErrOtherModel: a journal or cache holds answers of another model.
var ErrOtherModel = store.ErrOther

// ErrAnswers: a journal or cache is no file of answers.
var ErrAnswers = store.ErrFormat

// ErrCache: a file of the cache cannot be used.
var ErrCache = failure.Misuse("unusable cache",
	"remove that file, and what it holds is asked again, or choose another --cache")

// run is one evaluation.
type run struct {
	subject *subject
	enc     *engine.Encoder
	suite   *Suite
	o       Options
	stores  []*store.Store // where answers are looked up, and kept
	results *Results
}

// Run evaluates a model on the tasks of a suite. Everything about the tasks is checked before the model runs.
// The result has the shape of lm-evaluation-harness' results.json.
func Run(ctx context.Context, m *lm.Model, tok *tokenizer.Tokenizer, s *Suite, o Options) (*Results, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return inMemory(m, tok, &o).evaluate(ctx, s, o)
}

// evaluate runs the tasks on whatever answers.
func (of *subject) evaluate(ctx context.Context, s *Suite, o Options) (*Results, error) {
	start := time.Now()
	enc, err := engine.NewEncoder(of.tok, o.Special)
	if err != nil {
		return nil, err
	}

	r := &run{subject: of, enc: enc, suite: s, o: o}
	if err := r.open(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}

	r.results = newResults(r, start)
	// Answers that could not be read are asked for again, and the report says how many.
	for _, s := range r.stores {
		r.results.Damaged += s.Damaged()
	}

	tasks, err := r.prepare(ctx)
	if err == nil {
		err = r.all(ctx, tasks)
	}

	// Closed before the error is looked at: the stores hold what was answered so far.
	if err = errors.Join(err, r.close()); err != nil {
		return nil, err
	}

	r.results.finish(s, time.Since(start))
	return r.results, nil
}

// open opens the stores of answers.
func (r *run) open(ctx context.Context) error {
	r.stores = nil
	if r.o.Cache == "" && r.o.Journal == "" {
		r.stores = []*store.Store{store.Memory()}
		return nil
	}

	identity := r.o.Identity
	if identity == "" {
		var err error
		if identity, err = r.subject.fingerprint(ctx); err != nil {
			return err
		}
	}

	// Devices round differently, so answers of one are not those of another.
	identity = fmt.Sprintf("%s %s %s", identity, r.subject.tok.Hash(), r.subject.device)
	if r.o.Journal != "" {
		if err := r.keep(r.o.Journal, identity); err != nil {
			return err
		}
	}

	if r.o.Cache == "" {
		return nil
	}

	// The cache is shared between runs, and so named by what its answers depend on.
	err := r.keep(filepath.Join(r.o.Cache, "answers-"+hash(identity)[:32]+".jsonl"), identity)
	if errors.Is(err, ErrOtherModel) || errors.Is(err, ErrAnswers) {
		err = fmt.Errorf("%w: %w", ErrCache, err)
	}

	return err
}

// keep adds a file to those where answers are looked up and kept.
func (r *run) keep(path, identity string) error {
	s, err := store.Open(path, identity)
	if err == nil {
		r.stores = append(r.stores, s)
	}
	return err
}

// close closes the stores, whose answers stay where they are kept in files.
func (r *run) close() error {
	var errs []error
	for _, s := range r.stores {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func (r *run) get(k store.Key) (store.Answer, bool) {
	for _, s := range r.stores {
		if a, ok := s.Get(k); ok {
			return a, true
		}
	}
	return store.Answer{}, false
}

func (r *run) add(k store.Key, a store.Answer) error {
	for _, s := range r.stores {
		if err := s.Add(k, a); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) flush() error {
	for _, s := range r.stores {
		if err := s.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// one is a task that is ready to run.
type one struct {
	*prompt.Prompter
	scorer *score.Scorer
	docs   []*document
	items  map[string]map[string][]metric.Item // by filter and metric, in the order of documents
	audit  Audit
	hashes strings.Builder // of the samples
}

// document is a document with its requests in tokens and its answers.
type document struct {
	*prompt.Document
	seqs    []engine.Sequence // likelihoods
	keys    []store.Key
	prompts []engine.Prompt // texts
	before  int             // tokens of a prompt before it was cut
	all     []int32         // of a rolling text
}

// prepare reads and checks all tasks.
func (r *run) prepare(ctx context.Context) ([]*one, error) {
	var tasks []*one
	for _, name := range r.suite.tasks {
		scorer, err := score.New(r.suite.lib.Tasks[name])
		if err != nil {
			return nil, err
		}

		p, err := r.suite.prompter(ctx, name, &r.o)
		if err != nil {
			return nil, err
		}

		tasks = append(tasks, &one{Prompter: p, scorer: scorer, items: map[string]map[string][]metric.Item{}})
	}

	return tasks, nil
}

// all runs the tasks one after another; what a task holds is dropped when it is done.
func (r *run) all(ctx context.Context, tasks []*one) error {
	for i, t := range tasks {
		if err := r.task(ctx, t); err != nil {
			return err
		}
		tasks[i] = nil
	}
	return nil
}

func (r *run) task(ctx context.Context, t *one) error {
	if err := r.encode(ctx, t); err != nil {
		return err
	}

	report := r.progress(t)
	err := r.routed(ctx, t, report)
	if err == nil {
		err = r.judge(t)
	}
	if err == nil {
		err = r.results.add(t, &r.o)
	}

	if inspected != nil {
		inspected(t)
	}

	return err
}

// routed answers the requests of a task, with a router part by part.
func (r *run) routed(ctx context.Context, t *one, report func(int)) error {
	if r.o.Router == nil {
		return r.answer(ctx, t, report)
	}

	all := t.docs
	defer func() { t.docs = all }()

	prompts := make([][]int32, len(all))
	for i, d := range all {
		prompts[i] = d.prompt()
	}

	return r.o.Router(ctx, prompts, func(at []int) error {
		t.docs = nil
		for _, i := range at {
			t.docs = append(t.docs, all[i])
		}
		return r.answer(ctx, t, report)
	})
}

// answer answers the requests of a task.
func (r *run) answer(ctx context.Context, t *one, report func(int)) error {
	if t.Task.OutputType == taskfile.GenerateUntil {
		return r.texts(ctx, t, report)
	}
	return r.likelihoods(ctx, t, report)
}

// prompt is what is asked, without the answers that are offered; of a rolling text its first window.
func (d *document) prompt() []int32 {
	switch {
	case len(d.prompts) > 0:
		return d.prompts[0].IDs
	case d.all != nil || len(d.seqs[0].Target) >= len(d.seqs[0].IDs):
		return d.seqs[0].IDs
	}
	s := d.seqs[0]
	return s.IDs[:len(s.IDs)-len(s.Target)+1]
}

// inspected lets tests look at a task's documents before they are dropped.
var inspected func(t *one)

// encode makes the documents and turns their requests into tokens.
func (r *run) encode(ctx context.Context, t *one) error {
	return t.Documents(r.o.documents(t.Count()), func(d *prompt.Document) error {
		if err := ctx.Err(); err != nil {
			return err
		}

		doc := &document{Document: d}
		t.docs = append(t.docs, doc)

		switch t.Task.OutputType {
		case taskfile.GenerateUntil:
			return r.encodePrompt(t, doc)
		case taskfile.Rolling:
			return r.encodeRolling(doc)
		}

		return r.encodePairs(t, doc)
	})
}

func (r *run) encodePrompt(t *one, doc *document) error {
	g := t.Task.Generation
	n := g.MaxTokens
	if n == 0 {
		n = taskfile.DefaultTokens
	}

	ids, before, err := r.enc.Prompt(doc.Requests[0].Context, r.subject.limit-n)
	if err != nil {
		return fmt.Errorf("%w (max_gen_toks %d, context %d)", err, n, r.subject.limit)
	}

	doc.before = before
	t.audit.cut(before > len(ids))
	doc.prompts = []engine.Prompt{{IDs: ids, Max: n, End: g.Until}}
	doc.keys = []store.Key{store.KeyOf(fmt.Sprintf("generate %d", n), [][]int32{ids}, g.Until...)}

	return nil
}

func (r *run) encodeRolling(doc *document) error {
	all, windows, err := r.enc.Windows(doc.Requests[0].Continuation, r.subject.scored)
	doc.all, doc.seqs = all, windows
	doc.hashKeys()
	return err
}

func (r *run) encodePairs(t *one, doc *document) error {
	cut := false
	for i, q := range doc.Requests {
		ctx, cont, err := r.enc.Pair(q.Context, q.Continuation)
		if err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}

		s, err := engine.Fit(ctx, cont, r.subject.scored)
		if err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}

		// Continuations of one context share its tokens, which are computed once.
		if i > 0 {
			s.Share(&doc.seqs[i-1])
		}

		cut = cut || s.Cut > 0
		doc.seqs = append(doc.seqs, s)
	}

	t.audit.cut(cut)
	doc.hashKeys()
	return nil
}

func (d *document) hashKeys() {
	for _, s := range d.seqs {
		d.keys = append(d.keys, store.KeyOf("likelihood", [][]int32{s.IDs, s.Target}))
	}
}

// progress counts tokens of a task's requests; answers that are there already count as done.
func (r *run) progress(t *one) func(tokens int) {
	var done, total int64
	for _, d := range t.docs {
		for i, k := range d.keys {
			n := int64(0)
			if len(d.seqs) > 0 {
				n = int64(len(d.seqs[i].IDs))
			} else {
				n = int64(len(d.prompts[i].IDs) + d.prompts[i].Max)
			}

			total += n

			// Cached ones count as done, or a resumed run would seem to begin anew.
			if _, ok := r.get(k); ok {
				done += n
				t.audit.Cached++
			}

			t.audit.Requests++
		}
	}

	report := func(tokens int) {
		done += int64(tokens)
		if r.o.Progress != nil {
			r.o.Progress(t.Task.Name, done, total)
		}
	}

	report(0)
	return report
}

// likelihoods answers the likelihood requests of a task.
func (r *run) likelihoods(ctx context.Context, t *one, report func(int)) error {
	var seqs []engine.Sequence
	var keys []store.Key
	for _, d := range t.docs {
		seqs, keys = append(seqs, d.seqs...), append(keys, d.keys...)
	}

	r.subject.report(report)
	return r.subject.Likelihoods(ctx, seqs,
		func(i int) bool { _, ok := r.get(keys[i]); return ok },
		func(at []int, scores []engine.Score) error {
			for i, s := range scores {
				if err := r.add(keys[at[i]], store.Answer{LL: s.LL, Greedy: s.Greedy}); err != nil {
					return err
				}
			}
			return r.flush()
		})
}

// texts answers the generation requests of a task.
func (r *run) texts(ctx context.Context, t *one, report func(int)) error {
	var prompts []engine.Prompt
	var keys []store.Key
	for _, d := range t.docs {
		prompts, keys = append(prompts, d.prompts...), append(keys, d.keys...)
	}

	r.subject.report(report)
	return r.subject.Generate(ctx, prompts,
		func(i int) bool { _, ok := r.get(keys[i]); return ok },
		func(i int, text engine.Text) error {
			if err := r.add(keys[i],
				store.Answer{Text: text.Text, Tokens: text.Tokens, Ended: text.Ended}); err != nil {
				return err
			}
			return r.flush()
		})
}

// judge computes metrics document by document and hands the samples out.
func (r *run) judge(t *one) error {
	for _, d := range t.docs {
		if err := r.judgeOne(t, d); err != nil {
			return fmt.Errorf("task %s: document %d: %w", t.Task.Name, d.ID, err)
		}
	}
	return nil
}

func (r *run) judgeOne(t *one, d *document) error {
	answers := make([]store.Answer, len(d.keys))
	for i, k := range d.keys {
		a, ok := r.get(k)
		if !ok {
			return errUnanswered
		}
		answers[i] = a
	}

	outcomes, err := r.outcomes(t, d, answers)
	if err != nil {
		return err
	}

	for _, name := range t.scorer.Filters() {
		o := outcomes[name]
		if t.items[name] == nil {
			t.items[name] = map[string][]metric.Item{}
		}
		for _, m := range t.Task.Metrics {
			t.items[name][m.Name] = append(t.items[name][m.Name], o.Items[m.Name])
		}

		// The harness' hash of a task covers a sample for every filter.
		h := hashesOf(d)
		t.hashes.WriteString(h[0] + h[1] + h[2])
		if r.o.Sample == nil {
			continue
		}

		line, err := sample(t, d, answers, name, o)
		if err != nil {
			return err
		}

		if err := r.o.Sample(t.Task.Name, line); err != nil {
			return err
		}
	}

	return nil
}

var errUnanswered = errors.New("a request has no answer")

// outcomes scores a document, by filter.
func (r *run) outcomes(t *one, d *document, answers []store.Answer) (map[string]score.Outcome, error) {
	if t.Task.OutputType == taskfile.GenerateUntil {
		texts := make([]string, t.Task.Repeats)
		for i := range texts {
			texts[i] = answers[0].Text // greedy: all repeats are the same
		}

		out, err := t.scorer.Texts(d.Document, texts)
		if err == nil {
			t.audit.text(answers[0], out)
		}

		return out, err
	}

	said := likelihoods(t, answers)
	o, finite, err := t.scorer.Likelihoods(d.Document, said)
	if err != nil {
		return nil, err
	}

	t.audit.choice(d.Document, said, finite)
	return map[string]score.Outcome{t.scorer.Filters()[0]: o}, nil
}

// likelihoods are the answers of a document; those of the windows of a rolling text are added up.
func likelihoods(t *one, answers []store.Answer) []builtin.Answer {
	out := make([]builtin.Answer, len(answers))
	sum := 0.0
	for i, a := range answers {
		out[i] = builtin.Answer{LL: a.LL, Greedy: a.Greedy}
		sum += a.LL
	}

	if t.Task.OutputType == taskfile.Rolling {
		return []builtin.Answer{{LL: sum}}
	}

	return out
}
