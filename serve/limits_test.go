package serve

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Faults are told in the shape that clients know, and name what is wrong.
func TestFaults(t *testing.T) {
	m := nano(t, "base")
	c := start(t, Models{m}, Options{MaxBody: 1 << 16, MaxPrompt: 100, MaxTokens: 50})
	big := obj{}
	for i := range maxBias + 1 {
		big[fmt.Sprint(i)] = 1
	}
	for _, x := range []struct {
		path, param string
		code        int
		body        any
	}{
		{"/v1/completions", "", 400, "{"},
		{"/v1/completions", "", 400, `{"prompt":"a"} x`},
		{"/v1/completions", "prompt", 400, `{"prompt":{}}`},
		{"/v1/completions", "prompt", 400, `{"prompt":[1,null,2]}`},
		{"/v1/completions", "prompt", 400, `{"prompt":[[1],null]}`},
		{"/v1/completions", "prompt", 400, `{"prompt":["a",null]}`},
		{"/v1/completions", "temperature", 400, `{"prompt":"a","temperature":1e400}`},
		{"/v1/completions", "stream_options.include_usage", 400, `{"prompt":"a","stream_options":{"include_usage":1}}`},
		{"/v1/completions", "n", 400, `{"prompt":"a","n":1.5}`},
		{"/v1/completions", "prompt", 400, obj{}},
		{"/v1/completions", "prompt", 400, obj{"prompt": []int{}}},
		{"/v1/completions", "prompt", 400, obj{"prompt": []int{1, -1}}},
		{"/v1/completions", "prompt", 400, obj{"prompt": []int{1 << 30}}},
		{"/v1/completions", "prompt", 400, obj{"prompt": strings.Repeat("king ", 200)}},
		{"/v1/completions", "", 413, obj{"prompt": strings.Repeat("king ", 20000)}},
		{"/v1/completions", "model", 404, obj{"prompt": "a", "model": "none"}},
		{"/v1/completions", "temperature", 400, obj{"prompt": "a", "temperature": -1}},
		{"/v1/completions", "top_p", 400, obj{"prompt": "a", "top_p": 2}},
		{"/v1/completions", "top_k", 400, obj{"prompt": "a", "top_k": -2}},
		{"/v1/completions", "n", 400, obj{"prompt": "a", "n": 0}},
		{"/v1/completions", "n", 400, obj{"prompt": []string{"a", "b"}, "n": 65}},
		{"/v1/completions", "prompt", 400, obj{"prompt": make([]string, 129)}},
		{"/v1/completions", "max_tokens", 400, obj{"prompt": "a", "max_tokens": -1}},
		{"/v1/completions", "max_tokens", 400, obj{"prompt": "a", "max_tokens": 51}},
		{"/v1/completions", "logprobs", 400, obj{"prompt": "a", "logprobs": 21}},
		{"/v1/completions", "suffix", 400, obj{"prompt": "a", "suffix": "b"}},
		{"/v1/completions", "best_of", 400, obj{"prompt": "a", "best_of": 2}},
		{"/v1/completions", "stop", 400, obj{"prompt": "a", "stop": ""}},
		{"/v1/completions", "stop", 400, obj{"prompt": "a", "stop": strings.Split(strings.Repeat("a", 17), "")}},
		{"/v1/completions", "logit_bias", 400, obj{"prompt": "a", "logit_bias": obj{"x": 1}}},
		{"/v1/completions", "logit_bias", 400, obj{"prompt": "a", "logit_bias": obj{"1": 101}}},
		{"/v1/completions", "logit_bias", 400, obj{"prompt": "a", "logit_bias": big}},
		{"/v1/completions", "guided_json", 400, obj{"prompt": "a", "guided_json": "b"}},
		{"/v1/chat/completions", "messages", 400, obj{}},
		{"/v1/chat/completions", "messages", 400, obj{"messages": []int{1}}},
		{"/v1/chat/completions", "top_logprobs", 400, obj{"messages": []obj{{"role": "user"}}, "top_logprobs": 1}},
		{"/v1/chat/completions", "tool_choice", 400, obj{
			"messages": []obj{{"role": "user"}}, "tool_choice": "required",
		}},
		{"/v1/chat/completions", "response_format", 400, obj{
			"messages": []obj{{"role": "user"}}, "response_format": obj{"type": "json_object"},
		}},
		{"/v1/chat/completions", "tools", 400, obj{"messages": []obj{{"role": "user"}}, "tools": []int{1}}},
		{"/v1/chat/completions", "messages", 400, obj{
			"messages": []obj{{"role": "user", "content": strings.Repeat("king ", 200)}},
		}},
		{"/tokenize", "prompt", 400, obj{}},
		{"/detokenize", "tokens", 400, obj{"tokens": []int{-1}}},
		{"/detokenize", "tokens", 400, `{"tokens":[1,null]}`},
		{"/v1/chat/completions", "max_completion_tokens", 400, obj{
			"messages": []obj{{"role": "user"}}, "max_completion_tokens": 51,
		}},
		{"/v1/nothing", "", 404, obj{}},
		{"/v1/models", "", 405, obj{}},
	} {
		var got struct {
			Error struct{ Message, Type, Param, Code string }
		}
		code := c.post(x.path, x.body, &got)
		e := got.Error
		if code != x.code || e.Param != x.param || e.Message == "" || strings.Contains(e.Message, "Go ") {
			t.Errorf("%s %.100v: %d %+v", x.path, x.body, code, e)
		}
	}

	r, err := http.Post(c.url+"/v1/completions", "text/plain", strings.NewReader(`{"prompt":"a"}`))
	if err != nil || r.StatusCode != http.StatusUnsupportedMediaType {
		t.Error(r.StatusCode, err)
	}
	r.Body.Close()

	// What is there for another method says so, and a slash more is nothing else.
	r, err = http.Get(c.url + "/v1/completions")
	if err != nil || r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") != http.MethodPost {
		t.Error(r.StatusCode, r.Header, err)
	}
	r.Body.Close()
	var list struct{ Data []modelCard }
	c.read("/v1/models/", &list)
	if len(list.Data) != 1 {
		t.Errorf("%+v", list)
	}

	// Media types are the same in capitals.
	r, err = http.Post(c.url+"/v1/completions", "Application/JSON", strings.NewReader(`{"prompt":"a","max_tokens":1}`))
	if err != nil || r.StatusCode != http.StatusOK {
		t.Error(r.StatusCode, err)
	}
	r.Body.Close()
}

