package merge

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/merge/internal/moe"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// TestMixtureSpecs: what is written of a mixture is read as the same one, whatever its texts hold.
func TestMixtureSpecs(t *testing.T) {
	for seed := range uint64(200) {
		g := &specs{rand.New(rand.NewPCG(seed, 2))}
		want := MixtureSpec{
			Base: g.model(), Gate: g.one("hidden", "hidden_last", "cheap_embed"), DType: g.one("float32", "bfloat16"),
			PerToken: 1 + g.IntN(2), Architecture: g.one("", "mixtral", "qwen3"),
		}
		for range 2 + g.IntN(3) {
			e := Expert{Model: g.model(), Positive: []string{g.odd(), g.odd()}, Noise: g.Float64()}
			if g.IntN(2) == 0 {
				residual := g.NormFloat64()
				e.Residual, e.Negative = &residual, []string{g.odd()}
			}
			want.Experts = append(want.Experts, e)
		}

		r, err := NewMixture(want)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !r.Mixture() {
			t.Fatalf("seed %d: no mixture\n%s", seed, r.Text())
		}
		c, err := moe.Parse("recipe", r.Text())
		if err != nil {
			t.Fatal(err)
		}

		got := MixtureSpec{
			Base: c.Base.String(), Gate: c.Gate, DType: dtype.Torch(c.DType), PerToken: c.PerToken,
			Architecture: c.Architecture,
		}
		for _, e := range c.Experts {
			x := Expert{Model: e.Source.String(), Positive: e.Positive, Negative: e.Negative, Noise: e.Noise}
			if e.Residual != 1 {
				x.Residual = &e.Residual
			}
			got.Experts = append(got.Experts, x)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: got\n%+v\nwant\n%+v\n%s", seed, got, want, r.Text())
		}
	}

	for said, m := range map[string]MixtureSpec{
		"without experts": {Base: "a"},
		"an empty prompt": {Base: "a", Experts: []Expert{{Model: "b", Positive: []string{""}}}},
		"Noise is NaN":    {Base: "a", Experts: []Expert{{Model: "b", Noise: nan()}}},
	} {
		if _, err := NewMixture(m); !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v", said, err)
		}
	}
}

// TestRefs: a model in parts stands wherever a model is named, and keeps a path that its short form would cut.
func TestRefs(t *testing.T) {
	refs := map[string]Ref{
		"odd": {Path: "/data/a+b@c", Adapter: "x@y+z", AdapterRevision: "v1"},
		"hub": {Path: "o/n", Revision: "r@1", Class: "X"},
	}
	odd := recipe.Ref{
		Model:   recipe.Source{Path: "/data/a+b@c"},
		Adapter: recipe.Source{Path: "x@y+z", Revision: "v1"},
	}
	hub := recipe.Ref{Model: recipe.Source{Path: "o/n", Revision: "r@1"}, Class: "X"}

	s := Spec{
		Method: "ties", Base: "odd", Refs: refs,
		Slices: []Slice{{Base: "hub", Sources: []LayerRange{{Model: "odd", End: 2}, {Model: "plain", End: 2}}}},
		Tokenizer: &Tokenizer{Source: "odd", Tokens: map[string]Token{
			"<a>": {Model: "hub"}, "<b>": {Model: "odd", Text: "c"},
		}},
	}
	var text strings.Builder
	if err := s.write(&text); err != nil {
		t.Fatal(err)
	}
	docs, err := recipe.Parse("recipe", []byte(text.String()), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}

	d := docs[0]
	got := []recipe.Ref{
		*d.Base, *d.Slices[0].Base, d.Slices[0].Sources[0].Ref, d.Tokenizer.Model, d.Tokenizer.Tokens[0].Source.Model,
		d.Tokenizer.Tokens[1].Source.Model,
	}
	if want := []recipe.Ref{odd, hub, odd, odd, hub, odd}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v\nwant %+v\n%s", got, want, text.String())
	}

	m, err := NewMixture(MixtureSpec{
		Base: "hub", Gate: "random", PerToken: 1, Refs: refs, Experts: []Expert{{Model: "odd"}, {Model: "plain"}},
	})
	if err != nil || !strings.Contains(string(m.Text()), "/data/a+b@c") {
		t.Errorf("%v\n%s", err, m.Text())
	}

	if _, err := New(Spec{
		Method: "linear", Models: []Input{{Model: "a"}}, Refs: map[string]Ref{"a": {Revision: "x"}},
	}); !errors.Is(err, ErrOption) {
		t.Errorf("a ref without a path: %v", err)
	}
}
