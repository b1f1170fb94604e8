package recipe

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// Source is a folder with a checkpoint or an adapter: a path or a name on the Hugging Face hub, and a revision of it.
type Source struct {
	Path     string
	Revision string // "": the default one
}

// Ref names a model of a recipe. Refs can be compared and used as keys.
type Ref struct {
	Model   Source
	Adapter Source // Path "": none
	Class   string // override_architecture: counts as the configuration's "architectures"; "": as it is
}

// String gives the notation path[@revision][+adapter[@revision]].
func (s Source) String() string {
	if s.Revision != "" {
		return s.Path + "@" + s.Revision
	}
	return s.Path
}

// String gives the notation of recipes.
func (r Ref) String() string {
	if r.Adapter.Path != "" {
		return r.Model.String() + "+" + r.Adapter.String()
	}
	return r.Model.String()
}

// ParseRef reads the notation path[@revision][+adapter[@revision]]. Paths that hold "+" or "@" need the form of a map.
func ParseRef(text string) (Ref, error) {
	model, adapter, has := strings.Cut(text, "+")
	if strings.Contains(adapter, "+") {
		return Ref{}, fmt.Errorf(`%q has more than one "+"; write {model: {path: …}, lora: {path: …}} for such a path`,
			text)
	}

	var out Ref
	var err error
	if out.Model, err = parseSource(model); err != nil {
		return Ref{}, err
	}

	if has {
		if out.Adapter, err = parseSource(adapter); err != nil {
			return Ref{}, err
		}
	}

	return out, nil
}

// parseSource reads path[@revision].
func parseSource(text string) (Source, error) {
	path, revision, has := strings.Cut(text, "@")
	switch {
	case strings.Contains(revision, "@"):
		return Source{}, fmt.Errorf(`%q has more than one "@"; write {model: {path: …, revision: …}} for such a path`,
			text)
	case path == "" || has && revision == "":
		return Source{}, fmt.Errorf("%q names no model", text)
	case strings.ContainsRune(text, 0):
		return Source{}, fmt.Errorf("%q holds a zero byte", text)
	}

	return Source{Path: path, Revision: revision}, nil
}

// DecodeRef reads a reference: text, or a map of model, lora and override_architecture.
func DecodeRef(r *strictyaml.Reader, n *strictyaml.Node, what string) Ref {
	if n.Kind != strictyaml.Map {
		out, err := ParseRef(r.Text(n, what))
		if err != nil && n.Kind == strictyaml.Scalar {
			r.Add(n.Place, strictyaml.ErrValue, "%s: %v", what, err)
		}
		return out
	}

	var out Ref
	o := r.Object(n, "a model reference")
	if m := o.Need("model"); m != nil {
		out.Model = source(r, m, what)
	}
	if l := o.Get("lora"); l != nil {
		out.Adapter = source(r, l, "lora")
	}
	if c := o.Get("override_architecture"); c != nil {
		out.Class = r.Text(c, "override_architecture")
	}

	o.Close()
	return out
}

// source decodes one folder of a reference.
func source(r *strictyaml.Reader, n *strictyaml.Node, what string) Source {
	if n.Kind != strictyaml.Map {
		out, err := parseSource(r.Text(n, what))
		if err != nil && n.Kind == strictyaml.Scalar {
			r.Add(n.Place, strictyaml.ErrValue, "%s: %v", what, err)
		}
		return out
	}

	var out Source
	o := r.Object(n, "a path with a revision")
	if p := o.Need("path"); p != nil {
		out.Path = r.Text(p, "path")
	}
	if v := o.Get("revision"); v != nil {
		out.Revision = r.Text(v, "revision")
	}

	o.Close()
	return out
}

// MaxLayers bounds layer numbers, far above any model.
const MaxLayers = 100_000
