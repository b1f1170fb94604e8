package conflict

import (
	"fmt"
	"slices"
)

// Group is a tensor, or a group of tensors, and how much the models contradict each other there.
type Group struct {
	Name    string `json:"name"`
	Layer   int    `json:"layer"` // -1 outside of layers
	Tensors int    `json:"tensors"`
	Totals
	Measures
	Excess Measures `json:"excess"` // the metrics divided by those of random signs
	// Shift is the length of each model's difference as a share of the base's.
	Shift []float64 `json:"shift"`
}

// Report is how much models contradict each other. Nothing in it depends on the number of workers or on how the files
// are split, but for Seconds.
type Report struct {
	Version     string   `json:"version"`
	Base        string   `json:"base"`
	Models      []string `json:"models"`
	Density     float64  `json:"density"`
	Granularity string   `json:"granularity"`
	Baseline    Measures `json:"baseline"` // of independent random signs
	Groups      []Group  `json:"groups"`
	Tensors     []Group  `json:"per_tensor"`
	Whole       Group    `json:"whole"` // all tensors
	Skipped     []string `json:"skipped,omitempty"`
	Warnings    []string `json:"warnings,omitempty"`
	BytesIn     int64    `json:"bytes_in"`
	// that a graphics processor counted; the others were counted on the host
	There   int     `json:"tensors_on_device"`
	Seconds float64 `json:"conflict_seconds"`
}

// Tally is the counts of a group.
type Tally struct {
	Place
	*Counts
	Members []int // numbers of the tensors, in order
}

// NewTally counts nothing yet.
func NewTally(name string, layer, models int) *Tally {
	return &Tally{Place: Place{Group: name, Layer: layer}, Counts: NewCounts(models)}
}

// Add adds the counts of a tensor, the member of that number.
func (t *Tally) Add(c *Counts, member int) {
	t.Counts.Add(c)
	t.Members = append(t.Members, member)
}

// Group is the counts as a report shows them.
func (t *Tally) Group(baseline Measures) Group {
	m := t.Measures()
	return Group{
		Name: t.Place.Group, Layer: t.Layer, Tensors: len(t.Members), Totals: t.Totals(), Measures: m,
		Excess: m.Excess(baseline), Shift: t.Norms(),
	}
}

// Warnings tells of differences that are not finite.
func (t *Tally) Warnings() []string {
	if t.NonFinite == 0 {
		return nil
	}
	return []string{fmt.Sprintf("differences that are not finite: %d; they count as none", t.NonFinite)}
}

// Sort orders groups: what comes before the layers, those in order, what comes after.
func Sort(list []*Tally) {
	rank := func(g *Tally) int {
		switch {
		case g.Place.Group == Before:
			return -1
		case g.Layer < 0:
			return 1 << 30
		}
		return g.Layer
	}

	slices.SortStableFunc(list, func(x, y *Tally) int { return rank(x) - rank(y) })
}
