package mergecmd

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
)

// ConflictOptions are the flags of conflict.
type ConflictOptions struct {
	Density                   float64
	Granularity, Memory, HTML string
	NonFinite                 bool
}

// checkFile refuses the path of a file beside the report, if there is to be one, where something else lies that would
// be lost, or the report goes. own knows what an earlier run has left.
func checkFile(j *cli.Job, flag, path, what string, own func(path string) bool) error {
	if path == "" {
		return nil
	}

	if err := (cli.Place{Flag: flag, Path: path, What: what, Own: own, Inputs: j.Inputs}).Check(); err != nil {
		return err
	}
	return cli.Apart([2]string{flag, path}, [2]string{"report", j.ReportTo()})
}

// Conflict measures, prints and writes the page.
func Conflict(j *cli.Job, path string, o ConflictOptions) (any, error) {
	threads, err := j.Threads()
	if err != nil {
		return nil, err
	}

	memory, err := cli.Bytes("memory", o.Memory)
	if err != nil {
		return nil, err
	}

	if err := checkFile(j, "html", o.HTML, "a page", report.IsPage); err != nil {
		return nil, err
	}

	r, err := merge.Read(path)
	if err != nil {
		return nil, j.Excerpted(err)
	}

	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	bar := j.ByteBars()
	result, err := mediate.Conflict(j.Ctx, r, mediate.ConflictOptions{
		Threads: threads, Memory: memory, Density: o.Density, Granularity: o.Granularity, AllowNonFinite: o.NonFinite,
		Device:   dev,
		Progress: func(p merge.Progress) { bar.Show("comparing", p.Done, p.Total) },
	})

	bar.End()
	if err != nil {
		return nil, j.Excerpted(err)
	}

	for _, w := range result.Warnings {
		j.Note("warning: %s", w)
	}

	j.Table(measures(result, result.Groups))
	j.Printf("\n%s\n%s\n", conflictFinding(result), result.Advice.Sentence())
	if o.HTML == "" {
		return result, nil
	}

	var page bytes.Buffer
	if err := conflictPage(result).HTML(&page); err != nil {
		return nil, err
	}

	return result, j.Write(o.HTML, page.Bytes())
}

// measures is a row per group, the baseline last.
func measures(r *mediate.ConflictReport, groups []mediate.ConflictGroup) *report.Table {
	t := &report.Table{Columns: report.Columns("group", "elements", "active", "conflicting", "disagree|%.4f",
		"any|%.4f", "coactive|%.4f",
		"total|%.4f", "mass|%.4f", "cosine|%.4f", "excess|%.3f")}
	for _, g := range append(groups[:len(groups):len(groups)], r.Whole) {
		name := mediate.Words(g.Name)
		if name == "" {
			name = "all"
		}
		t.Add(name, g.Elements, g.Active, g.Both, g.Disagree, g.Any, g.Coactive, g.Total, g.Mass, g.Cosine,
			g.Excess.Disagree)
	}

	b, one := r.Baseline, any(1.0)
	if b.Disagree == 0 { // a single model contradicts nobody
		one = nil
	}

	t.Add("random signs", nil, nil, nil, b.Disagree, b.Any, b.Coactive, b.Total, b.Mass, b.Cosine, one)
	t.Note = "active: weights that a model moved much; conflicting: those that two moved in opposite directions, as " +
		"a fraction of the active (any), of those that several moved (coactive), of all (total); disagree, mass: how " +
		"much of the movement goes against the majority, or cancels; cosine: 1 minus that of two differences; " +
		"excess: disagree divided by that of random signs; head: final norm, head and all else behind the layers"
	return t
}

