package examples

import (
	"bytes"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"sort"
	"strings"
	"testing"
)

const module = "github.com/modelcompress/compress/"

// public are the packages that programs outside of this module import.
var public = []string{
	"prune", "prune/fitness", "gp", "merge", "merge/mediate", "merge/search", "lora",
	"editeval", "editeval/edit", "editeval/task", "lm", "lm/arch",
	"lm/corpus", "lm/tokenizer", "lm/optim", "safetensors",
	"kernels", "kernels/device",
}

// load reads the types of the public packages from the compiler's own files.
func load(t *testing.T) []*types.Package {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, p := range public {
		args = append(args, module+p)
	}

	text, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatal(err)
	}

	files := map[string]string{}
	for line := range strings.Lines(string(text)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}

	imp := importer.ForCompiler(token.NewFileSet(), "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	var list []*types.Package
	for _, p := range public {
		pkg, err := imp.Import(module + p)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, pkg)
	}

	return list
}

// walker follows exported types from one to the next.
type walker struct {
	named map[*types.TypeName]bool   // internal types with a public name
	seen  map[types.Type]bool        // that were looked at
	found map[*types.TypeName]string // internal types without one, and where they are used
}

func (w *walker) object(o types.Object, where string) {
	if o.Exported() {
		w.walk(o.Type(), where+"."+o.Name())
	}
}

func (w *walker) walk(t types.Type, where string) {
	if t == nil || w.seen[t] {
		return
	}

	w.seen[t] = true

	switch t := t.(type) {
	case *types.Alias:
		w.walk(t.Rhs(), where)
	case *types.Named:
		o := t.Obj()
		if o.Pkg() == nil || !strings.HasPrefix(o.Pkg().Path(), module) {
			return
		}

		if strings.Contains(o.Pkg().Path(), "/internal/") && o.Exported() && !w.named[o] {
			w.found[o] = where
		}

		for i := range t.NumMethods() {
			w.object(t.Method(i), where)
		}

		w.walk(t.Underlying(), where)
	case *types.Struct:
		for i := range t.NumFields() {
			if f := t.Field(i); f.Embedded() {
				// its fields are there, whatever it is called
				w.walk(types.Unalias(f.Type()).Underlying(), where+"."+f.Name())
			} else {
				w.object(f, where)
			}
		}
	case *types.Signature:
		for _, list := range []*types.Tuple{t.Params(), t.Results()} {
			for i := range list.Len() {
				w.walk(list.At(i).Type(), where)
			}
		}
	case *types.Interface:
		for i := range t.NumMethods() {
			w.object(t.Method(i), where)
		}
	case *types.Map:
		w.walk(t.Key(), where)
		w.walk(t.Elem(), where)
	case interface{ Elem() types.Type }:
		w.walk(t.Elem(), where)
	}
}

// TestReachable: every type that the public packages' functions, methods and fields are made of can be named by
// a program outside of this module: it is public, or has an alias that is.
func TestReachable(t *testing.T) {
	w := &walker{named: map[*types.TypeName]bool{}, seen: map[types.Type]bool{}, found: map[*types.TypeName]string{}}
	packages := load(t)
	for _, p := range packages {
		for _, name := range p.Scope().Names() {
			if o, ok := p.Scope().Lookup(name).(*types.TypeName); ok && o.Exported() && o.IsAlias() {
				if n, ok := types.Unalias(o.Type()).(*types.Named); ok {
					w.named[n.Obj()] = true
				}
			}
		}
	}

	for _, p := range packages {
		for _, name := range p.Scope().Names() {
			w.object(p.Scope().Lookup(name), strings.TrimPrefix(p.Path(), module))
		}
	}

	var lines bytes.Buffer
	var list []string
	for o, where := range w.found {
		list = append(list, where+" uses "+strings.TrimPrefix(o.Pkg().Path(), module)+"."+o.Name())
	}

	sort.Strings(list)
	for _, l := range list {
		lines.WriteString("\n  " + l)
	}
	if len(list) > 0 {
		t.Errorf("types without a public name:%s", lines.String())
	}
}
