package gp

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
)

// edgeInputs makes small matrices of ordinary values with exact zeros, equal values and a wide range among them.
func edgeInputs(seed uint64, rows, cols int) Inputs {
	r := rng.NewStream(seed, 17)
	in := synthetic(r, rows, cols)
	special := []float32{0, 0, 1, 1e-6, 3e-3, 1, 40}
	for _, m := range []kernels.Mat{in.W, in.G} {
		for i := range m.Buf.F32() {
			if r.Chance(0.1) {
				m.Buf.F32()[i] = special[r.Below(len(special))]
			}
		}
	}

	return in
}

func TestSimplify(t *testing.T) {
	for text, want := range map[string]string{
		"skp(W)*G":             "W*G",
		"pow(W)*G":             "G*sqr(W)",
		"abs(W*W)*mms(G)":      "sqr(W)*mms(G)",
		"sqr(abs(W*W)*mms(G))": "sqr(W)*mms(G)",
		"mms(zsn(W*G))":        "W*G",
		"(W + mms(zsn(G)))":    "W + mms(G)",
		"W + zsn(mms(G))":      "W + zsn(G)",
		"W + mms(mms(G))":      "W + mms(G)",
		"exp(log(W - G))":      "abs(W - G)",
		"log(exp(W - G))":      "W - G",
		"W + exp(log(G))":      "W + exp(log(G))",
		"W + sqrt(sqr(G))":     "W + sqrt(sqr(G))",
		"sqrt(sqr(W*G))":       "W*G",
		"(W/X)*G":              "W*G",
		"W/X + G":              "G + W/X",
		"mms(W/G) + X":         "X + mms(W)",
		"X/W":                  "X/W",
		"W + -G":               "W - G",
		"W - -G":               "W + G",
		"-(W - G)":             "G - W",
		"G*W":                  "W*G",
		"W*abs(-(G - X))":      "W*abs(X - G)",
		"--W*X":                "W*X",
		"-exp(W*X)":            "-(W*X)",
		"sqr(tanh(W - X))":     "abs(W - X)",
		"min(W*X, W*X)":        "W*X",
		"rnorm(W/X)*G":         "G*rnorm(W/X)",
		"-W*-G":                "W*G",
		"zsn(mms(W*G)*X)":      "X*mms(W*G)",
	} {
		if got := Simplify(mustParse(t, text)).String(); got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
}

// TestSimplifySettles: the canonical form is its own canonical form, never larger, and any order of operands
// gives the same.
func TestSimplifySettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := anyExpr(Symbols()).Draw(t, "e")
		s := Simplify(e)
		if again := Simplify(s); !again.Equal(s) {
			t.Fatalf("%s becomes %s, then %s", e, s, again)
		}
		if s.Size() > e.Size() {
			t.Fatalf("%s grows to %s", e, s)
		}
		if swapped := Simplify(swap(e)); !swapped.Equal(s) {
			t.Fatalf("%s becomes %s, with operands swapped %s", e, s, swapped)
		}
	})
}

// swap exchanges the operands of every operator that commutes.
func swap(e *Expr) *Expr {
	if e == nil {
		return nil
	}
	l, r := swap(e.Left), swap(e.Right)
	if e.Sym.facts().commutes {
		l, r = r, l
	}
	return &Expr{e.Sym, l, r}
}

// TestRules: each rule, wherever it fires in random expressions, keeps what it claims on random matrices with
// zeros and ties: the value in every bit but the sign of zero, or the order, in that the original never
// decreases as the replacement rises. Rounding may turn a step by one unit around where a factor is dropped, so
// steps down of up to 2e-6 are let through there.
func TestRules(t *testing.T) {
	fired := make([]int, len(rules))
	for seed := range uint64(20000) {
		r := rng.NewStream(seed)
		g := FullGrammar()
		if seed%2 == 0 { // the rules' own operators more often
			g.Symbols = []Symbol{W, G, X, Neg, Abs, Tanh, Mul, Sub, Mms, Sqr}
		}

		g.MinDepth = 1
		e := g.random(r, Matrix, false, 4, 0)
		if e.Shape() != Matrix {
			continue
		}

		in := edgeInputs(seed%8, 8, 40)
		simplify(e, ranked, func(rule int, from, to *Expr) {
			fired[rule]++
			if rules[rule].Keeps == keepsValue {
				sameValues(t, rules[rule].Name, from, to, in)
			}
		})

		sameOrder(t, e, Simplify(e), in)
	}

	for i, n := range fired {
		if n < 5 {
			t.Errorf("rule %q was tried %d times", rules[i].Name, n)
		}
	}
}

