package lint

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxColumns = 120
	tabColumns = 4
)

// TestColumns: a line ends where the eye still finds the next one. Raw strings hold what they have to hold, and an
// address in a comment cannot be broken.
func TestColumns(t *testing.T) {
	eachFile(t, func(_ *pkg, s *source) {
		if s.generated {
			return
		}

		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(s.name)))
		if err != nil {
			t.Fatal(err)
		}

		raw := rawLines(s.ast)
		for i, line := range strings.Split(string(text), "\n") {
			n := utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t")
			if n > maxColumns && !raw[i+1] && !strings.Contains(line, "://") {
				t.Errorf("%s:%d: %d columns; at most %d", s.name, i+1, n, maxColumns)
			}
		}
	})
}

// rawLines are the lines on which a raw string, a struct tag included, begins or goes on.
func rawLines(f *ast.File) map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if x, ok := n.(*ast.BasicLit); ok && x.Kind == token.STRING && strings.HasPrefix(x.Value, "`") {
			for i := positions.Position(x.Pos()).Line; i <= positions.Position(x.End()).Line; i++ {
				lines[i] = true
			}
		}

		return true
	})

	return lines
}

// TestHeaders: what an if or a switch does before its condition is what the condition asks about. Anything else is a
// side effect where nobody looks for one.
func TestHeaders(t *testing.T) {
	eachFile(t, func(_ *pkg, s *source) {
		if s.generated {
			return
		}

		for _, n := range hiddenEffects(s.ast) {
			t.Errorf("%s: the condition does not mention what this header does; put it on a line of its own", at(n))
		}
	})
}

func hiddenEffects(f *ast.File) (list []ast.Node) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			if n.Init != nil && !mentions(n.Cond, targets(n.Init)) {
				list = append(list, n)
			}
		case *ast.SwitchStmt:
			// A switch without a tag asks in its cases.
			var asked ast.Node = n.Tag
			if n.Tag == nil {
				asked = n.Body
			}
			if n.Init != nil && !mentions(asked, targets(n.Init)) {
				list = append(list, n)
			}
		}

		return true
	})

	return list
}

// targets are the names that a simple statement assigns to.
func targets(s ast.Stmt) map[string]bool {
	names := map[string]bool{}
	add := func(x ast.Expr) {
		ast.Inspect(x, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Name != "_" {
				names[id.Name] = true
			}
			return true
		})
	}

	switch s := s.(type) {
	case *ast.AssignStmt:
		for _, x := range s.Lhs {
			add(x)
		}
	case *ast.IncDecStmt:
		add(s.X)
	}

	return names
}

// mentions reports whether one of the names stands somewhere in n.
func mentions(n ast.Node, names map[string]bool) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && names[id.Name] {
			found = true
		}
		return !found
	})

	return found
}

// TestPackedAssignments: three or more values that have nothing to do with each other are not assigned in one
// statement. Values that trade places, and the header of a for, stay.
func TestPackedAssignments(t *testing.T) {
	eachFile(t, func(_ *pkg, s *source) {
		if s.generated {
			return
		}

		for _, n := range packed(s.ast) {
			t.Errorf("%s: %d values assigned at once; one line each", at(n), len(n.Lhs))
		}
	})
}

func packed(f *ast.File) (list []*ast.AssignStmt) {
	headers := map[ast.Stmt]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			headers[n.Init] = true
			headers[n.Post] = true
		case *ast.AssignStmt:
			if len(n.Lhs) < 3 || len(n.Rhs) != len(n.Lhs) || headers[n] {
				return true
			}

			names := targets(n)
			for _, x := range n.Rhs {
				if mentions(x, names) {
					return true
				}
			}
			list = append(list, n)
		}

		return true
	})

	return list
}
