package recipe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/safetensors"
)

// Document is one merge: a YAML document.
type Document struct {
	strictyaml.Place
	Name   string // "" if it has none; other documents may use it as a model
	Method string
	// Exactly one of the three is set.
	Models  []Model
	Slices  []Slice
	Modules []Module

	Base         *Ref              // nil: none
	DType        safetensors.DType // to work in; 0: the type of the inputs
	OutDType     safetensors.DType // to write; 0: DType
	Tokenizer    *Tokenizer        // nil: the donor's files are copied
	ChatTemplate string            // "auto", the name of a known template, or a template; "": the tokenizer's own
	Parameters   Parameters
	Mediate      *Mediate // nil unless Method is "mediate"
	Node         *strictyaml.Node
	MethodAt     strictyaml.Place // of merge_method
	BaseAt       strictyaml.Place // of base_model
	source       *strictyaml.Source
}

// Model is an entry of models.
type Model struct {
	strictyaml.Place
	Ref        Ref
	Name       string // of an expert of a mediate recipe; "" elsewhere
	Parameters Parameters
}

// Slice is a run of output layers.
type Slice struct {
	strictyaml.Place
	Sources    []LayerRange
	Base       *Ref // instead of the document's
	Parameters Parameters
	Residual   bool // it has the key residual_weight, which has no effect
}

// LayerRange is the layers [First, End) of a model.
type LayerRange struct {
	strictyaml.Place
	Ref        Ref
	First, End int
	Parameters Parameters
}

// Module is a part of the model with layers of its own, such as a vision tower. Exactly one of Models and
// Slices is set.
type Module struct {
	strictyaml.Place
	Name       string // "default" for the only one
	Models     []Model
	Slices     []Slice
	Parameters Parameters
}

// Parse reads a recipe file: its documents in the order of the file. The error is a *strictyaml.Problems with every
// fault of every document, with those that check adds, which may be nil. With an error the documents hold what could
// be read.
func Parse(file string, text []byte, check func(*strictyaml.Reader, *Document)) ([]*Document, error) {
	src, err := strictyaml.Parse(file, text)
	if err != nil {
		return nil, err
	}

	r := src.NewReader()
	if len(src.Documents) == 0 {
		r.Add(strictyaml.Place{Line: 1, Column: 1}, strictyaml.ErrMissingKey, "the file holds no recipe")
		return nil, r.Err()
	}

	var out []*Document
	for _, n := range src.Documents {
		d := document(r, src, n)
		if check != nil {
			check(r, d)
		}
		out = append(out, d)
	}

	names(r, out)
	return out, r.Err()
}

// IsMoE reports whether a file is a recipe for a mixture of experts: its first document has the key "experts".
func IsMoE(text []byte) bool {
	src, err := strictyaml.Parse("", text)
	return err == nil && len(src.Documents) > 0 && src.Documents[0].Get("experts") != nil
}

// names notes documents without a name, or with the same one, where there are several.
func names(r *strictyaml.Reader, docs []*Document) {
	unnamed := 0
	for i, d := range docs {
		if d.Name == "" {
			unnamed++
			if unnamed == 2 {
				r.Add(d.Place, strictyaml.ErrMissingKey,
					`of several documents only one, the final result, may be without a "name"`)
			}
			continue
		}

		if slices.ContainsFunc(docs[:i], func(o *Document) bool { return o.Name == d.Name }) {
			r.Add(d.Place, strictyaml.ErrDuplicateKey, "two documents have the name %q", d.Name)
		}
	}
}

// document decodes one document.
func document(r *strictyaml.Reader, src *strictyaml.Source, n *strictyaml.Node) *Document {
	d := &Document{Place: n.Place, Node: n, source: src}
	o := r.Object(n, "a recipe")
	if v := o.Get("name"); v != nil {
		d.Name = documentName(r, v)
	}
	if v := o.Need("merge_method"); v != nil {
		d.Method, d.MethodAt = r.Text(v, "merge_method"), v.Place
	}

	if v := o.Get("base_model"); v != nil {
		base := DecodeRef(r, v, "base_model")
		d.Base, d.BaseAt = &base, v.Place
	}

	d.DType, d.OutDType = DecodeDType(r, o.Get("dtype"), "dtype"), DecodeDType(r, o.Get("out_dtype"), "out_dtype")
	inputs(r, o, d)
	if v := o.Get("chat_template"); v != nil {
		d.ChatTemplate = chatTemplate(r, v)
	}

	d.Tokenizer = tokenizer(r, o)
	v := o.Get("parameters")
	if d.Method == Mediated {
		d.Mediate = mediate(r, v, d.Models)
	} else {
		d.Parameters = parameters(r, v)
	}

	o.Close()
	return d
}

