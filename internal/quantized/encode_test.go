package quantized

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/isa"
	"github.com/modelcompress/compress/safetensors"
)

// everyISA runs a test with the loops of each instruction set.
func everyISA(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	chosen := fastest
	defer func() { fastest = chosen }()
	for _, disable := range []string{"", "avx512", "avx2,neon"} {
		fastest = choose(isa.Usable(disable))
		t.Run("without "+disable, test)
	}
}

// encodeCase is a matrix of testdata/encode.safetensors.
type encodeCase struct {
	name          string
	x, importance []float32
	cols          int
}

func encodeOracle(t testing.TB) (*safetensors.File, []encodeCase) {
	t.Helper()
	f, err := safetensors.Open("testdata/encode.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })

	floats := func(name string) []float32 {
		info, _ := f.Info(name)
		data, err := f.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, info.Elements())
		if err := dtype.Decode(x, data, info.DType); err != nil {
			t.Fatal(err)
		}
		return x
	}

	var cases []encodeCase
	for _, name := range f.Names() {
		if info, _ := f.Info(name); info.DType == safetensors.F32 && len(info.Shape) == 2 {
			c := encodeCase{name: name, x: floats(name), importance: floats(name + ".importance")}
			c.cols = int(info.Shape[1])
			cases = append(cases, c)
		}
	}
	return f, cases
}

// TestEncodeOracle: the bytes are those of llama.cpp's quantiser, with and without an importance, on every instruction
// set.
func TestEncodeOracle(t *testing.T) {
	f, cases := encodeOracle(t)
	if len(cases) < 15 {
		t.Fatalf("%d cases", len(cases))
	}

	everyISA(t, func(t *testing.T) {
		for _, c := range cases {
			for _, b := range blocks {
				if !b.Encodes() || b == &F32 || b == &MXFP4 && c.name == "subnormal" {
					continue
				}
				compareSums(t, f, c, b, nil, c.name+"."+b.Name)
				if b.Weighted() {
					compareSums(t, f, c, b, c.importance, c.name+"."+b.Name+".importance")
				}
			}
		}
	})
}

func compareSums(t *testing.T, f *safetensors.File, c encodeCase, b *Block, importance []float32, name string) {
	t.Helper()
	want, err := f.Bytes(name)
	if err != nil {
		t.Error(err)
		return
	}
	got := make([]byte, b.Size(len(c.x)))
	if err := b.Encode(got, c.x, c.cols, importance); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}

	size := b.Size(256)
	wrong := 0
	for i := range len(got) / size {
		if crc32.ChecksumIEEE(got[i*size:][:size]) != binary.LittleEndian.Uint32(want[4*i:]) {
			wrong++
		}
	}
	if wrong > 0 {
		t.Errorf("%s: %d of %d times 256 elements have other bytes", name, wrong, len(got)/size)
	}
}

// rows are random numbers of a few kinds: normal, of very different sizes, with many zeros, and of every size that
// float16 scales leave, down to the smallest numbers.
func rows(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 5))
	x := make([]float32, n)
	for i := range x {
		v := r.NormFloat64()
		switch seed % 4 {
		case 1:
			v *= math.Exp(2 * r.NormFloat64())
		case 2:
			v *= float64(r.IntN(2))
		case 3:
			v = math.Ldexp(math.Copysign(1+r.Float64(), v), r.IntN(163)-149)
		}
		x[i] = float32(v)
	}
	return x
}

// TestEncodeSame: rows have the same bytes on every instruction set, alone or together, whatever number of groups is
// left after those that fill the registers.
func TestEncodeSame(t *testing.T) {
	chosen := fastest
	defer func() { fastest = chosen }()

	for _, b := range blocks {
		if !b.Encodes() {
			continue
		}
		for seed, cols := range []int{256, 512, 768, 1024, chunk + 256, 3*chunk + 1280, 256, 5 * 256} {
			const n = 3
			x := rows(uint64(seed), n*cols)
			importance := rows(9, cols)
			for i, v := range importance {
				importance[i] = abs(v)
			}
			for _, imp := range [][]float32{nil, importance} {
				fastest = &portable
				want := make([]byte, b.Size(n*cols))
				for r := range n {
					row := want[b.Size(r*cols):][:b.Size(cols)]
					if err := b.Encode(row, x[r*cols:][:cols], cols, imp); err != nil {
						t.Fatal(err)
					}
				}

				for _, disable := range []string{"", "avx512", "avx2,neon"} {
					fastest = choose(isa.Usable(disable))
					got := make([]byte, len(want))
					if err := b.Encode(got, x, cols, imp); err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got, want) {
						t.Errorf("%s, %d columns, without %q: other bytes", b.Name, cols, disable)
					}
				}
			}
		}
	}
}

