package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/jinja/internal/library"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// parser reads an expression.
type parser struct {
	tokens []token
	at     int
	depth  int
	links  int // operators and indices so far that hang on each other
}

// wholeExpr reads tokens that are one expression.
func wholeExpr(tokens []token) (expr, error) { return (&parser{tokens: tokens}).whole() }

func (p *parser) whole() (expr, error) {
	x, err := p.tuple()
	if err != nil {
		return nil, err
	}
	return x, p.done()
}

func (p *parser) done() error {
	if p.at < len(p.tokens) {
		return p.fault()
	}
	return nil
}

func (p *parser) fault() error {
	var b strings.Builder
	for i, t := range p.tokens {
		if i == p.at {
			b.WriteString(" <here>")
		}
		b.WriteString(" " + t.text)
	}
	return fmt.Errorf("%w in%.200s", ErrSyntax, b.String())
}

func (p *parser) peek() token {
	if p.at < len(p.tokens) {
		return p.tokens[p.at]
	}
	return token{kind: end}
}

func (p *parser) symbol(s string) bool { return p.take(symbol, s) }
func (p *parser) word(s string) bool   { return p.take(word, s) }

func (p *parser) take(k kind, s string) bool {
	if t := p.peek(); t.kind == k && t.text == s {
		p.at++
		return true
	}
	return false
}

// names reads a, b, …
func (p *parser) names() ([]string, error) {
	var names []string
	for {
		t := p.peek()
		if t.kind != word {
			return nil, p.fault()
		}

		p.at++
		names = append(names, t.text)
		if !p.symbol(",") {
			return names, nil
		}
	}
}

// expr reads x, or x if test else y.
func (p *parser) expr() (expr, error) {
	p.depth++
	if p.depth > maxNest {
		return nil, fmt.Errorf("%w: expressions nested more than %d deep", ErrCost, maxNest)
	}
	defer func() { p.depth-- }()

	x, err := p.either()
	if err != nil || !p.word("if") {
		return x, err
	}

	test, err := p.either()
	if err != nil {
		return nil, err
	}

	c := choice{test: test, yes: x}
	if p.word("else") {
		c.no, err = p.expr()
	}

	return c, err
}

// link counts what hangs on each other in an expression, which is evaluated from the inside out.
func (p *parser) link() error {
	p.links++
	if p.links > maxChain {
		return fmt.Errorf("%w: an expression with more than %d operators in a row", ErrCost, maxChain)
	}
	return nil
}

func (p *parser) either() (expr, error) { return p.logic("or", p.both) }
func (p *parser) both() (expr, error)   { return p.logic("and", p.not) }

func (p *parser) logic(op string, next func() (expr, error)) (expr, error) {
	before := p.links
	defer func() { p.links = before }()

	x, err := next()
	for err == nil && p.word(op) {
		if err := p.link(); err != nil {
			return nil, err
		}
		var y expr
		y, err = next()
		x = logic{op == "or", x, y}
	}

	return x, err
}

func (p *parser) not() (expr, error) {
	times := 0
	for p.word("not") {
		times++
	}

	x, err := p.comparison()
	if err != nil || times == 0 {
		return x, err
	}

	x = (not{x})
	if times%2 == 0 {
		x = not{x}
	}

	return x, nil
}

// comparison reads a chain of comparisons.
func (p *parser) comparison() (expr, error) {
	x, err := p.sum()
	if err != nil {
		return nil, err
	}

	c := compare{first: x}
	for {
		op := p.comparator()
		if op == "" {
			break
		}

		y, err := p.sum()
		if err != nil {
			return nil, err
		}

		c.ops, c.rest = append(c.ops, op), append(c.rest, y)
	}

	if len(c.ops) == 0 {
		return x, nil
	}

	return c, nil
}

func (p *parser) comparator() string {
	for _, op := range []string{"==", "!=", "<=", ">=", "<", ">"} {
		if p.symbol(op) {
			return op
		}
	}

	if p.word("in") {
		return "in"
	}

	if p.peek().text == "not" && p.at+1 < len(p.tokens) && p.tokens[p.at+1] == (token{word, "in"}) {
		p.at += 2
		return "not in"
	}

	return ""
}

func (p *parser) sum() (expr, error)     { return p.chain(p.join, "+", "-") }
func (p *parser) join() (expr, error)    { return p.chain(p.product, "~") }
func (p *parser) product() (expr, error) { return p.chain(p.power, "*", "/", "//", "%") }
func (p *parser) power() (expr, error)   { return p.chain(p.filtered, "**") }

