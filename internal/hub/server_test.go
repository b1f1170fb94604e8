package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	commit = "0123456789abcdef0123456789abcdef01234567"
	token  = "hf_secretsecret"
)

// fake is a hub as its documentation describes the endpoints that the client uses, with a second host for large files.
type fake struct {
	*httptest.Server
	cdn   *httptest.Server
	files map[string]string // content by path
	large map[string]bool   // paths of files that lie on the other host
	page  int               // files of a page of the list
	gated bool              // a token is needed

	mu       sync.Mutex
	requests []string
	leaked   []string // tokens and referers that the other host has seen
	// answer may take a request over, before all else.
	answer func(w http.ResponseWriter, r *http.Request) bool
}

func newFake(t *testing.T) *fake {
	t.Helper()
	h := &fake{
		files: map[string]string{
			"config.json": `{"model_type": "llama"}`, "model.safetensors": strings.Repeat("weights", 5000),
			"tokenizer/a b#?.json": "{}", "pytorch_model.bin": "pickled", "empty.txt": "",
		},
		large: map[string]bool{"model.safetensors": true, "pytorch_model.bin": true},
		page:  2,
	}
	h.cdn = httptest.NewServer(http.HandlerFunc(h.serveLarge))
	h.Server = httptest.NewServer(http.HandlerFunc(h.serve))
	t.Cleanup(h.cdn.Close)
	t.Cleanup(h.Close)

	return h
}

func (h *fake) client(t *testing.T, token string) *Client {
	t.Helper()
	c, err := NewClient(h.URL, token)
	if err != nil {
		t.Fatal(err)
	}
	c.wait = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return c
}

func (h *fake) sum(path string) string {
	text := h.files[path]
	if h.large[path] {
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
	return hex.EncodeToString(sum[:])
}

func (h *fake) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.requests = append(h.requests, r.Method+" "+r.URL.EscapedPath()+" "+r.Header.Get("Range"))
	answer := h.answer
	h.mu.Unlock()

	if answer != nil && answer(w, r) {
		return
	}

	if h.gated && r.Header.Get("Authorization") != "Bearer "+token {
		w.Header().Set("X-Error-Message", "Access to model a/b is restricted")
		http.Error(w, "{}", http.StatusUnauthorized)
		return
	}

	path := r.URL.EscapedPath()
	file, isFile := strings.CutPrefix(path, "/a/b/resolve/"+commit+"/")
	file, _ = url.PathUnescape(file)
	text, known := h.files[file]
	switch {
	case path == "/api/models/a/b/revision/main", path == "/api/models/a/b/revision/refs%2Fpr%2F1",
		path == "/api/models/a/b/revision/"+commit:
		fmt.Fprintf(w, `{"id": "a/b", "sha": %q, "siblings": []}`, commit)
	case path == "/api/models/a/b/tree/"+commit:
		h.list(w, r)
	case isFile && known:
		w.Header().Set("X-Repo-Commit", commit)
		if h.large[file] {
			w.Header().Set("X-Linked-Etag", strconv.Quote(h.sum(file)))
			w.Header().Set("X-Linked-Size", strconv.Itoa(len(text)))
			http.Redirect(w, r, h.cdn.URL+"/"+h.sum(file)+"?Signature=hidden", http.StatusFound)
			return
		}
		w.Header().Set("Etag", strconv.Quote(h.sum(file)))
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	default:
		w.Header().Set("X-Error-Code", "RepoNotFound")
		http.Error(w, `{"error": "Repository not found"}`, http.StatusNotFound)
	}
}

// list writes a page of the files, with the address of the next one.
func (h *fake) list(w http.ResponseWriter, r *http.Request) {
	names := slices.Sorted(maps.Keys(h.files))
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	to := min(from+h.page, len(names))
	if to < len(names) {
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?recursive=true&cursor=%d>; rel="next"`, h.URL, r.URL.Path, to))
	}

	list := []map[string]any{{"type": "directory", "path": "tokenizer", "oid": commit, "size": 0}}
	for _, name := range names[from:to] {
		e := map[string]any{
			"type": "file", "path": name, "oid": strings.Repeat("1", 40), "size": len(h.files[name]),
		}
		if h.large[name] {
			e["lfs"] = map[string]any{"oid": h.sum(name), "size": len(h.files[name]), "pointerSize": 134}
		} else {
			e["oid"] = h.sum(name)
		}
		list = append(list, e)
	}

	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

func (h *fake) serveLarge(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.requests = append(h.requests, "CDN "+r.Header.Get("Range"))
	if r.Header.Get("Authorization") != "" || r.Header.Get("Referer") != "" {
		h.leaked = append(h.leaked, r.Header.Get("Authorization")+r.Header.Get("Referer"))
	}
	answer := h.answer
	h.mu.Unlock()

	if answer != nil && answer(w, r) {
		return
	}
	for name, text := range h.files {
		if h.large[name] && r.URL.Path == "/"+h.sum(name) {
			w.Header().Set("Etag", `"0-of-another-kind"`)
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
			return
		}
	}
	http.NotFound(w, r)
}

// once lets a function answer the first request of a path.
func (h *fake) once(part string, answer http.HandlerFunc) {
	done := false
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = func(w http.ResponseWriter, r *http.Request) bool {
		h.mu.Lock()
		mine := !done && strings.Contains(r.URL.Path, part)
		done = done || mine
		h.mu.Unlock()
		if mine {
			answer(w, r)
		}
		return mine
	}
}

func (h *fake) count(part string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if strings.Contains(r, part) {
			n++
		}
	}
	return n
}
