package docscmd

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"

	"github.com/modelcompress/compress/internal/report"
)

var (
	//go:embed page.html
	layout string
	//go:embed page.css
	style string
	//go:embed page.js
	script string
)

var page = template.Must(template.New("docs").Parse(layout))

// group is a part of the contents.
type group struct {
	Title string
	Open  bool
	Pages []*Page
}

// body is a page in the template.
type body struct {
	*Page
	Body template.HTML // of goldmark, which lets no HTML of the source through
}

// HTML is the whole site as one file. Its policy names style and script by their hashes: nothing else runs in it, and
// nothing is loaded.
func (s *Site) HTML(version string) ([]byte, error) {
	index, err := indexOf(s)
	if err != nil {
		return nil, err
	}

	css := report.Theme() + style
	v := struct {
		Policy, Version string
		Style           template.CSS
		Script          template.JS
		Index           template.JS
		Groups          []group
		Pages           []body
	}{
		Policy: "default-src 'none'; img-src data:; style-src " + hash(css) + "; script-src " + hash(script) +
			"; base-uri 'none'; form-action 'none'",
		Version: version, Style: template.CSS(css), Script: template.JS(script), Index: template.JS(index),
	}

	for _, p := range s.Pages {
		if n := len(v.Groups); n == 0 || v.Groups[n-1].Title != p.Group {
			v.Groups = append(v.Groups, group{Title: p.Group, Open: openGroup(p.Group)})
		}
		last := &v.Groups[len(v.Groups)-1]
		last.Pages = append(last.Pages, p)
		v.Pages = append(v.Pages, body{p, template.HTML(p.HTML)})
	}

	var b bytes.Buffer
	err = page.Execute(&b, v)
	return b.Bytes(), err
}

// openGroup says which parts of the contents are open at first: not the long ones at the end.
func openGroup(title string) bool {
	return title != reference && title != evidence && title != project && title != areas
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
