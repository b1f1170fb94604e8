package serve

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestPageHeaders: the page is there without a key, and its policy names what it holds.
func TestPageHeaders(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{Keys: []string{"0123456789abcdef"}})
	r, err := http.Get(c.url + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}

	policy := r.Header.Get("Content-Security-Policy")
	if r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") ||
		!strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") ||
		strings.Count(policy, "sha256-") != 2 {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	for _, outside := range []string{"http://", "https://", "innerHTML", "<style></style>", "eval("} {
		if strings.Contains(string(text), outside) {
			t.Errorf("the page has %q", outside)
		}
	}
	if r, err := http.Get(c.url + "/v1/models"); err != nil || r.StatusCode != http.StatusUnauthorized {
		t.Errorf("the models without a key: %v %v", r, err)
	} else {
		r.Body.Close()
	}
}

// stuck is a writer of a stream that gets stuck after some pieces, until the client goes.
type stuck struct {
	http.ResponseWriter
	r    *http.Request
	left int
}

func (s *stuck) Write(p []byte) (int, error) {
	if s.left--; s.left < 0 {
		<-s.r.Context().Done()
	}
	return s.ResponseWriter.Write(p)
}

// Unwrap lets [http.ResponseController] find what it controls.
func (s *stuck) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// TestPage tries the page as a person would: models side by side, streams, stopping, scores, keyboard, phone, night.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser takes its time")
	}
	b := surf(t)
	models := Models{nano(t, "base"), nano(t, "sums"), nano(t, "tales")}
	text := models[0]
	text.Name = "<b>text</b>" // a name is no HTML
	s, err := Handler(append(models, text), Options{Memory: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.models {
		if m.Name == text.Name {
			m.template, m.card.Chat = nil, false // it continues texts
		}
	}

	var hold atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hold.Load() && strings.HasSuffix(r.URL.Path, "/completions") {
			w = &stuck{w, r, 4}
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.stop(); front.Close() })

	b.window(1200, 800, "light")
	b.open(front.URL + "/")
	b.until(`document.querySelectorAll("#models select").length === 2`)
	b.is(`[...document.querySelectorAll("#models select")].map((s) => s.value).join() === "base,sums"`)
	b.is(`document.activeElement.id === "prompt"`)
	b.is(`document.querySelector("#models .facts").textContent.includes("of weights")`)

	// Two answers to one message: Shift+Enter is a new line, Enter sends.
	b.eval(`tokens.value = 24; temperature.value = 0`)
	b.write("Where is the fair?")
	b.key("Enter", true)
	b.write("Tell me.")
	b.is(`$("prompt").value.includes("\n")`)
	b.key("Enter", false)
	b.until(`document.querySelectorAll(".answer:not(.writing) .score").length === 2`)
	b.is(`document.querySelector(".said").textContent === "Where is the fair?\nTell me."`)
	b.is(`[...document.querySelectorAll(".answer .facts")].every(
		(f) => /first token after .* s · .* tokens · perplexity/.test(f.textContent))`)
	b.is(`state.turns[0].answers.every((a) => a.text === [...a.body.children].map((s) => s.textContent).join(""))`)
	b.is(`$("status").textContent === "All 2 answers are there."`)
	b.is(`$("stop").hidden && !$("send").hidden`)

	// The same answer under each model: the own one is the perplexity of what was generated.
	b.eval(`document.querySelectorAll(".score").forEach((button) => button.click())`)
	b.until(`document.querySelectorAll(".scores").length === 2`)
	b.is(`document.querySelectorAll(".scores")[0].querySelectorAll("tbody tr").length === 2`)
	b.is(`[...document.querySelectorAll(".scores")].every((s) => /%|×/.test(s.textContent))`)
	b.is(`[...document.querySelectorAll(".answer")].every((a) =>
		a.querySelector(".facts").textContent.endsWith("perplexity " + a.querySelector("td").textContent))`)

	// What stands behind a token: by the keyboard, coloured.
	b.eval(`$("surprise").click(); document.querySelector(".text").focus()`)
	b.key("ArrowRight", false)
	b.key("ArrowRight", false)
	b.is(`!$("token").hidden && $("token").querySelectorAll("tr").length >= 5 && /bits of surprise/.test($("token").textContent)`)
	b.is(`document.querySelectorAll(".t.on").length === 1 && document.querySelectorAll(".t.on")[0].previousSibling !== null`)
	b.shot("two")
	b.key("Escape", false)
	b.is(`$("token").hidden`)

	// Stopped by the key: what is there stays.
	hold.Store(true)
	b.eval(`$("prompt").focus()`)
	b.write("Again")
	b.key("Enter", false)
	b.until(`state.turns[1] && state.turns[1].answers.length === 2 && state.turns[1].answers.every((a) => a.text !== "")`)
	b.is(`$("send").hidden && !$("stop").hidden && $("add").disabled`)
	b.key("Escape", false)
	b.until(`state.writing.size === 0`)
	b.is(`state.turns[1].answers.every((a) => /stopped/.test(a.facts.textContent) && !a.element.querySelector(".fault"))`)
	hold.Store(false)

	// Four, one of which continues the text, and has a name that looks like HTML.
	b.eval(`$("add").click(); $("add").click()`)
	b.until(`state.columns.length === 4`)
	b.is(`$("add").disabled && state.columns.join() === "base,sums,tales,<b>text</b>" && !document.querySelector("b")`)
	b.eval(`$("prompt").focus()`)
	b.write("And then?")
	b.key("Enter", false)
	b.until(`state.turns[2] && document.querySelectorAll(".turn:last-child .answer:not(.writing)").length === 4`)
	b.is(`state.turns[2].answers.every((a) => a.text !== "" && a.tokens.length > 0 && a.finish !== "")`)
	b.is(`state.turns[2].answers[3].messages.length === 5`) // the first column's, of both turns before
	b.is(`!document.querySelector(".fault")`)
	b.eval(`window.scrollTo(0, 0)`)
	b.shot("four")

	phone(b)

	// Another model in a column, and a column less.
	b.window(1200, 800, "light")
	b.eval(`const pick = document.querySelector("#models select"); pick.value = "tales"; pick.onchange()`)
	b.is(`state.columns[0] === "tales" && document.activeElement.value === "tales"`)
	b.eval(`document.querySelector(".drop").click()`)
	b.is(`state.columns.length === 3 && document.querySelectorAll(".turn:last-child .answer").length === 3`)
	b.eval(`$("fresh").click()`)
	b.is(`document.querySelectorAll(".turn").length === 0 && !$("hint").hidden`)

	// What the server refuses is said.
	b.eval(`tokens.value = 5000`)
	b.write("x")
	b.key("Enter", false)
	b.until(`document.querySelectorAll(".fault").length === 3`)
	b.is(`/max_tokens/.test(document.querySelector(".fault").textContent)`)

	// And that it has gone.
	front.Close()
	b.write("y")
	b.key("Enter", false)
	b.until(`document.querySelectorAll(".turn:last-child .fault").length === 3 && state.turns.length === 2`)
	b.is(`document.querySelector(".turn:last-child .fault").textContent === "the server cannot be reached"`)
	b.fine(front.URL)
}

