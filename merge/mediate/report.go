package mediate

import (
	"fmt"
	"slices"
)

// ConflictGroup is a tensor, or a group of tensors, and how much the models contradict each other there.
type ConflictGroup struct {
	Name    string `json:"name"`
	Layer   int    `json:"layer"` // -1 outside of layers
	Tensors int    `json:"tensors"`
	Totals
	Measures
	Excess Measures `json:"excess"` // the metrics divided by those of random signs
	// Shift is the length of each model's difference as a fraction of the base's.
	Shift []float64 `json:"shift"`
}

// ConflictReport is how much models contradict each other. Nothing in it depends on the number of threads or on how the
// files are split, but for Seconds.
type ConflictReport struct {
	Version     string          `json:"version"`
	Base        string          `json:"base"`
	Models      []string        `json:"models"`
	Density     float64         `json:"density"`
	Granularity string          `json:"granularity"`
	Baseline    Measures        `json:"baseline"` // of independent random signs
	Groups      []ConflictGroup `json:"groups"`
	Tensors     []ConflictGroup `json:"per_tensor"`
	Whole       ConflictGroup   `json:"whole"` // all tensors
	Skipped     []string        `json:"skipped,omitempty"`
	Warnings    []string        `json:"warnings,omitempty"`
	BytesIn     int64           `json:"bytes_in"`
	// that a GPU counted; the CPU counted the others
	OnDevice int     `json:"tensors_on_device"`
	Advice   *Advice `json:"advice,omitempty"`
	Seconds  float64 `json:"conflict_seconds"`
}

// tally is the counts of a group.
type tally struct {
	place
	*counts
	Members []int // numbers of the tensors, in order
}

// newTally counts nothing yet.
func newTally(name string, layer, models int) *tally {
	return &tally{place: place{Group: name, Layer: layer}, counts: newCounts(models)}
}

// Add adds the counts of a tensor, the member of that number.
func (t *tally) Add(c *counts, member int) {
	t.counts.Add(c)
	t.Members = append(t.Members, member)
}

// row is the counts as a report shows them.
func (t *tally) row(baseline Measures) ConflictGroup {
	m := t.Measures()
	return ConflictGroup{
		Name: t.place.Group, Layer: t.Layer, Tensors: len(t.Members), Totals: t.Totals(), Measures: m,
		Excess: m.Excess(baseline), Shift: t.Norms(),
	}
}

// Warnings tells of differences that are not finite.
func (t *tally) Warnings() []string {
	if t.NonFinite == 0 {
		return nil
	}
	return []string{fmt.Sprintf("differences that are not finite: %d; they count as none", t.NonFinite)}
}

// sortTallies orders groups: what comes before the layers, those in order, what comes after.
func sortTallies(list []*tally) {
	rank := func(g *tally) int {
		switch {
		case g.place.Group == groupBefore:
			return -1
		case g.Layer < 0:
			return 1 << 30
		}
		return g.Layer
	}

	slices.SortStableFunc(list, func(x, y *tally) int { return rank(x) - rank(y) })
}
