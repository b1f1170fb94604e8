package method_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/merge/internal/recipe"
)

// A formula computes in float64, from the formula of the paper, what a method gives of a base b and of models x, which
// are matrices of so many columns by rows. It knows nothing of blocks, passes, cuts or Gram matrices.
type formula func(b []float64, x [][]float64, cols int) []float64

func wide(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

func less(x [][]float64, b []float64) [][]float64 {
	out := make([][]float64, len(x))
	for j := range x {
		out[j] = slices.Clone(x[j])
		for i := range b {
			out[j][i] -= b[i]
		}
	}
	return out
}

func dot(a, b []float64) (s float64) {
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// mix is Σ w_j·x_j.
func mix(w []float64, x [][]float64) []float64 {
	out := make([]float64, len(x[0]))
	for j := range x {
		for i := range out {
			out[i] += w[j] * x[j][i]
		}
	}
	return out
}

func added(b []float64, f float64, d []float64) []float64 {
	out := slices.Clone(b)
	for i := range out {
		out[i] += f * d[i]
	}
	return out
}

// ranked lists the places of values from the largest magnitude down.
func ranked(x []float64) []int {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(math.Abs(x[j]), math.Abs(x[i])) })
	return order
}

// kept is x where its magnitude has one of the places [from, to) from the top, else 0.
func kept(x []float64, from, to int) []float64 {
	out := make([]float64, len(x))
	for _, i := range ranked(x)[from:to] {
		out[i] = x[i]
	}
	return out
}

// elected is TIES' disjoint merge of v_j = w_j·d_j: the sum of those with the sign of Σ v_j, over their weights if they
// are to be normalised.
func elected(w []float64, d [][]float64, normalise bool) []float64 {
	total := mix(w, d)
	out := make([]float64, len(total))
	for i, t := range total {
		weights := 0.0
		for j := range d {
			if v := w[j] * d[j][i]; v*t > 0 {
				out[i] += v
				weights += w[j]
			}
		}
		if normalise && weights != 0 {
			out[i] /= weights
		}
	}
	return out
}

// arc is the point at t between two vectors, along the sphere.
func arc(x, y []float64, t float64) []float64 {
	theta := math.Acos(min(max(dot(x, y)/math.Sqrt(dot(x, x)*dot(y, y)), -1), 1))
	if math.Sin(theta) < 1e-7 { // on a line there is no sphere
		return mix([]float64{1 - t, t}, [][]float64{x, y})
	}
	s := math.Sin(theta)
	return mix([]float64{math.Sin((1-t)*theta) / s, math.Sin(t*theta) / s}, [][]float64{x, y})
}

// byVector applies f to the vectors of all models that begin at first, of n elements with a stride.
func byVector(x [][]float64, first, n, stride int, out []float64, f func(v [][]float64) []float64) {
	part := make([][]float64, len(x))
	for j := range x {
		for i := range n {
			part[j] = append(part[j], x[j][first+i*stride])
		}
	}
	for i, v := range f(part) {
		out[first+i*stride] = v
	}
}

// tangent is multislerp: the tangents at the mean direction, one step along their mean, at the mean of the lengths.
func tangent(w []float64, x [][]float64) []float64 {
	unit, length := make([][]float64, len(x)), 0.0
	for j := range x {
		norm := math.Sqrt(dot(x[j], x[j]))
		length += w[j] * norm
		unit[j] = added(make([]float64, len(x[j])), 1/norm, x[j])
	}

	m := mix(w, unit)
	m = added(make([]float64, len(m)), 1/math.Sqrt(dot(m, m)), m)
	g := make([]float64, len(m))
	for j := range unit {
		g = added(g, w[j], added(unit[j], -dot(unit[j], m), m))
	}

	r := math.Sqrt(dot(g, g))
	out := mix([]float64{length * math.Cos(r), length * math.Sin(r) / r}, [][]float64{m, g})
	return out
}

