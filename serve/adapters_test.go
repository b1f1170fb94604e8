package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// shelf is a server that loads adapters from a folder, in which they are files with the seed of their numbers.
type shelf struct {
	*client
	root string
	open atomic.Int32 // adapters that were opened and not closed
}

func newShelf(t *testing.T, more ...Model) *shelf {
	base := nano(t, "base")
	x := &shelf{root: t.TempDir()}
	for i := range 3 {
		x.write(t, fmt.Sprint("a", i), fmt.Sprint(i))
	}
	x.write(t, "damaged", "what?")

	models := append(Models{base}, more...)
	x.client = start(t, models, Options{
		AdapterRoot: x.root,
		OpenAdapter: func(_ context.Context, base Model, name, dir string) (Model, error) {
			text, err := os.ReadFile(filepath.Join(dir, "seed"))
			if err != nil {
				return base, err
			}
			seed, err := strconv.Atoi(string(text))
			if err != nil {
				return base, err
			}

			m := base
			m.Name, m.Parent, m.Root = name, base.Name, dir
			d := draw(base.LM, uint64(seed))
			if seed == 2 {
				m.Enter = func() (func(), error) { return base.LM.Attach(&d) }
			} else if m.Overlay, err = base.LM.Overlay(&d); err != nil {
				return m, err
			}
			x.open.Add(1)
			m.Close = func() { x.open.Add(-1) }
			return m, nil
		},
	})
	return x
}

func (x *shelf) write(t *testing.T, name, seed string) {
	t.Helper()
	dir := filepath.Join(x.root, name)
	err := os.MkdirAll(dir, 0o777)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "seed"), []byte(seed), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// load asks for an adapter, or for its end, and gives the status and the type of the fault.
func (x *shelf) load(t *testing.T, what string, body obj) (int, string) {
	t.Helper()
	r, err := x.ask(t.Context(), "/v1/"+what+"_lora_adapter", body)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode == http.StatusOK {
		return r.StatusCode, ""
	}
	var f struct {
		Error struct{ Type, Message string }
	}
	if err := json.NewDecoder(r.Body).Decode(&f); err != nil || f.Error.Message == "" {
		t.Errorf("%v: %v", body, err)
	}
	return r.StatusCode, f.Error.Type
}

// Adapters come and go as vLLM has it, and nothing outside of the folder is opened.
func TestLoadAdapter(t *testing.T) {
	x := newShelf(t)
	outside := t.TempDir()
	for from, to := range map[string]string{
		"away": outside, "away/x": "", "near": filepath.Join(x.root, "a1"), "gone": filepath.Join(outside, "none"),
		"within/seed": filepath.Join(outside, "seed"),
	} {
		if to == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(x.root, from)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(x.root, from)); err != nil {
			t.Skip("no links here")
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "seed"), []byte("1"), 0o666); err != nil {
		t.Fatal(err)
	}

	for i, c := range []struct {
		what string
		body obj
		code int
		kind string
	}{
		{"load", obj{}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "none"}, 404, "NotFoundError"},
		{"load", obj{"lora_name": "a", "lora_path": "damaged"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "../" + filepath.Base(outside)}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "a0/../../" + filepath.Base(outside)}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": outside}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "/etc/none"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "away"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "within"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "away/none"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "gone"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "gone/none"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "a0/none"}, 404, "NotFoundError"},
		{"load", obj{"lora_name": "\x1b[31ma", "lora_path": "a0"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": strings.Repeat("a", 257), "lora_path": "a0"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "base", "lora_path": "a0"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "a0", "base_model_name": "b"}, 404, "invalid_request_error"},
		{"load", obj{"lora_name": "a", "lora_path": "a0", "what": 1}, 400, "invalid_request_error"},
		{"unload", obj{}, 400, "InvalidUserInput"},
		{"unload", obj{"lora_name": "a"}, 404, "NotFoundError"},
		{"unload", obj{"lora_name": "base"}, 404, "NotFoundError"},
		{"load", obj{"lora_name": "a", "lora_path": "a0"}, 200, ""},
		{"load", obj{"lora_name": "a", "lora_path": "a1"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "b", "lora_path": "a0", "base_model_name": "a"}, 400, "InvalidUserInput"},
		{"load", obj{"lora_name": "a", "lora_path": "near", "load_inplace": true}, 200, ""},
		{"load", obj{"lora_name": "whole", "lora_path": filepath.Join(x.root, "a2")}, 200, ""},
		{"unload", obj{"lora_name": "a"}, 200, ""},
		{"unload", obj{"lora_name": "a"}, 404, "NotFoundError"},
	} {
		if code, kind := x.load(t, c.what, c.body); code != c.code || kind != c.kind {
			t.Errorf("%d: %s %v: %d %s", i, c.what, c.body, code, kind)
		}
	}

	if n := x.open.Load(); n != 1 {
		t.Errorf("%d adapters are open", n)
	}
	x.s.stop()
	if n := x.open.Load(); n != 0 {
		t.Errorf("%d adapters are open at the end", n)
	}

	closed := start(t, Models{nano(t, "base")}, Options{})
	if code := closed.post("/v1/load_lora_adapter", obj{"lora_name": "a", "lora_path": "a0"}, nil); code != 404 {
		t.Errorf("loading is off: %d", code)
	}
}

