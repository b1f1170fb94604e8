package main

import (
	"bytes"
	"context"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/docscmd"
)

// TestDocs walks the documentation as it is written: every link within it has its place, it loads nothing, no HTML of
// the sources was left out, every word of a table is explained, and every verb has a page.
func TestDocs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "docs.html")
	for range 2 { // a file of this verb is replaced
		var stderr bytes.Buffer
		if code := run([]string{"docs", "--out", file, "-q"}, io.Discard, &stderr); code != 0 {
			t.Fatal(stderr.String())
		}
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)

	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		id := html.UnescapeString(m[1])
		if ids[id] {
			t.Errorf("the anchor %s is there twice", id)
		}
		ids[id] = true
	}

	for _, m := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		to := html.UnescapeString(m[1])
		switch {
		case strings.HasPrefix(to, "#"):
			if id, err := url.PathUnescape(to[1:]); err != nil || !ids[id] {
				t.Errorf("a link leads to %s, which is not there", to)
			}
		case strings.HasPrefix(m[0], "src"):
			if !strings.HasPrefix(to, "data:image/") {
				t.Errorf("the page loads %.80s", to)
			}
		case !strings.HasPrefix(to, "https://") && !strings.HasPrefix(to, "http://"):
			t.Errorf("a link leads to %.80s", to)
		}
	}

	for _, c := range root(cli.New(nil, io.Discard, io.Discard)).Commands() {
		if c.Name() != "help" && c.Name() != "completion" && !ids["reference-compress-"+c.Name()] {
			t.Errorf("compress %s has no page", c.Name())
		}
	}

	other := filepath.Join(t.TempDir(), "other.html")
	if err := os.WriteFile(other, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := run([]string{"docs", "--out", other, "-q"}, io.Discard, io.Discard); code == 0 {
		t.Error("a file of somebody else is replaced")
	}
}

// TestDocsWords: whatever a table of the reference names, it explains.
func TestDocsWords(t *testing.T) {
	for _, s := range docscmd.Reference(root(cli.New(nil, io.Discard, io.Discard))) {
		for line := range strings.Lines(s.Markdown) {
			if regexp.MustCompile(`^\| .*\|  \|$`).MatchString(strings.TrimSpace(line)) &&
				!strings.Contains(s.Path, "report-files") {
				t.Errorf("%s: nothing is said about %s", s.Path, line)
			}
		}
	}
}

// TestDocsServed: the pages are answered at the address that is printed, until the interrupt.
func TestDocsServed(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	app := cli.New([]string{"docs"}, w, io.Discard)
	done := make(chan int)
	go func() { done <- app.Execute(ctx, root(app)) }()

	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, r) //nolint:errcheck // whatever else is printed

	address := regexp.MustCompile(`http://\S+`).FindString(string(line[:n]))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || !bytes.Contains(body, []byte(compress.Version())) {
		t.Errorf("%v, %d bytes", err, len(body))
	}

	http.DefaultClient.CloseIdleConnections()
	stop()
	if code := <-done; code != 0 && code != 130 {
		t.Errorf("exit code %d", code)
	}
}
