package quantized

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/isa"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// random is so many bytes of which no float16 is infinite or a NaN.
func random(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
		if b[i]&0x7c == 0x7c {
			b[i] &^= 0x40
		}
	}
	return b
}

// TestPortable: every instruction set decodes to the same bits, for a block, a chunk, and what is neither.
func TestPortable(t *testing.T) {
	chosen := fastest
	defer func() { fastest = chosen }()

	decode := func(f *Block, with *loops, src []byte, n int) []float32 {
		fastest = with
		dst := make([]float32, n)
		if err := f.Decode(dst, src); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		return dst
	}

	for _, disable := range []string{"", "avx512", "avx2,neon"} {
		for _, f := range blocks {
			for _, n := range []int{1, chunk / f.Elements, chunk/f.Elements*2 + 3} {
				src := random(uint64(n), n*f.Bytes)
				got := decode(f, choose(isa.Usable(disable)), src, n*f.Elements)
				want := decode(f, &portable, src, n*f.Elements)
				if i := differ(got, want); i >= 0 {
					t.Fatalf("%s, %d blocks, without %q: element %d is %x, portable %x", f.Name, n, disable, i, got[i],
						want[i])
				}
			}
		}
	}
}

// TestNarrow: every instruction set decodes to bfloat16 what package kernels makes of the elements.
func TestNarrow(t *testing.T) {
	chosen := fastest
	defer func() { fastest = chosen }()

	for _, disable := range []string{"", "avx512", "avx2,neon"} {
		fastest = choose(isa.Usable(disable))
		for _, f := range blocks {
			if !f.Narrow() {
				continue
			}

			for _, n := range []int{1, chunk / f.Elements, chunk/f.Elements*2 + 3} {
				src := random(uint64(n), n*f.Bytes)
				want := make([]float32, n*f.Elements)
				got := make([]byte, 2*len(want))
				if err := errors.Join(f.Decode(want, src), f.DecodeBF16(got, src)); err != nil {
					t.Fatalf("%s: %v", f.Name, err)
				}
				for i, v := range want {
					if bits := binary.LittleEndian.Uint16(got[2*i:]); bits != kernels.ToBF16(v) {
						t.Fatalf("%s, %d blocks, without %q: element %d, %g, is %x, want %x", f.Name, n, disable, i, v,
							bits, kernels.ToBF16(v))
					}
				}
			}
		}
	}
}

// differ is the first element with other bits, -1 if there is none.
func differ(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

// TestRound: every instruction set rounds as package kernels does: halfway cases, what is below the normal numbers of
// 16 bits, and what is beyond them.
func TestRound(t *testing.T) {
	chosen := fastest
	defer func() { fastest = chosen }()

	var x []float32
	for _, v := range []float32{
		0, 1, 1 + 0x1p-8, 1 + 0x1p-9, 1 + 3*0x1p-9, 1 + 0x1p-11, 1 + 3*0x1p-11, 65504, 65519, 65520, 0x1p-14, 0x1p-24,
		0x1p-25, 3 * 0x1p-25, 0x1p-26, 0x1p-126, 0x1p-133, 0x1p-149, math.MaxFloat32, float32(math.Inf(1)),
	} {
		x = append(x, v, -v)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for len(x) < 999 {
		if v := math.Float32frombits(r.Uint32()); !math.IsNaN(float64(v)) {
			x = append(x, v)
		}
	}

	for _, disable := range []string{"", "avx512", "avx2,neon"} {
		fastest = choose(isa.Usable(disable))
		for _, d := range []safetensors.DType{safetensors.F16, safetensors.BF16, safetensors.F32} {
			got := slices.Clone(x)
			round(got, d)
			for i, v := range x {
				want := map[safetensors.DType]float32{
					safetensors.F16:  kernels.FromF16(kernels.ToF16(v)),
					safetensors.BF16: kernels.FromBF16(kernels.ToBF16(v)),
					safetensors.F32:  v,
				}[d]
				if math.Float32bits(got[i]) != math.Float32bits(want) {
					t.Errorf("%s without %q: %x became %x, want %x", d, disable, v, got[i], want)
				}
			}
		}
	}
}

// TestBlocks: rows of blocks are a matrix like any other.
func TestBlocks(t *testing.T) {
	const rows, cols = 5, 512
	for _, f := range blocks {
		src := random(9, rows*cols/f.Elements*f.Bytes)
		m, err := Blocks(f.Name, "w", rows, cols, src)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]float32, rows*cols)
		if err := f.Decode(want, src); err != nil {
			t.Fatal(err)
		}
		compare(t, f.Name, m, want)

		for name, wrong := range map[string]func() (*Matrix, error){
			"row":   func() (*Matrix, error) { return Blocks(f.Name, "w", rows, 0, src) },
			"rows":  func() (*Matrix, error) { return Blocks(f.Name, "w", rows+1, cols, src) },
			"bytes": func() (*Matrix, error) { return Blocks(f.Name, "w", rows, cols, src[1:]) },
		} {
			if _, err := wrong(); !errors.Is(err, ErrShape) {
				t.Errorf("%s: wrong %s: %v", f.Name, name, err)
			}
		}
	}

	if _, err := Blocks("IQ2_XXS", "w", 1, 256, make([]byte, 66)); !errors.Is(err, ErrNotDecodable) ||
		!strings.Contains(err.Error(), "IQ2_XXS") {
		t.Error(err)
	}
}

