package optim

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// golden is testdata/golden.json; see the README there.
type golden struct {
	Shapes [][2]int
	Base   [][]float32
	Grads  [][][]float32
	LRs    []float64
	Cases  []struct {
		Name    string
		Options json.RawMessage
		Clip    float64
		Norms   []float64
		Values  [][][]float32
	}
	Schedules []struct {
		Kind          string
		Warmup, Total int
		Factors       []float64
	}
	Clips []struct {
		Grads, Clipped []float32
		Bound, Norm    float64
	}
}

func readGolden(t testing.TB) (g golden) {
	t.Helper()
	data, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// open makes an optimiser from a golden case's name and options.
func open(t testing.TB, name string, options json.RawMessage) Optimizer {
	t.Helper()
	var o Optimizer
	var err error
	read := func(to any) {
		if e := json.Unmarshal(options, to); e != nil {
			t.Fatal(e)
		}
	}

	switch name {
	case "adamw":
		var a AdamWOptions
		read(&a)
		o, err = NewAdamW(a)
	case "sgd":
		var a SGDOptions
		read(&a)
		o, err = NewSGD(a)
	case "lomo":
		var a LOMOOptions
		read(&a)
		o, err = NewLOMO(a)
	case "adalomo":
		var a AdaLomoOptions
		read(&a)
		o, err = NewAdaLomo(a)
	default:
		t.Fatalf("unknown optimiser %q", name)
	}
	if err != nil {
		t.Fatal(err)
	}

	return o
}

func matrix(rows, cols int, v []float32) kernels.Mat {
	return kernels.MatOf(kernels.WrapF32(v), rows, cols)
}

// params are fresh copies of the golden parameters.
func (g golden) params() []Param {
	var ps []Param
	for i, s := range g.Shapes {
		ps = append(ps, Param{Name: fmt.Sprint("p", i), Value: matrix(s[0], s[1], slices.Clone(g.Base[i]))})
	}
	return ps
}

func (g golden) setGrads(ps []Param, step int) {
	for i, s := range g.Shapes {
		ps[i].Grad = matrix(s[0], s[1], slices.Clone(g.Grads[step][i]))
	}
}

// TestGoldenUpdates: float32 operations may be fused there and are not here, which moves each of some ten
// roundings per step by an ulp at most, 6e-8 of the start or of a change: in all, 1e-6 of the sum of their
// sizes.
func TestGoldenUpdates(t *testing.T) {
	g := readGolden(t)
	for n, c := range g.Cases {
		o, ps := open(t, c.Name, c.Options), g.params()
		// sizes of all changes, and of the start
		moved := [][]float64{make([]float64, len(g.Base[0])), make([]float64, len(g.Base[1]))}
		for i, b := range g.Base {
			for j, v := range b {
				moved[i][j] = math.Abs(float64(v))
			}
		}

		for step, lr := range g.LRs {
			g.setGrads(ps, step)
			s := Step{LR: lr}
			if c.Clip > 0 {
				norm, coefficient, err := Clip(ps, c.Clip, 0)
				if err != nil {
					t.Fatal(err)
				}

				if d := math.Abs(norm-c.Norms[step]) / c.Norms[step]; d > 1e-6 {
					t.Errorf("case %d step %d: norm %g, want %g", n, step, norm, c.Norms[step])
				}

				s.GradScale = coefficient
			}

			for i, p := range ps {
				before := slices.Clone(p.Value.Buf.F32())
				if err := o.Apply(p, s); err != nil {
					t.Fatal(err)
				}
				for j, v := range p.Value.Buf.F32() {
					moved[i][j] += math.Abs(float64(v - before[j]))
				}
			}

			if at := slices.Index([]int{0, 2, 5}, step); at >= 0 {
				for i, p := range ps {
					compare(t, fmt.Sprintf("case %d (%s) step %d, %s", n, c.Name, step, p.Name), p.Value.Buf.F32(),
						c.Values[at][i], moved[i])
				}
			}
		}
	}
}

func compare(t *testing.T, what string, got, want []float32, moved []float64) {
	t.Helper()
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - float64(w)); !(d <= 1e-6*moved[i]+1e-37) {
			t.Errorf("%s, element %d: %g, want %g", what, i, got[i], w)
		}
	}
}

func TestGoldenSchedules(t *testing.T) {
	for _, c := range readGolden(t).Schedules {
		s, err := NewSchedule(c.Kind, c.Warmup, c.Total)
		if err != nil {
			t.Fatal(err)
		}

		for step, want := range c.Factors {
			if got := s(step); math.Abs(got-want) > 1e-15 { // the cosine of another library
				t.Errorf("%s with %d of %d steps warm-up, step %d: %g, want %g", c.Kind, c.Warmup, c.Total, step, got,
					want)
			}
		}
	}
}

func TestGoldenClip(t *testing.T) {
	for _, c := range readGolden(t).Clips {
		ps := []Param{{Name: "a", Grad: matrix(1, 4, c.Grads[:4])}, {Name: "b", Grad: matrix(1, 2, c.Grads[4:])}}
		norm, k, err := Clip(ps, c.Bound, 1)
		if err != nil {
			t.Fatal(err)
		}

		// torch squares in float32: the smallest gradients vanish there.
		if math.Abs(norm-c.Norm) > 1e-6*norm && c.Norm > 1e-15 {
			t.Errorf("norm %g, want %g", norm, c.Norm)
		}

		for i, g := range c.Grads {
			got := g * float32(k)
			if math.Abs(float64(got-c.Clipped[i])) > 2e-7*math.Abs(float64(got)) {
				t.Errorf("clipped %g to %g, want %g", g, got, c.Clipped[i])
			}
		}
	}
}