// phone looks at the page on a narrow screen, by night.
func phone(b *browser) {
	b.window(390, 844, "dark")
	b.is(`document.documentElement.scrollWidth <= 390`)
	b.is(`getComputedStyle(document.body).backgroundColor === "rgb(21, 23, 27)"`)
	b.is(`new Set([...document.querySelectorAll(".turn:last-child .answer")].map((a) => a.getBoundingClientRect().left)).size === 1`)
	b.is(`[...document.querySelectorAll("button, select")].every((e) => e.hidden || e.getBoundingClientRect().height === 0 ||
		e.getBoundingClientRect().height >= 24)`)
	b.eval(`window.scrollTo(0, 0)`)
	b.eval(`$("settings").open = true`)
	b.is(`document.documentElement.scrollWidth <= 390`)
	b.shot("phone-top")
	b.eval(`window.scrollTo(0, document.documentElement.scrollHeight)`)
	b.shot("phone")

	// A finger on a token.
	b.eval(`document.querySelector(".turn:last-child .t").click()`)
	b.is(`!$("token").hidden && $("token").getBoundingClientRect().right <= 390 && $("token").getBoundingClientRect().left >= 0`)
	b.shot("phone-token")
	b.key("Escape", false)
}

// TestPageKey: the page asks for a key where the server wants one, again after a wrong one, and forgets it.
func TestPageKey(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser takes its time")
	}
	b := surf(t)
	c := start(t, Models{nano(t, "base")}, Options{Keys: []string{"0123456789abcdef"}})
	b.window(390, 844, "light")
	b.open(c.url + "/")
	b.until(`$("gate").open`)
	b.shot("key")
	b.write("wrong")
	b.key("Enter", false)
	b.until(`$("gate").open && $("gate-fault").textContent !== ""`)
	b.write("0123456789abcdef")
	b.key("Enter", false)
	b.until(`!$("gate").open && state.models.length === 1`)

	b.eval(`tokens.value = 4; $("prompt").focus()`)
	b.write("Hello")
	b.key("Enter", false)
	b.until(`state.turns[0] && state.turns[0].answers[0].finish !== "" && state.writing.size === 0`)
	b.is(`JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie === "{}{}"`)

	b.do("Page.reload", nil, nil)
	b.until(`typeof state !== "undefined" && state.key === "" && $("gate").open`)
	b.key("Escape", false)
	b.until(`/cannot be listed/.test($("status").textContent)`)
	b.fine(c.url)
}

// TestModelCards: what the page shows of a model.
func TestModelCards(t *testing.T) {
	m := nano(t, "base")
	c := start(t, Models{m}, Options{})
	card := c.s.cardOf(c.s.models[0])
	if !card.Chat || card.Parameters != m.LM.NumParameters() || card.Bytes != m.LM.DataSize() {
		t.Errorf("%+v", card)
	}
}

// TestTokenizerInfo: the texts of the special tokens, of the first model or a named one.
func TestTokenizerInfo(t *testing.T) {
	c := start(t, Models{nano(t, "base")}, Options{})
	for query, code := range map[string]int{"": 200, "?model=base": 200, "?model=none": 404} {
		r, err := http.Get(c.url + "/tokenizer_info" + query)
		if err != nil {
			t.Fatal(err)
		}
		var a map[string]any
		err = json.NewDecoder(r.Body).Decode(&a)
		r.Body.Close()
		told := a["bos_token"] == "<|endoftext|>" && a["model_max_length"] != nil
		if err != nil || r.StatusCode != code || told != (code == http.StatusOK) {
			t.Errorf("%s: %d %v %v", query, r.StatusCode, a, err)
		}
	}
}
