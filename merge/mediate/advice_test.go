package mediate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/mergetest"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
)

// TestAdvice: conflict says what a merge by the same recipe would route, and a bound on what that stores.
func TestAdvice(t *testing.T) {
	text := mediateRecipe("{select: {top_k: 2}, keep: {bits: 3}}", trio...)
	r, err := Conflict(t.Context(), parse(t, text), ConflictOptions{})
	if err != nil {
		t.Fatal(err)
	}

	_, e := mediated(t, text, merge.Options{})
	var routed []string
	for _, g := range e.manifest.Groups {
		if g.Routed {
			routed = append(routed, g.Name)
		}
	}

	a := r.Advice
	if strings.Join(a.Route, " ") != strings.Join(routed, " ") || len(a.Route) != 2 {
		t.Errorf("%v, routed %v", a.Route, routed)
	}

	var weights int64
	for _, f := range e.manifest.Weights {
		weights += f.Size
	}
	if n := weights + e.manifest.ExpertBytes(); a.Bytes < n*9/10 || a.Bytes > n*11/10 || a.Bytes > a.AllIn {
		t.Errorf("%d bytes said, %d taken, %d with all", a.Bytes, n, a.AllIn)
	}
	if s := a.Sentence(); !strings.HasPrefix(s, "Average ") || !strings.Contains(s, ", and route layer") ||
		!strings.Contains(s, "(keep: {bits: 3})") {
		t.Error(s)
	}
}

// TestAdviceInWords: neighbouring layers are a range.
func TestAdviceInWords(t *testing.T) {
	a := Advice{
		Average: []string{"pre", "layer 0", "layer 1", "layer 2", "post"}, Route: []string{"layer 3", "layer 4"},
		Models: 4e9, Bytes: 2e9, AllIn: 3e9, Keep: "keep: 0.1", layers: true,
	}
	const want = "Average the embeddings, layers 0 to 2 and the head, and route layers 3 and 4: mediate would take " +
		"2 GB (50 %) at most of the 4 GB that the models take; with every layer routed 3 GB (75 %) (keep: 0.1)."
	if got := a.Sentence(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}

	b := a
	b.Average, b.Route = nil, []string{"pre", "layer 0", "post"}
	if got := b.Sentence(); !strings.HasPrefix(got, "Route everything: mediate would take 2 GB") {
		t.Error(got)
	}

	b.Average = nil
	for i := range 30 {
		b.Average = append(b.Average, fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", i))
	}
	if got := b.Sentence(); !strings.HasPrefix(got, "Average 30 of 33 groups, and route the embeddings, layer 0 and") {
		t.Error(got)
	}

	b.alone = true
	if got := b.Sentence(); !strings.HasPrefix(got, "There is nothing to average or to route") {
		t.Error(got)
	}

	a.Average, a.Route = append(a.Average, a.Route...), nil
	if got := a.Sentence(); !strings.HasPrefix(got, "Average everything: no group stands out") {
		t.Error(got)
	}
}

// TestUntouchedTensorsAreFree: what no expert has changed takes no room, is not routed, and comes back.
func TestUntouchedTensorsAreFree(t *testing.T) {
	base, err := filepath.Abs(nano + "base")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.Symlink(base, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}

	for _, keep := range []string{"{bits: 3}", "{lowrank: 2}", "sign1", "0.1"} {
		list := func(third string) string {
			return fmt.Sprintf("merge_method: mediate\nbase_model: %sbase\nmodels:\n- model: %s/a\n- model: "+
				"%s/b\n%sparameters: {select: all, dense: base, keep: %s, route_embeddings: true}\n",
				nano, dir, dir, third, keep)
		}

		_, e := mediated(t, list("- {model: "+nano+"news, name: c}\n"), merge.Options{})
		for i, m := range e.manifest.Experts {
			for name, p := range m.Tensors {
				if i < 2 && (p.Kept != 0 || p.Encoding != experts.Nothing) {
					t.Errorf("%s: expert %s keeps %d elements of %s as %s", keep, m.Name, p.Kept, name, p.Encoding)
				}
			}
		}
		if own, other := e.members[0].Bytes(), e.members[2].Bytes(); own > 20_000 || own*2 > other {
			t.Errorf("%s: %d bytes for nothing, %d for an expert", keep, own, other)
		}

		_, e = mediated(t, strings.Replace(list(""), "dense: base", "dense: mean", 1), merge.Options{})
		if len(e.manifest.Routed) > 0 || e.members[0].Bytes() > 20_000 {
			t.Errorf("%s: %v routed, %d bytes", keep, e.manifest.Routed, e.members[0].Bytes())
		}
		if d := mergetest.Differing(mergetest.Tensors(t, e.Dir()), mergetest.Tensors(t, base)); len(d) > 0 {
			t.Errorf("%s: %v differ from the base", keep, d)
		}
	}
}
