package lint

import (
	"go/ast"
	"testing"
)

const (
	maxMethods    = 7  // of an interface
	maxParams     = 7  // of a function, outside kernels
	maxStatements = 60 // of a function, those of the functions within it apart; outside kernels and tests
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
				t.Errorf("%s: interface %s has %d methods; at most %d, or a struct of funcs", at(x), name, n,
					maxMethods)
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

// TestFunctionSize counts statements and not lines, so that a blank line or a comment never counts against anybody.
func TestFunctionSize(t *testing.T) {
	functions(t, func(p *pkg, s *source, f *ast.FuncDecl) {
		if s.test || s.generated || p.kernel() || f.Body == nil {
			return
		}

		if n := statements(f.Body); n > maxStatements {
			t.Errorf("%s: %s has %d statements; at most %d", at(f), f.Name.Name, n, maxStatements)
		}
		if n := f.Type.Params.NumFields(); n > maxParams {
			t.Errorf("%s: %s has %d parameters; at most %d, or a struct", at(f), f.Name.Name, n, maxParams)
		}
	})
}

// statements counts the statements of a body at every depth. A block, a label and a case only hold others, and a
// function literal is a function of its own.
func statements(body *ast.BlockStmt) (n int) {
	ast.Inspect(body, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.FuncLit:
			if inner := statements(x.Body); inner > maxStatements {
				n += inner
			}
			return false
		case *ast.BlockStmt, *ast.LabeledStmt, *ast.CaseClause, *ast.CommClause, *ast.EmptyStmt:
		case ast.Stmt:
			n++
		}

		return true
	})

	return n
}
