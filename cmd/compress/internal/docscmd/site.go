// Package docscmd is what compress docs does: it makes one page of all of the project's Markdown and of the reference
// that follows from the program's own tables, with contents and a search, and serves or writes it. The page refers to
// nothing outside itself but the links that a reader clicks.
package docscmd

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"mime"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// Source is a page before it is HTML.
type Source struct {
	Path     string // in the repository, with slashes; of a generated page where it would be
	Group    string
	Markdown string
}

// Page is a page as the site has it.
type Page struct {
	ID, Title, Group, Path string
	HTML                   string
	Sections               []Section
}

// Section is what a search finds: the text below a heading, up to the next one.
type Section struct {
	ID, Title, Text string
}

// Site is all pages, in the order of the contents.
type Site struct{ Pages []*Page }

// The groups of the contents, in their order, and the pages of each: paths, or folders. What is in none of them and
// lies in docs belongs to the reference.
const (
	start     = "Start"
	tutorials = "Tutorials"
	howtos    = "How-tos"
	concepts  = "Concepts"
	reference = "Reference"
	areas     = "Areas in depth"
	evidence  = "Evidence"
	project   = "The project"
)

var groups = []struct {
	title string
	pages []string
}{
	{start, []string{
		"README.md", "docs/demo.md", "docs/faq.md", "docs/troubleshooting.md", "docs/glossary.md",
	}},
	{tutorials, []string{
		"docs/tutorials/compress-and-heal.md", "docs/tutorials/merge-and-mediate.md",
		"docs/tutorials/adapt.md", "docs/tutorials/edit.md",
	}},
	{howtos, []string{"docs/howto"}},
	{concepts, []string{"docs/concepts"}},
	{reference, []string{"reference"}},
	{areas, []string{
		"docs/models.md", "docs/pruning.md", "docs/smaller.md", "docs/search.md", "docs/quantising.md",
		"docs/merging.md", "docs/mediate.md", "docs/adapters.md", "docs/editing.md", "docs/evaluation.md",
		"docs/serving.md", "docs/formats.md", "docs/pipelines.md", "docs/gpu.md", "docs",
	}},
	{evidence, []string{"docs/evidence"}},
	{project, []string{
		"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/structure.md", "docs/architectures.md",
		"docs/platforms.md", "docs/releasing.md", "docs/security-queue.md", "testdata/README.md",
	}},
}

// sources reads the pages of a tree, and puts them and the generated ones into the order of the contents.
func sources(tree fs.FS, made []Source) ([]Source, error) {
	files := map[string]string{}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".md" {
			return err
		}
		content, err := fs.ReadFile(tree, name)
		files[name] = string(content)
		return err
	})
	if err != nil {
		return nil, err
	}

	for _, s := range made {
		files[s.Path] = s.Markdown
	}

	named := map[string]bool{} // pages that a group names itself
	for _, g := range groups {
		for _, p := range g.pages {
			named[p] = true
		}
	}

	var list []Source
	for _, g := range groups {
		for _, p := range g.pages {
			if content, ok := files[p]; ok {
				list = append(list, Source{p, g.title, content})
				continue
			}
			list = append(list, inFolder(files, p, g.title, named, made)...)
		}
	}

	return list, nil
}

// inFolder is the pages of one folder that no group names: README.md first, then by name, generated
// ones in their order.
func inFolder(files map[string]string, folder, group string, named map[string]bool, made []Source) (list []Source) {
	for _, s := range made {
		if path.Dir(s.Path) == folder {
			list = append(list, Source{s.Path, group, s.Markdown})
			named[s.Path] = true
		}
	}

	var names []string
	for name := range files {
		if path.Dir(name) == folder && !named[name] {
			names = append(names, name)
		}
	}

	slices.SortFunc(names, func(a, b string) int {
		if x, y := path.Base(a) == "README.md", path.Base(b) == "README.md"; x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})

	for _, name := range names {
		list = append(list, Source{name, group, files[name]})
	}
	return list
}

// Build makes the site of a tree's pages and of generated ones. The error names a picture that is not there.
func Build(tree fs.FS, made []Source) (*Site, error) {
	list, err := sources(tree, made)
	if err != nil {
		return nil, err
	}

	ids := map[string]string{}
	for _, s := range list {
		ids[s.Path] = pageID(s.Path)
	}

	site := &Site{}
	for _, s := range list {
		p, err := (&maker{tree: tree, ids: ids, source: s}).page()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Path, err)
		}
		site.Pages = append(site.Pages, p)
	}
	return site, nil
}

// pageID is the anchor of a page: its path without the ending.
func pageID(name string) string {
	return strings.ReplaceAll(strings.TrimSuffix(name, ".md"), "/", "-")
}

// maker makes one page.
type maker struct {
	tree   fs.FS
	ids    map[string]string // of all pages, by their paths
	source Source

	text     []byte   // the Markdown
	pictures []string // as data URIs
}

