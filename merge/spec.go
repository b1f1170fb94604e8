package merge

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Spec is one merge as a Go value: what one document of a recipe file says, with the same words and the same meaning.
// [New] makes a [Recipe] of it. Fields that are left out are keys that a file leaves out.
//
// A model is named as recipes name it, by a folder, a file, or a name on the Hugging Face hub whose snapshot is in the
// cache: "path", "path@revision" or "path+adapter"; or by a word of your own for one of Refs. Exactly one of Models,
// Slices and Modules is set.
type Spec struct {
	Name   string // of one of several specs, by which others use its result as a model
	Method string // "ties", …; see [Methods]. "mediate" is for a spec with Mediate
	Base   string // the model that differences are taken from, for methods that have one

	Models  []Input           // whole models
	Slices  []Slice           // runs of output layers, from the first
	Modules map[string]Module // parts with layers of their own, such as a vision tower

	DType        string     // to compute in: bfloat16, float16, float32 or float64; "": that of the inputs
	OutDType     string     // to write; "": DType
	Tokenizer    *Tokenizer // nil: the files of the first model that has some are copied
	ChatTemplate string     // "auto", the name of a known template, or a template; "": the tokenizer's own
	Settings     Settings   // of the method, for all inputs; see [Method.Parameters]
	Mediate      *Mediate   // of method mediate, instead of Settings; nil: its defaults

	// Refs are models in parts, by the words that stand for them in all fields that name a model: for paths that have
	// "+" or "@", and for adapters with revisions.
	Refs map[string]Ref
}

// Ref is a model in parts: the map that a recipe file may have in place of a model's name.
type Ref struct {
	Path            string // folder, file or name on the hub; must be set
	Revision        string // on the hub; "": main
	Adapter         string // that is added to it; "": none
	AdapterRevision string
	Class           string // that counts as the configuration's "architectures"; "": as it is
}

// Input is a model of a merge.
type Input struct {
	Model    string   // a folder, a file or a name on the hub, see [Spec]
	Name     string   // of an expert, for method mediate; "": the last part of its path
	Settings Settings // of this model: weight, density, …
}

// Slice is a run of output layers, made of one run of layers of each source. All sources give the same number.
type Slice struct {
	Sources  []LayerRange // one for passthrough, several for methods that combine
	Base     string       // instead of the spec's
	Settings Settings
}

// LayerRange is the decoder layers of a model from First, counted from 0, to the one before End.
type LayerRange struct {
	Model      string // see [Input]
	First, End int
	Settings   Settings
}

// Module is a part of a model; exactly one of its two lists is set.
type Module struct {
	Models   []Input
	Slices   []Slice
	Settings Settings
}

// Settings are parameters of a method by name. A value is a number, a bool or a string; a slice of numbers is a
// gradient, which is spread over the layers; and a []Rule has different values for different tensors.
type Settings map[string]any

// Rule is the value of a parameter for the tensors whose name has Filter in it; "" and "*" are in every name. The first
// rule that matches a tensor counts.
type Rule struct {
	Filter string
	Value  any // a number, a bool, a string or a gradient
}

// Tokenizer says whose tokens the result has.
type Tokenizer struct {
	Source   string           // "union", "base" or a model; "": union
	Multiple int              // rows of the token table are filled up to a multiple of it; 0: not
	Tokens   map[string]Token // rules for single tokens
}

// Token is where the embedding of a token comes from: from Model, from another token of Model, by its text or its
// number, or it is zero.
type Token struct {
	Model string
	Text  string // another token of Model
	ID    *int   // or its number
	Zero  bool
	Force bool // models that have the token take this embedding all the same
}

// Mediate are the settings of method mediate, as a recipe's parameters have them. Zero values are its defaults.
type Mediate struct {
	Granularity string  // what is routed as one: "layer" (default), "block" or "tensor"
	Metric      string  // of the contradiction: "disagree" (default), "any", "coactive", "total", "mass" or "cosine"
	Density     float64 // fraction of each tensor's differences that counts for it, in (0, 1]; 0: 0.2
	// Select is which groups are routed: "none", "all", "otsu", or by a value: "sigma: 0.5" (default),
	// "threshold: x", "top_k: k", "top_fraction: q", "quantile: q", "budget: 1GiB", "layers: [0, 5]".
	Select  string
	Average *StaticMerge // of groups that are not routed; nil: linear
	// Dense is what routed groups are in the dense model: "mean" (default), "base", or an expert's: "expert: NAME".
	Dense      string
	DenseMerge *StaticMerge // instead of Dense: merged by a method
	// Keep is what an expert keeps of its difference: "sign1", or by a value: "magnitude: 0.1" (default), "energy: x",
	// "random: x", "lowrank: r", "bits: b", "best: x".
	Keep            string
	RouteEmbeddings bool // tensors outside of the layers may be routed too
	Router          *Router
}

