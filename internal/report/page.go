package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

// Page is one HTML document: a title and sections in order.
type Page struct {
	Title    string
	Subtitle string
	Sections []Section
}

// Section is a heading with text, facts, charts and tables, shown in that order.
type Section struct {
	Title  string
	Text   []string // paragraphs
	Facts  []Fact
	Charts []*Chart
	Tables []*Table
}

// Fact is a named value, shown large.
type Fact struct{ Name, Value string }

//go:embed page.css
var style string

//go:embed page.html
var layout string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"css":    func() template.CSS { return template.CSS(style) },
	"svg":    func(c *Chart) template.HTML { return template.HTML(c.SVG()) },
	"legend": func(c *Chart) bool { return c.Kind != Heat && len(c.Series) > 1 },
	"colour": func(i int) string { return fmt.Sprintf("c%d", i%colours) },
}).Parse(layout))

// HTML writes the page. It refers to nothing outside itself and runs no script.
func (p *Page) HTML(w io.Writer) error { return page.Execute(w, p) }
