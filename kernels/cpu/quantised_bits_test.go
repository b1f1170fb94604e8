package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// fused is a·b + c, rounded once. The product is exact in float64; the sum is rounded to odd there, so that rounding it
// again to float32 is as rounding it once (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
func fused(a, b, c float32) float32 {
	x, y := float64(a)*float64(b), float64(c)
	sum := x + y
	part := sum - x
	lost := (x - (sum - part)) + (y - part)
	if lost != 0 && math.Float64bits(sum)&1 == 0 {
		if (lost > 0) == (sum > 0) {
			sum = math.Float64frombits(math.Float64bits(sum) + 1)
		} else {
			sum = math.Float64frombits(math.Float64bits(sum) - 1)
		}
	}
	return float32(sum)
}

// lanesSum adds up the lanes of a register, pair by pair.
func lanesSum(lanes []float32) float32 {
	for n := len(lanes) / 2; n > 0; n /= 2 {
		for i := range n {
			lanes[i] += lanes[n+i]
		}
	}
	return lanes[0]
}

// byteModel is the product of rounded activations and a quantised weight in Go, with the order of additions that all
// kernels keep: integers in any order, floats as the comments of its methods say.
type byteModel struct {
	w      kernels.Quantised
	codes  []int32 // of x, with a scale for 32 elements
	scales []float32
}

// round rounds a row of x, in blocks of 32, for Int8 the whole row alike.
func (m *byteModel) round(x []float32) {
	span := codeGroup
	if m.w.Format == kernels.Int8 {
		span = len(x)
	}
	m.codes = make([]int32, len(x))
	m.scales = make([]float32, len(x)/codeGroup)
	for lo := 0; lo < len(x); lo += span {
		peak := float32(0)
		for _, v := range x[lo : lo+span] {
			peak = max(peak, float32(math.Abs(float64(v))))
		}
		for p := lo; p < lo+span; p++ {
			m.codes[p] = int32(math.RoundToEven(float64(x[p] * float32(127/peak))))
			m.scales[p/codeGroup] = peak / 127
		}
	}
}

// group is 32 elements of row j of the weight: signed codes, and what they are multiplied by and what is added.
func (m *byteModel) group(j, g int) codes {
	var c codes
	data := m.w.Data.RowU8(j)
	if !m.w.Format.Grouped() {
		elements, bytes := m.w.Format.Block()
		c.takeApart(m.w.Format, data[g*codeGroup/elements*bytes:][:bytes], g*codeGroup%elements/codeGroup)
		return c
	}

	c.set(m.w.Scales.RowF32(j)[g*codeGroup/m.w.Group], 0, false)
	for p := range c.q {
		at := g*codeGroup + p
		if m.w.Format == kernels.Int8 {
			c.q[p] = int8(data[at])
		} else {
			c.q[p] = int8(data[at/2]>>(at%2*4)&15) - 8
		}
	}
	return c
}

// sum is the integer sum of the products of elements [lo, hi) of group g.
func (m *byteModel) sum(c *codes, g, lo, hi int) int32 {
	v := int32(0)
	for p := lo; p < hi; p++ {
		v += int32(c.q[p]) * m.codes[g*codeGroup+p]
	}
	return v
}

// total is the sum of the codes of group g.
func (m *byteModel) total(g int) int32 {
	v := int32(0)
	for _, c := range m.codes[g*codeGroup:][:codeGroup] {
		v += c
	}
	return v
}