// StaticMerge is a method that gives one tensor, with its settings.
type StaticMerge struct {
	Method   string
	Settings Settings
}

// Router says how prompts choose experts. Without prompts there is no router, and experts go by their names alone.
type Router struct {
	Features string // "auto", "hidden_mean", "hidden_last", "early", "early_last", "embed_mean" or "external"
	// Classifier is "nearest", "lda", "logistic" or "mlp"; "": nearest, for external features lda.
	Classifier string
	Shrinkage  *float64          // of the covariance, in [0, 1]; nil: 0.1
	Foreign    string            // a file of prompts that are no expert's
	Prompts    map[string]string // the files of the experts' prompts, by their names
}

// New makes a recipe of specs, as [Parse] does of a text: of several, one may be without a name, whose result is the
// merge's, and others use the results of those that have names. The recipe's Text is the same as YAML, for a file. The
// error lists every fault, by line and column of that text, which [Excerpts] shows; it wraps [ErrOption] for a value
// that no recipe can have.
func New(specs ...Spec) (Recipe, error) {
	var text strings.Builder
	for i := range specs {
		if i > 0 {
			text.WriteString("---\n")
		}
		if err := specs[i].write(&text); err != nil {
			return Recipe{}, err
		}
	}
	return Parse("recipe", []byte(text.String()))
}

// specWriter turns a spec into entries and keeps what is wrong with it.
type specWriter struct {
	faults []error
	refs   map[string]Ref
}

// write writes a spec as a document.
func (s *Spec) write(b *strings.Builder) error {
	w := &specWriter{refs: s.Refs}
	if s.Mediate != nil && s.Method != recipe.Mediated {
		w.bad("Mediate is for method mediate, not %q", s.Method)
	}
	if s.Method == recipe.Mediated && len(s.Settings) > 0 {
		w.bad("method mediate has no Settings: its settings are Mediate's")
	}

	parameters := fields(w.settings(s.Settings)...)
	if s.Mediate != nil {
		parameters = w.mediate(s.Mediate)
	}
	var modules []strictyaml.Entry
	for _, name := range slices.Sorted(maps.Keys(s.Modules)) {
		m := s.Modules[name]
		modules = append(modules, entry(name, fields(
			entry("models", w.inputs(m.Models)), entry("slices", w.slices(m.Slices)),
			entry("parameters", fields(w.settings(m.Settings)...)),
		)))
	}

	all := fields(
		entry("name", w.text(s.Name)), entry("merge_method", w.text(s.Method)), entry("base_model", w.model(s.Base)),
		entry("models", w.inputs(s.Models)), entry("slices", w.slices(s.Slices)), entry("modules", named(modules)),
		entry("dtype", w.text(s.DType)), entry("out_dtype", w.text(s.OutDType)),
		entry("tokenizer", w.tokenizer(s.Tokenizer)), entry("chat_template", w.text(s.ChatTemplate)),
		entry("parameters", parameters),
	)
	if len(all.Entries) == 0 {
		w.bad("an empty spec")
	}
	b.Write(strictyaml.Marshal(all))
	return failure.Join(w.faults...)
}

// model is a model by its name, or in parts.
func (w *specWriter) model(name string) *strictyaml.Node {
	ref, ok := w.refs[name]
	if !ok || name == "" {
		return w.text(name)
	}
	if ref.Path == "" || ref.Adapter == "" && ref.AdapterRevision != "" {
		w.bad("the ref %q has no path, or a revision of no adapter", name)
	}

	return fields(
		entry("model", fields(entry("path", w.text(ref.Path)), entry("revision", w.text(ref.Revision)))),
		entry("lora", fields(entry("path", w.text(ref.Adapter)), entry("revision", w.text(ref.AdapterRevision)))),
		entry("override_architecture", w.text(ref.Class)),
	)
}

func (w *specWriter) bad(format string, args ...any) {
	w.faults = append(w.faults, fmt.Errorf("spec: "+format+": %w", append(args, ErrOption)...))
}

// entry is a key with its value.
func entry(key string, value *strictyaml.Node) strictyaml.Entry {
	return strictyaml.Entry{Key: key, Value: value}
}

// fields is a map of what is not empty.
func fields(entries ...strictyaml.Entry) *strictyaml.Node {
	return &strictyaml.Node{Kind: strictyaml.Map, Entries: slices.DeleteFunc(entries, func(e strictyaml.Entry) bool {
		n := e.Value
		return n == nil || n.Kind != strictyaml.Scalar && len(n.Entries)+len(n.Items) == 0
	})}
}

