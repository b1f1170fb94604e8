package gp

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/rng"
)

// anyExpr draws expressions over a set of symbols.
func anyExpr(set []Symbol) *rapid.Generator[*Expr] {
	return rapid.Custom(func(t *rapid.T) *Expr {
		g := Grammar{Symbols: set}.withDefaults()
		g.MinDepth = 0
		r := rng.NewStream(rapid.Uint64().Draw(t, "tree"))
		return g.random(r, g.kind(), rapid.Bool().Draw(t, "full"), rapid.IntRange(0, 5).Draw(t, "depth"), 0)
	})
}

// TestRoundTrips: infix and JSON give the same tree back.
func TestRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := anyExpr(Symbols()).Draw(t, "e")
		back, err := Parse(e.String())
		if err != nil || !back.Equal(e) {
			t.Fatalf("%s comes back as %s, %v", e, back, err)
		}

		if back.Hash() != e.Hash() || back.Size() != e.Size() || back.Depth() != e.Depth() {
			t.Fatalf("%s differs from itself", e)
		}

		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}

		if back, err = ParseJSON(text); err != nil || !back.Equal(e) {
			t.Fatalf("%s comes back as %s, %v", text, back, err)
		}
	})
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"abs(W*W)*mms(G)":          "abs(W*W)*mms(G)",
		"W-G-X":                    "W - G - X",
		"W - (G - X)":              "W - (G - X)",
		"(W*G)*X":                  "W*G*X",
		"W*(G*X)":                  "W*(G*X)",
		"-W*G":                     "-W*G",
		"-(W*G)":                   "-(W*G)",
		"--W":                      "--W",
		"W/(G+X)/X":                "W/(G + X)/X",
		"add(mul(W, G), neg(X))":   "W*G + -X",
		" pdiv ( W , min(G,Wr1) )": "pdiv(W, min(G, Wr1))",
	} {
		if e, err := Parse(text); err != nil || e.String() != want {
			t.Errorf("%s gives %s, %v; want %s", text, e, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, c := range map[string]struct {
		err error
		say string
	}{
		"":           {ErrSyntax, "column 1: "},
		"W +":        {ErrSyntax, "column 4: "},
		"W G":        {ErrSyntax, "column 3: "},
		"(W":         {ErrSyntax, "column 3: "},
		"W*Y":        {ErrUnknown, "column 3: "},
		"sqrt W":     {ErrSyntax, "column 6: "},
		"sqrt(W, G)": {ErrSyntax, "column 1: "},
		"min(W)":     {ErrSyntax, "column 1: "},
		"W(G)":       {ErrSyntax, "column 1: "},
		"W*√(G)":     {ErrSyntax, `'√'`},
		"W*wanda":    {ErrUnknown, "known: W, G, X"},
		"W*3": {
			ErrSyntax,
			"column 3: malformed expression: a number, and formulas have no constants",
		},
		"1e-8+W":                 {ErrSyntax, "column 1: "},
		"sqrt(.5)":               {ErrSyntax, "no constants"},
		"2(W)":                   {ErrSyntax, "no constants"},
		"W\x00":                  {ErrSyntax, "column 2: "},
		strings.Repeat("(", 1e4): {ErrTooLarge, "deep"},
		strings.Repeat("-", 1e4): {ErrTooLarge, "deep"},
		strings.Repeat("sqr(", 100) + "W" + strings.Repeat(")", 100): {ErrTooLarge, "levels"},
		"W" + strings.Repeat("+W", 100):                              {ErrTooLarge, "levels"},
		"W" + strings.Repeat("+W", 2000):                             {ErrTooLarge, "nodes"},
		strings.Repeat(" ", 1e5):                                     {ErrTooLarge, "bytes"},
	} {
		_, err := Parse(text)
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func TestParseJSONRefuses(t *testing.T) {
	for text, want := range map[string]error{
		``:                                    ErrSyntax,
		`null`:                                ErrSyntax,
		`[]`:                                  ErrSyntax,
		`"W"`:                                 ErrSyntax,
		`{}`:                                  ErrSyntax,
		`{"data":"W"} {}`:                     ErrSyntax,
		`{"data":"W","data":"G"}`:             ErrSyntax,
		`{"data":1}`:                          ErrSyntax,
		`{"data":"Y"}`:                        ErrUnknown,
		`{"data":"W","left":{"data":"G"}}`:    ErrSyntax,
		`{"data":"sqr"}`:                      ErrSyntax,
		`{"data":"sqr","right":{"data":"W"}}`: ErrSyntax,
		`{"data":"add","left":{"data":"W"}}`:  ErrSyntax,
		`{"data":"W","value":1}`:              ErrSyntax,
		`{"data":"W"`:                         ErrSyntax,
		strings.Repeat(`{"data":"sqr","left":`, 1e4):             ErrTooLarge,
		strings.Repeat(`{"left":`, 70) + strings.Repeat("}", 70): ErrTooLarge,
	} {
		if _, err := ParseJSON([]byte(text)); !errors.Is(err, want) {
			t.Errorf("%.60s: %v", text, err)
		}
	}

	if e, err := ParseJSON([]byte(`{"data":"sqr","left":{"data":"W","left":null},"right":null}`)); err != nil ||
		e.String() != "sqr(W)" {
		t.Errorf("null operands: %s, %v", e, err)
	}
}

// TestReplace: picking and replacing nodes by number keeps the rest.
func TestReplace(t *testing.T) {
	e := mustParse(t, "W*sqrt(G) - X")
	var got []string
	for i := range e.Size() {
		got = append(got, e.at(i).String()+" → "+e.replace(i, Leaf(H)).String())
	}

	want := "W*sqrt(G) - X → H|W*sqrt(G) → H - X|W → H*sqrt(G) - X|sqrt(G) → W*H - X|G → W*sqrt(H) - X|X → " +
		"W*sqrt(G) - H"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got %s", s)
	}
	if e.String() != "W*sqrt(G) - X" {
		t.Error("the original changed")
	}
	if text := mustParse(t, "abs(W*W)*mms(G)").Text(); text != "(((W) mul (W)) abs (#)) mul ((G) mms (#))" {
		t.Errorf("text form %s", text)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"abs(W*W)*mms(G)", "-W/(G - X)", "pdiv(W, Wr1)", "W +", "((((", "√"} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()

		e, err := Parse(text)
		if err != nil {
			return
		}

		if e.Size() > MaxNodes || e.Depth() > MaxDepth {
			t.Fatalf("%d nodes, %d levels", e.Size(), e.Depth())
		}
		if back, err := Parse(e.String()); err != nil || !back.Equal(e) {
			t.Fatalf("%q: %s comes back as %s, %v", text, e, back, err)
		}
	})
}

func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{
		`{"data":"mul","left":{"data":"W"},"right":{"data":"sqrt","left":{"data":"X"}}}`,
		`{"data":`, `[[[[`,
	} {
		f.Add([]byte(s))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		e, err := ParseJSON(text)
		if err != nil {
			return
		}

		out, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}

		if back, err := ParseJSON(out); err != nil || !back.Equal(e) {
			t.Fatalf("%s comes back as %s, %v", out, back, err)
		}
	})
}
