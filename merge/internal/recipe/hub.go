package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/hub"
)

// ErrNotFound: no folder is where a reference points.
var ErrNotFound = errors.New("model not found")

// Places says where the models of a recipe may lie.
type Places struct {
	Recipe string            // folder of the recipe, tried after the working directory; "": none
	Named  map[string]string // folders of earlier documents by their names, tried first
	Cache  string            // folder of the hub's cache (…/huggingface/hub), tried last; "": none
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

	owner, name, _ := strings.Cut(path, "/")
	id := hub.Name{Owner: owner, Repo: name, Revision: revision}
	if dir, ok := id.Find(p.Cache); ok {
		return dir, nil
	}
	if file, ok := hub.FindFile(p.Cache, id.String()); ok {
		return file, nil
	}

	err := fmt.Errorf("%w: %s (tried %s)", ErrNotFound, s, strings.Join(append(tried[1:], "the hub's cache"), " and "))
	if n, ok := hub.Parse(id.String()); ok {
		err = failure.Hinted(err, "compress pull "+n.String()+" downloads it from the hub")
	}
	return "", err
}