// TestEncodeErrors: what cannot be encoded is said with its place.
func TestEncodeErrors(t *testing.T) {
	inf := float32(math.Inf(1))
	nan := float32(math.NaN())
	for _, b := range blocks {
		if !b.Encodes() {
			if err := b.Encode(nil, nil, b.Elements, nil); !errors.Is(err, ErrNotEncodable) {
				t.Errorf("%s: %v", b.Name, err)
			}
			continue
		}

		const cols = 512
		x := rows(0, 3*cols)
		dst := make([]byte, b.Size(len(x)))
		change := func(i int, v float32) []float32 {
			y := slices.Clone(x)
			y[i] = v
			return y
		}

		for _, bad := range []float32{inf, -inf, nan} {
			err := b.Encode(dst, change(2*cols+300, bad), cols, nil)
			if says := fmt.Sprintf("row 2, column 300 is %v", bad); !errors.Is(err, ErrElement) ||
				!strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", b.Name, err)
			}
		}

		err := b.Encode(dst, change(cols+300, -math.MaxFloat32), cols, nil)
		if b == &F32 || b == &MXFP4 {
			if err != nil {
				t.Errorf("%s: %v", b.Name, err)
			}
		} else if !errors.Is(err, ErrRange) || !strings.Contains(err.Error(), "row 1") {
			t.Errorf("%s: %v", b.Name, err)
		}

		if b.Elements > 1 {
			if err := b.Encode(dst, x, b.Elements-1, nil); !errors.Is(err, ErrShape) ||
				!strings.Contains(err.Error(), fmt.Sprint(b.Elements-1)) {
				t.Errorf("%s: %v", b.Name, err)
			}
		}
		if !b.Weighted() {
			continue
		}
		good := slices.Repeat([]float32{1}, cols)
		for _, bad := range []float32{-1, inf, nan} {
			good[7] = bad
			if err := b.Encode(dst, x, cols, good); !errors.Is(err, ErrImportance) ||
				!strings.Contains(err.Error(), "column 7") {
				t.Errorf("%s: %v", b.Name, err)
			}
		}
		if err := b.Encode(dst, x, cols, good[1:]); !errors.Is(err, ErrImportance) {
			t.Errorf("%s: %v", b.Name, err)
		}
	}
}

// stepOf is a bound on the error of an element, in parts of the largest magnitude of its block: half a step, with what
// the rounding of the scales adds, which for K-quants is half of 1/15, 1/31 or 1/63 of the largest scale and minimum.
var stepOf = map[string]float64{
	"F32": 0, "F16": 0x1p-11, "BF16": 0x1p-8, "Q8_0": .5/127 + 0x1p-11, "Q4_0": 1. / 8 * 1.01, "Q4_1": 1. / 15 * 1.01,
	"Q5_0": 1. / 16 * 1.01, "Q5_1": 1. / 31 * 1.02, "Q2_K": .75, "Q3_K": .5, "Q4_K": .2, "Q5_K": .12, "Q6_K": .06,
	"IQ4_NL": .2, "IQ4_XS": .25, "MXFP4": .25,
}

// TestEncodeErrorBound: what is decoded is near what was encoded, and encoding it again keeps it where the largest
// element of a block is stored exactly.
func TestEncodeErrorBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SampledFrom(blocks).Draw(t, "format")
		if !b.Encodes() {
			return
		}
		const cols = 512
		x := rows(rapid.Uint64().Draw(t, "seed")/4*4, cols)
		size := float32(math.Ldexp(1, rapid.IntRange(-3, 8).Draw(t, "size")))
		for i := range x {
			x[i] *= size
		}

		once := make([]byte, b.Size(cols))
		if err := b.Encode(once, x, cols, nil); err != nil {
			t.Fatal(err)
		}
		y := make([]float32, cols)
		if err := b.Decode(y, once); err != nil {
			t.Fatal(err)
		}
		n := b.Elements
		for i := 0; i < cols; i += n {
			_, magnitude := extreme(x[i:][:n])
			for j := i; j < i+n; j++ {
				if e := math.Abs(float64(x[j]) - float64(y[j])); e > stepOf[b.Name]*float64(magnitude)+0x1p-24 {
					t.Fatalf("%s: %v became %v in a block up to %v", b.Name, x[j], y[j], magnitude)
				}
			}
		}

		switch b {
		case &F32, &F16, &BF16, &Q8_0, &Q4_0, &Q5_0:
			twice := make([]byte, len(once))
			if err := b.Encode(twice, y, cols, nil); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(once, twice) {
				t.Fatalf("%s: encoding the decoded row gives other bytes", b.Name)
			}
		}
	})
}

