package method_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// differences are models around a base of zeros, as float32 and as matrices.
func differences(r *rand.Rand, n, rows, cols int) (base []float32, models [][]float32, tau []linalg.Matrix) {
	base = make([]float32, rows*cols)
	for range n {
		x := make([]float32, rows*cols)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		models = append(models, x)
		tau = append(tau, linalg.Of(wide(x), rows, cols))
	}
	return base, models, tau
}

// gradient is that of WUDI's objective, Σ_j 2(τ - τ_j)τ_jᵀτ_j/‖τ_j‖², at t.
func gradient(t linalg.Matrix, tau []linalg.Matrix) linalg.Matrix {
	var s linalg.Solver
	out := linalg.New(t.Rows, t.Cols)
	for _, x := range tau {
		d := t.Clone()
		for i, v := range x.Data {
			d.Data[i] -= v
		}
		outer := s.Times(d, x, linalg.Product{TransB: true})
		outer.Scale(2 / (x.Norm() * x.Norm()))
		s.Mul(out, outer, x, linalg.Product{Accumulate: true})
	}
	return out
}

// TestWudi: without damping the closed form has no gradient left, whichever side is longer; with much of it it is the
// sum; a step of Adam goes by the rate against the gradient's sign, and many lead to the closed form.
func TestWudi(t *testing.T) {
	for _, shape := range [][2]int{{6, 9}, {9, 6}, {1200, 5}} {
		rows, cols := shape[0], shape[1]
		r := rand.New(rand.NewPCG(3, uint64(rows)))
		p := problem{
			method: "wudi_closed", shape: []int64{int64(rows), int64(cols)}, params: recipe.Values{"damping": num(0)},
		}
		var tau []linalg.Matrix
		p.base, p.models, tau = differences(r, 3, rows, cols)
		sum := linalg.Of(mix([]float64{1, 1, 1}, [][]float64{tau[0].Data, tau[1].Data, tau[2].Data}), rows, cols)
		from := gradient(sum, tau)

		closed := linalg.Of(wide(p.solve(t)), rows, cols)
		if left := gradient(closed, tau).Norm(); left > 1e-5*from.Norm() { // the result is rounded to float32
			t.Errorf("%v: the closed form has a gradient of %g, the sum one of %g", shape, left, from.Norm())
		}

		p.params = recipe.Values{"damping": num(1e6)}
		for i, v := range p.solve(t) {
			if math.Abs(float64(v)-sum.Data[i]) > 1e-4 {
				t.Fatalf("%v: damped without end: element %d is %v, the sum's %v", shape, i, v, sum.Data[i])
			}
		}

		const rate = 0.01
		p.method, p.params = "wudi", recipe.Values{"iterations": num(1), "rate": num(rate)}
		for i, v := range p.solve(t) {
			want := sum.Data[i] - math.Copysign(rate, from.Data[i])
			if g := math.Abs(from.Data[i]); g > 1e-4 && math.Abs(float64(v)-want) > 1e-5 {
				t.Fatalf("%v: a step leads from %v to %v, want %v", shape, sum.Data[i], v, want)
			}
		}

		p.params = recipe.Values{"iterations": num(20_000), "rate": num(1e-3)}
		for i, v := range p.solve(t) {
			// Adam's steps do not become shorter: it ends within a few of its rate.
			if want := closed.Data[i]; math.Abs(float64(v)-want) > 0.02 {
				t.Errorf("%v: after many steps element %d is %v, want %v", shape, i, v, want)
				break
			}
		}
	}
}

