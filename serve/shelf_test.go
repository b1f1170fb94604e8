package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
)

// library makes sources of the small model under several names, and counts how many are open.
type library struct {
	t     *testing.T
	dir   string
	most  int64 // open at a time
	bytes int64 // that each adapter takes
	open  atomic.Int64
	loads atomic.Int64
	fault atomic.Pointer[error] // of opening
	other atomic.Pointer[error] // of files that have changed
}

func newLibrary(t *testing.T) *library {
	return &library{t: t, dir: nano(t, "base").LM.Path()}
}

// source is a model that takes some bytes, with an adapter.
func (l *library) source(name string, bytes int64) Source {
	return Source{
		Name: name,
		Open: func(context.Context) (Opened, error) {
			if err := l.fault.Load(); err != nil {
				return Opened{}, *err
			}
			dev := cpu.New(cpu.Options{Threads: 1})
			m, err := lm.Load(context.Background(), l.dir, dev, lm.Options{})
			if err != nil {
				return Opened{}, err
			}
			tok, err := m.Tokenizer()
			if err != nil {
				return Opened{}, err
			}

			l.loads.Add(1)
			l.most = max(l.most, l.open.Add(1))
			one := Model{Name: name, LM: m, Tokenizer: tok, Root: l.dir}
			adapter := one
			adapter.Name, adapter.Parent = name+"/a", name
			adapter.Bytes = l.bytes
			d := draw(m, 7)
			if adapter.Overlay, err = m.Overlay(&d); err != nil {
				return Opened{}, err
			}
			return Opened{Models: Models{one, adapter}, Bytes: bytes, Close: func() {
				l.open.Add(-1)
				m.Close()
				dev.Close()
			}}, nil
		},
		Unchanged: func() error {
			if err := l.other.Load(); err != nil {
				return *err
			}
			return nil
		},
	}
}

// text is what a path answers.
func (c *client) text(path string) string {
	c.t.Helper()
	r, err := http.Get(c.url + path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(raw)
}

// read reads it into v.
func (c *client) read(path string, v any) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.text(path)), v); err != nil {
		c.t.Fatal(err)
	}
}

// startSources starts a server for sources.
func startSources(t *testing.T, o Options, list ...Source) *client {
	t.Helper()
	o.Memory = 1 << 20
	s, err := Sources(t.Context(), list, o)
	if err != nil {
		t.Fatal(err)
	}
	return serving(t, s)
}

// TestModelsAreLoadedOnDemand: with a budget for two models of three, each answers when it is asked for as it does
// alone, its adapter too; all are listed all the time, and what was used least recently goes.
func TestModelsAreLoadedOnDemand(t *testing.T) {
	l := newLibrary(t)
	c := startSources(t, Options{Budget: 8 << 20}, l.source("a", 3<<20), l.source("b", 3<<20), l.source("c", 3<<20))
	list := func() (names, loaded []string) {
		var models struct{ Data []modelCard }
		c.read("/v1/models", &models)
		for _, m := range models.Data {
			names = append(names, m.ID)
			if m.Loaded {
				loaded = append(loaded, m.ID)
			}
			if m.Parameters == 0 || m.Bytes == 0 || m.Context == 0 || !m.Chat || m.Created == 0 {
				t.Errorf("the card of %s lacks something: %+v", m.ID, m)
			}
		}
		return names, loaded
	}
	say := func(model string) string {
		var r completion
		if code := c.post("/v1/completions", map[string]any{
			"model": model, "prompt": "Once upon", "max_tokens": 8, "temperature": 0,
		}, &r); code != http.StatusOK {
			t.Fatalf("%s: status %d", model, code)
		}
		return r.Choices[0].Text
	}

	all := []string{"a", "b", "c", "a/a", "b/a", "c/a"}
	if names, loaded := list(); !slices.Equal(names, all) || !slices.Equal(loaded, []string{"a", "b", "a/a", "b/a"}) {
		t.Fatalf("at first %v, loaded %v", names, loaded)
	}

	plain, adapted := say("a"), say("a/a")
	if plain == adapted {
		t.Error("the adapter does nothing")
	}
	for _, x := range []struct {
		ask  string
		left []string
	}{
		{"b/a", []string{"a", "b"}},
		{"c", []string{"b", "c"}},
		{"c/a", []string{"b", "c"}},
		{"a", []string{"a", "c"}},
		{"b", []string{"a", "b"}},
	} {
		want := plain
		if strings.HasSuffix(x.ask, "/a") {
			want = adapted
		}
		if got := say(x.ask); got != want {
			t.Errorf("%s says %q, want %q", x.ask, got, want)
		}
		var health struct{ Loaded []string }
		c.read("/health", &health)
		if !slices.Equal(health.Loaded, x.left) {
			t.Errorf("after %s %v are loaded, want %v", x.ask, health.Loaded, x.left)
		}
	}
	if names, _ := list(); !slices.Equal(names, all) {
		t.Errorf("in the end %v", names)
	}
	if l.most > 3 { // the third at the start, before its size was known
		t.Errorf("%d models were open at a time", l.most)
	}
	for _, want := range []string{
		`compress_model_evictions_total{model="a"} 1`, `compress_model_load_seconds_count{model="c"} 2`,
		"compress_loaded_bytes 8.388608e+06",
	} {
		if text := c.text("/metrics"); !strings.Contains(text, want) {
			t.Errorf("metrics without %q", want)
		}
	}
}

