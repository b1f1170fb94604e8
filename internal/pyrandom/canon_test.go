package pyrandom_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/pyrandom"
)

// golden is what CPython 3.11 drew with one seed; every list starts from a fresh generator.
type golden struct {
	Seed      string   `json:"seed"`
	Bits32    []uint32 `json:"bits32"`
	Later     uint32   `json:"bits32_704th"`
	Bits      []string `json:"bits"`
	Random    []string `json:"random"`
	RandInt   []int    `json:"randint"`
	RandRange []int    `json:"randrange"`
	Shuffle   []int    `json:"shuffle25"`
	Sample    []struct {
		N, K int
		Out  []int
	}
	Choices []int `json:"choices"`
}

func readGolden(t *testing.T) []golden {
	t.Helper()
	data, err := os.ReadFile("testdata/python311.json")
	if err != nil {
		t.Fatal(err)
	}

	var file struct{ Cases []golden }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}

	return file.Cases
}

func TestAsPython(t *testing.T) {
	for _, g := range readGolden(t) {
		seed, ok := new(big.Int).SetString(g.Seed, 10)
		if !ok {
			t.Fatalf("seed %q", g.Seed)
		}

		fresh := func() *pyrandom.Random { return pyrandom.NewRandomBig(seed) }
		t.Run(g.Seed, func(t *testing.T) {
			r := fresh()
			same(t, "getrandbits(32)", collect(len(g.Bits32), func(int) uint32 { return r.Uint32() }), g.Bits32)
			for range 699 {
				r.Uint32()
			}

			same(t, "getrandbits(32), after one renewal", []uint32{r.Uint32()}, []uint32{g.Later})

			r = fresh()
			widths := []int{1, 5, 31, 32, 33, 48, 63, 64}
			same(t, "getrandbits", collect(8, func(i int) string { return strconv.FormatUint(r.Bits(widths[i]), 10) }),
				g.Bits)

			r = fresh()
			for i, want := range g.Random {
				if f, err := strconv.ParseFloat(want, 64); err != nil || r.Float64() != f {
					t.Errorf("random() %d is not %s (%v)", i, want, err)
				}
			}

			r = fresh()
			ints := [][2]int{{0, 356316}, {-5, 5}, {7, 7}, {0, 1 << 62}, {-1 << 63, 1<<63 - 2}}
			same(t, "randint", collect(5, func(i int) int { return r.RandInt(ints[i][0], ints[i][1]) }), g.RandInt)

			r = fresh()
			ranges := [][3]int{{0, 10, 3}, {10, 0, -3}, {-7, 100, 1}, {5, 6, 9}, {-1 << 62, 1 << 62, 12345}}
			same(t, "randrange", collect(5, func(i int) int {
				return r.RandRange(ranges[i][0], ranges[i][1],
					ranges[i][2])
			}), g.RandRange)

			x := collect(25, func(i int) int { return i })
			fresh().Shuffle(25, func(i, j int) { x[i], x[j] = x[j], x[i] })
			same(t, "shuffle", x, g.Shuffle)

			r = fresh()
			for _, s := range g.Sample {
				same(t, fmt.Sprintf("sample(range(%d), %d)", s.N, s.K), r.Sample(s.N, s.K), s.Out)
			}

			same(t, "choices", fresh().Choices(97, 6), g.Choices)
		})
	}
}

func same[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, Python gives %v", what, got, want)
	}
}

