package prune

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/system/systemtest"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// A child process prunes the folder that this variable names and kills itself on the way; see child.
const childEnv = "PRUNE_TEST_CHILD"

// child prunes <dir>/in to <dir>/out with masks, and kills itself with SIGKILL after so many matrices.
func child(dir string) int {
	err := func() error {
		dev, err := device.Open("cpu", device.Options{Threads: 1})
		if err != nil {
			return err
		}

		m, err := lm.Load(ctx, filepath.Join(dir, "in"), dev, lm.Options{})
		if err != nil {
			return err
		}

		left, _ := strconv.Atoi(os.Getenv(childEnv + "_AFTER"))
		_, err = resumable(ctx, m, dir, os.Getenv(childEnv+"_METRIC"), true, Events{Tensor: func(Tensor) {
			left--
			if left == 0 {
				_ = systemtest.Kill(os.Getpid())
			}
		}})

		return err
	}()

	fmt.Fprintln(os.Stderr, err)
	return 1
}

// resumable runs the job of the test, from the beginning or from where it was interrupted.
func resumable(ctx context.Context, m *lm.Model, dir, metric string, resume bool, events Events) (*Report, error) {
	o := Options{Sparsity: .5, Events: events}
	with := ""
	if !slices.Contains(MetricNames(), metric) { // one has plus signs in its own name
		metric, with, _ = strings.Cut(metric, "+")
	}
	if slices.Contains(allocations, with) {
		o.Allocation.Name = with
	} else {
		o.Update.Name = with
	}

	var err error
	if o.Metric, err = MetricByName(metric); err != nil {
		return nil, err
	}

	end := func() error { return nil }
	if o.Metric.splits {
		o.LowRank.Turns = 3
		o.Factors = NewFactors(filepath.Join(dir, "factors.safetensors"), MaskOptions{Resume: resume})
		end = o.Factors.Suspend
	}

	calib := windows(4, 12, 61)
	job, err := Fingerprint(ctx, m, calib, o)
	if err != nil {
		return nil, err
	}

	if o.Out, err = m.NewSaver(filepath.Join(dir, "out"),
		lm.SaveOptions{Resume: resume, Fingerprint: job}); err != nil {
		return nil, err
	}
	if o.Masks, err = NewMasks(filepath.Join(dir, "masks.safetensors"), m, MaskOptions{Resume: resume}); err != nil {
		return nil, errors.Join(err, o.Out.Suspend())
	}

	r, err := Model(ctx, m, calib, o)
	if err != nil {
		return nil, errors.Join(err, o.Out.Suspend(), o.Masks.Suspend(), end())
	}

	return r, nil
}

// Killed at any point, again and again, a run ends with the bytes of one that was left alone.
func TestResumeAfterKill(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	for _, metric := range append(MetricNames(), "wanda+owl", "wanda+global", "wanda+alpha", "gblm+sparsegpt",
		"magnitude+admm", "ria+dsnot") {
		t.Run(metric, func(t *testing.T) {
			t.Parallel() // most of the time goes into starting processes
			whole := t.TempDir()
			m := load(t, llama(3).write(t, filepath.Join(whole, "in"), nil), 1, lm.Options{})
			if _, err := resumable(ctx, m, whole, metric, false, Events{}); err != nil {
				t.Fatal(err)
			}

			dir := t.TempDir()
			in := llama(3).write(t, filepath.Join(dir, "in"), nil)

			// the last is killed with all matrices done and nothing finished
			for _, after := range []int{1, 8, 9, 6, 21} {
				cmd := exec.Command(exe, "-test.run=^$")
				cmd.Env = append(os.Environ(), childEnv+"="+dir, childEnv+"_AFTER="+strconv.Itoa(after),
					childEnv+"_METRIC="+metric)
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				err := cmd.Run()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
					t.Fatalf("the child was not killed: %v, %s", err, stderr.String())
				}

				if _, err := os.Stat(filepath.Join(dir, "out")); !errors.Is(err, os.ErrNotExist) {
					t.Fatalf("a half-written output has its final name: %v", err)
				}
			}

			r, err := resumable(ctx, load(t, in, 2, lm.Options{}), dir, metric, true, Events{})
			if err != nil {
				t.Fatal(err)
			}

			if r.Total.Restored == 0 || r.Total.Matrices != 21 ||
				!strings.Contains(strings.Join(r.Notes, " "), "interrupted run") {
				t.Errorf("restored %d of %d matrices, notes %q", r.Total.Restored, r.Total.Matrices, r.Notes)
			}

			if !maps.Equal(contents(t, filepath.Join(whole, "out")), contents(t, filepath.Join(dir, "out"))) {
				t.Error("the resumed output differs from the uninterrupted one")
			}

			if !maps.Equal(tensorsOf(t, filepath.Join(whole, "masks.safetensors")),
				tensorsOf(t, filepath.Join(dir, "masks.safetensors"))) {
				t.Error("the resumed masks differ from the uninterrupted ones")
			}

			want := 3
			if metric == OATS().Name {
				want += 2 // with their checksums, until they are made use of
				if !maps.Equal(tensorsOf(t, filepath.Join(whole, "factors.safetensors")),
					tensorsOf(t, filepath.Join(dir, "factors.safetensors"))) {
					t.Error("the resumed factors differ from the uninterrupted ones")
				}
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != want {
				t.Errorf("left in the folder: %v, %v; want in, out, the masks, factors and checksums", entries, err)
			}
		})
	}
}

