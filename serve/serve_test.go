package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// template is a chat template that shows what it gets.
const template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" +
	"{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% if add_generation_prompt %}assistant:{% endif %}"

// nano opens one of the project's small models, with a chat template.
func nano(t testing.TB, name string) Model {
	t.Helper()
	dir := t.TempDir()
	from := filepath.Join("..", "testdata", "nano", name)
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o666); err != nil {
		t.Fatal(err)
	}

	dev := cpu.New(cpu.Options{Threads: 2})
	m, err := lm.Load(t.Context(), dir, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); dev.Close() })

	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	return Model{Name: name, LM: m, Tokenizer: tok}
}

// client asks a server.
type client struct {
	t   testing.TB
	s   *Server
	url string
	key string
}

func start(t testing.TB, models Models, o Options) *client {
	t.Helper()
	if o.Memory == 0 {
		o.Memory = 16 << 20
	}
	s, err := Handler(models, o)
	if err != nil {
		t.Fatal(err)
	}
	return serving(t, s)
}

// serving lets a server answer.
func serving(t testing.TB, s *Server) *client {
	t.Helper()
	http := httptest.NewServer(s)
	t.Cleanup(func() {
		s.stop()
		http.Close()
	})
	return &client{t: t, s: s, url: http.URL}
}

// ask posts a body, and gives the answer.
func (c *client) ask(ctx context.Context, path string, body any) (*http.Response, error) {
	text, ok := body.(string)
	if !ok {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = string(raw)
	}

	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	return http.DefaultClient.Do(r)
}

// post asks, and reads the answer into v; it gives the status.
func (c *client) post(path string, body, v any) int {
	c.t.Helper()
	r, err := c.ask(c.t.Context(), path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err == nil && v != nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		c.t.Fatalf("%v in %s", err, raw)
	}
	return r.StatusCode
}

// complete asks for completions that must be answered.
func (c *client) complete(body obj) (a completion) {
	c.t.Helper()
	var raw json.RawMessage
	if code := c.post("/v1/completions", body, &raw); code != http.StatusOK {
		c.t.Fatalf("%d: %s", code, raw)
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		c.t.Fatal(err)
	}
	return a
}

type obj map[string]any

// streamed asks for a stream, and gives its events.
func (c *client) streamed(path string, body obj) (list []string) {
	c.t.Helper()
	body["stream"] = true
	r, err := c.ask(c.t.Context(), path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Body.Close()
	if kind := r.Header.Get("Content-Type"); kind != "text/event-stream" {
		raw, _ := io.ReadAll(r.Body)
		c.t.Fatalf("%s: %s", kind, raw)
	}

	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			list = append(list, data)
		} else if lines.Text() != "" {
			c.t.Errorf("line %q", lines.Text())
		}
	}
	return list
}

