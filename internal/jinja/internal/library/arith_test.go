package library

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/pyvalue"
)

func env() *Env { return &Env{Context: context.Background()} }

// TestOperateAsPython: what CPython 3.11 prints for the same operations.
func TestOperateAsPython(t *testing.T) {
	for _, c := range []struct {
		x    any
		op   string
		y    any
		want string
	}{
		{int64(7), "//", int64(2), "3"},
		{int64(-7), "//", int64(2), "-4"},
		{int64(7), "//", int64(-2), "-4"},
		{int64(-7), "%", int64(2), "1"},
		{int64(7), "%", int64(-2), "-1"},
		{int64(6), "%", int64(-2), "0"},
		{int64(7), "/", int64(2), "3.5"},
		{int64(4), "/", int64(2), "2.0"},
		{1.0, "//", 0.1, "9.0"},
		{1.0, "%", 0.1, "0.09999999999999995"},
		{-1.0, "%", 0.1, "5.551115123125783e-17"},
		{-1.0, "//", 0.1, "-10.0"},
		{5.0, "%", -3.0, "-1.0"},
		{6.0, "%", -3.0, "-0.0"},
		{math.Copysign(0, -1), "//", 3.0, "-0.0"},
		{int64(7), "//", 2.0, "3.0"},
		{1e300, "%", 7.0, "1.0"},
		{int64(2), "**", int64(62), "4611686018427387904"},
		{int64(-1), "**", int64(1000001), "-1"},
		{"ab", "*", int64(3), "'ababab'"},
		{"a", "~", int64(1), "'a1'"},
		{[]any{int64(1)}, "+", []any{"x"}, "[1, 'x']"},
		{true, "+", int64(1), "2"},
	} {
		got, err := env().Operate(c.op, c.x, c.y)
		if err != nil || pyvalue.Repr(got) != c.want {
			t.Errorf("%s %s %s: %s %v, want %s", pyvalue.Repr(c.x), c.op, pyvalue.Repr(c.y), pyvalue.Repr(got), err,
				c.want)
		}
	}
}

// TestOperateRefuses: Python's errors, and the numbers that do not fit into 64 bits, which Python would have.
func TestOperateRefuses(t *testing.T) {
	for _, c := range []struct {
		x  any
		op string
		y  any
	}{
		{int64(1), "//", int64(0)},
		{int64(1), "%", int64(0)},
		{1.0, "/", 0.0},
		{1.0, "%", 0.0},
		{int64(math.MaxInt64), "+", int64(1)},
		{int64(math.MinInt64), "-", int64(1)},
		{int64(math.MinInt64), "*", int64(-1)},
		{int64(-1), "*", int64(math.MinInt64)},
		{int64(math.MinInt64), "//", int64(-1)},
		{int64(2), "**", int64(64)},
		{"a", "+", int64(1)},
		{nil, "*", int64(2)},
		{&Undefined{What: "x"}, "+", int64(1)},
	} {
		if got, err := env().Operate(c.op, c.x, c.y); err == nil {
			t.Errorf("%v %s %v: %v", c.x, c.op, c.y, got)
		}
	}

	if got, err := env().Operate("%", int64(math.MinInt64), int64(-1)); err != nil || got != int64(0) {
		t.Errorf("the rest of the least number: %v %v", got, err)
	}
}

// TestFloorDivide: quotient and rest belong together: the rest is smaller than the divisor, of its sign, and what
// quotient times divisor leaves to a rounding of the dividend.
func TestFloorDivide(t *testing.T) {
	for _, x := range []float64{0, 1, -1, 0.3, -0.7, 5.5, 1e10, -12345.678} {
		for _, y := range []float64{0.1, -0.1, 3, -7, 1e-3} {
			q, r := floorDivide(x, y)
			if q != math.Floor(q) || math.Abs(r) >= math.Abs(y) || r != 0 && (r < 0) != (y < 0) {
				t.Errorf("%g by %g: %g, rest %g", x, y, q, r)
			}
			if e := math.Abs(q*y + r - x); e > 4*0x1p-53*(math.Abs(x)+math.Abs(y)) {
				t.Errorf("%g by %g: %g·%g + %g misses by %g", x, y, q, y, r, e)
			}
		}
	}
}