// TestScales: a scale that is no number is an error wherever in the rows it stands, and no other byte is taken for one.
func TestScales(t *testing.T) {
	for _, f := range blocks {
		const n = 70
		src := random(3, n*f.Bytes)
		dst := make([]float32, n*f.Elements)

		for at := range f.Bytes {
			isScale := slices.Contains(f.halves, at-1) || f == &MXFP4 && at == 0
			b := slices.Clone(src)
			b[(n-1)*f.Bytes+at] = 0xff
			if err := f.Decode(dst, b); (err != nil) != isScale {
				t.Errorf("%s: byte %d of the last block: %v", f.Name, at, err)
			}
		}
	}
}

// TestBytes tries the tricks on eight bytes at a time against one byte at a time.
func TestBytes(t *testing.T) {
	var b [8]byte
	for v := range 128 {
		for _, n := range []byte{4, 8, 16, 32} {
			for i := range b {
				b[i] = byte(v*i) & 127
			}
			got := minus(load(b[:]), n)
			for i := range b {
				if byte(got>>(8*i)) != b[i]-n {
					t.Fatalf("%d - %d is %d", b[i], n, int8(got>>(8*i)))
				}
			}
		}
	}

	for bits := range 256 {
		got := spread(byte(bits))
		for i := range 8 {
			if byte(got>>(8*i)) != byte(bits)>>i&1 {
				t.Fatalf("bit %d of %08b is %d", i, bits, byte(got>>(8*i)))
			}
		}
	}
}

// TestNoAllocation: rows are decoded into what the caller has.
func TestNoAllocation(t *testing.T) {
	for _, f := range blocks {
		n := 3 * chunk / f.Elements
		src := random(5, n*f.Bytes)
		dst := make([]float32, n*f.Elements)
		if got := testing.AllocsPerRun(3, func() { _ = f.Decode(dst, src) }); got != 0 {
			t.Errorf("%s: %v allocations", f.Name, got)
		}
	}
}

// BenchmarkNarrow decodes rows of 4096 elements to bfloat16; the rate is that of what is written.
func BenchmarkNarrow(b *testing.B) {
	for _, f := range blocks {
		if !f.Narrow() {
			continue
		}
		b.Run(f.Name, func(b *testing.B) {
			const n = 4096
			src := random(7, n/f.Elements*f.Bytes)
			dst := make([]byte, 2*n)
			b.SetBytes(2 * n)
			for b.Loop() {
				if err := f.DecodeBF16(dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBlock decodes rows of 4096 elements; the rate is that of the float32 written.
func BenchmarkBlock(b *testing.B) {
	for _, f := range blocks {
		b.Run(f.Name, func(b *testing.B) {
			const n = 4096
			src := random(7, n/f.Elements*f.Bytes)
			dst := make([]float32, n)
			b.SetBytes(4 * n)
			for b.Loop() {
				if err := f.Decode(dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