// A greedy completion is what the model generates by itself, and the probabilities of an echoed prompt are its own.
func TestCompletion(t *testing.T) {
	m := nano(t, "base")
	c := start(t, Models{m}, Options{})
	prompt := "Question: 14 + 6 ="
	ids, err := m.Tokenizer.Encode(prompt, tokenizer.EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := m.LM.GenerateText(t.Context(), m.Tokenizer, prompt, lm.TextOptions{
		GenerateOptions: lm.GenerateOptions{MaxTokens: 12},
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, p := range []any{prompt, ids, []string{prompt}, [][]int32{ids}} {
		a := c.complete(obj{"model": "base", "prompt": p, "max_tokens": 12, "temperature": 0})
		x := a.Choices[0]
		if x.Text != want.Text || x.Logprobs != nil || a.Object != "text_completion" || a.Model != "base" {
			t.Errorf("%v: %+v, want %q", p, a, want.Text)
		}
		if u := a.Usage; u.Prompt != len(ids) || u.Completion != len(want.IDs) || u.Total != len(ids)+len(want.IDs) {
			t.Errorf("%+v", u)
		}
	}

	r, err := m.LM.Forward(t.Context(), [][]int32{ids}, lm.ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := c.complete(obj{"prompt": ids, "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 1, "seed": 1234})
	l := a.Choices[0].Logprobs
	if len(l.Tokens) != len(ids)+1 || l.Logprobs[0] != nil || l.Tops[0] != nil || strings.Join(l.Tokens, "") !=
		a.Choices[0].Text {
		t.Fatalf("%+v", a.Choices[0])
	}
	for i, loss := range r.LossPerToken[0] {
		if p := *l.Logprobs[i+1]; math.Abs(p+loss) > 1e-5 { // float32 products in another order
			t.Errorf("token %d has %g, not %g", i+1, p, -loss)
		}
	}
	for i := 1; i < len(l.Tokens); i++ {
		top := math.Inf(-1)
		for _, p := range l.Tops[i] {
			top = max(top, p)
		}
		if top < *l.Logprobs[i] || l.Tops[i][l.Tokens[i]] != *l.Logprobs[i] {
			t.Errorf("token %d: %v of %v", i, *l.Logprobs[i], l.Tops[i])
		}
	}

	none := c.complete(obj{"prompt": prompt, "max_tokens": 0, "echo": true})
	if x := none.Choices[0]; x.Text != prompt || *x.Finish != "length" || none.Usage.Completion != 0 {
		t.Errorf("%+v", none)
	}
}

// A stream is the same answer in pieces.
func TestStream(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{})
	for _, more := range []obj{
		{}, {"stop": "."}, {"echo": true, "logprobs": 2}, {"n": 3, "temperature": 0.8, "seed": 7}, {"logprobs": 0},
	} {
		body := obj{"prompt": []string{"Once upon a time", "The king"}, "max_tokens": 20, "temperature": 0}
		for k, v := range more {
			body[k] = v
		}
		want := c.complete(body)

		body["stream_options"] = obj{"include_usage": true}
		list := c.streamed("/v1/completions", body)
		if list[len(list)-1] != "[DONE]" {
			t.Fatalf("%q", list)
		}

		got := make([]completionChoice, len(want.Choices))
		for i, line := range list[:len(list)-1] {
			var piece completion
			if err := json.Unmarshal([]byte(line), &piece); err != nil {
				t.Fatal(err)
			}
			if last := i == len(list)-2; last != (piece.Usage != nil) || last != (len(piece.Choices) == 0) {
				t.Errorf("%s", line)
			}
			if piece.Usage != nil {
				piece.Usage.Details, want.Usage.Details = promptDetails{}, promptDetails{} // more is there this time
				if *piece.Usage != *want.Usage {
					t.Errorf("%+v, want %+v", piece.Usage, want.Usage)
				}
			}
			for _, x := range piece.Choices {
				to := &got[x.Index]
				to.Text += x.Text
				if x.Finish != nil {
					to.Finish = x.Finish
				}
				if x.Logprobs != nil {
					if to.Logprobs == nil {
						to.Logprobs = &tokenTable{}
					}
					to.Logprobs.Logprobs = append(to.Logprobs.Logprobs, x.Logprobs.Logprobs...)
					to.Logprobs.Offsets = append(to.Logprobs.Offsets, x.Logprobs.Offsets...)
				}
			}
		}

		for i, x := range want.Choices {
			if got[i].Text != x.Text || *got[i].Finish != *x.Finish {
				t.Errorf("%v: %q (%s), want %q (%s)", more, got[i].Text, *got[i].Finish, x.Text, *x.Finish)
			}
			if x.Logprobs != nil {
				a, _ := json.Marshal([]any{got[i].Logprobs.Logprobs, got[i].Logprobs.Offsets})
				b, _ := json.Marshal([]any{x.Logprobs.Logprobs, x.Logprobs.Offsets})
				if !bytes.Equal(a, b) {
					t.Errorf("%v: %s, want %s", more, a, b)
				}
			}
		}
	}
}

// Answers do not depend on who else is there, on what was computed before, or on a lack of memory in between.
func TestAnswersAlone(t *testing.T) {
	m := nano(t, "base")
	alone := start(t, Models{m}, Options{})
	bodies := make([]obj, 24)
	want := make([]string, len(bodies))
	answer := func(a completion) string {
		text, _ := json.Marshal(a.Choices)
		return string(text)
	}
	for i := range bodies {
		bodies[i] = obj{
			"prompt":     strings.Repeat("The king had a daughter who was called Anna. ", 1+i%9) + fmt.Sprint(i),
			"max_tokens": 5 + 25*(i%5), "ignore_eos": true, "temperature": float64(i%3) / 2, "top_p": 0.95,
			"seed": i, "logprobs": 2, "n": 1 + i%2, "echo": i%4 == 0,
		}
		want[i] = answer(alone.complete(bodies[i]))
	}

	// Room for a few of them at a time.
	all := int64(alone.s.engines()[0].size)
	tight := start(t, Models{m}, Options{Memory: 10 * 64 * (16 << 20) / all, StepTokens: 100})
	for _, c := range []*client{alone, tight} {
		var together sync.WaitGroup
		for i := range bodies {
			together.Go(func() {
				if got := answer(c.complete(bodies[i])); got != want[i] {
					t.Errorf("answer %d in company:\n%s\nalone:\n%s", i, got, want[i])
				}
			})
		}
		together.Wait()
	}
}

// Where several answers grow beyond the memory together, some wait for the others, and are what they would have been.
func TestMemoryGivenUp(t *testing.T) {
	m := nano(t, "base")
	alone := start(t, Models{m}, Options{})
	tight := start(t, Models{m}, Options{Memory: 5 * 64 * (16 << 20) / int64(alone.s.engines()[0].size)})
	body := obj{
		"prompt": []string{"The king", "Once upon a time", "Anna"}, "max_tokens": 250, "ignore_eos": true,
		"temperature": 0.7, "seed": 5, "logprobs": 0,
	}
	want, _ := json.Marshal(alone.complete(body).Choices)
	got, _ := json.Marshal(tight.complete(body).Choices)
	if !bytes.Equal(got, want) {
		t.Errorf("%s\nwith all memory:\n%s", got, want)
	}
	if n := preemptions(t, tight); n == 0 {
		t.Error("nobody gave memory up")
	}

	// What would not fit alone is an error, and the server goes on.
	var raw json.RawMessage
	if code := tight.post("/v1/completions", obj{
		"prompt": "The king", "max_tokens": 250, "ignore_eos": true, "n": 3,
	}, &raw); code != http.StatusInsufficientStorage {
		t.Errorf("%d: %s", code, raw)
	}
	tight.complete(obj{"prompt": "a", "max_tokens": 1})
}

// preemptions reads the number from the metrics.
func preemptions(t *testing.T, c *client) int {
	t.Helper()
	r, err := http.Get(c.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	_, rest, _ := strings.Cut(string(text), "\ncompress_preemptions_total ")
	n := 0
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return n
}

// What was computed for one prompt is there for the next, and is counted.
func TestSharedPrompt(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{})
	long := strings.Repeat("The king had a daughter who was called Anna. ", 12)
	first := c.complete(obj{"prompt": long + "A", "max_tokens": 1})
	second := c.complete(obj{"prompt": long + "B", "max_tokens": 1})
	if a, b := first.Usage.Details.Cached, second.Usage.Details.Cached; a != 0 || b < 64 || b%64 != 0 {
		t.Errorf("%d and %d of %d tokens were there", a, b, second.Usage.Prompt)
	}
}

func TestChat(t *testing.T) {
	m := nano(t, "base")
	c := start(t, Models{m}, Options{})
	messages := []obj{
		{"role": "system", "content": "Be brief."},
		{"role": "user", "content": []obj{{"type": "text", "text": "14 "}, {"type": "text", "text": "+ 6?"}}},
	}
	rendered := "system: Be brief.\nuser: 14 + 6?\nassistant:"
	want := c.complete(obj{"prompt": rendered, "max_tokens": 8, "temperature": 0}).Choices[0].Text

	var a chatCompletion
	body := obj{
		"model": "base", "messages": messages, "max_tokens": 8, "temperature": 0, "logprobs": true, "top_logprobs": 3,
	}
	if code := c.post("/v1/chat/completions", body, &a); code != http.StatusOK {
		t.Fatal(code)
	}
	x := a.Choices[0]
	if x.Message.Content != want || x.Message.Role != "assistant" || a.Object != "chat.completion" ||
		len(x.Logprobs.Content) != a.Usage.Completion || len(x.Logprobs.Content[0].Tops) != 3 {
		t.Errorf("%+v %+v, want %q", a, x.Message, want)
	}

	list := c.streamed("/v1/chat/completions", body)
	text, roles := "", 0
	for _, line := range list[:len(list)-1] {
		var piece chatCompletion
		if err := json.Unmarshal([]byte(line), &piece); err != nil {
			t.Fatal(err)
		}
		d := piece.Choices[0].Delta
		if d.Role == "assistant" {
			roles++
		}
		if d.Content != nil {
			text += *d.Content
		}
	}
	if text != want || roles != 1 {
		t.Errorf("%q with %d roles, want %q", text, roles, want)
	}

	// Tools reach the template, unless they are not to be used; arguments of calls are values there.
	var tokens struct{ Tokens []int32 }
	tools := []obj{{"type": "function", "function": obj{"name": "f"}}}
	c.post("/tokenize", obj{"messages": messages, "tools": tools, "add_generation_prompt": false}, &tokens)
	var plain struct{ Prompt string }
	c.post("/detokenize", obj{"tokens": tokens.Tokens}, &plain)
	if !strings.Contains(plain.Prompt, `tools: [{"function": {"name": "f"}, "type": "function"}]`) {
		t.Errorf("%q", plain.Prompt)
	}
}

func TestMessageOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"role":"user","content":"a"}`:                                       "",
		`{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}`: "",
		`{"role":"user","content":[{"type":"image_url"}]}`:                    "a part of the content is no text",
		`{"role":"user","content":1}`:                                         "content is no text",
		`{"role":"user","content":[1]}`:                                       "a part of the content is no object",
		`{"content":"a"}`:                                                     "has no role",
		`{"role":5,"content":"a"}`:                                            "the role is no text",
		`[]`:                                                                  "is no object",
		`{"role":"a","tool_calls":[1]}`:                                       "a tool call is no object",
	} {
		if _, err := messageOf([]byte(text)); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A bias decides, penalties count, and a stop text is not part of the answer.
func TestShapes(t *testing.T) {
	m := nano(t, "base")
	c := start(t, Models{m}, Options{})
	body := func(more obj) obj {
		b := obj{"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
		for k, v := range more {
			b[k] = v
		}
		return b
	}

	id, ok := m.Tokenizer.TokenID("a")
	if !ok {
		t.Fatal("no token a")
	}
	got := c.complete(body(obj{"logit_bias": obj{fmt.Sprint(id): 100}})).Choices[0].Text
	if got != strings.Repeat("a", 12) {
		t.Errorf("%q", got)
	}
	got = c.complete(body(obj{"logit_bias": obj{fmt.Sprint(id): 100}, "frequency_penalty": 2.0, "max_tokens": 200})).
		Choices[0].Text
	if !strings.HasPrefix(got, strings.Repeat("a", 30)) || strings.Trim(got, "a") == "" {
		t.Errorf("%q", got)
	}

	whole := c.complete(body(nil)).Choices[0].Text
	stop := whole[len(whole)/2 : len(whole)/2+3]
	x := c.complete(body(obj{"stop": []string{"never", stop}})).Choices[0]
	if want, _, _ := strings.Cut(whole, stop); x.Text != want || *x.Finish != "stop" {
		t.Errorf("%q (%s), want %q", x.Text, *x.Finish, want)
	}

	a := c.complete(body(obj{"temperature": 1, "n": 4, "seed": 3}))
	b := c.complete(body(obj{"temperature": 1, "n": 4, "seed": 3}))
	others := map[string]bool{}
	for i := range a.Choices {
		others[a.Choices[i].Text] = true
		if a.Choices[i].Text != b.Choices[i].Text {
			t.Errorf("choice %d: %q and %q", i, a.Choices[i].Text, b.Choices[i].Text)
		}
	}
	if len(others) < 2 {
		t.Errorf("%d different choices", len(others))
	}
}

func TestStopAt(t *testing.T) {
	for _, c := range []struct {
		text  string
		stops []string
		at    int
		found bool
	}{
		{"abc", nil, 3, false},
		{"abc", []string{"c"}, 2, true},
		{"abc", []string{"bc", "abc"}, 0, true},
		{"abc", []string{"cd", "bcd"}, 1, false},
		{"aab", []string{"aba"}, 1, false},
		{"äö", []string{"ö!"}, 2, false},
		{"", []string{"x"}, 0, false},
	} {
		if at, found := stopAt(c.text, c.stops); at != c.at || found != c.found {
			t.Errorf("%q, %q: %d, %v", c.text, c.stops, at, found)
		}
	}
}

func TestHighest(t *testing.T) {
	for n, want := range [][]int32{nil, {1}, {1, 3}, {1, 3, 4}, {1, 3, 4, 0}} {
		if got := highest([]float32{2, 5, 1, 5, 3}, n); !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
	}
}

func TestModels(t *testing.T) {
	m := nano(t, "base")
	adapter := m
	adapter.Name = "org/adapter"
	adapter.Parent = "base"
	adapter.Root = "somewhere"
	c := start(t, Models{m, adapter}, Options{})
	r, err := http.Get(c.url + "/v1/models/org/adapter")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var card modelCard
	if err := json.NewDecoder(r.Body).Decode(&card); err != nil || *card.Parent != "base" || card.Root != "somewhere" ||
		card.Context != m.LM.Config().MaxPositions {
		t.Errorf("%+v, %v", card, err)
	}
	if code := c.get("/v1/models/none").StatusCode; code != 404 {
		t.Error(code)
	}

	for _, bad := range []Models{{}, {m, m}, {{Name: "a"}}, {{LM: m.LM, Tokenizer: m.Tokenizer}}} {
		if _, err := Handler(bad, Options{}); err == nil {
			t.Errorf("%+v", bad)
		}
	}
	if _, err := Handler(Models{m}, Options{Queue: -1}); err == nil {
		t.Error("a negative queue")
	}
}

// Requests of models that are one with another adapter are computed in turn, each with its own.
func TestTurns(t *testing.T) {
	m := nano(t, "base")
	now := ""
	entered := 0
	named := func(name string) Model {
		x := m
		x.Name = name
		x.Enter = func() (func(), error) {
			if now != "" {
				t.Errorf("%s entered while %s was", name, now)
			}
			if name == "broken" {
				return nil, io.ErrUnexpectedEOF
			}
			now = name
			entered++
			return func() { now = "" }, nil
		}
		return x
	}
	c := start(t, Models{named("a"), named("b"), named("broken")}, Options{})

	var all sync.WaitGroup
	for i := range 12 {
		name := []string{"a", "b", "broken"}[i%3]
		all.Go(func() {
			var raw json.RawMessage
			code := c.post("/v1/completions", obj{"model": name, "prompt": "The king", "max_tokens": 10}, &raw)
			if (code == 200) != (name != "broken") {
				t.Errorf("%s: %d, %s", name, code, raw)
			}
		})
	}
	all.Wait()
	c.s.stop()
	if now != "" || entered < 2 {
		t.Errorf("%q after %d", now, entered)
	}
}
