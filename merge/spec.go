package merge

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// Spec is one merge as a Go value: what one document of a recipe file says, with the same words and the same meaning.
// [New] makes a [Recipe] of it. Fields that are left out are keys that a file leaves out.
//
// A model is named as recipes name it, by a folder, a file, or a name on the Hugging Face hub whose snapshot is in the
// cache: "path", "path@revision" or "path+adapter". Exactly one of Models, Slices and Modules is set.
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
}

// Input is a model of a merge.
type Input struct {
	Model    string
	Name     string   // of an expert, for method mediate; "": the last part of its path
	Settings Settings // of this model: weight, density, …
}

// Slice is a run of output layers, made of one run of layers of each source. All sources give the same number.
type Slice struct {
	Sources  []LayerRange
	Base     string // instead of the spec's
	Settings Settings
}

// LayerRange is the decoder layers of a model from First, counted from 0, to the one before End.
type LayerRange struct {
	Model      string
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

// entry is a key of YAML with what stands behind it: a scalar as it is written, a []entry, or a []any as a list.
type entry struct {
	key   string
	value any
}

// scalar is a text that is written as it is.
type scalar string

// specWriter turns a spec into entries and keeps what is wrong with it.
type specWriter struct{ faults []error }

// write writes a spec as a document: its lists with a line for each element, all below in one line.
func (s *Spec) write(b *strings.Builder) error {
	w := &specWriter{}
	if s.Mediate != nil && s.Method != recipe.Mediated {
		w.bad("Mediate is for method mediate, not %q", s.Method)
	}
	if s.Method == recipe.Mediated && len(s.Settings) > 0 {
		w.bad("method mediate has no Settings: its settings are Mediate's")
	}

	parameters := w.settings(s.Settings)
	if s.Mediate != nil {
		parameters = w.mediate(s.Mediate)
	}
	var modules []entry
	for _, name := range slices.Sorted(maps.Keys(s.Modules)) {
		m := s.Modules[name]
		modules = append(modules, entry{name, fields(
			entry{"models", w.inputs(m.Models)}, entry{"slices", w.slices(m.Slices)},
			entry{"parameters", w.settings(m.Settings)},
		)})
	}

	all := fields(
		entry{"name", w.text(s.Name)}, entry{"merge_method", w.text(s.Method)}, entry{"base_model", w.text(s.Base)},
		entry{"models", w.inputs(s.Models)}, entry{"slices", w.slices(s.Slices)}, entry{"modules", modules},
		entry{"dtype", w.text(s.DType)}, entry{"out_dtype", w.text(s.OutDType)},
		entry{"tokenizer", w.tokenizer(s.Tokenizer)}, entry{"chat_template", w.text(s.ChatTemplate)},
		entry{"parameters", parameters},
	)
	if len(all) == 0 {
		w.bad("an empty spec")
	}
	for _, e := range all {
		fmt.Fprintf(b, "%s:", w.key(e.key))
		if list, ok := e.value.([]any); ok {
			for _, x := range list {
				b.WriteString("\n  - ")
				w.flow(b, x)
			}
		} else {
			b.WriteByte(' ')
			w.flow(b, e.value)
		}
		b.WriteByte('\n')
	}

	return failure.Join(w.faults...)
}

func (w *specWriter) bad(format string, args ...any) {
	w.faults = append(w.faults, fmt.Errorf("spec: "+format+": %w", append(args, ErrOption)...))
}

// fields drops what is empty.
func fields(list ...entry) []entry {
	return slices.DeleteFunc(list, func(e entry) bool {
		v := reflect.ValueOf(e.value)
		return !v.IsValid() || v.Len() == 0
	})
}

// inputs are the models of a list.
func (w *specWriter) inputs(list []Input) (out []any) {
	for _, m := range list {
		out = append(out, fields(
			entry{"model", w.text(m.Model)}, entry{"name", w.text(m.Name)},
			entry{"parameters", w.settings(m.Settings)},
		))
	}
	return out
}

// slices are runs of layers.
func (w *specWriter) slices(list []Slice) (out []any) {
	for _, s := range list {
		var sources []any
		for _, x := range s.Sources {
			bounds := []any{scalar(strconv.Itoa(x.First)), scalar(strconv.Itoa(x.End))}
			sources = append(sources, fields(
				entry{"model", w.text(x.Model)}, entry{"layer_range", bounds},
				entry{"parameters", w.settings(x.Settings)},
			))
		}
		out = append(out, fields(
			entry{"sources", sources}, entry{"base_model", w.text(s.Base)},
			entry{"parameters", w.settings(s.Settings)},
		))
	}
	return out
}

// settings are parameters in the order of their names.
func (w *specWriter) settings(s Settings) (out []entry) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		rules, ok := s[name].([]Rule)
		if !ok {
			out = append(out, entry{name, w.value(name, s[name])})
			continue
		}

		var list []any
		for _, r := range rules {
			list = append(list, fields(
				entry{"filter", w.text(r.Filter)}, entry{"value", w.value(name, r.Value)},
			))
		}
		out = append(out, entry{name, list})
	}
	return out
}

// value is a number, a bool or a string, or a slice of such.
func (w *specWriter) value(name string, x any) any {
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
		var list []any
		for i := range v.Len() {
			list = append(list, w.value(name, v.Index(i).Interface()))
		}
		return list
	default:
		w.bad("%s is %#v (%T), which is no number, bool, word or list of such", name, x, x)
	}
	return scalar("null")
}

