package quantize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
)

// journal keeps, beside a file in the making, which of its tensors are on the disk, with sums of their bytes.
type journal struct {
	*stage.Journal
	out  string
	file *gguf.File // the unfinished file, once a sum was asked for
	done map[string]uint32

	finished bool // the file is there, of this very plan
}

// step is a line of a journal behind the header.
type step struct {
	Tensor string `json:"tensor"`
	Sum    uint32 `json:"crc32c"`
}

// Done reports whether an interrupted run has written a tensor, and its bytes are still those.
func (j *journal) Done(name string) (bool, error) {
	want, ok := j.done[name]
	if !ok {
		return false, nil
	}
	got, err := j.sum(name)
	return err == nil && got == want, err
}

// Note notes tensors whose bytes are on the disk.
func (j *journal) Note(names []string) error {
	for _, name := range names {
		sum, err := j.sum(name)
		if err != nil {
			return err
		}
		if err := j.Put(step{name, sum}); err != nil {
			return err
		}
	}
	return j.Sync()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum is that of a tensor's bytes in the unfinished file.
func (j *journal) sum(name string) (sum uint32, err error) {
	if j.file == nil {
		if j.file, err = gguf.Open(j.out + ".partial"); err != nil {
			return 0, err
		}
	}
	err = j.file.View(name, func(data []byte) error {
		sum = crc32.Checksum(data, castagnoli)
		return nil
	})
	return sum, err
}

// header is the first line of a journal.
type header struct {
	Job string `json:"job"`
}

// journal opens the journal of the run: that of an interrupted one of the same job with Resume, otherwise a new one. It
// refuses an output that is there already.
func (f *file) journal() (*journal, error) {
	job, err := f.job()
	if err != nil {
		return nil, err
	}

	dir, base := filepath.Split(f.o.Out)
	if dir != "" {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, err
		}
	}
	inner, err := stage.OpenJournal(filepath.Join(dir, "."+base+".journal"))
	if err != nil {
		return nil, err
	}
	j := &journal{Journal: inner, out: f.o.Out, done: map[string]uint32{}}
	if err := f.take(j, job); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return j, nil
}

// take takes up what an interrupted run has left, or begins anew.
func (f *file) take(j *journal, job string) error {
	lines := j.Lines()
	same := false
	if f.o.Resume && len(lines) > 0 {
		var head header
		same = j.Fault() == nil && json.Unmarshal(lines[0], &head) == nil && head.Job == job
		if !same && !f.o.Overwrite {
			return fmt.Errorf("%s: %w: the model or the options have changed since it was begun", f.o.Out,
				stage.ErrOtherJob)
		}
	}

	_, err := os.Stat(f.o.Out)
	if err == nil && f.o.Resume && !f.o.Overwrite && len(lines) == 0 && f.isThere() {
		j.finished = true
		return nil
	}
	if err == nil && !f.o.Overwrite && !same {
		if len(lines) == 0 {
			err = j.Remove() // it was made just now
		}
		return errors.Join(fmt.Errorf("%s: %w", f.o.Out, stage.ErrExists), err)
	}

	if same {
		for _, line := range lines[1:] {
			var s step
			if json.Unmarshal(line, &s) == nil {
				j.done[s.Tensor] = s.Sum
			}
		}
		return nil
	}

	// What is left of another job is not to be continued.
	if err := os.Remove(f.o.Out + ".partial"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return j.Start(header{job})
}

// isThere reports whether the output is a finished file with the metadata, tensors and types of the plan, and no file
// of the model has changed since.
func (f *file) isThere() bool {
	have, err := gguf.Open(f.o.Out)
	if err != nil {
		return false
	}
	defer have.Close()

	info, err := os.Stat(f.o.Out)
	if err != nil {
		return false
	}
	stamps, err := stampsOf(f.model)
	for _, s := range stamps {
		if s.Time > info.ModTime().UnixNano() {
			return false
		}
	}
	if err != nil || len(have.Names()) != len(f.export.Tensors) {
		return false
	}

	for i, t := range f.export.Tensors {
		as, _, err := typeNamed(f.types[i])
		one, ok := have.Info(t.Name)
		if err != nil || !ok || one.Type != as || !slices.Equal(one.Shape, t.Shape) {
			return false
		}
	}
	meta := have.Metadata()
	for _, e := range f.export.Metadata {
		if v, ok := meta.Get(e.Key); !ok || v != e.Value {
			return false
		}
	}
	return true
}

// job identifies the work by the options, the plan, and the sizes and times of the model's files: reading all weights
// for a sum of theirs would take as long as the work.
func (f *file) job() (string, error) {
	config, err := weights.ReadFile(f.model, "config.json", maxConfig)
	if err != nil {
		return "", err
	}
	stamps, err := stampsOf(f.model)
	if err != nil {
		return "", err
	}
	weighed := ""
	if f.o.Importance != nil {
		if weighed, err = stage.Fingerprint(f.o.Importance); err != nil {
			return "", err
		}
	}
	return stage.Fingerprint("quantize file 1", string(config), stamps, f.o.Scheme.Name, f.o.Types, f.o.Name, weighed,
		f.types)
}

// stamp is what tells a file from what it was before.
type stamp struct {
	Name string
	Size int64
	Time int64
}

// stampsOf lists the files of a model.
func stampsOf(model string) (list []stamp, err error) {
	info, err := os.Stat(model)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []stamp{{filepath.Base(model), info.Size(), info.ModTime().UnixNano()}}, nil
	}

	entries, err := os.ReadDir(model)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(model, e.Name())) // what links lead to
		if err != nil || info.IsDir() {
			continue
		}
		list = append(list, stamp{e.Name(), info.Size(), info.ModTime().UnixNano()})
	}
	return list, nil
}

// end keeps the journal of a run that can be continued, and removes it otherwise, with what there is of the file.
func (j *journal) end(ctx context.Context, out string, err error) error {
	if j.file != nil {
		_ = j.file.Close()
	}
	_, none := os.Stat(out + ".partial")
	if err != nil && stage.Resumable(ctx, err) && none == nil {
		return errors.Join(err, j.Close())
	}
	if err != nil {
		if e := os.Remove(out + ".partial"); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, j.Remove())
}
