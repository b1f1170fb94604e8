package chat

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// ErrTemplate: a chat template cannot be understood, or fails.
var ErrTemplate = errors.New("chat template")

// maxDepth bounds how deep expressions and statements may be nested.
const maxDepth = 64

// expr is an expression.
type expr interface {
	eval(r *render) (any, error)
}

// node is a piece of a parsed template.
type node interface {
	run(r *render) error
}

type parser struct {
	pieces []piece
	tokens []token
	depth  int
}

func (p *parser) fail(format string, args ...any) error {
	at := 0
	if len(p.tokens) > 0 {
		at = p.tokens[0].at
	}
	return fmt.Errorf("byte %d: %s", at, fmt.Sprintf(format, args...))
}

func (p *parser) down() error {
	if p.depth++; p.depth > maxDepth {
		return p.fail("nested more than %d deep", maxDepth)
	}
	return nil
}

// block parses nodes until a statement whose first word is one of ends, and gives that word.
func (p *parser) block(ends ...string) ([]node, string, error) {
	if err := p.down(); err != nil {
		return nil, "", err
	}
	defer func() { p.depth-- }()
	var list []node
	for len(p.pieces) > 0 {
		c := p.pieces[0]
		p.pieces = p.pieces[1:]
		switch c.kind {
		case 't':
			list = append(list, literal(c.text))
			continue
		case 'e':
			p.tokens = c.tokens
			e, err := p.whole()
			if err != nil {
				return nil, "", err
			}
			list = append(list, output{e})
			continue
		}
		p.tokens = c.tokens
		word := p.tokens[0].text
		if slices.Contains(ends, word) {
			p.tokens = p.tokens[1:]
			return list, word, nil
		}
		n, err := p.statement(word)
		if err != nil {
			return nil, "", err
		}
		if n != nil {
			list = append(list, n)
		}
	}
	if len(ends) > 0 {
		return nil, "", fmt.Errorf("the template ends before %s", ends[len(ends)-1])
	}
	return list, "", nil
}

func (p *parser) statement(word string) (node, error) {
	p.tokens = p.tokens[1:]
	switch word {
	case "if":
		return p.ifs()
	case "for":
		return p.loop()
	case "set":
		return p.set()
	case "generation":
		body, _, err := p.block("endgeneration")
		return group(body), err
	case "break", "continue":
		return jump(word), nil
	}
	return nil, p.fail("statement %q is not supported", word)
}

