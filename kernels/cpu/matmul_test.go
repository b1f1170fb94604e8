package cpu

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// isaLevels lists every choice of instruction sets that this processor has.
func isaLevels() map[string]features {
	levels := map[string]features{}
	for _, off := range []string{"", "amx", "amx,avx512bf16", "avx512", "bfmmla", "bf16", "avx2,neon"} {
		f := detect(off)
		levels[fmt.Sprint(f.Names())] = f
	}

	if f := detect("amx"); f.AVX512BF16 {
		f.fastDot = true
		levels["dot "+fmt.Sprint(f.Names())] = f
	}

	return levels
}

// allDevices opens the processor once for every choice of instruction sets.
func allDevices(threads int) []*Device {
	var all []*Device
	for _, f := range isaLevels() {
		all = append(all, deviceWith(f, threads))
	}
	return all
}

// deviceWith opens the processor with the given instruction sets and threads.
func deviceWith(f features, threads int) *Device {
	d := &Device{threads: threads, isa: f}
	d.matmulOps(&d.ops)
	return d
}

// guardValue fills what lies between the rows of a view and around it.
const guardValue = 12345.5

// newMat makes a view with gaps before, between and after its rows, all set to the guard value.
func newMat(t kernels.DType, rows, cols, gap int) kernels.Mat {
	off, stride := gap, cols+gap
	b := kernels.NewHost(t, off+rows*stride+gap)
	m := kernels.Mat{Buf: b, Off: off, Rows: rows, Cols: cols, Stride: stride}
	if b.Len == 0 {
		return m
	}

	put(kernels.Mat{Buf: b, Rows: 1, Cols: b.Len, Stride: b.Len}, 0, 0, guardValue)
	for p, filled := b.Bytes(), t.Size(); filled < len(p); filled *= 2 {
		copy(p[filled:], p[:filled])
	}

	return m
}

func put(m kernels.Mat, i, j int, v float32) {
	switch m.DType() {
	case kernels.F32:
		m.RowF32(i)[j] = v
	case kernels.BF16:
		m.RowU16(i)[j] = kernels.ToBF16(v)
	default:
		m.RowU16(i)[j] = kernels.ToF16(v)
	}
}

func randomMat(rng *rand.Rand, t kernels.DType, rows, cols, gap int) kernels.Mat {
	m := newMat(t, rows, cols, gap)
	for i := range rows {
		for j := range cols {
			put(m, i, j, float32(rng.NormFloat64()))
		}
	}
	return m
}

// checkGuards fails if a value outside the view has changed.
func checkGuards(t *testing.T, m kernels.Mat) {
	t.Helper()
	for p, v := range m.Buf.F32() {
		q := p - m.Off
		inside := q >= 0 && q/m.Stride < m.Rows && q%m.Stride < m.Cols
		if !inside && v != guardValue {
			t.Fatalf("element %d outside the %d×%d view at %d (stride %d) became %v", p, m.Rows, m.Cols, m.Off,
				m.Stride, v)
		}
	}
}

// orientation is one of the three products.
type orientation string

const (
	nt orientation = "NT"
	nn orientation = "NN"
	tn orientation = "TN"
)

// productCase is one product with its operands.
type productCase struct {
	kind    orientation
	m, n, k int
	a, b    kernels.Mat
	o       kernels.MatMul
}

func newCase(rng *rand.Rand, kind orientation, t kernels.DType, m, n, k, gap int) productCase {
	c := productCase{kind: kind, m: m, n: n, k: k}
	switch kind {
	case nt:
		c.a, c.b = randomMat(rng, kernels.F32, m, k, gap), randomMat(rng, t, n, k, gap)
	case nn:
		c.a, c.b = randomMat(rng, kernels.F32, m, k, gap), randomMat(rng, t, k, n, gap)
	case tn:
		c.a, c.b = randomMat(rng, kernels.F32, k, m, gap), randomMat(rng, t, k, n, gap)
	}

	return c
}

