package serve

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// shots is a folder for pictures of the page, to be looked at: go test ./serve -run Page -args -shots DIR.
var shots = flag.String("shots", "", "folder for pictures of the page")

// browser is a page in a headless Chromium, which is told what to do by the DevTools protocol over a pair of pipes.
type browser struct {
	t       *testing.T
	to      *os.File
	session string

	mu      sync.Mutex
	next    int
	answers map[int]chan message
	faults  []string // what the page has thrown or been refused
	asked   []string // addresses
}

type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// surf starts Chromium; the test is skipped where there is none.
func surf(t *testing.T) *browser {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium here: the page is not tried")
	}

	hear, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}

	home := t.TempDir()
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+filepath.Join(home, "profile"), "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home)
	cmd.ExtraFiles = []*os.File{hear, say} // descriptors 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hear.Close()
	say.Close()

	b := &browser{t: t, to: to, answers: map[int]chan message{}}
	ended := make(chan struct{})
	go func() { b.read(from); close(ended) }()
	t.Cleanup(func() {
		to.Close() // Chromium ends
		<-ended
		from.Close()
		_ = cmd.Wait()
	})

	var target struct {
		ID string `json:"targetId"`
	}
	b.do("Target.createTarget", obj{"url": "about:blank"}, &target)
	var session struct {
		ID string `json:"sessionId"`
	}
	b.do("Target.attachToTarget", obj{"targetId": target.ID, "flatten": true}, &session)
	b.session = session.ID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.do(domain+".enable", nil, nil)
	}
	return b
}

// read takes what Chromium says until it ends.
func (b *browser) read(from *os.File) {
	r := bufio.NewReader(from)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			for _, c := range b.answers {
				close(c)
			}
			b.answers = nil
			b.mu.Unlock()
			return
		}

		var m message
		_ = json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m)
		b.mu.Lock()
		if c := b.answers[m.ID]; c != nil {
			delete(b.answers, m.ID)
			c <- m
		}
		b.note(m)
		b.mu.Unlock()
	}
}

// note keeps what a page must not do.
func (b *browser) note(m message) {
	var p struct {
		Entry struct {
			Source string `json:"source"`
			Text   string `json:"text"`
		} `json:"entry"`
		Details struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
	}
	_ = json.Unmarshal(m.Params, &p)
	switch {
	case m.Method == "Log.entryAdded" && p.Entry.Source != "network": // a request that fails is shown by the page
		b.faults = append(b.faults, p.Entry.Text)
	case m.Method == "Runtime.exceptionThrown":
		b.faults = append(b.faults, p.Details.Text+" "+p.Details.Exception.Description)
	case m.Method == "Network.requestWillBeSent":
		b.asked = append(b.asked, p.Request.URL)
	}
}

// do gives a command, and reads its result.
func (b *browser) do(method string, params, into any) {
	b.t.Helper()
	raw, err := json.Marshal(params)
	if params == nil {
		raw = []byte("{}")
	}
	c := make(chan message, 1)
	b.mu.Lock()
	b.next++
	m := message{ID: b.next, Session: b.session, Method: method, Params: raw}
	if b.answers == nil {
		b.mu.Unlock()
		b.t.Fatalf("%s: Chromium has ended", method)
	}
	b.answers[m.ID] = c
	b.mu.Unlock()

	text, _ := json.Marshal(m)
	if _, failed := b.to.Write(append(text, 0)); failed != nil || err != nil {
		b.t.Fatal(method, err, failed)
	}
	select {
	case answer, there := <-c:
		switch {
		case !there:
			b.t.Fatalf("%s: Chromium has ended", method)
		case answer.Error != nil:
			b.t.Fatalf("%s: %s", method, answer.Error.Message)
		case into != nil:
			if err := json.Unmarshal(answer.Result, into); err != nil {
				b.t.Fatal(err)
			}
		}
	case <-time.After(2 * time.Minute):
		b.t.Fatalf("%s: no answer", method)
	}
}

// eval gives the value of an expression in the page; that of a promise when it is there.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	b.do("Runtime.evaluate", obj{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if r.Exception != nil {
		b.t.Fatalf("%s: %s", expression, r.Exception.Exception.Description)
	}
	return r.Result.Value
}

// until waits for a condition.
func (b *browser) until(condition string) {
	b.t.Helper()
	b.eval(`new Promise((done, fail) => {
		const end = setTimeout(() => fail(new Error("it does not happen: " + document.body.innerText)), 90000);
		const look = () => { if (` + condition + `) { clearTimeout(end); done(true); } else setTimeout(look, 20); };
		look();
	})`)
}

// is fails the test where a condition does not hold.
func (b *browser) is(condition string) {
	b.t.Helper()
	if v := b.eval(condition); v != true {
		b.t.Errorf("%s: %v", condition, v)
	}
}

// open goes to an address.
func (b *browser) open(url string) {
	b.t.Helper()
	b.do("Page.navigate", obj{"url": url}, nil)
	b.until(`location.href.startsWith("` + url + `") && document.readyState === "complete"`)
}

// window has a size, by day or by night.
func (b *browser) window(width, height int, scheme string) {
	b.do("Emulation.setDeviceMetricsOverride", obj{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
	}, nil)
	b.do("Emulation.setEmulatedMedia", obj{
		"features": []obj{{"name": "prefers-color-scheme", "value": scheme}},
	}, nil)
}

// keys presses keys as a keyboard does: text, or the name of a key.
func (b *browser) key(name string, shift bool) {
	code := map[string]int{"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "Tab": 9}[name]
	p := obj{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": code}
	if name == "Enter" {
		p["text"] = "\r"
	}
	if shift {
		p["modifiers"] = 8
	}
	b.do("Input.dispatchKeyEvent", p, nil)
	b.do("Input.dispatchKeyEvent", obj{"type": "keyUp", "key": name, "code": name, "windowsVirtualKeyCode": code}, nil)
}

// write types text where the focus is.
func (b *browser) write(text string) { b.do("Input.insertText", obj{"text": text}, nil) }

// shot takes a picture, where one is wanted.
func (b *browser) shot(name string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	var picture struct {
		Data string `json:"data"`
	}
	b.do("Page.captureScreenshot", obj{"format": "png"}, &picture)
	data, err := base64.StdEncoding.DecodeString(picture.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(*shots, name+".png"), data, 0o666)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// fine fails the test where the page has thrown, was refused something, or has asked elsewhere.
func (b *browser) fine(url string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		b.t.Errorf("the page: %s", f)
	}
	for _, a := range b.asked {
		if !strings.HasPrefix(a, url) && !strings.HasPrefix(a, "data:") {
			b.t.Errorf("the page asks for %s", a)
		}
	}
	if len(b.asked) == 0 {
		b.t.Error("nothing was asked: ", fmt.Sprint(b.asked))
	}
}
