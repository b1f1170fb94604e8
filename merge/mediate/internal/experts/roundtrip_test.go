package experts

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// shapes are a wide matrix, one that ends within a chunk of eight elements, and a vector.
var shapes = [][]int64{{40, 700}, {33, 61}, {1031}}

// models are a dense tensor and two experts near it, as values of a type.
func models(t *testing.T, shape []int64, d safetensors.DType) (dense []float32, own [][]float32) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(len(shape)), uint64(shape[0])))
	n := safetensors.Info{Shape: shape}.Elements()
	dense, own = make([]float32, n), [][]float32{make([]float32, n), make([]float32, n)}
	for i := range dense {
		dense[i] = float32(rng.NormFloat64())
		for _, x := range own {
			x[i] = dense[i] + float32(0.1*rng.NormFloat64())
		}
	}

	for _, x := range append(own, dense) {
		raw := narrow(t, x, d)
		copy(x, widen(t, raw, d))
	}

	return dense, own
}

func narrow(t *testing.T, x []float32, d safetensors.DType) []byte {
	t.Helper()
	raw := make([]byte, len(x)*d.Bits()/8)
	if err := stream.Narrow(raw, x, d); err != nil {
		t.Fatal(err)
	}
	return raw
}

func widen(t *testing.T, raw []byte, d safetensors.DType) []float32 {
	t.Helper()
	x := make([]float32, len(raw)*8/d.Bits())
	if err := Widen(x, raw, d); err != nil {
		t.Fatal(err)
	}
	return x
}

// stored splits two experts from a dense model by a rule, into files, and opens these.
func stored(t *testing.T, k Keep, dense []float32, own [][]float32, shape []int64, d safetensors.DType) []Weighted {
	t.Helper()
	dir := t.TempDir()
	info := safetensors.Info{Name: "w", DType: d, Shape: shape}
	w, err := safetensors.CreateDir(dir, []safetensors.Info{info}, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteTensor("w", narrow(t, dense, d)); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	tensor := &method.Tensor{Name: "w", Shape: shape, N: info.Elements(), Base: true}
	it := &stream.Item{Tensor: tensor, DType: d}
	source := func(x []float32) stream.Source {
		src, err := stream.NewMapped(narrow(t, x, d), d, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		return src
	}

	names := []string{"one", "two"}
	it.Base = source(dense)
	var parts []*Part
	for i, x := range own {
		it.X, it.Models = append(it.X, source(x)), append(it.Models, names[i])
		tensor.Inputs = append(tensor.Inputs, method.Input{Model: i, Name: names[i]})
		parts = append(parts, NewPart("w", shape, d))
	}
	it.Models = append(it.Models, "dense")

	run := func(p *method.Program) {
		t.Helper()
		o := stream.Options{Threads: 2, Memory: 64 << 20}
		groups := []stream.Group{{Items: []*stream.Item{it}, Program: p}}
		if _, err := stream.Inspect(t.Context(), groups, o); err != nil {
			t.Fatal(err)
		}
	}

	keys := Keys("w", names, 5)
	run(k.Choose(tensor, parts, keys))
	if k.Kind == "best" {
		if err := k.Settle([][]*Part{parts}); err != nil {
			t.Fatal(err)
		}
		run(k.Choose(tensor, parts, keys))
	}

	var files []*safetensors.Writer
	for i, p := range parts {
		f, err := Create(filepath.Join(dir, FileOf(names[i])), []*Part{p}, nil)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}

	run(k.Write(tensor, parts, keys, files))
	Share(parts)

	opened, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })

	var list []Weighted
	var bytes, most int64
	for i, f := range files {
		if err := f.Finish(); err != nil {
			t.Fatal(err)
		}

		path := filepath.Join(dir, FileOf(names[i]))
		e, err := Open(path, names[i], map[string]Part{"w": *parts[i]}, opened)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })

		bytes, most = bytes+e.Bytes(), most+k.Bound("w", shape, d)+512 // what a file has beside its tensors
		list = append(list, Weighted{Expert: e})
	}
	if bytes > most {
		t.Errorf("%d bytes, the bound is %d", bytes, most)
	}
	if err := Link([]*Expert{list[0].Expert, list[1].Expert}); err != nil {
		t.Fatal(err)
	}

	return list
}

// whole puts a tensor together under weights.
func whole(t *testing.T, list []Weighted, weights []float64, dense []float32, d safetensors.DType) []byte {
	t.Helper()
	raw := narrow(t, dense, d)
	for i := range list {
		list[i].Weight = weights[i]
	}

	out := make([]byte, len(raw))
	var ws Workspace
	for c := range Chunks(int64(len(dense))) {
		at := c * Chunk * d.Bits() / 8
		if err := ws.Whole(list, "w", d, raw, c, out[at:min(len(out), at+Chunk*d.Bits()/8)]); err != nil {
			t.Fatal(err)
		}
	}

	return out
}

