package lora

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
)

// TestOtherBase: an adapter that says what it was trained on is not folded into, and not trained on, a base of
// the same shape with other weights, unless that is allowed; where it is only looked at or attached, there is a
// remark.
func TestOtherBase(t *testing.T) {
	for _, kind := range []string{"mos", "lora"} {
		t.Run(kind, func(t *testing.T) { otherBases(t, kind) })
	}
}

func otherBases(t *testing.T, kind string) {
	other := filepath.Join(filepath.Dir(nano), "sums")
	m, n := openModel(t, nano, "cpu", lm.Options{}), openModel(t, other, "cpu", lm.Options{})
	data := sequences(m.Config().Vocab, 4, 8)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	o := Options{Kind: kind, Rank: 3, Steps: 1, StateDir: at("state")}
	if kind == "mos" {
		o.EquivalentRank = 2
	}

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

		if remark, err := b.OtherBase(t.Context(), base); err != nil ||
			strings.Contains(remark, "another base") != want {
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
		if _, err := Fold(t.Context(), base.Path(), at("a"), out, FoldOptions{Overwrite: true}); errors.Is(err,
			ErrOtherBase) != want || !want && err != nil {
			t.Errorf("%s: %v", base.Path(), err)
		}

		if r, err := Fold(t.Context(), base.Path(), at("a"), out,
			FoldOptions{Overwrite: true, AllowOtherBase: true}); err != nil || len(r.Notes) == 1 != want {
			t.Errorf("%s: %v", base.Path(), err)
		}
	}
}

// TestOtherName: an adapter without a fingerprint that names another base is taken with a remark, one that
// names this base without.
func TestOtherName(t *testing.T) {
	m := openModel(t, nano, "cpu", lm.Options{})
	for base, want := range map[string]int{"": 0, "someone/" + filepath.Base(nano): 0, "someone/else": 1} {
		a, err := Train(t.Context(), m, sequences(m.Config().Vocab, 4, 8), Options{Kind: "lora", Rank: 2, Steps: 1})
		if err != nil {
			t.Fatal(err)
		}

		a.inner.Config.Base = base
		dir := t.TempDir()
		if err := a.Save(filepath.Join(dir, "a"), false); err != nil {
			t.Fatal(err)
		}

		r, err := Fold(t.Context(), nano, filepath.Join(dir, "a"), filepath.Join(dir, "folded"), FoldOptions{})
		if err != nil || len(r.Notes) != want {
			t.Errorf("%q: %v %v", base, r, err)
		}

		if remark, err := a.OtherBase(t.Context(), m); err != nil || (remark != "") != (want == 1) {
			t.Errorf("%q: %q %v", base, remark, err)
		}
	}
}

// TestCombineBases: adapters of different bases are combined only where that is allowed, and it is said. Of a rank
// beyond what changes can have, that is said.
func TestCombineBases(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, base := range map[string]string{"a": "base", "b": "sums", "c": "base"} {
		m := openModel(t, filepath.Join(filepath.Dir(nano), base), "cpu", lm.Options{})
		a, err := Train(t.Context(), m, sequences(m.Config().Vocab, 4, 8), Options{
			Kind: "lora", Rank: 2, Steps: 1, StateDir: at("state" + name),
		})
		if err == nil {
			err = a.Save(at(name), false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	for list, want := range map[string]bool{"ac": false, "ab": true, "acb": true} {
		var dirs []string
		for _, name := range strings.Split(list, "") {
			dirs = append(dirs, at(name))
		}
		_, err := Combine(t.Context(), dirs, at("refused"+list), CombineOptions{Method: "tsv_core"})
		if errors.Is(err, ErrOtherBase) != want || err != nil && !want {
			t.Errorf("%s: %v", list, err)
		}
		if want && !strings.Contains(failure.Hint(err), "--allow-other-base") {
			t.Errorf("%s: hint %q", list, failure.Hint(err))
		}

		r, err := Combine(t.Context(), dirs, at("of"+list), CombineOptions{Method: "tsv_core", AllowOtherBase: true})
		if err != nil || strings.Contains(strings.Join(r.Notes, " "), "different bases") != want {
			t.Errorf("%s: %+v %v", list, r, err)
		}
	}

	r, err := Combine(t.Context(), []string{at("a")}, at("cut"), CombineOptions{Method: "svd", Rank: 1})
	if err != nil || r.Rank != 1 || r.Method != "svd" {
		t.Errorf("one adapter cut to rank 1: %+v %v", r, err)
	}

	for method, most := range map[string]string{"svd": "4", "dare_linear_svd": "96"} {
		o := CombineOptions{Method: method, Rank: 1000}
		if method != "svd" {
			o.Density = 1
		}
		r, err = Combine(t.Context(), []string{at("a"), at("c")}, at(method), o)
		if err != nil || !strings.Contains(strings.Join(r.Notes, " "), "1000 is more than the combined changes can "+
			"have, "+most) {
			t.Errorf("%s: %+v %v", method, r, err)
		}
	}
}