func (m *maker) page() (*Page, error) {
	p := &Page{ID: m.ids[m.source.Path], Group: m.source.Group, Path: m.source.Path}
	md := goldmark.New(
		goldmark.WithExtensions(extension.Strikethrough, extension.Linkify,
			extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithXHTML()),
	)

	source := []byte(m.source.Markdown)
	m.text = source
	tree := md.Parser().Parse(text.NewReader(source),
		parser.WithContext(parser.NewContext(parser.WithIDs(&headingIDs{page: p.ID, used: map[string]int{}}))))
	if err := m.links(tree); err != nil {
		return nil, err
	}
	p.sections(tree, source)

	var b bytes.Buffer
	if err := md.Renderer().Render(&b, source, tree); err != nil {
		return nil, err
	}
	p.HTML = b.String()
	for i, data := range m.pictures {
		p.HTML = strings.Replace(p.HTML, fmt.Sprintf(`src="%s"`, pictureName(i)), `src="`+data+`"`, 1)
	}
	return p, nil
}

// links turns the links of a page into such within the site, what leads to a file of the repository into plain text,
// and pictures into data.
func (m *maker) links(tree ast.Node) error {
	var loose []*ast.Link
	err := ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}

		switch n := n.(type) {
		case *ast.Link:
			if to, ok := m.target(string(n.Destination)); ok {
				n.Destination = []byte(to)
			} else {
				loose = append(loose, n)
			}
		case *ast.Image:
			data, err := m.picture(string(n.Destination))
			if err != nil {
				return ast.WalkStop, err
			}
			n.Destination = []byte(pictureName(len(m.pictures))) // the renderer takes no SVG as data
			m.pictures = append(m.pictures, data)
		case *ast.HTMLBlock:
			if line := string(n.Lines().Value(m.text)); !strings.HasPrefix(strings.TrimSpace(line), "<!--") {
				return ast.WalkStop, fmt.Errorf("HTML would be left out: %.80s", line)
			}
		case *ast.RawHTML:
			if line := string(n.Segments.Value(m.text)); !strings.HasPrefix(line, "<!--") {
				return ast.WalkStop, fmt.Errorf("HTML would be left out: %.80s", line)
			}
		}
		return ast.WalkContinue, nil
	})

	for _, n := range loose {
		parent := n.Parent()
		for c := n.FirstChild(); c != nil; c = n.FirstChild() {
			parent.InsertBefore(parent, n, c)
		}
		parent.RemoveChild(parent, n)
	}
	return err
}

// target is where a link leads in the site; false if it leads nowhere there.
func (m *maker) target(to string) (string, bool) {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return to, true
	}

	name, anchor, _ := strings.Cut(to, "#")
	file := m.source.Path
	if name != "" {
		plain, err := url.PathUnescape(name)
		if err != nil {
			return "", false
		}
		file = path.Join(path.Dir(m.source.Path), plain)
	}

	id, ok := m.ids[file]
	if !ok {
		id, ok = m.ids[path.Join(file, "README.md")] // a folder with a page
	}
	if anchor != "" {
		id += "." + anchor
	}
	return "#" + id, ok
}

// pictureName stands for a picture until the page is HTML.
func pictureName(i int) string { return fmt.Sprintf("picture-%d", i) }

// picture is a file of the tree as a data URI.
func (m *maker) picture(to string) (string, error) {
	name := path.Join(path.Dir(m.source.Path), to)
	content, err := fs.ReadFile(m.tree, name)
	if err != nil {
		return "", err
	}

	kind := mime.TypeByExtension(path.Ext(name))
	if path.Ext(name) == ".svg" {
		kind = "image/svg+xml"
	}
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(content), nil
}

// sections cuts a page at its headings, and takes its title from the first.
func (p *Page) sections(tree ast.Node, source []byte) {
	p.Title = path.Base(p.Path)
	now := Section{ID: p.ID}
	var words []string
	end := func() {
		now.Text = strings.Join(strings.Fields(strings.Join(words, " ")), " ")
		if now.Text != "" || now.Title != "" {
			p.Sections = append(p.Sections, now)
		}
		words = nil
	}

	for n := tree.FirstChild(); n != nil; n = n.NextSibling() {
		h, ok := n.(*ast.Heading)
		if !ok {
			words = append(words, plain(n, source))
			continue
		}

		title := strings.Join(strings.Fields(plain(n, source)), " ")
		if h.Level == 1 {
			p.Title, now.Title = title, title
			continue
		}

		end()
		now = Section{Title: title}
		if id, ok := h.AttributeString("id"); ok {
			now.ID = string(id.([]byte))
		}
	}
	end()
}

// plain is the text of a node, with blanks between its parts.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			if n.Type() == ast.TypeBlock {
				b.WriteByte(' ')
			}
			return ast.WalkContinue, nil
		}

		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(n.Value)
		case *ast.AutoLink:
			b.Write(n.Label(source))
		case *ast.CodeBlock, *ast.FencedCodeBlock:
			for i := range n.Lines().Len() {
				line := n.Lines().At(i)
				b.Write(line.Value(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// headingIDs gives headings the anchors that GitHub gives them, behind the page's own.
type headingIDs struct {
	page string
	used map[string]int
}

// Generate implements [parser.IDs].
func (ids *headingIDs) Generate(value []byte, _ ast.NodeKind) []byte {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(string(value))) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}

	id := b.String()
	n := ids.used[id]
	ids.used[id]++
	if n > 0 {
		id = fmt.Sprintf("%s-%d", id, n)
	}
	return []byte(ids.page + "." + id)
}

// Put implements [parser.IDs]; no page writes anchors of its own.
func (ids *headingIDs) Put([]byte) {}
