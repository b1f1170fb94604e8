package cpu

import "testing"

// TestPeaks: every instruction set has a limit, float32 ones come first, and the widest of them is PeakF32's.
func TestPeaks(t *testing.T) {
	for _, disable := range []string{"", "amx", "avx512", "avx2,neon"} {
		d := &Device{threads: 1, isa: detect(disable)}
		peaks, half := d.Peaks(1), 0
		for i, p := range peaks {
			if p.Flops <= 0 || p.Set == "" {
				t.Errorf("without %q: %+v", disable, p)
			}
			if p.Set == AMX {
				half = len(peaks) - i
			}
		}

		if len(peaks) == 0 || half > 1 || (disable != "" && half != 0) || d.PeakF32(1) <= 0 {
			t.Errorf("without %q: %+v", disable, peaks)
		}
	}
}
