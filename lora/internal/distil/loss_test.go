package distil

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
)

// openModel loads the package's smallest base on a device with some threads.
func openModel(t testing.TB, name string, threads int) *lm.Model {
	t.Helper()
	dev := device.Complete(cpu.New(cpu.Options{Threads: threads}))
	m, err := lm.Load(t.Context(), filepath.Join("..", "..", "testdata", "peft", name), dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); dev.Close() })
	return m
}

// matrix is one of rows of numbers.
func matrix(rows [][]float32) kernels.Mat {
	return kernels.MatOf(kernels.WrapF32(slices.Concat(rows...)), len(rows), len(rows[0]))
}

// of runs a loss on logits: the losses and the gradients, for a mean over the rows.
func of(t testing.TB, m *lm.Model, s Settings, teacher, student [][]float32, labels []int32) (
	losses []float64, gradients kernels.Mat,
) {
	t.Helper()
	r := &Resident{Model: m, Vocab: len(teacher[0]), Temperature: s.Temperature, Top: s.Top, labels: labels}
	z := matrix(teacher)
	cool(m.Device().Ops(), z, s.Temperature)
	targets := r.some
	if s.Top == 0 {
		targets = r.whole
	}
	x, err := targets(z, labels)
	if err != nil {
		t.Fatal(err)
	}

	l := &Loss{Settings: s, dev: m.Device(), info: m.Device().Info()}
	defer l.Free()
	gradients, losses = matrix(student), make([]float64, len(labels))
	if err := l.rows(x, gradients, labels, losses, 1/float64(len(labels))); err != nil {
		t.Fatal(err)
	}
	return losses, gradients
}

// TestOracle: losses and gradients are those of torch's autograd in float64, of all tokens and of the likeliest with
// the rest, at several temperatures, with and without the cross-entropy.
func TestOracle(t *testing.T) {
	var want struct {
		Labels           []int32
		Teacher, Student [][]float32
		Cases            []struct {
			Top             int
			Temperature, CE float64
			Losses          []float64
			Gradients       []float64
		}
	}
	text, err := os.ReadFile(filepath.Join("testdata", "oracle.json"))
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil || len(want.Cases) != 12 {
		t.Fatalf("%d cases (%v)", len(want.Cases), err)
	}

	m := openModel(t, "base-llama", 2)
	for _, c := range want.Cases {
		losses, g := of(t, m, Settings{c.Temperature, c.Top, c.CE}, want.Teacher, want.Student, want.Labels)
		for i, v := range c.Losses {
			if math.Abs(losses[i]-v) > 1e-6*max(1, v) {
				t.Errorf("top %d, temperature %g, ce %g: loss of row %d is %.9g, want %.9g", c.Top, c.Temperature,
					c.CE, i, losses[i], v)
			}
		}
		for i, v := range c.Gradients {
			if got := float64(g.Buf.F32()[i]); math.Abs(got-v) > 1e-6 {
				t.Errorf("top %d, temperature %g, ce %g: gradient %d is %.9g, want %.9g", c.Top, c.Temperature,
					c.CE, i, got, v)
			}
		}
	}
}

// drawn are rows of logits.
func drawn(t *rapid.T, what string, rows, cols int) [][]float32 {
	list := make([][]float32, rows)
	for i := range list {
		list[i] = rapid.SliceOfN(rapid.Float32Range(-30, 30), cols, cols).Draw(t, what)
	}
	return list
}

