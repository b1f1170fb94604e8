package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// tape is what a program prints, for others to read meanwhile.
type tape struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *tape) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *tape) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// TestServe: a server with a model, an adapter and a key answers until it is interrupted, and reports what it did.
func TestServe(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())

	verb := func(ctx context.Context, out io.Writer, args ...string) int {
		a := cli.New(args, out, out)
		return a.Execute(ctx, root(a))
	}
	var said tape
	if code := verb(t.Context(), &said, "lora", "train", nano+"/base", "--data", nano+"/train/news.jsonl",
		"--steps", "3", "--batch", "2", "--seqlen", "32", "--kind", "lora", "--rank", "2", "--lr", "0.05",
		"--out", "news"); code != 0 {
		t.Fatal(said.String())
	}
	const key = "0123456789abcdef"
	if err := os.WriteFile("keys", []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	ctx, interrupt := context.WithCancel(t.Context())
	var out tape
	var code int
	var all sync.WaitGroup
	all.Go(func() {
		code = verb(ctx, &out, "serve", nano+"/base", nano+"/tales", "--adapter", "news=news",
			"--listen", "127.0.0.1:0", "--key-file", "keys", "--kv-memory", "32MiB", "--report", "r.json",
			"--device", "cpu")
	})
	defer all.Wait()
	defer interrupt()

	address := addressOf(t, &out, `serving base, tales, news at (\S+)`)

	ask := func(model string) string {
		body := `{"model":"` + model + `","prompt":"Once upon a time","max_tokens":24,"temperature":0.7,"seed":3,` +
			`"ignore_eos":true,"logprobs":2}`
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return ""
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+key)

		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer a.Body.Close()
		var got struct{ Choices json.RawMessage }
		if err = json.NewDecoder(a.Body).Decode(&got); err != nil || a.StatusCode != http.StatusOK {
			t.Errorf("%s: %d, %v", model, a.StatusCode, err)
		}
		return string(got.Choices)
	}

	texts := map[string]string{}
	names := []string{"base", "news", "tales"}
	for _, model := range names {
		texts[model] = ask(model)
	}

	// All at once they are the same, probabilities included.
	var together sync.WaitGroup
	for i := range 12 {
		together.Go(func() {
			model := names[i%len(names)]
			if got := ask(model); got != texts[model] {
				t.Errorf("%s: %s, alone %s", model, got, texts[model])
			}
		})
	}
	together.Wait()
	if texts["base"] == texts["news"] || texts["base"] == texts["tales"] {
		t.Errorf("%q", texts)
	}

	r, err := http.Get(address + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %d", r.StatusCode)
	}

	http.DefaultClient.CloseIdleConnections()
	interrupt()
	all.Wait()
	if code != 0 {
		t.Errorf("exit code %d: %s", code, out.String())
	}
	var report struct {
		Models    []string
		Requests  int `json:"requests"`
		Generated int `json:"generated_tokens"`
	}
	text, err := os.ReadFile("r.json")
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil || report.Requests != 16 || report.Generated != 15*24 || len(report.Models) != 3 {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestServeOnDemand: two models in memory for one; a model whose files are
// replaced meanwhile is refused by name, and the other answers.
func TestServeOnDemand(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.CopyFS("copy", os.DirFS(nano+"/tales")); err != nil {
		t.Fatal(err)
	}

	ctx, interrupt := context.WithCancel(t.Context())
	var out tape
	var code int
	var all sync.WaitGroup
	all.Go(func() {
		a := cli.New([]string{
			"serve", nano + "/base", "copy", "--listen", "127.0.0.1:0", "--kv-memory", "2MiB", "--memory", "4MiB",
			"--device", "cpu",
		}, &out, &out)
		code = a.Execute(ctx, root(a))
	})
	defer all.Wait()
	defer interrupt()
	address := addressOf(t, &out, `serving base, copy at (\S+)\n`)
	addressOf(t, &out, `(memory: .* of 4.19 MB: base .* MB, copy .* MB \(when it is asked for\))`)

	ask := func(model string) (int, string) {
		r, err := http.Post(address+"/v1/completions", "application/json", strings.NewReader(`{"model":"`+model+
			`","prompt":"Once upon a time","max_tokens":8,"temperature":0}`))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		return r.StatusCode, string(text)
	}

	for _, model := range []string{"base", "copy", "base", "copy", "base"} {
		if status, text := ask(model); status != http.StatusOK {
			t.Errorf("%s: %d %s", model, status, text)
		}
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes("copy/model.safetensors", later, later); err != nil {
		t.Fatal(err)
	}
	if status, text := ask("copy"); status != http.StatusInternalServerError ||
		!strings.Contains(text, "model_changed") || !strings.Contains(text, "model.safetensors") {
		t.Errorf("a replaced model: %d %s", status, text)
	}
	if status, text := ask("base"); status != http.StatusOK {
		t.Errorf("base afterwards: %d %s", status, text)
	}

	http.DefaultClient.CloseIdleConnections()
	interrupt()
	all.Wait()
	if code != 0 {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}

// addressOf waits until a program says at which address it is.
func addressOf(t *testing.T, out *tape, pattern string) string {
	t.Helper()
	for range 2000 {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(out.String()); m != nil {
			return m[1]
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("no address in %q", out.String())
	return ""
}

// TestServeExperts: a mediated folder is one model. Its name alone routes every prompt, a choice behind a colon
// decides, and requests that go different ways at the same time have the answers that each has alone.
func TestServeExperts(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("m.yaml", []byte(strings.ReplaceAll(mediated, "$NANO", nano)), 0o666); err != nil {
		t.Fatal(err)
	}
	var said tape
	a := cli.New([]string{"merge", "m.yaml", "--out", "m"}, &said, &said)
	if code := a.Execute(t.Context(), root(a)); code != 0 {
		t.Fatal(said.String())
	}

	ctx, interrupt := context.WithCancel(t.Context())
	var out tape
	var code int
	var all sync.WaitGroup
	all.Go(func() {
		a := cli.New([]string{
			"serve", "m", "--listen", "127.0.0.1:0", "--kv-memory", "8MiB", "--device", "cpu",
		}, &out, &out)
		code = a.Execute(ctx, root(a))
	})
	defer all.Wait()
	defer interrupt()
	address := addressOf(t, &out, `serving m at (\S+)`)

	type answer struct {
		status         int
		experts, model string
		text           string
	}
	ask := func(model, prompt string) answer {
		r, err := http.Post(address+"/v1/completions", "application/json", strings.NewReader(`{"model":"`+model+
			`","prompt":"`+prompt+`","max_tokens":12,"temperature":0,"ignore_eos":true,"logprobs":1}`))
		if err != nil {
			t.Error(err)
			return answer{}
		}
		defer r.Body.Close()
		var got struct {
			Model   string
			Choices json.RawMessage
			Error   struct{ Message string }
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		text := string(got.Choices) + got.Error.Message
		return answer{r.StatusCode, r.Header.Get("Compress-Experts"), got.Model, text}
	}

	const question, story = `Question: 14 - 6 =\nAnswer:`, "Once upon a time" // as the prompts of the router ask
	alone := map[[2]string]answer{}
	for _, model := range []string{"m", "m:auto", "m:top1", "m:dense", "m:sums", "m:news", "m:sums=0.6,news=0.4"} {
		for _, prompt := range []string{question, story} {
			got := ask(model, prompt)
			if got.status != http.StatusOK || got.model != model {
				t.Errorf("%s: %+v", model, got)
			}
			alone[[2]string{model, prompt}] = got
		}
	}
	of := func(model, prompt string) answer { return alone[[2]string{model, prompt}] }
	if got := of("m", question); got.experts != "sums" || got.text != of("m:sums", question).text {
		t.Errorf("a sum is answered by %q", got.experts)
	}
	if of("m:sums", question).text == of("m:dense", question).text || of("m:dense", question).experts != "dense" ||
		of("m:sums=0.6,news=0.4", story).experts != "news=0.4,sums=0.6" {
		t.Errorf("%+v", alone)
	}

	var together sync.WaitGroup
	for range 2 {
		for key, want := range alone {
			together.Go(func() {
				if got := ask(key[0], key[1]); got != want {
					t.Errorf("%s: %+v, alone %+v", key, got, want)
				}
			})
		}
	}
	together.Wait()

	if got := ask("m:nobody", story); got.status != http.StatusBadRequest || !strings.Contains(got.text, "sums") {
		t.Errorf("an expert that is not there: %+v", got)
	}

	http.DefaultClient.CloseIdleConnections()
	interrupt()
	all.Wait()
	if code != 0 {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}

// mediated is the recipe of a folder with two experts and a router.
const mediated = `merge_method: mediate
base_model: $NANO/base
models:
- {model: $NANO/news, name: news}
- {model: $NANO/sums, name: sums}
parameters:
  select: {top_k: 1}
  router: {prompts: {news: $NANO/tasks/prompts/news.jsonl, sums: $NANO/tasks/prompts/sums.jsonl}}
`
