package report

import (
	"bytes"
	_ "embed"
	"html/template"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
)

// Page is one HTML document: a title and sections in order.
type Page struct {
	Title    string
	Subtitle string
	Date     string // of a page that says when it was made
	Links    []Link // to other pages that belong to it
	Sections []Section
}

// Link leads to a file beside the page.
type Link struct{ Text, To string }

// Section is a heading with text, facts, charts, tables and lines to copy, shown in that order. A click on a line
// selects all of it: the pages run no scripts, so that there is no button to copy it.
type Section struct {
	Title  string
	Text   []string // paragraphs
	Facts  []Fact
	Charts []*Chart
	Tables []*Table
	Code   []string // command lines
}

// Fact is a named value, shown large; Note is a line below it, or empty.
type Fact struct{ Name, Value, Note string }

// manySections is from how many sections on a page begins with links to them.
const manySections = 5

//go:embed theme.css
var theme string

// Theme is the CSS that all pages of the project share: colours by day and night, and the type of the text.
func Theme() string { return theme }

//go:embed page.css
var style string

//go:embed page.html
var layout string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"css":     func() template.CSS { return template.CSS(theme + style) },
	"draw":    func(c *Chart, columns int) template.HTML { return template.HTML(c.in(columns)) },
	"key":     func(c *Chart, i int) template.HTML { return template.HTML(c.key(i)) },
	"legend":  func(c *Chart) bool { return !c.grid() && len(c.Series) > 1 },
	"map":     (*Chart).row,
	"flags":   flags,
	"wide":    func(f []Fact) bool { return slices.ContainsFunc(f, func(f Fact) bool { return f.Note != "" }) },
	"many":    func(s []Section) bool { return len(s) >= manySections },
	"columns": columns,
	"row":     func(n int) string { return [...]string{"", "one", "two", "three"}[n] },
	"words":   func(line string) []string { return strings.Split(line, " ") },
	"whole":   func(word string) bool { return strings.Contains(word, "-") },
}).Parse(layout))

// grid tells the maps, whose series are rows with names.
func (c *Chart) grid() bool { return c.Kind == Heat || c.Kind == Cells }

// row tells the charts that have the width of a page: maps, unless they are of few columns.
func (c *Chart) row() bool { return c.grid() && !(c.Kind == Cells && len(c.Labels) <= fewCells) }

// fewCells are so few columns of [Cells] that several drawings have room beside each other.
const fewCells = 8

// flagWord is a flag of the command line in a text.
var flagWord = regexp.MustCompile(`--[a-z][a-z0-9-]*`)

// flags is a text whose flags are not broken into lines.
func flags(text string) template.HTML {
	return template.HTML(flagWord.ReplaceAllString(template.HTMLEscapeString(text), `<span class="flag">$0</span>`))
}

// columns is how many drawings stand side by side in a section, so that they fill its width.
func columns(list []*Chart) int {
	n := 0
	for _, c := range list {
		if !c.row() && !c.Wide {
			n++
		}
	}
	switch n {
	case 0, 1:
		return 1
	case 2, 4:
		return 2
	}
	return 3
}

// HTML writes the page. It refers to nothing outside itself and runs no script.
func (p *Page) HTML(w io.Writer) error { return page.Execute(w, p) }

// IsPage reports whether a file begins as the pages that this package writes.
func IsPage(path string) bool {
	begin, _, _ := strings.Cut(layout, "{{")
	f, err := safefile.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()

	have := make([]byte, len(begin))
	_, err = io.ReadFull(f, have)
	return err == nil && bytes.Equal(have, []byte(begin))
}
