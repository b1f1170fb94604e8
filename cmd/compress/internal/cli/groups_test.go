package cli

import (
	"fmt"
	"testing"
)

// TestGrouped: tensors of a kind are one line with the span of their layers, and short lists stay as they are.
func TestGrouped(t *testing.T) {
	names := []string{"embed.weight"}
	for _, l := range []int{0, 1, 2, 10, 3, 11} {
		names = append(names, fmt.Sprintf("model.layers.%d.q.weight", l), fmt.Sprintf("model.layers.%d.k.weight", l))
	}
	self := func(s string) string { return s }

	groups, ok := Grouped(names, false, self, nil)
	if !ok || len(groups) != 3 {
		t.Fatalf("%v %+v", ok, groups)
	}
	if g := groups[0]; g.Kind != "embed.weight" || g.Where != "" || len(g.Items) != 1 {
		t.Errorf("%+v", g)
	}
	if g := groups[1]; g.Kind != "model.layers.*.q.weight" || g.Where != "0–3, 10–11" || len(g.Items) != 6 {
		t.Errorf("%+v", g)
	}

	if _, ok := Grouped(names, true, self, nil); ok {
		t.Error("all lines were asked for")
	}
	if _, ok := Grouped(names[:12], false, self, nil); ok {
		t.Error("a short list is grouped")
	}
	if groups, _ := Grouped(names, false, self, func(s string) string { return s[len(s)-8:] }); len(groups) != 3 {
		t.Errorf("with a key that agrees: %d groups", len(groups))
	}
	if _, ok := Grouped(names, false, self, self); ok {
		t.Error("groups of one line each")
	}
}

// TestSpans: runs of numbers, whatever their order.
func TestSpans(t *testing.T) {
	for want, list := range map[string][]int{"": nil, "5": {5}, "0–2, 4": {2, 0, 4, 1, 1}, "1, 3": {3, 1}} {
		if got := Spans(list); got != want {
			t.Errorf("%v: %q, want %q", list, got, want)
		}
	}
}
