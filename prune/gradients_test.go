package prune

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// A file of gradients says which model and data it is from. Another model of the same shapes, also the same one
// in another type, is refused; other data, a file that says nothing, and tensors that nobody asked for, are
// remarked on.
func TestGradientsOfAnotherModel(t *testing.T) {
	tmp := t.TempDir()
	dir := llama(2).write(t, filepath.Join(tmp, "m"), nil)
	keep := filepath.Join(tmp, "g.safetensors")
	calib := windows(3, 9, 61)
	run := func(dir string, calib []int, metric Metric, g GradientOptions) (*Report, error) {
		o := Options{Metric: metric, Sparsity: .5, Gradients: g}
		return Model(ctx, load(t, dir, 2, lm.Options{}), windows(calib[0], calib[1], 61), o)
	}

	if _, err := run(dir, []int{3, 9}, PrunerZero(), GradientOptions{Keep: keep}); err != nil {
		t.Fatal(err)
	}

	changed := llama(2).write(t, filepath.Join(tmp, "changed"), func(_ string, v []float32) { v[0]++ })
	twin := filepath.Join(tmp, "twin")
	s, err := load(t, dir, 1, lm.Options{}).NewSaver(twin, lm.SaveOptions{DType: safetensors.F32})
	if err == nil {
		err = s.Finish(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}

	own, _ := load(t, dir, 1, lm.Options{}).Fingerprint(ctx)
	for _, other := range []string{changed, twin} {
		theirs, _ := load(t, other, 1, lm.Options{}).Fingerprint(ctx)
		_, err := run(other, []int{3, 9}, PrunerZero(), GradientOptions{File: keep})
		if !errors.Is(err, ErrGradients) || !strings.Contains(err.Error(), own) ||
			!strings.Contains(err.Error(), theirs) {
			t.Errorf("%s: %v", other, err)
		}

		o := Options{Metric: PrunerZero(), Sparsity: .5, Gradients: GradientOptions{File: keep}}
		if err := Check(ctx, load(t, other, 1, lm.Options{}), calib, o); !errors.Is(err, ErrGradients) {
			t.Errorf("%s: check before the work: %v", other, err)
		}

		o.Gradients = GradientOptions{Keep: keep}
		if err := Check(ctx, load(t, other, 1, lm.Options{}), calib, o); !errors.Is(err, ErrGradients) {
			t.Errorf("%s: check of a file to keep: %v", other, err)
		}
	}

	other := windows(2, 9, 61)
	mixed, err := run(dir, []int{2, 9}, GBLM(), GradientOptions{File: keep})
	if err != nil || len(mixed.Notes) != 1 || !strings.Contains(mixed.Notes[0], calib.Hash) ||
		!strings.Contains(mixed.Notes[0], other.Hash) {
		t.Errorf("other calibration data: %v, %v", mixed, err)
	}

	if r, err := run(dir, []int{3, 9}, GBLM(), GradientOptions{File: keep}); err != nil || len(r.Notes) != 0 {
		t.Errorf("its own: %v, %v", r, err)
	}

	bare := filepath.Join(tmp, "bare.safetensors")
	rewriteGradients(t, keep, bare, "model.layers.9.mlp.up_proj.G")
	r, err := run(dir, []int{3, 9}, PrunerZero(), GradientOptions{File: bare})
	if err != nil {
		t.Fatal(err)
	}

	notes := strings.Join(r.Notes, "\n")
	if !strings.Contains(notes, "does not say from which model") ||
		!strings.Contains(notes,
			`1 tensors are the gradients of no matrix of the model and were not used; the first is "model.layers.9.mlp.up_proj.G"`) {
		t.Errorf("notes %q", r.Notes)
	}
}

// rewriteGradients copies a file without its metadata and with one more tensor.
func rewriteGradients(t *testing.T, from, to, extra string) {
	t.Helper()
	f, err := safetensors.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	one := safetensors.Info{Name: extra, DType: safetensors.F32, Shape: []int64{1, 1}}
	infos := []safetensors.Info{one}
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		infos = append(infos, safetensors.Info{Name: name, DType: info.DType, Shape: info.Shape})
	}

	w, err := safetensors.Create(to, infos, nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	err = w.WriteTensor(extra, make([]byte, 4))
	for _, name := range f.Names() {
		data, readErr := f.Bytes(name)
		err = errors.Join(err, readErr, w.WriteTensor(name, data))
	}

	if err = errors.Join(err, w.Finish()); err != nil {
		t.Fatal(err)
	}
}

// Windows of one token have no loss, hence no gradients: nothing could be ranked by them.
func TestNoGradientsAtAll(t *testing.T) {
	dir := llama(2).write(t, filepath.Join(t.TempDir(), "m"), nil)
	keep := filepath.Join(t.TempDir(), "g.safetensors")
	for _, g := range []GradientOptions{{}, {Keep: keep}} {
		for _, metric := range []Metric{PrunerZero(), GBLM()} {
			o := Options{Metric: metric, Sparsity: .5, Gradients: g}
			if _, err := Model(ctx, load(t, dir, 2, lm.Options{}), windows(3, 1, 61), o); err == nil {
				t.Errorf("%s, %+v: no error", metric.Name, g)
			} else {
				t.Log(err)
			}
		}
	}
}

// TestHalfGradients: gradients kept in F16 choose the same weights as those kept in F32, in half of the space,
// whether the sequences go backward together or one by one; what lies beside the file meanwhile is gone, and
// steps count up to the number announced.
func TestHalfGradients(t *testing.T) {
	tmp := t.TempDir()
	dir := llama(2).write(t, filepath.Join(tmp, "m"), nil)
	run := func(g GradientOptions) string {
		t.Helper()
		m := load(t, dir, 2, lm.Options{})
		last := -1
		of := 0
		o := Options{Metric: PrunerZero(), Sparsity: .5, Gradients: g}
		o.Events.Step = func(s Step) {
			if s.Stage != Gradient {
				return
			}
			if s.Done <= last || s.Done >= s.Of {
				t.Errorf("step %d after %d of %d", s.Done, last, s.Of)
			}
			last, of = s.Done, s.Of
		}

		if _, err := Model(ctx, m, windows(3, 9, 61), o); err != nil {
			t.Fatal(err)
		}
		if of != 3*2*5 { // sequences, blocks, a pass forward and one back
			t.Errorf("%d steps", of)
		}

		text := ""
		for l := range m.Blocks() {
			for _, lin := range m.Linears(l) {
				w, err := m.Param(lin.Name)
				if err != nil {
					t.Fatal(err)
				}
				text += string(w.Buf.Bytes())
			}
		}

		return text
	}

	size := func(path string) int64 {
		t.Helper()
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()

		sum := int64(0)
		for _, name := range f.Names() {
			info, _ := f.Info(name)
			sum += info.Size
		}

		return sum
	}

	full := filepath.Join(tmp, "full")
	half := filepath.Join(tmp, "half")
	parts := filepath.Join(tmp, "parts")
	want := run(GradientOptions{Keep: full})
	if run(GradientOptions{Keep: half, Half: true}) != want ||
		run(GradientOptions{Keep: parts, Half: true, Memory: 1}) != want {
		t.Error("other weights go")
	}

	if size(half)*2 != size(full) || size(parts) != size(half) {
		t.Errorf("%d and %d bytes, in F32 %d", size(half), size(parts), size(full))
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "*.squares")); err != nil || len(left) > 0 {
		t.Error(left, err)
	}

	if err := (Options{
		Metric:    PrunerZero(),
		Gradients: GradientOptions{Half: true, Exact: true},
	}).Validate(); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}
}
