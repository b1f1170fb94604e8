package quantize

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/hostmat"
)

// TestSparse: so many weights are 0 as were asked for, in the pattern that was asked for, for numbers of every kind; in
// one sweep outputs err less than by removing and rounding apart; the bytes are the same for any number of threads.
func TestSparse(t *testing.T) {
	for _, c := range []struct {
		scheme, pattern, order string
		sparsity               float64
	}{
		{"w4a16", "", "", 0.5},
		{"w4a16", "", OrderWeight, 0.3},
		{"w4a16_asym", "2:4", "", 0},
		{"w4a16_asym", "", "", 0.5},
		{"nvfp4a16", "2:4", "", 0},
		{"w8a8", "", "", 0.6},
		{"gptq", "4:8", "", 0},
		{"fp8_dynamic", "1:2", "", 0},
	} {
		t.Run(c.scheme+c.pattern+c.order, func(t *testing.T) {
			var apart float64
			before := ""
			for i, method := range []string{RTN, GPTQ, GPTQ} {
				m := open(t, nano, i+1)
				o := options(t, c.scheme, method, filepath.Join(t.TempDir(), "out"))
				o.Sparsity = c.sparsity
				o.Pattern = c.pattern
				if method == GPTQ {
					o.Order = c.order
				}
				calib := calibration(t, m, 8, 64)
				r, err := Model(ctx, m, calib, o)
				if err != nil {
					t.Fatal(err)
				}
				if before != "" {
					sameFiles(t, before, o.Out)
				}
				if i == 1 {
					before = o.Out
				}

				got := source(t, o.Out)
				for _, one := range r.Matrices {
					v := values(t, got, one.Name)
					checkZeros(t, one, v, c.pattern, c.sparsity)
				}
				lost := losses(t, open(t, o.Out, 2), calib.IDs)
				if method == RTN {
					apart = lost
				} else if lost > apart {
					t.Errorf("a loss of %g, apart %g", lost, apart)
				}
			}
		})
	}
}

// TestKeepZeros: weights that are 0 stay it in a sweep that is told so, whatever the order of its columns, and what is
// left makes up for the rest at least as well as rounding by itself.
func TestKeepZeros(t *testing.T) {
	const name = "model.layers.1.mlp.down_proj.weight"
	pruned := func(w []float32, _ int) {
		for i := range w {
			if i%7 == 2 || i%5 == 1 || w[i] > 0.1 {
				w[i] = 0
			}
		}
	}

	for _, c := range []struct{ scheme, method, order string }{
		{"w4a16", GPTQ, ""},
		{"w4a16", GPTQ, OrderGiven},
		{"w4a16_asym", GPTQ, ""},
		{"w4a16_asym", AWQGPTQ, ""},
		{"nvfp4a16", GPTQ, ""},
		{"w4a16_asym", AWQ, ""},
		{"w4a16_asym", HQQ, ""},
		{"mxfp4a16", RTN, ""},
		{"gptq", RTN, ""},
	} {
		t.Run(c.scheme+"/"+c.method+"/"+c.order, func(t *testing.T) {
			m := altered(t, name, pruned)
			calib := calibration(t, m, 8, 64)
			stored, err := m.Param(name)
			if err != nil {
				t.Fatal(err)
			}
			dense, err := hostmat.F32(m.Device(), stored)
			if err != nil {
				t.Fatal(err)
			}

			o := options(t, c.scheme, c.method, filepath.Join(t.TempDir(), "out"))
			o.Order = c.order
			o.KeepZeros = true
			r, err := Model(ctx, m, calib, o)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range values(t, source(t, o.Out), name) {
				if dense.Buf.F32()[i] == 0 && v != 0 {
					t.Fatalf("element %d became %g", i, v)
				}
			}

			one := r.Matrices[slices.IndexFunc(r.Matrices, func(m Matrix) bool { return m.Name == name })]
			if !o.sweeps() {
				return
			}
			if one.Zeros < zeros(dense) || *one.OutputError > *one.Rounded {
				t.Errorf("%g zeros of %g, error %g, alone %g", one.Zeros, zeros(dense), *one.OutputError, *one.Rounded)
			}

			// Otherwise they take their part.
			m = altered(t, name, pruned)
			o.KeepZeros = false
			o.Out = filepath.Join(t.TempDir(), "out")
			if _, err := Model(ctx, m, calib, o); err != nil {
				t.Fatal(err)
			}
			kept := 0.0
			for i, v := range values(t, source(t, o.Out), name) {
				if dense.Buf.F32()[i] == 0 && v == 0 {
					kept++
				}
			}
			if all := zeros(dense) * float64(dense.Len()); kept == all {
				t.Errorf("all %g zeros stay zeros anyway", all)
			}
		})
	}
}

