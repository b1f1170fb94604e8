package servecmd

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/serve"
)

// valid are options that nothing is wrong with.
func valid() Options {
	return Options{Listen: "127.0.0.1:0", Memory: "1GiB", MaxBody: "1MiB"}
}

// What others reach needs keys or the flag that names the risk, and every fault is named by its flag.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(o *Options)
		want   string
	}{
		"usual":     {func(*Options) {}, ""},
		"local":     {func(o *Options) { o.Listen = "localhost:1" }, ""},
		"v6":        {func(o *Options) { o.Listen = "[::1]:1" }, ""},
		"all":       {func(o *Options) { o.Listen = ":8080" }, "there are no keys"},
		"others":    {func(o *Options) { o.Listen = "192.0.2.1:8080" }, "there are no keys"},
		"named":     {func(o *Options) { o.Listen = "example.org:8080" }, "there are no keys"},
		"keys":      {func(o *Options) { o.Listen, o.KeyFile = ":8080", "keys" }, ""},
		"anyone":    {func(o *Options) { o.Listen, o.Anyone = ":8080", true }, ""},
		"both":      {func(o *Options) { o.KeyFile, o.Anyone = "keys", true }, "exclude each other"},
		"no port":   {func(o *Options) { o.Listen = "localhost" }, "--listen"},
		"adapter":   {func(o *Options) { o.Adapters = []string{"a=b", "c=d"} }, ""},
		"nameless":  {func(o *Options) { o.Adapters = []string{"=b"} }, "--adapter"},
		"no folder": {func(o *Options) { o.Adapters = []string{"a"} }, "--adapter"},
		"twice":     {func(o *Options) { o.Adapters = []string{"a=b", "a=c"} }, "two have the name"},
		"memory":    {func(o *Options) { o.Memory = "much" }, "--kv-memory"},
		"body":      {func(o *Options) { o.MaxBody = "0B" }, "--max-body"},
		"queue":     {func(o *Options) { o.Queue = -1 }, "negative"},
	} {
		o := valid()
		c.change(&o)
		err := o.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestNameOf(t *testing.T) {
	for path, want := range map[string]string{
		"testdata/nano/base": "base", "a/b.Q4_K_M.gguf": "b.Q4_K_M", "a/": "a", "/x/.": "x",
		"/h/hub/models--org--name/snapshots/0123/": "org/name",
	} {
		if got := nameOf(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestCutOff: answers that an interrupt cuts off are told so, streams and others.
func TestCutOff(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	defer dev.Close()
	dir := filepath.Join("..", "..", "..", "..", "testdata", "nano", "base")
	m, err := lm.Load(t.Context(), dir, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	h, err := serve.Handler(serve.Models{{Name: "base", LM: m, Tokenizer: tok}}, serve.Options{Memory: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var server, clients sync.WaitGroup
	server.Go(func() {
		if err := answer(ctx, listener, h, time.Millisecond); err != nil {
			t.Error(err)
		}
	})

	for i := range 8 {
		clients.Go(func() {
			body := `{"prompt":"Once upon a time","max_tokens":1000,"n":8,"ignore_eos":true,"logprobs":20}`
			if i%2 == 0 {
				body = `{"stream":true,` + body[1:]
			}
			r, err := http.Post("http://"+listener.Addr().String()+"/v1/completions", "application/json",
				strings.NewReader(body))
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			if err != nil || !strings.Contains(string(text), "shutting down") {
				t.Errorf("%d: %d bytes, %v", i, len(text), err)
			}
		})
	}
	for range 1000 { // until all are there
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if strings.Contains(w.Body.String(), "\ncompress_requests_running 8\n") {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	interrupt()
	clients.Wait()
	http.DefaultClient.CloseIdleConnections()
	server.Wait()
}
