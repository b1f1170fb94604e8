package isa

import (
	"strings"
	"testing"
)

// TestWithout: an instruction set that is switched off takes along those that build on it, and no others.
func TestWithout(t *testing.T) {
	all := Sets{
		AVX2: true, AVX2NoFMA: true, BMI: true, AVXVNNI: true, AVX512: true, AVX512VBMI2: true, AVX512VNNI: true,
		AVX512BF16: true, AMX: true, AMXInt8: true,
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
		f := all.Without(disable)
		if got := strings.Join(f.Names(), " "); got != want {
			t.Errorf("without %q: %s, want %s", disable, got, want)
		}
		if f.AVX2NoFMA != f.AVX2 || f.BMI != f.AVX2 || f.AVX512VBMI2 != f.AVX512 {
			t.Errorf("without %q: what has no name stays or goes by itself: %+v", disable, f)
		}
	}

	arm := Sets{NEON: true, DotProd: true, I8MM: true, BF16: true, BFMMLA: true}
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
		if got := strings.Join(arm.Without(disable).Names(), " "); got != want {
			t.Errorf("arm without %q: %s, want %s", disable, got, want)
		}
	}
}

// TestCheckDisabled: every name that switches something off is known, and what switches nothing off is not.
func TestCheckDisabled(t *testing.T) {
	all := Sets{
		AVX2: true, AVX2NoFMA: true, BMI: true, AVXVNNI: true, AVX512: true, AVX512VBMI2: true, AVX512VNNI: true,
		AVX512BF16: true, AMX: true, AMXInt8: true,
		NEON: true, DotProd: true, I8MM: true, BF16: true, BFMMLA: true,
	}
	for _, name := range switches {
		if all.Without(name) == all {
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

// TestUsable: what builds on another instruction set is not there without it, on this processor and with every name
// switched off, and the variable is what switches off.
func TestUsable(t *testing.T) {
	for _, name := range append([]string{""}, switches...) {
		t.Setenv(Variable, name)
		s := Usable(Disabled())
		if s != processor().Without(name) {
			t.Errorf("%s=%s leaves %v", Variable, name, s.Names())
		}

		for what, fault := range map[string]bool{
			"AVX2NoFMA": s.AVX2 && !s.AVX2NoFMA, "AVX2": (s.BMI || s.AVXVNNI || s.AVX512) && !s.AVX2,
			"AVX512":     (s.AVX512VBMI2 || s.AVX512BF16 || s.AVX512VNNI) && !s.AVX512,
			"AVX512BF16": s.AMX && !s.AVX512BF16, "AVX512VNNI": s.AMXInt8 && !s.AVX512VNNI,
			"NEON": (s.DotProd || s.BF16) && !s.NEON, "DotProd": s.I8MM && !s.DotProd, "BF16": s.BFMMLA && !s.BF16,
		} {
			if fault {
				t.Errorf("without %q: %v without %s", name, s.Names(), what)
			}
		}
	}
}
