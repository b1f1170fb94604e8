package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/modelcompress/compress/editeval/task/internal/engine"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client asks a server of its own, without waiting; waits are what it would have waited.
func client(t *testing.T, h http.HandlerFunc) (c *Client, waits *[]time.Duration) {
	t.Helper()
	s := httptest.NewServer(h)
	c, err := New(Config{URL: s.URL, Model: "m", Requests: 4, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })

	waits = &[]time.Duration{}
	c.wait = func(_ context.Context, d time.Duration) error { *waits = append(*waits, d); return nil }
	return c, waits
}

const fine = `{"choices": [{"text": " ok", "finish_reason": "length"}], "usage": {"completion_tokens": 2}}`

var one = []engine.Prompt{{IDs: []int32{1}, Max: 2}}

func unknown(int) bool { return false }

// text asks for a text.
func text(ctx context.Context, c *Client) (engine.Text, error) {
	var out engine.Text
	err := c.Generate(ctx, one, unknown, func(_ int, t engine.Text) error { out = t; return nil })
	return out, err
}

// TestBusy: a busy server is asked again, when it says or after pauses that grow; not for ever, and not where it asks
// to wait too long.
func TestBusy(t *testing.T) {
	n := 0
	c, waits := client(t, func(w http.ResponseWriter, _ *http.Request) {
		n++
		switch n {
		case 1:
			w.Header().Set("Retry-After", "7")
			http.Error(w, `{"error": {"message": "full"}}`, http.StatusTooManyRequests)
		case 2, 3:
			http.Error(w, "", http.StatusServiceUnavailable)
		default:
			_, _ = io.WriteString(w, fine)
		}
	})
	var told []string
	c.Again = func(err error, pause time.Duration) { told = append(told, fmt.Sprint(err, " ", pause)) }
	got, err := text(t.Context(), c)
	if len(told) != 1 || !strings.HasSuffix(told[0], "429 Too Many Requests: full 7s") { // three in no time: once
		t.Errorf("%q", told)
	}
	if err != nil || got != (engine.Text{Text: " ok", Tokens: 2, Ended: engine.EndLength}) ||
		!slices.Equal(*waits, []time.Duration{7 * time.Second, 2 * time.Second, 4 * time.Second}) {
		t.Errorf("%v %+v %v", err, got, *waits)
	}

	c, waits = client(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error": {"message": "full"}}`, http.StatusTooManyRequests)
	})
	if _, err := text(t.Context(), c); !errors.Is(err, ErrBusy) || len(*waits) != tries-1 ||
		!strings.Contains(err.Error(), "429 Too Many Requests: full") {
		t.Errorf("always: %v, %v", err, *waits)
	}

	c, waits = client(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "9999")
		http.Error(w, "", http.StatusServiceUnavailable)
	})
	if _, err := text(t.Context(), c); !errors.Is(err, ErrBusy) || len(*waits) != 0 {
		t.Errorf("too long: %v, %v", err, *waits)
	}
}

// TestBroken: a connection that ends in the middle is tried again; a server that does not answer in time is not.
func TestBroken(t *testing.T) {
	n := 0
	half := func(w http.ResponseWriter, _ *http.Request) {
		if n++; n < 3 {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, fine[:20])
			return
		}
		_, _ = io.WriteString(w, fine)
	}
	c, _ := client(t, half)
	if got, err := text(t.Context(), c); err != nil || got.Text != " ok" {
		t.Errorf("%v %+v", err, got)
	}

	n = -100
	c, waits := client(t, half)
	if _, err := text(t.Context(), c); !errors.Is(err, ErrShort) || len(*waits) != tries-1 {
		t.Errorf("always half: %v, %v", err, *waits)
	}

	wait := make(chan struct{})
	c, waits = client(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-wait:
		case <-r.Context().Done():
		}
	})
	c.timeout = time.Millisecond
	if _, err := text(t.Context(), c); !errors.Is(err, ErrSlow) || len(*waits) != 0 {
		t.Errorf("slow: %v, %v", err, *waits)
	}
	close(wait)

	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := text(ctx, c); !errors.Is(err, gone) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestOrder: answers come in any order, and are handed on in one, in groups that what is known does not move.