func (c productCase) run(d *Device, dst kernels.Mat) {
	switch c.kind {
	case nt:
		d.ops.MatMulNT(dst, c.a, c.b, c.o)
	case nn:
		d.ops.MatMulNN(dst, c.a, c.b, c.o)
	case tn:
		d.ops.MatMulTN(dst, c.a, c.b, c.o)
	}
}

func (c productCase) String() string {
	return fmt.Sprintf("%s %s %d×%d×%d %s acc=%v bias=%v", c.kind, c.b.DType(), c.m, c.n, c.k, c.o.Precision,
		c.o.Accumulate, !c.o.Bias.IsZero())
}

// exactProduct computes the product and Σ|a·b| in float64; old is dst before the product.
func (c productCase) exactProduct(old kernels.Mat) (sum, size []float64) {
	sum, size = make([]float64, c.m*c.n), make([]float64, c.m*c.n)
	left, right := c.dense()
	for i := range c.m {
		for j := range c.n {
			var s, z float64
			y := right[j*c.k:][:c.k]
			for p, x := range left[i*c.k:][:c.k] {
				s += x * y[p]
				z += math.Abs(x * y[p])
			}

			if !c.o.Bias.IsZero() {
				s += float64(weightAt(c.o.Bias, 0, j))
			}
			if c.o.Accumulate {
				s += float64(old.RowF32(i)[j])
			}

			sum[i*c.n+j], size[i*c.n+j] = s, z+math.Abs(s)
		}
	}

	return sum, size
}

// dense returns both operands with their rows along k.
func (c productCase) dense() (left, right []float64) {
	left, right = make([]float64, c.m*c.k), make([]float64, c.n*c.k)
	for p := range c.k {
		for i := range c.m {
			if c.kind == tn {
				left[i*c.k+p] = float64(c.a.RowF32(p)[i])
			} else {
				left[i*c.k+p] = float64(c.a.RowF32(i)[p])
			}
		}

		for j := range c.n {
			if c.kind == nt {
				right[j*c.k+p] = float64(weightAt(c.b, j, p))
			} else {
				right[j*c.k+p] = float64(weightAt(c.b, p, j))
			}
		}
	}

	return left, right
}

// tolerance is the allowed error relative to Σ|a·b|. F32 sums lose at most 2^-24 per addition, and on random
// data about the square root of that; 3e-6 leaves room for k up to a few thousand. Fast rounds activations to 8
// bits: 2^-8 at most, and twice in TN.
func (c productCase) tolerance() float64 {
	if c.o.Precision == kernels.Fast && c.kind == tn {
		return 2.0/256 + 3e-6
	}
	if c.o.Precision == kernels.Fast && c.b.DType() == kernels.BF16 {
		return 1.0/256 + 3e-6
	}
	return 3e-6
}

// check runs the product on every device, on the same operands, and holds it to float64.
func (c productCase) check(t *testing.T, devices []*Device, gap int) {
	t.Helper()
	start := func() kernels.Mat { return randomMat(rand.New(rand.NewPCG(9, 9)), kernels.F32, c.m, c.n, gap) }
	want, size := c.exactProduct(start())
	for _, d := range devices {
		dst := start()
		c.run(d, dst)
		checkGuards(t, dst)

		for i := range c.m {
			for j, v := range dst.RowF32(i) {
				w, z := want[i*c.n+j], size[i*c.n+j]
				if e := math.Abs(float64(v) - w); !(e <= c.tolerance()*z) {
					t.Fatalf("%v on %v: [%d,%d] is %v, want %v (error %.3g of %.3g)", c, d.isa.Names(), i, j, v, w, e,
						z)
				}
			}
		}
	}
}

var (
	weightTypes = []kernels.DType{kernels.F32, kernels.BF16, kernels.F16}
	precisions  = []kernels.Precision{kernels.Exact, kernels.Fast}
)

