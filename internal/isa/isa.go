// Package isa says which instruction sets kernels in assembly may use: those that the processor and the build have,
// less those that the environment variable COMPRESS_CPU_DISABLE switches off. The build tag noasm leaves none.
package isa

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Variable is the environment variable that switches instruction sets off: a comma-separated list of their names.
const Variable = "COMPRESS_CPU_DISABLE"

// Disabled returns the list that the environment switches off.
func Disabled() string { return os.Getenv(Variable) }

// Sets are instruction sets. What builds on another one is there only beside it.
type Sets struct {
	// AVX2 comes with FMA and F16C, AVX2NoFMA with F16C alone: a few processors, of VIA and Zhaoxin, have no FMA.
	AVX2, AVX2NoFMA bool
	BMI             bool // BMI1, BMI2 and POPCNT, where there is AVX2
	AVX512          bool // F, BW, DQ and VL
	AVX512VBMI2     bool // expands and compresses elements of 8 and 16 bits
	AVX512BF16      bool // sums of two products of bfloat16

	// AVX512VNNI is AVX-512's sums of four products of bytes, AVXVNNI those of processors that need not have AVX-512:
	// the same instructions in AVX's encoding, on registers of 256 bits.
	AVX512VNNI, AVXVNNI bool

	// AMX is products of tiles of bfloat16, AMXInt8 of bytes, which are scaled by AVX-512. A process has to ask the
	// system for the tiles' registers before it uses them.
	AMX, AMXInt8 bool

	// NEON is Arm's Advanced SIMD, DotProd its sums of four products of bytes (SDOT), I8MM its products of matrices of
	// bytes (SMMLA), BF16 its sums of two products of bfloat16 (BFDOT), BFMMLA its products of matrices of them.
	NEON, DotProd, I8MM, BF16, BFMMLA bool
}

// Usable returns the instruction sets of the processor that the comma-separated list leaves; see [Disabled].
func Usable(disabled string) Sets { return processor().Without(disabled) }

// switches are the names of instruction sets that can be switched off, on whatever processor.
var switches = []string{
	"avx2", "avxvnni", "avx512", "avx512bf16", "avx512vnni", "amx", "neon", "dotprod", "i8mm", "bf16", "bfmmla",
}

// CheckDisabled looks at the names in a list: what is misspelt would stay on without a word.
func CheckDisabled(list string) error {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(switches, name) {
			return fmt.Errorf("%q is no instruction set that can be switched off (HINT: those are %s)", name,
				strings.Join(switches, ", "))
		}
	}
	return nil
}

// Without drops the instruction sets named in the comma-separated list, and those that build on them.
func (s Sets) Without(list string) Sets {
	for name := range strings.SplitSeq(list, ",") {
		switch strings.TrimSpace(name) {
		case "avx2":
			s = s.arm()
		case "avx512":
			rest := s.arm()
			rest.AVX2, rest.AVX2NoFMA, rest.BMI = s.AVX2, s.AVX2NoFMA, s.BMI
			rest.AVXVNNI = s.AVXVNNI
			s = rest
		case "neon":
			s.NEON, s.DotProd = false, false
			s.I8MM, s.BF16 = false, false
			s.BFMMLA = false
		case "dotprod":
			s.DotProd, s.I8MM = false, false
		case "i8mm":
			s.I8MM = false
		case "bf16":
			s.BF16, s.BFMMLA = false, false
		case "bfmmla":
			s.BFMMLA = false
		case "avxvnni":
			s.AVXVNNI = false
		case "avx512bf16":
			s.AVX512BF16, s.AMX = false, false
		case "avx512vnni":
			s.AVX512VNNI, s.AMXInt8 = false, false
		case "amx":
			s.AMX, s.AMXInt8 = false, false
		}
	}

	return s
}

// arm is the part of Arm's instruction sets.
func (s Sets) arm() Sets {
	return Sets{NEON: s.NEON, DotProd: s.DotProd, I8MM: s.I8MM, BF16: s.BF16, BFMMLA: s.BFMMLA}
}

// Names lists the instruction sets as people read them, those that do most at once first.
func (s Sets) Names() []string {
	var names []string
	for _, e := range []struct {
		on   bool
		name string
	}{
		{s.AMX, "amx-bf16"},
		{s.AMXInt8, "amx-int8"},
		{s.AVX512BF16, "avx512-bf16"},
		{s.AVX512VNNI, "avx512-vnni"},
		{s.AVX512, "avx512"},
		{s.AVXVNNI, "avx-vnni"},
		{s.AVX2, "avx2"},
		{s.BFMMLA, "bfmmla"},
		{s.BF16, "bf16"},
		{s.I8MM, "i8mm"},
		{s.DotProd, "dotprod"},
		{s.NEON, "neon"},
	} {
		if e.on {
			names = append(names, e.name)
		}
	}

	return names
}
