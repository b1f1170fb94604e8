package cpu

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// alike are checksums of what operations give with AVX2 alone and on Arm. The loops for Arm do what those for AVX2 do,
// lane by lane in the same order; sizes are such that nothing is left over for loops in Go, whose multiply-adds are
// fused on Arm only.
var alike = map[string]uint32{
	"activation 1":      0x44c2badc,
	"activation 2":      0x79446d2c,
	"activation 3":      0xa5d3db5c,
	"activation 4":      0xa455a52b,
	"attention 1":       0x55cc0f65,
	"attention 40":      0x770cb1fe,
	"products 1 BF16":   0x72f60259,
	"products 1 F16":    0x0725a2c2,
	"products 1 F32":    0xd1891fbe,
	"products 40 BF16":  0x31e340ef,
	"products 40 F16":   0x6edd89ff,
	"products 40 F32":   0xc1b03cf1,
	"products 7 BF16":   0x32d60550,
	"products 7 F16":    0x25eed4f7,
	"products 7 F32":    0xa6e5cd43,
	"quantised 1 Int4":  0x46d503f5,
	"quantised 1 Int8":  0x362dda02,
	"quantised 1 Q4_0":  0xd4515e18,
	"quantised 1 Q4_1":  0x74f74ac2,
	"quantised 1 Q4_K":  0x91d7ae57,
	"quantised 1 Q5_0":  0xd7aa2a55,
	"quantised 1 Q5_1":  0x86c754fd,
	"quantised 1 Q5_K":  0x6cda9016,
	"quantised 1 Q6_K":  0x795557c2,
	"quantised 1 Q8_0":  0xfb4cc4f9,
	"quantised 40 Int4": 0xdd22ee00,
	"quantised 40 Int8": 0xe0ee7591,
	"quantised 40 Q4_0": 0xb757dae1,
	"quantised 40 Q4_1": 0x9fd97131,
	"quantised 40 Q4_K": 0x9bbd3859,
	"quantised 40 Q5_0": 0x18163388,
	"quantised 40 Q5_1": 0xbf78fdef,
	"quantised 40 Q5_K": 0x2ca271ee,
	"quantised 40 Q6_K": 0x123703df,
	"quantised 40 Q8_0": 0xe4038612,
	"quantised 7 Int4":  0x541407d4,
	"quantised 7 Int8":  0x2ade24b8,
	"quantised 7 Q4_0":  0xe82f4399,
	"quantised 7 Q4_1":  0x35212795,
	"quantised 7 Q4_K":  0x26c5eb51,
	"quantised 7 Q5_0":  0x93942891,
	"quantised 7 Q5_1":  0x3ad6f9d1,
	"quantised 7 Q5_K":  0xf08cc580,
	"quantised 7 Q6_K":  0xcc4ff504,
	"quantised 7 Q8_0":  0x7cd29dff,
	"rows":              0xb7dd8d4e,
}

// TestArmIsLikeAVX2: operations give the same bits on both.
func TestArmIsLikeAVX2(t *testing.T) {
	t.Setenv("COMPRESS_CPU_DISABLE", "avx512,avxvnni")
	d := New(Options{Threads: 2})
	if !d.isa.AVX2 && !d.isa.NEON {
		t.Skip("neither AVX2 nor Advanced SIMD")
	}

	for name, run := range alikeCases(d.Ops()) {
		rng := rand.New(rand.NewPCG(1, 2))
		sum := crc32.NewIEEE()
		for _, m := range run(rng) {
			if err := binary.Write(sum, binary.LittleEndian, m.Buf.Bytes()[:m.Buf.Len*m.DType().Size()]); err != nil {
				t.Fatal(err)
			}
		}
		if got := sum.Sum32(); got != alike[name] {
			t.Errorf("%q: %#08x, want %#08x", name, got, alike[name])
		}
	}
}