// testShapes lie around the edges of every register tile, block and vector.
func testShapes() [][3]int {
	shapes := [][3]int{
		{1, 1, 1},
		{17, 1, 1},
		{1, 17, 3},
		{5, 2100, 5},
		{33, 4130, 33},
		{2070, 35, 17},
		{19, 70, 1100},
		{3, 7, 1100},
		{110, 70, 700},
		{135, 300, 550},
		{40, 600, 2},
	}
	edges := []int{1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 15, 16, 17, 24, 25, 31, 32, 33, 63, 64, 65, 97}
	for i, v := range edges {
		shapes = append(shapes, [3]int{v, edges[(i*7+3)%len(edges)], edges[(i*5+1)%len(edges)]})
		shapes = append(shapes, [3]int{17 + v, edges[(i*3+2)%len(edges)], v})
		shapes = append(shapes, [3]int{edges[(i*11+5)%len(edges)], v, 255 + v})
	}
	return shapes
}

func TestMatMulShapes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	devices := allDevices(2)
	for s, shape := range testShapes() {
		for _, kind := range []orientation{nt, nn, tn} {
			for _, typ := range weightTypes {
				c := newCase(rng, kind, typ, shape[0], shape[1], shape[2], s%4)
				c.o.Precision = precisions[s%2]
				if s%3 == 1 {
					c.o.Bias = randomMat(rng, weightTypes[s/3%3], 1, c.n, 1)
				}

				c.o.Accumulate = s%5 > 2
				c.check(t, devices, s%3)
			}
		}
	}
}

// TestMatMulThreads wants the same bits from any number of threads.
func TestMatMulThreads(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, f := range isaLevels() {
		t.Run(name, func(t *testing.T) {
			for _, shape := range [][3]int{{100, 260, 300}, {3, 600, 515}, {16, 600, 64}} {
				for _, kind := range []orientation{nt, nn, tn} {
					for _, typ := range weightTypes {
						for _, p := range precisions {
							c := newCase(rng, kind, typ, shape[0], shape[1], shape[2], 0)
							c.o.Precision = p

							var want []float32
							for _, threads := range []int{1, 2, 5} {
								dst := newMat(kernels.F32, c.m, c.n, 0)
								c.run(deviceWith(f, threads), dst)

								if want == nil {
									want = dst.Buf.F32()
								} else if !slices.Equal(want, dst.Buf.F32()) {
									t.Fatalf("%v: %d threads give other bits than 1", c, threads)
								}
							}
						}
					}
				}
			}
		})
	}
}

// TestMatMulOrientations wants the same bits from NT, NN and TN: the order of an operand in memory shows in no result.
func TestMatMulOrientations(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	devices := allDevices(2)
	for _, shape := range [][3]int{{33, 17, 31}, {97, 31, 33}, {128, 64, 64}, {150, 70, 300}, {300, 129, 545}} {
		for _, typ := range weightTypes {
			for _, p := range precisions {
				c := newCase(rng, nt, typ, shape[0], shape[1], shape[2], 3)
				c.o.Precision = p
				for _, d := range devices {
					c.checkOrientations(t, d)
				}
			}
		}
	}
}

// TestBF16MatricesAreDots: products of bfloat16 by BFMMLA are the same bits as by BFDOT, in every orientation and for
// inner sizes that no unit divides.
func TestBF16MatricesAreDots(t *testing.T) {
	f := detect("")
	if !f.BFMMLA {
		t.Skip("the processor has no products of matrices of bfloat16")
	}

	rng := rand.New(rand.NewPCG(13, 14))
	matrices, dots := deviceWith(f, 2), deviceWith(f.without("bfmmla"), 1)
	for _, shape := range [][3]int{{17, 33, 1}, {12, 32, 2}, {25, 70, 3}, {40, 31, 66}, {30, 129, 1089}} {
		for _, kind := range []orientation{nt, nn, tn} {
			for _, typ := range []kernels.DType{kernels.BF16, kernels.F32} {
				c := newCase(rng, kind, typ, shape[0], shape[1], shape[2], 1)
				c.o.Precision = kernels.Fast
				got, want := newMat(kernels.F32, c.m, c.n, 0), newMat(kernels.F32, c.m, c.n, 0)
				c.run(matrices, got)
				c.run(dots, want)
				for i, v := range got.Buf.F32() {
					if math.Float32bits(v) != math.Float32bits(want.Buf.F32()[i]) {
						t.Fatalf("%v: element %d is %v, by dot products %v", c, i, v, want.Buf.F32()[i])
					}
				}
			}
		}
	}
}