// conflictPage says what was found, shows it layer by layer as multiples of random signs, explains the metrics, and has
// their tables, that of the tensors folded.
func conflictPage(r *mediate.ConflictReport) *report.Page {
	s := report.Section{Title: "What was found", Text: []string{conflictFinding(r)}}
	if r.Advice != nil {
		s.Text = append(s.Text, r.Advice.Sentence())
	}
	s.Facts = []report.Fact{
		{Name: "contradiction, × random signs", Value: fmt.Sprintf("%.2f", r.Whole.Excess.Disagree)},
		{Name: "weights that several models moved", Value: percent(r.Whole.Several, r.Whole.Elements)},
		{Name: "weights moved in opposite directions", Value: percent(r.Whole.Both, r.Whole.Elements)},
	}
	s.Charts = []*report.Chart{strip(r)}
	if c := roleMap(r); c != nil {
		s.Charts = append(s.Charts, c)
	}

	tensors := measures(r, r.Tensors)
	tensors.Title, tensors.Folded = "By tensor", true
	groups := measures(r, r.Groups)
	groups.Title = "By " + r.Granularity
	groups.Folded = len(r.Groups) > manyGroups
	tables := []*report.Table{groups}
	if r.Granularity != "tensor" { // or they would be the same rows twice
		tables = append(tables, tensors)
	}

	return &report.Page{
		Title: "Conflict between models", Subtitle: strings.Join(r.Models, ", ") + " against " + r.Base,
		Sections: []report.Section{s, explained(r), {Title: "All figures", Tables: tables}},
	}
}

// manyGroups is how many rows a table may have that is not folded.
const manyGroups = 12

// percent is a part of a whole.
func percent(n, of int64) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(1, of))) }

// Multiples of random signs that count as much less, and as more, contradiction than chance.
const (
	fewTouch  = 0.5
	agreeing  = 0.95
	opposing  = 1.05
	fighting  = 1.5
	farStands = 1.15 // × all: a layer that is worth naming
)

// conflictFinding says how much the models contradict each other, and whether that is a lot.
func conflictFinding(r *mediate.ConflictReport) string {
	all := r.Whole.Excess.Disagree
	switch {
	case len(r.Models) < 2:
		return "There is one model beside the base, which contradicts nobody; a recipe with more compares them."
	case r.Whole.Active == 0:
		return "The models are the same as the base: nothing was moved."
	}

	var moved []string
	for i, shift := range r.Whole.Shift {
		if shift > 0 {
			moved = append(moved, r.Models[i])
		}
	}
	if len(moved) == 1 && len(r.Whole.Shift) > 1 {
		return fmt.Sprintf("Only %s differs from the base, and contradicts nobody: the others are the base itself.",
			moved[0])
	}
	if alike(r) {
		return "The models are the same: what one has changed, the others have changed in the same way, so that any " +
			"one of them is as good as a merge."
	}

	var verdict string
	switch {
	case all < fewTouch:
		verdict = "little: the models hardly move the same weights in opposite directions, so that a plain average " +
			"or TIES " +
			"keeps most of each"
	case all < agreeing:
		verdict = "less than chance: where they move the same weights they mostly agree"
	case all <= opposing:
		verdict = "as much as unrelated models would: half of the weights that two of them moved cancel in an average"
	case all < fighting:
		verdict = "more than chance: they learned things that exclude each other, and an average loses part of each"
	default:
		verdict = "a lot: they pull against each other, and no average serves all of them"
	}

	text := fmt.Sprintf("The models contradict each other %.2f times as often as random signs would, which is %s.", all,
		verdict)
	var most *mediate.ConflictGroup
	for i := range r.Groups {
		if g := &r.Groups[i]; g.Layer >= 0 && (most == nil || g.Excess.Disagree > most.Excess.Disagree) {
			most = g
		}
	}
	if most != nil && most.Excess.Disagree > farStands*all {
		text += fmt.Sprintf(" Most in %s (%.2f).", most.Name, most.Excess.Disagree)
	}
	return text
}

// alike reports whether all models are the same: their differences from the base have one direction and one length, up
// to the rounding of sums.
func alike(r *mediate.ConflictReport) bool {
	const rounding = 1e-9
	lengths := r.Whole.Shift
	return len(lengths) > 1 && r.Whole.Disagree == 0 && math.Abs(r.Whole.Cosine) < rounding &&
		slices.Max(lengths)-slices.Min(lengths) <= rounding*slices.Max(lengths)
}