// row is the product as row kernels have it: a float32 sum for every lane of four elements of two groups side by side,
// for superblocks two of them that take turns, for groups with a scale beside them one that is scaled at their end.
func (m *byteModel) row(j int) float32 {
	blocks := m.w.Cols / codeGroup
	elements, _ := m.w.Format.Block()
	var sums [3][16]float32 // the third has half a step
	var added [2][16]float32
	var inner [16]float32
	for g := range blocks {
		c := m.group(j, g)
		s, half := 0, g%2*8
		switch {
		case elements == 256:
			s = g / 2 % 2
		case blocks%2 == 1 && g == blocks-1:
			s = 2
		}

		for l := range 8 {
			v := float32(m.sum(&c, g, 4*l, 4*l+4))
			if m.w.Format.Grouped() && m.w.Group != codeGroup {
				inner[half+l] = fused(v, m.scales[g], inner[half+l])
			} else {
				sums[s][half+l] = fused(v, c.mul[l/4]*m.scales[g], sums[s][half+l])
			}
		}

		total := m.scales[g] * float32(m.total(g))
		switch {
		case elements == 256 && c.affine:
			added[0][g%8] = fused(c.add[0], total, added[0][g%8])
		case c.affine:
			added[s/2][half] = fused(c.add[0], total, added[s/2][half])
		}

		if scaled := m.w.Format.Grouped() && m.w.Group != codeGroup; scaled &&
			((g+1)*codeGroup%m.w.Group == 0 || g == blocks-1) {
			for l, v := range inner {
				sums[0][l] = fused(v, c.mul[0], sums[0][l])
			}
			clear(inner[:])
		}
	}

	lanes := make([]float32, 16)
	for l := range lanes {
		lanes[l] = (sums[0][l] + (sums[1][l] + sums[2][l] + added[1][l])) + added[0][l]
	}
	return lanesSum(lanes)
}

// tiled is the product as tiles have it: groups one after the other, blocks of byteDepth elements apart.
func (m *byteModel) tiled(j int) float32 {
	all := float32(0)
	for k := 0; k < m.w.Cols; k += byteDepth {
		part := float32(0)
		whole := m.w.Format == kernels.Int8 && m.w.Group >= m.w.Cols // one scale, one sum
		integer := int32(0)
		for g := k / codeGroup; g < min(m.w.Cols, k+byteDepth)/codeGroup; g++ {
			c := m.group(j, g)
			if whole {
				integer += m.sum(&c, g, 0, codeGroup)
				continue
			}

			wide := codeGroup
			if m.w.Format == kernels.Q6_K {
				wide = 16
			}
			for lo := 0; lo < codeGroup; lo += wide {
				part = fused(float32(m.sum(&c, g, lo, lo+wide))*m.scales[g], c.mul[lo/16], part)
			}
			if c.affine {
				part = fused(m.scales[g]*float32(m.total(g)), c.add[0], part)
			}
		}

		if whole {
			part = fused(float32(integer)*m.scales[0], m.w.Scales.RowF32(j)[0], 0)
		}
		if k == 0 {
			all = part
		} else {
			all += part
		}
	}
	return all
}

// byteLevels are settings of COMPRESS_CPU_DISABLE that leave AMX, AVX-512 VNNI, AVX-VNNI and AVX2 for products of
// bytes, the latter two also where there is no AVX-512 beside them; on Arm SMMLA, and SDOT alone.
var byteLevels = map[string][]string{
	"amd64": {"", "amx", "avx512vnni", "avx512vnni,avxvnni", "avx512", "avx512,avxvnni"},
	"arm64": {"", "i8mm"},
}[runtime.GOARCH]

// TestQuantisedBytesAreTheSameBits: products of bytes are, bit for bit, what their model in Go gives, whatever the
// instruction set.
func TestQuantisedBytesAreTheSameBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, disable := range byteLevels {
		t.Setenv("COMPRESS_CPU_DISABLE", disable)
		d := New(Options{Threads: 1})
		if !d.Info().Bytes {
			t.Skip("no instructions for products of bytes")
		}

		for _, f := range kernels.QuantFormats() {
			for _, cols := range []int{64, 288, 576, 1088} {
				k := quantisedColumns(f, cols)
				if f.Grouped() {
					k = roundUp(k, 64)
				}
				w := randomQuantised(rng, f, 19, k, kernels.NewHost)
				for _, rows := range []int{1, 3, 8, 13} {
					t.Run(fmt.Sprintf("%s %dx19x%d %q", f, rows, k, disable), func(t *testing.T) {
						compareBits(t, d, randomMat(rng, kernels.F32, rows, k, 0), w)
					})
				}
				if !f.Grouped() || cols < 288 {
					continue
				}
				for _, group := range []int{32, 128, k} {
					t.Run(fmt.Sprintf("%s %d/%d %q", f, k, group, disable), func(t *testing.T) {
						regroup(rng, &w, group)
						compareBits(t, d, randomMat(rng, kernels.F32, 13, k, 0), w)
					})
				}
			}
		}
	}
}