// TestNoModelGoesUnderARequest: many clients ask for models of which one fits, and all are answered as by that model
// alone; streams too.
func TestNoModelGoesUnderARequest(t *testing.T) {
	l := newLibrary(t)
	c := startSources(t, Options{Budget: 4 << 20}, l.source("a", 3<<20), l.source("b", 3<<20), l.source("c", 3<<20))
	answers := map[string]map[string]bool{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			model := string(rune('a'+i%3)) + []string{"", "/a"}[i/3%2]
			var r completion
			code := c.post("/v1/completions", map[string]any{
				"model": model, "prompt": fmt.Sprint("Number ", i%2), "max_tokens": 12, "temperature": 0,
			}, &r)
			if code != http.StatusOK {
				t.Errorf("%s: status %d", model, code)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			kind := fmt.Sprint(strings.HasSuffix(model, "/a"), i%2)
			if answers[kind] == nil {
				answers[kind] = map[string]bool{}
			}
			answers[kind][r.Choices[0].Text] = true
		})
	}
	all.Wait()
	for kind, texts := range answers {
		if len(texts) != 1 {
			t.Errorf("%s: %d answers: %v", kind, len(texts), texts)
		}
	}
}

// TestModelsThatCannotBeLoaded: faults are in OpenAI's shape, and the others answer.
func TestModelsThatCannotBeLoaded(t *testing.T) {
	l := newLibrary(t)
	one := []Source{l.source("a", 3<<20)}
	if _, err := Sources(t.Context(), one, Options{Budget: 2 << 20, Memory: 1 << 20}); !errors.Is(err,
		ErrBudget) || !strings.Contains(err.Error(), "may take 2097152") {
		t.Errorf("a model that does not fit: %v", err)
	}
	two := []Source{l.source("a", 1), l.source("a", 1)}
	if _, err := Sources(t.Context(), two, Options{Memory: 1 << 20}); err == nil ||
		!strings.Contains(err.Error(), "two models") {
		t.Errorf("two of a name: %v", err)
	}
	if l.open.Load() != 0 {
		t.Fatalf("%d models stay open", l.open.Load())
	}

	c := startSources(t, Options{Budget: 4 << 20}, l.source("a", 3<<20), l.source("b", 3<<20))
	ask := func(model string) (int, string) {
		var r struct {
			Error struct{ Code, Message string }
		}
		code := c.post("/v1/completions", map[string]any{"model": model, "prompt": "x", "max_tokens": 1}, &r)
		return code, r.Error.Code
	}
	broken := errors.New("it has gone")
	l.other.Store(&broken)
	if status, code := ask("b"); status != http.StatusInternalServerError || code != "model_changed" {
		t.Errorf("changed: %d %s", status, code)
	}
	l.other.Store(nil)
	l.fault.Store(&broken)
	if status, code := ask("b"); status != http.StatusInternalServerError || code != "model_load_failed" {
		t.Errorf("not opened: %d %s", status, code)
	}
	l.fault.Store(nil)
	for _, m := range []string{"b", "a", "b/a"} {
		if status, code := ask(m); status != http.StatusOK {
			t.Errorf("%s afterwards: %d %s", m, status, code)
		}
	}
}