// strip is one row: the contradiction in each group, 1 as random signs.
func strip(r *mediate.ConflictReport) *report.Chart {
	c := &report.Chart{
		Title: "Contradiction by layer, × random signs", Kind: report.Cells, X: report.Axis{Label: "layer"},
		Format: "%.2f",
		Note:   "1: as often as random signs. The scale begins at 0.",
	}
	// Of groups within layers the strip has the mean of a layer, weighted by what moved.
	sum, weight := map[int]float64{}, map[int]float64{}
	last, top := -1, 0.0
	for _, g := range r.Groups {
		if g.Layer < 0 {
			continue
		}
		w := float64(max(1, g.Active))
		sum[g.Layer] += w * g.Excess.Disagree
		weight[g.Layer] += w
		last = max(last, g.Layer)
	}

	s := report.Series{Name: "all matrices"}
	for layer := range last + 1 {
		v := math.NaN()
		if weight[layer] > 0 {
			v = sum[layer] / weight[layer]
			top = max(top, v)
		}
		c.Labels = append(c.Labels, fmt.Sprint(layer))
		s.Y = append(s.Y, v)
	}
	c.Series = []report.Series{s}
	c.Scale = [2]float64{0, max(1, top)}
	return c
}

// roleMap is the same for each matrix of the layers: a row for each name that tensors have within them. nil: there is
// nothing to tell apart.
func roleMap(r *mediate.ConflictReport) *report.Chart {
	rows := map[string]int{}
	var list []report.Series
	last, top := -1, 0.0
	for _, g := range r.Tensors {
		last = max(last, g.Layer)
	}
	for _, g := range r.Tensors {
		_, name, ok := strings.Cut(g.Name, fmt.Sprintf(".%d.", g.Layer))
		if g.Layer < 0 || !ok || strings.Contains(name, "norm") {
			continue
		}

		at, known := rows[name]
		if !known {
			at = len(list)
			rows[name] = at
			y := slices.Repeat([]float64{math.NaN()}, last+1)
			list = append(list, report.Series{Name: roleName(name), Y: y})
		}
		list[at].Y[g.Layer] = g.Excess.Disagree
		top = max(top, g.Excess.Disagree)
	}
	if len(list) < 2 || len(list) > maxRoles {
		return nil
	}

	c := &report.Chart{
		Title: "The same, matrix by matrix", Kind: report.Cells, X: report.Axis{Label: "layer"}, Format: "%.2f",
		Series: list, Scale: [2]float64{0, max(1, top)},
	}
	for layer := range last + 1 {
		c.Labels = append(c.Labels, fmt.Sprint(layer))
	}
	return c
}

// maxRoles bounds the rows of a map: experts by the dozen would be a wall.
const maxRoles = 24

// roleName is a tensor's name within its layer, without what all such names have.
func roleName(name string) string {
	name = strings.TrimSuffix(name, ".weight")
	return strings.TrimSuffix(name[strings.LastIndexByte(name, '.')+1:], "_proj")
}

// explained says what the columns of the tables are.
func explained(r *mediate.ConflictReport) report.Section {
	t := &report.Table{
		Columns: report.Columns("metric", "what it is", "random signs|%.3f"),
		Note: fmt.Sprintf("Of each model's difference from the base only the largest %.0f %% of a tensor counts "+
			"(--density), "+
			"but for the cosine. Look at excess first; the others tell why it is high.", 100*r.Density),
	}
	b := r.Baseline
	t.Add("excess", "disagree divided by what random signs give: 1 is chance, below it models agree, above they "+
		"oppose", 1.0)
	t.Add("disagree", "mean over the moved weights of how much of the movement goes against the majority (0 to 1)",
		b.Disagree)
	t.Add("any", "fraction of the moved weights that two models move in opposite directions", b.Any)
	t.Add("coactive", "the same among the weights that at least two models moved", b.Coactive)
	t.Add("total", "the same among all weights", b.Total)
	t.Add("mass", "how much of the movement cancels when the differences are added up", b.Mass)
	t.Add("cosine", "1 − the mean cosine of two differences: 1 is unrelated, below it the same direction", b.Cosine)
	return report.Section{Title: "How to read the figures", Tables: []*report.Table{t}}
}