// riemannian is the Karcher mean of the directions, by gradient steps on the vectors themselves.
func riemannian(x [][]float64, steps int) []float64 {
	n := float64(len(x))
	length := 0.0
	unit, m := make([][]float64, len(x)), make([]float64, len(x[0]))
	for j := range x {
		norm := math.Sqrt(dot(x[j], x[j]))
		length += norm / n
		unit[j] = added(make([]float64, len(m)), 1/norm, x[j])
		m = added(m, 1/n, unit[j])
	}

	m = added(make([]float64, len(m)), 1/math.Sqrt(dot(m, m)), m)
	for range steps {
		g := make([]float64, len(m))
		for _, u := range unit {
			c := dot(u, m)
			theta := math.Acos(c)
			g = added(g, theta/math.Sin(theta)/n, added(u, -c, m))
		}
		r := math.Sqrt(dot(g, g))
		m = mix([]float64{math.Cos(r), math.Sin(r) / r}, [][]float64{m, g})
	}

	return added(make([]float64, len(m)), length, m)
}

// stock is model stock of differences: t·mean, t = N·c/(1+(N-1)c).
func stock(d [][]float64) []float64 {
	n := float64(len(d))
	c, pairs := 0.0, 0.0
	for i := range d {
		for j := range i {
			c += dot(d[i], d[j]) / math.Sqrt(dot(d[i], d[i])*dot(d[j], d[j]))
			pairs++
		}
	}

	c /= pairs
	t := n * c / (1 + (n-1)*c)
	return mix(slices.Repeat([]float64{t / n}, len(d)), d)
}

// varied is SCE: of the differences the elements that vary most, weighed by energy, with an election by the sum.
func varied(d [][]float64, top float64) []float64 {
	n := len(d[0])
	spread := make([]float64, n)
	nonzero := 0
	for i := range spread {
		mean := 0.0
		for j := range d {
			mean += d[j][i] / float64(len(d))
		}
		for j := range d {
			spread[i] += (d[j][i] - mean) * (d[j][i] - mean)
		}
		if spread[i] > 0 {
			nonzero++
		}
	}

	keep := kept(spread, 0, int(top*float64(nonzero)))
	weights, total := make([]float64, len(d)), 0.0
	for j := range d {
		for i := range d[j] {
			if top < 1 && keep[i] == 0 {
				d[j][i] = 0
			}
		}
		weights[j] = dot(d[j], d[j])
		total += weights[j]
	}

	ones := slices.Repeat([]float64{1}, len(d))
	sums := mix(ones, d)
	out := make([]float64, n)
	for i := range out {
		den := 0.0
		for j := range d {
			if d[j][i]*sums[i] > 0 {
				out[i] += weights[j] / total * d[j][i]
				den += weights[j] / total
			}
		}
		out[i] /= max(den, 1e-6)
	}

	return out
}

// competing is PCB, with the quantiles as elements of the ascending order.
func competing(d [][]float64, share, lambda float64) []float64 {
	n := len(d[0])
	total := mix(slices.Repeat([]float64{1}, len(d)), d)
	num, den := make([]float64, n), make([]float64, n)
	for _, x := range d {
		size := make([]float64, n)
		for i, v := range x {
			size[i] = math.Abs(v)
		}

		sorted := slices.Sorted(slices.Values(size))
		low, high := sorted[int(1e-4*float64(n))], sorted[int(float64(n)*(1-1e-4)-1)]
		balance := make([]float64, n)
		for i, v := range x {
			size[i] = min(max(size[i], low), high)
			self := (size[i] - low) / (high - low)
			balance[i] = math.Exp(float64(len(d))*self*self) * math.Tanh(v*total[i])
		}

		sorted = slices.Sorted(slices.Values(balance))
		floor, top := sorted[int(float64(n)*(1-share))], sorted[n-1]
		for i, v := range x {
			s := max(0, balance[i]-floor) / (top - floor)
			num[i] += lambda * math.Copysign(size[i], v) * s
			den[i] += s
		}
	}

	for i := range num {
		num[i] /= max(den[i], 1e-12)
	}
	return num
}

// important is arcee fusion: x where |x-b|·KL(softmax of the row of x, of b) is high above the other elements.
func important(b, x []float64, cols int) []float64 {
	probabilities := func(row []float64) []float64 {
		p, total := make([]float64, len(row)), 0.0
		for i, v := range row {
			p[i] = math.Exp(v)
			total += p[i]
		}
		for i := range p {
			p[i] = p[i]/total + 1e-8
		}
		return p
	}

	weight := make([]float64, len(x))
	for row := 0; row < len(x); row += cols {
		p, q := probabilities(x[row:row+cols]), probabilities(b[row:row+cols])
		divergence := 0.0
		for i := range p {
			divergence += p[i] * math.Log(p[i]/q[i])
		}
		for i := row; i < row+cols; i++ {
			weight[i] = math.Abs(x[i]-b[i]) * divergence
		}
	}

	sorted := slices.Sorted(slices.Values(weight))
	at := func(q float64) float64 { return sorted[int(q*float64(len(sorted)-1))] }
	threshold := at(0.5) + 1.5*(at(0.75)-at(0.25))
	out := slices.Clone(b)
	for i, v := range weight {
		if v >= threshold {
			out[i] = x[i]
		}
	}

	return out
}