// named is a map whose keys are the user's: what is empty stays, for the reader to refuse.
func named(entries []strictyaml.Entry) *strictyaml.Node {
	for i, e := range entries {
		if e.Value == nil {
			entries[i].Value = &strictyaml.Node{Kind: strictyaml.Null}
		}
	}
	return &strictyaml.Node{Kind: strictyaml.Map, Entries: entries}
}

// list is a list of nodes.
func list(items ...*strictyaml.Node) *strictyaml.Node {
	return &strictyaml.Node{Kind: strictyaml.List, Items: items}
}

// scalar is a number or a bool as it is written; the empty one is left out.
func scalar(text string) *strictyaml.Node {
	if text == "" {
		return nil
	}
	return &strictyaml.Node{Kind: strictyaml.Scalar, Text: text}
}

// inputs are the models of a list.
func (w *specWriter) inputs(models []Input) *strictyaml.Node {
	out := list()
	for _, m := range models {
		out.Items = append(out.Items, fields(
			entry("model", w.model(m.Model)), entry("name", w.text(m.Name)),
			entry("parameters", fields(w.settings(m.Settings)...)),
		))
	}
	return out
}

// slices are runs of layers.
func (w *specWriter) slices(runs []Slice) *strictyaml.Node {
	out := list()
	for _, s := range runs {
		sources := list()
		for _, x := range s.Sources {
			bounds := list(scalar(strconv.Itoa(x.First)), scalar(strconv.Itoa(x.End)))
			sources.Items = append(sources.Items, fields(
				entry("model", w.model(x.Model)), entry("layer_range", bounds),
				entry("parameters", fields(w.settings(x.Settings)...)),
			))
		}
		out.Items = append(out.Items, fields(
			entry("sources", sources), entry("base_model", w.model(s.Base)),
			entry("parameters", fields(w.settings(s.Settings)...)),
		))
	}
	return out
}

// settings are parameters in the order of their names.
func (w *specWriter) settings(s Settings) (out []strictyaml.Entry) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		rules, ok := s[name].([]Rule)
		if !ok {
			out = append(out, entry(name, w.value(name, s[name])))
			continue
		}

		all := list()
		for _, r := range rules {
			all.Items = append(all.Items, fields(
				entry("filter", w.text(r.Filter)), entry("value", w.value(name, r.Value)),
			))
		}
		out = append(out, entry(name, all))
	}
	return out
}

// value is a number, a bool or a string, or a slice of such.
func (w *specWriter) value(name string, x any) *strictyaml.Node {
	v := reflect.ValueOf(x)
	switch {
	case !v.IsValid():
		w.bad("%s is nil", name)
	case v.Kind() == reflect.Bool:
		return scalar(strconv.FormatBool(v.Bool()))
	case v.CanInt():
		return scalar(strconv.FormatInt(v.Int(), 10))
	case v.CanUint():
		return scalar(strconv.FormatUint(v.Uint(), 10))
	case v.CanFloat():
		return w.number(name, v)
	case v.Kind() == reflect.String && v.Len() > 0:
		return w.text(v.String())
	case v.Kind() == reflect.Slice && v.Len() > 0 && v.Type().Elem().Kind() != reflect.Slice:
		all := list()
		for i := range v.Len() {
			all.Items = append(all.Items, w.value(name, v.Index(i).Interface()))
		}
		return all
	default:
		w.bad("%s is %#v (%T), which is no number, bool, word or list of such", name, x, x)
	}
	return scalar("null")
}

// number writes a float, a whole one without a point, with as many digits as its type has.
func (w *specWriter) number(name string, v reflect.Value) *strictyaml.Node {
	x := v.Float()
	if math.IsNaN(x) || math.IsInf(x, 0) {
		w.bad("%s is %v", name, x)
		return scalar("0")
	}
	if x == math.Trunc(x) && math.Abs(x) < 1e15 {
		return scalar(strconv.FormatFloat(x, 'f', -1, v.Type().Bits()))
	}
	return scalar(strconv.FormatFloat(x, 'g', -1, v.Type().Bits()))
}

// tokenizer is the wish for tokens.
func (w *specWriter) tokenizer(t *Tokenizer) *strictyaml.Node {
	if t == nil {
		return nil
	}

	var tokens []strictyaml.Entry
	for _, text := range slices.Sorted(maps.Keys(t.Tokens)) {
		tokens = append(tokens, entry(text, w.token(text, t.Tokens[text])))
	}
	source := t.Source
	if source == "" {
		source = "union"
	}
	multiple := scalar("")
	if t.Multiple != 0 {
		multiple = scalar(strconv.Itoa(t.Multiple))
	}
	return fields(
		entry("source", w.model(source)), entry("pad_to_multiple_of", multiple), entry("tokens", named(tokens)),
	)
}

