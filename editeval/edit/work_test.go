package edit

import "testing"

// A fact costs what its method runs: one pass or as many as there are steps, over whole prompts or over what lies
// behind the subject and above the layer.
func TestWork(t *testing.T) {
	r := Encoded{
		Prompts: [][]int32{make([]int32, 8), make([]int32, 12)}, Lookup: []int{5, 9}, Target: make([]int32, 2),
	}
	h := HParams{Layers: []int{3, 5}, Steps: 10}

	const once, tails = 10 + 14, 2 * 10 * (5 + 5) * 0.5
	for method, want := range map[string]float64{
		"ultraedit": 2 * 10, "ft": 2 * 10 * 10, "grace": 10 + 2*10*3*0.5, "memit": once + tails, "rome": once + tails,
		"memoir": once + tails, "ike": 0, "unknown": 0,
	} {
		if got := Work(method, h, 10, &r); got != want {
			t.Errorf("%s: %v, want %v", method, got, want)
		}
	}

	r.KL, r.KLLookup = make([]int32, 6), 4
	h.KL = 0.1
	if got, want := Work("memit", h, 10, &r), float64(once+6+2*10*(10+2)*0.5); got != want {
		t.Errorf("with a sentence about the subject: %v, want %v", got, want)
	}
}
