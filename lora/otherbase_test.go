package lora

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm"
)

// TestOtherBase: an adapter that says what it was trained on is not folded into, and not trained on, a base of the same shape with other
// weights, unless that is allowed; where it is only looked at or attached, there is a remark.
func TestOtherBase(t *testing.T) {
	other := filepath.Join(filepath.Dir(nano), "sums")
	m, n := openModel(t, nano, "cpu", lm.Options{}), openModel(t, other, "cpu", lm.Options{})
	data := sequences(m.Config().Vocab, 4, 8)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	o := Options{Rank: 3, EquivalentRank: 2, Steps: 1, StateDir: at("state")}
	a, err := Train(t.Context(), m, data, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Save(at("a"), false); err != nil {
		t.Fatal(err)
	}
	for base, want := range map[*lm.Model]bool{m: false, n: true} {
		b, err := Open(at("a"), base)
		if err != nil {
			t.Fatal(err)
		}
		if remark, err := b.OtherBase(t.Context(), base); err != nil || strings.Contains(remark, "another base") != want {
			t.Errorf("%s: %q %v", base.Path(), remark, err)
		}
		r, err := Inspect(t.Context(), at("a"), base.Path())
		if err != nil || (len(r.Notes) == 1 && strings.Contains(r.Notes[0], "another base")) != want {
			t.Errorf("%s: %v %v", base.Path(), r, err)
		}
		o := Options{Init: b, Steps: 1}
		if _, err := Train(t.Context(), base, data, o); errors.Is(err, ErrOtherBase) != want || !want && err != nil {
			t.Errorf("%s: %v", base.Path(), err)
		}
		o.AllowOtherBase = true
		if c, err := Train(t.Context(), base, data, o); err != nil {
			t.Error(err)
		} else if remark, err := c.OtherBase(t.Context(), base); err != nil || remark != "" {
			t.Errorf("%q %v", remark, err)
		}
		out := at("folded")
		if _, err := Fold(t.Context(), base.Path(), at("a"), out, FoldOptions{Overwrite: true}); errors.Is(err, ErrOtherBase) != want || !want && err != nil {
			t.Errorf("%s: %v", base.Path(), err)
		}
		if r, err := Fold(t.Context(), base.Path(), at("a"), out, FoldOptions{Overwrite: true, AllowOtherBase: true}); err != nil || len(r.Notes) == 1 != want {
			t.Errorf("%s: %v", base.Path(), err)
		}
	}
}
