package lint

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// TestEveryOperation: every field of kernels.Ops has a body in the reference backend, and a conformance case and a
// benchmark in kerneltest.
func TestEveryOperation(t *testing.T) {
	cases, workloads := keysOf(t, "kernels/kerneltest", "cases"), keysOf(t, "kernels/kerneltest", "workloads")
	ops := reflect.ValueOf(ref.New().Ops()).Elem()
	for i, field := range reflect.VisibleFields(reflect.TypeFor[kernels.Ops]()) {
		if ops.Field(i).IsNil() {
			t.Errorf("kernels.Ops.%s: package ref has no body", field.Name)
		}
		if !cases[field.Name] {
			t.Errorf("kernels.Ops.%s: kerneltest.cases has no test", field.Name)
		}
		if !workloads[field.Name] {
			t.Errorf("kernels.Ops.%s: kerneltest.workloads has no benchmark", field.Name)
		}
	}
}

// keysOf returns the string keys of a package's map variable.
func keysOf(t *testing.T, name, variable string) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	found := false
	eachFile(t, func(p *pkg, s *source) {
		if p.name != name || s.test {
			return
		}

		for _, d := range s.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}

			for _, spec := range g.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok || v.Names[0].Name != variable || len(v.Values) == 0 {
					continue
				}

				if m, ok := v.Values[0].(*ast.CompositeLit); ok {
					found = true
					for _, e := range m.Elts {
						if text, ok := literal(e.(*ast.KeyValueExpr).Key); ok {
							keys[text] = true
						}
					}
				}
			}
		}
	})

	if !found {
		t.Fatalf("package %s has no map %s", name, variable)
	}

	return keys
}

// literal is the value of a string constant.
func literal(x ast.Expr) (string, bool) {
	b, ok := x.(*ast.BasicLit)
	if !ok {
		return "", false
	}
	s, err := strconv.Unquote(b.Value)
	return s, err == nil
}

// TestEntryPoints: each of the library's five calls that exists has a runnable example.
func TestEntryPoints(t *testing.T) {
	for name, call := range map[string]string{
		"prune": "Model", "gp": "Search", "merge": "Models", "lora": "Train",
		"editeval": "Run",
	} {
		exists, shown := false, false
		functions(t, func(p *pkg, s *source, f *ast.FuncDecl) {
			if p.name == name && f.Recv == nil {
				exists = exists || !s.test && f.Name.Name == call
				shown = shown ||
					s.test && (f.Name.Name == "Example"+call || strings.HasPrefix(f.Name.Name, "Example"+call+"_"))
			}
		})

		if exists && !shown {
			t.Errorf("%s.%s has no Example%s", name, call, call)
		}
	}
}

// TestReadme: the README knows every verb of the command line, it and the pages of docs show no others, and it
// says how to run the tests.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if os.IsNotExist(err) {
		t.Skip("README.md does not exist")
	}

	if err != nil {
		t.Fatal(err)
	}

	verbs := verbs(t)
	for verb := range verbs {
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(verb) + `\b`).Match(text) {
			t.Errorf("README.md does not mention the verb %s", verb)
		}
	}

	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}

	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}

		for _, m := range regexp.MustCompile("(?m)(?:^ *|[`$] ?|\\./)compress ([a-z]+)").FindAllSubmatch(text, -1) {
			if verb := string(m[1]); len(verbs) > 0 && !verbs[verb] && verb != "completion" && verb != "help" {
				t.Errorf("%s shows `compress %s`, which is no verb", page, verb)
			}
		}
	}

	if !strings.Contains(string(text), "go test ./...") {
		t.Error("README.md does not say `go test ./...`")
	}
}

// verbs lists the first words of the command line's usage lines: Use in a cobra.Command, or what newVerb is given.
func verbs(t *testing.T) map[string]bool {
	t.Helper()
	verbs := map[string]bool{}
	add := func(x ast.Expr) {
		if usage, ok := literal(x); ok && usage != "" {
			verbs[strings.Fields(usage)[0]] = true
		}
	}

	eachFile(t, func(p *pkg, s *source) {
		if p.name != "cmd/compress" || s.test {
			return
		}

		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if id, ok := n.Key.(*ast.Ident); ok && id.Name == "Use" {
					add(n.Value)
				}
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "newVerb" && len(n.Args) > 0 {
					add(n.Args[0])
				}
			}

			return true
		})
	})

	return verbs
}

// TestSeededProperties: a package with property tests fixes their draws, so that a run can be repeated.
func TestSeededProperties(t *testing.T) {
	draws, fixed := map[string]bool{}, map[string]bool{}
	eachFile(t, func(p *pkg, s *source) {
		for _, spec := range s.ast.Imports {
			draws[p.name] = draws[p.name] || strings.HasPrefix(spec.Path.Value, `"pgregory.net/rapid`)
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && s.test && p.name != "internal/lint" {
				fixed[p.name] = fixed[p.name] || lit.Value == `"rapid.seed"`
			}
			return true
		})
	})

	for name, drawn := range draws {
		if drawn && !fixed[name] {
			t.Errorf("%s: property tests without a TestMain that sets rapid.seed", name)
		}
	}
}

