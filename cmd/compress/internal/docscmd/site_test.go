package docscmd_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/modelcompress/compress/cmd/compress/internal/docscmd"
)

// TestSmallSite: links between pages and to headings lead into the site, those to other files become text, pictures
// become data, HTML of the source is left out, and the index finds words.
func TestSmallSite(t *testing.T) {
	tree := fstest.MapFS{
		"README.md": {Data: []byte("# Hi\n\n[a](docs/a.md) [b](docs/a.md#two-words) [c](main.go) [d](https://go.dev) " +
			"![p](docs/p.svg) [e](javascript:alert(1))\n\n<!-- a remark -->\n")},
		"docs/a.md":  {Data: []byte("# A\n\n## Two words\n\nSparsity\n\n## Two words\n\n[up](../README.md)\n")},
		"docs/p.svg": {Data: []byte("<svg xmlns='http://www.w3.org/2000/svg'/>")},
	}
	site, err := docscmd.Build(tree, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := site.HTML("1")
	if err != nil {
		t.Fatal(err)
	}

	page := string(text)
	for _, want := range []string{
		`<a href="#docs-a">a</a>`, `<a href="#docs-a.two-words">b</a>`, "</a> c <a", `<a href="https://go.dev">d</a>`,
		`src="data:image/svg+xml;base64,`, `id="docs-a.two-words-1"`, `<a href="#README">up</a>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%s is missing in\n%s", want, page)
		}
	}
	if strings.Contains(page, "javascript:") {
		t.Error("a link runs a script")
	}
	if words := index(t, page); !words["sparsity"] {
		t.Errorf("the index has %v", words)
	}

	tree["docs/a.md"] = &fstest.MapFile{Data: []byte("<script>alert(1)</script>\n")}
	if _, err := docscmd.Build(tree, nil); err == nil {
		t.Error("HTML in a page is no error")
	}
	delete(tree, "docs/a.md")
	delete(tree, "docs/p.svg")
	if _, err := docscmd.Build(tree, nil); err == nil {
		t.Error("a picture that is not there is no error")
	}
}

// index is the words of a page's index.
func index(t *testing.T, page string) map[string]bool {
	t.Helper()
	m := regexp.MustCompile(`(?s)<script type="application/json" id="index">(.*?)</script>`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no index")
	}
	var x struct{ Words []string }
	if err := json.Unmarshal([]byte(m[1]), &x); err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, w := range x.Words {
		words[w] = true
	}
	return words
}