// A request ends with the adapter that it began with, whatever is loaded in its place or taken away meanwhile, and has
// the answer that it has alone. Behind the last, the adapter is closed.
func TestLoadMeanwhile(t *testing.T) {
	x := newShelf(t)
	body := obj{
		"model": "a", "prompt": "The king had a daughter", "max_tokens": 60, "ignore_eos": true, "temperature": 0,
	}
	want := map[string]bool{}
	for _, path := range []string{"a0", "a1", "a2"} {
		if code, _ := x.load(t, "load", obj{"lora_name": "a", "lora_path": path, "load_inplace": true}); code != 200 {
			t.Fatal(code)
		}
		want[x.complete(body).Choices[0].Text] = true
	}
	if len(want) != 3 {
		t.Fatalf("%d different answers", len(want))
	}

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for ctx.Err() == nil {
				var raw json.RawMessage
				var a completion
				switch code := x.post("/v1/completions", body, &raw); code {
				case http.StatusOK:
					if err := json.Unmarshal(raw, &a); err != nil || !want[a.Choices[0].Text] {
						t.Errorf("%v, %s", err, raw)
					}
				case http.StatusNotFound: // between two loads
				default:
					t.Errorf("%d: %s", code, raw)
				}
			}
		})
	}
	for i := range 30 {
		if i%5 == 4 {
			x.load(t, "unload", obj{"lora_name": "a"})
			continue
		}
		x.load(t, "load", obj{"lora_name": "a", "lora_path": fmt.Sprint("a", i%3), "load_inplace": true})
	}
	cancel()
	all.Wait()

	x.load(t, "unload", obj{"lora_name": "a"})
	wait(t, "the end of all adapters", func() bool { return x.open.Load() == 0 && x.idle() })
}

// faulty panics where it acts.
type faulty struct{ drawn }

// Forward implements [lm.Delta].
func (*faulty) Forward(lm.Linear, kernels.Mat, kernels.Mat) error { panic("a fault") }

// A panic ends the requests of its model with an error; those that wait, and all others, are answered.
func TestPanic(t *testing.T) {
	base := nano(t, "base")
	broken := base
	broken.Name = "broken"
	var err error
	if broken.Overlay, err = base.LM.Overlay(&faulty{}); err != nil {
		t.Fatal(err)
	}
	var told atomic.Int32
	c := start(t, Models{base, broken, nano(t, "news")}, Options{
		Failed: func(model string, err error) {
			if model != "base" || !errors.Is(err, errPanic) || !strings.Contains(err.Error(), "a fault") {
				t.Errorf("%s: %v", model, err)
			}
			told.Add(1)
		},
	})

	body := obj{"prompt": "The king had a daughter", "max_tokens": 30, "temperature": 0}
	want := c.complete(body).Choices[0].Text
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			body := obj{"model": "news", "prompt": "The king", "max_tokens": 200, "ignore_eos": true}
			if code := c.post("/v1/completions", body, nil); code != 200 {
				t.Errorf("of another model: %d", code)
			}
		})
	}
	for range 3 {
		var f struct {
			Error struct{ Type, Message string }
		}
		if code := c.post("/v1/completions", obj{"model": "broken", "prompt": "The king"}, &f); code != 500 ||
			f.Error.Type != "server_error" {
			t.Errorf("%d: %+v", code, f)
		}
		if got := c.complete(body).Choices[0].Text; got != want {
			t.Errorf("%q behind a fault, %q before", got, want)
		}
	}
	all.Wait()
	if told.Load() != 3 {
		t.Errorf("%d faults", told.Load())
	}
	wait(t, "the end", c.idle)
}
