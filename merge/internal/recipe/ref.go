package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/strict"
	"github.com/modelcompress/compress/safetensors"
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
		return Ref{}, fmt.Errorf(`%q has more than one "+"; write {model: {path: …}, lora: {path: …}} for such a path`, text)
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
		return Source{}, fmt.Errorf(`%q has more than one "@"; write {model: {path: …, revision: …}} for such a path`, text)
	case path == "" || has && revision == "":
		return Source{}, fmt.Errorf("%q names no model", text)
	case strings.ContainsRune(text, 0):
		return Source{}, fmt.Errorf("%q holds a zero byte", text)
	}
	return Source{Path: path, Revision: revision}, nil
}

// ref decodes a reference: text, or a map of model, lora and override_architecture.
func ref(r *strict.Reader, n *strict.Node, what string) Ref {
	if n.Kind != strict.Map {
		out, err := ParseRef(r.Text(n, what))
		if err != nil && n.Kind == strict.Scalar {
			r.Add(n.Place, strict.ErrValue, "%s: %v", what, err)
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
func source(r *strict.Reader, n *strict.Node, what string) Source {
	if n.Kind != strict.Map {
		out, err := parseSource(r.Text(n, what))
		if err != nil && n.Kind == strict.Scalar {
			r.Add(n.Place, strict.ErrValue, "%s: %v", what, err)
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

// ErrNotFound: no folder is where a reference points.
var ErrNotFound = errors.New("model not found")

// Places says where the models of a recipe may lie.
type Places struct {
	Recipe string            // folder of the recipe, tried after the working directory; "": none
	Named  map[string]string // folders of earlier documents by their names, tried first
	Cache  string            // folder of the hub's cache (…/huggingface/hub), tried last; "": none
}

// HubCache gives the folder of the hub's cache as the environment sets it, or its usual place.
func HubCache() string {
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return dir
	}
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return filepath.Join(dir, "hub")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".cache", "huggingface", "hub")
}

// Locate finds the folder of a source: the result of a named document, a path from the working directory or from the
// recipe, or a copy in the hub's cache. A revision only counts there, so a local folder with one is refused. Nothing is
// fetched; the error wraps ErrNotFound and names what was tried.
func Locate(s Source, p Places) (string, error) {
	if dir, ok := p.Named[s.Path]; ok && s.Revision == "" {
		return dir, nil
	}
	tried := []string{s.Path}
	if !filepath.IsAbs(s.Path) && p.Recipe != "" {
		tried = append(tried, filepath.Join(p.Recipe, s.Path))
	}
	for _, dir := range tried {
		if _, err := os.Stat(dir); err == nil {
			if s.Revision != "" {
				return "", fmt.Errorf("%w: %s is a local folder, which has no revision %q", ErrNotFound, dir, s.Revision)
			}
			return dir, nil
		}
	}
	if dir, ok := cached(s, p.Cache); ok {
		return dir, nil
	}
	return "", fmt.Errorf("%w: %s (tried %s; nothing is downloaded)", ErrNotFound, s, strings.Join(append(tried[1:], "the hub's cache"), " and "))
}

// cached finds a source in the hub's cache, where models--owner--name holds refs/<revision> and snapshots/<commit>.
func cached(s Source, cache string) (string, bool) {
	owner, name, ok := strings.Cut(s.Path, "/")
	if cache == "" || !ok || !plainName(owner) || !plainName(name) {
		return "", false
	}
	root := filepath.Join(cache, "models--"+owner+"--"+name)
	revision := s.Revision
	if revision == "" {
		revision = "main"
	}
	if !plainName(revision) {
		return "", false
	}
	if commit, err := os.ReadFile(filepath.Join(root, "refs", revision)); err == nil && len(commit) < 128 {
		revision = strings.TrimSpace(string(commit))
	}
	dir := filepath.Join(root, "snapshots", revision)
	if !plainName(revision) {
		return "", false
	}
	_, err := os.Stat(dir)
	return dir, err == nil
}

// plainName tells a word that stays in its folder.
func plainName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\\x00")
}

// DecodeRef reads a reference from a recipe of another kind: text, or a map of model, lora and override_architecture.
func DecodeRef(r *strict.Reader, n *strict.Node, what string) Ref {
	return ref(r, n, what)
}

// DecodeDType reads the name of a floating-point type, 0 for nil.
func DecodeDType(r *strict.Reader, n *strict.Node, what string) safetensors.DType {
	return dtype(r, n, what)
}