// token is the rule for a token.
func (w *specWriter) token(text string, t Token) *strictyaml.Node {
	source := w.model(t.Model)
	switch {
	case t.Zero && (t.Model != "" || t.Text != "" || t.ID != nil), t.Text != "" && t.ID != nil:
		w.bad("the token %q has several sources", text)
	case t.Zero:
		source = fields(entry("kind", scalar("zero")))
	case t.Text != "":
		source = fields(entry("kind", scalar("model_token")), entry("model", source), entry("token", w.text(t.Text)))
	case t.ID != nil:
		id := scalar(strconv.Itoa(*t.ID))
		source = fields(entry("kind", scalar("model_token")), entry("model", source), entry("token_id", id))
	}

	force := scalar("")
	if t.Force {
		force = scalar("true")
	}
	return fields(entry("source", source), entry("force", force))
}

// mediate is the parameters of method mediate.
func (w *specWriter) mediate(m *Mediate) *strictyaml.Node {
	dense := w.pair(m.Dense)
	if m.DenseMerge != nil {
		if m.Dense != "" {
			w.bad("Dense and DenseMerge exclude each other")
		}
		dense = w.static(m.DenseMerge)
	}

	density, embeddings := scalar(""), scalar("")
	if m.Density != 0 {
		density = w.number("Density", reflect.ValueOf(m.Density))
	}
	if m.RouteEmbeddings {
		embeddings = scalar("true")
	}

	return fields(
		entry("granularity", w.text(m.Granularity)), entry("metric", w.text(m.Metric)), entry("density", density),
		entry("select", w.pair(m.Select)), entry("average", w.static(m.Average)), entry("dense", dense),
		entry("keep", w.pair(m.Keep)), entry("route_embeddings", embeddings), entry("router", w.router(m.Router)),
	)
}

// router is how prompts choose experts.
func (w *specWriter) router(r *Router) *strictyaml.Node {
	if r == nil {
		return nil
	}

	shrinkage := scalar("")
	if r.Shrinkage != nil {
		shrinkage = w.number("Shrinkage", reflect.ValueOf(*r.Shrinkage))
	}
	var prompts []strictyaml.Entry
	for _, name := range slices.Sorted(maps.Keys(r.Prompts)) {
		prompts = append(prompts, entry(name, w.text(r.Prompts[name])))
	}
	return fields(
		entry("features", w.text(r.Features)), entry("classifier", w.text(r.Classifier)),
		entry("shrinkage", shrinkage), entry("foreign", w.text(r.Foreign)), entry("prompts", named(prompts)),
	)
}

// static is a method with its settings beside it.
func (w *specWriter) static(s *StaticMerge) *strictyaml.Node {
	if s == nil {
		return nil
	}
	if s.Method == "" {
		w.bad("a static merge without a method")
	}
	return fields(append([]strictyaml.Entry{entry("method", w.text(s.Method))}, w.settings(s.Settings)...)...)
}

// pair is a word, or a word with a value behind a colon. A list of layers is the one value with brackets.
func (w *specWriter) pair(text string) *strictyaml.Node {
	word, value, ok := strings.Cut(text, ":")
	value = strings.TrimSpace(value)
	if !ok {
		return w.word(text)
	}

	inner, several := strings.CutPrefix(value, "[")
	if !several {
		return fields(entry(word, w.word(value)))
	}
	items := list()
	for part := range strings.SplitSeq(strings.TrimSuffix(inner, "]"), ",") {
		items.Items = append(items.Items, w.word(strings.TrimSpace(part)))
	}
	return fields(entry(word, items))
}

// word is a number as it stands, or a text.
func (w *specWriter) word(text string) *strictyaml.Node {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return scalar(text)
	}
	return w.text(text)
}

// reserved are words that mean something else without quotes, in one version of YAML or another.
var reserved = []string{"true", "false", "yes", "no", "on", "off", "null", "y", "n"}

// text is a string, in quotes where it would be read as something else; the empty one is left out.
func (w *specWriter) text(s string) *strictyaml.Node {
	if s == "" {
		return nil
	}
	if !utf8.ValidString(s) {
		w.bad("%q is no UTF-8", s)
	}
	_, number := strconv.ParseFloat(s, 64)
	return &strictyaml.Node{
		Kind: strictyaml.Scalar, Text: s,
		Quoted: number == nil || strings.Trim(s, "0123456789-+._") == "" ||
			slices.Contains(reserved, strings.ToLower(s)),
	}
}
