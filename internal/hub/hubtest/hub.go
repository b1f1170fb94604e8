// Package hubtest is a hub on this machine for tests: its endpoints answer as the hub documents them, with a second
// host for large files.
package hubtest

import (
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

// What the hub gives, and what it asks for where it is gated.
const (
	Commit = "0123456789abcdef0123456789abcdef01234567"
	Token  = "hf_secretsecret"
)

// Hub is a hub with one model, a/b, of which [Commit] is the only state.
type Hub struct {
	*httptest.Server
	cdn   *httptest.Server
	Files map[string]string // content by path
	Large map[string]bool   // paths of files that lie on the other host
	Page  int               // files of a page of the list
	Gated bool              // a token is needed
	Data  string            // owner/name of a data set with the same files; empty: none

	mu       sync.Mutex
	Requests []string
	Leaked   []string // tokens and referers that the other host has seen
	// Answer may take a request over, before all else.
	Answer func(w http.ResponseWriter, r *http.Request) bool
}

// New starts a hub that ends with the test, with a small model.
func New(t testing.TB) *Hub {
	t.Helper()
	h := &Hub{
		Files: map[string]string{
			"config.json": `{"model_type": "llama"}`, "model.safetensors": strings.Repeat("weights", 5000),
			"tokenizer/a b#?.json": "{}", "pytorch_model.bin": "pickled", "empty.txt": "",
		},
		Large: map[string]bool{"model.safetensors": true, "pytorch_model.bin": true},
		Page:  2,
	}
	h.cdn = httptest.NewServer(http.HandlerFunc(h.serveLarge))
	h.Server = httptest.NewServer(http.HandlerFunc(h.serve))
	t.Cleanup(h.cdn.Close)
	t.Cleanup(h.Close)

	return h
}

// Sum is the checksum that the hub says of a file.
func (h *Hub) Sum(path string) string {
	text := h.Files[path]
	if h.Large[path] {
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
	return hex.EncodeToString(sum[:])
}

func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.Requests = append(h.Requests, r.Method+" "+r.URL.EscapedPath()+" "+r.Header.Get("Range"))
	answer := h.Answer
	h.mu.Unlock()

	if answer != nil && answer(w, r) {
		return
	}

	if h.Gated && r.Header.Get("Authorization") != "Bearer "+Token {
		w.Header().Set("X-Error-Message", "Access to model a/b is restricted")
		http.Error(w, "{}", http.StatusUnauthorized)
		return
	}

	path := r.URL.EscapedPath()
	if h.Data != "" {
		path = strings.Replace(path, "/api/datasets/"+h.Data+"/", "/api/models/a/b/", 1)
		path = strings.Replace(path, "/datasets/"+h.Data+"/", "/a/b/", 1)
	}
	file, isFile := strings.CutPrefix(path, "/a/b/resolve/"+Commit+"/")
	file, _ = url.PathUnescape(file)
	text, known := h.Files[file]
	switch {
	case path == "/api/models/a/b/revision/main", path == "/api/models/a/b/revision/refs%2Fpr%2F1",
		path == "/api/models/a/b/revision/"+Commit:
		fmt.Fprintf(w, `{"id": "a/b", "sha": %q, "siblings": []}`, Commit)
	case path == "/api/models/a/b/tree/"+Commit:
		h.list(w, r)
	case isFile && known:
		w.Header().Set("X-Repo-Commit", Commit)
		if h.Large[file] {
			w.Header().Set("X-Linked-Etag", strconv.Quote(h.Sum(file)))
			w.Header().Set("X-Linked-Size", strconv.Itoa(len(text)))
			http.Redirect(w, r, h.cdn.URL+"/"+h.Sum(file)+"?Signature=hidden", http.StatusFound)
			return
		}
		w.Header().Set("Etag", strconv.Quote(h.Sum(file)))
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	default:
		w.Header().Set("X-Error-Code", "RepoNotFound")
		http.Error(w, `{"error": "Repository not found"}`, http.StatusNotFound)
	}
}

// list writes a page of the files, with the address of the next one.
func (h *Hub) list(w http.ResponseWriter, r *http.Request) {
	names := slices.Sorted(maps.Keys(h.Files))
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	to := min(from+h.Page, len(names))
	if to < len(names) {
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?recursive=true&cursor=%d>; rel="next"`, h.URL, r.URL.Path, to))
	}

	list := []map[string]any{{"type": "directory", "path": "tokenizer", "oid": Commit, "size": 0}}
	for _, name := range names[from:to] {
		e := map[string]any{
			"type": "file", "path": name, "oid": strings.Repeat("1", 40), "size": len(h.Files[name]),
		}
		if h.Large[name] {
			e["lfs"] = map[string]any{"oid": h.Sum(name), "size": len(h.Files[name]), "pointerSize": 134}
		} else {
			e["oid"] = h.Sum(name)
		}
		list = append(list, e)
	}

	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

func (h *Hub) serveLarge(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.Requests = append(h.Requests, "CDN "+r.Header.Get("Range"))
	if r.Header.Get("Authorization") != "" || r.Header.Get("Referer") != "" {
		h.Leaked = append(h.Leaked, r.Header.Get("Authorization")+r.Header.Get("Referer"))
	}
	answer := h.Answer
	h.mu.Unlock()

	if answer != nil && answer(w, r) {
		return
	}
	for name, text := range h.Files {
		if h.Large[name] && r.URL.Path == "/"+h.Sum(name) {
			w.Header().Set("Etag", `"0-of-another-kind"`)
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
			return
		}
	}
	http.NotFound(w, r)
}

// Once lets a function answer the first request of a path.
func (h *Hub) Once(part string, answer http.HandlerFunc) {
	done := false
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Answer = func(w http.ResponseWriter, r *http.Request) bool {
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

// Count is how many requests there were with a text in their line.
func (h *Hub) Count(part string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.Requests {
		if strings.Contains(r, part) {
			n++
		}
	}
	return n
}
