package quantized

import (
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// TestFitLeastError: the search finds ranges that leave no more error than those of llm-compressor's observer, and
// mostly the same; never more than the whole range leaves.
func TestFitLeastError(t *testing.T) {
	f, err := safetensors.Open("testdata/leasterror.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	const group = 32
	x := numbersOf(t, f, "x")
	groups := len(x) / group
	for name, n := range map[string]Numbers{
		"int_4":   {Bits: 4, Symmetric: true, DType: safetensors.F32},
		"asym_4":  {Bits: 4, DType: safetensors.F32},
		"int_3":   {Bits: 3, Symmetric: true, DType: safetensors.F32},
		"int_8":   {Bits: 8, Symmetric: true, DType: safetensors.F32},
		"float_8": {Bits: 8, Float: true, Symmetric: true, DType: safetensors.F32},
	} {
		ranges := numbersOf(t, f, name)
		same := 0
		for i := range groups {
			part := x[i*group:][:group]
			scale, zero := n.FitLeastError(part)
			theirs, theirZero := n.Fit(ranges[i], ranges[groups+i])
			if scale == theirs && zero == theirZero {
				same++
			}

			// Sums in float32 may be told apart otherwise.
			got := n.rangeError(part, scale, zero)
			if want := n.rangeError(part, theirs, theirZero); got > want*(1+1e-6) {
				t.Errorf("%s, group %d: %g is left, %g by the observer", name, i, got, want)
			}
			whole, wholeZero := n.Fit(bounds(part))
			if all := n.rangeError(part, whole, wholeZero); got > all {
				t.Errorf("%s, group %d: %g is left, %g without a search", name, i, got, all)
			}
		}
		if same < groups*9/10 {
			t.Errorf("%s: %d of %d groups have other ranges", name, groups-same, groups)
		}
	}
}
