package main

// expNegative replaces the vector x ≤ 0 by exp(x), within 1e-7 of its value, and by 0 below -87, where results
// would leave the normal range; NaN stays NaN. lo holds expmin; t, u and w are overwritten.
func (f *file) expNegative(x, lo, t, u, w int) {
	if f.wide() {
		f.op("VCMPPS $5, {%d}, {%d}, K3", lo, x) // not less: NaN is kept
	} else {
		f.op("VCMPPS $5, {%d}, {%d}, {%d}", lo, x, w)
	}

	f.op("VMAXPS {%d}, {%d}, {%d}", x, lo, x) // of a NaN and a number the first operand here is taken
	f.expNormal(x, t, u)

	if f.wide() {
		f.op("VSCALEFPS.Z {%d}, {%d}, K3, {%d}", t, u, x)
		return
	}

	f.op("VMULPS {%d}, {%d}, {%d}", t, u, x)
	f.op("VANDPS {%d}, {%d}, {%d}", w, x, x)
}

// expNormal computes the factors of exp(x) for |x| ≤ 87: u = exp(r) and, in AVX-512, the exponent n, in AVX2
// the float 2^n in t, where x = n·ln 2 + r.
func (f *file) expNormal(x, t, u int) {
	f.opc("VMULPS", "log2e", "{%d}, {%d}", x, t)

	if f.wide() {
		f.op("VRNDSCALEPS $0, {%d}, {%d}", t, t)
	} else {
		f.op("VROUNDPS $0, {%d}, {%d}", t, t)
	}

	f.opc("VFNMADD231PS", "ln2hi", "{%d}, {%d}", t, x)
	f.opc("VFNMADD231PS", "ln2lo", "{%d}, {%d}", t, x)
	f.polynomial(x, u, "e4", "e3", "e2", "e1", "e0", "one", "one")

	if !f.wide() {
		f.op("VCVTPS2DQ {%d}, {%d}", t, t)
		f.opc("VPADDD", "expbias", "{%d}, {%d}", t, t)
		f.op("VPSLLD $23, {%d}, {%d}", t, t)
	}
}

// polynomial computes out = Σ c·x^i, highest coefficient first.
func (f *file) polynomial(x, out int, c ...string) {
	f.set(c[0], out)
	for _, name := range c[1:] {
		f.opc("VFMADD213PS", name, "{%d}, {%d}", x, out)
	}
}

// divide computes n = n / d. AVX-512's quotient costs more than a refined reciprocal; d must have a normal
// reciprocal. t is overwritten.
func (f *file) divide(n, d, t, u int) {
	if !f.wide() {
		f.op("VDIVPS {%d}, {%d}, {%d}", d, n, n)
		return
	}
	f.reciprocal(d, t, u)
	f.op("VMULPS {%d}, {%d}, {%d}", t, n, n)
}

// reciprocal computes t = 1 / d by one Newton step from 14 bits.
func (f *file) reciprocal(d, t, u int) {
	f.op("VRCP14PS {%d}, {%d}", d, t)
	f.set("one", u)
	f.op("VFNMADD231PS {%d}, {%d}, {%d}", d, t, u) // u = 1 - d·t
	f.op("VFMADD231PS {%d}, {%d}, {%d}", t, u, t)  // t += t·u
}

// quotient computes x = x / (1 + exp(y)). Above y = 87, where the quotient vanishes, x is multiplied by 0, so
// that infinities become NaN as in the formula. t, u and w are overwritten.
func (f *file) quotient(x, y, t, u, w int) {
	if f.wide() {
		f.op("VCMPPS $10, {%d}, {%d}, K3", highLimit, y) // not greater: NaN is kept
	} else {
		f.op("VCMPPS $10, {%d}, {%d}, {%d}", highLimit, y, w)
	}

	f.op("VMINPS {%d}, {%d}, {%d}", y, highLimit, y)
	f.op("VMAXPS {%d}, {%d}, {%d}", y, lowLimit, y)
	f.expNormal(y, t, u)

	if f.wide() {
		f.op("VSCALEFPS {%d}, {%d}, {%d}", t, u, y)
		f.opc("VADDPS", "one", "{%d}, {%d}", y, y)
		f.reciprocal(y, t, u)
		f.op("VMOVAPS.Z {%d}, K3, {%d}", t, t)
	} else {
		f.op("VMULPS {%d}, {%d}, {%d}", t, u, y)
		f.opc("VADDPS", "one", "{%d}, {%d}", y, y)
		f.set("one", t)
		f.op("VDIVPS {%d}, {%d}, {%d}", y, t, t)
		f.op("VANDPS {%d}, {%d}, {%d}", w, t, t)
	}

	f.op("VMULPS {%d}, {%d}, {%d}", t, x, x)
}

