package merge

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// TestSpecsAreRecipes: what is written of a spec is read as the same spec, whatever its texts hold.
func TestSpecsAreRecipes(t *testing.T) {
	for seed := range uint64(400) {
		g := &specs{rand.New(rand.NewPCG(seed, 1))}
		want := []Spec{g.spec()}
		if g.IntN(3) == 0 {
			want = append(want, g.spec())
		}

		var text strings.Builder
		for i := range want {
			if i > 0 {
				text.WriteString("---\n")
			}
			if err := want[i].write(&text); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}

		docs, err := recipe.Parse("recipe", []byte(text.String()), nil)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text.String())
		}
		for i, d := range docs {
			said := fmt.Sprintf("%#v", plainSpec(want[i]))
			if got := fmt.Sprintf("%#v", plainSpec(specOf(d))); got != said {
				t.Fatalf("seed %d: got\n%s\nwant\n%s\n%s", seed, got, said, text.String())
			}
		}
		if len(docs) != len(want) {
			t.Errorf("seed %d: %d documents, want %d", seed, len(docs), len(want))
		}
	}
}

// specs makes specs by chance, of which none has a fault.
type specs struct{ *rand.Rand }

func (g *specs) one(words ...string) string { return words[g.IntN(len(words))] }

// odd is a text with what YAML might stumble over.
func (g *specs) odd() string {
	parts := []string{
		"a", "b c", ": ", " #", "'", `"`, "\\", "{", "}", "[", "]", ",", "\n", "\t", "&x", "*y", "!z", "%", "|", ">",
		"-", "true", "null", "1e5", "\u00e9", "\u2028", "\U0001f600", "\u0085", "\u007f", "~", "---",
	}
	var b strings.Builder
	for range 1 + g.IntN(6) {
		b.WriteString(g.one(parts...))
	}
	return "x" + b.String() + "y"
}

func (g *specs) model() string {
	return g.one("base", "./a/b", "/abs/dir", "owner/name@main", "a+b", "with space", "no", "7", "a#b", "C:x", "è",
		"- a")
}

func (g *specs) number() any {
	switch g.IntN(4) {
	case 0:
		return g.IntN(2000) - 1000
	case 1:
		return float32(g.Float64())
	case 2:
		return g.NormFloat64() * 1e-7
	}
	return g.NormFloat64() * 1e7
}

func (g *specs) value() any {
	switch g.IntN(5) {
	case 0:
		return g.IntN(2) == 0
	case 1:
		return g.one("sum", "total", "a word", "true", "12")
	case 2:
		return []float64{g.Float64(), 0, 1, -g.Float64()}
	}
	return g.number()
}

func (g *specs) settings() Settings {
	s := Settings{}
	for _, name := range []string{"weight", "density", "normalize", "t"} {
		switch g.IntN(4) {
		case 0:
			s[name] = g.value()
		case 1:
			s[name] = []Rule{{"self_attn", g.value()}, {"*", g.value()}, {"", g.value()}}
		}
	}
	return s
}

func (g *specs) inputs(named bool) (list []Input) {
	for i := range 1 + g.IntN(3) {
		m := Input{Model: g.model(), Settings: g.settings()}
		if named {
			m.Name = "expert" + strconv.Itoa(i)
		}
		list = append(list, m)
	}
	return list
}

func (g *specs) slices() (list []Slice) {
	for range 1 + g.IntN(2) {
		s := Slice{Settings: g.settings(), Base: g.one("", "base")}
		first, n := g.IntN(9), 1+g.IntN(9)
		for range 1 + g.IntN(2) {
			s.Sources = append(s.Sources, LayerRange{g.model(), first, first + n, g.settings()})
		}
		list = append(list, s)
	}
	return list
}

func (g *specs) spec() Spec {
	s := Spec{
		Method: g.one("ties", "linear", "slerp"), Base: g.one("", g.model()), DType: g.one("", "bfloat16", "float32"),
		OutDType: g.one("", "float16"), Settings: g.settings(),
		ChatTemplate: g.one("", "auto", "chatml", "{{ messages }}"+g.odd()+"{% endfor %}"),
	}
	s.Name = "n" + strconv.Itoa(g.Int())

	switch g.IntN(4) {
	case 0:
		s.Models = g.inputs(false)
	case 1:
		s.Slices = g.slices()
	case 2:
		s.Modules = map[string]Module{
			"text_decoder": {Models: g.inputs(false), Settings: g.settings()}, "a: b": {Slices: g.slices()},
		}
	default:
		s.Method, s.Settings = recipe.Mediated, nil
		s.Models, s.Mediate = g.inputs(true), g.mediate()
	}

	if g.IntN(2) == 0 {
		id := g.IntN(100)
		s.Tokenizer = &Tokenizer{
			Source: g.one("union", "base", "some/model"), Multiple: g.IntN(3) * 32,
			Tokens: map[string]Token{
				g.odd(): {Model: g.model(), Force: true}, "<a>": {Zero: true}, "null": {Model: "m", Text: g.odd()},
				"1": {Model: "m", ID: &id},
			},
		}
	}
	return s
}

