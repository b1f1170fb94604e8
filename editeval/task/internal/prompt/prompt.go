// Package prompt makes the requests of a task: it loads documents, draws examples and writes the texts that a
// model gets, character by character as lm-evaluation-harness does.
package prompt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/editeval/task/internal/data"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/chat"
	"github.com/modelcompress/compress/internal/pyrandom"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// The ways in which documents and definitions can fail to fit.
var (
	ErrDocument = errors.New("document does not fit the task")
	ErrExamples = errors.New("too few examples")
)

// Options say what a prompt has beside its document.
type Options struct {
	Bases []string // folders that data files are looked for in
	Shots *int     // examples; nil: as the task says, otherwise 0. A task that says 0 has none whatever stands here
	Seed  uint64   // of the draws of examples

	System string // stands before the description
	Chat   *Chat  // writes prompts as conversations; nil: as plain text
}

// Prompter makes the documents of a task.
type Prompter struct {
	Task  *taskfile.Task
	Shots int
	Total int // documents in the data

	docs                              []*pyvalue.Dict
	text, target, choice              field
	fewText, fewTarget, fewChoice     field
	description, genPrefix, fewPrefix field
	samples                           *sampler
	multiInput                        bool
	multiTarget                       bool // of the first document
	system                            string
	chat                              *Chat
	splits                            map[string][]*pyvalue.Dict
}

// Document is a document with its requests.
type Document struct {
	ID       int
	Doc      *pyvalue.Dict
	Target   any      // what doc_to_target gives
	Gold     any      // the number of the right choice, or a list of numbers; nil where there are no choices
	Choices  []string // nil where there are none
	Requests []Request
	Examples []int // rows of the examples, where they are random
}

// Request is a text to continue: with a given continuation, with none (rolling: the continuation is the text),
// or freely.
type Request struct{ Context, Continuation string }

// New prepares a task: reads its data, compiles its templates and tries them on the first document. What it
// makes is good until ctx ends.
func New(ctx context.Context, t *taskfile.Task, o Options) (*Prompter, error) {
	p := &Prompter{Task: t, splits: map[string][]*pyvalue.Dict{}, system: o.System, chat: o.Chat}
	err := p.load(o)
	if err == nil {
		err = p.compile(ctx)
	}
	if err == nil {
		err = p.examples(o)
	}
	if err == nil {
		err = p.try()
	}
	if err != nil {
		return nil, fmt.Errorf("task %s: %w", t.Name, err)
	}

	return p, nil
}

func (p *Prompter) load(o Options) error {
	t := p.Task
	split := t.TestSplit
	if split == "" {
		split = t.ValidationSplit
	}
	var err error
	p.docs, err = p.split(split, t.ProcessDocs, o)
	p.Total = len(p.docs)
	return err
}

// split reads the documents of a split, once.
func (p *Prompter) split(name string, process *taskfile.Function, o Options) ([]*pyvalue.Dict, error) {
	key := name
	if process != nil {
		key += "\x00" + process.Name
	}
	if docs, ok := p.splits[key]; ok {
		return docs, nil
	}

	docs, err := data.Source{
		Files: p.Task.Data[name], Format: p.Task.Format, Field: p.Task.Field,
		Bases: o.Bases,
	}.Load()
	if err != nil {
		return nil, err
	}

	if process != nil {
		f, err := builtin.FindDocs(process.Known)
		if err != nil {
			return nil, err
		}

		if docs, err = f(docs); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(p.Task.Data[name], ", "), err)
		}
	}

	p.splits[key] = docs
	return docs, nil
}

