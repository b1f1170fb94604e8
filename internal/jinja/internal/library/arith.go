package library

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Operate applies +, -, *, /, //, %, ** or ~.
func (s *Env) Operate(op string, x, y any) (any, error) {
	if err := s.Step(); err != nil {
		return nil, err
	}
	if op == "~" {
		return s.concat(x, y)
	}

	for _, v := range []any{x, y} {
		if u, ok := v.(*Undefined); ok {
			return nil, u.Err()
		}
	}

	if text, ok := x.(string); ok && op == "%" {
		return s.percent(text, y)
	}

	return s.arith(op, x, y)
}

// Negate is -v, and keeps the sign of a zero.
func (s *Env) Negate(v any) (any, error) {
	if f, ok := v.(float64); ok {
		return -f, s.Step()
	}
	if u, ok := v.(*Undefined); ok {
		return nil, u.Err()
	}

	i, ok := pyvalue.Int(v)
	if !ok {
		return nil, typeError("-", v)
	}

	return intArith("-", 0, int64(i))
}

// typeError says what an operation got.
func typeError(what string, v ...any) error {
	kinds := make([]string, len(v))
	for i, x := range v {
		kinds[i] = pyvalue.Kind(x)
	}
	return fmt.Errorf("%w: %s of %s", ErrType, what, strings.Join(kinds, " and "))
}

// percent is text % args.
func (s *Env) percent(text string, args any) (any, error) {
	if err := s.PayFor(text, args); err != nil {
		return nil, err
	}
	out, err := pyvalue.Percent(text, args)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrType, err)
	}
	return out, s.PayText(len(out))
}

// arith applies an operator to numbers, texts or lists.
func (s *Env) arith(op string, x, y any) (any, error) {
	if v, ok, err := s.joined(op, x, y); ok {
		return v, err
	}

	i, okI := pyvalue.Int(x)
	j, okJ := pyvalue.Int(y)
	if okI && okJ && op != "/" && op != "**" {
		return intArith(op, int64(i), int64(j))
	}
	if okI && okJ && op == "**" && j >= 0 {
		return s.power(int64(i), j)
	}

	if okI && okJ && op == "/" && j != 0 { // the nearest float to the quotient, which those of both need not give
		f, _ := new(big.Rat).SetFrac64(int64(i), int64(j)).Float64()
		if i == 0 && j < 0 {
			f = math.Copysign(0, -1)
		}
		return f, nil
	}

	f, okF := pyvalue.Number(x)
	g, okG := pyvalue.Number(y)
	if !okF || !okG {
		return nil, typeError(op, x, y)
	}

	return floatArith(op, f, g)
}

// concat is ~.
func (s *Env) concat(x, y any) (any, error) {
	a, err := s.Str(x)
	if err != nil {
		return nil, err
	}
	b, err := s.Str(y)
	if err != nil {
		return nil, err
	}
	return a + b, s.PayText(len(a) + len(b))
}

// joined is + of texts and lists, and * of one of them and a number.
func (s *Env) joined(op string, x, y any) (v any, applies bool, err error) {
	if _, isNumber := pyvalue.Int(x); isNumber && op == "*" {
		x, y = y, x
	}

	n, isNumber := pyvalue.Int(y)
	n = max(n, 0)
	switch x := x.(type) {
	case pyvalue.Tuple:
		other, ok := y.(pyvalue.Tuple)
		if !ok && !isNumber || isNumber == (op == "+") {
			return nil, false, nil
		}

		y = any([]any(other))
		if isNumber {
			y = int64(n)
		}

		v, applies, err = s.joined(op, []any(x), y)
		if list, ok := v.([]any); ok {
			v = pyvalue.Tuple(list)
		}

		return v, applies, err
	case string:
		if t, ok := y.(string); ok && op == "+" {
			v, err = s.concat(x, t)
			return v, true, err
		}

		if isNumber && op == "*" {
			if n > 0 && len(x) > MaxOutput/n {
				return nil, true, s.PayText(MaxOutput + 1)
			}
			return strings.Repeat(x, n), true, s.PayText(len(x) * n)
		}
	case []any:
		if l, ok := y.([]any); ok && op == "+" {
			return slices.Concat(x, l), true, s.PayFor(x, l)
		}

		if isNumber && op == "*" {
			v, err = s.repeat(x, n)
			return v, true, err
		}
	}

	return nil, false, nil
}

// repeat is a list n times.
func (s *Env) repeat(x []any, n int) (any, error) {
	if len(x) == 0 {
		n = 0
	}
	if n > maxSteps {
		return nil, s.Pay(n)
	}

	for range n {
		if err := s.PayFor(x...); err != nil {
			return nil, err
		}
	}

	return slices.Repeat(x, n), nil
}

// intArith is arithmetic of integers; results that 64 bits do not hold are an error.
func intArith(op string, x, y int64) (any, error) {
	var z int64
	switch op {
	case "+":
		if z = x + y; (z > x) != (y > 0) && y != 0 {
			return nil, errInt
		}
		return z, nil
	case "-":
		if z = x - y; (z < x) != (y > 0) && y != 0 {
			return nil, errInt
		}
		return z, nil
	case "*":
		if z = x * y; x != 0 && (z/x != y || x == -1 && y == math.MinInt64) {
			return nil, errInt
		}
		return z, nil
	}

	if y == 0 {
		return nil, fmt.Errorf("%w: division by zero", ErrType)
	}

	if x == math.MinInt64 && y == -1 && op == "//" {
		return nil, errInt
	}

	q, r := x/y, x%y
	if r != 0 && (r < 0) != (y < 0) {
		q, r = q-1, r+y
	}
	if op == "//" {
		return q, nil
	}

	return r, nil
}

func floatArith(op string, x, y float64) (any, error) {
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "**":
		z := math.Pow(x, y)
		if math.IsNaN(z) && !math.IsNaN(x) && !math.IsNaN(y) ||
			math.IsInf(z, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
			return nil, fmt.Errorf("%w: %s ** %s is no finite real number", ErrType, pyvalue.Repr(x), pyvalue.Repr(y))
		}
		return z, nil
	}

	if y == 0 {
		return nil, fmt.Errorf("%w: division by zero", ErrType)
	}

	if op == "/" {
		return x / y, nil
	}

	quotient, rest := floorDivide(x, y)
	if op == "//" {
		return quotient, nil
	}

	return rest, nil
}

// floorDivide is Python's divmod (CPython, floatobject.c): the remainder is exact, and the quotient follows from it.
// Rounding x/y down instead makes 10 of 1.0 // 0.1, whose rest of 0.1 less a rounding would be lost.
func floorDivide(x, y float64) (quotient, rest float64) {
	rest = math.Mod(x, y)
	quotient = (x - rest) / y
	switch {
	case rest == 0:
		rest = math.Copysign(0, y)
	case (rest < 0) != (y < 0):
		rest += y
		quotient--
	}

	if quotient == 0 {
		return math.Copysign(0, x/y), rest
	}

	floor := math.Floor(quotient)
	if quotient-floor > 0.5 {
		floor++
	}

	return floor, rest
}

// power is x ** n of integers.
func (s *Env) power(x int64, n int) (any, error) {
	switch {
	case x == 0 && n > 0 || x == 1:
		return x, nil
	case x == -1:
		return int64(1 - 2*(n%2)), nil
	}

	var out any = int64(1)
	for range n {
		var err error
		if out, err = intArith("*", out.(int64), x); err != nil {
			return nil, err
		}
	}

	return out, s.Step()
}
