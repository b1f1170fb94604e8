package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

// adapterRequest is the body of POST /v1/load_lora_adapter and of POST /v1/unload_lora_adapter, as vLLM has them.
type adapterRequest struct {
	Name    string `json:"lora_name"`
	Path    string `json:"lora_path"`
	Replace bool   `json:"load_inplace"`
	Base    string `json:"base_model_name"` // of which model; empty: of the first
	ID      *int   `json:"lora_int_id"`     // vLLM's own number; not used
}

// maxName bounds names that clients give.
const maxName = 256

// invalid is the fault of a request about adapters, of the type that vLLM has.
func invalid(format string, args ...any) *fault {
	return &fault{http.StatusBadRequest, "InvalidUserInput", fmt.Sprintf(format, args...), "", ""}
}

// missing is that of something that is not there.
func missing(format string, args ...any) *fault {
	return &fault{http.StatusNotFound, "NotFoundError", fmt.Sprintf(format, args...), "", ""}
}

// loadAdapter answers POST /v1/load_lora_adapter. Requests go on meanwhile.
func (s *Server) loadAdapter(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	var q adapterRequest
	if err := s.readJSON(ctx, w, r, &q); err != nil {
		return err
	}
	if q.Name == "" || q.Path == "" {
		return invalid("Both 'lora_name' and 'lora_path' must be provided.")
	}
	// Everybody who lists the models gets the name.
	if len(q.Name) > maxName || strings.ContainsFunc(q.Name, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return invalid("The name of a lora adapter has at most %d bytes, and printable characters only.", maxName)
	}

	// One at a time: names are free until the end, and opening takes memory.
	s.loading.Lock()
	defer s.loading.Unlock()

	s.mu.Lock()
	old := s.named(q.Name)
	s.mu.Unlock()
	switch {
	case old != nil && old.Parent == "":
		return invalid("%s is a model, not an adapter.", shown(q.Name))
	case old != nil && !q.Replace:
		return invalid("The lora adapter %s has already been loaded. If you want to load the adapter in place, set "+
			"'load_inplace' to True.", shown(q.Name))
	}

	base, let, err := s.pinned(ctx, q.Base)
	if err != nil {
		return err
	}
	defer let()
	if base.Parent != "" {
		return invalid("%s is an adapter, not a model.", shown(q.Base))
	}

	dir, err := s.inRoot(q.Path)
	if err != nil {
		return err
	}
	one, err := s.openAdapter(ctx, base, q.Name, dir)
	if err != nil {
		return err
	}
	if err := s.takeIn(ctx, one); err != nil {
		one.retire()
		return err
	}
	return plain(w, "Success: LoRA adapter '%s' added successfully.", q.Name)
}

// pinned is [Server.model] for an adapter that is being loaded: its place is not closed for others, which wait.
func (s *Server) pinned(ctx context.Context, name string) (m *served, let func(), err error) {
	for {
		m, free, err := s.model(ctx, name)
		if err != nil {
			return nil, nil, err
		}

		s.mu.Lock()
		leaves := m.place.leaves // whoever closes it waits for this request, and has the loader
		if !leaves {
			m.place.pins++
		}
		s.mu.Unlock()
		if leaves {
			free()
			continue
		}
		return m, func() {
			s.mu.Lock()
			m.place.pins--
			s.tell()
			s.mu.Unlock()
			free()
		}, nil
	}
}

// takeIn lists an adapter that was loaded at run time, in the memory of models that nobody uses if it has to be.
func (s *Server) takeIn(ctx context.Context, one *served) error {
	p := one.place
	select {
	case s.loader <- struct{}{}:
	case <-s.stopped:
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.loader }()

	if s.ending.Load() {
		return errClosed
	}
	if p.source != nil { // the others are not counted
		err := s.makeRoom(ctx, p, one.Bytes, func(left int64) error {
			f := invalid("The lora adapter %s takes %d bytes, and %d of the %d that all models may take are left "+
				"(HINT: unload others, one of the same name too).", shown(one.Name), one.Bytes, left, s.options.Budget)
			f.param, f.code = "lora_path", "out_of_memory"
			return f
		})
		if err != nil {
			return err
		}
	}

	s.mu.Lock()
	s.countLocked(one)
	old := s.putLocked(one)
	one.guest = true
	p.guests++
	if old != nil {
		s.leftLocked(old)
	}
	s.mu.Unlock()
	if old != nil && old.LM != nil {
		old.retire()
	}
	return nil
}

