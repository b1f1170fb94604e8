package lora

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/distil"
	"github.com/modelcompress/compress/safetensors"
)

// learning are settings of every kind of training.
var learning = map[string]Options{
	"lora":    {Kind: "lora", Rank: 3},
	"mos":     {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2},
	"vera":    {Kind: "vera", Rank: 6},
	"prolora": {Kind: "prolora", Rank: 5, Unshared: 2, InParts: 3, OutParts: 2},
	"rasa":    {Kind: "rasa", Rank: 3},
	"share":   {Kind: "share", Rank: 3},
	"whole":   {Kind: "lora", Rank: 3, Whole: []string{"lm_head"}, KeepZeros: true},
	"full":    {Kind: "full", LR: 1e-3},
	"clipped": {Kind: "full", LR: 1e-3, Clip: 1, Optimizer: "adalomo"},
}

// taught trains in steps over all data, and gives the values that come out and the losses.
func taught(t *testing.T, m *lm.Model, data corpus.Windows, o Options) ([]byte, []float64) {
	t.Helper()
	values := &bytes.Buffer{}
	var report *Report
	if o.Kind == "full" {
		var err error
		if report, err = Tune(t.Context(), m, data, o); err != nil {
			t.Fatal(err)
		}
		for _, name := range m.Tensors() {
			v, err := m.Param(name)
			if err != nil {
				t.Fatal(err)
			}
			values.Write(v.Buf.Bytes())
		}
	} else {
		a, err := Train(t.Context(), m, data, o)
		if err != nil {
			t.Fatal(err)
		}
		report = a.Report()
		for _, p := range a.inner.Params() {
			values.Write(p.Value.Buf.Bytes())
		}
	}

	var losses []float64
	for _, s := range report.Steps {
		losses = append(losses, s.Loss)
	}
	return values.Bytes(), losses
}

// masked is data of which some tokens do not count.
func masked(vocab int) corpus.Windows {
	data := sequences(vocab, 6, 20)
	for i, row := range data.IDs {
		labels := append([]int32(nil), row...)
		for t := range labels[:min(i, len(labels))] {
			labels[t] = corpus.Ignore
		}
		data.Labels = append(data.Labels, labels)
	}
	return data
}

// TestDistil: trainings of every kind come nearer to a teacher. The first loss is the divergence that
// [lm.Model.DivergenceFrom] measures, micro-batches change it by roundings alone, and so does a teacher from a file;
// that of the likeliest tokens and the rest is less; the teacher learns nothing from itself.
func TestDistil(t *testing.T) {
	pruned := halved(t, safetensors.F32)
	dense := openModel(t, little, "cpu", lm.Options{})
	data := masked(dense.Config().Vocab)
	far, err := openModel(t, pruned, "cpu", lm.Options{}).DivergenceFrom(t.Context(), dense, data, nil)
	if err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "teacher.safetensors")
	all := dense.Config().Vocab
	if err := WriteTeacher(t.Context(), dense, dense, data, file, TeacherOptions{Top: all}); err != nil {
		t.Fatal(err)
	}
	written, err := OpenTeacher(file)
	if err != nil {
		t.Fatal(err)
	}
	defer written.Close()

	near := func(what string, got, want, tolerance float64) {
		t.Helper()
		if math.Abs(got-want) > tolerance*want {
			t.Errorf("%s: loss %.8g, want %.8g", what, got, want)
		}
	}

	for name, o := range learning {
		t.Run(name, func(t *testing.T) {
			o.Steps, o.Batch, o.LR = 6, 6, or(o.LR, 0.02)
			run := func(d Distil, change func(o *Options)) []float64 {
				o := o
				o.Distil = &d
				change(&o)
				_, losses := taught(t, openModel(t, pruned, "cpu", lm.Options{}), data, o)
				return losses
			}
			once := func(o *Options) { o.Steps = 1 }

			whole := run(Distil{Teacher: NewTeacher(dense), Top: -1}, func(*Options) {})
			near("all tokens", whole[0], far.KL, 1e-6)
			if !(whole[5] < 0.95*whole[0]) {
				t.Errorf("losses %v", whole)
			}

			if o.Optimizer == "" { // the others have no micro-batches
				micro := func(o *Options) { o.Steps, o.MicroBatch = 1, 2 }
				parts := run(Distil{Teacher: NewTeacher(dense), Top: -1}, micro)
				near("micro-batches", parts[0], far.KL, 1e-6)
			}
			near("file", run(Distil{Teacher: written}, once)[0], far.KL, 2e-3)

			few := run(Distil{Teacher: NewTeacher(dense), Top: 3}, once)
			if !(few[0] > 0 && few[0] < far.KL) {
				t.Errorf("three tokens and the rest diverge by %g, all by %g", few[0], far.KL)
			}

			mixed := run(Distil{Teacher: NewTeacher(dense), Top: -1, CE: 0.5}, once)
			loss, _ := far.Losses.Mean()
			near("with cross-entropy", mixed[0], far.KL+0.5*loss, 1e-6)

			o.Steps = 1
			o.Distil = &Distil{Teacher: NewTeacher(dense)}
			if _, losses := taught(t, openModel(t, little, "cpu", lm.Options{}), data, o); losses[0] > 1e-12 {
				t.Errorf("the teacher learns from itself with a loss of %g", losses[0])
			}
		})
	}
}

