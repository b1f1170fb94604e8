package recipe

import (
	"math"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// Mediated is the merge_method of a conflict-aware merge into a dense model and sparse experts.
const Mediated = "mediate"

// Mediate is the parameters of a mediate recipe; the fields' defaults are those of the constructor below.
type Mediate struct {
	Granularity     string      // layer (default), block, tensor
	Metric          string      // any, coactive, total, mass, cosine, disagree (default)
	Density         float64     // of the denoised differences, in (0, 1]; default 0.2
	Select          Select      // which groups are routed
	Average         StaticMerge // of groups that are not; default linear
	Dense           Dense       // what routed groups are in the dense model; default mean
	Keep            Keep        // what a sparse expert keeps
	RouteEmbeddings bool        // tensors outside of layers may be routed; default false
	Router          Router
}

// Select is a rule for routing groups: Rule names it, and the field that belongs to it is set.
type Select struct {
	Rule   string  // sigma (default, 0.5), none, all, otsu, threshold, top_k, top_fraction, quantile, budget, layers
	Value  float64 // of sigma, threshold, top_k, top_fraction, quantile
	Bytes  int64   // of budget
	Layers []int   // of layers
}

// StaticMerge is a method with parameters of its own.
type StaticMerge struct {
	strictyaml.Place
	Method     string
	Parameters Parameters
}

// Dense says what the dense model is in routed groups.
type Dense struct {
	Kind   string // mean, base, expert, method
	Expert string // name, for expert
	Merge  StaticMerge
}

// Keep says what a sparse expert keeps of its difference from the dense model.
type Keep struct {
	Kind  string  // magnitude (default, 0.1), energy, random, lowrank, bits, sign1, best
	Value float64 // a fraction in [0, 1] (of elements, of best of bytes), the rank, or bits per element
}

// Router says how prompts choose experts. Where no features are given, nearest takes auto, the other classifiers
// hidden_mean.
type Router struct {
	Features   string  // auto, hidden_mean, hidden_last, early, early_last, embed_mean or external
	Classifier string  // nearest (default; lda for external features), lda, logistic, mlp
	Shrinkage  float64 // of the covariance, in [0, 1]; default 0.1
	Foreign    string  // a file of prompts that are no expert's, beside those that the program knows; may be empty
	Prompts    []ExpertPrompts
}

// ExpertPrompts is the file with the prompts of an expert.
type ExpertPrompts struct {
	strictyaml.Place
	Expert, File string
}

// mediate decodes the parameters of a mediate recipe; n may be nil.
func mediate(r *strictyaml.Reader, n *strictyaml.Node, experts []Model) *Mediate {
	m := &Mediate{
		Granularity: "layer", Metric: "disagree", Density: 0.2,
		Select:  Select{Rule: "sigma", Value: 0.5},
		Average: StaticMerge{Method: "linear"},
		Dense:   Dense{Kind: "mean"},
		Keep:    Keep{Kind: "magnitude", Value: 0.1},
		Router:  Router{Features: "auto", Classifier: "nearest", Shrinkage: 0.1},
	}

	if n != nil {
		mediateKeys(r, n, m)
	}

	expertNames(r, m, experts)
	return m
}

// mediateKeys decodes the keys that are given.
func mediateKeys(r *strictyaml.Reader, n *strictyaml.Node, m *Mediate) {
	o := r.Object(n, "the parameters of mediate")
	if v := o.Get("granularity"); v != nil {
		m.Granularity = r.Choice(v, "granularity", "layer", "block", "tensor")
	}
	if v := o.Get("metric"); v != nil {
		m.Metric = r.Choice(v, "metric", "any", "coactive", "total", "mass", "cosine", "disagree")
	}

	if v := o.Get("density"); v != nil {
		m.Density = fraction(r, v, "density")
		if m.Density == 0 {
			r.Add(v.Place, strictyaml.ErrValue, "density must be above 0")
		}
	}

	if v := o.Get("select"); v != nil {
		m.Select = selection(r, v)
	}
	if v := o.Get("average"); v != nil {
		m.Average = staticMerge(r, v, "average")
	}
	if v := o.Get("dense"); v != nil {
		m.Dense = dense(r, v)
	}
	if v := o.Get("keep"); v != nil {
		m.Keep = keep(r, v)
	}
	if v := o.Get("route_embeddings"); v != nil {
		m.RouteEmbeddings = r.Bool(v, "route_embeddings")
	}
	if v := o.Get("router"); v != nil {
		router(r, v, &m.Router)
	}

	o.Close()
}

// fraction reads a number from 0 to 1.
func fraction(r *strictyaml.Reader, n *strictyaml.Node, what string) float64 {
	x := r.Number(n, what)
	if x < 0 || x > 1 {
		r.Add(n.Place, strictyaml.ErrValue, "%s must be from 0 to 1, not %s", what, n.Text)
	}
	return x
}

// single gives the one entry of a map such as {sigma: 0.5}.
func single(r *strictyaml.Reader, n *strictyaml.Node, what string) (strictyaml.Entry, bool) {
	if n.Kind != strictyaml.Map || len(n.Entries) != 1 {
		r.Add(n.Place, strictyaml.ErrType, "%s must be a word or a map of one key", what)
		return strictyaml.Entry{}, false
	}
	return n.Entries[0], true
}

// selection decodes select.
func selection(r *strictyaml.Reader, n *strictyaml.Node) Select {
	if n.Kind == strictyaml.Scalar {
		return Select{Rule: r.Choice(n, "select", "none", "all", "otsu")}
	}

	e, ok := single(r, n, "select")
	out := Select{Rule: e.Key}
	if !ok {
		return out
	}

	switch e.Key {
	case "sigma", "threshold":
		out.Value = r.Number(e.Value, e.Key)
	case "top_fraction", "quantile":
		out.Value = fraction(r, e.Value, e.Key)
		if e.Key == "top_fraction" && e.Value.Text != "" && out.Value == 0 {
			r.Add(e.Value.Place, strictyaml.ErrValue, "top_fraction 0 selects no layer; select: none says so")
		}
	case "top_k":
		out.Value = float64(r.Int(e.Value, e.Key, 1, MaxLayers))
	case "budget":
		out.Bytes = byteCount(r, e.Value)
	case "layers":
		for _, x := range r.List(e.Value, e.Key) {
			out.Layers = append(out.Layers, r.Int(x, "a layer", 0, MaxLayers))
		}
	default:
		known := []string{
			"none", "all", "otsu", "sigma", "threshold", "top_k", "top_fraction", "quantile", "budget",
			"layers",
		}
		r.Add(e.Place, strictyaml.ErrUnknownKey, "unknown rule %q in select%s", e.Key, strictyaml.Suggest(e.Key, known))
	}

	return out
}

// units are the suffixes of byte counts.
var units = []struct {
	suffix string
	factor float64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"B", 1},
}