// alone is RAM: what one model changed as it is, or by its factor made larger, and the mean of what several did.
func alone(d [][]float64, epsilon, r, alpha float64) []float64 {
	out := make([]float64, len(d[0]))
	active := func(i int) (list []int) {
		for j := range d {
			if math.Abs(d[j][i]) > epsilon {
				list = append(list, j)
			}
		}
		return list
	}

	unique, shared := make([]float64, len(d)), make([]float64, len(d))
	for i := range out {
		for _, j := range active(i) {
			if len(active(i)) == 1 {
				unique[j]++
			} else {
				shared[j]++
			}
		}
	}

	for i := range out {
		list := active(i)
		for _, j := range list {
			out[i] += d[j][i] / float64(len(list))
		}
		if len(list) == 1 {
			j := list[0]
			out[i] *= 1 + r*min(shared[j]/max(unique[j], epsilon), alpha)
		}
	}

	return out
}

// unified is EMR's elected difference: of the sign of the sum, the largest magnitude.
func unified(d [][]float64) []float64 {
	out := make([]float64, len(d[0]))
	for i, t := range mix(slices.Repeat([]float64{1}, len(d)), d) {
		for j := range d {
			if d[j][i]*t > 0 && math.Abs(d[j][i]) > math.Abs(out[i]) {
				out[i] = d[j][i]
			}
		}
	}
	return out
}

var formulaWeights = []float64{0.7, 0.2, 0.4}