// Of two prompts of one request the last counts, also where they are of different kinds.
func TestTwoPrompts(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{})
	var got completion
	if code := c.post("/v1/completions", `{"prompt":[5,6],"prompt":"abc","max_tokens":0,"echo":true}`, &got); code != 200 {
		t.Fatal(code)
	}
	if len(got.Choices) != 1 || got.Choices[0].Text != "abc" {
		t.Errorf("%+v", got.Choices)
	}
}

// A body that never comes does not hold a connection, also where nobody reads it.
func TestNoBody(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{Keys: []string{"key"}, patience: 50 * time.Millisecond})
	for key, want := range map[string]int{"key": http.StatusBadRequest, "none": http.StatusUnauthorized} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(c.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"+
			"Authorization: Bearer %s\r\nContent-Length: 50\r\n\r\n{", key)
		if err == nil {
			err = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		}
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn) // until the server closes it
		if err != nil || !strings.Contains(string(answer), fmt.Sprint("HTTP/1.1 ", want)) {
			t.Errorf("%s: %q, %v", key, answer, err)
		}
		conn.Close()
	}
}

// A client that does not read its stream is given up, and its sequences with it.
func TestSlowReader(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{patience: 50 * time.Millisecond, Queue: 4096})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}

	// Some 50 MB of events, which no buffer of a connection takes.
	body := `{"prompt":"a","max_tokens":200,"n":128,"logprobs":20,"ignore_eos":true,"stream":true}`
	_, err = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n\r\n%s", len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the request", func() bool { return c.s.asked.Load() == 1 })
	wait(t, "its end", func() bool { return c.s.asked.Load() == 0 && c.idle() })
}

