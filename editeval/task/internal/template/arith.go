package template

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/value"
)

func (a arith) eval(s *state) (any, error) {
	x, err := a.x.eval(s)
	if err != nil {
		return nil, err
	}
	y, err := a.y.eval(s)
	if err != nil {
		return nil, err
	}
	if err := s.step(); err != nil {
		return nil, err
	}
	if a.op == "~" {
		return s.concat(x, y)
	}
	if v, ok, err := s.joined(a.op, x, y); ok {
		return v, err
	}
	i, okI := value.Int(x)
	j, okJ := value.Int(y)
	if okI && okJ && a.op != "/" && a.op != "**" {
		return intArith(a.op, int64(i), int64(j))
	}
	if okI && okJ && a.op == "**" && j >= 0 {
		return s.power(int64(i), j)
	}
	f, okF := value.Number(x)
	g, okG := value.Number(y)
	if !okF || !okG {
		return nil, typeError(a.op, x, y)
	}
	return floatArith(a.op, f, g)
}

// concat is ~.
func (s *state) concat(x, y any) (any, error) {
	a, err := s.str(x)
	if err != nil {
		return nil, err
	}
	b, err := s.str(y)
	if err != nil {
		return nil, err
	}
	return a + b, s.payText(len(a) + len(b))
}

// joined is + of texts and lists, and * of one of them and a number.
func (s *state) joined(op string, x, y any) (v any, applies bool, err error) {
	if _, isNumber := value.Int(x); isNumber && op == "*" {
		x, y = y, x
	}
	n, isNumber := value.Int(y)
	n = max(n, 0)
	switch x := x.(type) {
	case value.Tuple:
		other, ok := y.(value.Tuple)
		if !ok && !isNumber || isNumber == (op == "+") {
			return nil, false, nil
		}
		if y = any([]any(other)); isNumber {
			y = int64(n)
		}
		v, applies, err = s.joined(op, []any(x), y)
		if list, ok := v.([]any); ok {
			v = value.Tuple(list)
		}
		return v, applies, err
	case string:
		if t, ok := y.(string); ok && op == "+" {
			v, err = s.concat(x, t)
			return v, true, err
		}
		if isNumber && op == "*" {
			if n > 0 && len(x) > maxOutput/n {
				return nil, true, s.payText(maxOutput + 1)
			}
			return strings.Repeat(x, n), true, s.payText(len(x) * n)
		}
	case []any:
		if l, ok := y.([]any); ok && op == "+" {
			return slices.Concat(x, l), true, s.payFor(x, l)
		}
		if isNumber && op == "*" {
			v, err = s.repeat(x, n)
			return v, true, err
		}
	}
	return nil, false, nil
}

// repeat is a list n times.
func (s *state) repeat(x []any, n int) (any, error) {
	if len(x) == 0 {
		n = 0
	}
	if n > maxSteps {
		return nil, s.pay(n)
	}
	for range n {
		if err := s.payFor(x...); err != nil {
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
		if math.IsNaN(z) && !math.IsNaN(x) && !math.IsNaN(y) || math.IsInf(z, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
			return nil, fmt.Errorf("%w: %s ** %s is no finite real number", ErrType, value.Repr(x), value.Repr(y))
		}
		return z, nil
	}
	if y == 0 {
		return nil, fmt.Errorf("%w: division by zero", ErrType)
	}
	q := math.Floor(x / y)
	switch op {
	case "/":
		return x / y, nil
	case "//":
		return q, nil
	}
	return x - q*y, nil
}

// power is x ** n of integers.
func (s *state) power(x int64, n int) (any, error) {
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
	return out, s.step()
}
