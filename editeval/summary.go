package editeval

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/stats"
)

// summarize says in sentences what the figures say.
func (r *Report) summarize() []string {
	var out []string
	for i := range r.Models {
		m := &r.Models[i]
		var own []string
		own = append(own, m.failed(), m.kept(), m.generalise(), m.neighbours())

		own = append(own, m.faded(r.Counts)...)
		own = append(own, m.abilities(r.Counts)...)
		own = append(own, m.collapsed()...)
		for _, s := range own {
			if s != "" && len(r.Models) > 1 {
				s = m.Name + ": " + s
			}
			if s != "" {
				out = append(out, s)
			}
		}
	}

	if s := r.compared(); s != "" {
		out = append(out, s)
	}

	return out
}

// last are the rows at the largest count, of all editors in the order of the plan.
func (m *ModelReport) last() []Row {
	n := 0
	for _, r := range m.Rows {
		n = max(n, r.Edits)
	}
	return slices.DeleteFunc(slices.Clone(m.Rows), func(r Row) bool { return r.Edits != n })
}

// of are the rows of an editor, by count.
func (m *ModelReport) of(editor string) []Row {
	return slices.DeleteFunc(slices.Clone(m.Rows), func(r Row) bool { return r.Editor != editor })
}

// editors are the editors' names in the order of the plan.
func (m *ModelReport) editors() []string {
	var names []string
	for _, r := range m.last() {
		names = append(names, r.Editor)
	}
	return names
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

// nothing reports whether an editor is one whose edits have all diverged: its model is the unedited one.
func (r *Row) nothing() bool { return r.Edits > 0 && r.Failed >= r.Edits*r.Seeds }

// failed counts the edits that were not made.
func (m *ModelReport) failed() string {
	var parts, none []string
	for _, r := range m.last() {
		if r.Failed > 0 {
			parts = append(parts, fmt.Sprintf("%d of %d with %s", r.Failed, r.Edits*r.Seeds, r.Editor))
		}
		if r.nothing() {
			none = append(none, r.Editor)
		}
	}

	if len(parts) == 0 {
		return ""
	}

	text := fmt.Sprintf("Edits that were left out, because their optimisation diverged, and that count as edits "+
		"that do not hold: %s.", strings.Join(parts, ", "))
	if len(none) > 0 {
		text += " What is said of " + listed(none) + " is said of the unedited model: nothing was written."
	}

	return text
}

// kept ranks the editors by what holds in the end.
func (m *ModelReport) kept() string {
	rows := m.last()
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.Held.Mean, a.Held.Mean) })

	var parts []string
	for _, r := range rows {
		parts = append(parts,
			fmt.Sprintf("%s %s (%.0f to %.0f)", r.Editor, percent(r.Held.Mean), 100*r.Held.Low, 100*r.Held.High))
	}

	text := fmt.Sprintf("After %s, with 95 %% intervals, these shares of all edits hold: %s.",
		label(rows[0].Edits, "edit"), strings.Join(parts, ", "))
	var level []string
	for _, r := range rows[1:] {
		if r.Held.High >= rows[0].Held.Low {
			level = append(level, r.Editor)
		}
	}

	switch {
	case len(rows) == 1:
		return text
	case len(level) == 0:
		return text + " " + rows[0].Editor + " keeps most, clearly."
	}

	return fmt.Sprintf("%s The intervals of %s overlap with that of %s.", text, listed(level), rows[0].Editor)
}

// generalise says who answers other wordings.
func (m *ModelReport) generalise() string {
	base := float64(m.Rows[0].Paraphrase)
	var parts, none []string
	for _, r := range m.last() {
		v := float64(r.Paraphrase)
		if math.IsNaN(v) {
			return ""
		}

		parts = append(parts, fmt.Sprintf("%s %s", r.Editor, percent(v)))
		if v <= base+0.02 && !r.nothing() {
			none = append(none, r.Editor)
		}
	}

	text := fmt.Sprintf("In other words than the edit's, the new answer is preferred to the old one in %s of "+
		"prompts before any edit, and then: %s.", percent(base), strings.Join(parts, ", "))
	if len(none) > 0 {
		text += " What " + listed(none) + " wrote does not carry over to other words."
	}

	return text
}