// A client that only closes its half of the connection reads why it has no answer, and not an empty one.
func TestHalfClosed(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{})
	whole := `{"prompt":"Once upon a time","max_tokens":400,"ignore_eos":true}`
	for body, want := range map[string]int{whole: statusGone, whole[:20]: http.StatusBadRequest} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(c.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n%s", len(whole), body)
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		if r.StatusCode != want || err != nil || !strings.Contains(string(text), "error") {
			t.Errorf("%q: %d %q, %v", body, r.StatusCode, text, err)
		}
		conn.Close()
	}
	wait(t, "an empty server", c.idle)
}

// get asks with headers, and gives the answer without its body.
func (c *client) get(path string, headers ...string) *http.Response {
	c.t.Helper()
	r, _ := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.url+path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	a.Body.Close()
	return a
}

func TestKeys(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{Keys: []string{"first", "second"}})
	for key, want := range map[string]int{
		"": 401, "Bearer": 401, "Bearer third": 401, "Basic first": 401, "Bearer first": 200, "bearer second": 200,
	} {
		for path, free := range map[string]bool{"/v1/models": false, "/metrics": false, "/health": true} {
			if code := c.get(path, "Authorization", key).StatusCode; code != want && !(free && code == 200) {
				t.Errorf("%s with %q: %d", path, key, code)
			}
		}
	}
	if code := c.post("/v1/completions", obj{"prompt": "a"}, nil); code != 401 {
		t.Error(code)
	}
}

// Only pages that are named may read answers, and only by the server's own name.
func TestOrigins(t *testing.T) {
	m := nano(t, "base")
	for _, x := range []struct {
		o            Options
		origin, host string
		code         int
		allowed      string
	}{
		{Options{}, "http://page", "anything:1", 200, ""},
		{Options{Origins: []string{"http://page"}}, "http://page", "a", 200, "http://page"},
		{Options{Origins: []string{"http://page"}}, "http://other", "a", 200, ""},
		{Options{Hosts: []string{"localhost", "::1"}}, "", "localhost:80", 200, ""},
		{Options{Hosts: []string{"localhost", "::1"}}, "", "[::1]:80", 200, ""},
		{Options{Hosts: []string{"localhost", "::1"}}, "", "evil.example", 421, ""},
	} {
		r := start(t, Models{m}, x.o).get("/v1/models", "Origin", x.origin, "Host", x.host)
		if r.StatusCode != x.code || r.Header.Get("Access-Control-Allow-Origin") != x.allowed {
			t.Errorf("%+v: %d, %v", x, r.StatusCode, r.Header)
		}
	}
}

// wait polls for a state that others bring about.
func wait(t *testing.T, what string, f func() bool) {
	t.Helper()
	for range 2000 {
		if f() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s does not come", what)
}

// idle reports whether nothing runs or waits, and no memory is in use.
func (c *client) idle() bool {
	c.s.watch.mu.Lock()
	defer c.s.watch.mu.Unlock()
	for _, s := range c.s.watch.states {
		if s.running+s.waiting+s.used > 0 {
			return false
		}
	}
	return len(c.s.watch.states) > 0
}

// endless is a request that runs until its context ends.
func endless(more obj) obj {
	b := obj{
		"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true, "stream": true, "temperature": 1,
		"seed": 1,
	}
	for k, v := range more {
		b[k] = v
	}
	return b
}

// A full queue refuses, with the time after which to come again; when clients go, their places are free.
func TestQueueAndCancel(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{Sequences: 2, Queue: 2})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	var refused atomic.Int64
	var all sync.WaitGroup
	for range 12 { // two run, two wait, and the first to be refused sends the others away
		all.Go(func() {
			r, err := c.ask(ctx, "/v1/completions", endless(obj{"n": 2}))
			if err != nil {
				return
			}
			defer r.Body.Close()
			if r.StatusCode == http.StatusTooManyRequests {
				if r.Header.Get("Retry-After") == "" {
					t.Error("no Retry-After")
				}
				refused.Add(1)
				cancel()
			}
			_, _ = io.Copy(io.Discard, r.Body)
		})
	}
	all.Wait()
	if refused.Load() == 0 {
		t.Error("nobody was refused")
	}

	wait(t, "an empty server", c.idle)
	c.complete(obj{"prompt": "a", "max_tokens": 1})
}