func (c productCase) checkOrientations(t *testing.T, d *Device) {
	t.Helper()
	want := newMat(kernels.F32, c.m, c.n, 0)
	c.run(d, want)

	c.b = transposed(c.b)
	for _, kind := range []orientation{nn, tn} {
		if c.kind = kind; kind == tn {
			if c.o.Precision == kernels.Fast && c.b.DType() != kernels.BF16 {
				continue // TN rounds the right factor too
			}
			c.a = transposed(c.a)
		}

		dst := newMat(kernels.F32, c.m, c.n, 0)
		c.run(d, dst)
		if !slices.Equal(want.Buf.F32(), dst.Buf.F32()) {
			t.Errorf("%v on %v: other bits than %s", c, d.isa.Names(), nt)
		}
	}
}

func transposed(m kernels.Mat) kernels.Mat {
	out := newMat(m.DType(), m.Cols, m.Rows, 2)
	for i := range m.Rows {
		for j := range m.Cols {
			put(out, j, i, weightAt(m, i, j))
		}
	}
	return out
}

// TestFetchingIsTheSameBits: kernels that fetch the next panel meanwhile give the bits of those that do not, whatever
// the edges of tiles, blocks and pieces, and products of few left panels take them.
func TestFetchingIsTheSameBits(t *testing.T) {
	d := deviceWith(detect("amx,avx512"), 1)
	fetching, plain := d.matmuls(), d.matmuls()
	if fetching.ks.exact.fetching == nil {
		t.Skip("no kernel fetches")
	}
	plain.ks.exact.fetching = nil
	calls := 0
	run := fetching.ks.exact.fetching
	fetching.ks.exact.fetching = func(a *tileArgs) {
		calls++
		run(a)
	}

	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		m, n, k int
		gap     int
	}{
		{17, 16, 32, 0},
		{18, 33, 40, 3},
		{24, 1100, 300, 0},
		{33, 100, 577, 5},
		{48, 70, 513, 0},
		{96, 70, 513, 0},
		{97, 70, 300, 1},
	} {
		for _, typ := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
			x, w := randomMat(rng, kernels.F32, c.m, c.k, c.gap), randomMat(rng, typ, c.n, c.k, c.gap)
			got := randomMat(rng, kernels.F32, c.m, c.n, c.gap)
			want := newMat(kernels.F32, c.m, c.n, c.gap)
			copy(want.Buf.Bytes(), got.Buf.Bytes())
			for _, o := range []kernels.MatMul{{}, {Accumulate: true}} {
				calls = 0
				fetching.nt(got, x, w, o)
				plain.nt(want, x, w, o)
				if !bytes.Equal(got.Buf.Bytes(), want.Buf.Bytes()) {
					t.Errorf("%v %s: other bits", c, typ)
				}
				if some := c.m <= 6*fetchMost*typ.Size() && c.n > 16; some != (calls > 0) {
					t.Errorf("%v %s: %d calls of the kernel that fetches", c, typ, calls)
				}
			}
		}
	}
}

// TestMatMulNonFinite puts NaN and infinities into one operand: every element of the product that meets them is
// not finite, as in F32 arithmetic under Exact, and no other element changes.
func TestMatMulNonFinite(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	values := map[string]float32{
		"NaN": float32(math.NaN()), "+Inf": float32(math.Inf(1)),
		"-Inf": float32(math.Inf(-1)), "low NaN": math.Float32frombits(0x7f800001),
	}

	devices := allDevices(2)
	for _, m := range []int{2, 50} {
		for _, kind := range []orientation{nt, nn, tn} {
			for _, typ := range weightTypes {
				for label, v := range values {
					for _, inWeight := range []bool{false, true} {
						if typ != kernels.F32 && inWeight && label == "low NaN" {
							continue
						}
						c := newCase(rng, kind, typ, m, 70, 130, 1)
						c.o.Precision = precisions[rng.IntN(2)]
						c.checkNonFinite(t, devices, v, inWeight)
					}
				}
			}
		}
	}
}

