package quantized

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// numberCase is a scheme of testdata/make_numbers.py.
type numberCase struct {
	name, ending string
	bits, group  int
	float        bool
	asymmetric   bool
	power, nv    bool
}

var numberCases = []numberCase{
	{name: "int4", ending: "weight_packed", bits: 4, group: 32},
	{name: "int4_asym", ending: "weight_packed", bits: 4, group: 32, asymmetric: true},
	{name: "int3_asym", ending: "weight_packed", bits: 3, group: 64, asymmetric: true},
	{name: "int5", ending: "weight_packed", bits: 5, group: 128},
	{name: "int8", ending: "weight_packed", bits: 8, group: 128},
	{name: "int8_bytes", ending: "weight", bits: 8, group: 128},
	{name: "int8_asym", ending: "weight", bits: 8, group: 128, asymmetric: true},
	{name: "fp8", ending: "weight", bits: 8, group: 128, float: true},
	{name: "nvfp4", ending: "weight_packed", bits: 4, group: 16, float: true, nv: true},
	{name: "mxfp4", ending: "weight_packed", bits: 4, group: 32, float: true, power: true},
}

// TestNumbersOracle: scales, zero points, codes and packed bytes of every scheme are those of compressed-tensors, for
// weights of every type.
func TestNumbersOracle(t *testing.T) {
	f, err := safetensors.Open("testdata/numbers.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
		for _, matrix := range []string{"normal", "hard", "tiny"} {
			for _, c := range numberCases {
				prefix := fmt.Sprintf("%s.%s.", d, matrix)
				t.Run(prefix+c.name, func(t *testing.T) { c.compare(t, f, d, prefix) })
			}
		}
	}
}

// numbersOf reads the elements of a tensor as numbers.
func numbersOf(t *testing.T, f *safetensors.File, name string) []float32 {
	t.Helper()
	info, ok := f.Info(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	data, err := f.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}

	read := number(info.DType)
	out := make([]float32, info.Elements())
	for i := range out {
		out[i] = read(data, i)
	}
	return out
}

func (c numberCase) compare(t *testing.T, f *safetensors.File, d safetensors.DType, prefix string) {
	const cols = 128
	w := numbersOf(t, f, prefix+"w")
	n := Numbers{Float: c.float, Bits: c.bits, Symmetric: !c.asymmetric, PowerOfTwo: c.power, DType: d}
	name := prefix + c.name + "."
	scales := numbersOf(t, f, name+"weight_scale")

	global := float32(1)
	if c.nv {
		global = n.GlobalScale(max(-slices.Min(w), slices.Max(w)))
		if want := numbersOf(t, f, name+"weight_global_scale")[0]; global != want {
			t.Fatalf("global scale %g, want %g", global, want)
		}
	}

	var zeros []int8
	codes := make([]byte, len(w))
	for g := range len(w) / c.group {
		part := w[g*c.group:][:c.group]
		lo, hi := slices.Min(part), slices.Max(part)
		scale, zero := n.Fit(lo, hi)
		if c.nv {
			scale = n.FitE4M3(max(-lo, hi), global)
		}
		if want := scales[g]; scale != want {
			t.Errorf("group %d: scale %g, want %g", g, scale, want)
		}

		zeros = append(zeros, int8(zero))
		by := n
		if c.nv {
			by.DType = safetensors.F32 // which the scale over the global one is
			scale /= global
		}
		for i, v := range part {
			codes[g*c.group+i] = by.CodeRounded(v, scale, zero)
		}
	}

	want, err := f.Bytes(name + c.ending)
	if err != nil {
		t.Fatal(err)
	}

	rows := len(w) / cols
	got := codes
	switch {
	case c.float && c.bits == 4:
		got = make([]byte, len(codes)/2)
		PackPairs(got, codes)
	case c.ending == "weight_packed":
		got = nil
		for r := range rows {
			row := make([]byte, 4*PackedWords(cols, c.bits))
			PackBits(row, codes[r*cols:][:cols], c.bits)
			got = append(got, row...)
		}
	}
	if !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		t.Errorf("%d bytes, want %d; byte %d is %x, want %x", len(got), len(want), at, got[at], want[at])
	}

	if c.asymmetric {
		c.compareZeros(t, f, name, zeros, len(zeros)/rows)
	}
}

