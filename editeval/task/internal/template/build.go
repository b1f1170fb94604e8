package template

import (
	"fmt"
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
				return nil, err
			}
			nodes = append(nodes, output{x})
		default:
			if closes(p.first()) {
				return nodes, nil
			}
			n, err := b.statement(p, depth)
			if err != nil {
				return nil, err
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
	switch p.first() {
	case "set":
		return b.set(p)
	case "if":
		return b.cond(p, depth)
	case "for":
		return b.loop(p, depth)
	}
	return nil, fmt.Errorf("%w: statement %q; known: if, for, set", ErrUnknown, p.first())
}

func (b *builder) set(p piece) (node, error) {
	e := &parser{tokens: p.tokens[1:]}
	names, err := e.names()
	if err != nil {
		return nil, err
	}
	if !e.symbol("=") {
		return nil, fmt.Errorf("%w: {%% set %%} without a value", ErrUnknown)
	}
	x, err := e.whole()
	return set{names, x}, err
}

func (b *builder) cond(p piece, depth int) (node, error) {
	var n cond
	for {
		var test expr
		if p.first() != "else" {
			var err error
			if test, err = wholeExpr(p.tokens[1:]); err != nil {
				return nil, err
			}
		}
		body, err := b.body(depth + 1)
		if err != nil {
			return nil, err
		}
		n.tests, n.bodies = append(n.tests, test), append(n.bodies, body)
		if p, err = b.next("if"); err != nil {
			return nil, err
		}
		switch {
		case p.first() == "endif":
			return n, nil
		case test == nil || p.first() != "elif" && p.first() != "else":
			return nil, fmt.Errorf("%w: {%% %s %%} inside {%% if %%}", ErrSyntax, p.first())
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

func (b *builder) loop(p piece, depth int) (node, error) {
	e := &parser{tokens: p.tokens[1:]}
	var n loop
	var err error
	if n.names, err = e.names(); err != nil {
		return nil, err
	}
	if !e.word("in") {
		return nil, fmt.Errorf("%w: {%% for %%} without in", ErrSyntax)
	}
	if n.x, err = e.either(); err != nil {
		return nil, err
	}
	if e.word("if") {
		if n.test, err = e.either(); err != nil {
			return nil, err
		}
	}
	if err := e.done(); err != nil {
		return nil, err
	}
	if n.body, err = b.body(depth + 1); err != nil {
		return nil, err
	}
	p, err = b.next("for")
	if err == nil && p.first() == "else" {
		if n.nothing, err = b.body(depth + 1); err == nil {
			p, err = b.next("for")
		}
	}
	if err == nil && p.first() != "endfor" {
		err = fmt.Errorf("%w: {%% %s %%} inside {%% for %%}", ErrSyntax, p.first())
	}
	return n, err
}
