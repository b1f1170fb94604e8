package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/lm"
)

// sized lets clients load adapters that take as many MiB as the name of their folder says.
func sized(t *testing.T, o Options) Options {
	t.Helper()
	o.AdapterRoot = t.TempDir()
	for i := range 10 {
		if err := os.Mkdir(filepath.Join(o.AdapterRoot, fmt.Sprint(i)), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	o.OpenAdapter = func(_ context.Context, base Model, name, dir string) (Model, error) {
		m := base
		m.Name, m.Parent = name, base.Name
		m.Bytes = int64(filepath.Base(dir)[0]-'0') << 20
		d := draw(base.LM, 3)
		var err error
		m.Overlay, err = base.LM.Overlay(&d)
		return m, err
	}
	return o
}

// adapter asks for an adapter, or for its end, and gives the status, the code and the text of the fault.
func (c *client) adapter(what string, body obj) (status int, code, text string) {
	c.t.Helper()
	r, err := c.ask(c.t.Context(), "/v1/"+what+"_lora_adapter", body)
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode == http.StatusOK {
		return r.StatusCode, "", ""
	}
	var f struct {
		Error struct{ Code, Message string }
	}
	if err := json.NewDecoder(r.Body).Decode(&f); err != nil {
		c.t.Error(err)
	}
	return r.StatusCode, f.Error.Code, f.Error.Message
}

// loadedNow names the open models, and tells what all take.
func (c *client) loadedNow() (names []string, bytes int64) {
	c.t.Helper()
	var health struct{ Loaded []string }
	c.read("/health", &health)
	for _, u := range c.s.Uses() {
		if u.Loaded {
			bytes += u.Bytes
		}
	}
	return health.Loaded, bytes
}

// TestAdaptersTakeOfTheBudget: adapters of the command line and those that are loaded at run time take memory as models
// do: models that nobody uses go for them, what does not fit is refused with the numbers, and an adapter's memory is
// free behind its last request.
func TestAdaptersTakeOfTheBudget(t *testing.T) {
	l := newLibrary(t)
	l.bytes = 1 << 20
	c := startSources(t, sized(t, Options{Budget: 12 << 20}),
		l.source("a", 3<<20), l.source("b", 3<<20), l.source("c", 3<<20)) // 5 MiB each: keys and values, an adapter
	is := func(when string, want int64, names ...string) {
		t.Helper()
		if got, bytes := c.loadedNow(); !slices.Equal(got, names) || bytes != want<<20 {
			t.Errorf("%s: %v, %d bytes; want %v, %d", when, got, bytes, names, want<<20)
		}
		metric := fmt.Sprintf("compress_loaded_bytes %v\n", float64(want<<20))
		if text := c.text("/metrics"); !strings.Contains(text, metric) {
			t.Errorf("%s: metrics without %q", when, metric)
		}
	}
	load := func(name, dir string) (int, string, string) {
		return c.adapter("load", obj{"lora_name": name, "lora_path": dir, "base_model_name": "a"})
	}
	say := func(model string) (int, string) {
		var f struct {
			Error struct{ Message string }
		}
		status := c.post("/v1/completions", obj{"model": model, "prompt": "x", "max_tokens": 1}, &f)
		return status, f.Error.Message
	}

	is("at first", 10, "a", "b")
	if status, _, text := load("one", "1"); status != http.StatusOK {
		t.Fatalf("an adapter that fits: %d %s", status, text)
	}
	is("with an adapter", 11, "a", "b")
	if status, _, text := load("two", "2"); status != http.StatusOK {
		t.Fatalf("an adapter that fits without b: %d %s", status, text)
	}
	is("with two", 8, "a")

	status, code, text := load("five", "5")
	if status != http.StatusBadRequest || code != "out_of_memory" ||
		!strings.Contains(text, "takes 5242880 bytes, and 4194304 of the 12582912") {
		t.Errorf("an adapter that does not fit: %d %s %s", status, code, text)
	}
	if status, text := say("b"); status != http.StatusInsufficientStorage ||
		!strings.Contains(text, "takes 5242880 bytes, and 4194304 are left") {
		t.Errorf("a model that does not fit beside adapters: %d %s", status, text)
	}
	if status, text := say("five"); status != http.StatusNotFound {
		t.Errorf("the adapter that did not fit: %d %s", status, text)
	}
	is("after what did not fit", 8, "a")

	// A request keeps the memory of its adapter.
	_, let, err := c.s.model(t.Context(), "two")
	if err != nil {
		t.Fatal(err)
	}
	if status, _, text := c.adapter("unload", obj{"lora_name": "two"}); status != http.StatusOK {
		t.Fatalf("unload: %d %s", status, text)
	}
	is("unloaded under a request", 8, "a")
	let()
	is("behind the request", 6, "a")
	if status, text := say("b"); status != http.StatusOK {
		t.Errorf("a model that fits again: %d %s", status, text)
	}
	is("with b", 11, "a", "b")

	// An adapter of the command line that was unloaded takes nothing when its model comes again.
	for _, name := range []string{"one", "a/a"} {
		if status, _, text := c.adapter("unload", obj{"lora_name": name}); status != http.StatusOK {
			t.Fatalf("unload of %s: %d %s", name, status, text)
		}
	}
	is("without adapters of a", 9, "a", "b")
	say("c")
	is("c for a", 10, "b", "c")
	say("a")
	is("a for b", 9, "a", "c")
}

// TestBudgetOfAdapters: a model that does not fit with its adapters is refused at the start, with the numbers.
func TestBudgetOfAdapters(t *testing.T) {
	l := newLibrary(t)
	l.bytes = 1 << 20
	list := []Source{l.source("a", 3<<20)}
	_, err := Sources(t.Context(), list, Options{Budget: 5<<20 - 1, Memory: 1 << 20})
	if !errors.Is(err, ErrBudget) || !strings.Contains(err.Error(),
		"takes 5242880 bytes, 1048576 of them for keys and values and 1048576 for adapters") {
		t.Error(err)
	}
	if l.open.Load() != 0 {
		t.Errorf("%d models stay open", l.open.Load())
	}
}

// TestAdaptersAndModelsComeTogether: clients load adapters of models and ask for others in a budget where both have to
// wait for each other; nobody waits for ever, and nothing else than a lack of room is refused.
func TestAdaptersAndModelsComeTogether(t *testing.T) {
	l := newLibrary(t)
	c := startSources(t, sized(t, Options{Budget: 9 << 20}), l.source("a", 3<<20), l.source("b", 3<<20),
		l.source("c", 3<<20))
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			model := string(rune('a' + i%3))
			if i < 6 {
				for range 4 {
					status := c.post("/v1/completions", obj{"model": model, "prompt": "x", "max_tokens": 3}, nil)
					if status != http.StatusOK && status != http.StatusInsufficientStorage {
						t.Errorf("%s: %d", model, status)
					}
				}
				return
			}
			name := fmt.Sprint("adapter", i)
			for range 4 {
				status, code, text := c.adapter("load",
					obj{"lora_name": name, "lora_path": "1", "base_model_name": model})
				switch {
				case status == http.StatusOK:
					c.adapter("unload", obj{"lora_name": name})
				case code != "out_of_memory":
					t.Errorf("%s of %s: %d %s", name, model, status, text)
				}
			}
		})
	}
	all.Wait()
	if _, bytes := c.loadedNow(); bytes > 9<<20 {
		t.Errorf("%d bytes are taken", bytes)
	}
}

// TestDraftsTakeNoMoreThanTheyMay: the drafts of all answers have room for so many tokens; what has none is answered
// without, and the same.
func TestDraftsTakeNoMoreThanTheyMay(t *testing.T) {
	m := nano(t, "base")
	body := obj{"prompt": strings.Repeat("The king had a daughter. ", 8), "max_tokens": 40, "temperature": 0}
	want := start(t, Models{m}, Options{}).complete(body).Choices[0].Text

	begun := 0
	m.Draft = func() (lm.Draft, func(), error) {
		begun++
		return cheap{lm.PromptLookup{Shortest: 1}}, func() {}, nil
	}
	m.DraftBytes = 4 << 20 // of which no token fits
	if got := start(t, Models{m}, Options{}).complete(body).Choices[0].Text; got != want || begun != 0 {
		t.Errorf("%d drafts, %q, want %q", begun, got, want)
	}
	m.DraftBytes = 1
	if got := start(t, Models{m}, Options{}).complete(body).Choices[0].Text; got != want || begun != 1 {
		t.Errorf("with memory %d drafts, %q, want %q", begun, got, want)
	}
}
