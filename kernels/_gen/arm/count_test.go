package main

import (
	"regexp"
	"strings"
	"testing"
)

// loop is an innermost loop: instructions, and those that multiply and add.
type loop struct{ all, products int }

// innermost returns the loops of a function's text that hold no other, by their labels.
func innermost(text string) map[string]loop {
	out := map[string]loop{}
	at := map[string]int{}
	lines := strings.Split(text, "\n")
	product := regexp.MustCompile(`// (fmla|fmls|sdot|smmla|bfdot|bfmmla|smlal)`)
	branch := regexp.MustCompile(`^\tB\w* (\w+)$`)
	last := -1 // where the latest loop that ended began
	for i, l := range lines {
		if name, ok := strings.CutSuffix(l, ":"); ok {
			at[name] = i
		}
		m := branch.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		start, known := at[m[1]]
		if !known || start <= last { // forwards, or around another loop
			continue
		}
		last = i
		var n loop
		for _, s := range lines[start+1 : i+1] {
			if strings.HasPrefix(s, "\t") {
				n.all++
			}
			if product.MatchString(s) {
				n.products++
			}
		}
		out[m[1]] = n
	}
	return out
}

// TestShareOfProducts: of the instructions of the products' inner loops, so many multiply and add. It is a count of the
// generated code, not a measurement.
func TestShareOfProducts(t *testing.T) {
	files, err := generated()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, function, label string
		least                 float64
	}{
		{"gemm_neon_arm64.s", "gemmF32NEON", "four", 0.85},
		{"gemm_neon_arm64.s", "gemmPairDot", "four", 0.85},
		{"gemm_neon_arm64.s", "gemmQuadsBFMMLA", "four", 0.85},
		{"attention_neon_arm64.s", "laneTileNEON", "along", 0.85},
		{"attention_neon_arm64.s", "laneTileNEON", "across", 0.85},
		{"gemv_neon_arm64.s", "dotF32NEONx1", "twice", 0.35},
		{"gemv_neon_arm64.s", "dotF32NEONx2", "loop", 0.4},
		{"gemv_neon_arm64.s", "dotBF16NEONx1", "twice", 0.25},
		{"quantisedtiles_dot_arm64.s", "byteTile32Dot", "step", 0.85},
		{"quantisedtiles_i8mm_arm64.s", "byteTile32I8MM", "step", 0.84},
	} {
		text := string(files["kernels/cpu/"+c.file])
		_, text, ok := strings.Cut(text, "TEXT ·"+c.function+"(SB)")
		if !ok {
			t.Fatalf("no %s", c.function)
		}
		text, _, _ = strings.Cut(text, "\nTEXT ")
		loops := innermost(text)
		n, ok := loops[c.label]
		if !ok {
			t.Errorf("%s has no inner loop %s: %v", c.function, c.label, loops)
			continue
		}
		share := float64(n.products) / float64(n.all)
		t.Logf("%s %s: %d of %d, %.0f %%", c.function, c.label, n.products, n.all, 100*share)
		if share < c.least {
			t.Errorf("%s %s: %d of %d instructions multiply and add", c.function, c.label, n.products, n.all)
		}
	}
}