func (g *specs) mediate() *Mediate {
	m := &Mediate{
		Granularity: g.one("layer", "block", "tensor"), Metric: g.one("mass", "disagree"), Density: 1 - g.Float64(),
		Select: g.one("none", "otsu", "sigma: 0.25", "top_k: 3", "layers: [0, 5]", "quantile: 0.5", "budget: 1048576"),
		Dense:  g.one("mean", "base", "expert: expert0"), RouteEmbeddings: g.IntN(2) == 0,
		Keep:    g.one("sign1", "magnitude: 0.125", "bits: 3", "lowrank: 16", "best: 0.05"),
		Average: &StaticMerge{g.one("linear", "ties"), g.settings()},
	}
	if g.IntN(3) == 0 {
		m.Dense, m.DenseMerge = "", &StaticMerge{"ties", g.settings()}
	}
	shrinkage := g.Float64()
	m.Router = &Router{
		Features: "hidden_last", Classifier: g.one("lda", "mlp"), Shrinkage: &shrinkage, Foreign: g.one("", g.odd()),
		Prompts: map[string]string{"expert0": g.odd()},
	}
	return m
}

// plainSpec is a spec whose settings are texts, and whose pointers are values, so that two can be compared as texts.
func plainSpec(s Spec) any {
	type plain struct {
		Spec      string
		Tokenizer string
		Tokens    map[string]string
		Mediate   []string
	}
	out := plain{}
	if m := s.Mediate; m != nil {
		out.Mediate = []string{
			fmt.Sprint(m.Granularity, m.Metric, m.Density, m.Select, m.Dense, m.Keep, m.RouteEmbeddings),
			fmt.Sprint(m.Average.Method, plainSettings(m.Average.Settings)),
			fmt.Sprint(m.Router.Features, m.Router.Classifier, *m.Router.Shrinkage),
			fmt.Sprintf("%q %q", m.Router.Foreign, m.Router.Prompts),
		}
		if m.DenseMerge != nil {
			out.Mediate = append(out.Mediate, m.DenseMerge.Method+fmt.Sprint(plainSettings(m.DenseMerge.Settings)))
		}
	}
	if t := s.Tokenizer; t != nil {
		out.Tokenizer, out.Tokens = fmt.Sprint(t.Source, t.Multiple), map[string]string{}
		for text, x := range t.Tokens {
			id := -1
			if x.ID != nil {
				id = *x.ID
			}
			out.Tokens[text] = fmt.Sprintf("%q %q %d %v %v", x.Model, x.Text, id, x.Zero, x.Force)
		}
	}

	s.Mediate, s.Tokenizer = nil, nil
	s.Settings = plainSettings(s.Settings)
	inputs := func(list []Input) (out []Input) {
		for _, m := range list {
			m.Settings = plainSettings(m.Settings)
			out = append(out, m)
		}
		return out
	}
	runs := func(list []Slice) (out []Slice) {
		for _, x := range list {
			x.Settings = plainSettings(x.Settings)
			sources := x.Sources
			x.Sources = nil
			for _, y := range sources {
				y.Settings = plainSettings(y.Settings)
				x.Sources = append(x.Sources, y)
			}
			out = append(out, x)
		}
		return out
	}
	s.Models, s.Slices = inputs(s.Models), runs(s.Slices)
	modules := map[string]Module{}
	for name, m := range s.Modules {
		modules[name] = Module{inputs(m.Models), runs(m.Slices), plainSettings(m.Settings)}
	}
	s.Modules = modules
	out.Spec = fmt.Sprintf("%+q", fmt.Sprintf("%+v", s))
	return out
}