// number writes a float, a whole one without a point, with as many digits as its type has.
func (w *specWriter) number(name string, v reflect.Value) scalar {
	x := v.Float()
	if math.IsNaN(x) || math.IsInf(x, 0) {
		w.bad("%s is %v", name, x)
		return "0"
	}
	if x == math.Trunc(x) && math.Abs(x) < 1e15 {
		return scalar(strconv.FormatFloat(x, 'f', -1, v.Type().Bits()))
	}
	return scalar(strconv.FormatFloat(x, 'g', -1, v.Type().Bits()))
}

// tokenizer is the wish for tokens.
func (w *specWriter) tokenizer(t *Tokenizer) []entry {
	if t == nil {
		return nil
	}

	var tokens []entry
	for _, text := range slices.Sorted(maps.Keys(t.Tokens)) {
		tokens = append(tokens, entry{text, w.token(text, t.Tokens[text])})
	}
	source := t.Source
	if source == "" {
		source = "union"
	}
	multiple := scalar("")
	if t.Multiple != 0 {
		multiple = scalar(strconv.Itoa(t.Multiple))
	}
	return fields(entry{"source", w.text(source)}, entry{"pad_to_multiple_of", multiple}, entry{"tokens", tokens})
}

// token is the rule for a token.
func (w *specWriter) token(text string, t Token) []entry {
	var source any = w.text(t.Model)
	switch {
	case t.Zero && (t.Model != "" || t.Text != "" || t.ID != nil), t.Text != "" && t.ID != nil:
		w.bad("the token %q has several sources", text)
	case t.Zero:
		source = []entry{{"kind", scalar("zero")}}
	case t.Text != "":
		source = fields(entry{"kind", scalar("model_token")}, entry{"model", source}, entry{"token", w.text(t.Text)})
	case t.ID != nil:
		id := scalar(strconv.Itoa(*t.ID))
		source = fields(entry{"kind", scalar("model_token")}, entry{"model", source}, entry{"token_id", id})
	}

	force := scalar("")
	if t.Force {
		force = "true"
	}
	return fields(entry{"source", source}, entry{"force", force})
}

// mediate is the parameters of method mediate.
func (w *specWriter) mediate(m *Mediate) []entry {
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
		embeddings = "true"
	}

	return fields(
		entry{"granularity", w.text(m.Granularity)}, entry{"metric", w.text(m.Metric)}, entry{"density", density},
		entry{"select", w.pair(m.Select)}, entry{"average", w.static(m.Average)}, entry{"dense", dense},
		entry{"keep", w.pair(m.Keep)}, entry{"route_embeddings", embeddings}, entry{"router", w.router(m.Router)},
	)
}

// router is how prompts choose experts.
func (w *specWriter) router(r *Router) []entry {
	if r == nil {
		return nil
	}

	shrinkage := scalar("")
	if r.Shrinkage != nil {
		shrinkage = w.number("Shrinkage", reflect.ValueOf(*r.Shrinkage))
	}
	var prompts []entry
	for _, name := range slices.Sorted(maps.Keys(r.Prompts)) {
		prompts = append(prompts, entry{name, w.text(r.Prompts[name])})
	}
	return fields(
		entry{"features", w.text(r.Features)}, entry{"classifier", w.text(r.Classifier)},
		entry{"shrinkage", shrinkage}, entry{"foreign", w.text(r.Foreign)}, entry{"prompts", prompts},
	)
}

// static is a method with its settings beside it.
func (w *specWriter) static(s *StaticMerge) any {
	if s == nil {
		return scalar("")
	}
	if s.Method == "" {
		w.bad("a static merge without a method")
	}
	return append([]entry{{"method", w.text(s.Method)}}, w.settings(s.Settings)...)
}

// pair is a word, or a word with a value behind a colon. A list of layers is the one value with brackets.
func (w *specWriter) pair(text string) any {
	word, value, ok := strings.Cut(text, ":")
	value = strings.TrimSpace(value)
	if !ok {
		return w.word(text)
	}

	inner, list := strings.CutPrefix(value, "[")
	if !list {
		return []entry{{word, w.word(value)}}
	}
	var items []any
	for part := range strings.SplitSeq(strings.TrimSuffix(inner, "]"), ",") {
		items = append(items, w.word(strings.TrimSpace(part)))
	}
	return []entry{{word, items}}
}

// word is a number as it stands, or a text.
func (w *specWriter) word(text string) scalar {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return scalar(text)
	}
	return w.text(text)
}

// text is a string; the empty one is left out.
func (w *specWriter) text(s string) scalar {
	if s == "" {
		return ""
	}
	return w.key(s)
}

// bare is what needs no quotes: a word or a path that YAML does not take for anything else.
var bare = regexp.MustCompile(`^(\.{0,2}/)*[A-Za-z_][\w./+-]*$`)

// reserved are words that mean something else without quotes, in one version of YAML or another.
var reserved = []string{"true", "false", "yes", "no", "on", "off", "null", "y", "n"}

// key writes a text so that it is read as that text.
func (w *specWriter) key(s string) scalar {
	if bare.MatchString(s) && !slices.Contains(reserved, strings.ToLower(s)) {
		return scalar(s)
	}
	if !utf8.ValidString(s) {
		w.bad("%q is no UTF-8", s)
	}

	b := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case strconv.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r < 0x100:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = fmt.Appendf(b, `\U%08x`, r)
		}
	}
	return scalar(append(b, '"'))
}

// flow writes a value in one line.
func (w *specWriter) flow(b *strings.Builder, v any) {
	switch v := v.(type) {
	case scalar:
		b.WriteString(string(v))
	case []entry:
		b.WriteByte('{')
		for i, e := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(string(w.key(e.key)) + ": ")
			w.flow(b, e.value)
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, x := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			w.flow(b, x)
		}
		b.WriteByte(']')
	}
}