// TestMatMulForgetsScratch: what an earlier product left in scratch memory has no say in the choice of a kernel, and
// so in the last bits.
func TestMatMulForgetsScratch(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	devices := allDevices(1)
	for _, kind := range []orientation{nt, nn, tn} {
		for _, typ := range weightTypes {
			c := newCase(rng, kind, typ, 97, 130, 67, 1)
			c.o.Precision = kernels.Exact
			for _, d := range devices {
				var first []float32
				for _, left := range []uint32{0, 0x7f807f80, 0xffffffff} {
					fillScratch(left)
					dst := newMat(kernels.F32, c.m, c.n, 1)
					c.run(d, dst)
					if first == nil {
						first = dst.Buf.F32()
					}
					for i, v := range dst.Buf.F32() {
						if math.Float32bits(v) != math.Float32bits(first[i]) {
							t.Fatalf("%v %v on %s: element %d is %v after %#x in the scratch memory and %v after zeros",
								kind, typ, d.isa.Names(), i, v, left, first[i])
						}
					}
				}
			}
		}
	}
}

// fillScratch fills the panels of the stage that the next piece of work takes.
func fillScratch(v uint32) {
	st := getStage(nil, nil)
	for _, panels := range []*[]uint32{&st.left, &st.right, &st.spare} {
		*panels = grow(*panels, 1<<18)
		for i := range *panels {
			(*panels)[i] = v
		}
	}
	stages.Put(st)
}

func (c productCase) checkNonFinite(t *testing.T, devices []*Device, v float32, inWeight bool) {
	t.Helper()
	const p = 77
	i, j := c.m-1, 41
	switch {
	case inWeight && c.kind == nt:
		put(c.b, j, p, v)
	case inWeight:
		put(c.b, p, j, v)
	case c.kind == tn:
		put(c.a, p, i, v)
	default:
		put(c.a, i, p, v)
	}

	want, _ := c.exactProduct(newMat(kernels.F32, c.m, c.n, 1))
	for _, d := range devices {
		dst := newMat(kernels.F32, c.m, c.n, 1)
		c.run(d, dst)

		for r := range c.m {
			for q, got := range dst.RowF32(r) {
				w, g := want[r*c.n+q], float64(got)
				wrong := math.IsNaN(w) != math.IsNaN(g) || math.IsInf(w, 0) != math.IsInf(g, 0) ||
					math.IsInf(w, 0) && g != w
				if wrong {
					t.Fatalf("%v on %v with %v: [%d,%d] is %v, want %v", c, d.isa.Names(), v, r, q, got, w)
				}
			}
		}
	}
}

// TestMatMulExactOnIllScaledData compares the error of every exact product with that of a plain F32 sum, on data whose
// magnitudes spread over many orders.
func TestMatMulExactOnIllScaledData(t *testing.T) {
	const m, n, k = 40, 48, 700
	rng := rand.New(rand.NewPCG(7, 8))
	spread := map[string]func() float32{
		"normal":  func() float32 { return float32(rng.NormFloat64()) },
		"wide":    func() float32 { return float32(rng.NormFloat64() * math.Exp(4*rng.NormFloat64())) },
		"offset":  func() float32 { return float32(1 + 1e-3*rng.NormFloat64()) },
		"tiny":    func() float32 { return float32(1e-30 * rng.NormFloat64()) },
		"huge":    func() float32 { return float32(1e30 * rng.NormFloat64()) },
		"cancels": func() float32 { return float32(1-2*rng.IntN(2)) * (1 + rng.Float32()/1024) },
	}

	devices := allDevices(1)
	for label, gen := range spread {
		for _, typ := range weightTypes {
			c := newCase(rng, nt, typ, m, n, k, 0)
			for i := range m {
				for p := range k {
					put(c.a, i, p, gen())
				}
			}

			c.checkRelative(t, devices, label)
		}
	}
}

