package fitness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// fake answers tasks from a table: for each formula its values on the rungs.
func fake(values map[string][3]float64, asked map[Rung]int) Ask {
	return func(_ context.Context, tasks []Task) ([]Measure, error) {
		var out []Measure
		for _, t := range tasks {
			at := map[Rung]int{Layers: 0, Few: 1, Full: 2}[t.Rung]
			v, ok := values[t.Metric]
			switch {
			case t.Metric == Dense:
				out = append(out, Measure{Values: []float64{0}})
			case t.Metric == Wanda:
				out = append(out, Measure{Values: []float64{1}})
			case !ok:
				return nil, fmt.Errorf("%w: %s", ErrTask, t.Metric)
			case v[at] < 0:
				out = append(out, Measure{Rejected: "not finite"})
			default:
				out = append(out, Measure{Values: []float64{v[at]}})
			}

			asked[t.Rung]++
		}

		return out, nil
	}
}

func batchOf(t *testing.T, formulas ...string) []*gp.Expr {
	t.Helper()
	var list []*gp.Expr
	for _, f := range formulas {
		e, err := gp.Parse(f)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}

	return list
}

// TestHalving: who goes on, who is refused, and the qualities of those who stay behind.
func TestHalving(t *testing.T) {
	values := map[string][3]float64{
		"W*G": {0.1, 0.5, 0.9}, "W*X": {0.2, 0.4, 0.7}, "W + G": {0.3, 0.6, 0}, "W + X": {0.4, -1, 0},
		"W - G": {0.5, 0, 0}, "W - X": {-1, 0, 0},
		"W/G": {0.9, 0, 0},
	}

	table := map[string][3]float64{}
	var formulas []string
	for _, f := range []string{"W/G", "W - X", "W - G", "W + X", "W + G", "W*X", "W*G"} {
		formulas = append(formulas, f)
		table[prune.FormulaPrefix+f] = values[f]
	}

	asked := map[Rung]int{}
	l, err := NewLadder(t.Context(), "j", fake(table, asked), LadderOptions{Keep: 0.6, Least: 2})
	if err != nil {
		t.Fatal(err)
	}

	clear(asked)
	out, err := l.EvaluateBatch(t.Context(), batchOf(t, formulas...))
	if err != nil {
		t.Fatal(err)
	}

	// 6 are usable on the first rung, 4 of them go on, one of these is refused, and 2 of the 3 left go on.
	if asked[Layers] != 7 || asked[Few] != 4 || asked[Full] != 2 {
		t.Errorf("asked %v", asked)
	}

	// W + G stays 0.1 behind the last that went on from its rung, whose quality is 0.9; W - G and W / G 0.2 and
	// 0.6 behind W + G.
	for i, want := range []float64{1.6, -1, 1.2, -1, 1.0, 0.7, 0.9} {
		switch {
		case want < 0 && out[i].Rejected == "":
			t.Errorf("%s is not refused", formulas[i])
		case want > 0 && (out[i].Rejected != "" || math.Abs(out[i].Quality-want) > 1e-12):
			t.Errorf("%s: %+v, want %g", formulas[i], out[i], want)
		}
	}

	var c Climb
	if err := json.Unmarshal(out[5].Detail, &c); err != nil || *c.Layers != 0.2 || *c.Few != 0.4 || *c.Full != 0.7 {
		t.Errorf("%s: %v", out[5].Detail, err)
	}
	if string(out[2].Detail) != `{"layers":0.5}` {
		t.Errorf("%s", out[2].Detail)
	}
	if _, err := l.Evaluate(t.Context(), batchOf(t, "W - X")[0]); !errors.Is(err, gp.ErrRejected) {
		t.Error(err)
	}
	if _, err := l.Evaluate(t.Context(), batchOf(t, "W")[0]); !errors.Is(err, ErrTask) {
		t.Error(err)
	}
}

// TestDivide: the sets are disjoint, complete and drawn by the seed; what they share is found wherever it begins.
func TestDivide(t *testing.T) {
	var ids [][]int32
	for i := range 40 {
		w := make([]int32, 100)
		for j := range w {
			w[j] = int32(100*i + j)
		}
		ids = append(ids, w)
	}

	w := corpus.New(ids, "text")
	sets, err := Divide(w, 20, 8, 12, 1)
	if err != nil {
		t.Fatal(err)
	}

	seen := map[int32]bool{}
	for k, n := range []int{20, 8, 12} {
		if len(sets[k].IDs) != n || sets[k].Hash == "" {
			t.Errorf("set %d: %d windows", k, len(sets[k].IDs))
		}

		for _, ids := range sets[k].IDs {
			if seen[ids[0]] {
				t.Errorf("window %d is in two sets", ids[0]/100)
			}
			seen[ids[0]] = true
		}
	}

	again, _ := Divide(w, 20, 8, 12, 1)
	other, _ := Divide(w, 20, 8, 12, 2)
	if again[0].Hash != sets[0].Hash || other[0].Hash == sets[0].Hash {
		t.Error("the seed does not decide")
	}
	if _, err := Divide(w, 20, 8, 13, 1); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}
	if s := Overlap(sets[0], sets[1]); s.Share != 0 || s.Windows != 0 || s.Run != 64 {
		t.Errorf("%+v", s)
	}

	shifted := corpus.New([][]int32{append(append([]int32{}, ids[3][30:]...), ids[4][:30]...), ids[7]}, "shifted")
	if s := Overlap(shifted, w); s.Windows != 1 || math.Abs(s.Share-float64(37+7)/74) > 1e-12 {
		t.Errorf("%+v", s)
	}
}
