package prompt

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/modelcompress/compress/editeval/task/internal/builtin"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/jinja"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// field is a compiled doc_to_… entry; nil where there is none.
type field func(doc *pyvalue.Dict) (any, error)

// compile makes a field of an entry, good until ctx ends: a number or a list stands for itself, a function is
// looked up, a text is the name of a column or a template.
func compile(ctx context.Context, entry any, columns []string) (field, error) {
	switch e := entry.(type) {
	case nil:
		return nil, nil
	case taskfile.Function:
		f, err := builtin.FindField(e.Known)
		return field(f), err
	case string:
		if slices.Contains(columns, e) {
			return func(doc *pyvalue.Dict) (any, error) {
				v, _ := doc.Get(e)
				return v, nil
			}, nil
		}

		t, err := jinja.Parse(e, jinja.Tasks())
		if err != nil {
			return nil, err
		}

		return func(doc *pyvalue.Dict) (any, error) { return fill(ctx, t, doc) }, nil
	case *pyvalue.Dict: // of choices: their values count
		var list []any
		for _, k := range e.Keys() {
			v, _ := e.Get(k)
			list = append(list, v)
		}
		return func(*pyvalue.Dict) (any, error) { return list, nil }, nil
	}

	return func(*pyvalue.Dict) (any, error) { return entry, nil }, nil
}

// templated marks the text of a template, which may stand for a number or a list.
type templated struct {
	text string
	list []any // what the template's only expression gave, where that is a list
}

// fill renders a template for a document.
func fill(ctx context.Context, t *jinja.Template, doc *pyvalue.Dict) (any, error) {
	if v, single, err := t.Eval(ctx, doc); err != nil {
		return nil, err
	} else if single {
		if l, ok := v.([]any); ok {
			return templated{list: l}, nil
		}
		return templated{text: pyvalue.Str(v)}, nil
	}

	s, err := t.Render(ctx, doc)
	return templated{text: s}, err
}

// text is what the template renders.
func (t templated) string() string {
	if t.list != nil {
		return pyvalue.Repr(t.list)
	}
	return t.text
}

// number reads a text of digits as the number that it writes, where choices are numbered.
func (t templated) number(numbered bool) (any, bool) {
	if t.list != nil || !numbered || !pyvalue.IsDigit(t.text) {
		return nil, false
	}
	n, err := strconv.ParseInt(t.text, 10, 64)
	return n, err == nil
}

// question is what doc_to_text gives: a text, or the number of the right one of several contexts.
func (p *Prompter) question(f field, doc *pyvalue.Dict) (any, error) {
	v, err := f(doc)
	if err != nil {
		return nil, fmt.Errorf("doc_to_text: %w", err)
	}

	if t, ok := v.(templated); ok {
		if n, ok := t.number(p.choice != nil); ok {
			return n, nil
		}
		return t.string(), nil
	}

	return v, nil
}

// answer is what doc_to_target gives: a text, the number of a choice, or a list of these.
func (p *Prompter) answer(f field, doc *pyvalue.Dict) (any, error) {
	v, err := f(doc)
	if err != nil {
		return nil, fmt.Errorf("doc_to_target: %w", err)
	}

	t, ok := v.(templated)
	if !ok {
		return v, nil
	}

	if t.list != nil {
		return t.list, nil
	}
	if n, ok := t.number(p.choice != nil); ok {
		return n, nil
	}

	if s := t.text; len(s) >= 2 && s[0] == '[' && s[len(s)-1] == ']' {
		if v, err := pyvalue.ParseLiteral(s); err == nil {
			return v, nil
		}
	}

	return t.text, nil
}

// choices is what doc_to_choice gives.
func choices(f field, doc *pyvalue.Dict) ([]string, error) {
	v, err := f(doc)
	if err != nil {
		return nil, fmt.Errorf("doc_to_choice: %w", err)
	}

	if t, ok := v.(templated); ok {
		v = t.list
		if t.list == nil {
			if v, err = pyvalue.ParseLiteral(t.text); err != nil {
				return nil, fmt.Errorf("doc_to_choice: %w", err)
			}
		}
	}

	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("%w: doc_to_choice gives %s, want a list that is not empty", ErrDocument,
			clip(pyvalue.Repr(v)))
	}

	out := make([]string, len(list))
	for i, x := range list {
		if out[i] = pyvalue.Str(x); out[i] == "" {
			return nil, fmt.Errorf("%w: choice %d is empty", ErrDocument, i)
		}
	}

	return out, nil
}

// clip shortens a text for a message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