// An answer that takes too long is an error, and lets go of what it had.
func TestTimeout(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{Timeout: 1})
	if code := c.post("/v1/completions", obj{"prompt": "The king"}, nil); code != http.StatusGatewayTimeout {
		t.Error(code)
	}
	wait(t, "an empty server", c.idle)
}

// A shutdown lets answers end in its time, then ends streams with an error; whoever comes later is refused.
func TestShutdown(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{})
	begun := make(chan struct{})
	var last string
	var all sync.WaitGroup
	all.Go(func() {
		r, err := c.ask(t.Context(), "/v1/completions", endless(obj{"max_tokens": 450}))
		if err != nil {
			t.Error(err)
			close(begun)
			return
		}
		defer r.Body.Close()
		lines := bufio.NewScanner(r.Body)
		lines.Scan()
		close(begun)
		for lines.Scan() {
			if lines.Text() != "" {
				last = lines.Text()
			}
		}
	})

	<-begun
	c.s.stop()
	all.Wait()
	if !strings.Contains(last, "shutting down") {
		t.Errorf("%q", last)
	}
	if code := c.post("/v1/completions", obj{"prompt": "a"}, nil); code != 503 {
		t.Error(code)
	}
	if code := c.get("/health").StatusCode; code != 503 {
		t.Error(code)
	}
}

// FuzzBodies: no body brings the server down, and every one has an answer.
func FuzzBodies(f *testing.F) {
	m := nano(f, "base")
	s, err := Handler(Models{m}, Options{Memory: 4 << 20, MaxTokens: 4, MaxPrompt: 64, Timeout: time.Minute})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.stop)

	paths := []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}
	for i, body := range []string{
		`{"prompt":"a","max_tokens":2,"echo":true,"logprobs":1}`, `{"prompt":[[1,2],[3]],"n":2,"stream":true}`,
		`{"messages":[{"role":"user","content":"a"}],"max_tokens":2,"logprobs":true,"top_logprobs":2}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"tools":[{"a":1}],"max_tokens":1}`,
		`{"prompt":"a"}`, `{"tokens":[1,2]}`, `{"prompt":"a","logit_bias":{"1":1},"stop":["a"],"max_tokens":1}`, `[`, `null`,
	} {
		f.Add(uint8(i), []byte(body))
	}
	f.Fuzz(func(t *testing.T, at uint8, body []byte) {
		r := httptest.NewRequest(http.MethodPost, paths[int(at)%len(paths)], bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 || w.Body.Len() == 0 {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	})
}

// Long requests are taken apart a few at a time, since that takes many times their memory; short ones pass them, and
// who goes meanwhile leaves no trace.
func TestLongRequestsTakeTurns(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{})
	for range desks {
		c.s.desks <- struct{}{}
	}

	long := obj{"prompt": strings.Repeat("a", smallBody)}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r, err := c.ask(ctx, "/tokenize", long); err == nil {
		r.Body.Close()
		t.Errorf("a long request did not wait: %d", r.StatusCode)
	}

	answers := make(chan int)
	go func() { answers <- c.post("/tokenize", long, nil) }()
	if code := c.post("/tokenize", obj{"prompt": "a"}, nil); code != http.StatusOK {
		t.Errorf("a short one: %d", code)
	}

	for range desks {
		<-c.s.desks
	}
	if code := <-answers; code != http.StatusOK {
		t.Errorf("at last: %d", code)
	}
	if len(c.s.desks) != 0 {
		t.Error("a place stays taken")
	}
}