// TestExpertsComeBack: by every rule, for matrices and vectors of every type, an expert's file gives back what the rule
// keeps: the loss is the one that was noted, elements that were kept are the expert's own bits, and the others the
// dense model's.
func TestExpertsComeBack(t *testing.T) {
	for _, k := range []Keep{
		{"magnitude", 0},
		{"magnitude", 0.03},
		{"magnitude", 0.4},
		{"magnitude", 1},
		{"random", 0.3},
		{"energy", 0.7},
		{"lowrank", 3},
		{"bits", 3},
		{"sign1", 0},
		{"best", 0.04},
		{"best", 0.3},
	} {
		for _, shape := range shapes {
			for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
				t.Run(fmt.Sprint(k, shape, d), func(t *testing.T) { comeBack(t, k, shape, d) })
			}
		}
	}
}

func comeBack(t *testing.T, k Keep, shape []int64, d safetensors.DType) {
	dense, own := models(t, shape, d)
	list := stored(t, k, dense, own, shape, d)
	for e := range own {
		weights := make([]float64, len(own))
		weights[e] = 1
		back := widen(t, whole(t, list, weights, dense, d), d)

		part := list[e].Part("w")
		same := int64(0)
		energy, lost := 0.0, 0.0
		for i := range back {
			switch {
			case back[i] == own[e][i] && back[i] != dense[i]:
				same++
			case !part.dense() && !part.Delta && back[i] != own[e][i] && back[i] != dense[i]:
				t.Fatalf("element %d is %v, neither %v nor %v", i, back[i], own[e][i], dense[i])
			}

			energy += float64(own[e][i]-dense[i]) * float64(own[e][i]-dense[i])
			lost += float64(own[e][i]-back[i]) * float64(own[e][i]-back[i])
		}

		// Elements of the type are as near as the type allows: bfloat16 has eight bits.
		slack := 1e-5 * energy
		if d == safetensors.BF16 && (part.dense() || part.Delta) {
			slack = 0.02*energy + lost/5
		}
		if math.Abs(energy-part.Energy) > 1e-5*energy || math.Abs(lost-part.Lost) > slack {
			t.Errorf("energy %v and loss %v, noted are %v and %v", energy, lost, part.Energy, part.Lost)
		}

		// Few differences of bfloat16 are 0, and those that are kept change nothing.
		if most := int64(float64(len(back)) * 0.99); !part.dense() && !part.Delta &&
			(same > part.Kept || k.Value < 1 && part.Kept > most || same < part.Kept*9/10) {
			t.Errorf("%d elements are the expert's, %d are kept", same, part.Kept)
		}
	}
}

// TestWeighIsWhole: the elements that Weigh lists, in ascending order, are those by which Whole differs from the dense
// tensor, with the same bytes, for one expert and for a mixture.
func TestWeighIsWhole(t *testing.T) {
	for _, k := range []Keep{{"magnitude", 0.1}, {"random", 0.2}, {"bits", 2}, {"lowrank", 2}} {
		shape, d := []int64{40, 70}, safetensors.BF16
		dense, own := models(t, shape, d)
		list := stored(t, k, dense, own, shape, d)
		for _, weights := range [][]float64{{1, 0}, {0.25, 0.75}, {-1, 2}} {
			want := whole(t, list, weights, dense, d)
			got := narrow(t, dense, d)
			raw := slices.Clone(got)
			last := int64(-1)
			var ws Workspace
			err := ws.Weigh(list, "w", d, raw, 0, func(i int64, value []byte) {
				if i <= last {
					t.Fatalf("%v: element %d after %d", k, i, last)
				}
				last = i
				copy(got[2*i:], value)
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, weights %v: Weigh and Whole differ", k, weights)
			}
		}
	}
}

// TestMultiplyIsTheProduct: what an expert adds to products is the product with its difference from the dense matrix,
// by every encoding, and costs nothing where nothing is kept.
func TestMultiplyIsTheProduct(t *testing.T) {
	shape, d := []int64{24, 300}, safetensors.F32
	dense, own := models(t, shape, d)
	rng := rand.New(rand.NewPCG(8, 8))
	x := make([]float32, shape[1])
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}

	for _, k := range []Keep{
		{"magnitude", 0},
		{"magnitude", 0.05},
		{"magnitude", 0.5},
		{"magnitude", 1},
		{"random", 0.3},
		{"lowrank", 4},
		{"bits", 4},
		{"sign1", 0},
	} {
		list := stored(t, k, dense, own, shape, d)
		back := widen(t, whole(t, list, []float64{1, 0}, dense, d), d)
		part := list[0].Part("w")

		const weight = 0.5
		y := [][]float32{make([]float32, shape[0])}
		var ws Workspace
		if err := part.Multiply(&ws, y, [][]float32{x}, narrow(t, dense, d), weight); err != nil {
			t.Fatal(err)
		}

		for r := range shape[0] {
			want := 0.0
			for c := range shape[1] {
				i := r*shape[1] + c
				want += weight * float64(back[i]-dense[i]) * float64(x[c])
			}
			if math.Abs(want-float64(y[0][r])) > 1e-4 { // sums of 300 products in float32
				t.Errorf("%v: row %d gets %v, want %v", k, r, y[0][r], want)
			}
		}

		if row, once, all := part.Costs(); (part.Encoding == Nothing) != (row+once+all == 0) {
			t.Errorf("%v as %s costs %v, %v and %v", k, part.Encoding, row, once, all)
		}
	}
}
