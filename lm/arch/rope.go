package arch

import "math"

// Rope says how a model rotates its queries and keys. The formulas are those of the papers that introduced the types
// (position interpolation, NTK-aware scaling, YaRN, LongRoPE) as the usual implementations compute them.
type Rope struct {
	Type         string // "default", "linear", "dynamic", "llama3", "yarn" or "longrope"
	Dim          int    // rotated channels of a head, even
	Interleaved  bool   // pairs are channels (2i, 2i+1) instead of (i, i+Dim/2)
	Theta        float64
	MaxPositions int // max_position_embeddings

	Factor        float64
	Original      int     // positions of the original training
	LowFreq       float64 // llama3
	HighFreq      float64
	BetaFast      float64 // yarn
	BetaSlow      float64
	Truncate      bool
	MScale        float64 // 0: not given
	MScaleAllDim  float64
	AttentionGain float64   // the configuration's attention_factor; 0: not given
	ShortFactor   []float64 // longrope, Dim/2 each
	LongFactor    []float64
}

// InvFreq gives the Dim/2 frequencies, in radians per position, for a sequence of n positions, and the factor on
// sines and cosines.
func (r *Rope) InvFreq(n int) (freq []float64, gain float64) {
	freq = r.base(r.Theta)
	switch r.Type {
	case "linear":
		scale(freq, func(int) float64 { return 1 / r.Factor })
	case "dynamic":
		if n > r.MaxPositions {
			d, stretch := float64(r.Dim), r.Factor*float64(n)/float64(r.MaxPositions)-(r.Factor-1)
			freq = r.base(r.Theta * math.Pow(stretch, d/(d-2)))
		}
	case "llama3":
		scale(freq, func(i int) float64 { return r.llama3(freq[i]) })
	case "yarn":
		lo, hi := r.yarnRange()
		scale(freq, func(i int) float64 {
			ramp := min(max((float64(i)-lo)/(hi-lo), 0), 1)
			return 1 - ramp + ramp/r.Factor
		})
		return freq, r.yarnGain()
	case "longrope":
		factors := r.ShortFactor
		if n > r.Original {
			factors = r.LongFactor
		}
		scale(freq, func(i int) float64 { return 1 / factors[i] })
		return freq, r.longGain()
	}

	return freq, 1
}

// Static reports whether the frequencies are the same for every length.
func (r *Rope) Static() bool { return r.Type != "dynamic" && r.Type != "longrope" }

// base gives θ^(-2i/d).
func (r *Rope) base(theta float64) []float64 {
	f := make([]float64, r.Dim/2)
	for i := range f {
		f[i] = math.Pow(theta, -2*float64(i)/float64(r.Dim))
	}
	return f
}

func scale(freq []float64, by func(i int) float64) {
	for i := range freq {
		freq[i] *= by(i)
	}
}

// llama3 gives the factor on one frequency: long waves are stretched, short ones are not, with a ramp between.
func (r *Rope) llama3(freq float64) float64 {
	wave, l0 := 2*math.Pi/freq, float64(r.Original)
	switch {
	case wave < l0/r.HighFreq:
		return 1
	case wave > l0/r.LowFreq:
		return 1 / r.Factor
	}
	t := (l0/wave - r.LowFreq) / (r.HighFreq - r.LowFreq)
	return (1-t)/r.Factor + t
}

// yarnRange gives the pairs between which interpolation fades in.
func (r *Rope) yarnRange() (lo, hi float64) {
	dim := func(rotations float64) float64 {
		return float64(r.Dim) * math.Log(float64(r.Original)/(2*math.Pi*rotations)) / (2 * math.Log(r.Theta))
	}
	lo, hi = dim(r.BetaFast), dim(r.BetaSlow)
	if r.Truncate {
		lo, hi = math.Floor(lo), math.Ceil(hi)
	}

	lo, hi = max(lo, 0), min(hi, float64(r.Dim-1))
	if lo == hi {
		hi += 0.001
	}

	return lo, hi
}

func (r *Rope) yarnGain() float64 {
	if r.AttentionGain != 0 {
		return r.AttentionGain
	}

	g := func(k float64) float64 {
		if r.Factor <= 1 {
			return 1
		}
		return 0.1*k*math.Log(r.Factor) + 1
	}

	if r.MScale != 0 && r.MScaleAllDim != 0 {
		return g(r.MScale) / g(r.MScaleAllDim)
	}

	return g(1)
}

func (r *Rope) longGain() float64 {
	switch {
	case r.AttentionGain != 0:
		return r.AttentionGain
	case r.Factor <= 1:
		return 1
	}
	return math.Sqrt(1 + math.Log(r.Factor)/math.Log(float64(r.Original)))
}

// Fill writes the cosines and sines of positions [pos, pos+rows) for a sequence of n positions. Frequencies and
// angles are rounded to float32 as the reference implementations do, which shows at tens of thousands of positions.
func (r *Rope) Fill(cos, sin []float32, pos, n int) {
	freq, gain := r.InvFreq(n)
	half := len(freq)
	for row := range len(cos) / half {
		p := float32(pos + row)
		for i, f := range freq {
			s, c := math.Sincos(float64(p * float32(f)))
			cos[row*half+i], sin[row*half+i] = float32(c*gain), float32(s*gain)
		}
	}
}
