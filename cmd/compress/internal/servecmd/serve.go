// Package servecmd is what compress serve does: it opens models and adapters, listens, and answers until it is
// interrupted.
package servecmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/serve"
)

// Options say what is served, and to whom.
type Options struct {
	Adapters []string // NAME=DIR, of the first model, or MODEL/NAME=DIR
	Listen   string   // host:port
	KeyFile  string   // a key on each line; empty: none
	Anyone   bool     // beyond this machine without a key
	Root     string   // folder from which clients may load adapters; empty: they may not
	Memory   string   // for keys and values of each model
	All      string   // for the weights, keys and values of all models together; empty: any amount
	MaxBody  string
	Draft    string // model that proposes tokens, or openmodel.Lookup; empty: none
	serve.Options
	cli.Compute
}

// Report is what was answered.
type Report struct {
	Address string   `json:"address"`
	Models  []string `json:"models"`
	serve.Counts
}

const (
	leastKey = 16               // bytes of a key that is not found by trying
	grace    = 10 * time.Second // that answers have to end in, when the server is interrupted
	farewell = 2 * time.Second  // and clients to read what ended them
)

// Check looks at the flags by themselves.
func (o *Options) Check() error {
	host, _, err := net.SplitHostPort(o.Listen)
	switch {
	case err != nil:
		return cli.Usagef("--listen %.200q: want host:port, such as 127.0.0.1:8080; port 0 chooses one", o.Listen)
	case o.Anyone && o.KeyFile != "":
		return cli.Usagef("--let-anyone-ask and --key-file exclude each other")
	case !jobs.Loopback(o.Listen) && o.KeyFile == "" && !o.Anyone:
		return cli.Usagef("--listen %.200q is reached from other machines, and there are no keys (HINT: add "+
			"--key-file FILE, or --let-anyone-ask)", host)
	}

	for i, a := range o.Adapters {
		name, dir, ok := strings.Cut(a, "=")
		if !ok || name == "" || dir == "" {
			return cli.Usagef("--adapter %.200q: want NAME=DIR", a)
		}
		if slices.ContainsFunc(o.Adapters[:i], func(b string) bool { return strings.HasPrefix(b, name+"=") }) {
			return cli.Usagef("--adapter: two have the name %.200q", name)
		}
	}

	if o.Options.Memory, err = cli.Bytes("kv-memory", o.Memory); err != nil {
		return err
	}
	if o.All != "" {
		if o.Budget, err = cli.Bytes("memory", o.All); err != nil {
			return err
		}
	}
	switch {
	case o.DraftTokens < 0:
		return cli.Usagef("--draft-tokens %d: want 1 or more", o.DraftTokens)
	case o.DraftTokens > 0 && o.Draft == "":
		return cli.Usagef("--draft-tokens says how many tokens a draft proposes (HINT: add --draft MODEL, or --draft " +
			"lookup)")
	}
	if o.Options.MaxBody, err = cli.Bytes("max-body", o.MaxBody); err != nil {
		return err
	}
	return cli.Usage(o.Options.Validate())
}

