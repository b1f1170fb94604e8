package structure

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// mixtures calls f with a small model of every family that has experts.
func mixtures(t *testing.T, f func(t *testing.T, m *lm.Model)) {
	root := filepath.Join("..", "..", "lm", "testdata", "families")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	seen := 0
	for _, e := range entries {
		dev, err := device.Open("cpu", device.Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		m, err := lm.Load(t.Context(), filepath.Join(root, e.Name()), dev, lm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if m.Config().Experts > 0 {
			seen++
			t.Run(e.Name(), func(t *testing.T) { f(t, m) })
		}
		m.Close()
	}
	if seen < 4 {
		t.Errorf("%d families with experts", seen)
	}
}

// Scores as the sums that the documentation says, over what the experts give.
func TestExpertScores(t *testing.T) {
	scored := 0
	mixtures(t, func(t *testing.T, m *lm.Model) {
		c, w := m.Config(), drawn(m.Config().Vocab)
		type sum struct{ reap, outputs, tokens float64 }
		want := map[[2]int]*sum{}
		total := map[int]float64{}
		hooks := &lm.Hooks{Expert: func(r lm.Routed) {
			s := &sum{tokens: float64(len(r.Rows))}
			for i, weight := range r.Weights {
				square := 0.0
				for _, v := range r.Y.RowF32(i) {
					square += float64(v) * float64(v)
				}
				s.reap += float64(weight) * math.Sqrt(square) / s.tokens
				s.outputs += math.Sqrt(square)
				total[r.Block] += float64(weight)
			}
			want[[2]int{r.Block, r.Expert}] = s
			if !slices.IsSorted(r.Rows) || len(r.Rows) != r.Y.Rows || len(r.Weights) != r.Y.Rows {
				t.Errorf("block %d, expert %d: rows %v of %d", r.Block, r.Expert, r.Rows, r.Y.Rows)
			}
		}}
		if _, err := m.Forward(t.Context(), w.IDs, lm.ForwardOptions{Hooks: hooks}); err != nil {
			t.Fatal(err)
		}

		for _, by := range []string{REAP, Frequency, Outputs} {
			p, err := Choose(t.Context(), m, w, Options{Experts: Share{Drop: 0.25}, ExpertScore: by})
			if errors.Is(err, lm.ErrCut) {
				t.Log(err) // the groups that a token goes to would hold fewer experts than it takes
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range p.Experts.Blocks {
				reached := 0.0
				for e, got := range b.Scores {
					s := want[[2]int{b.Block, e}]
					if s == nil {
						s = &sum{}
					}
					value := map[string]float64{REAP: s.reap, Frequency: s.tokens, Outputs: s.outputs}[by]
					if math.Abs(got-value) > 1e-6*value || b.Tokens[e] != int64(s.tokens) {
						t.Errorf("block %d, expert %d: %s %g of %d tokens, want %g of %g", b.Block, e, by, got,
							b.Tokens[e], value, s.tokens)
					}
					reached += s.tokens
				}
				if tokens := float64(len(w.IDs) * w.SeqLen); reached != tokens*float64(c.TopK) {
					t.Errorf("block %d: experts are reached %g times by %g tokens", b.Block, reached, tokens)
				}
				// Without the normalisation of their sum weights are what they are.
				if tokens := float64(len(w.IDs) * w.SeqLen); c.NormTopK &&
					math.Abs(total[b.Block]-tokens*float64(c.RoutedScale)) > 1e-4*tokens {
					t.Errorf("block %d: weights of %g tokens add up to %g", b.Block, tokens, total[b.Block])
				}
			}
		}
		scored++
	})
	if scored < 3 {
		t.Errorf("%d families' experts were scored", scored)
	}
}

// Where experts that go were not chosen by any token, and weights are those among the chosen ones, the smaller model
// computes the same.
func TestExpertsThatNobodyMisses(t *testing.T) {
	same := 0
	mixtures(t, func(t *testing.T, m *lm.Model) {
		c := m.Config()
		w := drawn(c.Vocab)
		w.IDs = [][]int32{w.IDs[0][:2]}
		for keep := c.TopK; keep < c.Experts; keep++ {
			p, err := Choose(t.Context(), m, w, Options{Experts: Share{Keep: keep}, ExpertScore: Frequency})
			if errors.Is(err, ErrOptions) || errors.Is(err, lm.ErrCut) {
				continue // no multiple of the groups, or too few for a token's
			}
			if err != nil {
				t.Fatal(err)
			}
			missed := slices.ContainsFunc(p.Experts.Blocks, func(b Mixture) bool {
				stays := int64(0)
				for _, e := range b.Kept {
					stays += b.Tokens[e]
				}
				return stays < int64(2*c.TopK)
			})
			if missed || !c.NormTopK && c.Arch.Router != arch.Sigmoid {
				continue
			}

			out := filepath.Join(t.TempDir(), "out")
			s, err := m.NewSaver(out, lm.SaveOptions{Cut: p.Cut})
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
			defer small.Close()
			if n := small.Config().Experts; n != keep {
				t.Errorf("%d experts, want %d", n, keep)
			}

			var logits [2]kernels.Mat
			for i, x := range []*lm.Model{m, small} {
				r, err := x.Forward(t.Context(), w.IDs, lm.ForwardOptions{Logits: true})
				if err != nil {
					t.Fatal(err)
				}
				logits[i] = r.Logits
			}
			for i, v := range logits[0].Buf.F32() {
				if math.Abs(float64(v-logits[1].Buf.F32()[i])) > 1e-5 {
					t.Fatalf("%d experts: logit %d is %g, %g with all", keep, i, logits[1].Buf.F32()[i], v)
				}
			}
			same++
		}
	})
	if same == 0 {
		t.Error("no case was compared")
	}
}

func TestExpertsRefused(t *testing.T) {
	mixtures(t, func(t *testing.T, m *lm.Model) {
		c, w := m.Config(), drawn(m.Config().Vocab)
		tests := map[string]Options{
			"as many as a token goes to would do": {Experts: Share{Keep: 1}},
			"there are":                           {Experts: Share{Keep: c.Experts + 1}},
			"experts stay":                        {Experts: Share{Keep: c.Experts}},
			"known: reap":                         {Experts: Share{Drop: 0.5}, ExpertScore: "magic"},
		}
		for want, o := range tests {
			_, err := Choose(t.Context(), m, w, o)
			if o.Experts.Keep == 1 {
				want = " would do"
				if c.TopK == 1 {
					continue
				}
			}
			if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: error %v, want %q", o, err, want)
			}
		}
		if c.Groups > 1 {
			_, err := Choose(t.Context(), m, w, Options{Experts: Share{Keep: c.Experts - 1}})
			if err == nil || !strings.Contains(err.Error(), "groups") {
				t.Errorf("groups of other sizes: %v", err)
			}
		}
	})

	m, w := open(t, 2)
	if _, err := Choose(t.Context(), m, w, Options{Experts: Share{Keep: 2}}); err == nil ||
		!strings.Contains(err.Error(), "this llama has none") {
		t.Errorf("a model without experts: %v", err)
	}
}