// openAdapter opens an adapter of a model, and tries whether it can be attached if it acts on the whole of it.
func (s *Server) openAdapter(ctx context.Context, base *served, name, dir string) (*served, error) {
	m, err := s.options.OpenAdapter(ctx, base.Model, name, dir)
	if err != nil {
		return nil, invalid("The lora adapter %s cannot be loaded: %v", shown(name), err)
	}
	one, err := newServed(ctx, m, base.place, s.options)
	if err == nil && m.Enter != nil {
		err = base.engine.between(func() error {
			leave, err := m.Enter()
			if err == nil {
				leave()
			}
			return err
		})
		if err != nil && !errors.Is(err, errClosed) {
			err = invalid("The lora adapter %s cannot be loaded: %v", shown(name), err)
		}
	}
	if err != nil {
		if m.Close != nil {
			m.Close()
		}
		return nil, err
	}
	return one, nil
}

// unloadAdapter answers POST /v1/unload_lora_adapter. Requests that have begun with the adapter end with it.
func (s *Server) unloadAdapter(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	var q adapterRequest
	if err := s.readJSON(ctx, w, r, &q); err != nil {
		return err
	}
	if q.Name == "" {
		return invalid("'lora_name' needs to be provided to unload a LoRA adapter.")
	}

	s.loading.Lock()
	defer s.loading.Unlock()

	s.mu.Lock()
	m := s.named(q.Name)
	s.mu.Unlock()
	if m == nil || m.Parent == "" {
		return missing("The lora adapter %s cannot be found.", shown(q.Name))
	}

	s.remove(m)
	if m.LM != nil {
		m.retire()
	}
	return plain(w, "Success: LoRA adapter '%s' removed successfully.", q.Name)
}

// inRoot finds a file or folder in the folder with adapters, by a path that is relative to it or lies in it. Links may
// lead about in the folder, and not out of it.
func (s *Server) inRoot(path string) (string, error) {
	root, err := filepath.EvalSymlinks(s.options.AdapterRoot)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return "", fmt.Errorf("the folder with adapters: %w", err)
	}

	if !filepath.IsAbs(path) {
		path = filepath.Join(root, path)
	}
	outside := invalid("The path leads out of the folder from which adapters are loaded.")
	inside := func(path string) (string, error) {
		full, err := filepath.EvalSymlinks(path)
		if err != nil { // whether something is there outside is nobody's business
			return "", err
		}
		rel, err := filepath.Rel(root, full)
		if err != nil || !filepath.IsLocal(rel) {
			return "", outside
		}
		return full, nil
	}

	full, err := inside(path)
	switch {
	case errors.Is(err, outside):
		return "", outside
	case err != nil:
		rel, relErr := filepath.Rel(root, filepath.Clean(path))
		given, givenErr := filepath.Rel(filepath.Clean(s.options.AdapterRoot), filepath.Clean(path))
		if (relErr != nil || !filepath.IsLocal(rel)) && (givenErr != nil || !filepath.IsLocal(given)) {
			return "", outside
		}
		// The last part of the path that is there may be a link that leads out, to something or to nothing.
		at := filepath.Clean(path)
		for _, err := os.Lstat(at); err != nil && at != filepath.Dir(at); _, err = os.Lstat(at) {
			at = filepath.Dir(at)
		}
		if _, err := inside(at); err != nil {
			return "", outside
		}
		return "", missing("There is no adapter at %s.", shown(path))
	}

	err = filepath.WalkDir(full, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSymlink != 0 {
			_, err = inside(path)
		}
		return err
	})
	if err != nil {
		return "", outside
	}
	return full, nil
}

// plain answers with a line of text.
func plain(w http.ResponseWriter, format string, args ...any) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, strings.ToValidUTF8(fmt.Sprintf(format, args...), "?"))
	return nil
}