// formulas are methods with their parameters, and what they compute.
var formulas = []struct {
	name, method string
	models       int
	based        bool
	params, each recipe.Values
	want         formula
}{
	{
		"weighted mean", "linear", 3, false, nil, nil,
		func(_ []float64, x [][]float64, _ int) []float64 {
			return added(make([]float64, len(x[0])), 1/1.3, mix(formulaWeights, x))
		},
	},
	{
		"slerp", "slerp", 1, true,
		recipe.Values{"t": num(0.3)},
		recipe.Values{},
		func(b []float64, x [][]float64, _ int) []float64 { return arc(b, x[0], 0.3) },
	},
	{
		"nuslerp", "nuslerp", 2, false, nil, nil,
		func(_ []float64, x [][]float64, _ int) []float64 { return arc(x[0], x[1], 0.2/0.9) },
	},
	{
		"nuslerp of differences by rows", "nuslerp", 2, true,
		recipe.Values{"nuslerp_flatten": truth(false)},
		nil,
		func(b []float64, x [][]float64, cols int) []float64 {
			d, out := less(x, b), make([]float64, len(b))
			for row := 0; row < len(b); row += cols {
				byVector(d, row, cols, 1, out, func(v [][]float64) []float64 { return arc(v[0], v[1], 0.2/0.9) })
			}
			return added(b, 1, out)
		},
	},
	{
		"nuslerp by columns", "nuslerp", 2, false,
		recipe.Values{"nuslerp_flatten": truth(false), "nuslerp_row_wise": truth(true)},
		nil,
		func(_ []float64, x [][]float64, cols int) []float64 {
			out := make([]float64, len(x[0]))
			for col := range cols {
				byVector(x, col, len(out)/cols, cols, out, func(v [][]float64) []float64 {
					return arc(v[0], v[1], 0.2/0.9)
				})
			}
			return out
		},
	},
	{
		"multislerp", "multislerp", 3, false, nil, nil,
		func(_ []float64, x [][]float64, _ int) []float64 {
			return tangent([]float64{0.7 / 1.3, 0.2 / 1.3, 0.4 / 1.3}, x)
		},
	},
	{
		"multislerp of differences", "multislerp", 3, true,
		recipe.Values{"normalize_weights": truth(false)},
		nil,
		func(b []float64, x [][]float64, _ int) []float64 {
			return added(b, 1, tangent(formulaWeights, less(x, b)))
		},
	},
	{
		"task arithmetic", "task_arithmetic", 3, true,
		recipe.Values{"lambda": num(0.6), "normalize": truth(true)},
		nil,
		func(b []float64, x [][]float64, _ int) []float64 {
			return added(b, 0.6/1.3, mix(formulaWeights, less(x, b)))
		},
	},
	{
		"ties", "ties", 3, true,
		recipe.Values{"lambda": num(0.8)},
		recipe.Values{"density": num(0.3)},
		func(b []float64, x [][]float64, _ int) []float64 {
			d := less(x, b)
			for j := range d {
				d[j] = kept(d[j], 0, int(0.3*float64(len(b))))
			}
			return added(b, 0.8, elected(formulaWeights, d, true))
		},
	},
	{
		"ties with its norm", "ties", 2, true,
		recipe.Values{
			"rescale": truth(true), "rescale_norm": *recipe.TextValue("l2"), "normalize": truth(false),
		},
		recipe.Values{"density": num(0.25)},
		func(b []float64, x [][]float64, _ int) []float64 {
			d := less(x, b)
			for j := range d {
				k := kept(d[j], 0, len(b)/4)
				d[j] = added(make([]float64, len(b)), math.Sqrt(dot(d[j], d[j])/dot(k, k)), k)
			}
			return added(b, 1, elected(formulaWeights, d, false))
		},
	},
	{
		"breadcrumbs", "breadcrumbs", 3, true, nil,
		recipe.Values{"density": num(0.4), "gamma": num(0.1)},
		func(b []float64, x [][]float64, _ int) []float64 {
			d := less(x, b)
			n := float64(len(b))
			for j := range d {
				d[j] = kept(d[j], int(0.1*n), int(0.1*n)+int(0.4*n))
			}
			return added(b, 1, mix(formulaWeights, d))
		},
	},
	{
		"breadcrumbs that would drop too many", "breadcrumbs_ties", 2, true, nil,
		recipe.Values{"density": num(0.9), "gamma": num(0.5)},
		func(b []float64, x [][]float64, _ int) []float64 {
			d := less(x, b)
			for j := range d {
				d[j] = kept(d[j], len(b)-int(0.9*float64(len(b))), len(b))
			}
			return added(b, 1, elected(formulaWeights, d, false))
		},
	},
	{
		"model stock", "model_stock", 3, true, nil, nil,
		func(b []float64, x [][]float64, _ int) []float64 { return added(b, 1, stock(less(x, b))) },
	},
	{
		"model stock by rows", "model_stock", 2, true,
		recipe.Values{"filter_wise": truth(true)},
		nil,
		func(b []float64, x [][]float64, cols int) []float64 {
			out := make([]float64, len(b))
			for row := 0; row < len(b); row += cols {
				byVector(less(x, b), row, cols, 1, out, stock)
			}
			return added(b, 1, out)
		},
	},
	{
		"sce", "sce", 3, true, nil, nil,
		func(b []float64, x [][]float64, _ int) []float64 { return added(b, 1, varied(less(x, b), 1)) },
	},
	{
		"sce of some", "sce", 3, true,
		recipe.Values{"select_topk": num(0.35)},
		nil,
		func(b []float64, x [][]float64, _ int) []float64 { return added(b, 1, varied(less(x, b), 0.35)) },
	},
	{
		"karcher", "karcher", 3, false,
		recipe.Values{"max_iter": num(30), "tol": num(1e-12)},
		nil,
		func(_ []float64, x [][]float64, _ int) []float64 { return riemannian(x, 30) },
	},
	{
		"karcher, one step", "karcher", 3, false,
		recipe.Values{"max_iter": num(1), "tol": num(1e-12)},
		nil,
		func(_ []float64, x [][]float64, _ int) []float64 { return riemannian(x, 1) },
	},
	{
		"arcee fusion", "arcee_fusion", 1, true, nil,
		recipe.Values{},
		func(b []float64, x [][]float64, cols int) []float64 { return important(b, x[0], cols) },
	},
	{
		"nearswap", "nearswap", 1, true,
		recipe.Values{"t": num(0.2)},
		recipe.Values{},
		func(b []float64, x [][]float64, _ int) []float64 {
			out := make([]float64, len(b))
			for i := range b {
				g := min(0.2/max(math.Abs(x[0][i]-b[i]), 1e-6), 1)
				out[i] = g*x[0][i] + (1-g)*b[i]
			}
			return out
		},
	},
	{
		"ram", "ram", 3, true,
		recipe.Values{"epsilon": num(0.3)},
		nil,
		func(b []float64, x [][]float64, _ int) []float64 { return added(b, 1, alone(less(x, b), 0.3, 0, 0)) },
	},
	{
		"ram+", "ramplus_tl", 3, true,
		recipe.Values{"epsilon": num(0.6), "r": num(0.5), "alpha": num(0.9)},
		nil,
		func(b []float64, x [][]float64, _ int) []float64 {
			return added(b, 1, alone(less(x, b), 0.6, 0.5, 0.9))
		},
	},
	{
		"consensus", "consensus", 3, true,
		recipe.Values{"k": num(2), "alpha": num(0.7)},
		recipe.Values{"lambda": num(0.5)},
		func(b []float64, x [][]float64, _ int) []float64 {
			d := less(x, b)
			out := make([]float64, len(b))
			for i, total := range mix([]float64{1, 1, 1}, d) {
				votes := 0
				for j := range d {
					if math.Abs(d[j][i]) > 0.5*math.Abs(total-d[j][i]) {
						votes++
					}
				}
				if votes >= 2 {
					out[i] = total
				}
			}
			return added(b, 0.7, out)
		},
	},
	{
		"emr", "emr", 3, true, nil, nil,
		func(b []float64, x [][]float64, _ int) []float64 { return added(b, 1, unified(less(x, b))) },
	},
	{
		"emr of a task", "emr", 3, true,
		recipe.Values{"task": num(2)},
		nil,
		func(b []float64, x [][]float64, _ int) []float64 {
			d := less(x, b)
			u := unified(d)
			own, masked := 0.0, 0.0
			for i := range u {
				own += math.Abs(d[1][i])
				if u[i]*d[1][i] <= 0 {
					u[i] = 0
				}
				masked += math.Abs(u[i])
			}
			return added(b, own/masked, u)
		},
	},
	{
		"magmax", "magmax", 3, true,
		recipe.Values{"scale": num(0.8)},
		nil,
		func(b []float64, x [][]float64, _ int) []float64 {
			d := less(x, b)
			out := make([]float64, len(b))
			for i := range out {
				out[i] = slices.MaxFunc([]float64{d[0][i], d[1][i], d[2][i]},
					func(p, q float64) int { return cmp.Compare(math.Abs(p), math.Abs(q)) })
			}
			return added(b, 0.8, out)
		},
	},
	{
		"pcb", "pcb", 3, true,
		recipe.Values{"r": num(0.4)},
		recipe.Values{"lambda": num(1.1)},
		func(b []float64, x [][]float64, _ int) []float64 { return added(b, 1, competing(less(x, b), 0.4, 1.1)) },
	},

	{
		"pcb of nearly all", "pcb", 3, true,
		recipe.Values{"r": num(0.9)},
		recipe.Values{"lambda": num(1.1)},
		func(b []float64, x [][]float64, _ int) []float64 { return added(b, 1, competing(less(x, b), 0.9, 1.1)) },
	},
	{
		"bitdelta", "bitdelta", 3, true, nil, nil,
		func(b []float64, x [][]float64, _ int) []float64 {
			d := less(x, b)
			for j := range d {
				size := 0.0
				for _, v := range d[j] {
					size += math.Abs(v) / float64(len(b))
				}
				for i, v := range d[j] {
					d[j][i] = math.Copysign(size, v)
				}
			}
			return added(b, 1, mix(formulaWeights, d))
		},
	},
}