// checkZeros counts the zeros of a matrix.
func checkZeros(t *testing.T, one Matrix, v []float32, pattern string, sparsity float64) {
	t.Helper()
	n := 0
	for _, x := range v {
		if x == 0 {
			n++
		}
	}
	if got := float64(n) / float64(len(v)); math.Abs(got-one.Zeros) > 1e-9 || got < sparsity-0.011 {
		t.Errorf("%s: %g of the weights are 0, by the report %g", one.Name, got, one.Zeros)
	}

	least, of, err := Options{Pattern: pattern}.pattern()
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; of > 0 && at < len(v); at += of {
		n := 0
		for _, x := range v[at : at+of] {
			if x == 0 {
				n++
			}
		}
		if n < least {
			t.Fatalf("%s: %v", one.Name, v[at:at+of])
		}
	}
}

// TestDropLowest: what goes is what a sort puts first.
func TestDropLowest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rows := rapid.IntRange(1, 4).Draw(rt, "rows")
		cols := rapid.IntRange(1, 40).Draw(rt, "columns")
		score := make([][]float32, rows)
		keep := make([][]uint8, rows)
		for i := range rows {
			keep[i] = slices.Repeat([]uint8{1}, cols)
			for range cols {
				v := float32(rapid.IntRange(0, 9).Draw(rt, "score")) * 0.37
				score[i] = append(score[i], v)
			}
		}
		count := rapid.IntRange(0, rows*cols).Draw(rt, "count")
		checkLowest(rt, keep, score, count)
	})

	// More than are sorted, with many ties.
	score := make([][]float32, 70)
	for i := range score {
		for j := range 130 {
			score[i] = append(score[i], float32((i*31+j*j)%97)*0.001)
		}
	}
	for _, count := range []int{1, 94, 4550, 9099, 9100} {
		keep := make([][]uint8, len(score))
		for i := range keep {
			keep[i] = slices.Repeat([]uint8{1}, 130)
		}
		checkLowest(t, keep, score, count)
	}
}

func checkLowest(t interface{ Fatalf(string, ...any) }, keep [][]uint8, score [][]float32, count int) {
	dropLowest(keep, score, count)
	flat := slices.Concat(score...)
	cols := len(score[0])
	order := make([]int, len(flat))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case flat[a] < flat[b]:
			return -1
		case flat[a] > flat[b]:
			return 1
		}
		return 0
	})
	for rank, at := range order {
		if gone := keep[at/cols][at%cols] == 0; gone != (rank < count) {
			t.Fatalf("%d of %v: %v", count, flat, keep)
		}
	}
}

// TestSparseOptions: what contradicts itself is refused.
func TestSparseOptions(t *testing.T) {
	for name, change := range map[string]func(o *Options){
		"both":             func(o *Options) { o.Sparsity, o.Pattern = 0.5, "2:4" },
		"sparsity of 1":    func(o *Options) { o.Sparsity = 1 },
		"sparsity NaN":     func(o *Options) { o.Sparsity = math.NaN() },
		"pattern of three": func(o *Options) { o.Pattern = "1:3" },
		"pattern 4:4":      func(o *Options) { o.Pattern = "4:4" },
		"pattern of words": func(o *Options) { o.Pattern = "2:4x" },
		"order": func(o *Options) {
			o.Pattern = "2:4"
			o.Method = GPTQ
			o.Order = OrderWeight
		},
		"awq": func(o *Options) {
			o.Sparsity = 0.5
			o.Method = AWQ
		},
	} {
		o := options(t, "w4a16", RTN, "out")
		change(&o)
		if err := o.Validate(); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