// TestNearest: the trick with the mantissa is rounding to even, and every code of IQ4 is that of the nearest value.
func TestNearest(t *testing.T) {
	for _, v := range []float32{0, .5, 1.5, 2.5, -.5, -1.5, 3.49999, 4194303, -4194303, 1e-30} {
		if got, want := nearest(v), int32(math.RoundToEven(float64(v))); got != want {
			t.Errorf("nearest(%v) = %d, want %d", v, got, want)
		}
	}
	for _, v := range []float32{.5, 1.5, -.5, -2.5, 0.49999997, -0.49999997, 126.5, 8388607} {
		if got, want := away(v), int32(math.Round(float64(v))); got != want {
			t.Errorf("away(%v) = %d, want %d", v, got, want)
		}
	}

	// The rule of the reference: the upper one of two neighbours unless the lower one is nearer.
	slow := func(v float32) byte {
		for i, value := range iq4Values[1:] {
			low := float32(iq4Values[i])
			high := float32(value)
			if v < high {
				if v <= low || v-low < high-v {
					return byte(i)
				}
				return byte(i + 1)
			}
		}
		return 15
	}
	for _, m := range append(iq4Book.middles[:15], 0, -127, 113, 1, 200, -200) {
		for _, v := range []float32{
			math.Nextafter32(m, -1000), m, math.Nextafter32(m, 1000), m - .25, m + .25,
		} {
			if iq4Book.code(v) != slow(v) {
				t.Errorf("code of %v is %d, want %d", v, iq4Book.code(v), slow(v))
			}
		}
	}
	if iq4Book.code(float32(math.NaN())) != 15 {
		t.Error("code of a NaN")
	}
}

// TestSharedExponent: that of every power of two and of the numbers around it, by the logarithm in float32.
func TestSharedExponent(t *testing.T) {
	for e := -149; e < 128; e++ {
		power := float32(math.Ldexp(1, e))
		for _, v := range []float32{
			math.Nextafter32(power, 0), power, math.Nextafter32(power, math.MaxFloat32), power * (1 - 0x1p-17),
			power * 1.5,
		} {
			if v == 0 || v > math.MaxFloat32 {
				continue
			}
			log := float32(math.Log2(float64(v)))
			want := max(0, math.Floor(float64(log))+125)
			if got := sharedExponent(v); float64(got) != want {
				t.Errorf("exponent of %x is %d, want %v", v, got, want)
			}
		}
	}
	if sharedExponent(0) != 0 {
		t.Error("exponent of 0")
	}
}

// TestEncodeNoAllocation: rows are encoded into what the caller has.
func TestEncodeNoAllocation(t *testing.T) {
	x := rows(0, chunk)
	importance := slices.Repeat([]float32{1}, chunk)
	for _, b := range blocks {
		if !b.Encodes() {
			continue
		}
		dst := make([]byte, b.Size(chunk))
		if got := testing.AllocsPerRun(3, func() { _ = b.Encode(dst, x, chunk, importance) }); got != 0 {
			t.Errorf("%s: %v allocations", b.Name, got)
		}
	}
}

// FuzzEncode: any rows give blocks that can be decoded, or an error of one line; the same bytes on every instruction
// set.
func FuzzEncode(f *testing.F) {
	_, cases := encodeOracle(f)
	for i, c := range cases {
		b := make([]byte, 4*256)
		if err := dtype.Encode(b, c.x[:256], safetensors.F32); err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), i%2 == 0, b)
	}

	f.Fuzz(func(t *testing.T, kind uint8, weighted bool, data []byte) {
		b := blocks[int(kind)%len(blocks)]
		if !b.Encodes() || len(data) > 1<<16 {
			return
		}
		x := make([]float32, len(data)/4/256*256)
		if len(x) == 0 {
			return
		}
		if err := dtype.Decode(x, data[:4*len(x)], safetensors.F32); err != nil {
			t.Fatal(err)
		}
		var importance []float32
		if weighted {
			for _, v := range x[:256] {
				if a := abs(v); a <= math.MaxFloat32 {
					importance = append(importance, a)
				} else {
					importance = append(importance, 1)
				}
			}
		}

		chosen := fastest
		defer func() { fastest = chosen }()
		dst := make([]byte, b.Size(len(x)))
		err := b.Encode(dst, x, 256, importance)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("not one line: %q", err)
			}
			return
		}
		if err := b.Decode(make([]float32, len(x)), dst); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}

		fastest = &portable
		other := make([]byte, len(dst))
		if err := b.Encode(other, x, 256, importance); err != nil || !slices.Equal(dst, other) {
			t.Errorf("%s: portable loops give other bytes: %v", b.Name, err)
		}
	})
}

// BenchmarkEncode encodes rows of 4096 elements; the rate is that of the float32 read.
func BenchmarkEncode(b *testing.B) {
	const cols = 4096
	x := rows(0, cols)
	importance := rows(4, cols)
	for i, v := range importance {
		importance[i] = abs(v)
	}
	for _, f := range blocks {
		if !f.Encodes() {
			continue
		}
		dst := make([]byte, f.Size(cols))
		for name, imp := range map[string][]float32{"": nil, "_importance": importance} {
			if imp != nil && !f.Weighted() {
				continue
			}
			b.Run(f.Name+name, func(b *testing.B) {
				b.SetBytes(4 * cols)
				for b.Loop() {
					if err := f.Encode(dst, x, cols, imp); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
