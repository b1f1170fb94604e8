package lint

import (
	"go/ast"
	"testing"
)

const (
	maxMethods  = 7    // of an interface
	maxParams   = 7    // of a function, outside kernels
	maxFunction = 120  // lines, outside kernels and tests
	maxFile     = 600  // lines, generated files and tests apart
	maxPackage  = 3000 // lines, outside kernels, tests apart
)

func TestInterfaceSize(t *testing.T) {
	each(t, func(p *pkg) {
		types := map[string]ast.Expr{}
		for _, s := range p.files {
			for _, d := range s.ast.Decls {
				if g, ok := d.(*ast.GenDecl); ok {
					for _, spec := range g.Specs {
						if spec, ok := spec.(*ast.TypeSpec); ok {
							types[spec.Name.Name] = spec.Type
						}
					}
				}
			}
		}
		for name, x := range types {
			if n := methods(x, types, 0); n > maxMethods {
				t.Errorf("%s: interface %s has %d methods; at most %d, or a struct of funcs", at(x), name, n, maxMethods)
			}
		}
	})
}

// methods counts the methods of an interface, those of interfaces embedded from the same package included.
func methods(x ast.Expr, types map[string]ast.Expr, depth int) int {
	i, ok := x.(*ast.InterfaceType)
	if !ok || depth > 8 {
		return 0
	}
	n := 0
	for _, m := range i.Methods.List {
		n += len(m.Names)
		if id, ok := m.Type.(*ast.Ident); ok && len(m.Names) == 0 {
			n += methods(types[id.Name], types, depth+1)
		}
	}
	return n
}

func TestFunctionSize(t *testing.T) {
	functions(t, func(p *pkg, s *source, f *ast.FuncDecl) {
		if s.test || s.generated || p.kernel() {
			return
		}
		lines := positions.Position(f.End()).Line - positions.Position(f.Pos()).Line + 1
		if lines > maxFunction {
			t.Errorf("%s: %s has %d lines; at most %d", at(f), f.Name.Name, lines, maxFunction)
		}
		if n := f.Type.Params.NumFields(); n > maxParams {
			t.Errorf("%s: %s has %d parameters; at most %d, or a struct", at(f), f.Name.Name, n, maxParams)
		}
	})
}

func TestFileSize(t *testing.T) {
	eachFile(t, func(_ *pkg, s *source) {
		if !s.test && !s.generated && s.lines > maxFile {
			t.Errorf("%s: %d lines; at most %d", s.name, s.lines, maxFile)
		}
	})
}

func TestPackageSize(t *testing.T) {
	each(t, func(p *pkg) {
		total := 0
		for _, s := range p.code() {
			if !s.generated {
				total += s.lines
			}
		}
		if total > maxPackage && !p.kernel() {
			t.Errorf("package %q: %d lines; at most %d", p.name, total, maxPackage)
		}
	})
}