func at(v int) *int { return &v }

// TestCut: slices of 0 to 4 as CPython gives them; all with bounds from -7 to 7 and steps to 3 by their hash, of
//
//	bounds = [None, *range(-7, 8)]
//	"\n".join(str(l[a:b:c]) for a in bounds for b in bounds for c in (-3, -2, -1, 1, 2, 3))
func TestCut(t *testing.T) {
	list := []any{int64(0), int64(1), int64(2), int64(3), int64(4)}
	for _, c := range []struct {
		parts [3]*int
		want  string
	}{
		{[3]*int{nil, at(-1), at(-3)}, "[]"},
		{[3]*int{nil, at(4), at(-2)}, "[]"},
		{[3]*int{nil, at(7), at(-2)}, "[]"},
		{[3]*int{at(5), at(1), at(-2)}, "[4, 2]"},
		{[3]*int{at(-7), nil, at(-2)}, "[]"},
		{[3]*int{at(-6), at(-1), at(1)}, "[0, 1, 2, 3]"},
		{[3]*int{at(6), at(-7), at(-3)}, "[4, 1]"},
		{[3]*int{nil, nil, at(-1)}, "[4, 3, 2, 1, 0]"},
		{[3]*int{at(1), at(-1), at(2)}, "[1, 3]"},
		{[3]*int{at(3), at(1), at(1)}, "[]"},
		{[3]*int{at(-9), at(9), at(3)}, "[0, 3]"},
		{[3]*int{nil, at(-9), at(-2)}, "[4, 2, 0]"},
		{[3]*int{at(0), nil, at(-1)}, "[0]"},
		{[3]*int{at(4), at(-6), at(-4)}, "[4, 0]"},
	} {
		if got, err := Cut(list, c.parts); err != nil || pyvalue.Repr(got) != c.want {
			t.Errorf("[%s:%s:%s]: %s %v, want %s", shown(c.parts[0]), shown(c.parts[1]), shown(c.parts[2]),
				pyvalue.Repr(got), err, c.want)
		}
	}

	bounds := []*int{nil}
	for v := -7; v <= 7; v++ {
		bounds = append(bounds, &v)
	}

	var all []string
	for _, lo := range bounds {
		for _, hi := range bounds {
			for _, step := range []int{-3, -2, -1, 1, 2, 3} {
				got, err := Cut(list, [3]*int{lo, hi, &step})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, pyvalue.Repr(got))
			}
		}
	}

	const want = "440761f2cb2f013e0ae47dbaddf9aba6c0f157baa2618514feeb41f9e7aa9009"
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(all, "\n")))); got != want {
		t.Errorf("the hash of all slices is %s", got)
	}
	if _, err := Cut(list, [3]*int{nil, nil, at(0)}); !errors.Is(err, ErrType) {
		t.Errorf("step 0: %v", err)
	}
	if got, err := Cut(nil, [3]*int{at(1), at(-1), at(-1)}); err != nil || len(got) != 0 {
		t.Errorf("of nothing: %v %v", got, err)
	}
}

func shown(p *int) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}

// TestCompareNotANumber: a NaN is neither less, equal nor greater.
func TestCompareNotANumber(t *testing.T) {
	for op, want := range map[string]bool{"<": false, "<=": false, ">": false, ">=": false, "==": false, "!=": true} {
		if got, err := env().Compare(op, math.NaN(), 1.0); err != nil || got != want {
			t.Errorf("nan %s 1: %v %v", op, got, err)
		}
	}
}

// TestWorkIsBounded: what a template may spend ends, however it is spent.
func TestWorkIsBounded(t *testing.T) {
	e := env()
	for range 64 {
		if err := e.Pay(maxSteps / 50); err != nil {
			if !errors.Is(err, ErrCost) {
				t.Error(err)
			}
			if err := e.Step(); !errors.Is(err, ErrCost) {
				t.Errorf("one more step after the end: %v", err)
			}
			return
		}
	}

	t.Error("the work has no end")
}
