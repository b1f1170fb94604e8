package syntax

import (
	"fmt"
	"unicode/utf8"
)

// Infix reads names, calls of one or two operands, sums, products, unary minus and parentheses. Sums and products group
// from the left; unary minus binds more than a product.
func Infix(text string, signs Signs, limits Limits) (*Node, error) {
	p := &parser{text: text, limits: limits, signs: signs}
	if longest := 16 * limits.Nodes; len(text) > longest {
		return nil, p.fail(ErrTooLarge, "%d bytes, at most %d", len(text), longest)
	}

	n, err := p.sum(0)
	p.peek()
	if err == nil && p.pos < len(text) {
		err = p.fail(ErrSyntax, "unexpected %s", p.here())
	}
	if err != nil {
		return nil, err
	}

	return n, nil
}

// parser reads a formula from left to right.
type parser struct {
	text   string
	pos    int
	nodes  int
	limits Limits
	signs  Signs
}

func (p *parser) at(pos int) string {
	return fmt.Sprintf("column %d", utf8.RuneCountInString(p.text[:pos])+1)
}

func (p *parser) fail(kind error, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", p.at(p.pos), kind, fmt.Sprintf(format, args...))
}

// peek returns the next character that is no space, 0 at the end.
func (p *parser) peek() byte {
	for p.pos < len(p.text) &&
		(p.text[p.pos] == ' ' || p.text[p.pos] == '\t' || p.text[p.pos] == '\n' || p.text[p.pos] == '\r') {
		p.pos++
	}
	if p.pos == len(p.text) {
		return 0
	}
	return p.text[p.pos]
}

// here names what comes next.
func (p *parser) here() string {
	if p.peek() == 0 && p.pos == len(p.text) {
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

// node makes a node, and counts it.
func (p *parser) node(n Node, pos int) (*Node, error) {
	p.nodes++
	if p.nodes > p.limits.Nodes {
		return nil, p.fail(ErrTooLarge, "more than %d nodes", p.limits.Nodes)
	}
	n.Pos = p.at(pos)
	return &n, nil
}

// sum reads products joined by + and -.
func (p *parser) sum(depth int) (*Node, error) {
	return p.chain(depth, p.product, '+', p.signs.Plus, '-', p.signs.Minus)
}

// product reads factors joined by * and /.
func (p *parser) product(depth int) (*Node, error) {
	return p.chain(depth, p.factor, '*', p.signs.Times, '/', p.signs.Over)
}

func (p *parser) chain(depth int, part func(int) (*Node, error), sign1 byte, name1 string, sign2 byte,
	name2 string,
) (*Node, error) {
	n, err := part(depth)
	for err == nil {
		name, pos := name1, p.pos
		if !p.take(sign1) {
			name = name2
			if !p.take(sign2) {
				return n, nil
			}
		}

		var r *Node
		if r, err = part(depth); err == nil {
			n, err = p.node(Node{Name: name, Left: n, Right: r}, pos)
		}
	}

	return nil, err
}

// factor reads a name, a call, a parenthesis, or a negated factor.
func (p *parser) factor(depth int) (*Node, error) {
	if depth > 2*p.limits.Depth {
		return nil, p.fail(ErrTooLarge, "nested more than %d deep", 2*p.limits.Depth)
	}

	pos := p.pos
	switch {
	case p.take('-'):
		n, err := p.factor(depth + 1)
		if err != nil {
			return nil, err
		}
		return p.node(Node{Name: p.signs.Negate, Left: n}, pos)
	case p.take('('):
		n, err := p.sum(depth + 1)
		if err != nil {
			return nil, err
		}

		if !p.take(')') {
			return nil, p.fail(ErrSyntax, "%s where ) should be", p.here())
		}

		return n, nil
	}

	return p.name(depth)
}

// name reads a name, and its operands if a parenthesis follows.
func (p *parser) name(depth int) (*Node, error) {
	p.peek()
	start := p.pos
	for p.pos < len(p.text) && isLetter(p.text[p.pos]) {
		p.pos++
	}

	n := Node{Name: p.text[start:p.pos]}
	switch {
	case n.Name == "" && p.peek() == '.', n.Name != "" && n.Name[0] <= '9':
		p.pos = start
		return nil, p.fail(ErrSyntax, "a number, and formulas have no constants")
	case n.Name == "":
		return nil, p.fail(ErrSyntax, "%s where an operand should be", p.here())
	}

	if p.take('(') {
		var err error
		n.Left, err = p.sum(depth + 1)
		if err == nil && p.take(',') {
			n.Right, err = p.sum(depth + 1)
		}
		if err != nil {
			return nil, err
		}
		if !p.take(')') {
			return nil, p.fail(ErrSyntax, "%s where ) should be", p.here())
		}
	}

	return p.node(n, start)
}

func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
