package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// builder makes nodes of pieces.
type builder struct {
	pieces []piece
	at     int
}

// body reads nodes up to a statement that continues or ends an enclosing one, or the end.
func (b *builder) body(depth int) ([]node, error) {
	if depth > maxNest {
		return nil, fmt.Errorf("%w: statements nested more than %d deep", ErrCost, maxNest)
	}

	var nodes []node
	for b.at < len(b.pieces) {
		p := b.pieces[b.at]
		switch {
		case p.open == "":
			nodes = append(nodes, text(p.text))
		case p.open == "{{":
			x, err := wholeExpr(p.tokens)
			if err != nil {
				return nil, at(p.line, err)
			}
			nodes = append(nodes, output{x, p.line})
		default:
			if closes(p.first()) {
				return nodes, nil
			}

			n, err := b.statement(p, depth)
			if err != nil {
				return nil, at(p.line, err)
			}

			nodes = append(nodes, n)
			continue
		}

		b.at++
	}

	return nodes, nil
}

func closes(word string) bool {
	return word == "elif" || word == "else" || strings.HasPrefix(word, "end")
}

// statement reads {% … %} and, where it has one, its body.
func (b *builder) statement(p piece, depth int) (node, error) {
	b.at++
	if len(p.tokens) == 0 {
		return nil, fmt.Errorf("%w: an empty statement", ErrSyntax)
	}

	e := &parser{tokens: p.tokens[1:]}
	switch p.first() {
	case "set":
		return b.set(p, e, depth)
	case "if":
		return b.cond(p, depth)
	case "for":
		return b.loop(p, e, depth)
	case "macro":
		return b.macro(e, depth)
	case "call":
		return b.call(p, e, depth)
	case "filter":
		wrap, err := e.chainOfFilters()
		if err != nil {
			return nil, err
		}
		body, err := b.until("filter", depth)
		return filterBlock{p.line, body, wrap}, err
	case "with":
		return b.with(p, e, depth)
	case "generation":
		body, err := b.until("generation", depth)
		return group(body), err
	case "break", "continue":
		return jump(p.first()), e.done()
	}

	return nil, fmt.Errorf("%w: statement %q; known: break, call, continue, filter, for, generation, if, macro, "+
		"raw, set, with", ErrUnknown, p.first())
}

// until reads the body of a statement up to its end.
func (b *builder) until(name string, depth int) ([]node, error) {
	body, err := b.body(depth + 1)
	if err != nil {
		return nil, err
	}
	p, err := b.next(name)
	if err == nil && p.first() != "end"+name {
		err = at(p.line, fmt.Errorf("%w: {%% %s %%} inside {%% %s %%}", ErrSyntax, p.first(), name))
	}
	return body, err
}

func (b *builder) set(p piece, e *parser, depth int) (node, error) {
	n := set{line: p.line}
	var err error
	if n.names, err = e.names(); err != nil {
		return nil, err
	}

	if len(n.names) == 1 && e.symbol(".") {
		attribute, err := e.names()
		if err != nil || len(attribute) != 1 {
			return nil, e.fault()
		}
		n.attribute = attribute[0]
	}

	if e.symbol("=") {
		n.x, err = e.whole()
		return n, err
	}

	if len(n.names) > 1 {
		return nil, e.fault()
	}

	n.wrap = func(x expr) (expr, error) { return x, nil }
	if e.symbol("|") {
		if n.wrap, err = e.chainOfFilters(); err != nil {
			return nil, err
		}
	} else if err := e.done(); err != nil {
		return nil, err
	}

	n.body, err = b.until("set", depth)
	return n, err
}

func (b *builder) cond(p piece, depth int) (node, error) {
	var n cond
	for {
		var test expr
		if p.first() != "else" {
			var err error
			if test, err = wholeExpr(p.tokens[1:]); err != nil {
				return nil, at(p.line, err)
			}
		}

		body, err := b.body(depth + 1)
		if err != nil {
			return nil, err
		}

		n.lines = append(n.lines, p.line)
		n.tests = append(n.tests, test)
		n.bodies = append(n.bodies, body)
		if p, err = b.next("if"); err != nil {
			return nil, err
		}

		switch {
		case p.first() == "endif":
			return n, nil
		case test == nil || p.first() != "elif" && p.first() != "else":
			return nil, at(p.line, fmt.Errorf("%w: {%% %s %%} inside {%% if %%}", ErrSyntax, p.first()))
		}
	}
}

