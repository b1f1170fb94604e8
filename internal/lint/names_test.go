package lint

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
	"unicode"
)

// TestNoInit: nothing happens because a package is imported; choices are tables and switches that are read in
// one place.
func TestNoInit(t *testing.T) {
	functions(t, func(_ *pkg, s *source, f *ast.FuncDecl) {
		switch {
		case f.Recv != nil || s.test:
		case f.Name.Name == "init":
			t.Errorf("%s: func init; write a table, or a call where it is needed", at(f))
		case strings.HasPrefix(f.Name.Name, "Register"):
			t.Errorf("%s: func %s; lists are closed and written out", at(f), f.Name.Name)
		}
	})
}

// TestNoStutter: prune.Options, not prune.PruneOptions.
func TestNoStutter(t *testing.T) {
	eachFile(t, func(_ *pkg, s *source) {
		own := s.ast.Name.Name
		if s.test || own == "main" {
			return
		}

		for _, name := range exported(s.ast) {
			if len(name.Name) > len(own) && strings.EqualFold(name.Name[:len(own)], own) &&
				unicode.IsUpper(rune(name.Name[len(own)])) {
				t.Errorf("%s: %s.%s says the package's name twice", at(name), own, name.Name)
			}
		}
	})
}

// exported lists the exported names that a file declares at package level, methods apart.
func exported(f *ast.File) (names []*ast.Ident) {
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id.IsExported() {
				names = append(names, id)
			}
		}
	}

	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name)
				case *ast.ValueSpec:
					add(spec.Names...)
				}
			}
		}
	}

	return names
}

// functions calls f for every function and method with a body or without, tests included.
func functions(t *testing.T, f func(p *pkg, s *source, fn *ast.FuncDecl)) {
	t.Helper()
	eachFile(t, func(p *pkg, s *source) {
		for _, d := range s.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				f(p, s, fn)
			}
		}
	})
}

// TestDocumented: every package, every exported name, every method of an exported type or interface has a comment.
// A comment on a group of constants or variables covers the group, one on an interface its only method.
func TestDocumented(t *testing.T) {
	each(t, func(p *pkg) {
		code := p.code()
		documented := len(code) == 0
		for _, s := range code {
			documented = documented || s.ast.Doc.Text() != ""
			for _, name := range undocumented(s.ast) {
				t.Errorf("%s: %s has no comment", at(name), name.Name)
			}
		}

		if !documented {
			t.Errorf("package %q has no package comment", p.name)
		}
	})
}

// undocumented lists the exported names of a file that lack a comment.
func undocumented(f *ast.File) (names []*ast.Ident) {
	need := func(id *ast.Ident, comments ...*ast.CommentGroup) {
		if !id.IsExported() {
			return
		}
		for _, c := range comments {
			if strings.TrimSpace(c.Text()) != "" {
				return
			}
		}
		names = append(names, id)
	}

	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if receiver := receiverName(d); receiver == "" || token.IsExported(receiver) {
				need(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					need(spec.Name, spec.Doc, d.Doc, spec.Comment)

					if i, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.IsExported() &&
						i.Methods.NumFields() > 1 {
						for _, m := range i.Methods.List {
							for _, id := range m.Names {
								need(id, m.Doc, m.Comment)
							}
						}
					}
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						need(id, spec.Doc, d.Doc, spec.Comment)
					}
				}
			}
		}
	}

	return names
}

// receiverName is the type that a method belongs to; "" for functions.
func receiverName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}

	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
