package experts

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// differences are those of an expert's tensor that came back from its file, and of the tensor itself.
func differences(t *testing.T, k Keep, shape []int64) (back, own []float64, part *Stored) {
	t.Helper()
	dense, experts := models(t, shape, safetensors.F32)
	list := stored(t, k, dense, experts, shape, safetensors.F32)
	got := widen(t, whole(t, list, []float64{1, 0}, dense, safetensors.F32), safetensors.F32)
	for i := range dense {
		back = append(back, float64(got[i])-float64(dense[i]))
		own = append(own, float64(experts[0][i]-dense[i]))
	}
	return back, own, list[0].Part("w")
}

// byMagnitude lists the places of values from the largest magnitude down.
func byMagnitude(x []float64) []int {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(math.Abs(x[j]), math.Abs(x[i])) })
	return order
}

// TestMagnitudeKeepsTheLargest: exactly ⌊fraction·n⌋ elements, and no other difference is larger.
func TestMagnitudeKeepsTheLargest(t *testing.T) {
	for _, fraction := range []float64{1e-9, 0.01, 0.9} {
		for _, shape := range shapes[1:] {
			back, own, part := differences(t, Keep{"magnitude", fraction}, shape)
			want := max(1, int(fraction*float64(len(own))))
			if part.Kept != int64(want) {
				t.Errorf("%v of %v: %d elements are kept, want %d", fraction, shape, part.Kept, want)
			}

			order := byMagnitude(own)
			for place, i := range order {
				if (back[i] != 0) != (place < want) {
					t.Errorf("%v of %v: place %d is %v of %v", fraction, shape, place, back[i], own[i])
					break
				}
			}
		}
	}
}

// TestEnergyKeepsAsFewAsReachIt: the largest differences whose squares are the fraction of all, and not one more.
func TestEnergyKeepsAsFewAsReachIt(t *testing.T) {
	for _, fraction := range []float64{0.1, 0.9, 0.999} {
		for _, shape := range shapes[1:] {
			_, own, part := differences(t, Keep{"energy", fraction}, shape)
			total := 0.0
			for _, v := range own {
				total += v * v
			}

			sum, want := 0.0, int64(0)
			for _, i := range byMagnitude(own) {
				if sum >= fraction*total {
					break
				}
				sum += own[i] * own[i]
				want++
			}

			if d := part.Kept - want; d < -1 || d > 1 { // the sums round, here and there
				t.Errorf("%v of %v: %d elements are kept, %d hold it", fraction, shape, part.Kept, want)
			}
			if part.Lost > (1-fraction)*part.Energy*(1+1e-5) {
				t.Errorf("%v of %v: %v is lost of %v", fraction, shape, part.Lost, part.Energy)
			}
		}
	}
}

// TestEnergyOfEquals: where all differences are of one size, the fraction of the energy is one of their number.
func TestEnergyOfEquals(t *testing.T) {
	shape, d := []int64{10, 100}, safetensors.F32
	dense, own := make([]float32, 1000), make([]float32, 1000)
	for i := range own {
		own[i] = 0.5 * float32(1-2*(i%2))
	}

	for _, fraction := range []float64{0.001, 0.25, 0.8} {
		list := stored(t, Keep{"energy", fraction}, dense, [][]float32{own, own}, shape, d)
		if kept := list[0].Part("w").Kept; kept != int64(math.Round(1000*fraction)) {
			t.Errorf("%v of a thousand equal differences are %d", fraction, kept)
		}
	}
}

// TestLowRankIsTheBest: what a rank loses is what no matrix of that rank could keep (Eckart and Young): the squares of
// the singular values behind it.
func TestLowRankIsTheBest(t *testing.T) {
	shape := []int64{33, 61}
	for _, rank := range []int{1, 2, 8} {
		back, own, part := differences(t, Keep{"lowrank", float64(rank)}, shape)
		if part.Encoding != LowRank || part.Rank != rank {
			t.Fatalf("encoding %s of rank %d", part.Encoding, part.Rank)
		}

		var svd mat.SVD
		if !svd.Factorize(mat.NewDense(33, 61, slices.Clone(own)), mat.SVDNone) {
			t.Fatal("gonum fails")
		}

		best := 0.0
		for _, s := range svd.Values(nil)[rank:] {
			best += s * s
		}

		lost := 0.0
		for i := range own {
			lost += (own[i] - back[i]) * (own[i] - back[i])
		}
		if lost < best*(1-1e-4) || lost > best*1.01 { // factors are float32, the directions those of an iteration
			t.Errorf("rank %d loses %v, the best loses %v", rank, lost, best)
		}
	}
}

// TestSignsHaveTheMeanOfTheirRow: one bit an element, and for every row the scale that loses least, which is the mean
// magnitude.
func TestSignsHaveTheMeanOfTheirRow(t *testing.T) {
	const rows, cols = 33, 61
	back, own, _ := differences(t, Keep{"sign1", 0}, []int64{rows, cols})
	for r := range rows {
		mean := 0.0
		for _, v := range own[r*cols : (r+1)*cols] {
			mean += math.Abs(v) / cols
		}
		for i := r * cols; i < (r+1)*cols; i++ {
			if math.Abs(math.Abs(back[i])-mean) > 1e-5 || own[i] != 0 && (back[i] < 0) != (own[i] < 0) {
				t.Fatalf("element %d of row %d is %v for %v, the mean is %v", i-r*cols, r, back[i], own[i], mean)
			}
		}
	}
}

