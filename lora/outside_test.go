package lora

import (
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// inType writes a model with numbers of another type.
func inType(t *testing.T, from string, d safetensors.DType) string {
	t.Helper()
	m := openModel(t, from, "cpu", lm.Options{})
	dir := filepath.Join(t.TempDir(), d.String())
	s, err := m.NewSaver(dir, lm.SaveOptions{DType: d})
	if err != nil {
		t.Fatal(err)
	}

	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}

	return dir
}

// TestSmallChangeOfTable: on a base of BF16 a token table or head that is changed by less than BF16 tells apart
// changes what the model computes, in training and attached, as much as on the same base stored as F32. The
// tolerance of 10⁻⁵ is that of other kernels for the base's matrices; the changes move logits by more than
// 10⁻³, and rounded ones were off by half of that.
func TestSmallChangeOfTable(t *testing.T) {
	narrow := inType(t, tiedBase, safetensors.BF16)
	wide := inType(t, narrow, safetensors.F32)
	for name, c := range tiedKinds {
		t.Run(name, func(t *testing.T) {
			m, w := openModel(t, narrow, "cpu", lm.Options{}), openModel(t, wide, "cpu", lm.Options{})
			data := sequences(m.Config().Vocab, 4, 10)
			o := c.o
			o.Kind = "lora"
			o.Rank = 2
			o.Steps = 4

			o.Batch = 4
			o.LR = 2e-5
			o.Seed = 3
			a, err := Train(t.Context(), m, data, o)
			if err != nil {
				t.Fatal(err)
			}

			b, err := Train(t.Context(), w, data, o)
			if err != nil {
				t.Fatal(err)
			}

			for i, s := range a.Report().Steps {
				if gap := s.Loss - b.Report().Steps[i].Loss; gap > 1e-6 || gap < -1e-6 {
					t.Errorf("step %d: the loss is off by %g", i, gap)
				}
			}

			plain := logitsOf(t, w, data.IDs)
			var got, want []float32
			attached(t, m, a, func(_ string, m *lm.Model) { got = logitsOf(t, m, data.IDs) })
			attached(t, w, a, func(_ string, w *lm.Model) { want = logitsOf(t, w, data.IDs) })

			moved, _ := farthest(plain, want)
			gap, _ := farthest(got, want)
			t.Logf("moved %g, off by %g", moved, gap)
			if gap > 1e-5 {
				t.Errorf("logits, moved by up to %g, are off by %g", moved, gap)
			}
		})
	}
}
