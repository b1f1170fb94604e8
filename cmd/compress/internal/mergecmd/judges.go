package mergecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
	"github.com/modelcompress/compress/merge/search"
)

// SearchSpec is what the candidates of a search have in common: all that a worker elsewhere needs besides the models'
// files.
type SearchSpec struct {
	Path   string            `json:"path"`   // of the recipe
	Recipe string            `json:"recipe"` // with its open numbers
	Inputs []search.Input    `json:"inputs"`
	Hashes []string          `json:"hashes"` // of the inputs
	Files  map[string]string `json:"files"`  // of statistics, with their hashes
	Bytes  int64             `json:"bytes"`  // of a candidate
	OnDisk bool              `json:"on_disk"`
	Merge  merge.Options     `json:"merge"`
	Aims   []Aim             `json:"aims"`
}

// hashFolder is the hash of a model's or adapter's files.
func hashFolder(ctx context.Context, dir string) (string, error) {
	files, err := filesOf(dir)
	if err != nil {
		return "", err
	}

	var parts []any
	for _, path := range files {
		sum, err := cli.FileHash(ctx, path)
		if err != nil {
			return "", err
		}
		parts = append(parts, filepath.Base(path), sum)
	}

	return cli.Fingerprint(parts...), nil
}

// filesOf lists the files that a model or an adapter is made of.
func filesOf(dir string) (files []string, err error) {
	if weights.IsGGUF(dir) {
		return gguf.PartPaths(dir), nil
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}

	endings := []string{".safetensors", ".gguf", ".json", ".model", ".txt", ".jinja"}
	for _, e := range entries {
		if slices.Contains(endings, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}

	return files, nil
}

// bench is the judges of a process, each for one candidate at a time.
type bench struct {
	spec    *SearchSpec
	free    chan *search.Judge
	folders map[string]string // of models that lie elsewhere than the recipe says
	scratch string
	onDisk  bool
	memory  int64 // of a merge
	device  func() (kernels.Device, error)

	mu    sync.Mutex
	fault error // the first one that was not a candidate's own
}

// resident is how many candidates fit into an amount of memory, and whether they are held there: those that do
// not fit are merged on the disk.
func resident(slots int, room, bytes int64) (int, bool) {
	fit := int(min(room/max(bytes, 1), int64(slots)))
	if fit == 0 {
		return slots, true
	}
	return fit, false
}

// room is the memory for candidates that a flag allows; empty is half of what is free.
func room(flag string, dev kernels.Device) (int64, error) {
	if flag == "none" || flag == "0" {
		return 0, nil
	}
	if flag != "" {
		return cli.Bytes("in-memory", flag)
	}

	info := dev.Info()
	free := info.Free
	if limit, limited := cli.MemoryRoom(); limited && info.Host && (free == 0 || limit < free) {
		free = limit
	}

	return free / 2, nil
}

// newBench makes judges for some slots.
func newBench(spec *SearchSpec, dir string, slots int, device func() (kernels.Device, error)) *bench {
	b := &bench{
		spec: spec, scratch: dir, device: device, free: make(chan *search.Judge, slots),
		memory: spec.Merge.Memory / int64(max(slots, 1)),
	}
	for range slots {
		b.free <- nil
	}
	return b
}

// judge takes a judge that is free, or makes it.
func (b *bench) judge() (*search.Judge, error) {
	j := <-b.free
	if j != nil {
		return j, nil
	}
	j, err := b.make()
	if err != nil {
		b.free <- nil
	}
	return j, err
}

// make makes a judge.
func (b *bench) make() (*search.Judge, error) {
	dev, err := b.device()
	if err != nil {
		return nil, err
	}

	aims, err := searchAims(b.spec.Aims)
	if err != nil {
		return nil, err
	}

	if err := os.MkdirAll(b.scratch, 0o777); err != nil {
		return nil, err
	}

	dir, err := os.MkdirTemp(b.scratch, "slot")
	if err != nil {
		return nil, err
	}

	o := search.JudgeOptions{Device: dev, Aims: aims, Merge: b.spec.Merge, OnDisk: b.onDisk, Folders: b.folders}
	o.Merge.Threads, o.Merge.Memory = max(1, dev.Info().Threads), b.memory
	o.Merge.Mediator = mediate.Mediator() // which no specification carries
	return search.NewJudge(b.spec.Path, dir, o)
}

// handle rates a candidate.
func (b *bench) handle(ctx context.Context, it jobs.Item) ([]byte, error) {
	if cli.Fingerprint(string(it.Data))[:32] != it.ID {
		return nil, fmt.Errorf("%w: %s is not the one of its name", jobs.ErrItem, it.ID)
	}
	if err := search.CheckCandidate(b.spec.Path, []byte(b.spec.Recipe), it.Data); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", jobs.ErrItem, it.ID, err)
	}

	r, err := b.rate(ctx, it.Data)
	if err != nil {
		if ctx.Err() == nil {
			b.mu.Lock()
			b.fault = cmpError(b.fault, err)
			b.mu.Unlock()
		}
		return nil, err
	}

	return json.Marshal(r)
}