// collect calls f n times.
func collect[T any](n int, f func(i int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

// TestPublished holds the values listed in the project's pruning and evaluation specifications.
func TestPublished(t *testing.T) {
	r := pyrandom.NewRandom(0)
	same(t, "seed 0, getrandbits(32)", collect(3, func(int) uint32 { return r.Uint32() }),
		[]uint32{3626764237, 1654615998, 3255389356})

	for seed, want := range map[uint64][]int{
		0:  {201979, 220500, 21225, 135746, 268055, 254766},
		42: {335243, 58369, 13112, 144194, 128393, 117026},
	} {
		r := pyrandom.NewRandom(seed)
		same(t, fmt.Sprintf("seed %d, randint(0, 356316)", seed),
			collect(6, func(int) int { return r.RandInt(0, 356316) }), want)
	}

	r = pyrandom.NewRandom(1234)
	for _, want := range [][]int{
		{6374, 3610, 957, 61, 742},
		{7462, 6610, 4769, 286, 5501},
		{5677, 687, 806, 6279, 2905},
	} {
		same(t, "seed 1234, sample(range(7473), 5)", r.Sample(7473, 5), want)
	}

	r = pyrandom.NewRandom(1234)
	for _, want := range [][]int{{7, 1, 0, 9, 4, 6}, {1, 9, 5, 8, 0, 7}} {
		same(t, "seed 1234, sample(range(10), 6)", r.Sample(10, 6), want)
	}
}

func TestPublishedChoices(t *testing.T) {
	same(t, "seed 0, choices(range(5), k=8)", pyrandom.NewRandom(0).Choices(5, 8), []int{4, 3, 2, 1, 2, 2, 3, 1})
}

// TestProperties: a sample has no element twice, a shuffle loses none, draws stay inside their range, and the sign of a
// seed does not matter.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		r, twin := pyrandom.NewRandom(seed), pyrandom.NewRandomBig(new(big.Int).Neg(new(big.Int).SetUint64(seed)))
		n := rapid.IntRange(0, 300).Draw(t, "n")
		k := rapid.IntRange(0, n).Draw(t, "k")
		s := r.Sample(n, k)
		if !slices.Equal(s, twin.Sample(n, k)) {
			t.Fatal("seeds of opposite sign give different streams")
		}

		slices.Sort(s)
		if len(slices.Compact(s)) != k || (k > 0 && (s[0] < 0 || s[k-1] >= n)) {
			t.Fatalf("sample of %d from %d: %v", k, n, s)
		}

		x := collect(n, func(i int) int { return i })
		r.Shuffle(n, func(i, j int) { x[i], x[j] = x[j], x[i] })
		slices.Sort(x)
		if !slices.Equal(x, collect(n, func(i int) int { return i })) {
			t.Fatalf("shuffle of %d is no permutation", n)
		}

		lo := rapid.Int().Draw(t, "lo")
		hi := rapid.IntRange(lo, lo|1<<62).Draw(t, "hi")
		if hi >= lo {
			if v := r.RandInt(lo, hi); v < lo || v > hi {
				t.Fatalf("%d outside [%d, %d]", v, lo, hi)
			}
		}

		if f := r.Float64(); f < 0 || f >= 1 {
			t.Fatalf("random() = %v", f)
		}
	})
}

func TestPanics(t *testing.T) {
	r := pyrandom.NewRandom(0)
	for name, f := range map[string]func(){
		"Bits(65)":            func() { r.Bits(65) },
		"Bits(-1)":            func() { r.Bits(-1) },
		"Below(0)":            func() { r.Below(0) },
		"RandInt(1, 0)":       func() { r.RandInt(1, 0) },
		"RandInt of all":      func() { r.RandInt(-1<<63, 1<<63-1) },
		"RandRange(0, 0, 1)":  func() { r.RandRange(0, 0, 1) },
		"RandRange(0, 5, 0)":  func() { r.RandRange(0, 5, 0) },
		"RandRange(0, 5, -1)": func() { r.RandRange(0, 5, -1) },
		"Sample(2, 3)":        func() { r.Sample(2, 3) },
		"Sample(2, -1)":       func() { r.Sample(2, -1) },
		"Choices(0, 1)":       func() { r.Choices(0, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic", name)
				}
			}()
			f()
		}()
	}

	if r.Bits(0) != 0 {
		t.Error("no bits are not 0")
	}
}

func Example() {
	r := pyrandom.NewRandom(0)
	fmt.Println(r.RandInt(0, 356316), r.RandInt(0, 356316))
	fmt.Println(r.Sample(10, 3))
	// Output:
	// 201979 220500
	// [0 4 7]
}

func BenchmarkUint32(b *testing.B) {
	r := pyrandom.NewRandom(0)
	for b.Loop() {
		r.Uint32()
	}
}