func sameValues(t *testing.T, rule string, from, to *Expr, in Inputs) {
	t.Helper()
	a, b := evalAny(t, from, in, nil), evalAny(t, to, in, nil)
	if from.Shape() != to.Shape() {
		t.Fatalf("%s: %s and %s differ in shape", rule, from, to)
	}

	for i, v := range a.Buf.F32()[:a.Len()] {
		if w := b.Buf.F32()[i]; v != w && (v == v || w == w) {
			t.Fatalf("%s: %s gives %g, %s gives %g", rule, from, v, to, w)
		}
	}
}

// sameOrder checks that from never decreases where to rises, for expressions whose scores are finite.
func sameOrder(t *testing.T, from, to *Expr, in Inputs) {
	t.Helper()
	if to.Shape() != Matrix {
		t.Fatalf("%s became %s of shape %s", from, to, to.Shape())
	}

	a, b := evalAny(t, from, in, nil), evalAny(t, to, in, nil)
	for i := range a.Rows {
		x, y := a.RowF32(i), b.RowF32(i)
		top := float32(0)
		for j, v := range x {
			if v-v != 0 || y[j]-y[j] != 0 {
				return // not a legal metric; the checks refuse the original or the replacement
			}
			top = max(top, v, -v)
		}

		for j := range x {
			for k := range j {
				lo, hi := j, k
				if y[lo] > y[hi] {
					lo, hi = hi, lo
				}

				if y[lo] < y[hi] && x[lo] > x[hi] && x[lo]-x[hi] > 2e-6*max(top*1e-1, x[lo], -x[lo]) &&
					y[hi]-y[lo] > 1e-5*max(y[hi], -y[hi]) {
					t.Fatalf("%s → %s: order changes: %g, %g were %g, %g", from, to, y[lo], y[hi], x[lo], x[hi])
				}
			}
		}
	}
}

