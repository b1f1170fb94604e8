package serve

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/modelcompress/compress/internal/report"
)

var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageJS string
)

// page is the HTML file at /, to chat with models side by side. It holds its style and its script, and loads nothing.
type page struct {
	html   string
	policy string // Content-Security-Policy
}

// newPage puts the file together. Its policy names the two by their hashes, so that nothing else runs in it, whatever
// a model says: that is text.
func newPage() page {
	style := report.Theme() + pageCSS
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return page{
		html: strings.NewReplacer("<style></style>", "<style>"+style+"</style>",
			"<script></script>", "<script>"+pageJS+"</script>").Replace(pageHTML),
		policy: "default-src 'none'; style-src " + hash(style) + "; script-src " + hash(pageJS) +
			"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}
}

// ServeHTTP implements [http.Handler].
func (p page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // another version of the program has another page
	_, _ = w.Write([]byte(p.html))
}
