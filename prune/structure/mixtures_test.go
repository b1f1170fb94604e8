package structure

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// states are the hidden states of a model on some sequences.
func states(t *testing.T, m *lm.Model, w corpus.Windows, hooks *lm.Hooks) []kernels.Mat {
	t.Helper()
	r, err := m.Forward(t.Context(), w.IDs, lm.ForwardOptions{Hidden: true, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	var list []kernels.Mat
	for _, h := range r.Hidden {
		x, err := hostmat.F32(m.Device(), h)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, x)
	}
	return list
}

// written is the smaller model of a plan.
func written(t *testing.T, m *lm.Model, p *Plan) *lm.Model {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	s, err := m.NewSaver(out, lm.SaveOptions{Cut: p.Cut})
	if err != nil {
		t.Fatal(err)
	}
	if err := Merge(t.Context(), m, p, s); err != nil {
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

// keeps is the routing of a plan's experts.
func keeps(p *Plan, of int) *lm.Hooks {
	return &lm.Hooks{Route: func(block int) lm.Routing {
		for _, b := range p.Experts.Blocks {
			if b.Block == block {
				keep := make([]bool, of)
				for _, e := range b.Kept {
					keep[e] = true
				}
				return lm.Routing{Keep: keep}
			}
		}
		return lm.Routing{}
	}}
}

// A whole model that sends no token to the experts that go computes what the smaller one does.
func TestRoutedAround(t *testing.T) {
	same := 0
	mixtures(t, func(t *testing.T, m *lm.Model) {
		c, w := m.Config(), drawn(m.Config().Vocab)
		for keep := c.TopK; keep < c.Experts; keep++ {
			p, err := Choose(t.Context(), m, w, Options{Experts: Share{Keep: keep}})
			if errors.Is(err, ErrOptions) || errors.Is(err, lm.ErrCut) {
				continue // no multiple of the groups, or too few for a token's
			}
			if err != nil {
				t.Fatal(err)
			}

			want := states(t, m, w, keeps(p, c.Experts))
			got := states(t, written(t, m, p), w, nil)
			for l := range want {
				scale := math.Sqrt(distance(want[l], zeros(want[l])))
				if d := math.Sqrt(distance(want[l], got[l])); d > 1e-5*scale {
					t.Errorf("%d experts: state %d differs by %g of %g", keep, l, d, scale)
				}
			}
			same++
		}
	})
	if same < 5 {
		t.Errorf("%d cases were compared", same)
	}
}

func zeros(like kernels.Mat) kernels.Mat {
	return kernels.MatOf(kernels.NewHost(kernels.F32, like.Len()), like.Rows, like.Cols)
}

// With other numbers of experts a token, the model is the one whose configuration says so.
func TestFewerExpertsOfAToken(t *testing.T) {
	mixtures(t, func(t *testing.T, m *lm.Model) {
		c, w := m.Config(), drawn(m.Config().Vocab)
		if c.TopK < 2 || c.Groups > 1 {
			return
		}
		less, err := lm.Load(t.Context(), m.Path(), m.Device(), lm.Options{TopK: c.TopK - 1})
		if err != nil {
			t.Fatal(err)
		}
		defer less.Close()
		hooks := &lm.Hooks{Route: func(int) lm.Routing { return lm.Routing{TopK: c.TopK - 1} }}
		want := states(t, m, w, hooks)
		whole := states(t, m, w, nil)
		for l, x := range states(t, less, w, nil) {
			if distance(want[l], x) != 0 {
				t.Errorf("state %d is not that of the model that is told in passing", l)
			}
			if l == len(want)-1 && distance(whole[l], x) == 0 {
				t.Error("nothing changes")
			}
		}
		if _, err := lm.Load(t.Context(), m.Path(), m.Device(), lm.Options{TopK: c.Experts + 1}); err == nil {
			t.Error("more experts of a token than there are")
		}
	})
}

// The choice that is tried out is the one whose layers come nearest, by passes through the whole model.
func TestSubsets(t *testing.T) {
	tried := 0
	mixtures(t, func(t *testing.T, m *lm.Model) {
		c, w := m.Config(), drawn(m.Config().Vocab)
		keep := max(c.TopK, c.Experts/2)
		p, err := Choose(t.Context(), m, w, Options{Experts: Share{Keep: keep}, ExpertScore: Subsets})
		if c.Groups > 1 {
			if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "groups first") {
				t.Errorf("error %v", err)
			}
			return
		}
		if errors.Is(err, ErrOptions) || errors.Is(err, lm.ErrCut) {
			return // a token goes to all experts but one
		}
		if err != nil {
			t.Fatal(err)
		}

		whole := states(t, m, w, nil)
		for _, b := range p.Experts.Blocks {
			least := math.Inf(1)
			mine := 0.0
			n := 0
			for _, choice := range subsets(c.Experts, keep) {
				n++
				hooks := &lm.Hooks{Route: func(block int) lm.Routing {
					if block == b.Block {
						return lm.Routing{Keep: choice}
					}
					return lm.Routing{}
				}}
				d := distance(whole[b.Block+1], states(t, m, w, hooks)[b.Block+1])
				least = min(least, d)
				if kept := indices(choice); slices.Equal(kept, b.Kept) {
					mine = d
				}
			}
			added := distance(whole[b.Block+1], whole[b.Block])
			if mine > least*(1+1e-6) || b.Tried != n || math.Abs(b.Lost-mine/added) > 1e-5*b.Lost {
				t.Errorf("block %d: %v of %d choices loses %g (said: %g), another %g", b.Block, b.Kept, n, mine/added,
					b.Lost, least/added)
			}
			tried++
		}
	})
	if tried < 3 {
		t.Errorf("%d layers were tried", tried)
	}

	if n := countSubsets(16, 8); n != 12870 {
		t.Errorf("%g choices of 8 of 16", n)
	}
}

func indices(choice []bool) (list []int) {
	for e, stays := range choice {
		if stays {
			list = append(list, e)
		}
	}
	return list
}

// Average linkage by its definition: the mean of all distances between the points of two clusters.
func TestClusters(t *testing.T) {
	for seed := range 20 {
		s := rng.NewStream(7, seed, 0)
		points := make([][]float64, 9)
		for i := range points {
			points[i] = []float64{float64(s.Below(1000)), float64(s.Below(1000)), float64(s.Below(1000))}
		}

		between := func(a, b []int) float64 {
			sum := 0.0
			for _, i := range a {
				for _, k := range b {
					square := 0.0
					for j := range points[i] {
						square += (points[i][j] - points[k][j]) * (points[i][j] - points[k][j])
					}
					sum += math.Sqrt(square)
				}
			}
			return sum / float64(len(a)*len(b))
		}
		var want [][]int
		for i := range points {
			want = append(want, []int{i})
		}
		for len(want) > 3 {
			at := [2]int{0, 1}
			for a := range want {
				for b := a + 1; b < len(want); b++ {
					if between(want[a], want[b]) < between(want[at[0]], want[at[1]]) {
						at = [2]int{a, b}
					}
				}
			}
			want[at[0]] = append(want[at[0]], want[at[1]]...)
			slices.Sort(want[at[0]])
			want = slices.Delete(want, at[1], at[1]+1)
		}

		if got := clusters(points, 3); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("seed %d: %v, want %v", seed, got, want)
		}
	}
}

// Experts that are merged are means, and what is written computes what the model in memory does.
func TestMerge(t *testing.T) {
	merged := 0
	mixtures(t, func(t *testing.T, m *lm.Model) {
		c, w := m.Config(), drawn(m.Config().Vocab)
		keep := max(c.TopK, c.Experts/2) / max(1, c.Groups) * max(1, c.Groups)
		o := Options{Experts: Share{Keep: keep}, ExpertScore: Clusters}
		p, err := Choose(t.Context(), m, w, o)
		if errors.Is(err, ErrOptions) || errors.Is(err, lm.ErrCut) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}

		// By hand, of one matrix, before they are merged.
		b := p.Experts.Blocks[0]
		at := slices.IndexFunc(b.Clusters, func(c []int) bool { return len(c) > 1 })
		var first string
		var want []float64
		all := 0.0
		for _, e := range b.Clusters[at] {
			all += float64(b.Tokens[e])
		}
		for _, e := range b.Clusters[at] {
			i := slices.IndexFunc(m.Linears(b.Block), func(l lm.Linear) bool { return l.Expert == e })
			name := m.Linears(b.Block)[i].Name
			value, err := m.Param(name)
			if err != nil {
				t.Fatal(err)
			}
			if value, err = hostmat.F32(m.Device(), value); err != nil {
				t.Fatal(err)
			}
			if first == "" {
				first, want = name, make([]float64, value.Len())
			}
			for k, v := range value.Buf.F32() {
				if all > 0 {
					want[k] += float64(v) * float64(b.Tokens[e]) / all
				} else {
					want[k] += float64(v) / float64(len(b.Clusters[at]))
				}
			}
		}

		small := written(t, m, p)
		got, err := m.Param(first)
		if err != nil {
			t.Fatal(err)
		}
		if got, err = hostmat.F32(m.Device(), got); err != nil {
			t.Fatal(err)
		}
		for k, v := range got.Buf.F32() {
			if math.Abs(float64(v)-want[k]) > 1e-2*math.Abs(want[k])+1e-6 { // of BF16
				t.Fatalf("%s: element %d is %g, want %g", first, k, v, want[k])
			}
		}

		whole := states(t, m, w, keeps(p, c.Experts))
		for l, x := range states(t, small, w, nil) {
			scale := math.Sqrt(distance(x, zeros(x)))
			if d := math.Sqrt(distance(x, whole[l])); d > 1e-5*scale {
				t.Errorf("state %d differs by %g of %g", l, d, scale)
			}
		}
		merged++
	})
	if merged < 3 {
		t.Errorf("experts of %d families were merged", merged)
	}
}