// checkRelative wants the largest error within twice that of summing in F32 one product after another, plus one
// unit in the last place of the largest sum: the plain sum is lucky now and then.
func (c productCase) checkRelative(t *testing.T, devices []*Device, label string) {
	t.Helper()
	want, size := c.exactProduct(newMat(kernels.F32, c.m, c.n, 0))
	left, right := c.dense()
	var plain float64
	for i := range want {
		var s float32
		y := right[i%c.n*c.k:][:c.k]
		for p, x := range left[i/c.n*c.k:][:c.k] {
			s = float32(math.FMA(x, y[p], float64(s)))
		}
		plain = max(plain, math.Abs(float64(s)-want[i])/size[i])
	}

	for _, d := range devices {
		dst := newMat(kernels.F32, c.m, c.n, 0)
		c.run(d, dst)
		var worst float64
		for i, v := range dst.Buf.F32() {
			worst = max(worst, math.Abs(float64(v)-want[i])/size[i])
		}

		t.Logf("%s, %v on %v: error %.3g of Σ|a·b|, plain F32 sum %.3g", label, c, d.isa.Names(), worst, plain)
		if worst > 2*plain+1.0/(1<<24) {
			t.Errorf("%s, %v on %v: error %.3g of Σ|a·b|, plain F32 sum %.3g", label, c, d.isa.Names(), worst, plain)
		}
	}
}

func TestMatMulEmpty(t *testing.T) {
	d := []*Device{deviceWith(detect(""), 2)}
	bias := randomMat(rand.New(rand.NewPCG(1, 1)), kernels.BF16, 1, 5, 0)
	for _, kind := range []orientation{nt, nn, tn} {
		c := newCase(rand.New(rand.NewPCG(1, 1)), kind, kernels.F32, 3, 5, 0, 0)
		c.o = kernels.MatMul{Bias: bias}
		c.check(t, d, 1)
		c.o.Accumulate = true
		c.check(t, d, 1)

		for _, s := range [][2]int{{0, 5}, {3, 0}} {
			c := newCase(rand.New(rand.NewPCG(1, 1)), kind, kernels.F32, s[0], s[1], 4, 0)
			c.check(t, d, 1)
		}
	}
}

func TestMatMulPanics(t *testing.T) {
	d := deviceWith(detect(""), 1)
	f32 := func(r, c int) kernels.Mat { return kernels.MatOf(kernels.NewHost(kernels.F32, r*c), r, c) }
	outside := f32(4, 4)
	outside.Rows = 5

	for name, f := range map[string]func(){
		"inner sizes": func() { d.ops.MatMulNT(f32(2, 3), f32(2, 4), f32(3, 5), kernels.MatMul{}) },
		"destination": func() { d.ops.MatMulNN(f32(3, 2), f32(2, 4), f32(4, 3), kernels.MatMul{}) },
		"bias":        func() { d.ops.MatMulTN(f32(2, 3), f32(4, 2), f32(4, 3), kernels.MatMul{Bias: f32(1, 2)}) },
		"weight type": func() {
			d.ops.MatMulNT(f32(2, 1), f32(2, 4), kernels.MatOf(kernels.NewHost(kernels.F64, 4), 1, 4), kernels.MatMul{})
		},
		"outside view": func() { d.ops.MatMulNT(f32(5, 1), outside, f32(1, 4), kernels.MatMul{}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

// TestMatMulUnderSignals multiplies while the profiler interrupts every thread and the collector runs without
// end: what a signal handler or another goroutine does to vector and tile registers must not show.
func TestMatMulUnderSignals(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))

	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		t.Skipf("the profiler is in use: %v", err)
	}
	defer pprof.StopCPUProfile()

	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)

	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})

	rng := rand.New(rand.NewPCG(1, 2))
	var cases []productCase
	var want [][]float32
	d := deviceWith(detect(""), 3)

	for i, typ := range weightTypes {
		for _, m := range []int{40, 150} {
			c := newCase(rng, nt, typ, m, 300, 320, 0)
			c.o.Precision = precisions[i%2]
			dst := newMat(kernels.F32, c.m, c.n, 0)
			c.run(deviceWith(detect(""), 1), dst)
			cases, want = append(cases, c), append(want, dst.Buf.F32())
		}
	}

	for range 100 {
		for i, c := range cases {
			dst := newMat(kernels.F32, c.m, c.n, 0)
			c.run(d, dst)
			if !slices.Equal(dst.Buf.F32(), want[i]) {
				t.Fatalf("%v: other bits than without signals", c)
			}
		}
	}
}