// readRating reads what somebody says that a candidate is worth.
func readRating(data []byte) (search.Rating, error) {
	var wire struct {
		Score  *float64 `json:"score"`
		Failed string   `json:"failed"`
	}

	if err := jobs.Decode(data, &wire); err != nil {
		return search.Rating{}, err
	}
	if wire.Score == nil {
		return search.Rating{}, fmt.Errorf("%w: a rating without a score", jobs.ErrItem)
	}

	r := search.Rating{Score: *wire.Score, Failed: jobs.Plain(wire.Failed, maxFailed)}
	return r, r.Check()
}

// maxFailed bounds why a candidate is said to have no score.
const maxFailed = 2000

// cmpError is the first of two errors.
func cmpError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (b *bench) rate(ctx context.Context, recipe []byte) (r search.Rating, err error) {
	j, err := b.judge()
	if err != nil {
		return r, err
	}
	defer func() { b.free <- j }()
	return j.Rate(ctx, recipe)
}

// close ends the judges, after the work.
func (b *bench) close() error {
	var errs []error
	for range cap(b.free) {
		if j := <-b.free; j != nil {
			errs = append(errs, j.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(b.scratch))...)
}

// ServeSearch decides about an offer of [SearchKind]: models, statistics and tasks must be the coordinator's.
func ServeSearch(ctx context.Context, w *workers.Worker, text []byte) (jobs.Handler, func(), error) {
	spec := &SearchSpec{}
	if err := jobs.Decode(text, spec); err != nil || len(spec.Hashes) != len(spec.Inputs) {
		return nil, nil, fmt.Errorf("%w: specification: %w", jobs.ErrRefused,
			cmpError(err, errors.New("inputs without hashes")))
	}

	folders, err := find(ctx, w.Models, spec)
	if err != nil {
		return nil, nil, err
	}

	for path, want := range spec.Files {
		if have, err := cli.FileHash(ctx, path); err != nil || have != want {
			return nil, nil, different("statistics", path, err, have)
		}
	}

	for _, a := range spec.Aims {
		if a.Tasks == nil {
			continue
		}
		if have, err := a.Tasks.hash(ctx); err != nil || have != a.Hash {
			return nil, nil, different("tasks", a.Tasks.Entry, err, have)
		}
	}

	dev, err := w.Job.Device()
	if err != nil {
		return nil, nil, err
	}

	memory, err := room("", dev)
	if err != nil {
		return nil, nil, err
	}

	slots, onDisk := resident(w.Slots, memory, spec.Bytes)
	dir, release, err := scratch.Folder("compress-worker-")
	if err != nil {
		return nil, nil, err
	}

	b := newBench(spec, dir, slots, w.Device)
	b.folders, b.onDisk = folders, onDisk || spec.OnDisk
	return b.handle, func() { _, _ = b.close(), release() }, nil // what it leaves is in a temporary folder
}

// different refuses files that are not the coordinator's. What they are is said here alone.
func different(what, path string, err error, hash string) error {
	refusal := fmt.Errorf("%w: %s %q are not the coordinator's", jobs.ErrRefused, what, path)
	return workers.Withheld(refusal, cmpError(err, fmt.Errorf("hash %.12s", hash)))
}

// find looks for the models' files and checks that they are the coordinator's.
func find(ctx context.Context, places []string, spec *SearchSpec) (map[string]string, error) {
	known := map[string]string{} // folders by hash
	for _, dir := range places {
		sum, err := hashFolder(ctx, dir)
		if err != nil {
			return nil, err
		}
		known[sum] = dir
	}

	folders := map[string]string{}
	for i, in := range spec.Inputs {
		if dir, ok := known[spec.Hashes[i]]; ok {
			folders[in.Name] = dir
			continue
		}

		sum, err := hashFolder(ctx, in.Folder)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && sum != spec.Hashes[i]:
			return nil, fmt.Errorf("%w: no folder with the files of %s (%s there), hash %.12s", jobs.ErrRefused,
				in.Name, strconv.Quote(in.Folder), spec.Hashes[i])
		case err != nil:
			refusal := fmt.Errorf("%w: %s cannot be read (%q there)", jobs.ErrRefused, in.Name, in.Folder)
			return nil, workers.Withheld(refusal, err)
		}

		folders[in.Name] = in.Folder
	}

	return folders, nil
}