// TestConsequences: what the published space can't tell apart, from the definitions of its operators.
func TestConsequences(t *testing.T) {
	in := edgeInputs(3, 8, 40)
	p := NewProbe(in)
	mask := func(text string) Fingerprint {
		f, err := p.Fingerprint(mustParse(t, text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return f
	}

	for _, pair := range [][2]string{
		{"W*sqrt(X)/G", "W*sqrt(X)"},
		{"pow(W)*G", "sqr(W)*G"},
		{"skp(W)*G", "W*G"},
		{"abs(W*W)*mms(G)", "sqr(abs(W*W)*mms(G))"},
		{"mms(zsn(W*G))", "W*G"},
	} {
		if mask(pair[0]) != mask(pair[1]) {
			t.Errorf("%s and %s give different masks", pair[0], pair[1])
		}
	}

	if mask("W*sqrt(X)") == mask("W*G") {
		t.Error("different metrics have the same fingerprint")
	}
}

func TestCheck(t *testing.T) {
	probe := SyntheticProbe(0)
	for text, want := range map[string]error{
		"W*sqrt(X)":                           nil,
		"abs(W*W)*mms(G)":                     nil,
		"G*sqrt(X)":                           ErrNoWeight,
		"sqr(W)":                              ErrOnlyW,
		"X + Wr1":                             ErrNoWeight,
		"-(W*G)":                              ErrInverted,
		"W*G + (X - X)":                       ErrConstant,
		"X/W":                                 ErrNoWeight,
		"tanh(exp(W + X)) + tanh(exp(G + X))": ErrConstant,
		"G + exp(exp(W + X))":                 ErrNonFinite,
		"G*pdiv(W, W)":                        nil,
		"W + sqr(sqr(sqr(sqr(sqr(log(G))))))": ErrTooLarge,
	} {
		_, err := FullGrammar().Check(mustParse(t, text), probe)
		if !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}

	if _, err := PaperGrammar().Check(mustParse(t, "min(W, G)"), probe); !errors.Is(err, ErrForbidden) {
		t.Errorf("a symbol outside the grammar: %v", err)
	}
	if _, err := (Grammar{AllowOnlyW: true}).withDefaults().Check(mustParse(t, "W*sqr(W)"), probe); err != nil {
		t.Errorf("W alone where it is allowed: %v", err)
	}
	if _, err := PaperGrammar().Check(&Expr{Sym: Add, Left: Leaf(W)}, nil); !errors.Is(err, ErrSyntax) {
		t.Errorf("a broken tree: %v", err)
	}
}

// TestSeeds: every seed is legal on the probe, and the known metrics are among them.
func TestSeeds(t *testing.T) {
	probe := SyntheticProbe(1)
	for _, g := range []Grammar{PaperGrammar(), FullGrammar()} {
		all := ""
		for _, e := range Seeds(g) {
			all += e.String() + "\n"
			if _, err := g.Check(e, probe); err != nil {
				t.Error(err)
			}
		}

		for _, text := range []string{"W*sqrt(X)", "sqr(W)*mms(G)"} {
			if !strings.Contains(all, text+"\n") {
				t.Errorf("%s is missing", text)
			}
		}
	}
}

// TestGuards: one assertion for every row of the operator table's edge cases.
func TestGuards(t *testing.T) {
	w := kernels.MatOf(kernels.WrapF32([]float32{0, 1, 100, 89, 0.5, 2}), 2, 3)
	in := Inputs{W: w, G: w, X: []float32{3, 0, 4}}
	at := func(text string, i int) float64 { return float64(evalAny(t, mustParse(t, text), in, nil).Buf.F32()[i]) }
	near := func(what string, got, want float64) {
		if math.IsNaN(got) != math.IsNaN(want) ||
			!math.IsNaN(want) && got != want && math.Abs(got-want) > 1e-6*math.Abs(want) {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}

	near("log 0", at("log(W)", 0), math.Log(0.001))
	near("exp 100", at("exp(W)", 2), math.Inf(1))
	near("exp 89", at("exp(W)", 3), math.Inf(1))
	near("exp 1", at("exp(W)", 1), math.E)
	near("pow 100", at("pow(W)", 2), 1e4)
	near("mms of a constant", at("mms(W - G)", 0), math.NaN())
	near("zsn of a constant", at("zsn(W - G)", 0), math.NaN())
	near("mms", at("mms(W)", 3), 0.89)
	near("W/X", at("W/X", 1), 1/(math.Sqrt2*5))
	near("X/W", at("X/W", 3), 3/math.Sqrt(1+1e4+89*89+0.25+4))
	near("X/X", at("W + X/X", 0), 0.6)
	near("protected division", at("pdiv(W, W - G)", 1), 1e8)
	near("rnorm", at("rnorm(W)", 1), 1.0/101)
	near("cnorm", at("cnorm(W)", 1), 1/1.5)
	near("row norm", at("W + Wr2", 0), math.Sqrt(1+1e4))
	near("column norm", at("W + Wc2", 1), 1+math.Sqrt(1.25))
	near("zsn(X)", at("W + zsn(X)", 1), 1+(0-7.0/3)/math.Sqrt(13.0/3))
}

// TestSimplifyBounds: the largest trees that can be read are simplified and compiled in no time to speak of:
// rules tried anew after every change must not add up to more than the square of the size.
func TestSimplifyBounds(t *testing.T) {
	for _, ops := range [][]string{
		{"-"},
		{"log(", "exp("},
		{"mms(", "zsn(", "sqrt("},
		{"sqr(", "abs(", "-", "tanh("},
		{"skp("},
		{"G*(X - "},
		{"G + -(", "W*-("},
	} {
		text, end := "", ""
		for i := range MaxDepth/2 - 1 {
			op := ops[i%len(ops)]
			text += op
			end += strings.Repeat(")", strings.Count(op, "("))
		}

		e := mustParse(t, text+"W"+end)
		tried := 0
		simplify(e, ranked, func(int, *Expr, *Expr) { tried++ })
		if tried > e.Size()*e.Size() {
			t.Errorf("%.20s…: %d changes of %d nodes", text, tried, e.Size())
		}
		if _, err := Compile(e); err != nil {
			t.Error(err)
		}
	}

	wide := Leaf(W)
	for wide.Size() < MaxNodes/2 {
		wide = Binary(Mul, Unary(Neg, wide), wide)
	}
	if s := Simplify(wide); s.Size() > wide.Size() {
		t.Errorf("%d nodes became %d", wide.Size(), s.Size())
	}
}