func (p *Prompter) compile(ctx context.Context) error {
	t := p.Task
	few := p.Task.Fewshot
	columns := p.docs[0].Keys()
	if t.OutputType == taskfile.Rolling && t.DocToText == nil {
		t.DocToText = ""
	}

	for _, e := range []struct {
		to    *field
		entry any
		name  string
	}{
		{&p.text, t.DocToText, "doc_to_text"},
		{&p.target, t.DocToTarget, "doc_to_target"},
		{&p.choice, t.DocToChoice, "doc_to_choice"},
		{&p.fewText, few.DocToText, "doc_to_text of the examples"},
		{&p.fewTarget, few.DocToTarget, "doc_to_target of the examples"},
		{&p.fewChoice, few.DocToChoice, "doc_to_choice of the examples"},
		{&p.description, t.Description, "description"},
		{&p.genPrefix, orNothing(t.GenPrefix), "gen_prefix"},
		{&p.fewPrefix, orNothing(few.GenPrefix), "gen_prefix of the examples"},
	} {
		f, err := compile(ctx, e.entry, columns)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", t.Path, e.name, err)
		}
		*e.to = f
	}

	return nil
}

func orNothing(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// examples finds where examples come from: a split, given samples, else training, validation or test documents,
// in this order.
func (p *Prompter) examples(o Options) error {
	t, few := p.Task, p.Task.Fewshot
	switch {
	// a task that says 0 never has examples, as in the harness
	case t.NumFewshot != nil && (*t.NumFewshot == 0 || o.Shots == nil):
		p.Shots = *t.NumFewshot
	case o.Shots != nil:
		p.Shots = *o.Shots
	}

	if p.Shots == 0 || t.OutputType == taskfile.Rolling {
		p.Shots = 0
		return nil
	}

	s := &sampler{first: few.Sampler == "first_n", own: few.Split == t.TestSplit, rnd: pyrandom.NewRandom(o.Seed)}
	split := few.Split
	for _, other := range []string{t.TrainingSplit, t.ValidationSplit, t.TestSplit} {
		if split == "" {
			split = other
		}
	}

	s.named = "split " + split
	if few.Split == "" && few.HasSamples {
		s.named = "samples"
		for _, x := range few.Samples {
			s.pool = append(s.pool, x.(*pyvalue.Dict))
		}
	} else {
		var err error
		if s.pool, err = p.split(split, few.ProcessDocs, o); err != nil {
			return err
		}
	}

	p.samples = s
	return nil
}

// try makes the first document, by which the kind of prompts of the task is known.
func (p *Prompter) try() error {
	doc := p.docs[0]
	q, err := p.question(p.text, doc)
	if err != nil {
		return p.at(0, err)
	}

	_, isInt := pyvalue.Int(q)
	p.multiInput = isInt && p.choice != nil

	target, err := p.answer(p.target, doc)
	if err != nil {
		return p.at(0, err)
	}

	_, p.multiTarget = target.([]any)
	return nil
}

// at names a document.
func (p *Prompter) at(i int, err error) error {
	return fmt.Errorf("document %d: %w", i, err)
}

// Documents makes the first n documents in order; all for n 0 or less. Examples are chosen in this order, so
// they are the same for any n.
func (p *Prompter) Documents(n int, each func(d *Document) error) error {
	if n <= 0 || n > len(p.docs) {
		n = len(p.docs)
	}

	for i := range n {
		d, err := p.document(i)
		if err == nil {
			err = each(d)
		}
		if err != nil {
			return fmt.Errorf("task %s: %w", p.Task.Name, p.at(i, err))
		}
	}

	return nil
}

// Count is how many documents there are.
func (p *Prompter) Count() int { return len(p.docs) }

func (p *Prompter) document(i int) (*Document, error) {
	d := &Document{ID: i, Doc: p.docs[i]}
	var err error
	if p.choice != nil {
		if d.Choices, err = choices(p.choice, d.Doc); err != nil {
			return nil, err
		}
	}

	if d.Target, err = p.answer(p.target, d.Doc); err != nil {
		return nil, err
	}
	// The harness scores by the first document's kind: a list among single answers is never right there,
	// whatever is in it.
	if _, list := d.Target.([]any); list && !p.multiTarget {
		return nil, fmt.Errorf("%w: doc_to_target gives a list, and one answer for the first document (HINT: give a "+
			"list for every document)",
			ErrDocument)
	}

	if p.Task.OutputType == taskfile.Rolling {
		s, ok := d.Target.(string)
		if !ok {
			return nil, fmt.Errorf("%w: doc_to_target gives a %s, want text", ErrDocument, pyvalue.Kind(d.Target))
		}
		d.Requests = []Request{{"", s}}
		return d, nil
	}

	before, err := p.before(d)
	if err != nil {
		return nil, err
	}

	q, err := p.question(p.text, d.Doc)
	if err != nil {
		return nil, err
	}

	if p.multiInput {
		return d, p.contexts(d, before, q)
	}

	ctx, err := p.turn(before, q, d.Doc, p.Task.TargetDelimiter)
	if err != nil {
		return nil, err
	}

	return d, p.requests(d, ctx)
}

// before is the description and the examples.
func (p *Prompter) before(d *Document) ([]message, error) {
	description, err := resolve(p.description, d.Doc)
	if err != nil {
		return nil, fmt.Errorf("description: %w", err)
	}

	var out []message
	if s := join(p.system, description, p.Task.FewshotDelimiter); s != "" {
		out = append(out, message{chat.Message{Role: "system", Content: s}, ""})
	}
	if p.samples == nil {
		return out, nil
	}

	places, err := p.samples.draw(p.Shots, d.Doc)
	if err != nil {
		return nil, err
	}

	for _, at := range places {
		if out, err = p.example(out, p.samples.pool[at]); err != nil {
			return nil, fmt.Errorf("example %d: %w", at, err)
		}
		if !p.samples.first {
			d.Examples = append(d.Examples, at)
		}
	}

	return out, nil
}

// resolve is a field that is text.
func resolve(f field, doc *pyvalue.Dict) (string, error) {
	if f == nil {
		return "", nil
	}

	v, err := f(doc)
	if err != nil {
		return "", err
	}

	if t, ok := v.(templated); ok {
		return t.string(), nil
	}

	return pyvalue.Str(v), nil
}

// example adds a solved document.
func (p *Prompter) example(to []message, doc *pyvalue.Dict) ([]message, error) {
	few := p.Task.Fewshot
	var list []string
	if p.fewChoice != nil {
		var err error
		if list, err = choices(p.fewChoice, doc); err != nil {
			return nil, err
		}
	}

	q, err := p.question(p.fewText, doc)
	if err != nil {
		return nil, err
	}

	if p.multiInput {
		n, ok := pyvalue.Int(q)
		if !ok || n < 0 || n >= len(list) {
			return nil, fmt.Errorf("%w: %s is no number of one of %d contexts", ErrDocument, clip(pyvalue.Repr(q)),
				len(list))
		}
		q, list = list[n], nil
	}

	a, err := p.answer(p.fewTarget, doc)
	if err != nil {
		return nil, err
	}

	prefix, err := resolve(p.fewPrefix, doc)
	if err != nil {
		return nil, fmt.Errorf("gen_prefix: %w", err)
	}

	text, ok := q.(string)
	if !ok {
		return nil, fmt.Errorf("%w: doc_to_text gives a %s, want text", ErrDocument, pyvalue.Kind(q))
	}

	said, has, err := solution(a, list)
	if err != nil {
		return nil, err
	}

	between := ""
	if has && prefix == "" || prefix != "" && needsSpace(text, prefix) {
		between = few.TargetDelimiter
	}

	to = append(to, message{chat.Message{Role: user, Content: text}, between})
	switch {
	case has:
		to = append(to, message{chat.Message{Role: assistant, Content: join(prefix, said, " ")}, few.FewshotDelimiter})
	case prefix != "":
		to = append(to, message{chat.Message{Role: assistant, Content: prefix}, ""})
	}

	return to, nil
}

// solution is the text of an answer; false where there is none.
func solution(a any, list []string) (s string, has bool, err error) {
	if l, ok := a.([]any); ok && len(l) > 0 {
		a = l[0]
	}

	if n, ok := pyvalue.Int(a); ok && list != nil {
		if n < 0 || n >= len(list) {
			return "", false, fmt.Errorf("%w: choice %d of %d", ErrDocument, n, len(list))
		}
		return list[n], true, nil
	}

	switch a := a.(type) {
	case nil:
		return "", false, nil
	case string:
		return a, a != "", nil
	}

	return "", false, fmt.Errorf("%w: doc_to_target gives a %s, want text or the number of a choice", ErrDocument,
		pyvalue.Kind(a))
}

// turn is the whole prompt: what stands before, the document itself, and what its answer begins with.
func (p *Prompter) turn(before []message, q any, doc *pyvalue.Dict, delimiter string) (string, error) {
	text, ok := q.(string)
	if !ok {
		return "", fmt.Errorf("%w: doc_to_text gives a %s, want text", ErrDocument, pyvalue.Kind(q))
	}

	prefix, err := resolve(p.genPrefix, doc)
	if err != nil {
		return "", fmt.Errorf("gen_prefix: %w", err)
	}

	if prefix == "" || !needsSpace(text, prefix) {
		delimiter = ""
	}

	out := append(before[:len(before):len(before)], message{chat.Message{Role: user, Content: text}, delimiter})
	if prefix != "" {
		out = append(out, message{chat.Message{Role: assistant, Content: prefix}, ""})
	}

	return p.write(out)
}

// needsSpace reports whether neither of two texts has white space where they meet.
func needsSpace(a, b string) bool {
	last, _ := utf8.DecodeLastRuneInString(a)
	first, _ := utf8.DecodeRuneInString(b)
	return a != "" && !pyvalue.IsSpace(last) && !pyvalue.IsSpace(first)
}

// join puts two texts together, with a delimiter unless one of them is empty or has white space there.
func join(a, b, delimiter string) string {
	if a != "" && b != "" && needsSpace(a, b) {
		return a + delimiter + b
	}
	return a + b
}

// contexts makes the requests of a document whose choices are contexts.
func (p *Prompter) contexts(d *Document, before []message, gold any) error {
	d.Gold = gold

	switch d.Target.(type) {
	case nil, []any, *pyvalue.Dict:
		return fmt.Errorf("%w: doc_to_text gives a number, so that choices are contexts; doc_to_target gives a %s, "+
			"want text or a number", ErrDocument, pyvalue.Kind(d.Target))
	}

	rest := pyvalue.Str(d.Target)
	for _, c := range d.Choices {
		ctx, err := p.turn(before, c, d.Doc, "")
		if err != nil {
			return err
		}
		d.Requests = append(d.Requests, Request{ctx, p.delimiter() + rest})
	}

	return p.unconditional(d)
}

// requests makes the requests of a document with one context.
func (p *Prompter) requests(d *Document, ctx string) error {
	switch p.Task.OutputType {
	case taskfile.GenerateUntil:
		d.Requests = []Request{{Context: ctx}}

		if p.choice != nil {
			if n, ok := pyvalue.Int(d.Target); ok && n >= 0 && n < len(d.Choices) {
				d.Target = d.Choices[n]
			} else {
				return fmt.Errorf("%w: doc_to_target gives %s, want the number of one of %d choices", ErrDocument,
					clip(pyvalue.Repr(d.Target)), len(d.Choices))
			}
		}

		return nil
	case taskfile.LogLikelihood:
		s, ok := d.Target.(string)
		if !ok {
			return fmt.Errorf("%w: doc_to_target gives a %s, want text", ErrDocument, pyvalue.Kind(d.Target))
		}
		d.Requests = []Request{{ctx, s}}
		return nil
	}

	d.Gold = d.Target
	for _, c := range d.Choices {
		d.Requests = append(d.Requests, Request{ctx, p.delimiter() + c})
	}

	return p.unconditional(d)
}

// unconditional adds the choices without a context, where a metric needs them.
func (p *Prompter) unconditional(d *Document) error {
	for _, m := range p.Task.Metrics {
		if m.Name == "acc_mutual_info" {
			for _, c := range d.Choices {
				d.Requests = append(d.Requests, Request{"", p.delimiter() + c})
			}
			return nil
		}
	}
	return nil
}