// compareBits holds a product to its model.
func compareBits(t *testing.T, d *Device, x kernels.Mat, w kernels.Quantised) {
	dst := newMat(kernels.F32, x.Rows, w.Rows(), 0)
	d.ops.MatMulQuantised(dst, x, w, kernels.MatMul{Precision: kernels.Fast})
	m := &byteModel{w: w}
	for i := range x.Rows {
		m.round(x.RowF32(i))
		for j, got := range dst.RowF32(i) {
			want := m.tiled(j)
			if x.Rows <= byteRowLimit {
				want = m.row(j)
			}
			if math.Float32bits(got) != math.Float32bits(want) {
				t.Fatalf("row %d column %d: %v, model %v", i, j, got, want)
			}
		}
	}
}

// FuzzQuantised: products of bytes are their model's bits, and those of single rows of floats as good as sums are, for
// drawn shapes and groups under every instruction set.
func FuzzQuantised(f *testing.F) {
	for i := range kernels.QuantFormats() {
		f.Add(uint8(i), uint8(13), uint8(19), uint16(17+i), uint8(i), uint64(1))
		f.Add(uint8(i), uint8(1), uint8(4), uint16(2+i), uint8(i+1), uint64(2))
	}

	var devices []*Device
	for _, disable := range byteLevels {
		f.Setenv("COMPRESS_CPU_DISABLE", disable)
		devices = append(devices, New(Options{Threads: 1}))
	}
	if len(devices) == 0 || !devices[0].Info().Bytes {
		f.Skip("no instructions for products of bytes")
	}

	formats := kernels.QuantFormats()
	f.Fuzz(func(t *testing.T, format, m, n uint8, blocks uint16, group uint8, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		typ := formats[int(format)%len(formats)]
		k := quantisedColumns(typ, codeGroup*int(1+blocks%48))
		if typ.Grouped() {
			k = roundUp(k, 64)
		}

		w := randomQuantised(rng, typ, int(1+n%40), k, kernels.NewHost)
		if typ.Grouped() {
			regroup(rng, &w, []int{32, 64, 128, k}[group%4])
		}
		x := randomMat(rng, kernels.F32, int(1+m%20), k, 0)
		for _, d := range devices {
			compareBits(t, d, x, w)
			compareExact(t, d, x, w)
		}

		if !typ.Grouped() {
			return
		}

		withZeros(rng, &w, int(1+seed%2))
		for _, d := range devices {
			compareExact(t, d, x, w)
		}
	})
}

// compareExact holds products of every row of x, alone, to sums in float64. A sum of n products in float32 is within
// n·2⁻²⁴ of their magnitudes, in any order; a factor of a whole group is a few roundings more.
func compareExact(t *testing.T, d *Device, x kernels.Mat, w kernels.Quantised) {
	dst, dense := newMat(kernels.F32, 1, w.Rows(), 0), make([]float32, w.Cols)
	for i := range x.Rows {
		d.ops.MatMulQuantised(dst, x.RowRange(i, i+1), w, kernels.MatMul{})
		for j, got := range dst.RowF32(0) {
			decodePortable(dense, w, j, 0)
			want, size := 0.0, 0.0
			for p, v := range x.RowF32(i) {
				product := float64(v) * float64(dense[p])
				want += product
				size += math.Abs(product)
			}
			if math.Abs(float64(got)-want) > size*0x1p-24*float64(w.Cols+8) {
				t.Fatalf("exact, row %d column %d: %v, in float64 %v", i, j, got, want)
			}
		}
	}
}

// regroup gives a weight in groups other ones.
func regroup(rng *rand.Rand, w *kernels.Quantised, group int) {
	w.Group = group
	w.Scales = newMat(kernels.F32, w.Rows(), w.Groups(), 0)
	for i := range w.Scales.Len() {
		w.Scales.Buf.F32()[i] = 0.01 * rng.Float32()
	}
}