// plainSettings are settings as texts: numbers as the float64 that a reader takes them for.
func plainSettings(s Settings) Settings {
	text := func(x any) string {
		var parts []string
		v := reflect.ValueOf(x)
		if v.Kind() != reflect.Slice {
			return plainText(x)
		}
		for i := range v.Len() {
			parts = append(parts, plainText(v.Index(i).Interface()))
		}
		return fmt.Sprintf("gradient %q", parts)
	}

	out := Settings{}
	for name, x := range s {
		rules, ok := x.([]Rule)
		if !ok {
			out[name] = text(x)
			continue
		}
		var list []string
		for _, r := range rules {
			list = append(list, r.Filter+"="+text(r.Value))
		}
		out[name] = fmt.Sprintf("rules %q", list)
	}
	return out
}

// plainText is a scalar; a number by its value.
func plainText(x any) string {
	said := fmt.Sprint(x)
	if n, err := strconv.ParseFloat(said, 64); err == nil {
		return strconv.FormatFloat(n, 'g', -1, 64)
	}
	return said
}

// specOf is a document as a spec.
func specOf(d *recipe.Document) Spec {
	s := Spec{
		Name: d.Name, Method: d.Method, DType: dtype.Torch(d.DType), OutDType: dtype.Torch(d.OutDType),
		ChatTemplate: d.ChatTemplate, Settings: settingsOf(d.Parameters), Models: inputsOf(d.Models),
		Slices: slicesOf(d.Slices),
	}
	if d.Base != nil {
		s.Base = d.Base.String()
	}
	for _, m := range d.Modules {
		if s.Modules == nil {
			s.Modules = map[string]Module{}
		}
		s.Modules[m.Name] = Module{inputsOf(m.Models), slicesOf(m.Slices), settingsOf(m.Parameters)}
	}

	if t := d.Tokenizer; t != nil {
		s.Tokenizer = &Tokenizer{
			Source: []string{"union", "base", t.Model.String()}[t.Vocabulary], Multiple: t.Multiple,
			Tokens: map[string]Token{},
		}
		for _, x := range t.Tokens {
			token := Token{Model: x.Source.Model.String(), Text: x.Source.Text, Force: x.Force}
			token.Zero = x.Source.Kind == recipe.TokenZero
			if x.Source.Kind == recipe.TokenID {
				token.ID = &x.Source.ID
			}
			s.Tokenizer.Tokens[x.Text] = token
		}
	}
	if d.Mediate != nil {
		s.Mediate = mediateOf(d.Mediate)
	}
	return s
}

func mediateOf(m *recipe.Mediate) *Mediate {
	out := &Mediate{
		Granularity: m.Granularity, Metric: m.Metric, Density: m.Density, RouteEmbeddings: m.RouteEmbeddings,
		Select: m.Select.Rule, Dense: m.Dense.Kind, Keep: m.Keep.Kind,
		Average: &StaticMerge{m.Average.Method, settingsOf(m.Average.Parameters)},
		Router: &Router{
			Features: m.Router.Features, Classifier: m.Router.Classifier, Shrinkage: &m.Router.Shrinkage,
			Foreign: m.Router.Foreign, Prompts: map[string]string{},
		},
	}
	switch m.Select.Rule {
	case "none", "all", "otsu":
	case "budget":
		out.Select += fmt.Sprintf(": %d", m.Select.Bytes)
	case "layers":
		out.Select += ": " + strings.ReplaceAll(fmt.Sprint(m.Select.Layers), " ", ", ")
	default:
		out.Select += fmt.Sprintf(": %v", m.Select.Value)
	}
	if m.Keep.Kind != "sign1" {
		out.Keep += fmt.Sprintf(": %v", m.Keep.Value)
	}
	switch m.Dense.Kind {
	case "expert":
		out.Dense += ": " + m.Dense.Expert
	case "method":
		out.Dense, out.DenseMerge = "", &StaticMerge{m.Dense.Merge.Method, settingsOf(m.Dense.Merge.Parameters)}
	}
	for _, p := range m.Router.Prompts {
		out.Router.Prompts[p.Expert] = p.File
	}
	return out
}

func inputsOf(list []recipe.Model) (out []Input) {
	for _, m := range list {
		out = append(out, Input{m.Ref.String(), m.Name, settingsOf(m.Parameters)})
	}
	return out
}

func slicesOf(list []recipe.Slice) (out []Slice) {
	for _, s := range list {
		x := Slice{Settings: settingsOf(s.Parameters)}
		if s.Base != nil {
			x.Base = s.Base.String()
		}
		for _, y := range s.Sources {
			x.Sources = append(x.Sources, LayerRange{y.Ref.String(), y.First, y.End, settingsOf(y.Parameters)})
		}
		out = append(out, x)
	}
	return out
}