// TestFormulas compares every method with its formula, on matrices of several blocks, of a single row and of a single
// column. Elements that decide over others, as at a threshold, are far enough apart in random values for float32 to put
// them in the same order; what is left is rounding of float32, in sums of a few values.
func TestFormulas(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 5))
	for _, shape := range [][]int64{{3, 1500}, {7, 9}, {1, 40}} {
		for _, f := range formulas {
			n := shape[0] * shape[1]
			p := problem{method: f.method, shape: shape, params: f.params, each: func(j int) recipe.Values {
				if f.each != nil && f.each["density"].Number == 0 {
					return f.each
				}
				v := recipe.Values{"weight": num(formulaWeights[j])}
				for name, x := range f.each {
					v[name] = x
				}
				return v
			}, work: 3}

			base := make([]float32, n)
			for i := range base {
				base[i] = float32(rng.NormFloat64())
			}
			if f.based {
				p.base = base
			}

			var x [][]float64
			for range f.models {
				model := make([]float32, n)
				for i := range model {
					model[i] = base[i] + float32(0.7*rng.NormFloat64())
				}
				p.models = append(p.models, model)
				x = append(x, wide(model))
			}

			want := f.want(wide(base), x, int(shape[1]))
			for i, v := range p.solve(t) {
				if d := math.Abs(float64(v) - want[i]); !(d <= 2e-5*(1+math.Abs(want[i]))) {
					t.Errorf("%s of %v: element %d is %v, want %v", f.name, shape, i, v, want[i])
					break
				}
			}
		}
	}
}