func TestOrder(t *testing.T) {
	c, _ := client(t, func(http.ResponseWriter, *http.Request) {})
	later := make(chan struct{})
	var groups [][]int
	err := c.each(t.Context(), 10, 3, func(i int) bool { return i == 4 || i > 5 && i < 9 },
		func(_ context.Context, i int) error {
			switch i {
			case 0: // the first is answered last
				<-later
			case 9:
				close(later)
			}
			return nil
		},
		func(at []int) error { groups = append(groups, at); return nil })
	want := [][]int{{0, 1, 2}, {3, 5}, {9}}
	if err != nil || !slices.EqualFunc(groups, want, slices.Equal) {
		t.Errorf("%v %v", err, groups)
	}

	stop := errors.New("stop")
	if err := c.each(t.Context(), 100, 2, unknown, func(context.Context, int) error { return nil },
		func([]int) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// TestModels: the only model is taken, one of several must be named, and a server that lists none is believed.
func TestModels(t *testing.T) {
	for list, c := range map[string]struct {
		model, want string
		limit       int
		says        string
	}{
		`{"data": [{"id": "a", "max_model_len": 64}]}`: {want: "a", limit: 64},
		`{"data": [{"id": "b"}]}`:                      {want: "b", limit: 32},
		`{"data": [{"id": "a"}, {"id": "b"}]}`:         {says: "has 2 models: a, b"},
		`{"data": [{"id": "a"}, {"id": "b"} ]}`:        {model: "b", want: "b", limit: 32},
		`{"data": [{"id": "a"}]} `:                     {model: "c", says: `no model "c"; it has a`},
		`{"data": []}`:                                 {says: "lists no models"},
		`{"data": []} `:                                {model: "c", want: "c"},
		``:                                             {model: "c", want: "c"},
	} {
		cl, _ := client(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case list == "":
				http.NotFound(w, r)
			case r.URL.Path == "/props":
				_, _ = io.WriteString(w, `{"default_generation_settings": {"n_ctx": 32}}`)
			default:
				_, _ = io.WriteString(w, list)
			}
		})
		cl.Model = c.model
		err := cl.Open(t.Context())
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) ||
			err == nil && (cl.Model != c.want || cl.Limit != c.limit) {
			t.Errorf("%s: %v, %q, %d", list, err, cl.Model, cl.Limit)
		}
	}
}

// TestOddTexts: what ends a text is known, and there is one.
func TestOddTexts(t *testing.T) {
	for answer, says := range map[string]string{
		`{"choices": [{"text": "x", "finish_reason": "content_filter"}]}`: "content_filter",
		`{"choices": [{"finish_reason": "stop"}]}`:                        "without a text",
		`{"choices": []}`:   "0 choices",
		`[1]`:               "not an answer",
		`{"choices": 3}`:    "not an answer",
		`{"error": "full"}`: "full",
	} {
		c, _ := client(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
		if _, err := text(t.Context(), c); err == nil || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// TestTokenizers: the two forms of /tokenize, and where special tokens are told; without them there is another way.
func TestTokenizers(t *testing.T) {
	for name, c := range map[string]struct {
		field, info string // of a text in the body, and the path with special tokens
		says        string
	}{
		"vLLM":      {"prompt", "/tokenizer_info", ""},
		"llama.cpp": {"content", "/props", ""},
		"none":      {"", "/props", "does not have it"},
		"no names":  {"prompt", "", "does not have it"},
	} {
		t.Run(name, func(t *testing.T) {
			cl, _ := client(t, func(w http.ResponseWriter, r *http.Request) {
				var body map[string]any
				switch {
				case r.URL.Path == c.info:
					_, _ = io.WriteString(w, `{"bos_token": "<s>", "eos_token": "</s>", "pad_token": null}`)
				case r.URL.Path == "/tokenize" && c.field != "" && json.NewDecoder(r.Body).Decode(&body) == nil:
					ids := []int{} // llama.cpp gives none for a body that it does not understand
					switch text, _ := body[c.field].(string); text {
					case "":
					case "<s>":
						ids = []int{1}
					case "</s>":
						ids = []int{2}
					default:
						ids = []int{7, 8}
					}
					_ = json.NewEncoder(w).Encode(map[string]any{"tokens": ids})
				default:
					http.NotFound(w, r)
				}
			})

			tok, err := OpenTokenizer(t.Context(), cl)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) ||
					!strings.Contains(failure.Hint(err), "--tokenizer") {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}

			ids, err := tok.Encode("some text", tokenizer.EncodeOptions{})
			bos, hasBOS := tok.BOS()
			eos, hasEOS := tok.EOS()
			_, hasPAD := tok.PAD()
			text, known := tok.Token(2)
			if err != nil || !slices.Equal(ids, []int32{7, 8}) || bos != 1 || !hasBOS || eos != 2 || !hasEOS ||
				hasPAD || text != "</s>" || !known {
				t.Errorf("%v %v %d %d %q", err, ids, bos, eos, text)
			}
			if ids, err := tok.Encode("", tokenizer.EncodeOptions{NoSpecial: true}); err != nil || len(ids) > 0 {
				t.Errorf("nothing: %v %v", ids, err)
			}
		})
	}
}
