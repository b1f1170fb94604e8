package fitness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/prune/internal/grads"
)

// gradientFiles are the gradients that prune.Model reads on the rungs that prune in full. Each set of
// calibration data has its own, so that a metric is not chosen by the sample that it is then tested with; but
// only one set is used at a time, and most of a search needs the first alone. A set is made when it is first
// asked for, and those of the rungs below it are removed then.
type gradientFiles struct {
	mu    sync.RWMutex      // held for reading as long as a file is used
	paths map[string]string // of what there is, by the hash of the calibration data
	took  time.Duration     // the last one; 0: it was there
}

// prunes are the rungs that prune in full, in the order in which a search comes to them.
var prunes = []Rung{Full, Select, Test}

// withGradients calls use with the file of the gradients that a rung prunes with. show is told how far the
// making of it is.
func (s *subject) withGradients(ctx context.Context, r Rung, show func(done, of int64),
	use func(path string) error,
) error {
	hash := s.set(r).calib.Hash
	for {
		s.files.mu.RLock()

		if path, ok := s.files.paths[hash]; ok {
			defer s.files.mu.RUnlock()
			return use(path)
		}

		s.files.mu.RUnlock()
		if err := s.bringGradients(ctx, r, show); err != nil {
			return fmt.Errorf("gradients: %w", err)
		}
	}
}

// bringGradients sees to it that the gradients of a rung are there.
func (s *subject) bringGradients(ctx context.Context, r Rung, show func(done, of int64)) error {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()

	hash := s.set(r).calib.Hash
	if _, ok := s.files.paths[hash]; ok {
		return nil // another goroutine was faster
	}

	for _, lower := range prunes[:slices.Index(prunes, r)] {
		if err := s.dropGradients(s.set(lower).calib.Hash); err != nil {
			return err
		}
	}

	path := s.gradientPath(hash)
	if err := s.collectGradients(ctx, r, path, show); err != nil {
		return err
	}
	if s.files.paths == nil {
		s.files.paths = map[string]string{}
	}

	s.files.paths[hash] = path
	return nil
}

// gradientPath is where the gradients of calibration data lie.
func (s *subject) gradientPath(hash string) string {
	return filepath.Join(s.o.Dir, "gradients-"+digest(s.model, hash)[:16]+".safetensors")
}

// dropGradients removes the gradients of calibration data, if they are there.
func (s *subject) dropGradients(hash string) error {
	delete(s.files.paths, hash)
	path := s.gradientPath(hash)
	for _, name := range []string{path, path + sumSuffix} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// sumSuffix ends the name of the file that has the hash of a file of gradients.
const sumSuffix = ".sha256"

// collectGradients makes the file of gradients, unless an earlier run made it and it is what it was then.
func (s *subject) collectGradients(ctx context.Context, r Rung, path string, show func(done, of int64)) error {
	have, err := fileHash(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s.newGradients(ctx, r, path, show)
	}
	if err != nil {
		return err
	}

	want, err := safefile.ReadFile(path+sumSuffix, 1<<10)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if string(want) == have {
		return nil
	}
	if err == nil {
		s.note("%s: damaged since it was written; the gradients are made anew", path)
	}

	if err := os.Remove(path); err != nil { // of a run that was killed before it had noted the hash, too
		return err
	}

	return s.newGradients(ctx, r, path, show)
}

func (s *subject) note(format string, args ...any) {
	if s.o.Note != nil {
		s.o.Note(fmt.Sprintf(format, args...))
	}
}

// fileHash is the SHA-256 of a file.
func fileHash(path string) (string, error) {
	f, err := safefile.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// newGradients makes the file of gradients, and notes its hash. They are F16: to metrics they are nothing else,
// wherever they lie.
func (s *subject) newGradients(ctx context.Context, r Rung, path string, show func(done, of int64)) error {
	if r != Full {
		about := ""
		if s.files.took > 0 {
			about = fmt.Sprintf(", about %v", s.files.took.Round(time.Second))
		}
		s.note("%s: gradients on the calibration data of the rung %s%s", s.Name, r, about)
	}

	start := time.Now()
	m, err := s.Open(ctx)
	if err != nil {
		return err
	}

	calib := s.set(r).calib
	job := grads.Job{Model: m, IDs: calib.IDs, Step: func(_, done, of int) { show(int64(done), int64(of)) }}
	file, err := job.Keep(ctx, path, grads.Origin{Model: s.model, Data: calib.Hash}, true)
	if err == nil {
		set := &grads.Set{File: file}
		_, err = set.Fit(m, s.model, calib.Hash)
		set.Close()
	}

	if err = errors.Join(err, m.Close()); err != nil {
		return err
	}

	sum, err := fileHash(path)
	if err != nil {
		return err
	}

	s.files.took = time.Since(start)
	return safefile.WriteFile(path+sumSuffix, []byte(sum), 0o666)
}