// TestPages: every relative link of the pages leads to a file, and the README leads to every page of docs.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}

	evidence, err := filepath.Glob(filepath.Join(root, "docs", "evidence", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, evidence...)

	for _, name := range []string{
		"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "compare/README.md",
		"testdata/README.md",
	} {
		pages = append(pages, filepath.Join(root, name))
	}

	links := regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`)
	code := regexp.MustCompile("`[^`\n]*`")
	led := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}

		for _, m := range links.FindAllSubmatch(code.ReplaceAll(text, nil), -1) {
			target := string(m[1])
			if strings.Contains(target, "://") {
				continue
			}

			path := filepath.Join(filepath.Dir(page), filepath.FromSlash(target))
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s, which is not there", page, target)
			}

			led[path] = led[path] || filepath.Base(page) == "README.md" && filepath.Dir(page) == filepath.Clean(root)
		}
	}

	for _, page := range pages {
		dir := filepath.Base(filepath.Dir(page))
		if (dir == "docs" || dir == "evidence") && !led[filepath.Clean(page)] {
			t.Errorf("README.md does not link to %s", page)
		}
	}
}

// TestNamedPaths: the packages and files that pages and scripts name are there, for those in code spans, in code blocks
// and alone in the cell of a table. A path may begin within the tree, as testdata/fuzz does; words in capitals stand
// for something. What a clone does not have has a name of its own instead of a path, which testdata/README.md explains.
// CHANGELOG.md tells of what was.
func TestNamedPaths(t *testing.T) {
	ends := map[string]bool{} // of all paths
	tops := map[string]bool{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git" && d.IsDir():
			return fs.SkipDir
		}

		name := filepath.ToSlash(strings.TrimPrefix(file, filepath.Clean(root)+string(filepath.Separator)))
		if top, _, deep := strings.Cut(name, "/"); deep && top != ".." {
			tops[top] = true
		}
		for ends[name] = true; strings.Contains(name, "/"); ends[name] = true {
			_, name, _ = strings.Cut(name, "/")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	var pages []string
	for _, pattern := range []string{
		"*.md", "docs/*.md", "docs/evidence/*.md", "testdata/*.md", "testdata/*/*.md", "compare/*.*",
		"compare/real/*.py", ".ci/*",
	} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}

	for _, page := range pages {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range namedPaths(string(text), filepath.Ext(page) == ".md") {
			top, _, _ := strings.Cut(path, "/")
			switch {
			case top == ".." && filepath.Ext(page) == ".md":
				t.Errorf("%s names %s, which a clone does not have", page, path)
			case tops[top] && !ends[path] && !placeholder.MatchString(path):
				t.Errorf("%s names %s, which is not there", page, path)
			}
		}
	}
}

var (
	placeholder = regexp.MustCompile(`(^|/)[A-Z]+(/|$)`)
	pathWord    = regexp.MustCompile(`(?:^|[\s"'=(:,])((?:\./)?[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+)`)
	codeOfPage  = regexp.MustCompile("(?m)`[^`\n]*`|^    .*$|\\| [^\\s|]+ \\|")
)

// namedPaths are the paths in a text, without the dot of the folder and the dots of sentences.
func namedPaths(text string, page bool) (paths []string) {
	parts := []string{text}
	if page {
		parts = codeOfPage.FindAllString(text, -1)
	}
	for _, part := range parts {
		for _, m := range pathWord.FindAllStringSubmatch(strings.Trim(part, "`|"), -1) {
			paths = append(paths, strings.TrimRight(strings.TrimPrefix(m[1], "./"), "."))
		}
	}
	return paths
}

// withoutExample are public packages that no runnable example can show.
var withoutExample = map[string]string{
	"kernels/cuda": "needs a GPU", "kernels/ref": "shown by kernels", "kernels/kerneltest": "is for tests",
}

// TestGuides: the documentation of every public package says what it is for, and shows lines to begin with; a test
// runs such lines.
func TestGuides(t *testing.T) {
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}

	for _, p := range all {
		if !public(p.name) {
			continue
		}

		doc, example := "", false
		for _, s := range p.files {
			if s.ast.Doc != nil && !s.test {
				doc += s.ast.Doc.Text()
			}
			for _, d := range s.ast.Decls {
				f, ok := d.(*ast.FuncDecl)
				example = example || ok && s.test && strings.HasPrefix(f.Name.Name, "Example")
			}
		}

		if !strings.Contains(doc, "\n\t") {
			t.Errorf("the documentation of package %s shows no use", p.name)
		}
		if why := withoutExample[p.name]; example == (why != "") {
			t.Errorf("package %s: an example that runs: %v (%s)", p.name, example, why)
		}
	}
}

// public reports whether programs outside of this module are meant to import a package.
func public(name string) bool {
	switch {
	case name == "" || name == "testdata" || name == "examples" || name == "kernels/kerneltest/standin":
		return false // the root is a map of the others
	case strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "examples/") || strings.HasPrefix(name, "compare/"):
		return false
	}
	return !strings.HasPrefix(name, "internal/") && !strings.Contains(name, "/internal/")
}
