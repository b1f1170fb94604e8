package engine

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/lm/tokenizer"
)

func TestMain(m *testing.M) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "rapid.seed" })
	if !set {
		flag.Set("rapid.seed", "1")
	}
	os.Exit(m.Run())
}

func encoder(t *testing.T) *Encoder {
	t.Helper()
	tok, err := tokenizer.Load("../../../../testdata/nano/base")
	if err != nil {
		t.Fatal(err)
	}

	e, err := NewEncoder(tok, nil)
	if err != nil {
		t.Fatal(err)
	}

	return e
}

// The windows of lm-evaluation-harness for 34 tokens and a context of 10: the last one has as much context as fits.
func TestWindows(t *testing.T) {
	e := encoder(t)
	text := ""
	for n := 0; n < 34; {
		text += "a "
		ids, err := e.encode(text)
		if err != nil {
			t.Fatal(err)
		}
		n = len(ids)
	}

	all, windows, err := e.Windows(text, 10)
	if err != nil {
		t.Fatal(err)
	}

	if len(all) != 34 {
		t.Skipf("the tokenizer gives %d tokens", len(all))
	}

	want := [][2]int{{-1, 0}, {9, 10}, {19, 20}, {23, 30}} // first token that is seen, and that is predicted
	for i, w := range windows {
		last := min(want[i][1]+10, 34)
		seen := append([]int32{e.Prefix}, all[:last-1]...)[want[i][0]+1:]
		if !slices.Equal(w.IDs, seen) || !slices.Equal(w.Target, all[want[i][1]:last]) {
			t.Errorf("window %d: %d seen, %d predicted", i, len(w.IDs), len(w.Target))
		}
	}

	if len(windows) != 4 {
		t.Errorf("%d windows", len(windows))
	}
	if _, _, err := e.Windows("", 10); !errors.Is(err, ErrNoTokens) {
		t.Error(err)
	}
}

// White space at the end of a context belongs to what follows, and the two are encoded together.
func TestPair(t *testing.T) {
	e := encoder(t)
	ctx, cont, err := e.Pair("the swan \n", "and")
	if err != nil {
		t.Fatal(err)
	}

	whole, err := e.encode("the swan \nand")
	if err != nil || !slices.Equal(slices.Concat(ctx, cont), whole) {
		t.Errorf("%v + %v, want %v", ctx, cont, whole)
	}

	if ctx, _, err = e.Pair("", " a"); err != nil || !slices.Equal(ctx, []int32{e.Prefix}) {
		t.Errorf("%v %v", ctx, err)
	}
	if _, _, err = e.Pair("x", ""); !errors.Is(err, ErrNoTokens) {
		t.Error(err)
	}
}

func TestFit(t *testing.T) {
	s, err := Fit([]int32{1, 2, 3, 4}, []int32{5, 6}, 3)
	if err != nil || fmt.Sprint(s.IDs, s.Target, s.Cut, s.Before) != "[3 4 5] [5 6] 2 4" {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := Fit([]int32{1}, []int32{2, 3, 4}, 2); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}

// TestFitKeepsNothingElse: a sequence holds its own tokens alone. The sequences of a whole task are in memory at once,
// and each would otherwise keep the encoding that it was cut from.
func TestFitKeepsNothingElse(t *testing.T) {
	whole := []int32{1, 2, 3, 4, 5, 6}
	s, err := Fit(whole[:4], whole[4:], 10)
	if err != nil {
		t.Fatal(err)
	}

	clear(whole)
	if fmt.Sprint(s.IDs, s.Target) != "[1 2 3 4 5] [5 6]" {
		t.Errorf("%v %v are parts of what they were cut from", s.IDs, s.Target)
	}
}

// Stops cut in the order of the list, empty ones never.
func TestStops(t *testing.T) {
	for _, c := range []struct {
		text string
		stop []string
		want string
	}{
		{"xab", []string{"ab", "xa"}, "x"},
		{"xab", []string{"xa", "ab"}, ""},
		{"one\n\ntwo", []string{"", "\n\n"}, "one"},
		{"none", []string{"z"}, "none"},
	} {
		if got := CutAtStops(c.text, c.stop); got != c.want {
			t.Errorf("%q %q: %q, want %q", c.text, c.stop, got, c.want)
		}
	}
}

// Whatever sequences share, every scored position is the row whose branch ends with what comes before it; each
// sequence is in one pass; and the order in which sequences come does not show in the passes.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seq := rapid.SliceOfN(rapid.Int32Range(0, 2), 1, 90)
		seqs := rapid.SliceOfN(seq, 1, 12).Draw(t, "sequences")
		budget := rapid.IntRange(1, 200).Draw(t, "budget")
		share := rapid.Bool().Draw(t, "share")

		jobs := make([]job, len(seqs))
		for i, ids := range seqs {
			n := rapid.IntRange(1, len(ids)).Draw(t, "scored")
			jobs[i] = job{Sequence: Sequence{IDs: ids, Target: make([]int32, n)}, index: i}
		}

		seen := make([]bool, len(seqs))
		gone := rapid.SliceOfN(rapid.Bool(), len(seqs), len(seqs)).Draw(t, "known")
		copy(seen, gone)

		for _, b := range plan(slices.Clone(jobs), budget, share) {
			if b = missing(b, func(i int) bool { return gone[i] }); len(b.jobs) == 0 {
				continue
			}

			tr := grow(b, share)
			paths := paths(tr, b.jobs[0].IDs[:b.shared])
			for i, j := range b.jobs {
				if seen[j.index] || !slices.Equal(j.IDs[:b.shared], b.jobs[0].IDs[:b.shared]) || b.shared > j.start() {
					t.Fatalf("sequence %d is in two passes, or does not share the beginning of %d", j.index, b.shared)
				}

				seen[j.index] = true

				for k, row := range tr.rows[i] {
					if want := j.IDs[:j.start()+k+1]; !slices.Equal(paths[row], want) {
						t.Fatalf("sequence %d, position %d: row %d is %v, want %v", j.index, k, row, paths[row], want)
					}
				}
			}
		}

		if slices.Contains(seen, false) {
			t.Fatal("a sequence is in no pass")
		}
	})
}

// paths lists for every row of a tree the tokens up to it.
func paths(t *tree, root []int32) [][]int32 {
	var out, ends [][]int32
	for _, b := range t.branches {
		path := root
		if b.Parent >= 0 {
			path = ends[b.Parent]
		}

		for _, id := range b.IDs {
			path = append(path[:len(path):len(path)], id)
			out = append(out, path)
		}

		ends = append(ends, path)
	}

	return out
}