// An interrupted run that merges goes on to the same bytes.
func TestMergeResumes(t *testing.T) {
	once := false
	mixtures(t, func(t *testing.T, m *lm.Model) {
		w := drawn(m.Config().Vocab)
		o := Options{Experts: Share{Drop: 0.5}, ExpertScore: Clusters}
		if err := Check(m, w, o); err != nil || once {
			return
		}

		run := func(out string, stop bool) string {
			x, err := lm.Load(t.Context(), m.Path(), m.Device(), lm.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			p, err := Choose(t.Context(), x, w, o)
			if err != nil {
				t.Fatal(err)
			}
			s, err := x.NewSaver(out, lm.SaveOptions{Cut: p.Cut, Fingerprint: "job", Resume: true})
			if err != nil {
				t.Fatal(err)
			}
			blocks := p.Experts.Blocks
			if stop {
				p.Experts.Blocks = blocks[:1]
			}
			if err := Merge(t.Context(), x, p, s); err != nil {
				t.Fatal(err)
			}
			if stop {
				if err := s.Suspend(); err != nil {
					t.Fatal(err)
				}
				return ""
			}
			if err := s.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(out, "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}

		want := run(filepath.Join(t.TempDir(), "out"), false)
		out := filepath.Join(t.TempDir(), "out")
		run(out, true)
		if run(out, false) != want {
			t.Error("other bytes behind an interruption")
		}
		once = true
	})
	if !once {
		t.Error("no family was merged")
	}
}