// TestThinnedDifferences: what DARE and DELLA leave of a difference is proportional to it, with one factor, which
// restores the norm that the recipe names.
func TestThinnedDifferences(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 5))
	base, model := make([]float32, 6000), make([]float32, 6000)
	for i := range base {
		base[i] = float32(rng.NormFloat64())
		model[i] = base[i] + float32(0.5*rng.NormFloat64())
	}

	norms := map[string]func(d []float64) float64{
		"l1": func(d []float64) (s float64) {
			for _, v := range d {
				s += math.Abs(v)
			}
			return s
		},
		"l2":   func(d []float64) float64 { return math.Sqrt(dot(d, d)) },
		"linf": func(d []float64) float64 { return math.Abs(d[ranked(d)[0]]) },
	}

	for _, name := range []string{"dare_linear", "dare_ties", "della_linear", "della"} {
		for _, norm := range []string{"l1", "l2", "linf", "inverse_density"} {
			p := problem{
				method: name, base: base, models: [][]float32{model}, shape: []int64{3, 2000}, seed: 9,
				params: recipe.Values{
					"rescale": truth(true), "rescale_norm": *recipe.TextValue(norm), "normalize": truth(false),
				},
				each: func(int) recipe.Values { return recipe.Values{"weight": num(1), "density": num(0.3)} },
			}

			d := less([][]float64{wide(model)}, wide(base))[0]
			got := less([][]float64{wide(p.solve(t))}, wide(base))[0]
			left := make([]float64, len(d))
			some := 0
			for i, v := range got {
				if v != 0 {
					left[i] = d[i]
					some++
				}
			}

			factor := 1 / 0.3
			if f := norms[norm]; f != nil {
				factor = f(d) / f(left)
			}

			for i, v := range got { // the sum with the base is rounded to float32
				if math.Abs(v-factor*left[i]) > 2e-6 {
					t.Errorf("%s, %s: element %d is %v of %v, the factor is %v", name, norm, i, v, d[i], factor)
					break
				}
			}

			if share := float64(some) / float64(len(d)); math.Abs(share-0.3) > 0.03 { // five deviations of 0.006
				t.Errorf("%s, %s: %.3f of the elements stay, the density is 0.3", name, norm, share)
			}
		}
	}
}

// TestDellaPrefersLarge: the probability of staying grows evenly with the rank of a magnitude in its row, from
// density - epsilon to density + epsilon.
func TestDellaPrefersLarge(t *testing.T) {
	const cols = 40_000
	rng := rand.New(rand.NewPCG(13, 5))
	model := make([]float32, cols)
	for i := range model {
		model[i] = float32(rng.NormFloat64())
	}

	p := problem{
		method: "della_linear", base: make([]float32, cols), models: [][]float32{model},
		shape: []int64{1, cols}, seed: 4, params: recipe.Values{"rescale": truth(false)},
		each: func(int) recipe.Values {
			return recipe.Values{"weight": num(1), "density": num(0.5), "epsilon": num(0.4)}
		},
	}

	got := p.solve(t)
	order := ranked(wide(model))
	for tenth := range 10 {
		stay := 0
		for _, i := range order[tenth*cols/10 : (tenth+1)*cols/10] {
			if got[i] != 0 {
				stay++
			}
		}

		want := 0.9 - 0.8*(float64(tenth)+0.5)/10
		if share := float64(stay) / (cols / 10); math.Abs(share-want) > 0.04 { // five deviations of at most 0.008
			t.Errorf("of tenth %d from the top %.3f stay, want %.3f", tenth, share, want)
		}
	}
}