func FuzzMatMul(f *testing.F) {
	f.Add(uint8(0), uint16(17), uint16(33), uint16(65), uint8(1), uint64(32))
	f.Add(uint8(7), uint16(1), uint16(4), uint16(31), uint8(0), uint64(2))
	f.Add(uint8(23), uint16(40), uint16(70), uint16(300), uint8(3), uint64(16))
	devices := append(allDevices(1), allDevices(3)...)
	f.Fuzz(func(t *testing.T, choice uint8, m, n, k uint16, gap uint8, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		kind := []orientation{nt, nn, tn}[choice%3]
		if seed%16 > 0 { // small inputs are tried more often
			m, n, k = m%12, n%24, k%70
		}

		c := newCase(rng, kind, weightTypes[choice/3%3], int(m%100), int(n%100), int(k%600), int(gap%9))
		c.o.Precision, c.o.Accumulate = precisions[choice/9%2], choice/18%2 == 1
		if choice/36%2 == 1 {
			c.o.Bias = randomMat(rng, weightTypes[seed%3], 1, c.n, 0)
		}

		c.check(t, devices, int(gap%9))
	})
}

// TestRowsAlone: of products of up to 16 rows each row has the bits that it has alone (of two rows, where AMX
// multiplies BF16), with any number of threads, which is what answers that do not depend on who else asks stand on
// (lm/internal/layer.Company).
func TestRowsAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, disable := range []string{"", "avx512", "avx2,neon"} {
		d, several := deviceWith(detect(disable), 1), deviceWith(detect(disable), 3)
		for _, typ := range weightTypes {
			for _, shape := range [][2]int{{64, 576}, {49, 1536}, {7, 33}, {5, 100}, {330, 840}} {
				w, x := randomMat(rng, typ, shape[0], shape[1], 0), randomMat(rng, kernels.F32, 16, shape[1], 0)
				for _, p := range precisions {
					all := newMat(kernels.F32, 16, shape[0], 0)
					d.ops.MatMulNT(all, x, w, kernels.MatMul{Precision: p})
					together := newMat(kernels.F32, 16, shape[0], 0)
					several.ops.MatMulNT(together, x, w, kernels.MatMul{Precision: p})
					if !slices.Equal(together.Buf.F32(), all.Buf.F32()) {
						t.Fatalf("without %q, %s %s %v: three threads give other bits than one", disable, typ, p, shape)
					}

					for _, m := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 15} {
						if m == 1 && typ == kernels.BF16 && d.matmuls().ks.direct != nil {
							continue // AMX takes two rows and more
						}
						some := newMat(kernels.F32, m, shape[0], 0)
						d.ops.MatMulNT(some, x.RowRange(0, m), w, kernels.MatMul{Precision: p})
						for i := range m {
							if !slices.Equal(some.RowF32(i), all.RowF32(i)) {
								t.Fatalf("without %q, %s %s %v: row %d of %d is not that of 16",
									disable, typ, p, shape, i, m)
							}
						}
					}
				}
			}
		}
	}
}
