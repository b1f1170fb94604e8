package cpu

import (
	"testing"

	"github.com/modelcompress/compress/internal/isa"
)

// TestFastDotGoesWithBF16: the note on the speed of a product of bfloat16 is about an instruction that there is.
func TestFastDotGoesWithBF16(t *testing.T) {
	all := features{Sets: isa.Sets{AVX2: true, AVX512: true, AVX512BF16: true, AMX: true}, fastDot: true}
	for disable, want := range map[string]bool{
		"": true, "amx": true, "avx512vnni": true, "avx512bf16": false, "avx512": false, "avx2": false,
	} {
		if f := all.without(disable); f.fastDot != want || f.AVX512BF16 != want {
			t.Errorf("without %q: fastDot is %v beside %v", disable, f.fastDot, f.Names())
		}
	}
}
