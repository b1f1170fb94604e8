package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcompress/compress/serve"
)

// served puts a model behind a server; change, where it is not nil, stands before it.
func served(t *testing.T, of *opened, change func(next http.Handler) http.Handler) string {
	t.Helper()
	s, err := serve.Handler(serve.Models{{Name: "nano", LM: of.m, Tokenizer: of.tok}},
		serve.Options{Keys: []string{"key"}, Memory: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}

	h := http.Handler(s)
	if change != nil {
		h = change(h)
	}
	front := httptest.NewServer(h)
	t.Cleanup(func() {
		front.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(ctx)
	})
	return front.URL
}

// behind evaluates a model behind a server.
func behind(t *testing.T, server Server, o Options, tasks ...string) (*Results, error) {
	t.Helper()
	s, err := Load(tasks)
	if err != nil {
		t.Fatal(err)
	}
	return RunServer(t.Context(), server, s, o)
}

// near is how far figures may be from those of the model in memory: kernels sum products in another order for other
// numbers of rows, and a likelihood is a sum of float32 logits.
const near = 1e-6

// TestServerFigures: a model behind a server has the figures that it has in memory, on tasks of every kind, with its
// tokenizer or by the server's.
func TestServerFigures(t *testing.T) {
	for i, name := range []string{"base", "sums"} {
		of := open(t, nano+"/"+name)
		tasks := []string{nano + "/tasks/base.yaml", nano + "/tasks/subtract.yaml", nano + "/tasks/tales.yaml"}
		o := Options{Limit: 8, Bootstrap: -1}
		s, err := Load(tasks)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Run(t.Context(), of.m, of.tok, s, o)
		if err != nil {
			t.Fatal(err)
		}

		url := served(t, of, nil)
		server := []Server{
			{URL: url, Key: "key", Tokenizer: of.tok},
			{URL: url + "/v1/completions", Key: "key", Model: "nano", Requests: 3},
		}[i]
		have, err := behind(t, server, o, tasks...)
		if err != nil {
			t.Fatal(err)
		}
		sameFigures(t, want, have)
		if have.ModelName != "nano" || have.Config.URL != url+"/v1" || have.Prefix != want.Prefix ||
			fmt.Sprint(have.EOSToken) != fmt.Sprint(want.EOSToken) {
			t.Errorf("%+v", have)
		}
	}
}

// sameFigures compares all figures of all tasks.
func sameFigures(t *testing.T, want, have *Results) {
	t.Helper()
	n := 0
	for task, row := range want.Results {
		if want.TaskHashes[task] != have.TaskHashes[task] {
			t.Errorf("%s: other prompts", task)
		}
		for key, v := range row {
			x, isNumber := v.(float64)
			y, there := have.Results[task][key].(float64)
			if !isNumber {
				continue
			}
			n++
			if !there || math.Abs(x-y) > near*max(1, math.Abs(x)) {
				t.Errorf("%s %s: %v, want %v", task, key, have.Results[task][key], v)
			}
		}
	}
	if n < 5 {
		t.Errorf("%d figures", n)
	}
}

// TestServerFolder: an evaluation that breaks off goes on where it stopped, and has the same files in the end, whatever
// the number of requests at a time; another model's answers are not taken.
func TestServerFolder(t *testing.T) {
	of := open(t, nano+"/base")
	var left atomic.Int64 // requests until the server breaks; below 0: it is broken
	left.Store(math.MaxInt64)
	var asked atomic.Int64
	url := served(t, of, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/completions" {
				asked.Add(1)
				if left.Add(-1) < 0 {
					http.Error(w, "{}", http.StatusTeapot)
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	})

	into := func(out string, server Server) error {
		s, err := Load([]string{nano + "/tasks/base.yaml", nano + "/tasks/subtract.yaml"})
		if err != nil {
			t.Fatal(err)
		}
		folder, err := OpenFolder(out, FolderOptions{Samples: true, Resume: true})
		if err != nil {
			return err
		}
		_, err = folder.RunServer(t.Context(), server, s, Options{Limit: 9, Bootstrap: -1})
		return errors.Join(err, folder.Close())
	}

	dir := t.TempDir()
	server := Server{URL: url, Key: "key", Tokenizer: of.tok, Requests: 1}
	if err := into(filepath.Join(dir, "one"), server); err != nil {
		t.Fatal(err)
	}
	all := asked.Load()

	server.Requests = 4
	left.Store(all / 2)
	if err := into(filepath.Join(dir, "four"), server); err == nil || !strings.Contains(err.Error(), "418") {
		t.Fatalf("broken: %v", err)
	}
	left.Store(math.MaxInt64)
	asked.Store(0)
	if err := into(filepath.Join(dir, "four"), server); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n == 0 || n >= all {
		t.Errorf("%d requests, of %d in all", n, all)
	}

	for name, text := range tree(t, filepath.Join(dir, "one")) {
		if name != ResultsFile && tree(t, filepath.Join(dir, "four"))[name] != text {
			t.Errorf("%s differs", name)
		}
	}

	other := server
	other.URL = served(t, of, nil)
	if err := into(filepath.Join(dir, "four"), other); !errors.Is(err, ErrOtherRun) {
		t.Errorf("another server: %v", err)
	}
}

// say answers everything with one text.
func say(code int, text string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
}

// altered changes the JSON of completions.
func altered(change func(choice map[string]any)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/completions" {
				next.ServeHTTP(w, r)
				return
			}

			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			var answer map[string]any
			if json.Unmarshal(rec.Body.Bytes(), &answer) == nil {
				change(answer["choices"].([]any)[0].(map[string]any))
			}
			text, _ := json.Marshal(answer)
			_, _ = w.Write(text)
		})
	}
}