// byteCount reads a number of bytes, with or without a unit.
func byteCount(r *strictyaml.Reader, n *strictyaml.Node) int64 {
	text, factor := strings.TrimSpace(r.Text(n, "budget")), 1.0
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			text, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}

	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= 0) || x*factor >= math.MaxInt64 {
		r.Add(n.Place, strictyaml.ErrValue, "budget must be a number of bytes such as 500MB or 1GiB, not %q", n.Text)
		return 0
	}

	return int64(x * factor)
}

// staticMerge decodes {method: …} with the method's parameters beside it.
func staticMerge(r *strictyaml.Reader, n *strictyaml.Node, what string) StaticMerge {
	out := StaticMerge{Place: n.Place}
	if n.Kind == strictyaml.Scalar {
		out.Method = n.Text
		return out
	}

	o := r.Object(n, what)
	if v := o.Need("method"); v != nil {
		out.Method = r.Text(v, "method")
	}
	if out.Method == Mediated {
		r.Add(n.Place, strictyaml.ErrValue, "%s takes a method that gives one tensor, not mediate", what)
	}

	for _, e := range n.Entries {
		if e.Key != "method" {
			out.Parameters = append(out.Parameters,
				Parameter{Place: e.Place, Name: e.Key, Setting: setting(r, e.Value, e.Key)})
		}
	}

	return out
}

// dense decodes dense: mean, base, {expert: name} or {method: …}.
func dense(r *strictyaml.Reader, n *strictyaml.Node) Dense {
	switch {
	case n.Kind == strictyaml.Scalar:
		return Dense{Kind: r.Choice(n, "dense", "mean", "base")}
	case n.Get("method") != nil:
		return Dense{Kind: "method", Merge: staticMerge(r, n, "dense")}
	}

	out := Dense{Kind: "expert"}
	o := r.Object(n, "dense")
	if v := o.Need("expert"); v != nil {
		out.Expert = r.Text(v, "expert")
	}

	o.Close()
	return out
}

// keep decodes keep: a fraction or {kind: value}.
func keep(r *strictyaml.Reader, n *strictyaml.Node) Keep {
	if n.Kind == strictyaml.Scalar {
		if n.Text == "sign1" {
			return Keep{Kind: "sign1"}
		}
		return Keep{Kind: "magnitude", Value: fraction(r, n, "keep")}
	}

	e, ok := single(r, n, "keep")
	out := Keep{Kind: e.Key}
	switch {
	case !ok:
	case e.Key == "magnitude", e.Key == "energy", e.Key == "random":
		out.Value = fraction(r, e.Value, e.Key)
	case e.Key == "best":
		if out.Value = fraction(r, e.Value, e.Key); out.Value == 0 {
			r.Add(e.Place, strictyaml.ErrValue, "best must be above 0: a share of the bytes, such as 0.05")
		}
	case e.Key == "lowrank":
		out.Value = float64(r.Int(e.Value, e.Key, 0, 1<<20))
	case e.Key == "bits":
		out.Value = float64(r.Int(e.Value, e.Key, 1, 8))
	case e.Key == "sign1":
		r.Add(e.Place, strictyaml.ErrUnknownKey, "sign1 takes no value: write keep: sign1")
	default:
		r.Add(e.Place, strictyaml.ErrUnknownKey, "unknown kind %q in keep%s", e.Key,
			strictyaml.Suggest(e.Key, []string{"magnitude", "energy", "random", "lowrank", "bits", "sign1", "best"}))
	}

	return out
}

// router decodes router.
func router(r *strictyaml.Reader, n *strictyaml.Node, out *Router) {
	o := r.Object(n, "router")
	if v := o.Get("features"); v != nil {
		out.Features = r.Choice(v, "features", "auto", "embed_mean", "early", "early_last", "hidden_mean",
			"hidden_last", "external")
		if out.Features == "external" { // without prompts nothing is near
			out.Classifier = "lda"
		}
	}
	if v := o.Get("classifier"); v != nil {
		out.Classifier = r.Choice(v, "classifier", "nearest", "lda", "logistic", "mlp")
		switch {
		case out.Classifier == "nearest" && out.Features == "external":
			r.Add(v.Place, strictyaml.ErrValue,
				"classifier nearest compares prompts, and external features come without")
		case out.Classifier != "nearest" && o.Get("features") == nil:
			out.Features = "hidden_mean"
		case out.Classifier != "nearest" && out.Features == "auto":
			r.Add(v.Place, strictyaml.ErrValue, "features auto belong to the classifier nearest: name features for %s",
				out.Classifier)
		}
	}
	if v := o.Get("shrinkage"); v != nil {
		out.Shrinkage = fraction(r, v, "shrinkage")
	}

	if v := o.Get("foreign"); v != nil {
		out.Foreign = r.Text(v, "a file of foreign prompts")
	}

	if v := o.Get("prompts"); v != nil {
		if v.Kind != strictyaml.Map {
			r.Add(v.Place, strictyaml.ErrType, "prompts must be a map of experts and files, not %s", v.Kind)
		}

		for _, e := range v.Entries {
			out.Prompts = append(out.Prompts,
				ExpertPrompts{Place: e.Place, Expert: e.Key, File: r.Text(e.Value, "a prompt file")})
		}
	}

	o.Close()
}

// expertNames notes duplicate names of experts, and names that no expert has. An expert without a name goes by the last
// part of its path.
func expertNames(r *strictyaml.Reader, m *Mediate, experts []Model) {
	var known []string
	for i := range experts {
		x := &experts[i]
		if x.Name == "" {
			parts := strings.Split(strings.TrimRight(x.Ref.Model.Path, "/"), "/")
			x.Name = parts[len(parts)-1]
		}

		for _, k := range known {
			if k == x.Name {
				r.Add(x.Place, strictyaml.ErrDuplicateKey, "two experts go by the name %q; give them names", x.Name)
			}
		}

		known = append(known, x.Name)
	}

	check := func(at strictyaml.Place, name string) {
		for _, k := range known {
			if k == name {
				return
			}
		}
		r.Add(at, strictyaml.ErrValue, "no expert has the name %q%s", name, strictyaml.Suggest(name, known))
	}

	for _, p := range m.Router.Prompts {
		check(p.Place, p.Expert)
	}
	if m.Dense.Kind == "expert" {
		check(strictyaml.Place{}, m.Dense.Expert)
	}
}