// A mask, or a note of its checksum, that was damaged after an interrupted run had written it is made again.
func TestDamagedMasksAreMadeAgain(t *testing.T) {
	whole := t.TempDir()
	m := load(t, llama(2).write(t, filepath.Join(whole, "in"), nil), 1, lm.Options{})
	if _, err := resumable(ctx, m, whole, "magnitude", false, Events{}); err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"masks.safetensors.partial", ".masks.safetensors.sums"} {
		dir := t.TempDir()
		n := 0
		stop, cancel := context.WithCancel(ctx)
		_, err := resumable(stop, m, dir, "magnitude", false, Events{Tensor: func(Tensor) {
			n++
			if n == 8 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}

		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		at := 20
		if f, err := safetensors.Open(path); err == nil {
			info, _ := f.Info(m.Linears(0)[0].Name)
			at = int(info.Offset) + 5
			f.Close()
		}

		text[at] ^= 1
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := resumable(ctx, m, dir, "magnitude", true, Events{}); err != nil {
			t.Fatal(err)
		}

		for _, out := range []string{"masks.safetensors", "out/model.safetensors"} {
			if !maps.Equal(tensorsOf(t, filepath.Join(whole, out)), tensorsOf(t, filepath.Join(dir, out))) {
				t.Errorf("%s: the resumed %s differs", name, out)
			}
		}

		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
			t.Errorf("left in the folder: %v, %v; want out and the masks", entries, err)
		}
	}
}