// Serve answers until the job is interrupted.
func Serve(j *cli.Job, paths []string, o Options) (any, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.KeyFile != "" {
		var err error
		if o.Keys, err = cli.Keys("key-file", o.KeyFile, leastKey); err != nil {
			return nil, err
		}
	}

	if o.Root != "" {
		info, err := os.Stat(o.Root)
		if err != nil {
			return nil, fmt.Errorf("--adapter-root: %w", err)
		}
		if !info.IsDir() {
			return nil, cli.Usagef("--adapter-root: %s is not a folder", o.Root)
		}
		o.AdapterRoot = o.Root
		o.OpenAdapter = func(ctx context.Context, base serve.Model, name, dir string) (serve.Model, error) {
			return adapter(ctx, func(string) {}, base, name, dir)
		}
	}
	o.Failed = func(model string, err error) { j.Note("%s: %v", model, err) }

	listener, err := (&net.ListenConfig{}).Listen(j.Ctx, "tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	o.Hosts = o.hosts()

	if err := distinct(paths, o.Adapters); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	r := &Report{Address: "http://" + listener.Addr().String()}
	h, err := serve.Sources(j.Ctx, sources(j, paths, &o), o.Options)
	if errors.Is(err, lm.ErrInput) || errors.Is(err, serve.ErrBudget) { // --kv-memory and --memory decide
		err = cli.Usage(err)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	r.Models = h.Names()
	if o.Budget > 0 {
		j.Printf("memory: %s\n", plan(h.Uses(), o.Budget))
	}
	j.Printf("serving %s at %s\n", strings.Join(r.Models, ", "), r.Address)

	err = answer(j.Ctx, listener, h, grace)
	r.Counts = h.Counts()
	return r, err
}

// plan says what the models take of the memory of all, and which of them are open.
func plan(list []serve.Use, budget int64) string {
	var held int64
	var texts []string
	for _, u := range list {
		text := u.Name + " " + cli.Size(u.Bytes)
		if u.Adapters > 0 {
			text += " with " + cli.Size(u.Adapters) + " of adapters"
		}
		if u.Loaded {
			held += u.Bytes
		} else {
			text += " (when it is asked for)"
		}
		texts = append(texts, text)
	}
	return fmt.Sprintf("%s of %s: %s", cli.Size(held), cli.Size(budget), strings.Join(texts, ", "))
}

// distinct refuses two models of the same name.
func distinct(paths, adapters []string) error {
	var names []string
	for _, path := range paths {
		names = append(names, nameOf(path))
	}
	for _, a := range adapters {
		name, _, _ := strings.Cut(a, "=")
		names = append(names, name)
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return cli.Usagef("two models have the name %q", name)
		}
	}
	return nil
}

// sources are the models with their adapters.
func sources(j *cli.Job, paths []string, o *Options) (list []serve.Source) {
	adapters := make([][]string, len(paths)) // NAME=DIR, by model
	for _, a := range o.Adapters {
		at := max(slices.IndexFunc(paths, func(p string) bool { return strings.HasPrefix(a, nameOf(p)+"/") }), 0)
		adapters[at] = append(adapters[at], a)
	}

	for i, path := range paths {
		files := []string{path}
		for _, a := range adapters[i] {
			_, dir, _ := strings.Cut(a, "=")
			files = append(files, dir)
		}

		var seen stage.Seen // when the model was opened first
		opened := false
		list = append(list, serve.Source{
			Name: nameOf(path),
			Open: func(context.Context) (one serve.Opened, err error) {
				var unread error
				if !opened {
					seen, unread = stage.SeeAll(files...)
				}
				if one, err = openAll(j, path, adapters[i], o); err != nil {
					return one, err // says better than unread what is not there
				}
				if unread != nil {
					one.Close()
					return serve.Opened{}, unread
				}
				opened = true
				return one, nil
			},
			Unchanged: func() error { return seen.Unchanged() },
		})
	}
	return list
}

// openAll loads a model and opens its adapters.
func openAll(j *cli.Job, path string, adapters []string, o *Options) (serve.Opened, error) {
	base, closeIt, err := open(j, path, o.Compute.Options())
	if err != nil {
		return serve.Opened{}, err
	}

	var draft *lm.Model
	var closeDraft func()
	if base.Draft, draft, closeDraft, err = openmodel.Drafts(j, base.LM, o.Draft, o.Compute.Options()); err != nil {
		closeIt()
		return serve.Opened{}, err
	}
	bytes := base.LM.MemorySize()
	if x, mediated := base.Router.(experts); mediated {
		bytes += x.of.MemorySize()
	}
	if draft != nil {
		bytes += draft.MemorySize()
		base.DraftBytes = draft.TokenSize() * 3 / 2 // a session has room for half as many tokens more
	}
	all := serve.Opened{Models: serve.Models{base}, Bytes: bytes, Close: func() {
		closeDraft()
		closeIt()
	}}
	for _, a := range adapters {
		name, dir, _ := strings.Cut(a, "=")
		m, err := adapter(j.Ctx, func(text string) { j.Remark("%s: %s", dir, text) }, base, name, dir)
		if err == nil && m.Enter != nil { // whether it can be attached shows now, and not when somebody asks
			var undo func()
			if undo, err = m.Enter(); err == nil {
				undo()
			}
		}
		if err != nil {
			for _, m := range all.Models[1:] {
				if m.Close != nil {
					m.Close()
				}
			}
			all.Close()
			return serve.Opened{}, err
		}
		all.Models = append(all.Models, m)
	}
	return all, nil
}

// open loads a model.
func open(j *cli.Job, path string, load lm.Options) (one serve.Model, closeIt func(), err error) {
	m, err := openmodel.Open(j, path, load, openmodel.Options{})
	if err != nil {
		return one, nil, err
	}

	one = serve.Model{Name: nameOf(path), LM: m.Model, Root: path}
	if m.Experts != nil {
		one.Router = experts{m.Experts}
	}
	if one.Tokenizer, err = m.Tokenizer(); err != nil {
		m.Close()
	}
	return one, func() { m.Close() }, err
}

// experts is how a mediated model answers, in the words of --experts.
type experts struct{ of *openmodel.Experts }

// Names implements [serve.Router].
func (x experts) Names() []string { return append(slices.Clone(x.of.Names()), "dense") }

// Choose implements [serve.Router].
func (x experts) Choose(choice string) (serve.Route, error) {
	c, err := x.of.Choose(choice)
	if err == nil {
		err = c.Whole()
	}
	if err != nil {
		return nil, err
	}

	return func(ctx context.Context, prompt []int32) (serve.Way, error) {
		w, err := x.of.RouteBy(ctx, c, prompt)
		if err != nil {
			return serve.Way{}, err
		}
		return serve.Way{Name: openmodel.WeightsText(x.of.Names(), w), Enter: func() (func(), error) {
			return func() { _ = x.of.Use(nil) }, x.of.Use(w) // the next Use repeats what failed on the way back
		}}, nil
	}, nil
}

// adapter opens an adapter: for single requests, or for the whole model where it changes what all of them share.
func adapter(ctx context.Context, remark func(text string), base serve.Model, name, dir string) (serve.Model, error) {
	a, err := lora.Open(dir, base.LM)
	if err != nil {
		return base, err
	}
	other, err := a.OtherBase(ctx, base.LM)
	if err != nil {
		return base, err
	}
	if other != "" {
		remark(other)
	}

	m := base
	m.Name = name
	m.Parent = base.Name
	m.Router = nil
	m.Root = dir
	m.Overlay, m.Close, err = a.Overlay(base.LM)
	switch {
	case errors.Is(err, lora.ErrUnsupported):
		m.Enter = func() (func(), error) { return a.Attach(base.LM) }
		m.Bytes = a.MemorySize()
		err = nil
	case err == nil:
		m.Bytes = m.Overlay.MemorySize()
	}

	// The dense model is one of the ways in which a mediated one computes: putting it back may fail.
	if x, mediated := base.Router.(experts); mediated {
		attach := m.Enter
		m.Enter = func() (func(), error) {
			if err := x.of.Use(nil); err != nil || attach == nil {
				return func() {}, err
			}
			return attach()
		}
	}
	return m, err
}

// snapshot is a folder in the hub's cache.
var snapshot = regexp.MustCompile(`models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]`)

// nameOf is under which name a model is asked for: that of its folder or file, or on the hub.
func nameOf(path string) string {
	if m := snapshot.FindStringSubmatch(path); m != nil {
		return m[1] + "/" + m[2]
	}
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	return strings.TrimSuffix(filepath.Base(path), ".gguf")
}

// hosts are the names under which the server may be addressed: where only this machine reaches it, those of this
// machine, since pages in its browsers could otherwise ask under a name of their own.
func (o *Options) hosts() []string {
	if !jobs.Loopback(o.Listen) {
		return nil
	}
	host, _, _ := net.SplitHostPort(o.Listen)
	return []string{"localhost", "127.0.0.1", "::1", host}
}

// answer serves until ctx ends; then answers have some time to end.
func answer(ctx context.Context, listener net.Listener, h *serve.Server, grace time.Duration) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}

	failed := make(chan error, 1)
	var listens mmapsafe.Group
	listens.Go(func() { failed <- server.Serve(listener) })

	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}

	// Streams end with an event of their own, and only then connections are cut.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	h.Shutdown(late)

	// late may be over, and those that were cut off are still to be told.
	told, cancelTold := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancelTold()
	if server.Shutdown(told) != nil {
		server.Close()
	}
	listens.Wait()

	return err
}
