package prune

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestParseWays: allocations and updates are cut off, formulas stay whole.
func TestParseWays(t *testing.T) {
	got, err := parseWays(" magnitude,pruner-zero@owl+sparsegpt, expr:min(W,G)+X,expr:(W*X)+admm,wanda+swaps," +
		"ria@owl+swaps+exact")
	want := []way{
		{"magnitude", "magnitude", "", "", false},
		{"pruner-zero@owl+sparsegpt", "pruner-zero", "owl", "sparsegpt", false},
		{"expr:min(W,G)+X", "expr:min(W,G)+X", "", "", false},
		{"expr:(W*X)+admm", "expr:(W*X)", "", "admm", false},
		{"wanda+swaps", "wanda", "", "", true},
		{"ria@owl+swaps+exact", "ria", "owl", "exact", true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(way{})); err != nil || diff != "" {
		t.Error(err, diff)
	}

	for _, bad := range []string{"", ",", "wanda,,ria", "wanda, ", ",wanda", "wanda,ria,wanda"} {
		if _, err := parseWays(bad); !errors.Is(err, ErrEntry) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestParseAmounts: sparsities and patterns, each once and in range.
func TestParseAmounts(t *testing.T) {
	got, err := parseAmounts("0.5, 2:4,0")
	want := []amount{{"0.5", 0.5, Pattern{}}, {"2:4", 0, Pattern{2, 4}}, {"0", 0, Pattern{}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(amount{})); err != nil || diff != "" {
		t.Error(err, diff)
	}

	for _, bad := range []string{"", "0.5,,2:4", "1", "NaN", "-0.1", "x", "0.5,0.5"} {
		if _, err := parseAmounts(bad); !errors.Is(err, ErrEntry) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := parseAmounts("4:2"); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}
}

// TestContendersShare: a setting reaches those contenders that have it, and no other; every one is valid, with all
// settings at once.
func TestContendersShare(t *testing.T) {
	shared := Options{
		Group: Layer, Permutation: Interleave, Gradients: GradientOptions{File: "g.safetensors"}, TrueSequential: true,
		Allocation: Allocation{M: 4, Lambda: .1, Special: true, Epsilon: .2, Estimator: Hill, Max: .9},
		Update: Update{
			Damping: .02, Width: 64, Steps: 9, MaskSteps: 3, Polish: 2, Guard: true, Cycles: 7, Threshold: .3,
			SameSign: true, Strict: true, MLP: true,
		},
	}

	const methods = "magnitude,gblm,sparsegpt,wanda+dsnot,wanda@owl,magnitude@alpha+admm,wanda@global"
	list, err := Contenders(methods, "0.5", shared)
	if err != nil {
		t.Fatal(err)
	}

	plain := Options{Sparsity: .5, Group: Layer, Permutation: Identity, TrueSequential: true}
	for i, change := range []func(o *Options){
		func(o *Options) { o.Metric = Magnitude() },
		func(o *Options) { o.Metric, o.Gradients.File = GBLM(), "g.safetensors" },
		func(o *Options) { o.Metric, o.Update = SparseGPT(), Update{Damping: .02, Width: 64, Guard: true} },
		func(o *Options) {
			o.Metric = Wanda()
			o.Update = Update{Name: DSnoT, Guard: true, Cycles: 7, Threshold: .3}
			o.Update.SameSign = true
			o.Update.Strict = true
			o.Update.MLP = true
		},
		func(o *Options) { o.Metric, o.Allocation = Wanda(), Allocation{Name: OWL, M: 4, Lambda: .1} },
		func(o *Options) {
			o.Metric, o.Allocation = Magnitude(), Allocation{Name: Alpha, Epsilon: .2, Estimator: Hill}
			o.Update = Update{Name: ADMM, Damping: .02, Steps: 9, MaskSteps: 3, Polish: 2, Guard: true}
		},
		func(o *Options) { o.Metric, o.Allocation = Wanda(), Allocation{Name: Global, Max: .9} },
	} {
		want := plain
		change(&want)

		byName := cmp.Comparer(func(a, b Metric) bool { return a.Name == b.Name })
		if diff := cmp.Diff(want, list[i].Options, byName); diff != "" {
			t.Errorf("%s: %s", list[i].Method, diff)
		}
	}

	// What all share is dropped where it does not fit; what a method asks for itself is not.
	list, err = Contenders("wanda,wanda+dsnot,wanda+swaps+exact", "0.5", Options{Swaps: 2, SwapDiagonal: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 0, 2} {
		if got := list[i].Options.Swaps; got != want {
			t.Errorf("%s: %d passes of swaps, want %d", list[i].Method, got, want)
		}
		if got := list[i].Options.SwapDiagonal; (got == 1) != (want > 0) {
			t.Errorf("%s: %d passes of swaps with %g of the diagonal", list[i].Method, want, got)
		}
	}
	if got := list[2].Options.Update.Name; got != Exact {
		t.Errorf("update %s", got)
	}
	if list, err = Contenders("wanda+swaps", "0.5", Options{}); err != nil || list[0].Options.Swaps != SwapPasses {
		t.Errorf("%v: %+v", err, list)
	}
	list, err = Contenders("wanda,wanda+swaps", "0.5", Options{SwapDiagonal: 1})
	if err != nil || list[0].Options.SwapDiagonal != 0 || list[1].Options.SwapDiagonal != 1 {
		t.Errorf("%v: %+v", err, list)
	}

	list, err = Contenders("ria", "2:4", shared)
	if err != nil {
		t.Fatal(err)
	}
	if o := list[0].Options; o.Group != "" || o.Permutation != Interleave || o.Pattern != (Pattern{2, 4}) {
		t.Errorf("a pattern: %+v", o)
	}
}

// TestContendersRefused: what no contender can be has the error of what is wrong, with target and method where it is
// the combination.
func TestContendersRefused(t *testing.T) {
	for _, c := range []struct {
		methods, targets, text string
		want                   error
	}{
		{"magnitude,nope", "0.5", `metric "nope": unknown name; known: `, ErrUnknown},
		{"magnitude,,wanda", "0.5", "entry 2 is empty", ErrEntry},
		{"wanda@alpha", "0.5,2:4", "2:4, wanda@alpha: ", ErrOptions},
		{"wanda@owl-mixed", "0.5", "0.5, wanda@owl-mixed: ", ErrOptions},
		{"wanda+swaps+dsnot", "0.5", "0.5, wanda+swaps+dsnot: ", ErrOptions},
	} {
		if _, err := Contenders(c.methods, c.targets, Options{}); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("%s at %s: %v; want %v with %q", c.methods, c.targets, err, c.want, c.text)
		}
	}
}