// TestBadServers: what is no answer is one line that says so, and never a figure.
func TestBadServers(t *testing.T) {
	of := open(t, nano+"/base")
	logprobs := func(choice map[string]any) map[string]any { return choice["logprobs"].(map[string]any) }
	models := func(h http.HandlerFunc) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/models" {
					next.ServeHTTP(w, r)
				} else {
					h(w, r)
				}
			})
		}
	}

	for name, c := range map[string]struct {
		change func(http.Handler) http.Handler
		says   string
	}{
		"no completions": {
			models(say(404, `{"error": {"message": "no such path"}}`)),
			"base, tales: .*/v1/completions: the server does not have it: 404 Not Found: no such path",
		},
		"no echo": {
			models(say(400, `{"error": {"message": "echo is\n not supported"}}`)),
			"base, tales: .*no log-probabilities of a prompt.*echo is not supported",
		},
		"no logprobs": {altered(func(c map[string]any) { c["logprobs"] = nil }), "base, tales: .*no log-probabilities"},
		"short": {
			altered(func(c map[string]any) { logprobs(c)["token_logprobs"] = []float64{-1, -2} }),
			"2 log-probabilities and 4 tables",
		},
		"null": {
			altered(func(c map[string]any) { logprobs(c)["token_logprobs"].([]any)[2] = nil }),
			"no log-probability at token 2",
		},
		"positive": {
			altered(func(c map[string]any) { logprobs(c)["token_logprobs"].([]any)[1] = 3.5 }),
			"log-probability 3.5 at token 1",
		},
		"no tables": {
			altered(func(c map[string]any) { logprobs(c)["top_logprobs"].([]any)[1] = nil }),
			"no likely tokens at token 1",
		},
		"NaN":          {models(say(200, `{"choices": [{"logprobs": {"token_logprobs": [NaN]}}]}`)), "no JSON"},
		"HTML":         {models(say(200, "\n<!doctype html>log in")), "a page of HTML"},
		"redirect":     {models(say(302, "", "Location", "http://elsewhere.example/")), "redirect to http://elsewhere.example/, which is not followed"},
		"two":          {models(say(200, `{"choices": [{}, {}]}`)), "2 choices for one prompt"},
		"error in 200": {models(say(200, `{"error": {"message": "\u001b[31mred"}}`)), "red"},
		"key":          {models(say(401, `{"error": {"message": "wrong key"}}`)), "no access.*wrong key"},
	} {
		t.Run(name, func(t *testing.T) {
			server := Server{URL: served(t, of, c.change), Key: "key", Tokenizer: of.tok, Timeout: time.Minute}
			_, err := behind(t, server, Options{Limit: 1, Bootstrap: -1}, nano+"/tasks/base.yaml",
				nano+"/tasks/subtract.yaml", nano+"/tasks/tales.yaml")
			if err == nil || !matches(c.says, err.Error()) || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestTextsNeedNoLogprobs: a server without log-probabilities of prompts can generate.
func TestTextsNeedNoLogprobs(t *testing.T) {
	of := open(t, nano+"/sums")
	url := served(t, of, altered(func(c map[string]any) { delete(c, "logprobs") }))
	r, err := behind(t, Server{URL: url, Key: "key"}, Options{Limit: 3, Bootstrap: -1}, nano+"/tasks/subtract.yaml")
	if err != nil || r.Audits["subtract"].Documents != 3 {
		t.Errorf("%v %+v", err, r)
	}
}

// TestServerLengths: how long sequences may be is the server's to say, or whoever asks.
func TestServerLengths(t *testing.T) {
	for _, c := range []struct {
		positions, asked int
		likelihoods      bool
		limit, scored    int
		says             string
	}{
		{1024, 0, true, 1024, 1022, ""},
		{1024, 0, false, 1024, 1022, ""},
		{1024, 100, true, 100, 100, ""},
		{0, 100, true, 100, 100, ""},
		{0, 0, true, 0, 0, "does not say how many tokens"},
		{1024, 1023, true, 0, 0, "takes 1024 tokens, of which a likelihood needs 2"},
		{1024, 1024, false, 1024, 1024, ""},
		{1, 0, true, 1, 1, ""},
	} {
		s := &subject{}
		err := s.fit(c.positions, c.asked, c.likelihoods)
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) ||
			err == nil && (s.limit != c.limit || s.scored != c.scored) {
			t.Errorf("%+v: %v, %d, %d", c, err, s.limit, s.scored)
		}
	}
}

// TestServerOptions: addresses and keys that cannot be used are refused before anything is asked, and not repeated.
func TestServerOptions(t *testing.T) {
	for _, s := range []Server{
		{URL: "127.0.0.1:8080"},
		{URL: "ftp://a/v1"},
		{URL: "http://user:secret@a/v1"},
		{URL: "http://a/v1?key=secret"},
		{URL: ""},
		{URL: "http:///v1"},
		{URL: "http://a", Key: "se cret"},
		{URL: "http://a", Requests: -1},
		{URL: "http://a", Timeout: -1},
	} {
		if err := s.Validate(); err == nil || strings.Contains(err.Error(), "cret") {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, u := range []string{"http://a", "http://a/", "http://a/v1", "https://a/v1/", "http://a/v1/completions"} {
		c, err := Server{URL: u}.client()
		if err != nil || !strings.HasSuffix(c.Address(), "://a/v1") {
			t.Errorf("%s: %v", u, err)
		}
	}
	if !slices.Equal((&Suite{}).scored(), nil) {
		t.Error("tasks of none")
	}
}

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }
