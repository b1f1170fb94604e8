package ggufmodel

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm/arch"
)

// subject opens a model of testdata as the checkpoint that it was made of, with its parameters.
func subject(t testing.TB, name string) (*arch.Config, []arch.Param) {
	t.Helper()
	g, err := gguf.OpenModel(filepath.Join("testdata", name+".gguf"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	m, err := New(g)
	if err != nil {
		t.Fatal(err)
	}

	e := &Export{Config: m.config, parts: map[string]arch.Part{}}
	layout, err := arch.Resolve(m.config, e.apart(asCheckpoint{m}), true)
	if err != nil {
		t.Fatal(err)
	}
	return m.config, layout.Params
}

// lowRank is a change with its factors.
type lowRank struct {
	Change
	left, right []float32
	rows, cols  int
}

// at is an element of the change.
func (d lowRank) at(row, col int) float64 {
	sum := 0.0
	for k := range d.Rank {
		sum += float64(d.left[row*d.Rank+k]) * float64(d.right[k*d.cols+col])
	}
	return d.Scale * sum
}

// drawChanges makes changes of the matrices that can be adapted, of different ranks and scales, some of none.
func drawChanges(c *arch.Config, params []arch.Param, uniform bool) map[string]lowRank {
	rng := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}

	changes := map[string]lowRank{}
	for _, p := range params {
		head := p.Role == arch.Head || p.Role == arch.Embed && !c.Tied
		linear := p.Block >= 0 && p.Role.Linear() && !p.Bias
		if len(p.Shape) != 2 || !head && !linear || slices.Contains(c.Arch.GGUF.Unadapted, p.Role) {
			continue
		}
		d := lowRank{rows: int(p.Shape[0]), cols: int(p.Shape[1])}
		if p.Transposed {
			d.rows, d.cols = d.cols, d.rows
		}
		d.Rank, d.Scale = 3, 2
		if !uniform {
			d.Rank, d.Scale = 1+rng.IntN(3), 0.5+rng.Float64()
			if rng.IntN(4) == 0 {
				continue
			}
		}
		d.left = normal(d.rows * d.Rank)
		d.right = normal(d.cols * d.Rank)
		d.Factors = func() ([]float32, []float32, error) { return d.left, d.right, nil }
		changes[p.Name] = d
	}
	return changes
}

// plain is what a plan is made of.
func plain(list map[string]lowRank) map[string]Change {
	changes := map[string]Change{}
	for name, d := range list {
		changes[name] = d.Change
	}
	return changes
}

// models lists those of testdata.
func models(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.gguf"))
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".gguf"))
	}
	return names
}

// TestAdapter: for every architecture that is written, alpha over the rank times the product of the factors in the file
// is what the tensors of the model's own file change by, where the parameters change by theirs: the reader of that file
// is the one that TestRoundTrip holds to llama.cpp's converter.
func TestAdapter(t *testing.T) {
	for _, name := range models(t) {
		t.Run(name, func(t *testing.T) {
			c, params := subject(t, name)
			for _, uniform := range []bool{true, false} {
				changes := drawChanges(c, params, uniform)
				a, err := NewAdapter(name, c, params, plain(changes))
				if err != nil {
					t.Fatal(err)
				}
				if uniform && c.Experts == 0 && len(a.Pairs) == len(changes) && (a.Folded() != 0 || a.Alpha != 6) {
					t.Errorf("alpha %v, %d folded", a.Alpha, a.Folded())
				}

				seen := map[string]bool{}
				for _, p := range a.Pairs {
					compareChange(t, a, p, params, changes)
					for _, s := range p.Sources {
						seen[s] = true
					}
				}
				if len(seen) != len(changes) {
					t.Errorf("%d of %d changes are in the file", len(seen), len(changes))
				}
			}
		})
	}
}