// TestWudiAdapters: where the models are a base with adapters folded in, whose changes have few directions but for
// rounding, the steps are those of the whole gradient.
func TestWudiAdapters(t *testing.T) {
	const rows, cols, rank, steps, rate = 30, 48, 2, 40, 1e-3
	r := rand.New(rand.NewPCG(11, 4))
	draw := func(rows, cols int) linalg.Matrix {
		x := linalg.New(rows, cols)
		for i := range x.Data {
			x.Data[i] = r.NormFloat64()
		}
		return x
	}

	p := problem{
		method: "wudi", shape: []int64{rows, cols}, params: recipe.Values{"iterations": num(steps), "rate": num(rate)},
	}
	p.base = make([]float32, rows*cols)
	for i := range p.base {
		p.base[i] = float32(r.NormFloat64())
	}

	var tau []linalg.Matrix
	var s linalg.Solver
	for range 3 {
		folded, change := slices.Clone(p.base), linalg.New(rows, cols)
		for i, v := range s.Times(draw(rows, rank), draw(rank, cols), linalg.Product{}).Data {
			folded[i] += float32(v / 8)
			change.Data[i] = float64(folded[i]) - float64(p.base[i])
		}
		p.models, tau = append(p.models, folded), append(tau, change)
	}

	want := linalg.Of(mix([]float64{1, 1, 1}, [][]float64{tau[0].Data, tau[1].Data, tau[2].Data}), rows, cols)
	m, v := make([]float64, rows*cols), make([]float64, rows*cols)
	for n := range steps {
		for i, g := range gradient(want, tau).Data {
			m[i], v[i] = 0.9*m[i]+0.1*g, 0.999*v[i]+0.001*g*g
			mean, square := m[i]/(1-math.Pow(0.9, float64(n+1))), v[i]/(1-math.Pow(0.999, float64(n+1)))
			want.Data[i] -= rate * mean / (math.Sqrt(square) + 1e-8)
		}
	}

	for i, got := range p.solve(t) {
		// The merge is the base and what was found, in float32.
		if math.Abs(float64(got)-float64(p.base[i])-want.Data[i]) > 1e-6 {
			t.Fatalf("element %d moves by %g, want %g", i, float64(got)-float64(p.base[i]), want.Data[i])
		}
	}
}

// TestWudiStays: where no model has changed a matrix, it is the base's, and where one has, that model's, by steps and
// in closed form, damped or not.
func TestWudiStays(t *testing.T) {
	for name, params := range map[string]recipe.Values{
		"wudi": {"iterations": num(3), "rate": num(0.5)}, "wudi_closed": {"damping": num(0)},
	} {
		p := problem{method: name, shape: []int64{5, 4}, params: params}
		p.base, p.models, _ = differences(rand.New(rand.NewPCG(1, 1)), 2, 5, 4)
		for i := range p.models {
			p.models[i] = p.base
		}
		if got := p.solve(t); !slices.Equal(got, p.base) {
			t.Errorf("%s: models that are the base make %v of %v", name, got, p.base)
		}

		_, changed, _ := differences(rand.New(rand.NewPCG(1, 2)), 1, 5, 4)
		p.models[1] = changed[0]
		if got := p.solve(t); !slices.Equal(got, changed[0]) {
			t.Errorf("%s: the base and another model make %v of %v", name, got, changed[0])
		}
	}
}

