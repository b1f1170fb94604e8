package gp

import (
	"fmt"
	"unicode/utf8"
)

// maxText bounds the length of a formula in bytes.
const maxText = 16 * MaxNodes

// Parse reads the infix notation: + and - (sub), * (mul) and / (div), unary minus (neg), parentheses, and calls such as
// sqrt(X) or min(W, G); every operator may also be written as a call. Sums and products group from the left, unary minus
// binds more than a product. Errors give the column, counted in characters from 1, and wrap [ErrSyntax], [ErrUnknown] or
// [ErrTooLarge].
func Parse(text string) (*Expr, error) {
	p := &parser{text: text}
	if len(text) > maxText {
		return nil, p.fail(ErrTooLarge, "%d bytes, at most %d", len(text), maxText)
	}
	e, err := p.sum(0)
	if err == nil && p.peek() != 0 {
		err = p.fail(ErrSyntax, "unexpected %s", p.here())
	}
	if err == nil && e.Depth() > MaxDepth {
		err = fmt.Errorf("%w: %d levels, at most %d", ErrTooLarge, e.Depth(), MaxDepth)
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// parser reads a formula from left to right.
type parser struct {
	text  string
	pos   int
	nodes int
}

func (p *parser) fail(kind error, format string, args ...any) error {
	at := utf8.RuneCountInString(p.text[:min(p.pos, len(p.text))]) + 1
	return fmt.Errorf("column %d: %w: %s", at, kind, fmt.Sprintf(format, args...))
}

// peek returns the next character that is no space, 0 at the end.
func (p *parser) peek() byte {
	for p.pos < len(p.text) && (p.text[p.pos] == ' ' || p.text[p.pos] == '\t' || p.text[p.pos] == '\n' || p.text[p.pos] == '\r') {
		p.pos++
	}
	if p.pos == len(p.text) {
		return 0
	}
	return p.text[p.pos]
}

// here names what comes next.
func (p *parser) here() string {
	if p.peek() == 0 {
		return "end of the formula"
	}
	r, _ := utf8.DecodeRuneInString(p.text[p.pos:])
	return fmt.Sprintf("%q", r)
}

// take consumes c if it comes next.
func (p *parser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.pos++
	return true
}

// make counts the nodes.
func (p *parser) make(s Symbol, l, r *Expr) (*Expr, error) {
	if p.nodes++; p.nodes > MaxNodes {
		return nil, p.fail(ErrTooLarge, "more than %d nodes", MaxNodes)
	}
	return &Expr{s, l, r}, nil
}

// sum reads products joined by + and -.
func (p *parser) sum(depth int) (*Expr, error) {
	return p.chain(depth, p.product, map[byte]Symbol{'+': Add, '-': Sub})
}

// product reads factors joined by * and /.
func (p *parser) product(depth int) (*Expr, error) {
	return p.chain(depth, p.factor, map[byte]Symbol{'*': Mul, '/': Div})
}

func (p *parser) chain(depth int, part func(int) (*Expr, error), signs map[byte]Symbol) (*Expr, error) {
	e, err := part(depth)
	for err == nil {
		s, ok := signs[p.peek()]
		if !ok {
			return e, nil
		}
		p.pos++
		var r *Expr
		if r, err = part(depth); err == nil {
			e, err = p.make(s, e, r)
		}
	}
	return nil, err
}

// factor reads a name, a call, a parenthesis, or a negated factor.
func (p *parser) factor(depth int) (*Expr, error) {
	if depth > 2*MaxDepth {
		return nil, p.fail(ErrTooLarge, "nested more than %d deep", 2*MaxDepth)
	}
	switch {
	case p.take('-'):
		e, err := p.factor(depth + 1)
		if err != nil {
			return nil, err
		}
		return p.make(Neg, e, nil)
	case p.take('('):
		e, err := p.sum(depth + 1)
		if err != nil {
			return nil, err
		}
		if !p.take(')') {
			return nil, p.fail(ErrSyntax, "%s where ) should be", p.here())
		}
		return e, nil
	}
	return p.name(depth)
}

// name reads a terminal or a call.
func (p *parser) name(depth int) (*Expr, error) {
	p.peek()
	start := p.pos
	for p.pos < len(p.text) && isLetter(p.text[p.pos]) {
		p.pos++
	}
	word := p.text[start:p.pos]
	if word == "" {
		return nil, p.fail(ErrSyntax, "%s where an operand should be", p.here())
	}
	s, err := SymbolByName(word)
	if err != nil {
		p.pos = start
		return nil, fmt.Errorf("column %d: %w", utf8.RuneCountInString(p.text[:start])+1, err)
	}
	if s.Arity() == 0 {
		return p.make(s, nil, nil)
	}
	return p.call(s, depth)
}

func (p *parser) call(s Symbol, depth int) (*Expr, error) {
	var args [2]*Expr
	for i := range s.Arity() {
		open := byte('(')
		if i > 0 {
			open = ','
		}
		if !p.take(open) {
			return nil, p.fail(ErrSyntax, "%s where %c should be: %s takes %d operands", p.here(), open, s, s.Arity())
		}
		e, err := p.sum(depth + 1)
		if err != nil {
			return nil, err
		}
		args[i] = e
	}
	if !p.take(')') {
		return nil, p.fail(ErrSyntax, "%s where ) should be", p.here())
	}
	return p.make(s, args[0], args[1])
}

func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
