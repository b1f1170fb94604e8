package mediate

import "math"

// Metrics lists the names of the metrics.
func Metrics() []string { return []string{"disagree", "any", "coactive", "total", "mass", "cosine"} }

// Measures are the six metrics. P and N are how many denoised differences of an element are positive and
// negative; an element is active if any is not zero.
type Measures struct {
	Disagree float64 `json:"disagree"` // mean over active elements of 1 - |P-N|/(P+N)
	Any      float64 `json:"any"`      // fraction of active elements with both signs
	Coactive float64 `json:"coactive"` // fraction of those with both signs among elements with at least two differences
	Total    float64 `json:"total"`    // fraction of all elements with both signs
	Mass     float64 `json:"mass"`     // 1 - ‖Σ_t τ̂_t‖₁ / Σ_t ‖τ̂_t‖₁: what cancels in the sum
	Cosine   float64 `json:"cosine"`   // 1 - mean cosine of two differences, without denoising; 0 … 2
}

// Of gives the metric of a name, and whether there is one of that name.
func (m Measures) Of(metric string) (float64, bool) {
	switch metric {
	case "disagree":
		return m.Disagree, true
	case "any":
		return m.Any, true
	case "coactive":
		return m.Coactive, true
	case "total":
		return m.Total, true
	case "mass":
		return m.Mass, true
	case "cosine":
		return m.Cosine, true
	}

	return 0, false
}

// Totals are the exact counts behind the metrics.
type Totals struct {
	Elements int64 `json:"elements"`
	Active   int64 `json:"active"`      // some difference is not zero
	Several  int64 `json:"several"`     // at least two are not
	Both     int64 `json:"conflicting"` // some are positive and some negative
	// NonFinite counts the differences of models that are a NaN or an infinity, and count as none.
	NonFinite int64 `json:"non_finite,omitempty"`
}

// Totals sums the counts up.
func (c *counts) Totals() Totals {
	t := Totals{Elements: c.Elements, NonFinite: c.NonFinite}
	for i, n := range c.Pairs {
		p, q := i/(c.Models+1), i%(c.Models+1)
		if p+q > 0 {
			t.Active += n
		}
		if p+q > 1 {
			t.Several += n
		}
		if p > 0 && q > 0 {
			t.Both += n
		}
	}

	return t
}

// deficit is Σ over active elements of 1 - |P-N|/(P+N).
func (c *counts) deficit() float64 {
	sum := 0.0
	for i, n := range c.Pairs {
		p, q := i/(c.Models+1), i%(c.Models+1)
		if p > 0 && q > 0 {
			sum += float64(n) * (1 - math.Abs(float64(p-q))/float64(p+q))
		}
	}
	return sum
}

// cosine sums the cosines of all pairs of differences that are not zero.
func (c *counts) cosine() (sum, pairs float64) {
	for s := range c.Models {
		for t := range s {
			if norm := math.Sqrt(c.Gram[s*c.Models+s]) * math.Sqrt(c.Gram[t*c.Models+t]); norm > 0 {
				sum, pairs = sum+min(1, max(-1, c.Gram[s*c.Models+t]/norm)), pairs+1
			}
		}
	}
	return sum, pairs
}

// Fraction gives a metric as numerator and denominator; groups are measured by the quotient of the sums.
func (c *counts) Fraction(metric string) (num, den float64) {
	t := c.Totals()
	switch metric {
	case "disagree":
		return c.deficit(), float64(t.Active)
	case "any":
		return float64(t.Both), float64(t.Active)
	case "coactive":
		return float64(t.Both), float64(t.Several)
	case "total":
		return float64(t.Both), float64(t.Elements)
	case "mass":
		return c.Mass - c.Net, c.Mass
	case "cosine":
		sum, pairs := c.cosine()
		return pairs - sum, pairs
	}

	return 0, 0
}

// value is a metric; nothing over nothing is no conflict.
func (c *counts) value(metric string) float64 {
	num, den := c.Fraction(metric)
	if den == 0 {
		return 0
	}
	return num / den
}

// Measures are the metrics of the counts.
func (c *counts) Measures() Measures {
	return Measures{
		Disagree: c.value("disagree"), Any: c.value("any"), Coactive: c.value("coactive"), Total: c.value("total"),
		Mass: c.value("mass"), Cosine: c.value("cosine"),
	}
}

// Norms are the lengths of the differences as fractions of the base's; 0 for a base of zeros.
func (c *counts) Norms() []float64 {
	list := make([]float64, c.Models)
	for t := range list {
		if c.Base > 0 {
			list[t] = math.Sqrt(c.Gram[t*c.Models+t] / c.Base)
		}
	}
	return list
}

// randomSigns is what the metrics give for differences of independent random signs, of which a fraction, density, is
// kept, each element with the same chance; of mass it supposes equal magnitudes. With m of T kept, an element
// has both signs with the chance 1 - 2^(1-m), and |P-N|/m is C(m-1, ⌊(m-1)/2⌋)/2^(m-1) in the mean (a simple
// random walk).
func randomSigns(models int, density float64) Measures {
	// The sum over how many of the models keep an element, each case with its binomial chance.
	density = min(1, density)
	var active, coactive, deficit, both, walk, mass float64
	for m := 1; m <= models; m++ {
		p := binomial(models, m, density)
		even := central(m)
		active += p
		if m > 1 {
			coactive += p
		}

		deficit += p * (1 - even)
		both += p * (1 - math.Exp2(float64(1-m)))
		walk += p * float64(m) * even
		mass += p * float64(m)
	}

	out := Measures{Total: both}
	if active > 0 {
		out.Disagree = deficit / active
		out.Any = both / active
		out.Mass = 1 - walk/mass
	}

	if coactive > 0 {
		out.Coactive, out.Cosine = both/coactive, 1
	}

	return out
}

// binomial is the chance of m among n with a probability of p.
func binomial(n, m int, p float64) float64 {
	if p >= 1 {
		if m == n {
			return 1
		}
		return 0
	}

	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(m + 1))
	c, _ := math.Lgamma(float64(n - m + 1))
	return math.Exp(a - b - c + float64(m)*math.Log(p) + float64(n-m)*math.Log1p(-p))
}

// central is C(m-1, ⌊(m-1)/2⌋)/2^(m-1).
func central(m int) float64 {
	x := 1.0
	for i := 1; i <= (m-1)/2; i++ {
		x *= float64(m-i) / float64(i)
	}
	return x / math.Exp2(float64(m-1))
}

// Excess divides the metrics by their baselines; where that is 0 it is 0.
func (m Measures) Excess(b Measures) Measures {
	ratio := func(x, y float64) float64 {
		if y == 0 {
			return 0
		}
		return x / y
	}

	return Measures{
		Disagree: ratio(m.Disagree, b.Disagree), Any: ratio(m.Any, b.Any), Coactive: ratio(m.Coactive, b.Coactive),
		Total: ratio(m.Total, b.Total), Mass: ratio(m.Mass, b.Mass), Cosine: ratio(m.Cosine, b.Cosine),
	}
}