// TestAnImpatientClientDoesNotKeepModelsOut: a client that goes while its model waits for the memory of another leaves
// everything as it was.
func TestAnImpatientClientDoesNotKeepModelsOut(t *testing.T) {
	l := newLibrary(t)
	c := startSources(t, Options{Budget: 4 << 20}, l.source("a", 3<<20), l.source("b", 3<<20))
	m, let, err := c.s.model(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if _, _, err := c.s.model(ctx, "b"); !errors.Is(err, context.Canceled) {
			t.Errorf("the client that went: %v", err)
		}
	})
	for leaves := false; !leaves; {
		c.s.mu.Lock()
		leaves = m.place.leaves
		c.s.mu.Unlock()
	}
	cancel()
	all.Wait()
	let()
	if _, let, err = c.s.model(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	let()
	if l.loads.Load() != 2 {
		t.Errorf("%d loads, want the two at the start", l.loads.Load())
	}
}

// forks is a Router with two ways beside the model's own.
type forks struct {
	m *lm.Model
	d [2]drawn
}

func (f *forks) Names() []string { return []string{"0", "1"} }

func (f *forks) Choose(choice string) (Route, error) {
	if choice != "" && choice != "0" && choice != "1" {
		return nil, fmt.Errorf("no way %q", choice)
	}
	return func(_ context.Context, prompt []int32) (Way, error) {
		k := len(prompt) % 2
		if choice != "" {
			k = int(choice[0] - '0')
		}
		return Way{Name: fmt.Sprint(k), Enter: func() (func(), error) { return f.m.Attach(&f.d[k]) }}, nil
	}, nil
}

// TestWays: prompts of one request that go different ways have the answers that they have alone, and share what those
// before them have computed in the same way.
func TestWays(t *testing.T) {
	m := nano(t, "base")
	m.Router = &forks{m.LM, [2]drawn{draw(m.LM, 1), draw(m.LM, 2)}}
	c := start(t, Models{m}, Options{})
	long := make([]int32, 200)
	for i := range long {
		long[i] = int32(20 + i%50)
	}
	prompts := [][]int32{long, long[:199]}
	ask := func(model string, prompt any) (r completion) {
		if code := c.post("/v1/completions", obj{
			"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": true,
		}, &r); code != http.StatusOK {
			t.Fatalf("%s: status %d", model, code)
		}
		return r
	}

	both := ask("base", prompts)
	for k, p := range prompts {
		one := ask(fmt.Sprint("base:", k), p)
		want, _ := json.Marshal(one.Choices[0].Logprobs)
		got, _ := json.Marshal(both.Choices[k].Logprobs)
		if string(got) != string(want) {
			t.Errorf("prompt %d: %s, by itself %s", k, got, want)
		}
		if one.Usage.Details.Cached == 0 || one.Model != fmt.Sprint("base:", k) {
			t.Errorf("prompt %d: %+v", k, one)
		}
	}

	var fault struct{ Error struct{ Message string } }
	code := c.post("/v1/completions", obj{"model": "base:2", "prompt": "x"}, &fault)
	if code != http.StatusBadRequest || !strings.Contains(fault.Error.Message, "no way") {
		t.Errorf("%d %+v", code, fault)
	}
	var models struct{ Data []modelCard }
	c.read("/v1/models", &models)
	if len(models.Data) != 3 || models.Data[2].ID != "base:1" || *models.Data[2].Parent != "base" {
		t.Errorf("%+v", models)
	}
}