// documentName decodes the name of a document, which becomes a folder.
func documentName(r *strictyaml.Reader, n *strictyaml.Node) string {
	name := r.Text(n, "name")
	if !plain(name) || strings.HasPrefix(name, ".") {
		r.Add(n.Place, strictyaml.ErrValue, "name must be a plain word, not %q", name)
	}
	return name
}

// inputs decodes models, slices or modules.
func inputs(r *strictyaml.Reader, o *strictyaml.Object, d *Document) {
	ms := o.Get("models")
	ss := o.Get("slices")
	mods := o.Get("modules")
	if one(ms)+one(ss)+one(mods) != 1 {
		r.Add(d.Place, strictyaml.ErrValue, "a recipe needs exactly one of models, slices and modules")
	}
	if ms != nil {
		d.Models = models(r, ms, d.Method == Mediated)
	}
	if ss != nil {
		d.Slices = slicesOf(r, ss)
	}
	if mods != nil {
		d.Modules = modules(r, mods)
	}
	if d.Method == Mediated && ms == nil {
		r.Add(d.Place, strictyaml.ErrValue, "merge_method: mediate takes its experts from models")
	}
}

// one is 1 for a node that has something in it.
func one(n *strictyaml.Node) int {
	if n == nil || n.Kind != strictyaml.Scalar && len(n.Items)+len(n.Entries) == 0 {
		return 0
	}
	return 1
}

// models decodes a list of models.
func models(r *strictyaml.Reader, n *strictyaml.Node, named bool) []Model {
	var out []Model
	for _, item := range r.List(n, "models") {
		m := Model{Place: item.Place}
		o := r.Object(item, "a model")
		if v := o.Need("model"); v != nil {
			m.Ref = DecodeRef(r, v, "model")
		}

		if named {
			if v := o.Get("name"); v != nil {
				m.Name = documentName(r, v)
			}
		}

		m.Parameters = parameters(r, o.Get("parameters"))
		o.Close()
		out = append(out, m)
	}

	return out
}

// slicesOf decodes a list of slices.
func slicesOf(r *strictyaml.Reader, n *strictyaml.Node) []Slice {
	var out []Slice
	for _, item := range r.List(n, "slices") {
		s := Slice{Place: item.Place}
		o := r.Object(item, "a slice")
		if v := o.Need("sources"); v != nil {
			for _, x := range r.List(v, "sources") {
				s.Sources = append(s.Sources, layerRange(r, x))
			}
			if v.Kind == strictyaml.List && len(v.Items) == 0 {
				r.Add(v.Place, strictyaml.ErrValue, "a slice needs at least one source")
			}
		}

		if v := o.Get("base_model"); v != nil {
			base := DecodeRef(r, v, "base_model")
			s.Base = &base
		}

		if v := o.Get("residual_weight"); v != nil {
			_, s.Residual = r.Number(v, "residual_weight"), true
		}

		s.Parameters = parameters(r, o.Get("parameters"))
		o.Close()
		equalLengths(r, &s)
		out = append(out, s)
	}

	return out
}

// layerRange decodes a source of a slice.
func layerRange(r *strictyaml.Reader, n *strictyaml.Node) LayerRange {
	out := LayerRange{Place: n.Place}
	o := r.Object(n, "a source")
	if v := o.Need("model"); v != nil {
		out.Ref = DecodeRef(r, v, "model")
	}

	if v := o.Need("layer_range"); v != nil {
		bounds := r.List(v, "layer_range")
		if v.Kind == strictyaml.List && len(bounds) != 2 {
			r.Add(v.Place, strictyaml.ErrValue, "layer_range must be [first, end], not %d numbers", len(bounds))
		} else if len(bounds) == 2 {
			out.First = r.Int(bounds[0], "the first layer", 0, MaxLayers)
			out.End = r.Int(bounds[1], "the end of the layers", 0, MaxLayers)
			if out.First >= out.End {
				r.Add(v.Place, strictyaml.ErrValue,
					"layer_range [%d, %d) holds no layer; the second number is the first layer left out", out.First,
					out.End)
			}
		}
	}

	out.Parameters = parameters(r, o.Get("parameters"))
	o.Close()
	return out
}