// Registers of the activations: x in 0, temporaries 1 to 6, limits 13 and 14.
const (
	lowLimit  = 13
	highLimit = 14
)

// activation is one element-wise function: x in register 0 is replaced by f(x).
type activation struct {
	name, doc string
	limits    func(*file)
	body      func(*file)
}

var functions = []activation{
	{"silu", "x / (1 + exp(-x))", func(f *file) { f.set("expmin", lowLimit); f.set("expmax", highLimit) }, silu},
	{"gelu", "x · Φ(x)", func(f *file) { f.set("expmin", lowLimit); f.set("gmax", highLimit) }, gelu},
	{"geluTanh", "x / (1 + exp(-2·√(2/π)·(x + 0.044715·x³)))", func(f *file) {
		f.set("expmin",
			lowLimit)
		f.set("expmax", highLimit)
	}, geluTanh},
	{"relu", "max(x, 0)", func(f *file) { f.zero(lowLimit) }, func(f *file) {
		f.op("VMAXPS {0}, {%d}, {0}",
			lowLimit)
	}},
}

func silu(f *file) {
	f.opc("VXORPS", "sign", "{0}, {1}")
	f.quotient(0, 1, 2, 3, 4)
}

func geluTanh(f *file) {
	f.op("VMULPS {0}, {0}, {2}")
	f.set("gt3", 1)
	f.opc("VFMADD213PS", "gt1", "{2}, {1}")
	f.op("VMULPS {0}, {1}, {1}")
	f.quotient(0, 1, 2, 3, 4)
}

func gelu(f *file) {
	f.normal(1)
	f.op("VMULPS {2}, {0}, {0}")
}

// normal puts Φ(x) into register 2 and exp(-x²/2) into keep: Φ(-|x|) = exp(-x²/2)·P((|x| - 3.5)/(|x| + 3.5)),
// and 1 less that where x is not negative. keep is 1, and overwritten, where the exponential is not wanted.
func (f *file) normal(keep int) {
	f.op("VMULPS {0}, {0}, {1}")
	f.opc("VMULPS", "minushalf", "{1}, {1}")
	f.expNegative(1, lowLimit, 2, 3, 4)
	f.opc("VANDPS", "magnitude", "{0}, {2}")
	f.op("VMINPS {2}, {%d}, {2}", highLimit)
	f.opc("VADDPS", "gcentre", "{2}, {3}")
	f.set("gcentre", 4)
	f.op("VSUBPS {4}, {2}, {2}")
	f.divide(2, 3, 4, 5)
	f.polynomial(2, 3, "g10", "g9", "g8", "g7", "g6", "g5", "g4", "g3", "g2", "g1", "g0")
	if keep != 1 {
		f.op("VMOVAPS {1}, {%d}", keep)
	}

	f.op("VMULPS {3}, {1}, {1}")
	f.set("one", 2)
	f.op("VSUBPS {1}, {2}, {2}")

	if f.wide() {
		f.op("VPMOVD2M {0}, K2")
		f.op("VMOVAPS {1}, K2, {2}")
	} else {
		f.op("VBLENDVPS {0}, {1}, {2}, {2}") // by the sign of x
	}
}

// tanh replaces register 0: x + x³·P(x²) below 0.625, 1 - 2e/(1 + e) with e = exp(-2|x|) and the sign of x above.
func tanh(f *file) {
	f.opc("VANDPS", "magnitude", "{0}, {1}")
	f.op("VADDPS {1}, {1}, {2}")
	f.opc("VXORPS", "sign", "{2}, {2}")
	f.expNegative(2, lowLimit, 3, 4, 5)
	f.op("VADDPS {2}, {2}, {3}")
	f.opc("VADDPS", "one", "{2}, {2}")
	f.divide(3, 2, 4, 5)
	f.set("one", 2)
	f.op("VSUBPS {3}, {2}, {2}")
	f.opc("VANDPS", "sign", "{0}, {3}")
	f.op("VORPS {3}, {2}, {2}")
	f.op("VMULPS {0}, {0}, {3}")
	f.polynomial(3, 4, "t4", "t3", "t2", "t1", "t0")
	f.op("VMULPS {0}, {3}, {3}")
	f.op("VFMADD231PS {4}, {3}, {0}")
	f.set("tanhsmall", 3)

	if f.wide() {
		f.op("VCMPPS $13, {3}, {1}, K2") // |x| ≥ 0.625
		f.op("VMOVAPS {2}, K2, {0}")
		return
	}

	f.op("VCMPPS $13, {3}, {1}, {3}")
	f.op("VBLENDVPS {3}, {2}, {0}, {0}")
}
