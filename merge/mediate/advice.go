package mediate

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
	"github.com/modelcompress/compress/safetensors"
)

// Advice is what mediate would do with the groups of a [ConflictReport], and what that would store.
type Advice struct {
	Average []string `json:"average"` // groups in which one set of weights serves all
	Route   []string `json:"route"`   // groups in which every model keeps its own difference
	Keep    string   `json:"keep"`    // of a difference, as a recipe writes it
	Models  int64    `json:"models_bytes"`
	Bytes   int64    `json:"mediated_bytes"`   // dense model and experts, at most
	AllIn   int64    `json:"all_routed_bytes"` // the same if every layer were routed

	layers bool // groups are whole layers
	alone  bool // at most one model differs from the base
}

// advised are the settings of a recipe that has none of mediate: its rule, and codes of three bits, which lose less for
// their size than the largest differences do.
func advised() (rule, experts.Keep) {
	return rule{Name: "sigma", Value: 0.5}, experts.Keep{Kind: "bits", Value: 3}
}

// advise decides about groups as a merge would: by the recipe's own settings, if it is one of mediate.
func (a *analysis) advise(spec *recipe.Mediate, granularity string) (*Advice, error) {
	by, keep := advised()
	metric, embeddings := "disagree", false
	if spec != nil {
		by = rule{
			Name: spec.Select.Rule, Value: spec.Select.Value, Bytes: spec.Select.Bytes, Layers: spec.Select.Layers,
		}
		keep, metric = experts.Keep{Kind: spec.Keep.Kind, Value: spec.Keep.Value}, spec.Metric
		embeddings = spec.RouteEmbeddings
	}

	out := &Advice{Keep: keptAs(keep), layers: granularity == "layer"}
	var dense int64
	for i := range a.w.Plan.Tensors {
		t := &a.w.Plan.Tensors[i]
		dense += safetensors.Info{Shape: t.Shape}.Elements() * int64(t.DType.Bits()) / 8
	}

	groups := a.grouped(granularity)
	var list []candidate
	for _, g := range groups {
		d, _ := g.Measures().Of(metric)
		c := candidate{Conflict: d, Layer: g.Layer, Bytes: a.bytes(g, keep)}
		if g.Layer >= 0 || embeddings {
			list = append(list, c)
			out.AllIn += c.Bytes
		}
	}

	if by.Name == "budget" {
		by.Bytes -= int64(len(a.inputs)) * fileOverhead
	}
	chosen, err := by.Choose(list)
	if err != nil {
		return nil, err
	}

	moved := map[int]bool{}
	for i := range a.tensors {
		for m := range a.inputs {
			if c := a.counts[i]; c.Gram[m*c.Models+m] != 0 {
				moved[m] = true
			}
		}
	}
	out.alone = len(moved) < 2

	n := 0
	for _, g := range groups {
		route := false
		if g.Layer >= 0 || embeddings {
			// A single model contradicts nobody.
			route = chosen[n] && len(a.inputs) > 1
			if route {
				out.Bytes += list[n].Bytes
			}
			n++
		}
		if route {
			out.Route = append(out.Route, g.place.Group)
		} else {
			out.Average = append(out.Average, g.place.Group)
		}
	}

	out.Models, out.Bytes, out.AllIn = int64(len(a.inputs))*dense, dense+out.Bytes, dense+out.AllIn
	return out, nil
}

// bytes is the most that the models' own differences take for a group; tensors that none of them has changed are free.
func (a *analysis) bytes(g *tally, keep experts.Keep) (sum int64) {
	for _, i := range g.Members {
		t := &a.w.Plan.Tensors[a.tensors[i]]
		for m := range a.inputs {
			if c := a.counts[i]; c.Gram[m*c.Models+m] != 0 {
				sum += keep.Bound(t.Name, t.Shape, t.DType)
			}
		}
	}
	return sum
}

// keptAs is a rule as a recipe writes it.
func keptAs(k experts.Keep) string {
	switch k.Kind {
	case "magnitude":
		return fmt.Sprintf("keep: %v", k.Value)
	case "sign1":
		return "keep: sign1"
	}
	return fmt.Sprintf("keep: {%s: %v}", k.Kind, k.Value)
}

// Sentence says in one sentence which groups to average, which to route, and what that takes.
func (a *Advice) Sentence() string {
	share := func(n int64) string {
		return fmt.Sprintf("%s (%.0f %%)", size(n), 100*float64(n)/float64(max(1, a.Models)))
	}
	if a.alone {
		return "There is nothing to average or to route: two models or more have to differ from the base."
	}
	all := fmt.Sprintf("; with every layer routed %s", share(a.AllIn))
	if len(a.Route) == 0 {
		return fmt.Sprintf("Average everything: no group stands out, and one model of %s serves all, where the models "+
			"take %s%s (%s).", size(a.Bytes), size(a.Models), all, a.Keep)
	}

	what := "Route everything"
	if len(a.Average) > 0 {
		what = fmt.Sprintf("Average %s, and route %s", a.ranges(a.Average), a.ranges(a.Route))
	} else {
		all = ""
	}
	return fmt.Sprintf("%s: mediate would take %s at most of the %s that the models take%s (%s).", what,
		share(a.Bytes), size(a.Models), all, a.Keep)
}

// size writes bytes as the program's tables do.
func size(n int64) string {
	for _, u := range []struct {
		at   int64
		unit string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= u.at {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.at)), ".0") + " " + u.unit
		}
	}
	return fmt.Sprintf("%d B", n)
}

// Most parts that a sentence names one by one; of more it says how many.
const mostNamed = 12

// Words is what a group of a [ConflictReport] is called in sentences and tables: "embeddings" and "head" for the groups
// of the tensors before and after the layers, and its name for all others.
func Words(group string) string {
	switch group {
	case groupBefore:
		return "embeddings"
	case groupAfter:
		return "head"
	}
	return group
}

// ranges lists groups, neighbouring layers as one range: "the embeddings, layers 0 to 3, layer 5".
func (a *Advice) ranges(names []string) string {
	var parts []string
	for i := 0; i < len(names); {
		first, ok := layerOf(names[i])
		last, j := first, i+1
		for ; ok && a.layers && j < len(names); j++ {
			if n, yes := layerOf(names[j]); !yes || n != last+1 {
				break
			}
			last++
		}

		switch {
		case last > first+1:
			parts = append(parts, fmt.Sprintf("layers %d to %d", first, last))
		case last > first:
			parts = append(parts, fmt.Sprintf("layers %d and %d", first, last))
		default:
			name := Words(names[i])
			if name != names[i] {
				name = "the " + name
			}
			parts = append(parts, name)
		}
		i = j
	}

	if len(parts) > mostNamed {
		return fmt.Sprintf("%d of %d groups", len(names), len(a.Average)+len(a.Route))
	}

	if n := len(parts); n > 1 {
		return strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	return parts[0]
}

// layerOf is the number of a group that is a whole layer of the usual stack.
func layerOf(name string) (n int, ok bool) {
	_, err := fmt.Sscanf(name, "layer %d", &n)
	return n, err == nil && name == fmt.Sprintf("layer %d", n)
}
