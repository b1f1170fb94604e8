package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const (
	module = "github.com/modelcompress/compress"
	root   = "../.."
)

// source is one parsed Go file.
type source struct {
	name      string // relative to the repository, with slashes
	ast       *ast.File
	lines     int
	test      bool
	generated bool
}

// pkg is a folder with Go files; name is its path in the module, "" for the root.
type pkg struct {
	name  string
	files []*source
}

var positions = token.NewFileSet()

// packages parses the module once.
var packages = sync.OnceValues(func() ([]*pkg, error) {
	byDir := map[string]*pkg{}
	var list []*pkg
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}

		name = filepath.ToSlash(name)
		if d.IsDir() {
			if skipped(name) {
				return fs.SkipDir
			}
			return nil
		}

		if !strings.HasSuffix(name, ".go") {
			return nil
		}

		src, err := parse(file, name)
		if err != nil {
			return err
		}

		dir := strings.TrimPrefix(path.Dir(name), ".")
		if byDir[dir] == nil {
			byDir[dir] = &pkg{name: dir}
			list = append(list, byDir[dir])
		}

		byDir[dir].files = append(byDir[dir].files, src)
		return nil
	})

	return list, err
})

// skipped reports whether a folder holds no packages of this module: hidden ones, other modules, test data (the root's
// testdata is a package that embeds it).
func skipped(dir string) bool {
	base := path.Base(dir)
	if dir == "." || dir == "testdata" {
		return false
	}
	_, err := os.Stat(filepath.Join(root, dir, "go.mod"))
	return err == nil || base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") ||
		strings.HasPrefix(dir, "testdata/")
}

func parse(file, name string) (*source, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}

	f, err := parser.ParseFile(positions, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}

	return &source{
		name: name, ast: f, lines: bytes.Count(text, []byte("\n")),
		test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(f),
	}, nil
}

// each calls f for every package.
func each(t *testing.T, f func(p *pkg)) {
	t.Helper()
	list, err := packages()
	if err != nil {
		t.Fatal(err)
	}

	if len(list) == 0 {
		t.Fatal("no packages found")
	}
	for _, p := range list {
		f(p)
	}
}

// eachFile calls f for every Go file, tests included.
func eachFile(t *testing.T, f func(p *pkg, s *source)) {
	t.Helper()
	each(t, func(p *pkg) {
		for _, s := range p.files {
			f(p, s)
		}
	})
}

// code is the files of a package that are no tests.
func (p *pkg) code() (list []*source) {
	for _, s := range p.files {
		if !s.test {
			list = append(list, s)
		}
	}
	return list
}

// kernel reports whether the package belongs to kernels/, where assembly's neighbours may be long.
func (p *pkg) kernel() bool { return strings.HasPrefix(p.name, "kernels/") }

// at gives the file and line of a node.
func at(n ast.Node) string {
	p := positions.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// tracked lists the files under version control, or all files where git can't say.
var tracked = sync.OnceValues(func() ([]string, error) {
	if out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output(); err == nil && len(out) > 0 {
		var list []string
		for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
			if info, err := os.Stat(filepath.Join(root, name)); err == nil && info.Mode().IsRegular() {
				list = append(list, name)
			}
		}

		return list, nil
	}

	var list []string
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}

		if d.Type().IsRegular() {
			name, _ := filepath.Rel(root, file)
			list = append(list, filepath.ToSlash(name))
		}

		return nil
	})

	return list, err
})

// lines calls f for every line of the tracked files that keep says yes to.
func lines(t *testing.T, keep func(name string) bool, f func(name string, number int, line string)) {
	t.Helper()
	list, err := tracked()
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range list {
		if !keep(name) {
			continue
		}

		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}

		for i, line := range strings.Split(string(text), "\n") {
			f(name, i+1, line)
		}
	}
}