// TestProperties: a student that is the teacher has no loss and no gradients, to the last bit; the divergence is not
// below 0, that of more tokens by themselves is not less, that of all is the largest and that of all but one is the
// same; a constant added to the logits changes nothing; gradients of a row add up to 0.
func TestProperties(t *testing.T) {
	m := openModel(t, "base-llama", 2)
	rapid.Check(t, func(x *rapid.T) {
		rows, cols := rapid.IntRange(1, 4).Draw(x, "rows"), rapid.IntRange(3, 70).Draw(x, "cols")
		teacher, student := drawn(x, "teacher", rows, cols), drawn(x, "student", rows, cols)
		labels := rapid.SliceOfN(rapid.Int32Range(0, int32(cols-1)), rows, rows).Draw(x, "labels")
		tau := rapid.SampledFrom([]float64{1, 2, 0.5}).Draw(x, "temperature")
		few := rapid.IntRange(1, cols-1).Draw(x, "top")
		more := rapid.IntRange(few, cols-1).Draw(x, "more")

		last := make([]float64, rows)
		for _, top := range []int{few, more, 0} {
			s := Settings{tau, top, 0}
			losses, g := of(t, m, s, teacher, student, labels)
			for i, v := range losses {
				if tol := 1e-4 * max(1, v); v < -1e-6 || v < last[i]-tol {
					t.Fatalf("top %d: divergence %g, of fewer tokens %g", top, v, last[i])
				}
				last[i] = v

				sum, size := 0.0, 0.0
				for _, d := range g.RowF32(i) {
					sum, size = sum+float64(d), size+math.Abs(float64(d))
				}
				if math.Abs(sum) > 1e-5*max(size, 1) {
					t.Fatalf("top %d: gradients of a row add up to %g", top, sum)
				}
			}

			same, g := of(t, m, s, teacher, teacher, labels)
			for i, v := range same {
				if v != 0 {
					t.Fatalf("top %d: the teacher diverges from itself by %g", top, v)
				}
				for j, d := range g.RowF32(i) {
					if d != 0 {
						t.Fatalf("top %d: the teacher has gradient %g of itself at %d", top, d, j)
					}
				}
			}
		}

		bucket, _ := of(t, m, Settings{tau, cols - 1, 0}, teacher, student, labels)
		for i, v := range bucket {
			if math.Abs(v-last[i]) > 1e-4*max(1, v) {
				t.Fatalf("all but one token: %g, all: %g", v, last[i])
			}
		}
	})
}

// TestDifferences: gradients are the differences of the losses.
func TestDifferences(t *testing.T) {
	m := openModel(t, "base-llama", 1)
	rapid.Check(t, func(x *rapid.T) {
		s := Settings{
			Temperature: rapid.SampledFrom([]float64{1, 1.5, 3}).Draw(x, "temperature"),
			Top:         rapid.IntRange(0, 8).Draw(x, "top"), CE: rapid.SampledFrom([]float64{0, 0.5}).Draw(x, "ce"),
		}
		z := func(what string) [][]float32 {
			return [][]float32{rapid.SliceOfN(rapid.Float32Range(-4, 4), 9, 9).Draw(x, what)}
		}
		teacher, student := z("teacher"), z("student")
		labels := []int32{rapid.Int32Range(0, 8).Draw(x, "label")}

		_, g := of(t, m, s, teacher, student, labels)
		for j := range student[0] {
			const step = 1.0 / 64
			at := func(by float32) float64 {
				moved := [][]float32{slices.Clone(student[0])}
				moved[0][j] += by
				losses, _ := of(t, m, s, teacher, moved, labels)
				return losses[0]
			}
			want := (8*(at(step)-at(-step)) - (at(2*step) - at(-2*step))) / (12 * step)
			if got := float64(g.RowF32(0)[j]); math.Abs(got-want) > 2e-3*max(1, math.Abs(want)) {
				t.Fatalf("%+v: gradient %d is %g, differences say %g", s, j, got, want)
			}
		}
	})
}

// TestTop: the largest values in order, the first of equal ones.
func TestTop(t *testing.T) {
	rapid.Check(t, func(x *rapid.T) {
		row := rapid.SliceOfN(rapid.SampledFrom([]float32{-2, -1, 0, 0.5, 1, 7, float32(math.Inf(-1))}), 1, 40).
			Draw(x, "row")
		k := rapid.IntRange(1, len(row)).Draw(x, "k")
		want := make([]int32, len(row))
		for i := range want {
			want[i] = int32(i)
		}
		sort.SliceStable(want, func(a, b int) bool { return row[want[a]] > row[want[b]] })

		got := make([]int32, k)
		top(row, got)
		if !slices.Equal(got, want[:k]) {
			t.Fatalf("top %d of %v: %v, want %v", k, row, got, want[:k])
		}
	})
}
