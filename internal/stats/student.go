package stats

import "math"

// PairedT is Student's test of whether the mean difference of pairs is zero.
type PairedT struct {
	Difference float64 // mean of a - b
	Stderr     float64 // of the mean
	T          float64
	P          float64 // two-sided; 0 where all pairs differ by the same amount, NaN where one is not finite
}

// StudentPaired tests two lists of the same length, of two values or more.
func StudentPaired(a, b []float64) PairedT {
	r := PairedT{P: 1}
	n := float64(len(a))
	for i := range a {
		r.Difference += (a[i] - b[i]) / n
	}

	square := 0.0
	for i := range a {
		d := a[i] - b[i] - r.Difference
		square += d * d
	}

	r.Stderr = math.Sqrt(square / (n - 1) / n)

	switch {
	case math.IsNaN(r.Difference) || math.IsNaN(r.Stderr) || math.IsInf(r.Stderr, 0):
		r.T = math.NaN()
		r.P = math.NaN()
	case r.Stderr > 0:
		r.T = r.Difference / r.Stderr
		r.P = StudentP(r.T, n-1)
	case r.Difference != 0:
		r.P = 0
	}

	return r
}

// StudentP is the two-sided probability of a |t| at least as large with v degrees of freedom: I(v/(v+t²); v/2, 1/2).
func StudentP(t, v float64) float64 {
	x := v / (v + t*t)
	if x >= 1 {
		return 1
	}

	a, b := v/2, 0.5
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab - la - lb + a*math.Log(x) + b*math.Log1p(-x))

	// The continued fraction converges fast on its side of the distribution's mean alone.
	if x < (a+1)/(a+b+2) {
		return front / a * fraction(a, b, x)
	}

	return 1 - front/b*fraction(b, a, 1-x)
}

// fraction is the continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method.
func fraction(a, b, x float64) float64 {
	const tiny, enough = 1e-300, 1e-15
	away := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}

	c, d := 1.0, 1/away(1-(a+b)*x/(a+1))
	f := d
	for m := 1.0; m < 500; m++ {
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		for _, k := range []float64{even, odd} {
			d = 1 / away(1+k*d)
			c = away(1 + k/c)
			f *= c * d
		}

		if math.Abs(c*d-1) < enough {
			break
		}
	}

	return f
}

// Student95 is the t that 5 % of Student's distribution with v degrees of freedom exceed on either side
// together: the half width of a 95 % interval in standard errors.
func Student95(v float64) float64 {
	lo, hi := 1.0, 13.0 // 12.7 with 1 degree of freedom, 1.96 with many
	for hi-lo > 1e-12*hi {
		if mid := (lo + hi) / 2; mid == lo || mid == hi {
			break
		} else if StudentP(mid, v) > 0.05 {
			lo = mid
		} else {
			hi = mid
		}
	}

	return math.Max(lo, hi)
}