// compareChange compares the product of a pair with the change of the tensor's rows.
func compareChange(t *testing.T, a *Adapter, p *AdapterPair, params []arch.Param, changes map[string]lowRank) {
	t.Helper()
	target := p.target
	want := make([]float32, target.Rows()*target.Cols())
	read := func(name string, dst []float32, first, n int) error {
		i := slices.IndexFunc(params, func(q arch.Param) bool { return q.Name == name })
		d, changed := changes[name]
		if len(params[i].Shape) < 2 || !changed {
			clear(dst)
			return nil
		}
		for j := range dst {
			row, col := first+j/(len(dst)/n), j%(len(dst)/n)
			if params[i].Transposed {
				row, col = col, row
			}
			dst[j] = float32(d.at(row, col))
		}
		return nil
	}
	if err := target.ReadRows(want, 0, target.Rows(), read); err != nil {
		t.Fatal(err)
	}

	x, y, err := p.values()
	if err != nil {
		t.Fatal(err)
	}
	if p.table {
		x, y = turned(y, target.width, p.Rank), x
	}
	scale := float64(a.Alpha) / float64(p.Rank)
	for i, w := range want {
		row, col := i/target.width, i%target.width
		matrix := row / target.height
		sum := 0.0
		for k := range p.Rank {
			sum += float64(y[row*p.Rank+k]) * float64(x[(matrix*p.Rank+k)*target.width+col])
		}
		// Factors are rounded to float32 once where a scale goes into one; sums are of a few terms of size 1.
		if math.Abs(scale*sum-float64(w)) > 1e-5*(1+math.Abs(float64(w))) {
			t.Fatalf("%s: element %d, %d changes by %g, want %g", p.Name, row, col, scale*sum, w)
		}
	}
}

// TestAdapterFile: what is written is read again as the same changes, where each parameter has a tensor of its own or
// shares one with others whole.
func TestAdapterFile(t *testing.T) {
	for _, name := range []string{"llama", "mixtral", "gpt2", "qwen2", "qwen3_moe"} {
		c, params := subject(t, name)
		changes := drawChanges(c, params, true)
		a, err := NewAdapter(name, c, params, plain(changes))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "a.gguf")
		if err := a.Write(t.Context(), path, AdapterOptions{Name: "n", Base: "b"}); err != nil {
			t.Fatal(err)
		}

		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		back, err := ReadAdapter(f, c, params)
		if err != nil {
			t.Fatal(err)
		}
		if len(back) != len(changes) {
			t.Errorf("%s: %d changes, want %d", name, len(back), len(changes))
		}
		for key, d := range changes {
			left, right, err := back[key].Factors()
			same := slices.Equal(left, d.left) && slices.Equal(right, d.right) && back[key].Scale == d.Scale
			if err != nil || !same {
				t.Errorf("%s: %s is not what it was: %v", name, key, err)
			}
		}
	}
}

// TestAdapterRefused: what llama.cpp would not load, or would pass over, is named.
func TestAdapterRefused(t *testing.T) {
	one := func(p arch.Param) map[string]Change {
		return map[string]Change{p.Name: {Rank: 1, Scale: 1}}
	}
	for _, c := range []struct {
		model string
		role  arch.Role
		want  string
	}{
		{"deepseek_v2", arch.KVB, "as if they were not there"},
		{"gpt2", arch.Embed, "one tensor for tokens and for the tied head"},
		{"llama-biases", arch.AttnNorm, "stored in a way that adapters cannot change"},
	} {
		config, params := subject(t, c.model)
		i := slices.IndexFunc(params, func(p arch.Param) bool { return p.Role == c.role })
		_, err := NewAdapter(c.model, config, params, one(params[i]))
		if !errors.Is(err, ErrUnwritable) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v", c.model, c.role, err)
		}
	}
}

// FuzzAdapter: the adapter of a stranger, for a model with experts. What is taken has finite factors of the model's
// sizes; errors are one line.
func FuzzAdapter(f *testing.F) {
	c, params := subject(f, "mixtral")
	for _, as := range []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0} {
		a, err := NewAdapter("mixtral", c, params, plain(drawChanges(c, params, false)))
		if err != nil {
			f.Fatal(err)
		}
		path := filepath.Join(f.TempDir(), "a.gguf")
		if err := a.Write(f.Context(), path, AdapterOptions{Type: as}); err != nil {
			f.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, b []byte) {
		defer fuzzlimit.Watch(t, len(b))()
		file, err := gguf.OpenBytes(b)
		if err != nil {
			return
		}
		changes, err := ReadAdapter(file, c, params)
		if err != nil {
			oneLine(t, err)
			return
		}
		for name, change := range changes {
			left, right, err := change.Factors()
			if err != nil || change.Rank < 1 || len(left)%change.Rank != 0 || len(right)%change.Rank != 0 {
				t.Errorf("%s: rank %d, %d and %d values, %v", name, change.Rank, len(left), len(right), err)
			}
			if math.IsNaN(change.Scale) || math.IsInf(change.Scale, 0) {
				t.Errorf("%s: scale %v", name, change.Scale)
			}
		}
	})
}