// next takes the tag that ended a body.
func (b *builder) next(of string) (piece, error) {
	if b.at >= len(b.pieces) {
		return piece{}, fmt.Errorf("%w: {%% %s %%} has no end", ErrSyntax, of)
	}
	b.at++
	return b.pieces[b.at-1], nil
}

func (b *builder) loop(p piece, e *parser, depth int) (node, error) {
	n := loop{line: p.line}
	var err error
	if n.names, err = e.names(); err != nil {
		return nil, err
	}
	if !e.word("in") {
		return nil, fmt.Errorf("%w: {%% for %%} without in", ErrSyntax)
	}
	if n.x, err = e.listed(e.either); err != nil {
		return nil, err
	}

	if e.word("if") {
		if n.test, err = e.either(); err != nil {
			return nil, err
		}
	}

	if e.word("recursive") {
		return nil, fmt.Errorf("%w: recursive loops", ErrUnknown)
	}
	if err := e.done(); err != nil {
		return nil, err
	}
	if n.body, err = b.body(depth + 1); err != nil {
		return nil, err
	}

	end, err := b.next("for")
	if err == nil && end.first() == "else" {
		if n.nothing, err = b.body(depth + 1); err == nil {
			end, err = b.next("for")
		}
	}
	if err == nil && end.first() != "endfor" {
		err = at(end.line, fmt.Errorf("%w: {%% %s %%} inside {%% for %%}", ErrSyntax, end.first()))
	}

	return n, err
}

// parameters reads the rest of (a, b=x).
func (m *macro) parameters(e *parser) error {
	for !e.symbol(")") {
		t := e.peek()
		if t.kind != word {
			return e.fault()
		}

		e.at++
		var without expr
		if e.symbol("=") {
			var err error
			if without, err = e.expr(); err != nil {
				return err
			}
		}

		if n := len(m.defaults); without == nil && n > 0 && m.defaults[n-1] != nil {
			return fmt.Errorf("%w: parameter %s without a default behind one that has it", ErrSyntax, t.text)
		}

		m.params, m.defaults = append(m.params, t.text), append(m.defaults, without)
		if !e.symbol(",") && e.peek() != (token{symbol, ")"}) {
			return e.fault()
		}
	}

	return nil
}

func (b *builder) macro(e *parser, depth int) (node, error) {
	t := e.peek()
	e.at++
	m := &macro{name: t.text}
	if t.kind != word || !e.symbol("(") {
		return nil, fmt.Errorf("%w: {%% macro %%} wants a name and parameters in parentheses", ErrSyntax)
	}
	if err := m.parameters(e); err != nil {
		return nil, err
	}
	if err := e.done(); err != nil {
		return nil, err
	}

	return m, b.macroBody(m, "macro", depth)
}

func (b *builder) macroBody(m *macro, kind string, depth int) (err error) {
	start := b.at
	m.body, err = b.until(kind, depth)
	for _, p := range b.pieces[start:b.at] {
		m.rest = m.rest || slices.Contains(p.tokens, token{word, "varargs"})
		m.restNamed = m.restNamed || slices.Contains(p.tokens, token{word, "kwargs"})
	}
	return err
}

func (b *builder) call(p piece, e *parser, depth int) (node, error) {
	n := callBlock{line: p.line, body: &macro{name: "caller"}}
	if e.symbol("(") {
		if err := n.body.parameters(e); err != nil {
			return nil, err
		}
	}

	x, err := e.whole()
	if err != nil {
		return nil, err
	}

	var ok bool
	if n.x, ok = x.(call); !ok {
		return nil, fmt.Errorf("%w: {%% call %%} wants a call", ErrSyntax)
	}

	return n, b.macroBody(n.body, "call", depth)
}

func (b *builder) with(p piece, e *parser, depth int) (node, error) {
	n := with{line: p.line}
	for e.at < len(e.tokens) {
		t := e.peek()
		e.at++
		if t.kind != word || !e.symbol("=") {
			e.at--
			return nil, e.fault()
		}

		x, err := e.expr()
		if err != nil {
			return nil, err
		}

		n.names, n.values = append(n.names, t.text), append(n.values, x)
		if !e.symbol(",") {
			break
		}
	}

	err := e.done()
	if err == nil {
		n.body, err = b.until("with", depth)
	}

	return n, err
}
