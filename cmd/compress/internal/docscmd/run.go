package docscmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/safefile"
)

// Options say where the pages go.
type Options struct {
	Out  string // folder or .html file; empty: they are served
	Addr string // host:port
}

// Report says what was made, and where it is or was.
type Report struct {
	Pages    int    `json:"pages"`
	Sections int    `json:"sections"` // that a search finds
	Bytes    int    `json:"bytes"`
	Out      string `json:"out,omitempty"`
	Address  string `json:"address,omitempty"`
}

// Check looks at the flags by themselves.
func (o *Options) Check() error {
	if _, _, err := net.SplitHostPort(o.Addr); err != nil {
		return cli.Usagef("--addr %.200q: want host:port, such as 127.0.0.1:8081; port 0 chooses one", o.Addr)
	}
	return nil
}

// Run serves a site until the job is interrupted, or writes it.
func Run(j *cli.Job, s *Site, version string, o Options) (any, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}

	text, err := s.HTML(version)
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}

	r := &Report{Pages: len(s.Pages), Bytes: len(text)}
	for _, p := range s.Pages {
		r.Sections += len(p.Sections)
	}

	if o.Out != "" {
		return r, r.write(j, text, o.Out)
	}
	return r, r.serve(j, text, o.Addr)
}

// write writes the file, or index.html in a folder, which is made if it is not there. Only a file of this verb is
// replaced.
func (r *Report) write(j *cli.Job, text []byte, out string) error {
	r.Out = out
	if !strings.EqualFold(filepath.Ext(out), ".html") {
		if err := os.MkdirAll(out, 0o777); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
		r.Out = filepath.Join(out, "index.html")
	}

	place := cli.Place{Flag: "out", Path: r.Out, What: "documentation of compress", Own: ours}
	if err := place.Check(); err != nil {
		return err
	}
	if err := cli.Apart([2]string{"out", r.Out}, [2]string{"report", j.ReportTo()}); err != nil {
		return err
	}
	if err := j.Write(r.Out, text); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	j.Printf("%d pages in %s (%s); open it in a browser, it needs nothing else\n", r.Pages, r.Out,
		cli.Size(int64(r.Bytes)))
	return nil
}

// ours reports whether a file begins as the site does.
func ours(path string) bool {
	begin, _, _ := strings.Cut(layout, "{{")
	f, err := safefile.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()

	have := make([]byte, len(begin))
	_, err = io.ReadFull(f, have)
	return err == nil && string(have) == begin
}

const farewell = 2 * time.Second // that readers have to take their page, when the server is interrupted

// serve answers at an address until the job is interrupted.
func (r *Report) serve(j *cli.Job, text []byte, addr string) error {
	listener, err := (&net.ListenConfig{}).Listen(j.Ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("--addr: %w", err)
	}

	r.Address = "http://" + listener.Addr().String() + "/"
	j.Printf("%d pages at %s\n", r.Pages, r.Address)

	made := time.Now()
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path != "/" {
				http.NotFound(w, q)
				return
			}
			h := w.Header()
			h.Set("Content-Type", "text/html; charset=utf-8")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cache-Control", "no-cache") // another version of the program has other pages
			http.ServeContent(w, q, "", made, bytes.NewReader(text))
		}),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}

	failed := make(chan error, 1)
	var listens mmapsafe.Group
	listens.Go(func() { failed <- server.Serve(listener) })
	select {
	case err = <-failed:
	case <-j.Ctx.Done(): // the way to end it
	}

	late, cancel := context.WithTimeout(context.WithoutCancel(j.Ctx), farewell)
	defer cancel()
	err = errors.Join(err, server.Shutdown(late))
	listens.Wait()
	return err
}