// neighbours says what became of other subjects.
func (m *ModelReport) neighbours() string {
	var parts []string
	for _, r := range m.last() {
		if math.IsNaN(float64(r.Neighborhood)) {
			return ""
		}
		parts = append(parts, fmt.Sprintf("%s %s", r.Editor, percent(float64(r.Neighborhood))))
	}
	return fmt.Sprintf("Prompts about other subjects keep their old answer in %s of cases before any edit, "+
		"and then: %s.", percent(float64(m.Rows[0].Neighborhood)), strings.Join(parts, ", "))
}

// faded says whether early edits fade as later ones arrive.
func (m *ModelReport) faded(counts []int) []string {
	var fade, unclear, keep []string
	for _, name := range m.editors() {
		var early *Fade // the worst of the counts with at least ten edits, if there are any
		lost, gained := 0, 0
		for i := range m.Sequences {
			q := &m.Sequences[i]
			if q.Editor != name || q.Batch == whole {
				continue
			}

			for k := range q.Fading {
				f := &q.Fading[k]
				few := early != nil && min(early.Edits, firstEdits) < min(f.Edits, firstEdits)
				if early == nil || few ||
					f.Edits >= min(early.Edits, firstEdits) && f.Then-f.Last > early.Then-early.Last {
					early = f
				}
			}

			if n := len(q.Fading); n > 0 {
				lost, gained = lost+q.Fading[n-1].Lost, gained+q.Fading[n-1].Gained
			}
		}

		if early == nil {
			continue
		}
		if early.Then == 0 && early.Last == 0 && lost+gained == 0 {
			continue // none held, then or later: there is nothing to lose
		}

		p := stats.McNemar(lost, gained)
		text := fmt.Sprintf("%s (of the first %d, %s held then and %s at last; of the first %d, %d were lost by "+
			"then and %d came back, p = %.2g)",
			name, early.Edits, percent(early.Then), percent(early.Last), counts[len(counts)-2], lost, gained, p)

		switch {
		case lost == 0 && gained == 0:
			keep = append(keep, name)
		case lost > gained && p < Alpha:
			fade = append(fade, text)
		default:
			unclear = append(unclear, text)
		}
	}

	var out []string
	if len(fade) > 0 {
		out = append(out, fmt.Sprintf("Early edits fade as later ones arrive, up to %d: %s.", counts[len(counts)-1],
			strings.Join(fade, "; ")))
	}

	if len(unclear) > 0 {
		out = append(out, fmt.Sprintf("That more edits are lost to later ones than come back is not certain: %s.",
			strings.Join(unclear, "; ")))
	}

	if len(keep) > 0 {
		out = append(out, "No edit is lost to later ones by "+listed(keep)+".")
	}

	return out
}

// abilities says, task by task, who lost it and when, in the order in which they are lost.
func (m *ModelReport) abilities(counts []int) []string {
	names := sortedKeys(m.Rows[0].Abilities)
	type course struct {
		name  string
		text  string
		first float64 // mean over editors of the place of the first count with a loss
	}

	var list []course
	for _, name := range names {
		c := course{name: name}
		base := m.Rows[0].Abilities[name]

		var lost, safe []string
		for _, ed := range m.editors() {
			at := len(counts)
			rows := m.of(ed)
			for i := len(rows) - 1; i >= 0 && 2*rows[i].Abilities[name].Lost > rows[i].Seeds; i-- {
				at = i
			}

			c.first += float64(at)
			if rows[len(rows)-1].nothing() {
				continue
			}

			if at == len(counts) {
				safe = append(safe, ed)
				continue
			}

			lost = append(lost, fmt.Sprintf("%s from %s on (%.3g, and %.3g at last)", ed, label(rows[at].Edits, "edit"),
				float64(rows[at].Abilities[name].Value), float64(rows[len(rows)-1].Abilities[name].Value)))
		}

		switch {
		case len(lost)+len(safe) == 0:
			c.text = fmt.Sprintf("%s (%s) is %.3g before any edit; no editor has written anything.", name, base.Metric,
				float64(base.Value))
		case len(lost) == 0:
			c.text = fmt.Sprintf("%s (%s) is %.3g before any edit, and is not lost significantly by any editor.", name,
				base.Metric, float64(base.Value))
		case len(safe) == 0:
			c.text = fmt.Sprintf("%s (%s) is %.3g before any edit, and is significantly worse with %s.", name,
				base.Metric, float64(base.Value), strings.Join(lost, ", "))
		default:
			c.text = fmt.Sprintf("%s (%s) is %.3g before any edit, and is significantly worse with %s; not with %s.",
				name, base.Metric, float64(base.Value), strings.Join(lost, ", "), listed(safe))
		}

		list = append(list, c)
	}

	slices.SortStableFunc(list, func(a, b course) int { return cmp.Compare(a.first, b.first) })
	var out []string
	for _, c := range list {
		out = append(out, c.text)
	}
	if len(list) > 1 {
		out = append(out, m.losses(names))
	}

	return out
}

