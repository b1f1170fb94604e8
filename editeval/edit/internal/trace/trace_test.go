package trace

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
)

// prompt is a few tokens, of which the second and third are the subject.
var prompt = []int32{5, 6, 7, 8, 9}

func nano(t *testing.T) *lm.Model {
	t.Helper()
	m, err := lm.Load(context.Background(), "../../../../testdata/nano/base", cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// same is what restoring a float32 state leaves of the probabilities that it decides: nothing but the order of sums.
const same = 1e-6

// TestRestored: the state after the last layer at the last token decides the answer, so that restoring it gives the
// clean probability; what does not reach the last token, or comes before the subject, changes nothing.
func TestRestored(t *testing.T) {
	m := nano(t)
	r, err := Run(t.Context(), m, prompt, 1, 3, -1, Options{Samples: 3, Noise: 3, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}

	last, layers := len(prompt)-1, m.Blocks()
	if len(r.Hidden) != len(prompt) || len(r.Hidden[0]) != layers || len(r.MLP) != len(prompt) ||
		len(r.Attention[last]) != layers || r.Window != layers/2 {
		t.Fatalf("%d × %d, window %d", len(r.Hidden), len(r.Hidden[0]), r.Window)
	}
	if got := r.Hidden[last][layers-1]; math.Abs(got-r.Clean) > same {
		t.Errorf("the last state restored: %g, clean %g", got, r.Clean)
	}

	for i := range last {
		if got := r.Hidden[i][layers-1]; math.Abs(got-r.Corrupted) > same {
			t.Errorf("token %d, last layer: %g, with noise %g", i, got, r.Corrupted)
		}
	}
	for _, grid := range [][][]float64{r.Hidden, r.MLP, r.Attention} {
		for b, got := range grid[0] { // before the subject nothing is disturbed
			if math.Abs(got-r.Corrupted) > same {
				t.Errorf("token 0, layer %d: %g, with noise %g", b, got, r.Corrupted)
			}
		}
		for _, row := range grid {
			for _, p := range row {
				if !(p >= 0 && p <= 1) {
					t.Fatalf("a probability of %g", p)
				}
			}
		}
	}

	if r.Clean == r.Corrupted || r.Sigma <= 0 {
		t.Errorf("noise of %g changes nothing: %g", r.Sigma, r.Clean)
	}
}

// TestNoise: the same seed gives the same noise, another one other, and without noise nothing is lost.
func TestNoise(t *testing.T) {
	m := nano(t)
	run := func(o Options) *Result {
		t.Helper()
		r, err := Run(t.Context(), m, prompt, 1, 3, 40, o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	one, again := run(Options{Samples: 2, Noise: 3, Seed: 1}), run(Options{Samples: 2, Noise: 3, Seed: 1})
	if !reflect.DeepEqual(one, again) {
		t.Error("the same seed, other figures")
	}
	if other := run(Options{Samples: 2, Noise: 3, Seed: 2}); other.Corrupted == one.Corrupted {
		t.Error("another seed, the same noise")
	}
	if one.Answer != 40 {
		t.Errorf("answer %d", one.Answer)
	}

	none := run(Options{Samples: 1, Draws: linalg.New(2, m.Config().Hidden)})
	if math.Abs(none.Corrupted-none.Clean) > same {
		t.Errorf("noise of nothing: %g, clean %g", none.Corrupted, none.Clean)
	}
}

// TestWrongOptions: a subject outside of the prompt, and options out of range, are refused before anything runs.
func TestWrongOptions(t *testing.T) {
	m := nano(t)
	for _, at := range [][2]int{{-1, 2}, {2, 2}, {3, 2}, {0, len(prompt) + 1}} {
		if _, err := Run(t.Context(), m, prompt, at[0], at[1], -1, Options{}); !errors.Is(err, site.ErrSubject) {
			t.Errorf("tokens %v: %v", at, err)
		}
	}
	for _, o := range []Options{{Samples: -1}, {Samples: 10_001}, {Window: -1}, {Noise: -1}, {Noise: math.NaN()}} {
		if _, err := Run(t.Context(), m, prompt, 1, 3, -1, o); !errors.Is(err, site.ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
