package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrNotFound: no folder is where a reference points.
var ErrNotFound = errors.New("model not found")

// Places says where the models of a recipe may lie.
type Places struct {
	Recipe string            // folder of the recipe, tried after the working directory; "": none
	Named  map[string]string // folders of earlier documents by their names, tried first
	Cache  string            // folder of the hub's cache (…/huggingface/hub), tried last; "": none
}

// HubCache gives the folder of the hub's cache as the environment sets it, or its usual place.
func HubCache() string {
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return dir
	}
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return filepath.Join(dir, "hub")
	}

	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}

	return filepath.Join(home, ".cache", "huggingface", "hub")
}

// Locate finds the folder of a model or adapter, in the cache of the Hugging Face hub too: the result of a
// named document, a path from the working directory or from the recipe, or a copy in the hub's cache. A
// revision only counts there, so a local folder with one is refused. Nothing is fetched; the error wraps
// ErrNotFound and names what was tried.
func Locate(s Source, p Places) (string, error) {
	path, revision := s.Path, s.Revision
	if dir, ok := p.Named[path]; ok && revision == "" {
		return dir, nil
	}

	tried := []string{path}
	if !filepath.IsAbs(path) && p.Recipe != "" {
		tried = append(tried, filepath.Join(p.Recipe, path))
	}

	for _, dir := range tried {
		if _, err := os.Stat(dir); err == nil {
			if revision != "" {
				return "", fmt.Errorf("%w: %s is a local folder, which has no revision %q", ErrNotFound, dir, revision)
			}
			return dir, nil
		}
	}

	if dir, ok := cached(path, revision, p.Cache); ok {
		return dir, nil
	}

	return "", fmt.Errorf("%w: %s (tried %s; nothing is downloaded)", ErrNotFound, s,
		strings.Join(append(tried[1:], "the hub's cache"), " and "))
}

// cached finds a model in the hub's cache, where models--owner--name holds refs/<revision> and snapshots/<commit>.
func cached(path, revision, cache string) (string, bool) {
	owner, name, ok := strings.Cut(path, "/")
	if cache == "" || !ok || !plain(owner) || !plain(name) {
		return "", false
	}

	root := filepath.Join(cache, "models--"+owner+"--"+name)
	if revision == "" {
		revision = "main"
	}
	if !plain(revision) {
		return "", false
	}
	if commit, err := os.ReadFile(filepath.Join(root, "refs", revision)); err == nil && len(commit) < 128 {
		revision = strings.TrimSpace(string(commit))
	}

	dir := filepath.Join(root, "snapshots", revision)
	if !plain(revision) {
		return "", false
	}

	_, err := os.Stat(dir)
	return dir, err == nil
}

// plain reports whether a name stays in its folder.
func plain(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\\x00")
}