// losses ranks the tasks by what is lost of them in the end, over all editors.
func (m *ModelReport) losses(names []string) string {
	type loss struct {
		text string
		part float64 // of the figure
	}

	var list []loss
	for _, name := range names {
		base := m.Rows[0].Abilities[name]
		sum, rows := 0.0, m.last()
		for _, r := range rows {
			ratio := float64(r.Abilities[name].Value) / float64(base.Value)
			if !base.HigherIsBetter {
				ratio = math.Log(ratio)
			}
			sum += ratio / float64(len(rows))
		}

		l := loss{part: 1 - sum, text: fmt.Sprintf("%s loses %s of its %s", name, percent(1-sum), base.Metric)}
		if sum > 1 {
			l.text = fmt.Sprintf("%s gains %s", name, percent(sum-1))
		}

		if !base.HigherIsBetter {
			l = loss{
				part: 1 - math.Exp(-sum),
				text: fmt.Sprintf("the %s of %s is %.3g times what it was", base.Metric, name, math.Exp(sum)),
			}
		}

		if !math.IsNaN(l.part) && !math.IsInf(l.part, 0) {
			list = append(list, l)
		}
	}

	slices.SortStableFunc(list, func(a, b loss) int { return cmp.Compare(b.part, a.part) })
	var parts []string
	for _, l := range list {
		parts = append(parts, l.text)
	}
	switch {
	case len(parts) == 0:
		return ""
	case list[0].part < 0.005: // less than the figures show
		return fmt.Sprintf("Over all editors and after %s, nothing of these is lost.",
			label(m.last()[0].Edits, "edit"))
	}

	return fmt.Sprintf("Over all editors and after %s, the largest loss first: %s.", label(m.last()[0].Edits, "edit"),
		strings.Join(parts, ", "))
}

// collapsed lists signs that the unedited model does not show.
func (m *ModelReport) collapsed() []string {
	var out []string
	for _, ed := range m.editors() {
		for _, r := range m.of(ed) {
			var fresh []string
			for _, task := range sortedKeys(r.Signs) {
				if len(m.BaseSigns[task]) < len(r.Signs[task]) {
					fresh = append(fresh, fmt.Sprintf("%s: %s", task, strings.Join(r.Signs[task], "; ")))
				}
			}

			if len(fresh) > 0 {
				out = append(out, fmt.Sprintf("Signs of a collapse with %s from %s on, which the unedited model "+
					"does not show: %s.", ed, label(r.Edits, "edit"), strings.Join(fresh, ". ")))
				break
			}
		}
	}

	return out
}

// compared puts the models beside each other.
func (r *Report) compared() string {
	if len(r.Models) < 2 {
		return ""
	}

	var parts []string
	for _, ed := range r.Models[0].editors() {
		var one []string
		for i := range r.Models {
			for _, row := range r.Models[i].last() {
				if row.Editor == ed {
					one = append(one, fmt.Sprintf("%s %s (%.0f to %.0f)", r.Models[i].Name, percent(row.Held.Mean),
						100*row.Held.Low, 100*row.Held.High))
				}
			}
		}

		parts = append(parts, fmt.Sprintf("%s on %s", ed, strings.Join(one, ", ")))
	}

	return fmt.Sprintf("Edits that hold after %s, model by model: %s.", label(r.Counts[len(r.Counts)-1], "edit"),
		strings.Join(parts, "; "))
}