func (c numberCase) compareZeros(t *testing.T, f *safetensors.File, name string, zeros []int8, groups int) {
	want, err := f.Bytes(name + "weight_zero_point")
	if err != nil {
		t.Fatal(err)
	}

	got := make([]byte, 4*PackedWords(len(zeros)/groups, c.bits)*groups)
	if c.ending == "weight_packed" {
		PackZeros(got, zeros, groups, c.bits)
	} else {
		got = got[:0]
		for _, z := range zeros {
			got = append(got, byte(z))
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("zero points %x, want %x", got, want)
	}
}

// TestE4M3Nearest: rounding gives the nearest number, of two equally near ones the one with the even code, for all
// that lies between neighbours.
func TestE4M3Nearest(t *testing.T) {
	for code := range 126 { // to 416, the last but one
		a, b := e4m3[code], e4m3[code+1]
		middle := (a + b) / 2
		even := byte(code + code&1)
		for v, want := range map[float32]byte{
			a: byte(code), b: byte(code + 1), middle: even,
			math.Nextafter32(middle, 0): byte(code), math.Nextafter32(middle, 1000): byte(code + 1),
		} {
			if got := toE4M3(v); got != want {
				t.Errorf("%g: code %d, want %d", v, got, want)
			}
			if got := toE4M3(-v); got != want|0x80 {
				t.Errorf("%g: code %d, want %d", -v, got, want|0x80)
			}
		}
	}
}

// TestE2M1Nearest: the same for four bits, where -0 is 0.
func TestE2M1Nearest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		v := float32(rng.NormFloat64() * 3)
		got := e2m1[toE2M1(v)]
		for _, other := range e2m1 {
			if abs(other-max(-6, min(6, v))) < abs(got-max(-6, min(6, v))) {
				t.Fatalf("%g becomes %g, and %g is nearer", v, got, other)
			}
		}
	}
	for v, want := range map[float32]float32{
		.25: 0, .75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5: 4, 7: 6, -2.5: -2, -3.5: -4,
	} {
		if got := e2m1[toE2M1(v)]; got != want {
			t.Errorf("%g becomes %g, want %g", v, got, want)
		}
	}
	if toE2M1(float32(math.Copysign(0, -1))) != 0 {
		t.Error("-0 has a code of its own")
	}
}

// TestPackBits: what is packed is read again by the decoder's own reader, for every width and length.
func TestPackBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for n := 1; n <= 8; n++ {
		for _, count := range []int{1, 2, 7, 8, 31, 32, 33, 100} {
			numbers := make([]byte, count)
			for i := range numbers {
				numbers[i] = byte(rng.IntN(1<<n) - 1<<(n-1))
			}

			words := make([]byte, 4*PackedWords(count, n))
			rand.NewChaCha8([32]byte{}).Read(words)
			PackBits(words, numbers, n)
			got := make([]byte, count)
			codes(got, words, n)
			for i, u := range got {
				if byte(int(u)-1<<(n-1)) != numbers[i] {
					t.Fatalf("%d of %d numbers of %d bits: %d, want %d", i, count, n, int(u)-1<<(n-1), int8(numbers[i]))
				}
			}
		}
	}
}

// TestValues: an element that has a number of its own is coded as it and decoded to itself.
func TestValues(t *testing.T) {
	for _, n := range []Numbers{
		{Bits: 4, Symmetric: true},
		{Bits: 8},
		{Float: true, Bits: 8, Symmetric: true},
		{Float: true, Bits: 4, Symmetric: true},
	} {
		n.DType = safetensors.BF16
		for code := range 256 {
			lo, hi := n.limits()
			v := n.Value(byte(code), 0.25, 0)
			if v-v != 0 || v < lo/4 || v > hi/4 || !n.Float && int(int8(code)) != int(v*4) {
				continue
			}
			if n.Float && n.Bits == 4 && code > 15 {
				continue
			}
			if got := n.Value(n.Code(v, 0.25, 0), 0.25, 0); got != v {
				t.Errorf("%+v: %g becomes %g", n, v, got)
			}
			if kernels.FromBF16(kernels.ToBF16(v)) != v {
				continue
			}
			if got := n.Value(n.CodeRounded(v, 0.25, 0), 0.25, 0); got != v {
				t.Errorf("%+v: %g becomes %g", n, v, got)
			}
		}
	}
}