func settingsOf(p recipe.Parameters) Settings {
	out := Settings{}
	text := func(n *strictyaml.Node) string { return n.Text }
	value := func(r recipe.Rule) any {
		if !r.Gradient {
			return text(r.Values[0])
		}
		var list []string
		for _, n := range r.Values {
			list = append(list, text(n))
		}
		return list
	}
	for _, x := range p {
		if len(x.Setting) == 1 && x.Setting[0].Filter == "" {
			out[x.Name] = value(x.Setting[0])
			continue
		}
		var rules []Rule
		for _, r := range x.Setting {
			rules = append(rules, Rule{r.Filter, value(r)})
		}
		out[x.Name] = rules
	}
	return out
}

// TestNew: a spec gives the recipe that a file gives, and what cannot be one is refused.
func TestNew(t *testing.T) {
	const base, sums, news = "../testdata/nano/base", "../testdata/nano/sums", "../testdata/nano/news"
	r, err := New(Spec{
		Method: "ties", Base: base, DType: "float32",
		Models: []Input{
			{Model: sums, Settings: Settings{"weight": 1, "density": 0.5}},
			{Model: news, Settings: Settings{"weight": 1, "density": []Rule{{"mlp", 0.5}, {"", []float64{0.2, 0.9}}}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `merge_method: ties
base_model: ../testdata/nano/base
models:
  - model: ../testdata/nano/sums
    parameters:
      density: 0.5
      weight: 1
  - model: ../testdata/nano/news
    parameters:
      density:
        - filter: mlp
          value: 0.5
        - value: [0.2, 0.9]
      weight: 1
dtype: float32
`
	if string(r.Text()) != want {
		t.Errorf("%s\nwant\n%s", r.Text(), want)
	}

	weighed := func(x any) []Input { return []Input{{Model: sums, Settings: Settings{"weight": x}}} }
	for said, s := range map[string]Spec{
		"an empty spec":              {},
		"weight is NaN":              {Method: "linear", Models: weighed(nan())},
		"is no number, bool":         {Method: "linear", Models: weighed(r)},
		"Mediate is for method":      {Method: "linear", Models: []Input{{Model: sums}}, Mediate: &Mediate{}},
		"its settings are Mediate's": {Method: "mediate", Models: []Input{{Model: sums}}, Settings: Settings{"a": 1}},
		"exclude each other": {
			Method: "mediate", Models: []Input{{Model: sums}},
			Mediate: &Mediate{Dense: "mean", DenseMerge: &StaticMerge{Method: "ties"}},
		},
		"several sources": {
			Method: "linear", Models: []Input{{Model: sums}},
			Tokenizer: &Tokenizer{Tokens: map[string]Token{"a": {Zero: true, Text: "b"}}},
		},
		"is no UTF-8": {Method: "linear", Models: []Input{{Model: "\xff"}}},
	} {
		if _, err := New(s); !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), said) {
			t.Errorf("%v, want %s", err, said)
		}
	}

	// Other faults are those of a file, by line and column.
	if _, err := New(Spec{Method: "tise", Models: []Input{{Model: sums}}}); err == nil ||
		!strings.Contains(err.Error(), "recipe:1:15") {
		t.Error(err)
	}
}

func nan() float64 {
	zero := 0.0
	return zero / zero
}

// TestNewKeepsWhatIsEmpty: modules, tokens and prompts that say nothing are not left out, so that the reader judges
// them.
func TestNewKeepsWhatIsEmpty(t *testing.T) {
	const sums = "../testdata/nano/sums"
	for said, s := range map[string]Spec{
		"vision": {Method: "linear", Modules: map[string]Module{"vision": {}}},
		"a prompt file must be text": {
			Method: "mediate", Base: "../testdata/nano/base", Models: []Input{{Model: sums}},
			Mediate: &Mediate{Router: &Router{Prompts: map[string]string{"sums": ""}}},
		},
	} {
		if r, err := New(s); err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v\n%s", said, err, r.Text())
		}
	}

	r, err := New(Spec{
		Method: "linear", Models: []Input{{Model: sums, Settings: Settings{"weight": 1}}},
		Tokenizer: &Tokenizer{Tokens: map[string]Token{"<odd>": {}}},
	})
	if err != nil || !strings.Contains(string(r.Text()), `"<odd>": {}`) {
		t.Errorf("%v\n%s", err, r.Text())
	}
}
