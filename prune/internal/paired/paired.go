// Package paired compares two lists of measurements of the same things, one by one.
package paired

import "math"

// Mean is the mean of values and its standard error, 0 for fewer than two values.
func Mean(v []float64) (mean, se float64) {
	n := float64(len(v))
	if n == 0 {
		return 0, 0
	}
	for _, x := range v {
		mean += x / n
	}
	if n < 2 {
		return mean, 0
	}
	for _, x := range v {
		se += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(se / (n - 1) / n)
}

// Test is a paired t-test of a - b against no difference. p is two-sided; it is 1 if there are fewer than two pairs or no
// difference at all, and 0 if all pairs differ by the same.
func Test(a, b []float64) (mean, se, p float64) {
	d := make([]float64, len(a))
	for i := range d {
		d[i] = a[i] - b[i]
	}
	mean, se = Mean(d)
	switch {
	case len(d) < 2 || mean == 0:
		return mean, se, 1
	case se == 0:
		return mean, se, 0
	}
	return mean, se, student(mean/se, float64(len(d)-1))
}

// student is P(|T| ≥ |t|) with f degrees of freedom: the regularised incomplete beta function at f/(f+t²).
func student(t, f float64) float64 { return incompleteBeta(f/2, 0.5, f/(f+t*t)) }

// incompleteBeta is I_x(a, b), by Lentz's evaluation of the continued fraction DLMF 8.17.22.
func incompleteBeta(a, b, x float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2): // where the fraction converges slowly
		return 1 - incompleteBeta(b, a, 1-x)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log1p(-x)) / a
	h, c, d := 1.0, 1.0, 1.0
	for i := 1; i < 400; i++ {
		v := term(i, a, b, x)
		if d = 1 / (1 + v*d); i > 1 {
			c = 1 + v/c
		}
		if h *= c * d; math.Abs(c*d-1) < 1e-15 {
			break
		}
	}
	return front * h
}

// term is partial numerator i, from 1, of the continued fraction 1/(1 + t₁/(1 + t₂/(1 + …))).
func term(i int, a, b, x float64) float64 {
	m := float64(i / 2)
	if i%2 == 0 {
		return m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
	}
	return -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
}
