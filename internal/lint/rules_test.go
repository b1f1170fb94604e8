package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// TestRules tries the rules on a file that breaks them.
func TestRules(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "thing.go", `package thing

// Documented says what it is.
type Documented interface {
	Read()
	// Write writes.
	Write()
	Close() // at the end
}

type Naked struct{}

func (Naked) Method()          {}
func (n *Generic[T]) Pointer() {}
func (h hidden) Inner()        {}
func ThingMaker()              {}

// Group of settings.
const (
	One = iota
	two
)

var (
	Three = 3 // the third
	Four  = 4
)
`, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}

	if got, want := idents(undocumented(f)),
		[]string{"Read", "Naked", "Method", "Pointer", "ThingMaker", "Four"}; !slices.Equal(got, want) {
		t.Errorf("undocumented: %q, want %q", got, want)
	}

	if got, want := idents(exported(f)),
		[]string{"Documented", "Naked", "ThingMaker", "One", "Three", "Four"}; !slices.Equal(got, want) {
		t.Errorf("exported: %q, want %q", got, want)
	}

	wide := f.Decls[0].(*ast.GenDecl).Specs[0].(*ast.TypeSpec).Type
	if n := methods(wide, nil, 0); n != 3 {
		t.Errorf("methods: %d, want 3", n)
	}

	for name, want := range map[string]string{
		"lm": "lm", "lm/tokenizer/internal/chars": "lm/tokenizer", "internal/report": "internal/report", "": "",
	} {
		if got := owner(name); got != want {
			t.Errorf("owner of %q: %q, want %q", name, got, want)
		}
	}
}

func idents(list []*ast.Ident) (names []string) {
	for _, id := range list {
		names = append(names, id.Name)
	}
	return names
}