// alikeCases returns runs that make operands, compute and return results.
func alikeCases(o *kernels.Ops) map[string]func(*rand.Rand) []kernels.Mat {
	f32 := func(rng *rand.Rand, rows, cols int) kernels.Mat { return randomMat(rng, kernels.F32, rows, cols, 0) }
	out := func(rows, cols int) kernels.Mat { return newMat(kernels.F32, rows, cols, 0) }
	cases := map[string]func(*rand.Rand) []kernels.Mat{}

	for _, m := range []int{1, 7, 40} {
		for _, typ := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
			cases[fmt.Sprintf("products %d %s", m, typ)] = func(rng *rand.Rand) []kernels.Mat {
				list := []kernels.Mat{out(m, 48), out(m, 640), out(48, 640)}
				x := f32(rng, m, 640)
				y := f32(rng, m, 48)
				w := randomMat(rng, typ, 48, 640, 0)
				o.MatMulNT(list[0], x, w, kernels.MatMul{})
				o.MatMulNN(list[1], y, w, kernels.MatMul{})
				o.MatMulTN(list[2], y, x, kernels.MatMul{})
				return list
			}
		}
		for _, f := range kernels.QuantFormats() {
			cases[fmt.Sprintf("quantised %d %s", m, f)] = func(rng *rand.Rand) []kernels.Mat {
				w := randomQuantised(rng, f, 32, 512, kernels.NewHost)
				y, all := out(m, 32), out(32, 512)
				o.MatMulQuantised(y, f32(rng, m, 512), w, kernels.MatMul{})
				o.ExpandQuantised(all, w)
				return []kernels.Mat{y, all}
			}
		}
	}

	for f := kernels.SiLU; f <= kernels.ReLU; f++ {
		cases[fmt.Sprintf("activation %d", f)] = func(rng *rand.Rand) []kernels.Mat {
			x := f32(rng, 3, 331)
			u := f32(rng, 3, 331)
			dy := f32(rng, 3, 331)
			list := []kernels.Mat{out(3, 331), out(3, 331), out(3, 331), out(3, 331), out(3, 331)}
			o.Activate(list[0], x, f)
			o.Gate(list[1], x, u, f)
			o.ActivateBackward(list[2], dy, x, f)
			o.GateBackward(list[3], list[4], dy, x, u, f)
			return list
		}
	}

	for _, rows := range []int{1, 40} {
		cases[fmt.Sprintf("attention %d", rows)] = func(rng *rand.Rand) []kernels.Mat {
			a := kernels.Attention{Heads: 4, KVHeads: 2, HeadDim: 32, Scale: 0.2, Pos: 8, LSE: out(rows, 4)}
			q := f32(rng, rows, 128)
			k := f32(rng, rows+8, 64)
			v := f32(rng, rows+8, 64)
			dy := f32(rng, rows, 128)
			list := []kernels.Mat{out(rows, 128), out(rows, 128), out(rows+8, 64), out(rows+8, 64)}
			o.Attention(list[0], q, k, v, a)
			o.AttentionBackward(list[1], list[2], list[3], dy, q, k, v, list[0], a)
			return list
		}
	}

	cases["rows"] = func(rng *rand.Rand) []kernels.Mat {
		x := f32(rng, 5, 331)
		w := randomMat(rng, kernels.BF16, 1, 331, 0)
		b := f32(rng, 1, 331)
		list := []kernels.Mat{out(5, 331), out(5, 331), out(5, 331), out(5, 331)}
		o.RMSNorm(list[0], x, w, 1e-5, true)
		o.LayerNorm(list[1], x, w, b, 1e-5)
		o.Softmax(list[2], x)
		o.Softcap(list[3], x, 2)
		half := newMat(kernels.BF16, 5, 331, 0)
		short := newMat(kernels.F16, 5, 331, 0)
		o.Convert(half, x)
		o.Convert(short, x)
		return append(slices.Clip(list), half, short)
	}
	return cases
}