// TestTeacherFile: the file of a teacher has the same bytes however many threads wrote it and wherever it was
// interrupted, 6·top + 4 bytes a token, and trainings from it the same for any number of threads. It is refused for
// other data, labels or settings, where a byte of it was changed, and where it is there already.
func TestTeacherFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	open := func(path string, threads int, o lm.Options) *lm.Model {
		dev := device.Complete(cpu.New(cpu.Options{Threads: threads}))
		m, err := lm.Load(t.Context(), path, dev, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close(); dev.Close() })
		return m
	}

	one := open(little, 1, lm.Options{})
	data := sequences(one.Config().Vocab, 120, 100)
	write := func(ctx context.Context, m *lm.Model, path string, o TeacherOptions) ([]byte, error) {
		o.Top = 16
		if err := WriteTeacher(ctx, m, m, data, path, o); err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}

	want, err := write(t.Context(), one, at("one"), TeacherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, row := range data.IDs {
		rows += len(row) - 1
	}
	if size := float64(len(want)) / float64(rows); size < 100 || size > 101 {
		t.Errorf("%g bytes a token", size)
	}

	streamed := open(little, 3, lm.Options{Stream: true})
	got, err := write(t.Context(), streamed, at("three"), TeacherOptions{})
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("with three threads, streamed: other bytes (%v)", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	interrupt := TeacherOptions{Progress: func(int64, int64) { cancel() }}
	if _, err := write(ctx, one, at("resumed"), interrupt); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	err = WriteTeacher(t.Context(), one, one, data, at("resumed"), TeacherOptions{Top: 8})
	if !errors.Is(err, ErrTeacher) {
		t.Errorf("going on with other settings: %v", err)
	}
	if journal, err := os.ReadFile(at(".resumed.journal")); err != nil || bytes.Count(journal, []byte("\n")) != 2 {
		t.Errorf("interrupted after a part, the journal is %q (%v)", journal, err)
	}
	if got, err = write(t.Context(), one, at("resumed"), TeacherOptions{}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("interrupted and resumed: other bytes (%v)", err)
	}
	if _, err := write(t.Context(), one, at("one"), TeacherOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("in the place of a finished file: %v", err)
	}

	student := halved(t, safetensors.F32)
	train := func(threads int, d *Distil, data corpus.Windows) ([]byte, error) {
		a, err := Train(t.Context(), open(student, threads, lm.Options{}), data,
			Options{Kind: "lora", Rank: 2, Steps: 3, KeepZeros: true, Distil: d})
		if err != nil {
			return nil, err
		}
		values := &bytes.Buffer{}
		for _, p := range a.inner.Params() {
			values.Write(p.Value.Buf.Bytes())
		}
		return values.Bytes(), nil
	}

	teacher, err := OpenTeacher(at("one"))
	if err != nil {
		t.Fatal(err)
	}
	defer teacher.Close()
	a, err := train(1, &Distil{Teacher: teacher}, data)
	b, other := train(3, &Distil{Teacher: teacher}, data)
	if err != nil || other != nil || !bytes.Equal(a, b) {
		t.Errorf("one thread and three train other values (%v, %v)", err, other)
	}

	fewer := data
	fewer.Labels = append([][]int32(nil), data.IDs...)
	fewer.Labels[3] = append([]int32{corpus.Ignore, corpus.Ignore}, data.IDs[3][2:]...)
	for _, c := range []struct {
		d    Distil
		data corpus.Windows
		says string
	}{
		{Distil{Teacher: teacher}, sequences(50, 3, 9), "it is of other data"},
		{Distil{Teacher: teacher}, fewer, "of the same sequences with other labels"},
		{Distil{Teacher: teacher, Temperature: 2}, data, "was made at temperature 1, asked for is 2"},
		{Distil{Teacher: teacher, Top: 4}, data, "likeliest 16 tokens of each row, asked for are 4"},
		{Distil{Teacher: teacher, Top: -1}, data, "all tokens"},
	} {
		if _, err := train(1, &c.d, c.data); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.says, err)
		}
	}

	bad := bytes.Clone(want)
	bad[len(bad)/2] ^= 1
	if err := os.WriteFile(at("bad"), bad, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = OpenTeacher(at("bad"))
	if !errors.Is(err, distil.ErrDamaged) || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("a changed byte: %v", err)
	}
}