func (p *parser) chain(next func() (expr, error), ops ...string) (expr, error) {
	before := p.links
	defer func() { p.links = before }()

	x, err := next()
	for err == nil {
		op := ""
		for _, o := range ops {
			if op == "" && p.symbol(o) {
				op = o
			}
		}

		if op == "" {
			break
		}
		if err := p.link(); err != nil {
			return nil, err
		}

		var y expr
		y, err = next()
		x = arith{op, x, y}
	}

	return x, err
}

// filtered reads a signed value with its filters and tests, which bind less than the sign.
func (p *parser) filtered() (expr, error) {
	x, err := p.unary()
	if err != nil {
		return nil, err
	}
	return p.postfix(x, true)
}

func (p *parser) unary() (expr, error) {
	minus := p.symbol("-")
	if minus || p.symbol("+") {
		p.depth++
		if p.depth > maxNest {
			return nil, fmt.Errorf("%w: expressions nested more than %d deep", ErrCost, maxNest)
		}
		defer func() { p.depth-- }()

		x, err := p.unary()
		if minus {
			return negative{x}, err
		}

		return negative{negative{x}}, err
	}

	x, err := p.primary()
	if err != nil {
		return nil, err
	}

	return p.postfix(x, false)
}

// postfix reads what may follow a value: .name, [index] and (arguments), or then |filter and is test.
func (p *parser) postfix(x expr, filters bool) (expr, error) {
	before := p.links
	defer func() { p.links = before }()

	for {
		err := p.link()
		if err != nil {
			return nil, err
		}

		switch {
		case !filters && p.symbol("."):
			t := p.peek()
			if t.kind != word && t.kind != number {
				return nil, p.fault()
			}
			p.at++
			x = attribute{x, t.text}
		case !filters && p.symbol("["):
			x, err = p.index(x)
		case p.symbol("("):
			var args arguments
			args, err = p.arguments()
			x = call{x, args}
		case filters && p.symbol("|"):
			x, err = p.filter(x)
		case filters && p.word("is"):
			x, err = p.test(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// index reads the rest of [i] or [lo:hi:step].
func (p *parser) index(x expr) (expr, error) {
	var parts [3]expr
	n := 0
	for {
		if t := p.peek(); t.text != ":" && t.text != "]" || t.kind == quoted {
			var err error
			if parts[n], err = p.expr(); err != nil {
				return nil, err
			}
		}

		if p.symbol("]") {
			break
		}

		n++
		if n > 2 || !p.symbol(":") {
			return nil, p.fault()
		}
	}

	if n == 0 {
		if parts[0] == nil {
			return nil, p.fault()
		}
		return item{x, parts[0]}, nil
	}

	return slice{x, parts}, nil
}

// arguments reads the rest of (a, b, name=c).
func (p *parser) arguments() (arguments, error) {
	var args arguments
	for !p.symbol(")") {
		name := ""
		if t := p.peek(); t.kind == word && p.at+1 < len(p.tokens) && p.tokens[p.at+1] == (token{symbol, "="}) {
			name = t.text
			p.at += 2
		} else if len(args) > 0 && args[len(args)-1].name != "" {
			return args, p.fault() // a place behind a name
		}

		x, err := p.expr()
		if err != nil {
			return args, err
		}

		args = append(args, argument{name, x})
		if !p.symbol(",") {
			if !p.symbol(")") {
				return args, p.fault()
			}
			break
		}
	}

	return args, nil
}

// filter reads the name and the arguments of a filter for x.
func (p *parser) filter(x expr) (expr, error) {
	t := p.peek()
	if t.kind != word {
		return nil, p.fault()
	}

	p.at++
	f, ok := library.Filters[t.text]
	if !ok {
		return nil, fmt.Errorf("%w: filter %q; known: %s", ErrUnknown, t.text, library.Known(library.Filters))
	}

	var args arguments
	var err error
	if p.symbol("(") {
		if args, err = p.arguments(); err != nil {
			return nil, err
		}
	}

	if err := f.CheckNames(args.names()); err != nil {
		return nil, fmt.Errorf("filter %s: %w", t.text, err)
	}

	return filtered{t.text, f, x, args}, nil
}

// chainOfFilters reads f|g|… to the end, and gives what applies them.
func (p *parser) chainOfFilters() (func(expr) (expr, error), error) {
	start := p.at
	apply := func(q *parser, x expr) (expr, error) {
		x, err := q.filter(x)
		for err == nil && q.symbol("|") {
			x, err = q.filter(x)
		}
		if err != nil {
			return nil, err
		}
		return x, q.done()
	}

	if _, err := apply(p, constant{""}); err != nil {
		return nil, err
	}

	return func(x expr) (expr, error) { return apply(&parser{tokens: p.tokens, at: start}, x) }, nil
}

// noArgument are the words behind a test that are no argument of it.
var noArgument = []string{"else", "or", "and", "is", "not", "in", "if"}

func (p *parser) test(x expr) (expr, error) {
	negated := p.word("not")
	t := p.peek()
	if t.kind != word {
		return nil, p.fault()
	}

	p.at++
	name := t.text
	f, ok := library.Tests[name]
	if !ok {
		name = strings.ToLower(name)
		f, ok = library.Tests[name]
	}
	if !ok {
		return nil, fmt.Errorf("%w: test %q; known: %s", ErrUnknown, t.text, library.Known(library.Tests))
	}

	var args arguments
	var err error
	switch next := p.peek(); {
	case p.symbol("("):
		args, err = p.arguments()
	case next.kind == quoted, next.kind == number, next.kind == word && !slices.Contains(noArgument, next.text),
		next == token{symbol, "["}, next == token{symbol, "{"}:
		var y expr
		if y, err = p.primary(); err == nil {
			y, err = p.postfix(y, false)
		}
		args = arguments{{x: y}}
	}
	if err != nil {
		return nil, err
	}
	if err := f.CheckNames(args.names()); err != nil {
		return nil, fmt.Errorf("test %s: %w", name, err)
	}

	return tested{x, name, f, args, negated}, nil
}

// tuple reads one expression, or several with commas between them, which are a tuple.
func (p *parser) tuple() (expr, error) { return p.listed(p.expr) }

// listed reads one expression, or several with commas between them, which are a tuple.
func (p *parser) listed(next func() (expr, error)) (expr, error) {
	x, err := next()
	if err != nil || !p.symbol(",") {
		return x, err
	}

	items := []expr{x}
	for p.at < len(p.tokens) {
		if x, err = next(); err != nil {
			return nil, err
		}

		items = append(items, x)
		if !p.symbol(",") {
			break
		}
	}

	return list{items, true}, nil
}

// literals are the words that stand for values.
var literals = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

func (p *parser) primary() (expr, error) {
	t := p.peek()
	p.at++
	switch t.kind {
	case word:
		if v, ok := literals[t.text]; ok {
			return constant{v}, nil
		}
		return name(t.text), nil
	case quoted:
		s := t.text
		for p.peek().kind == quoted {
			s += p.peek().text
			p.at++
		}
		return constant{s}, nil
	case number:
		if n, ok, err := pyvalue.ParseInt(t.text, 0); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrType, err)
		} else if ok {
			return constant{n}, nil
		}

		f, err := strconv.ParseFloat(strings.ReplaceAll(t.text, "_", ""), 64)
		if err != nil || !strings.ContainsAny(t.text, ".eE") {
			p.at--
			return nil, p.fault()
		}

		return constant{f}, nil
	case symbol:
		switch t.text {
		case "(":
			return p.list(")")
		case "[":
			return p.list("]")
		case "{":
			return p.dict()
		}
	}

	p.at--
	return nil, p.fault()
}

// list reads the rest of [a, b], (a, b) or (a).
func (p *parser) list(end string) (expr, error) {
	var items []expr
	comma := false
	for !p.symbol(end) {
		x, err := p.expr()
		if err != nil {
			return nil, err
		}

		items = append(items, x)

		if p.symbol(",") {
			comma = true
			continue
		}

		if !p.symbol(end) {
			return nil, p.fault()
		}

		break
	}

	if end == ")" && len(items) == 1 && !comma {
		return items[0], nil
	}

	return list{items, end == ")"}, nil
}

func (p *parser) dict() (expr, error) {
	var d dict
	for !p.symbol("}") {
		k, err := p.expr()
		if err != nil {
			return nil, err
		}

		if !p.symbol(":") {
			return nil, p.fault()
		}

		v, err := p.expr()
		if err != nil {
			return nil, err
		}

		d.keys, d.values = append(d.keys, k), append(d.values, v)

		if !p.symbol(",") {
			if !p.symbol("}") {
				return nil, p.fault()
			}
			break
		}
	}

	return d, nil
}

// names counts the arguments without names and lists the names of the others.
func (a arguments) names() (n int, names []string) {
	for _, arg := range a {
		if arg.name == "" {
			n++
		} else {
			names = append(names, arg.name)
		}
	}
	return n, names
}