// equalLengths notes sources with another number of layers than the first; ranges without layers have been
// noted already.
func equalLengths(r *strictyaml.Reader, s *Slice) {
	if slices.ContainsFunc(s.Sources, func(x LayerRange) bool { return x.First >= x.End }) {
		return
	}
	for _, x := range s.Sources[min(1, len(s.Sources)):] {
		if a, b := s.Sources[0], x; a.End-a.First != b.End-b.First {
			r.Add(x.Place, strictyaml.ErrValue, "%s gives %d layers to the slice, %s %d; all sources of a slice "+
				"must have the same number", b.Ref, b.End-b.First, a.Ref, a.End-a.First)
		}
	}
}

// modules decodes a map of modules.
func modules(r *strictyaml.Reader, n *strictyaml.Node) []Module {
	if n.Kind != strictyaml.Map {
		r.Add(n.Place, strictyaml.ErrType, "modules must be a map of names, not %s", n.Kind)
	}

	var out []Module
	for _, e := range n.Entries {
		m := Module{Place: e.Place, Name: e.Key}
		o := r.Object(e.Value, fmt.Sprintf("module %q", e.Key))
		ms, ss := o.Get("models"), o.Get("slices")
		if one(ms)+one(ss) != 1 {
			r.Add(e.Place, strictyaml.ErrValue, "module %q needs exactly one of models and slices", e.Key)
		}
		if ms != nil {
			m.Models = models(r, ms, false)
		}
		if ss != nil {
			m.Slices = slicesOf(r, ss)
		}

		m.Parameters = parameters(r, o.Get("parameters"))
		o.Close()
		out = append(out, m)
	}

	return out
}

// DecodeDType decodes the name of a floating-point type.
func DecodeDType(r *strictyaml.Reader, n *strictyaml.Node, what string) safetensors.DType {
	if n == nil {
		return 0
	}
	name := r.Text(n, what)
	d := dtype.ParseTorch(name)
	if d == 0 && n.Kind == strictyaml.Scalar {
		r.Add(n.Place, strictyaml.ErrValue, "%s must be bfloat16, float16, float32 or float64, not %q", what, name)
	}
	return d
}

// References lists the models that a document mentions, each once, in order of appearance; the base comes last
// unless it is listed among the models, then those that only the tokenizer needs.
func (d *Document) References() []Ref {
	var out []Ref
	add := func(r Ref) {
		if r.Model.Path != "" && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}

	each := func(models []Model, runs []Slice) {
		for _, m := range models {
			add(m.Ref)
		}

		for _, s := range runs {
			for _, x := range s.Sources {
				add(x.Ref)
			}
			if s.Base != nil {
				add(*s.Base)
			}
		}
	}

	each(d.Models, d.Slices)
	for _, m := range d.Modules {
		each(m.Models, m.Slices)
	}
	if d.Base != nil {
		add(*d.Base)
	}

	if d.Tokenizer != nil {
		for _, r := range d.Tokenizer.references() {
			add(r)
		}
	}

	return out
}

// Order gives the documents so that each comes after those whose results it uses, otherwise in the order of the file.
// The error, a *strictyaml.Problems, names the documents of a cycle.
func Order(docs []*Document) ([]*Document, error) {
	byName := map[string]*Document{}
	for _, d := range docs {
		if d.Name != "" {
			byName[d.Name] = d
		}
	}

	var out []*Document
	placed := map[*Document]bool{}
	for len(out) < len(docs) {
		before := len(out)

		for _, d := range docs {
			if !placed[d] && d.ready(byName, placed) {
				out, placed[d] = append(out, d), true
			}
		}

		if len(out) == before {
			return nil, cycle(docs, placed)
		}
	}

	return out, nil
}

// ready reports whether the results that a document uses are there.
func (d *Document) ready(byName map[string]*Document, placed map[*Document]bool) bool {
	return !slices.ContainsFunc(d.References(), func(r Ref) bool {
		needed, ok := byName[r.Model.Path]
		return ok && r.Model.Revision == "" && !placed[needed]
	})
}

// cycle reports the documents that wait for each other.
func cycle(docs []*Document, placed map[*Document]bool) error {
	var waiting []string
	r := docs[0].source.NewReader()

	for _, d := range docs {
		if !placed[d] && d.Name != "" {
			waiting = append(waiting, d.Name)
		}
	}

	for _, d := range docs {
		if !placed[d] {
			r.Add(d.Place, strictyaml.ErrValue, "these documents need each other's results: %s",
				strings.Join(waiting, ", "))
			break
		}
	}

	return r.Err()
}

// Reader gives a reader that notes faults of the document found later, with their places in the file.
func (d *Document) Reader() *strictyaml.Reader {
	return d.source.NewReader()
}

// plain reports whether a name stays in its folder.
func plain(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\\x00")
}