// TestRandomIsUnbiased: what stays is divided by the probability of staying, so that the sum of all differences keeps
// its expectation.
func TestRandomIsUnbiased(t *testing.T) {
	const p = 0.25
	back, own, part := differences(t, Keep{"random", p}, []int64{40, 700})
	kept := 0
	for i := range own {
		if back[i] == 0 {
			continue
		}
		kept++
		if math.Abs(back[i]-own[i]/p) > 1e-5 {
			t.Fatalf("element %d is %v, want %v", i, back[i], own[i]/p)
		}
	}

	n := float64(len(own))
	if d := math.Abs(float64(kept) - p*n); d > 5*math.Sqrt(n*p*(1-p)) || int64(kept) > part.Kept {
		t.Errorf("%d of %d elements stay, %d are noted", kept, len(own), part.Kept)
	}
}

// TestMixturesAreLinear: under any weights the tensor is D + Σ w·(V - D), where V is what an expert's file gives alone.
func TestMixturesAreLinear(t *testing.T) {
	shape, d := []int64{33, 61}, safetensors.F32
	dense, own := models(t, shape, d)
	for _, k := range []Keep{
		{"magnitude", 0.3},
		{"magnitude", 1},
		{"random", 0.5},
		{"energy", 0.6},
		{"lowrank", 3},
		{"bits", 4},
		{"sign1", 0},
	} {
		list := stored(t, k, dense, own, shape, d)
		one := widen(t, whole(t, list, []float64{1, 0}, dense, d), d)
		two := widen(t, whole(t, list, []float64{0, 1}, dense, d), d)
		for _, w := range [][]float64{{0.5, 0.5}, {2, -1}, {0, 0}, {0.3, 0}, {-0.7, 0.1}} {
			for i, v := range widen(t, whole(t, list, w, dense, d), d) {
				b := float64(dense[i])
				want := b + w[0]*(float64(one[i])-b) + w[1]*(float64(two[i])-b)
				if math.Abs(float64(v)-want) > 2e-6*(1+math.Abs(b)) { // a sum of three in float32
					t.Errorf("%v, weights %v: element %d is %v, want %v", k, w, i, v, want)
					break
				}
			}
		}
	}
}

// TestWeightsThatOverflow are refused with the tensor, the element and the weights; what is not finite without them is
// no fault of theirs.
func TestWeightsThatOverflow(t *testing.T) {
	shape, d := []int64{2, 40}, safetensors.F16
	rng := rand.New(rand.NewPCG(4, 4))
	dense := make([]float32, 80)
	one := make([]float32, 80)
	for i := range dense {
		dense[i] = float32(rng.NormFloat64())
		one[i] = dense[i]
	}

	one[17] = dense[17] + 20_000
	for _, x := range [][]float32{dense, one} {
		copy(x, widen(t, narrow(t, x, d), d))
	}

	list := stored(t, Keep{"magnitude", 1}, dense, [][]float32{one, dense}, shape, d)
	list[0].Weight = 4
	raw := narrow(t, dense, d)
	var ws Workspace
	err := ws.Whole(list, "w", d, raw, 0, make([]byte, len(raw)))
	if !errors.Is(err, stream.ErrOverflow) || !strings.Contains(fmt.Sprint(err),
		`tensor "w", element 17, the weights one=4: `) {
		t.Errorf("%v", err)
	}

	list[0].Weight = 3
	if err := ws.Whole(list, "w", d, raw, 0, make([]byte, len(raw))); err != nil {
		t.Errorf("60000 has room in a float16: %v", err)
	}
}

// TestEncodingIsTheSmallest: of the bytes that each way to store so many elements would take.
func TestEncodingIsTheSmallest(t *testing.T) {
	for _, shape := range [][]int64{{40, 700}, {3, 1 << 17}, {1031}, {5}, {7, 1}} {
		n, rows, cols := size(shape)
		for _, width := range []int64{2, 4} {
			for kept := int64(0); kept <= n; kept += max(1, n/37) {
				name, bytes := encoding(shape, kept, width)
				costs := map[string]int64{Bitmap: (n+7)/8 + width*kept, Full: width * n}
				if cols <= 1<<16 {
					costs[Rows] = (2+width)*kept + 4*(rows+1)
				}

				switch {
				case kept == 0:
					if name != Nothing || bytes != 0 {
						t.Errorf("%v: nothing is stored as %s in %d bytes", shape, name, bytes)
					}
				case kept == n:
					if name != Full || bytes != costs[Full] {
						t.Errorf("%v: everything is stored as %s in %d bytes", shape, name, bytes)
					}
				default:
					delete(costs, Full) // it would not say which elements are kept
					for other, cost := range costs {
						if bytes > cost || bytes != costs[name] {
							t.Errorf("%d of %v: %s in %d bytes, %s takes %d", kept, shape, name, bytes, other, cost)
						}
					}
				}
			}
		}
	}
}