// TestContinual: what OPCM adds is what the published code adds, computed with whole matrices of singular vectors; the
// sum has the mean length, or is divided by lambda; and a merge of n models takes one more as it would have before.
func TestContinual(t *testing.T) {
	const rows, cols = 6, 10
	r := rand.New(rand.NewPCG(8, 1))
	p := problem{method: "opcm", shape: []int64{rows, cols}, params: recipe.Values{"lambda": num(1), "alpha": num(0.4)}}
	var tau []linalg.Matrix
	p.base, p.models, tau = differences(r, 3, rows, cols)

	want := tau[0].Clone()
	for _, x := range tau[1:] {
		before := want.Clone()
		add := published(t, want, x, 0.4)
		for i, v := range add.Data {
			want.Data[i] += v
		}
		if d := dot(before.Data, add.Data); math.Abs(d) > 1e-9 {
			t.Errorf("what is added is not orthogonal to what was there: %g", d)
		}
	}
	sum := wide(p.solve(t))
	for i, v := range sum {
		if math.Abs(v-want.Data[i]) > 1e-5 {
			t.Fatalf("element %d is %v, want %v", i, v, want.Data[i])
		}
	}

	p.params["lambda"] = num(4)
	for i, v := range wide(p.solve(t)) {
		if math.Abs(4*v-sum[i]) > 1e-5 {
			t.Fatalf("divided by 4, element %d is %v, want %v", i, v, sum[i]/4)
		}
	}

	// The third model beside the merge of the first two, divided alike, gives what all at once give.
	at := wide(p.solve(t))
	models := p.models
	p.models = models[:2]
	two := p.solve(t)
	p.models, p.params["merged"] = [][]float32{two, models[2]}, num(2)
	for i, v := range wide(p.solve(t)) {
		if math.Abs(v-at[i]) > 1e-5 {
			t.Fatalf("one more, divided by 4, element %d is %v, want %v", i, v, at[i])
		}
	}
	p.models, p.params["merged"] = models, num(1)

	delete(p.params, "lambda")
	mean := (tau[0].Norm() + tau[1].Norm() + tau[2].Norm()) / 3
	all := linalg.Of(wide(p.solve(t)), rows, cols)
	if math.Abs(all.Norm()-mean) > 1e-5 {
		t.Errorf("the length is %g, that of the models %g", all.Norm(), mean)
	}

	// A vector is added whole.
	v := problem{method: "opcm", shape: []int64{rows * cols}, base: p.base, models: p.models, params: recipe.Values{}}
	plain := mix([]float64{1, 1, 1}, [][]float64{tau[0].Data, tau[1].Data, tau[2].Data})
	long := math.Sqrt(dot(plain, plain))
	for i, x := range wide(v.solve(t)) {
		if math.Abs(x-plain[i]*mean/long) > 1e-5 {
			t.Fatalf("of a vector element %d is %v, want %v", i, x, plain[i]*mean/long)
		}
	}

	// Two models that are the same length: their merge counts for both.
	for j := range p.models[:2] {
		for i := range p.models[j] {
			p.models[j][i] = float32(tau[j].Data[i] / tau[j].Norm())
		}
	}
	third := p.models[2]
	p.models = p.models[:2]
	first := p.solve(t)
	p.models = [][]float32{first, third}
	p.params["merged"] = num(2)
	got := linalg.Of(wide(p.solve(t)), rows, cols)
	p.params["merged"] = num(1)
	once := linalg.Of(wide(p.solve(t)), rows, cols)
	if a, b := dot(got.Data, wide(first)), dot(once.Data, wide(first)); !(a > b) {
		t.Errorf("a merge of two keeps %g of itself, one of one %g", a, b)
	}
	if want := (2 + tau[2].Norm()) / 3; math.Abs(got.Norm()-want) > 1e-5 {
		t.Errorf("the length is %g, want %g", got.Norm(), want)
	}
}

// published is the published code's projection: all singular vectors of both sides, the right ones completed to a
// basis.
func published(t *testing.T, sum, tau linalg.Matrix, alpha float64) linalg.Matrix {
	t.Helper()
	var s linalg.Solver
	u, values, v, err := s.SVD(sum)
	if err != nil {
		t.Fatal(err)
	}
	whole := linalg.New(v.Rows, v.Rows)
	whole.Sub(0, v.Rows, 0, v.Cols).Copy(v)
	k := v.Cols
	for e := 0; k < v.Rows; e++ { // Gram-Schmidt
		x := make([]float64, v.Rows)
		x[e] = 1
		for range 2 {
			for c := range k {
				d := 0.0
				for i := range x {
					d += x[i] * whole.At(i, c)
				}
				for i := range x {
					x[i] -= d * whole.At(i, c)
				}
			}
		}
		if n := math.Sqrt(dot(x, x)); n > 1e-6 {
			for i := range x {
				whole.Set(i, k, x[i]/n)
			}
			k++
		}
	}

	core := s.Times(s.Times(u, tau, linalg.Product{TransA: true}), whole, linalg.Product{})
	all, part := 0.0, 0.0
	first := 0
	for _, x := range values {
		all += x
	}
	for i, x := range values {
		if part += x; part > alpha*all {
			first = i
			break
		}
	}
	for i := range core.Rows {
		core.Set(i, i, 0)
		for j := range core.Cols {
			if i < first && j < first {
				core.Set(i, j, 0)
			}
		}
	}
	return s.Times(s.Times(u, core, linalg.Product{}), whole, linalg.Product{TransB: true})
}
