package rng

import (
	"math"
	"testing"
)

// TestGolden: the numbers behind outputs that a seed has to reproduce, as FNV-1a sums of the first thousand.
// The sums were made by the generators that each schedule was at first.
func TestGolden(t *testing.T) {
	key := New(7, "noise").With(3)
	uniform := make([]float32, 1001)
	normal := make([]float32, 1001)
	dropped := make([]float32, 1001)

	key.FillUniform(uniform, 2.5)
	key.FillNormal(normal, 0.3)
	key.Dropout(dropped, uniform, 8, 0.2)
	permutation := key.Permutation(1000)

	wide := NewWide(7, "noise")
	stream := NewStream(7, 1, 2, 300)
	order := Order(7, 1000)

	for _, c := range []struct {
		name string
		n    int
		f    func(i uint64) uint64
		want uint64
	}{
		{
			"key", 1, func(uint64) uint64 { return uint64(New(7, "noise")) },
			sum(1, func(uint64) uint64 { return 0xa3bce81074f8e91 }),
		},
		{"bits", 1000, key.Bits, 0x12d30d5c51625419},
		{"float", 1000, floats(key.Float), 0x4b6335c5370ea7f7},
		{"below", 1000, func(i uint64) uint64 { return uint64(key.Below(i, 12345)) }, 0x955d326e5d28c3a0},
		{"uniform", 1001, singles(uniform), 0x6fbd227011f7bf1},
		{"normal", 1001, singles(normal), 0x30ecac233289d44},
		{"dropout", 1001, singles(dropped), 0x17b23fac82973312},
		{"permutation", 1000, func(i uint64) uint64 { return uint64(permutation[i]) }, 0xcd65bc5e02dc1721},

		{"token", 1000, floats(Token(7).Float), 0x4f7d04182767e3d0},
		{"sketch", 1000, floats(Sketch(7).Sign), 0xcc47f5ba6353a525},
		{"order", 1000, func(i uint64) uint64 { return uint64(order[i]) }, 0x42456ac955aa15e9},
		{"fold", 1000, func(i uint64) uint64 { return Fold(7, 9, []uint64{1, 5}[i%2], i<<19>>20) }, 0x94695f2491eed150},

		{"wide bits", 1000, wide.Bits, 0x3face7f5c37df26c},
		{"wide open", 1000, floats(wide.Open), 0x348d5825d81a7d02},
		{"wide normal", 1000, floats(wide.Normal), 0x8cab36f4b2cd4c74},

		// One after the other from the same stream.
		{"stream below", 1000, func(uint64) uint64 { return uint64(stream.Below(12345)) }, 0x3c8613602d7e4184},
		{"stream float", 1000, func(uint64) uint64 { return math.Float64bits(stream.Float()) }, 0x32f8ce5a5cf722de},
		{"stream normal", 1000, func(uint64) uint64 { return math.Float64bits(stream.Normal()) }, 0x735b76c1861c49b1},
	} {
		if got := sum(c.n, c.f); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

func floats(f func(uint64) float64) func(uint64) uint64 {
	return func(i uint64) uint64 { return math.Float64bits(f(i)) }
}

func singles(x []float32) func(uint64) uint64 {
	return func(i uint64) uint64 { return uint64(math.Float32bits(x[i])) }
}

// sum is the FNV-1a hash of n numbers, their bytes from the lowest.
func sum(n int, f func(i uint64) uint64) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range uint64(n) {
		v := f(i)
		for range 8 {
			h = (h ^ v&0xff) * 0x100000001b3
			v >>= 8
		}
	}
	return h
}