func (p *parser) ifs() (node, error) {
	var n ifNode
	for {
		cond, err := p.whole()
		if err != nil {
			return nil, err
		}
		body, end, err := p.block("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		n.conds, n.bodies = append(n.conds, cond), append(n.bodies, body)
		switch end {
		case "endif":
			return n, nil
		case "else":
			n.other, _, err = p.block("endif")
			return n, err
		}
	}
}

func (p *parser) loop() (node, error) {
	var n forNode
	for {
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		n.names = append(n.names, name)
		if !p.take(",") {
			break
		}
	}
	if !p.takeName("in") {
		return nil, p.fail("want \"in\" after the names of a loop")
	}
	var err error
	if n.over, err = p.or(); err != nil {
		return nil, err
	}
	if p.takeName("if") {
		if n.cond, err = p.or(); err != nil {
			return nil, err
		}
	}
	if err := p.ended(); err != nil {
		return nil, err
	}
	var end string
	if n.body, end, err = p.block("else", "endfor"); err != nil {
		return nil, err
	}
	if end == "else" {
		n.other, _, err = p.block("endfor")
	}
	return n, err
}

func (p *parser) set() (node, error) {
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	n := setNode{name: name}
	if p.take(".") {
		if n.attr, err = p.name(); err != nil {
			return nil, err
		}
	}
	if p.take("=") {
		n.value, err = p.whole()
		return n, err
	}
	if err := p.ended(); err != nil {
		return nil, err
	}
	n.body, _, err = p.block("endset")
	return n, err
}

func (p *parser) ended() error {
	if p.tokens[0].kind != tEnd {
		return p.fail("unexpected %q", p.tokens[0].text)
	}
	return nil
}

// whole parses an expression to the end of the tag.
func (p *parser) whole() (expr, error) {
	e, err := p.choice()
	if err == nil {
		err = p.ended()
	}
	return e, err
}

// choice is "a if b else c".
func (p *parser) choice() (expr, error) {
	if err := p.down(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	e, err := p.or()
	if err != nil || !p.takeName("if") {
		return e, err
	}
	cond, err := p.or()
	if err != nil {
		return nil, err
	}
	c := choice{cond: cond, yes: e}
	if p.takeName("else") {
		c.no, err = p.choice()
	}
	return c, err
}

func (p *parser) or() (expr, error)  { return p.logic("or", p.and) }
func (p *parser) and() (expr, error) { return p.logic("and", p.not) }

func (p *parser) logic(word string, next func() (expr, error)) (expr, error) {
	a, err := next()
	for err == nil && p.takeName(word) {
		var b expr
		if b, err = next(); err == nil {
			a = logic{word == "or", a, b}
		}
	}
	return a, err
}

func (p *parser) not() (expr, error) {
	if err := p.down(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	if p.takeName("not") {
		e, err := p.not()
		return negation{e}, err
	}
	return p.comparison()
}

func (p *parser) comparison() (expr, error) {
	a, err := p.sum()
	for err == nil {
		op := p.tokens[0].text
		switch {
		case p.tokens[0].kind == tOp && slices.Contains([]string{"==", "!=", "<", ">", "<=", ">="}, op):
			p.tokens = p.tokens[1:]
		case p.takeName("in"):
			op = "in"
		case p.tokens[0].kind == tName && op == "not" && p.tokens[1].text == "in":
			p.tokens, op = p.tokens[2:], "not in"
		case p.takeName("is"):
			if a, err = p.test(a); err != nil {
				return nil, err
			}
			continue
		default:
			return a, nil
		}
		var b expr
		if b, err = p.sum(); err == nil {
			a = binary{op, a, b}
		}
	}
	return nil, err
}

// test is what stands after "is".
func (p *parser) test(e expr) (expr, error) {
	no := p.takeName("not")
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	if tests[name] == nil {
		return nil, p.fail("test %q is not supported", name)
	}
	var t expr = test{name, e}
	if no {
		t = negation{t}
	}
	return t, nil
}

func (p *parser) sum() (expr, error)     { return p.chain(p.product, "+", "-", "~") }
func (p *parser) product() (expr, error) { return p.chain(p.unary, "*", "/", "//", "%") }

func (p *parser) chain(next func() (expr, error), ops ...string) (expr, error) {
	a, err := next()
	for err == nil && p.tokens[0].kind == tOp && slices.Contains(ops, p.tokens[0].text) {
		op := p.tokens[0].text
		p.tokens = p.tokens[1:]
		var b expr
		if b, err = next(); err == nil {
			a = binary{op, a, b}
		}
	}
	return a, err
}

func (p *parser) unary() (expr, error) {
	if p.take("-") {
		if err := p.down(); err != nil {
			return nil, err
		}
		defer func() { p.depth-- }()
		e, err := p.unary()
		return binary{"-", constant{0}, e}, err
	}
	e, err := p.primary()
	for err == nil {
		switch {
		case p.take("."):
			var name string
			if name, err = p.name(); err == nil {
				e = member{e, constant{name}}
			}
		case p.take("["):
			e, err = p.subscript(e)
		case p.take("("):
			var c call
			if c, err = p.arguments(); err == nil {
				c.f = e
				e = c
			}
		case p.take("|"):
			e, err = p.filter(e)
		default:
			return e, nil
		}
	}
	return nil, err
}

func (p *parser) filter(e expr) (expr, error) {
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	if filters[name] == nil {
		return nil, p.fail("filter %q is not supported", name)
	}
	var c call
	if p.take("(") {
		if c, err = p.arguments(); err != nil {
			return nil, err
		}
	}
	return filter{name, e, c}, nil
}

// subscript is an index or a slice.
func (p *parser) subscript(e expr) (expr, error) {
	var at [3]expr
	colons := 0
	for !p.take("]") {
		switch {
		case p.take(":"):
			if colons++; colons > 2 {
				return nil, p.fail("too many colons")
			}
		default:
			x, err := p.choice()
			if err != nil {
				return nil, err
			}
			if at[colons] != nil {
				return nil, p.fail("want ]")
			}
			at[colons] = x
		}
		if p.tokens[0].kind == tEnd {
			return nil, p.fail("want ]")
		}
	}
	if colons == 0 {
		if at[0] == nil {
			return nil, p.fail("empty brackets")
		}
		return member{e, at[0]}, nil
	}
	return slice{e, at}, nil
}

func (p *parser) arguments() (call, error) {
	c := call{named: map[string]expr{}}
	for !p.take(")") {
		name := ""
		if p.tokens[0].kind == tName && p.tokens[1].text == "=" && p.tokens[1].kind == tOp {
			name, p.tokens = p.tokens[0].text, p.tokens[2:]
		}
		e, err := p.choice()
		if err != nil {
			return c, err
		}
		if name != "" {
			c.named[name] = e
		} else {
			c.args = append(c.args, e)
		}
		if !p.take(",") && (p.tokens[0].kind != tOp || p.tokens[0].text != ")") {
			return c, p.fail("want , or )")
		}
	}
	return c, nil
}

func (p *parser) primary() (expr, error) {
	t := p.tokens[0]
	switch t.kind {
	case tString:
		p.tokens = p.tokens[1:]
		return constant{t.text}, nil
	case tNumber:
		p.tokens = p.tokens[1:]
		n, err := strconv.Atoi(t.text)
		if err != nil {
			return nil, p.fail("number %.20s is too large", t.text)
		}
		return constant{n}, nil
	case tName:
		p.tokens = p.tokens[1:]
		if v, ok := constants[t.text]; ok {
			return constant{v}, nil
		}
		return variable(t.text), nil
	}
	switch {
	case p.take("("):
		e, err := p.choice()
		if err == nil && !p.take(")") {
			err = p.fail("want )")
		}
		return e, err
	case p.take("["):
		var l list
		for !p.take("]") {
			e, err := p.choice()
			if err != nil {
				return nil, err
			}
			l = append(l, e)
			if !p.take(",") && p.tokens[0].text != "]" {
				return nil, p.fail("want , or ]")
			}
		}
		return l, nil
	}
	return nil, p.fail("unexpected %q", t.text)
}

var constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

func (p *parser) take(op string) bool    { return p.takeToken(tOp, op) }
func (p *parser) takeName(n string) bool { return p.takeToken(tName, n) }
func (p *parser) takeToken(k tokenKind, text string) bool {
	if p.tokens[0].kind != k || p.tokens[0].text != text {
		return false
	}
	p.tokens = p.tokens[1:]
	return true
}

func (p *parser) name() (string, error) {
	if p.tokens[0].kind != tName {
		return "", p.fail("want a name, found %q", p.tokens[0].text)
	}
	t := p.tokens[0].text
	p.tokens = p.tokens[1:]
	return t, nil
}