// TestStatisticsDecide: Fisher's mean element by element, and the normal equations of RegMean,
// (Σ Ĝ_j)·W = Σ Ĝ_j·W_j, which hold for its result and for nothing else.
func TestStatisticsDecide(t *testing.T) {
	const out, in = 5, 7
	rng := rand.New(rand.NewPCG(14, 5))
	fisher := problem{method: "fisher", shape: []int64{out, in}}
	gram := problem{method: "regmean", shape: []int64{out, in}, params: recipe.Values{"alpha": num(0.9)}}
	for range 3 {
		w := make([]float32, out*in)
		f := make([]float32, out*in)
		g := make([]float32, in*in)
		x := make([]float32, 20*in)
		for _, list := range [][]float32{w, f, x} {
			for i := range list {
				list[i] = float32(rng.NormFloat64())
			}
		}

		for i := range f {
			f[i] *= f[i]
		}
		for i := range g {
			for p := range 20 {
				g[i] += x[p*in+i/in] * x[p*in+i%in] / 20
			}
		}

		f[3] = 0 // no model cares about this element, and it is averaged
		fisher.models, gram.models = append(fisher.models, w), append(gram.models, w)
		fisher.stat, fisher.shapes = append(fisher.stat, f), append(fisher.shapes, []int64{out, in})
		gram.stat, gram.shapes = append(gram.stat, g), append(gram.shapes, []int64{in, in})
	}

	for i, v := range fisher.solve(t) {
		num, den := 0.0, 0.0
		for j, w := range fisher.models {
			f := float64(fisher.stat[j][i])
			if i == 3 {
				f = 1
			}
			num += f * float64(w[i])
			den += f
		}
		if math.Abs(float64(v)-num/den) > 1e-6 {
			t.Errorf("fisher: element %d is %v, want %v", i, v, num/den)
		}
	}

	w := gram.solve(t)
	for o := range out {
		for i := range in {
			rest := 0.0
			for j, x := range gram.models {
				for k := range in {
					g := float64(gram.stat[j][i*in+k])
					if i != k {
						g *= 0.9
					}
					rest += g * (float64(w[o*in+k]) - float64(x[o*in+k]))
				}
			}
			if math.Abs(rest) > 1e-4 { // a condition of some tens, and w is rounded to float32
				t.Errorf("regmean: equation [%d, %d] misses by %g", i, o, rest)
			}
		}
	}
}

// TestIsotropic: iso_c adds a matrix with equal singular values whose directions are those of the sum S of differences:
// R·Rᵀ is a multiple of the identity, R·Sᵀ is symmetric, and their traces say that the value is the mean one.
func TestIsotropic(t *testing.T) {
	const rows, cols = 4, 9
	rng := rand.New(rand.NewPCG(15, 5))
	p := problem{method: "iso_c", shape: []int64{rows, cols}, base: make([]float32, rows*cols)}
	s := make([]float64, rows*cols)
	for range 3 {
		x := make([]float32, rows*cols)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
			s[i] += float64(x[i])
		}
		p.models = append(p.models, x)
	}

	r := wide(p.solve(t))
	product := func(x, y []float64, i, j int) float64 { return dot(x[i*cols:(i+1)*cols], y[j*cols:(j+1)*cols]) }
	square := product(r, r, 0, 0)
	trace := 0.0
	for i := range rows {
		trace += product(r, s, i, i)
		for j := range rows {
			want := 0.0
			if i == j {
				want = square
			}
			if math.Abs(product(r, r, i, j)-want) > 1e-5*square {
				t.Errorf("R·Rᵀ[%d, %d] is %g, want %g", i, j, product(r, r, i, j), want)
			}
			if math.Abs(product(r, s, i, j)-product(r, s, j, i)) > 1e-5*square {
				t.Errorf("R·Sᵀ is not symmetric at [%d, %d]", i, j)
			}
		}
	}

	if math.Abs(trace-rows*square) > 1e-4*square { // σ·Σσ_i = n·σ² with σ = Σσ_i/n
		t.Errorf("the trace of R·Sᵀ is %g, want %g: the singular value is not the mean one", trace, rows*square)
	}
}
