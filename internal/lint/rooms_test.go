package lint

import (
	"go/ast"
	"path"
	"strconv"
	"strings"
	"testing"
)

// minPackage is the number of lines under which a package is part of its only importer, unless its doc comment says
// why not with the words of [reason].
const (
	minPackage = 120
	reason     = "It is a package of its own because"
)

// TestSmallPackages: a package of a few lines that one other package uses is a file of that package, unless it hides
// something hard, and then it says what.
func TestSmallPackages(t *testing.T) {
	importers := map[string]map[string]bool{}
	each(t, func(p *pkg) {
		for _, s := range p.code() {
			for _, spec := range s.ast.Imports {
				target, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
				if !ours {
					continue
				}
				if importers[target] == nil {
					importers[target] = map[string]bool{}
				}
				importers[target][p.name] = true
			}
		}
	})

	each(t, func(p *pkg) {
		if !strings.Contains("/"+p.name, "/internal/") || len(importers[p.name]) != 1 {
			return
		}

		total := 0
		excused := false
		for _, s := range p.code() {
			total += s.lines
			excused = excused || s.ast.Doc != nil && strings.Contains(oneLine(s.ast.Doc.Text()), reason)
		}
		if total < minPackage && !excused {
			t.Errorf("package %s: %d lines and one importer; make it a file there, or say in its comment: %q …",
				p.name, total, reason)
		}
	})
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestAliases: a public type is a type with documented fields, and no other name of one that a user cannot look up.
func TestAliases(t *testing.T) {
	eachFile(t, func(p *pkg, s *source) {
		if s.test || strings.Contains("/"+p.name, "/internal/") || p.name == "cmd/compress" {
			return
		}

		hidden := map[string]bool{}
		for _, spec := range s.ast.Imports {
			file, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(file, module) && strings.Contains(file, "/internal/") {
				name := path.Base(file)
				if spec.Name != nil {
					name = spec.Name.Name
				}
				hidden[name] = true
			}
		}

		for _, spec := range aliases(s.ast) {
			if x, ok := spec.Type.(*ast.SelectorExpr); ok && hidden[x.X.(*ast.Ident).Name] {
				t.Errorf("%s: %s is an alias of an internal type; write it out", at(spec), spec.Name.Name)
			}
		}
	})
}

// aliases lists the exported aliases of a file.
func aliases(f *ast.File) (list []*ast.TypeSpec) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			if spec, ok := spec.(*ast.TypeSpec); ok && spec.Assign.IsValid() && spec.Name.IsExported() {
				list = append(list, spec)
			}
		}
	}

	return list
}
