package structure

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
)

const nano = "../../testdata/nano"

// open loads the nano model and takes a few sequences of its text.
func open(t *testing.T, threads int) (*lm.Model, corpus.Windows) {
	t.Helper()
	dev, err := device.Open("cpu", device.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	m, err := lm.Load(t.Context(), nano+"/base", dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })

	w, err := m.Cut(t.Context(), nano+"/text/calib.txt", corpus.CutOptions{SeqLen: 64, Limit: 5})
	if err != nil {
		t.Fatal(err)
	}
	return m, w
}

func choose(t *testing.T, m *lm.Model, w corpus.Windows, o Options) *Depth {
	t.Helper()
	p, err := Choose(t.Context(), m, w, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Depth.Kept)+len(p.Depth.Dropped) != m.Blocks() || !slices.IsSorted(p.Depth.Kept) {
		t.Fatalf("%v stay and %v go", p.Depth.Kept, p.Depth.Dropped)
	}
	return p.Depth
}

// smaller writes what stays of a model and opens it.
func smaller(t *testing.T, m *lm.Model, layers []int) *lm.Model {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	s, err := m.NewSaver(out, lm.SaveOptions{Cut: &arch.Cut{Layers: layers}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	small, err := lm.Load(t.Context(), out, m.Device(), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { small.Close() })
	return small
}

// streams gives the hidden states of one sequence: before each layer, and behind the last.
func streams(t *testing.T, m *lm.Model, ids []int32) []kernels.Mat {
	t.Helper()
	r, err := m.Forward(t.Context(), [][]int32{ids}, lm.ForwardOptions{Hidden: true})
	if err != nil {
		t.Fatal(err)
	}
	return r.Hidden
}

// angle is that between two rows, over π.
func angle(a, b []float32) float64 {
	var dot, aa, bb float64
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return math.Acos(dot/math.Sqrt(aa)/math.Sqrt(bb)) / math.Pi
}

func TestInfluence(t *testing.T) {
	m, w := open(t, 2)
	d := choose(t, m, w, Options{Layers: Share{Keep: 2}, By: Influence})
	want := make([]float64, m.Blocks())
	for _, ids := range w.IDs {
		h := streams(t, m, ids)
		for l := range want {
			for i := range ids {
				want[l] += 1 - math.Cos(math.Pi*angle(h[l].RowF32(i), h[l+1].RowF32(i)))
			}
		}
	}
	for l := range want {
		want[l] /= float64(len(w.IDs) * len(w.IDs[0]))
		if math.Abs(want[l]-d.Scores[l]) > 1e-9 {
			t.Errorf("layer %d: %g, want %g", l, d.Scores[l], want[l])
		}
	}
	for _, gone := range d.Dropped {
		for _, stays := range d.Kept {
			if d.Scores[gone] > d.Scores[stays] {
				t.Errorf("layer %d goes, %d stays: scores %v", gone, stays, d.Scores)
			}
		}
	}
}

func TestAngular(t *testing.T) {
	m, w := open(t, 2)
	d := choose(t, m, w, Options{Layers: Share{Drop: 0.5}, By: Angular})
	n := len(d.Dropped)
	want := make([]float64, m.Blocks()-n+1)
	for _, ids := range w.IDs {
		h := streams(t, m, ids)
		for l := range want {
			want[l] += angle(h[l].RowF32(len(ids)-1), h[l+n].RowF32(len(ids)-1)) / float64(len(w.IDs))
		}
	}

	least := 0
	for l := range want {
		if math.Abs(want[l]-d.Scores[l]) > 1e-7 {
			t.Errorf("from layer %d: %g, want %g", l, d.Scores[l], want[l])
		}
		if want[l] < want[least] {
			least = l
		}
	}
	if n != 2 || d.Dropped[0] != least || d.Dropped[1] != least+1 {
		t.Errorf("%v go, want two from %d", d.Dropped, least)
	}
}

// The loss changes by Σ w·g for a small relative change of all weights of a layer; the score is the sum of magnitudes.
func TestTaylor(t *testing.T) {
	m, w := open(t, 2)
	d := choose(t, m, w, Options{Layers: Share{Keep: 3}, By: Taylor})
	want := make([]float64, m.Blocks())
	for _, ids := range w.IDs {
		hooks := &lm.Hooks{WeightGrad: func(name string, g kernels.Mat) error {
			for l := range want {
				for _, p := range m.Params(l) {
					if p.Name != name {
						continue
					}
					x, err := m.MutableParam(name)
					if err != nil {
						return err
					}
					for i := range x.Rows {
						for k, v := range g.RowF32(i) {
							bits := uint32(x.Buf.U16()[i*x.Cols+k]) << 16 // of a BF16
							want[l] += math.Abs(float64(math.Float32frombits(bits))*float64(v)) / float64(len(w.IDs))
						}
					}
				}
			}
			return nil
		}}
		if _, err := m.Backward(t.Context(), [][]int32{ids}, lm.BackwardOptions{Hooks: hooks}); err != nil {
			t.Fatal(err)
		}
	}
	for l := range want {
		if math.Abs(want[l]-d.Scores[l]) > 1e-6*want[l] {
			t.Errorf("layer %d: %g, want %g", l, d.Scores[l], want[l])
		}
	}
}

// Every loss of greedy is that of the model that is written without the layers, and none other would have been lower.
func TestGreedy(t *testing.T) {
	m, w := open(t, 2)
	d := choose(t, m, w, Options{Layers: Share{Keep: 2}})
	stay := upTo(m.Blocks())
	for round, gone := range d.Dropped {
		for i, l := range stay {
			losses, err := smaller(t, m, slices.Delete(slices.Clone(stay), i, i+1)).SequenceLosses(t.Context(), w, nil)
			if err != nil {
				t.Fatal(err)
			}
			mean, _ := losses.Mean()
			if l == gone && mean != d.Loss[round] || mean < d.Loss[round] {
				t.Errorf("without layer %d the loss is %g; %d went with %g", l, mean, gone, d.Loss[round])
			}
		}
		stay = slices.DeleteFunc(stay, func(l int) bool { return l == gone })
	}
}

// The search's figures are the divergences of the models that are written.
func TestSearch(t *testing.T) {
	m, w := open(t, 2)
	first := choose(t, m, w, Options{Layers: Share{Keep: 2}})
	d := choose(t, m, w, Options{Layers: Share{Keep: 2}, By: Search, Generations: 4, Offspring: 4, Seed: 3})
	for i, layers := range [][]int{first.Kept, d.Kept} {
		found, err := smaller(t, m, layers).DivergenceFrom(t.Context(), m, w, nil)
		if err != nil {
			t.Fatal(err)
		}
		if found.KL != d.KL[i] {
			t.Errorf("layers %v: divergence %g, the search says %g", layers, found.KL, d.KL[i])
		}
	}
	if d.KL[1] > d.KL[0] {
		t.Errorf("the search made it worse: %v", d.KL)
	}
}

// The number of threads, batches and an interruption have no part in what is chosen.
func TestChoiceIsReproducible(t *testing.T) {
	for _, way := range Ways() {
		t.Run(way, func(t *testing.T) {
			o := Options{Layers: Share{Keep: 2}, By: way, Seed: 5}
			if way == Search {
				o.Generations, o.Offspring = 3, 4
			}
			one, w := open(t, 1)
			known := map[string]float64{}
			o.Note = func(key string, v float64) error { known[key] = v; return nil }
			last := int64(-1)
			total := int64(0)
			o.Progress = func(_ string, done, of int64) {
				if done < last || done > of {
					t.Errorf("progress %d of %d behind %d", done, of, last)
				}
				last, total = done, of
			}
			want := choose(t, one, w, o)
			if last != total {
				t.Errorf("progress ends at %d of %d", last, total)
			}

			two, _ := open(t, 2)
			half := 0
			o.Progress = nil
			o.Known = func(key string) (float64, bool) {
				half++
				v, ok := known[key]
				return v, ok && half%2 == 0
			}
			got := choose(t, two, w, o)
			if !slices.Equal(got.Dropped, want.Dropped) || !slices.Equal(got.Scores, want.Scores) ||
				!slices.Equal(got.Loss, want.Loss) || !slices.Equal(got.KL, want.KL) {
				t.Errorf("%+v with two threads, half of it known; %+v before", got, want)
			}
		})
	}
}

// What is known is not measured again.
func TestKnown(t *testing.T) {
	m, w := open(t, 2)
	known := map[string]float64{}
	o := Options{Layers: Share{Keep: 1}, Note: func(key string, v float64) error { known[key] = v; return nil }}
	want := choose(t, m, w, o)
	o.Known = func(key string) (float64, bool) { v, ok := known[key]; return v, ok }
	o.Note = func(key string, _ float64) error { return errors.New("measured again: " + key) }
	if got := choose(t, m, w, o); !slices.Equal(got.Dropped, want.Dropped) {
		t.Errorf("%v go, %v before", got.Dropped, want.Dropped)
	}
}

func TestShare(t *testing.T) {
	for text, want := range map[string]int{"24": 24, "25%": 22, "1": 1, "0.5%": 30, "99%": 0, "50%": 15, "31": 31} {
		s, err := ParseShare(text)
		if err != nil || s.Of(30) != want {
			t.Errorf("%s: %d of 30 stay (%v), want %d", text, s.Of(30), err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "0%", "100%", "x", "25 %", "NaN%", "1e3", "2.5", "Inf%"} {
		if s, err := ParseShare(text); !errors.Is(err, ErrOptions) {
			t.Errorf("%q: %v, error %v", text, s, err)
		}
	}
}

func TestRefused(t *testing.T) {
	m, w := open(t, 2)
	tests := map[string]struct {
		o    Options
		none bool
		want string
	}{
		"nothing":    {Options{}, false, "nothing is to go"},
		"all stay":   {Options{Layers: Share{Keep: 4}}, false, "all 4 layers stay"},
		"more":       {Options{Layers: Share{Keep: 5}}, false, "5 layers are to stay, the model has 4"},
		"none stays": {Options{Layers: Share{Drop: 0.99}}, false, "none of 4 layers stays"},
		"way":        {Options{Layers: Share{Keep: 2}, By: "magic"}, false, `"magic" chooses no layers`},
		"no text":    {Options{Layers: Share{Keep: 2}}, true, "no calibration text"},
		"rounds":     {Options{Layers: Share{Keep: 2}, Generations: 3}, false, "belong to search"},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			text := w
			if x.none {
				text = corpus.Windows{}
			}
			if _, err := Choose(t.Context(), m, text, x.o); !errors.Is(err, ErrOptions) ||
				!strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want %q", err, x.want)
			}
		})
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Choose(ctx, m, w, Options{Layers: Share{Keep: 2}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