// A cancelled run can be resumed by the same job only, and without its masks not at all.
func TestResumeOfAnotherJobIsRefused(t *testing.T) {
	dir := t.TempDir()
	m := load(t, llama(2).write(t, filepath.Join(dir, "in"), nil), 1, lm.Options{})
	n := 0
	stop, cancel := context.WithCancel(ctx)
	_, err := resumable(stop, m, dir, "magnitude", false, Events{Tensor: func(Tensor) {
		n++
		if n == 8 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	if _, err = resumable(ctx, m, dir, "wanda", true, Events{}); !errors.Is(err, lm.ErrOtherJob) {
		t.Errorf("another metric: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "masks.safetensors.partial")); err != nil {
		t.Fatal(err)
	}

	if _, err = resumable(ctx, m, dir, "magnitude", true, Events{}); !errors.Is(err, safetensors.ErrNotResumed) ||
		!strings.Contains(err.Error(), "start over") {
		t.Errorf("masks gone: %v", err)
	}

	if r, err := resumable(ctx, m, dir, "magnitude", false, Events{}); err != nil || r.Total.Restored != 0 {
		t.Errorf("starting over: %v", err)
	}
}

// Killed from outside at whatever moment, run after run, a job that is resumed ends with the same bytes; and
// resuming one that is complete changes nothing.
func TestResumeAfterKillAtAnyMoment(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	whole := t.TempDir()
	if _, err := resumable(ctx, load(t, llama(6).write(t, filepath.Join(whole, "in"), nil), 1, lm.Options{}), whole,
		"wanda", false, Events{}); err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	in := llama(6).write(t, filepath.Join(dir, "in"), nil)

	for run := range 12 {
		cmd := exec.Command(exe, "-test.run=^$")
		cmd.Env = append(os.Environ(), childEnv+"="+dir, childEnv+"_METRIC=wanda")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}

		kill := time.AfterFunc(time.Duration(15+6*run)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
	}

	for range 2 {
		if _, err := resumable(ctx, load(t, in, 2, lm.Options{}), dir, "wanda", true, Events{}); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(contents(t, filepath.Join(whole, "out")), contents(t, filepath.Join(dir, "out"))) {
			t.Error("the resumed output differs from the uninterrupted one")
		}

		if !maps.Equal(tensorsOf(t, filepath.Join(whole, "masks.safetensors")),
			tensorsOf(t, filepath.Join(dir, "masks.safetensors"))) {
			t.Error("the resumed masks differ from the uninterrupted ones")
		}
	}
}

// Bytes of finished matrices that changed between the runs do not reach the output: those matrices are pruned again.
func TestResumeOfDamagedBytes(t *testing.T) {
	for _, metric := range []string{"magnitude", "wanda", "sparsegpt"} {
		whole, dir := t.TempDir(), t.TempDir()
		if _, err := resumable(ctx, load(t, llama(3).write(t, filepath.Join(whole, "in"), nil), 1, lm.Options{}), whole,
			metric, false, Events{}); err != nil {
			t.Fatal(err)
		}

		m, n := load(t, llama(3).write(t, filepath.Join(dir, "in"), nil), 1, lm.Options{}), 0
		stop, cancel := context.WithCancel(ctx)
		_, err := resumable(stop, m, dir, metric, false, Events{Tensor: func(Tensor) {
			n++
			if n == 17 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}

		partial := filepath.Join(dir, ".out.partial", "model.safetensors.partial")
		f, err := safetensors.Open(partial)
		if err != nil {
			t.Fatal(err)
		}

		info, _ := f.Info("model.layers.0.self_attn.q_proj.weight")
		f.Close()
		w, err := os.OpenFile(partial, os.O_WRONLY, 0)
		if err == nil {
			_, err = w.WriteAt(make([]byte, 64), info.Offset)
			err = errors.Join(err, w.Close())
		}
		if err != nil {
			t.Fatal(err)
		}

		r, err := resumable(ctx, load(t, filepath.Join(dir, "in"), 1, lm.Options{}), dir, metric, true, Events{})
		if err != nil {
			t.Fatal(err)
		}

		if r.Total.Restored == 0 || r.Total.Restored > 13 {
			t.Errorf("%s: %d matrices restored", metric, r.Total.Restored)
		}
		if !maps.Equal(contents(t, filepath.Join(whole, "out")), contents(t, filepath.Join(dir, "out"))) {
			t.Errorf("%s: the output differs from that of an uninterrupted run", metric)
		}
	}
}

// A finished output in which a pruned weight is no longer zero, or whose record is cut, is not taken for complete. What
// has happened to weights that stayed is not seen: a finished folder has no checksums of them.
func TestResumeOfDamagedOutput(t *testing.T) {
	for _, c := range []struct {
		file   string
		damage func(m *lm.Model, path string) error
		want   string
	}{
		{"model.safetensors", func(m *lm.Model, path string) error {
			return setBytes(path, m.Linears(1)[0].Name, 0x3f)
		}, `tensor "model.layers.1.self_attn.q_proj.weight": finished weights are not as they were written: it has`},
		{ManifestFile, func(_ *lm.Model, path string) error { return os.Truncate(path, 40) }, ManifestFile},
	} {
		dir := t.TempDir()
		m := load(t, llama(2).write(t, filepath.Join(dir, "in"), nil), 1, lm.Options{})
		if _, err := resumable(ctx, m, dir, "magnitude", false, Events{}); err != nil {
			t.Fatal(err)
		}
		if _, err := resumable(ctx, m, dir, "magnitude", true, Events{}); err != nil {
			t.Errorf("an output as it was: %v", err)
		}

		if err := c.damage(m, filepath.Join(dir, "out", c.file)); err != nil {
			t.Fatal(err)
		}
		if _, err := resumable(ctx, m, dir, "magnitude", true, Events{}); !errors.Is(err, ErrDamaged) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.file, err, c.want)
		}
	}
}

// setBytes sets all bytes of a tensor in a file.
func setBytes(path, name string, b byte) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}

	info, _ := f.Info(name)
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return errors.Join(err, f.Close())
	}

	_, err = w.WriteAt(bytes.Repeat([]byte{b}, int(info.Size)), info.Offset)
	return errors.Join(err, w.Close(), f.Close())
}
