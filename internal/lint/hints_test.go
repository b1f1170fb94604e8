package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// flagWords is how a text names a flag or a verb of the command line.
var flagWords = regexp.MustCompile(`(^|[\s"'(,;])--[a-z]|HINT: compress `)

// otherPrograms are files that name the flags of other programs, or what looks like one and is CSS.
var otherPrograms = []string{
	"editeval/task/sources.go", "kernels/kerneltest/standin.go", "internal/report/cells.go", "internal/report/grid.go",
	"internal/report/chart.go",
}

// TestFlagsInHints: what a library says, an error, a note or a report, is for callers of Go too, who have no flags. The
// words of the command line are in hints, which package failure carries beside the text: in the last argument of its
// functions, or in a constant or a function whose name begins with hint.
func TestFlagsInHints(t *testing.T) {
	eachFile(t, func(p *pkg, s *source) {
		if s.test || p.name == "cmd/compress" || strings.HasPrefix(p.name, "cmd/compress/") ||
			p.name == "internal/failure" || slices.Contains(otherPrograms, s.name) {
			return
		}
		for _, lit := range saidFlags(s.ast) {
			t.Errorf("%s: %s names a flag outside a hint (failure.Hinted)", at(lit), lit.Value)
		}
	})
}

// TestSaidFlags tries the rule on a file that breaks it.
func TestSaidFlags(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "thing.go", `package thing

const hintAnew = "--overwrite starts anew"

const other = "choose another --out"

var errOther = failure.New("it is there", "--overwrite replaces it")

var errFlag = failure.New("--out is there", "choose another")

func work() error {
	note("raise --memory" + " or so")
	return failure.Hinted(fmt.Errorf("too big: %w (--memory)", err), "raise "+fmt.Sprintf("--memory %d", n))
}

func hintMemory() string { return "raise --memory" }
`, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, lit := range saidFlags(f) {
		got = append(got, lit.Value)
	}
	want := []string{`"choose another --out"`, `"--out is there"`, `"raise --memory"`, `"too big: %w (--memory)"`}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// saidFlags are the literals of a file that name a flag and are no hint.
func saidFlags(f *ast.File) (list []*ast.BasicLit) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return !strings.HasPrefix(n.Name.Name, "hint")
		case *ast.ValueSpec:
			return !strings.HasPrefix(n.Names[0].Name, "hint")
		case *ast.CallExpr:
			if !hints(n) {
				return true
			}
			for _, e := range n.Args[:len(n.Args)-1] {
				ast.Inspect(e, func(n ast.Node) bool {
					list = append(list, flagged(n)...)
					return true
				})
			}
			return false
		default:
			list = append(list, flagged(n)...)
		}
		return true
	})
	return list
}

// hints reports whether a call is one of those whose last argument is a hint.
func hints(c *ast.CallExpr) bool {
	name, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := name.X.(*ast.Ident)
	return ok && from.Name == "failure" && slices.Contains([]string{"New", "Misuse", "Hinted"}, name.Sel.Name)
}

// flagged is a node, if it is a text that names a flag.
func flagged(n ast.Node) []*ast.BasicLit {
	if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && flagWords.MatchString(lit.Value) {
		return []*ast.BasicLit{lit}
	}
	return nil
}
