package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/hub/hubtest"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/system/systemtest"
)

var ab = Name{Owner: "a", Repo: "b"}

// client makes a client of a hub that does not wait.
func client(t *testing.T, h *hubtest.Hub, token string) *Client {
	t.Helper()
	c, err := NewClient(h.URL, token)
	if err != nil {
		t.Fatal(err)
	}
	c.wait = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return c
}

// pull downloads what is needed of a/b.
func pull(t *testing.T, c *Client, n Name, at func(m *Model) Place) (*Pulled, error) {
	t.Helper()
	m, err := c.Model(t.Context(), n)
	if err != nil {
		return nil, err
	}
	files, _ := m.Needed()
	return c.Pull(t.Context(), m, files, at(m), PullOptions{})
}

func intoCache(cache string) func(m *Model) Place {
	return func(m *Model) Place { return CachePlace(cache, m) }
}

func intoFolder(dir string) func(m *Model) Place {
	return func(*Model) Place { return FolderPlace(dir) }
}

// left lists the files below a folder that are not complete.
func left(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, partEnding) {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestPullSameBytes: files that have the same bytes are one blob of the cache, which is loaded once, and files of their
// own in a folder.
func TestPullSameBytes(t *testing.T) {
	h := hubtest.New(t)
	c := client(t, h, "")
	text := strings.Repeat("the same bytes\n", 1<<14)
	names := []string{"a.txt", "b.txt", "c.txt", "model.safetensors", "sub/model.safetensors"}
	for _, name := range names {
		h.Files[name] = text
	}
	small := h.Files["config.json"]

	m, err := c.Model(t.Context(), ab)
	if err != nil {
		t.Fatal(err)
	}
	var files []File
	for _, f := range m.Files {
		if slices.Contains(names, f.Path) || f.Path == "config.json" {
			files = append(files, f)
		}
	}

	// Small files and large ones have different checksums, so that there are two blobs of these bytes.
	sums := map[string]bool{}
	for _, f := range files {
		sums[f.Sum] = true
	}
	once := int64((len(sums)-1)*len(text) + len(small))
	each := int64(len(names)*len(text) + len(small))

	for _, v := range []struct {
		place Place
		bytes int64
	}{{CachePlace(t.TempDir(), m), once}, {FolderPlace(t.TempDir()), each}} {
		if e, err := v.place.Estimate(files); err != nil || e.Bytes != v.bytes || e.Files != len(files) {
			t.Errorf("%+v, %v; want %d bytes", e, err, v.bytes)
		}

		for kept := range 2 {
			done, total := int64(0), int64(0)
			r, err := c.Pull(t.Context(), m, files, v.place, PullOptions{
				AtOnce: 8, Progress: func(d, t int64) { done, total = d, t },
			})
			if err != nil || r.Kept != kept*len(files) || r.Loaded != int64(1-kept)*v.bytes {
				t.Fatalf("%+v, %v; want %d bytes", r, err, v.bytes)
			}
			if done != v.bytes || total != v.bytes {
				t.Errorf("progress %d of %d, want %d", done, total, v.bytes)
			}
		}

		for _, name := range names {
			if got, err := os.ReadFile(filepath.Join(v.place.Dir(), name)); err != nil || string(got) != text {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	}
}

// A download fills the cache as huggingface_hub does, so that the name is found; a second one loads nothing.
func TestPullIntoCache(t *testing.T) {
	h := hubtest.New(t)
	h.Gated = true
	c := client(t, h, hubtest.Token)
	cache := t.TempDir()
	r, err := pull(t, c, ab, intoCache(cache))
	if err != nil || r.Kept != 0 || r.Loaded != int64(len(h.Files["model.safetensors"])+len(h.Files["config.json"])+2) {
		t.Fatalf("%+v, %v", r, err)
	}

	dir, ok := ab.Find(cache)
	if want := filepath.Join(cache, "models--a--b", "snapshots", hubtest.Commit); !ok || dir != want {
		t.Fatalf("%s, want %s", dir, want)
	}

	for name, text := range h.Files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if name == "pytorch_model.bin" { // which the safetensors file makes needless
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || string(got) != text {
			t.Errorf("%s: %.20q, %v", name, got, err)
		}

		up := strings.Repeat("../", 2+strings.Count(name, "/"))
		if to, _ := os.Readlink(filepath.Join(dir, name)); to != up+"blobs/"+h.Sum(name) {
			t.Errorf("%s leads to %s", name, to)
		}
	}

	ref, err := os.ReadFile(filepath.Join(cache, "models--a--b/refs/main"))
	if err != nil || string(ref) != hubtest.Commit {
		t.Errorf("ref %q, %v", ref, err)
	}
	if len(h.Leaked) > 0 {
		t.Errorf("the other host has seen %q", h.Leaked)
	}

	before := h.Count("resolve")
	r, err = pull(t, c, Name{"a", "b", "refs/pr/1"}, intoCache(cache))
	if err != nil || r.Loaded != 0 || r.Kept != 4 || h.Count("resolve") != before {
		t.Errorf("again: %+v, %v", r, err)
	}
	if _, ok := (Name{"a", "b", "refs/pr/1"}).Find(cache); !ok {
		t.Error("the pull request has no name")
	}
}

// Half a file is gone on with from where it ends, in the same call and in the next one; a file that is in the folder
// already is compared, and never replaced.
func TestPullGoesOn(t *testing.T) {
	h := hubtest.New(t)
	c := client(t, h, "")
	text := h.Files["model.safetensors"]

	h.Once(h.Sum("model.safetensors"), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = w.Write([]byte(text[:1000])) // and the connection is closed
	})
	dir := t.TempDir()
	if _, err := pull(t, c, ab, intoFolder(dir)); err != nil {
		t.Fatal(err)
	}
	if h.Count("CDN bytes=1000-") != 1 {
		t.Errorf("%q", h.Requests)
	}

	// A process that was killed has left a part.
	m, err := c.Model(t.Context(), ab)
	if err != nil {
		t.Fatal(err)
	}
	next := FolderPlace(t.TempDir())
	files := m.Choose([]string{"*.safetensors"}, nil)
	if err := os.WriteFile(next.part(files[0]), []byte(text[:500]), 0o666); err != nil {
		t.Fatal(err)
	}
	e, err := next.Estimate(files)
	if err != nil || e.Files != 1 || e.Bytes != int64(len(text)) || e.Present != 500 || e.Free < 0 {
		t.Errorf("%+v, %v", e, err)
	}

	var at []int64
	r, err := c.Pull(t.Context(), m, files, next, PullOptions{Progress: func(done, _ int64) { at = append(at, done) }})
	if err != nil || r.Loaded != int64(len(text)-500) || h.Count("CDN bytes=500-") != 1 {
		t.Errorf("%+v, %v: %q", r, err, h.Requests)
	}
	if !slices.IsSorted(at) || at[0] != 500 || at[len(at)-1] != int64(len(text)) {
		t.Errorf("progress %v", at)
	}
	got, err := os.ReadFile(next.content(files[0]))
	if err != nil || string(got) != text || len(left(t, next.Dir())) > 0 {
		t.Errorf("%d bytes, %v, %v", len(got), err, left(t, next.Dir()))
	}

	// Whole files are kept, others are not replaced.
	if r, err := pull(t, c, ab, intoFolder(dir)); err != nil || r.Loaded != 0 || r.Kept != 4 {
		t.Errorf("again: %+v, %v", r, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t, c, ab, intoFolder(dir)); err == nil || !strings.Contains(err.Error(), "not replaced") {
		t.Errorf("a file of somebody else: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "config.json")); err != nil || string(got) != "mine" {
		t.Errorf("%q, %v", got, err)
	}
}

// A server without ranges begins again, and one that gives nothing more is left.
func TestPullFromPoorServers(t *testing.T) {
	h := hubtest.New(t)
	c := client(t, h, "")
	m, err := c.Model(t.Context(), ab)
	if err != nil {
		t.Fatal(err)
	}

	files := m.Choose([]string{"config.json"}, nil)
	text := h.Files["config.json"]
	p := FolderPlace(t.TempDir())
	if err := os.WriteFile(p.part(files[0]), []byte(text[:7]), 0o666); err != nil {
		t.Fatal(err)
	}
	h.Once("resolve", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
	if r, err := c.Pull(t.Context(), m, files, p, PullOptions{}); err != nil || r.Loaded != int64(len(text)-7) {
		t.Errorf("no ranges: %+v, %v", r, err)
	}

	c.stall = time.Millisecond
	release := make(chan bool)
	h.Once("resolve", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = w.Write([]byte(text[:3]))
		w.(http.Flusher).Flush()
		<-release
	})
	defer close(release)
	if _, err := c.Pull(t.Context(), m, files, FolderPlace(t.TempDir()), PullOptions{}); err != nil {
		t.Errorf("a stalled connection: %v", err)
	}
}

// Each bad answer is one line that names the file, and leaves nothing under a final name and no revision.
func TestPullRefuses(t *testing.T) {
	status := func(code int, head ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(head); i += 2 {
				w.Header().Set(head[i], head[i+1])
			}
			http.Error(w, "<html>", code)
		}
	}
	write := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}

	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		want   error
		says   string
	}{
		"no access": {"/revision/", status(401), ErrNoAccess, "401 Unauthorized"},
		"no permission": {
			"/resolve/", status(403, "X-Error-Message", "ask the authors"), ErrNoAccess, "ask the authors",
		},
		"no model":       {"/revision/", status(404), ErrUnknown, "404 Not Found"},
		"no file":        {"/resolve/", status(404), ErrUnknown, "config.json"},
		"busy too long":  {"/revision/", status(429, "Retry-After", "9999"), ErrBusy, "asks to wait 2h46m39s"},
		"broken":         {"/tree/", status(500), ErrBusy, "500"},
		"teapot":         {"/tree/", status(418), ErrAnswer, "418"},
		"HTML":           {"/revision/", write("\n<!DOCTYPE html><p>log in</p>"), ErrAnswer, "a page of HTML"},
		"no JSON":        {"/tree/", write("[{"), ErrAnswer, "no JSON"},
		"no commit":      {"/revision/", write(`{"sha": "../../x"}`), ErrAnswer, "no commit"},
		"HTML as a file": {"/resolve/", write("<html>a login</html>"), ErrAnswer, "bytes"},
		"wrong bytes": {
			"/resolve/", write(`{"model_type": "lla\u0000"`[:23]), ErrChecksum, "config.json",
		},
		"loop": {"/resolve/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		}, ErrAnswer, "redirects"},
		"other range": {"/resolve/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-1/23")
			w.WriteHeader(http.StatusPartialContent)
		}, ErrAnswer, ""},
		"always half": {"/resolve/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "23")
		}, ErrShort, "config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hubtest.New(t)
			h.Answer = func(w http.ResponseWriter, r *http.Request) bool {
				mine := strings.Contains(r.URL.Path, c.path) && (c.path != "/resolve/" ||
					strings.HasSuffix(r.URL.Path, "config.json"))
				if mine {
					c.answer(w, r)
				}
				return mine
			}

			cache := t.TempDir()
			caller := client(t, h, hubtest.Token)
			caller.stall = time.Minute
			_, err := pull(t, caller, ab, intoCache(cache))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), "a/b") || strings.ContainsAny(err.Error(), "\n<") ||
				strings.Contains(err.Error(), hubtest.Token) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%v", err)
			}
			if _, ok := ab.Find(cache); ok {
				t.Error("the revision has a name")
			}
			if _, err := os.Stat(filepath.Join(cache, "models--a--b/blobs", h.Sum("config.json"))); err == nil {
				t.Error("the file has its name")
			}

			// Nothing of it is in the way of the next call.
			h.Answer = nil
			if _, err := pull(t, caller, ab, intoCache(cache)); err != nil || len(left(t, cache)) > 0 {
				t.Errorf("then: %v, left %v", err, left(t, cache))
			}
		})
	}
}

