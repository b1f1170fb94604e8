package gp

import "strings"

// Binding strengths of the infix notation.
const (
	bindSum = iota + 1
	bindProduct
	bindMinus
	bindCall
)

// infix is the sign and the strength of operators that are not written as calls.
func infix(s Symbol) (text string, strength int) {
	switch s {
	case Add:
		return " + ", bindSum
	case Sub:
		return " - ", bindSum
	case Mul:
		return "*", bindProduct
	case Div:
		return "/", bindProduct
	case Neg:
		return "-", bindMinus
	}

	return "", bindCall
}

// String writes the expression in the infix notation that [Parse] reads back to the same tree.
func (e *Expr) String() string {
	if e == nil {
		return ""
	}
	var b strings.Builder
	e.print(&b, bindSum)
	return b.String()
}

// print writes e, in parentheses if it binds less than need.
func (e *Expr) print(b *strings.Builder, need int) {
	sign, strength := infix(e.Sym)
	switch {
	case e.Sym.Arity() == 0:
		b.WriteString(e.Sym.String())
	case strength < need:
		b.WriteByte('(')
		e.print(b, bindSum)
		b.WriteByte(')')
	case e.Sym == Neg:
		b.WriteString(sign)
		e.Left.print(b, bindMinus)
	case sign != "":
		e.Left.print(b, strength)
		b.WriteString(sign)
		e.Right.print(b, strength+1)
	default:
		e.printCall(b)
	}
}

func (e *Expr) printCall(b *strings.Builder) {
	b.WriteString(e.Sym.String())
	b.WriteByte('(')
	e.Left.print(b, bindSum)
	if e.Right != nil {
		b.WriteString(", ")
		e.Right.print(b, bindSum)
	}
	b.WriteByte(')')
}

// Text writes the expression as Pruner-Zero's code prints trees: (left) name (right), with # for a missing operand.
func (e *Expr) Text() string {
	var b strings.Builder
	e.text(&b)
	return b.String()
}

func (e *Expr) text(b *strings.Builder) {
	if e == nil {
		b.WriteByte('#')
		return
	}

	if e.Left == nil {
		b.WriteString(e.Sym.String())
		return
	}

	b.WriteByte('(')
	e.Left.text(b)
	b.WriteString(") " + e.Sym.String() + " (")
	e.Right.text(b)
	b.WriteByte(')')
}
