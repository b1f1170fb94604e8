package loracmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/memlimit"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora"
)

// Teaching is what the flags say about a teacher.
type Teaching struct {
	Model       string // "": the file has what it says
	Cache       string // file of what it says; "": none
	Stream      bool   // it is read from disk decoder layer by decoder layer, before training
	Temperature float64
	Top         string // a number, or all; "": the default
	CE          float64
}

// on reports whether there is a teacher.
func (t *Teaching) on() bool { return t.Model != "" || t.Cache != "" }

// settle reads what is said about the loss.
func (t *Teaching) settle() (*lora.Distil, error) {
	if !t.on() {
		return nil, nil
	}

	d := &lora.Distil{Temperature: t.Temperature, CE: t.CE}
	switch t.Top {
	case "":
	case "all":
		d.Top = -1
		if t.Cache != "" || t.Stream {
			return nil, cli.Usagef("--distil-top all needs the teacher beside the student: a file, which " +
				"--teacher-stream makes too, has its most probable tokens (HINT: --distil-top N)")
		}
	default:
		n, err := strconv.Atoi(t.Top)
		if err != nil || n < 1 {
			return nil, cli.Usagef("--distil-top %q: want a number of tokens, or all", t.Top)
		}
		d.Top = n
	}

	return d, cli.Usage(d.Validate())
}

// teach finds the teacher of the run: beside the student, or in a file, which is written first where it is not there.
func (r *run) teach() error {
	t := &r.o.Teaching
	d, err := t.settle()
	if err != nil || d == nil {
		return err
	}
	r.o.Distil = d

	path, own := t.Cache, spoken(r.o.Out)
	if path == "" {
		// A run that is resumed goes on with the teacher as it was.
		_, err := os.Stat(own)
		t.Stream = t.Stream || r.o.Resume && err == nil
	}

	there := false
	if path != "" {
		_, err := os.Stat(path)
		there = err == nil
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case !there && t.Model == "":
			return cli.Usagef("--teacher-cache %s: there is no such file, and no --teacher to make it with", path)
		case there:
			return r.recall(path)
		}
	}

	m, err := r.loadTeacher(path != "")
	if err != nil {
		return err
	}
	if most := m.Config().MaxPositions; most > 0 && r.data.SeqLen > most {
		r.Note("%s has %d positions, and the data sequences of %d tokens: what it says behind them is worth less",
			t.Model, most, r.data.SeqLen)
	}
	if path == "" && !t.Stream {
		r.leave = append(r.leave, m.Close)
		d.Teacher = lora.NewTeacher(m)
		return nil
	}

	if path == "" {
		path = own
		if !r.o.Resume {
			if err := remove(own); err != nil {
				return errors.Join(err, m.Close())
			}
		}
	}
	if err := errors.Join(r.ask(m, path), m.Close()); err != nil {
		return err
	}
	return r.recall(path)
}

// loadTeacher opens the teacher: in memory where it has room there and is not to be streamed.
func (r *run) loadTeacher(cached bool) (*lm.Model, error) {
	t := &r.o.Teaching
	load := r.o.Compute.Options()
	load.Stream = true
	m, err := r.Load(t.Model, load)
	if err != nil || t.Stream {
		return m, err
	}

	// Half of what is free: the activations of a training want some of it too.
	need := m.DataSize()
	fits := need <= m.Device().Info().Free/2 && memlimit.Check(float64(need)) == nil
	if !fits {
		t.Stream = true
		if !cached {
			if t.Top == "all" {
				return nil, errors.Join(cli.Usagef("--distil-top all: the teacher, of %d MiB, has no room in memory "+
					"beside the student (HINT: --distil-top N, which is streamed)", need>>20), m.Close())
			}
			r.Note("%s has no room in memory: it runs over the data before training, decoder layer by decoder layer",
				t.Model)
		}
		return m, nil
	}

	if err := m.Close(); err != nil {
		return nil, err
	}
	load.Stream = false
	return r.Load(t.Model, load)
}

// ask writes what a teacher says.
func (r *run) ask(m *lm.Model, path string) error {
	d := r.o.Distil
	var bar *cli.Progress
	err := lora.WriteTeacher(r.Ctx, m, r.model, r.data, path, lora.TeacherOptions{
		Temperature: d.Temperature, Top: d.Top,
		Progress: func(done, total int64) {
			if bar == nil {
				bar = r.Progress("asking the teacher", total)
			}
			bar.Set(done)
		},
	})
	if bar != nil {
		bar.End()
	}
	return flags(err)
}

// recall opens a file of what a teacher has said, which is that of the flags if they name one.
func (r *run) recall(path string) error {
	d, t := r.o.Distil, &r.o.Teaching
	var err error
	if d.Teacher, err = lora.OpenTeacher(path); err != nil {
		return flags(err)
	}
	r.leave = append(r.leave, d.Teacher.Close)
	if t.Model == "" {
		return nil
	}

	is, err := lm.Fingerprint(r.Ctx, t.Model)
	if err != nil {
		return err
	}
	was, err := d.Teacher.Fingerprint(r.Ctx)
	if err == nil && is != was {
		err = cli.Usagef("--teacher-cache %s: it is of another teacher than %s: of one with the fingerprint %.12s…, "+
			"not %.12s… (HINT: another file, or none of the two flags)", path, t.Model, was, is)
	}
	return err
}

// spoken is the hidden file beside the output that has what a streamed teacher says, until the training is done.
func spoken(out string) string {
	clean := filepath.Clean(out)
	return filepath.Join(filepath.Dir(clean), "."+filepath.Base(clean)+".teacher.safetensors")
}

// remove removes such a file, finished or not.
func remove(path string) error {
	var errs []error
	dir, base := filepath.Split(path)
	for _, p := range []string{path, path + ".partial", filepath.Join(dir, "."+base+".journal")} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// apart refuses a teacher in the place of the output.
func (t *Teaching) apart(out string) error {
	for _, in := range []string{t.Model, t.Cache} {
		if in == "" {
			continue
		}
		if err := stage.Apart(in, out); err != nil {
			return fmt.Errorf("--teacher: %w", err)
		}
	}
	return nil
}