// What a busy hub asks for is waited for, and then it goes on.
func TestRetryAfter(t *testing.T) {
	h := hubtest.New(t)
	c := client(t, h, "")
	var waits []time.Duration
	c.wait = func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil }
	h.Once("/tree/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		http.Error(w, "", http.StatusTooManyRequests)
	})

	if _, err := c.Model(t.Context(), ab); err != nil || !slices.Equal(waits, []time.Duration{7 * time.Second}) {
		t.Errorf("%v, %v", waits, err)
	}
}

// Names of a server lead nowhere outside, and are none of those of unfinished files.
func TestNamesOfFiles(t *testing.T) {
	for _, name := range []string{
		"../x", "/etc/passwd", "a/../../x", "a//b", "./a", "", "..", "a\\..\\x", "a\x00b", "a/b.incomplete", "a\nb",
		"a.incomplete/b", "\xff", strings.Repeat("x", 300),
	} {
		m := &Model{Name: ab}
		err := m.add([]entry{{Type: "file", Path: name, OID: strings.Repeat("0", 40)}})
		if !errors.Is(err, ErrAnswer) {
			t.Errorf("%q: %v", name, err)
		}
	}

	for _, list := range [][]string{{"a", "a"}, {"a", "a/b"}, {"a-b", "a/b", "a"}} {
		m := &Model{Name: ab}
		for _, name := range list {
			if err := m.add([]entry{{Type: "file", Path: name, OID: strings.Repeat("0", 40)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.apart(); !errors.Is(err, ErrAnswer) {
			t.Errorf("%q: %v", list, err)
		}
	}

	for _, e := range []entry{
		{Type: "file", Path: "a", OID: "xyz"},
		{Type: "file", Path: "a", Size: -1, OID: strings.Repeat("0", 40)},
		{Type: "file", Path: "a", OID: strings.Repeat("A", 40)},
	} {
		if err := (&Model{}).add([]entry{e}); !errors.Is(err, ErrAnswer) {
			t.Errorf("%+v: %v", e, err)
		}
	}
}

// Patterns are those of Python's fnmatch.
func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"*", "a/b.json", true},
		{"*.json", "a/b.json", true},
		{"*.json", "a.jsonl", false},
		{"a*c*e", "abcde", true},
		{"a*c*e", "abcdf", false},
		{"model-?.bin", "model-1.bin", true},
		{"model-?.bin", "model-12.bin", false},
		{"[abc]x", "bx", true},
		{"[!abc]x", "bx", false},
		{"[0-9]", "5", true},
		{"[a-c-]", "-", true},
		{"[]]", "]", true},
		{"[x", "[x", true},
		{"", "", true},
		{"", "a", false},
		{"é*", "éa", true},
		{strings.Repeat("*a", 50) + "b", strings.Repeat("a", 5000), false}, // in no time
	} {
		if got := glob(c.pattern, c.text); got != c.want {
			t.Errorf("%.20q on %.20q: %v", c.pattern, c.text, got)
		}
	}

	m := &Model{Files: []File{{Path: "a.json"}, {Path: "m.gguf"}, {Path: "onnx/m.onnx"}, {Path: "w.safetensors"}}}
	names := func(files []File) (list []string) {
		for _, f := range files {
			list = append(list, f.Path)
		}
		return list
	}
	got := names(m.Choose([]string{"onnx/", "*.json"}, []string{"a*"}))
	if !slices.Equal(got, []string{"onnx/m.onnx"}) {
		t.Errorf("%q", got)
	}
	if files, n := m.Needed(); n != 2 || !slices.Equal(names(files), []string{"a.json", "w.safetensors"}) {
		t.Errorf("%q without %d", names(files), n)
	}
}

// The token comes from where huggingface_hub takes it.
func TestEnvironment(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT"} {
		t.Setenv(name, "")
	}
	t.Setenv("HF_HOME", home)

	if endpoint, token, err := Environment(); endpoint != Endpoint || token != "" || err != nil {
		t.Errorf("nothing set: %q, %q, %v", endpoint, token, err)
	}

	for _, step := range []struct{ file, variable, value, want string }{
		{file: "token", value: "one\n", want: "one"},
		{file: "other", variable: "HF_TOKEN_PATH", value: "two", want: "two"},
		{variable: "HF_TOKEN", value: " three ", want: "three"},
	} {
		value := step.value
		if step.file != "" {
			value = filepath.Join(home, step.file)
			if err := os.WriteFile(value, []byte(step.value), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if step.variable != "" {
			t.Setenv(step.variable, value)
		}
		if _, got, err := Environment(); got != step.want || err != nil {
			t.Errorf("%+v: %q, %v", step, got, err)
		}
	}

	for _, address := range []string{"", "huggingface.co", "ftp://x", "https://user:secret@x", "https://x?y"} {
		if _, err := NewClient(address, ""); !errors.Is(err, ErrAnswer) {
			t.Errorf("%q: %v", address, err)
		}
	}
	_, err := NewClient(Endpoint, "two\nlines")
	if !errors.Is(err, ErrNoAccess) || strings.Contains(err.Error(), "two") {
		t.Error(err)
	}
}

// TestTokenFile: a token is read from a regular file of its size; a pipe without a writer would hold the program up
// for ever, beyond interrupts.
func TestTokenFile(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "token"), filepath.Join(dir, "pipe")
	for text, good := range map[string]bool{" hf_x\n": true, "\n": false, strings.Repeat("a", maxToken+1): false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if token, err := ReadToken(file); good != (err == nil) || good && token != "hf_x" {
			t.Errorf("%.10q: %q, %v", text, token, err)
		}
	}

	systemtest.NeedsPipes(t)
	if err := systemtest.Pipe(pipe); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadToken(pipe); !errors.Is(err, safefile.ErrNotRegular) {
		t.Error(err)
	}
}
