package editeval

import (
	"math"
	"slices"

	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/stats"
)

// pooled makes one figure of a group of tasks, such as MMLU, of each metric that all its tasks have and that says
// right or wrong of every document. A study asks each of many small tasks a few questions: taken one by one they tell
// nothing, and the adjustment of their tests hides what is lost elsewhere. Tasks that cannot be put together stay as
// they are.
func pooled(group string, members []string, rows []task.Pair) []task.Pair {
	type column struct{ metric, filter string }
	byColumn := map[column][]task.Pair{}
	var order []column
	for _, r := range rows {
		c := column{r.Metric, r.Filter}
		if byColumn[c] == nil {
			order = append(order, c)
		}
		byColumn[c] = append(byColumn[c], r)
	}

	var out []task.Pair
	for _, c := range order {
		list := byColumn[c]
		other := slices.ContainsFunc(list, func(r task.Pair) bool { return r.Test != "mcnemar" })
		if len(list) == len(members) && !other {
			out = append(out, pool(group, list))
		}
	}
	if len(out) == 0 {
		return rows
	}
	return out
}

// pool counts the documents of all tasks as one.
func pool(group string, list []task.Pair) task.Pair {
	p := task.Pair{
		Task: group, Filter: list[0].Filter, Metric: list[0].Metric, HigherIsBetter: list[0].HigherIsBetter,
	}
	p.Test = "mcnemar"
	for _, r := range list {
		p.N += r.N
		p.OnlyA += r.OnlyA
		p.OnlyB += r.OnlyB
		p.Unpaired += r.Unpaired
		p.A += r.A * float64(r.N)
		p.B += r.B * float64(r.N)
	}

	n := float64(p.N)
	p.A /= n
	p.B /= n
	p.Difference = p.B - p.A
	p.P = stats.McNemar(p.OnlyA, p.OnlyB)

	// Of differences that are -1, 0 or 1.
	changed := float64(p.OnlyA + p.OnlyB)
	p.Stderr = math.Sqrt(max(0, changed/n-p.Difference*p.Difference) / max(1, n-1))
	p.Low, p.High = p.Difference-1.96*p.Stderr, p.Difference+1.96*p.Stderr
	return p
}
