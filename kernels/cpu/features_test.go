package cpu

import (
	"strings"
	"testing"
)

// TestWithout: an instruction set that is switched off takes along those that build on it, and no others.
func TestWithout(t *testing.T) {
	all := features{
		avx2: true, avxvnni: true, avx512: true, vnni: true, avx512bf16: true, fastDot: true, amx: true, amxInt8: true,
	}
	for disable, want := range map[string]string{
		"":                   "amx-bf16 amx-int8 avx512-bf16 avx512-vnni avx512 avx-vnni avx2",
		"amx":                "avx512-bf16 avx512-vnni avx512 avx-vnni avx2",
		"avx512bf16":         "amx-int8 avx512-vnni avx512 avx-vnni avx2",
		"avx512vnni":         "amx-bf16 avx512-bf16 avx512 avx-vnni avx2",
		"avxvnni":            "amx-bf16 amx-int8 avx512-bf16 avx512-vnni avx512 avx2",
		"avx512":             "avx-vnni avx2",
		"avx512, avxvnni":    "avx2",
		"avx2":               "",
		"avx512bf16,amx,sse": "avx512-vnni avx512 avx-vnni avx2",
	} {
		f := all.without(disable)
		if got := strings.Join(f.names(), " "); got != want {
			t.Errorf("without %q: %s, want %s", disable, got, want)
		}
		if f.fastDot != f.avx512bf16 {
			t.Errorf("without %q: fastDot is %v", disable, f.fastDot)
		}
	}

	arm := features{neon: true, dotprod: true, i8mm: true, bf16: true, bfmmla: true}
	for disable, want := range map[string]string{
		"":        "bfmmla bf16 i8mm dotprod neon",
		"avx2":    "bfmmla bf16 i8mm dotprod neon",
		"avx512":  "bfmmla bf16 i8mm dotprod neon",
		"i8mm":    "bfmmla bf16 dotprod neon",
		"dotprod": "bfmmla bf16 neon",
		"bf16":    "i8mm dotprod neon",
		"bfmmla":  "bf16 i8mm dotprod neon",
		"neon":    "",
	} {
		if got := strings.Join(arm.without(disable).names(), " "); got != want {
			t.Errorf("arm without %q: %s, want %s", disable, got, want)
		}
	}
}

// TestCheckDisabled: every name that switches something off is known, and what switches nothing off is not.
func TestCheckDisabled(t *testing.T) {
	all := features{
		avx2: true, avxvnni: true, avx512: true, vnni: true, avx512bf16: true, fastDot: true, amx: true, amxInt8: true,
		neon: true, dotprod: true, i8mm: true, bf16: true, bfmmla: true,
	}
	for _, name := range switches {
		if all.without(name) == all {
			t.Errorf("%s switches nothing off", name)
		}
	}
	for list, right := range map[string]bool{
		"": true, "amx,avx512": true, "avx512, avxvnni": true, "neon,": true,
		"AMX": false, "amx,avx-vnni": false, "sse": false,
	} {
		if err := CheckDisabled(list); (err == nil) != right {
			t.Errorf("%q: %v", list, err)
		}
	}
}