// TestTeacherResume: an interrupted training with a teacher goes on to the same bytes.
func TestTeacherResume(t *testing.T) {
	dense, pruned := openModel(t, little, "cpu", lm.Options{}), halved(t, safetensors.BF16)
	data := sequences(dense.Config().Vocab, 8, 12)
	for _, kind := range []string{"lora", "full"} {
		o := Options{
			Kind: kind, Steps: 6, Batch: 3, KeepZeros: true, SaveEvery: 2, LR: 1e-3,
			Distil: &Distil{Teacher: NewTeacher(dense), Temperature: 2},
		}
		want, _ := taught(t, openModel(t, pruned, "cpu", lm.Options{}), data, o)

		o.StateDir = filepath.Join(t.TempDir(), "state")
		ctx, cancel := context.WithCancel(t.Context())
		o.Each = func(s Step) {
			if s.Step == 3 {
				cancel()
			}
		}
		trained(t, ctx, openModel(t, pruned, "cpu", lm.Options{}), data, o, true)

		o.Each, o.Resume = nil, true
		if got, _ := taught(t, openModel(t, pruned, "cpu", lm.Options{}), data, o); !bytes.Equal(got, want) {
			t.Errorf("%s: resumed, other bytes", kind)
		}
	}
}

// TestTeacherRefused: settings that mean nothing, and teachers that cannot teach the student.
func TestTeacherRefused(t *testing.T) {
	m := openModel(t, nano, "cpu", lm.Options{})
	data := sequences(m.Config().Vocab, 2, 8)

	// The same tokenizer but for one token.
	other := filepath.Join(t.TempDir(), "other")
	if err := os.CopyFS(other, os.DirFS(nano)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(other, "tokenizer.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(text, []byte(`"!"`), []byte(`"☃"`), 1)
	if bytes.Equal(changed, text) {
		t.Fatal("no such token")
	}
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	stranger := openModel(t, other, "cpu", lm.Options{})

	nan := math.NaN()
	for _, c := range []struct {
		d    Distil
		says string
	}{
		{Distil{}, "needs a teacher"},
		{Distil{Teacher: NewTeacher(m), Temperature: -1}, "temperature -1"},
		{Distil{Teacher: NewTeacher(m), Temperature: nan}, "temperature NaN"},
		{Distil{Teacher: NewTeacher(m), Top: -2}, "likeliest -2"},
		{Distil{Teacher: NewTeacher(m), CE: -0.5}, "weight -0.5"},
		{Distil{Teacher: NewTeacher(stranger)}, `1 of 768 ids are other tokens, such as`},
		{Distil{Teacher: NewTeacher(openModel(t, little, "cpu", lm.Options{}))}, "tokens here and"},
	} {
		_, err := Train(t.Context(), m, data, Options{Kind: "lora", Rank: 2, Steps: 1, Distil: &c.d})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v", c.says, err)
		}
	}
}
