package editeval

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/stats"
)

// TestPooled: the figure of a group is that of all its documents, and its test that of all pairs; a group with another
// kind of metric stays as it is.
func TestPooled(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var rows []task.Pair
	var diffs []float64
	var members []string
	var before, after, lost, gained int
	for k := range 5 {
		p := task.Pair{Task: string(rune('a' + k)), Metric: "acc", Filter: "none", HigherIsBetter: true}
		p.Test = "mcnemar"
		for range 3 + k {
			x, y := r.IntN(2), r.IntN(2)
			p.N++
			p.A, p.B = p.A+float64(x), p.B+float64(y)
			before, after = before+x, after+y
			diffs = append(diffs, float64(y-x))
			switch {
			case x > y:
				p.OnlyA++
				lost++
			case y > x:
				p.OnlyB++
				gained++
			}
		}
		p.A, p.B = p.A/float64(p.N), p.B/float64(p.N)
		rows, members = append(rows, p), append(members, p.Task)
	}

	list := pooled("all", members, rows)
	if len(list) != 1 {
		t.Fatalf("%+v", list)
	}
	p, n := list[0], len(diffs)
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-12 {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	near("A", p.A, float64(before)/float64(n))
	near("B", p.B, float64(after)/float64(n))
	near("p", p.P, stats.McNemar(lost, gained))
	near("the error", p.Stderr, stats.Deviation(diffs)/math.Sqrt(float64(n)))
	if p.N != n || p.Task != "all" || p.OnlyA != lost || p.OnlyB != gained {
		t.Errorf("%+v", p)
	}

	rows[2].Test = "bootstrap"
	if got := pooled("all", members, rows); !reflect.DeepEqual(got, rows) {
		t.Errorf("%+v", got)
	}
	if got := pooled("all", append(members, "other"), rows); !reflect.DeepEqual(got, rows) {
		t.Errorf("%+v", got)
	}
}
