package hub

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzList: what a server says of a model's files. Whatever it is, no file lies outside of its folder, and none of them
// in the place of another or of an unfinished one.
func FuzzList(f *testing.F) {
	sum := strings.Repeat("0", 40)
	for _, s := range []string{
		`[{"type":"file","path":"a/b.json","oid":"` + sum + `","size":3}]`,
		`[{"type":"file","path":"../x","oid":"` + sum + `","size":3}]`,
		`[{"type":"directory","path":"a"},{"type":"file","path":"a","lfs":{"oid":"` + sum + `","size":-1}}]`,
		`[{}]`, `[]`, `null`,
	} {
		f.Add([]byte(s), "*.json")
	}

	f.Fuzz(func(t *testing.T, text []byte, pattern string) {
		defer fuzzlimit.Watch(t, len(text)+len(pattern))()

		var list []entry
		m := &Model{Name: Name{Owner: "a", Repo: "b"}, Commit: sum}
		if json.Unmarshal(text, &list) != nil || m.add(list) != nil || m.apart() != nil {
			return
		}

		taken := map[string]bool{}
		for _, file := range m.Choose([]string{pattern}, []string{"x*"}) {
			for _, p := range []Place{CachePlace("/c", m), FolderPlace("/c/d")} {
				link := filepath.Join(p.Dir(), filepath.FromSlash(file.Path))
				for _, path := range []string{p.content(file), p.part(file), link} {
					if !strings.HasPrefix(path, p.folder+"/") {
						t.Errorf("%q leads to %s", file.Path, path)
					}
				}
				if taken[link] || strings.HasSuffix(link, partEnding) {
					t.Errorf("%q lies at %s", file.Path, link)
				}
				taken[link] = true
			}
		}
	})
}
