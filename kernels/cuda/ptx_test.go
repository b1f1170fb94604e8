//go:build linux && (amd64 || arm64)

package cuda

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// modules lists the embedded modules.
func modules(t *testing.T) []string {
	t.Helper()
	files, err := ptx.ReadDir("ptx")
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".ptx.gz"))
	}

	return names
}

// TestEmbeddedPTXIsCurrent compares the hash of the sources with the one in the first line of each module.
func TestEmbeddedPTXIsCurrent(t *testing.T) {
	for _, name := range modules(t) {
		text, err := moduleText(name)
		if err != nil {
			t.Fatal(err)
		}

		h := sha256.New()
		for _, file := range []string{"device.h", "rank.h", "formula.h", "tiles.h", name + ".cu"} {
			source, err := os.ReadFile(filepath.Join("..", "_gen", "cuda", "src", file))
			if err != nil {
				t.Fatal(err)
			}
			h.Write(source)
		}

		if want := fmt.Sprintf("// sources %x\n", h.Sum(nil)); !strings.HasPrefix(string(text), want) {
			t.Errorf("module %s is stale: run kernels/_gen/cuda (see CONTRIBUTING.md)", name)
		}
	}
}

// arguments are the mirrors of the sources' structs, by the kernels that take them.
var arguments = []struct {
	module, pattern string
	size            uintptr
}{
	{"map", "activate_.*|gate_.*|add|add_square|softcap|softcap_back", unsafe.Sizeof(mapArgs{})},
	{"map", "convert_.*|apply_mask_.*", unsafe.Sizeof(pairArgs{})},
	{"map", "count_zero_.*|non_finite_.*", unsafe.Sizeof(countArgs{})},
	{"map", "gather|scatter_add", unsafe.Sizeof(rowsArgs{})},
	{"map", "gather_back", unsafe.Sizeof(groupArgs{})},
	{"map", "assemble|scatter", unsafe.Sizeof(shardArgs{})},
	{"map", "rope", unsafe.Sizeof(ropeArgs{})},
	{"rows", "norm_rows", unsafe.Sizeof(normArgs{})},
	{"rows", "norm_back", unsafe.Sizeof(normBackArgs{})},
	{"rows", "columns", unsafe.Sizeof(columnArgs{})},
	{"rows", "fold", unsafe.Sizeof(foldArgs{})},
	{"rows", "softmax|cross_entropy", unsafe.Sizeof(softmaxArgs{})},
	{"rows", "softmax_back", unsafe.Sizeof(softmaxBackArgs{})},
	{"select", "select_.*", unsafe.Sizeof(scoreArgs{})},
	{"matmul", "pack.*", unsafe.Sizeof(packArgs{})},
	{"matmul", "gemm", unsafe.Sizeof(gemmArgs{})},
	{"matmul", "few_.*|no_product", unsafe.Sizeof(fewArgs{})},
	{"attention", "attention_.*", unsafe.Sizeof(attentionArgs{})},
	{"flash", "flash_.*", unsafe.Sizeof(flashArgs{})},
	{"flashback", "flash_.*", unsafe.Sizeof(flashBackArgs{})},
	{"formula", "formula_.*", unsafe.Sizeof(formulaArgs{})},
	{"interpret", "interpret_.*", unsafe.Sizeof(formulaArgs{})},
	{"merge", "merge_.*|conflicts_.*", unsafe.Sizeof(mergeArgs{})},
	{"merge", "cut_.*", unsafe.Sizeof(cutArgs{})},
	{"merge", "adamw", unsafe.Sizeof(adamArgs{})},
	{"solve", ".*", unsafe.Sizeof(solveArgs{})},
	{"sparse", "expand", unsafe.Sizeof(expandArgs{})},
	{"quantised", "values_.*", unsafe.Sizeof(valuesArgs{})},
	{"quantised", "few_.*", unsafe.Sizeof(fewQuantArgs{})},
}

var parameter = regexp.MustCompile(`\.entry (\w+)\(\s*\.param \.align 8 \.b8 \w+\[(\d+)\]\s*\)`)

// TestArgumentsMirrorTheSources: every kernel has a mirror of its argument, of the size that the PTX says.
func TestArgumentsMirrorTheSources(t *testing.T) {
	for _, name := range modules(t) {
		text, err := moduleText(name)
		if err != nil {
			t.Fatal(err)
		}

		found := parameter.FindAllStringSubmatch(string(text), -1)
		if n := strings.Count(string(text), ".visible .entry"); len(found) != n {
			t.Errorf("module %s: %d kernels, %d of them with one struct as parameter", name, n, len(found))
		}

		for _, f := range found {
			size, err := strconv.Atoi(f[2])
			if err != nil {
				t.Fatal(err)
			}

			known := false
			for _, a := range arguments {
				if a.module != name || !regexp.MustCompile("^("+a.pattern+")$").MatchString(f[1]) {
					continue
				}

				known = true
				if a.size != uintptr(size) {
					t.Errorf("%s.%s takes %d bytes, its mirror has %d", name, f[1], size, a.size)
				}
			}

			if !known {
				t.Errorf("%s.%s has no mirror of its argument", name, f[1])
			}
			if uintptr(size) > unsafe.Sizeof(Device{}.params) {
				t.Errorf("%s.%s takes %d bytes, more than a device has room for", name, f[1], size)
			}
		}
	}
}

// TestAssemblerAcceptsPTX assembles every module for the architectures served, and allows no spills.
// COMPRESS_PTXAS names NVIDIA's assembler where it is not in the path.
func TestAssemblerAcceptsPTX(t *testing.T) {
	ptxas := assembler(t)
	for _, name := range modules(t) {
		text, err := moduleText(name)
		if err != nil {
			t.Fatal(err)
		}

		for _, arch := range []string{"sm_80", "sm_90", "sm_100"} {
			assemble(t, ptxas, name, arch, text)
		}
	}
}

// assembler finds ptxas; without it the test is skipped.
func assembler(t *testing.T) string {
	t.Helper()
	if name := os.Getenv("COMPRESS_PTXAS"); name != "" {
		return name
	}
	name, err := exec.LookPath("ptxas")
	if err != nil {
		t.Skip("no ptxas on this machine: the PTX is not assembled")
	}
	return name
}

var spills = regexp.MustCompile(`[1-9]\d* bytes spill`)

// assemble fails for PTX that the assembler refuses, or that needs spills.
func assemble(t *testing.T, ptxas, name, arch string, text []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "m.ptx")
	if err := os.WriteFile(file, text, 0o666); err != nil {
		t.Fatal(err)
	}

	out, err := exec.Command(ptxas, "-v", "-arch="+arch, file, "-o", os.DevNull).CombinedOutput()
	if err != nil {
		t.Errorf("%s for %s: %v\n%s", name, arch, err, out)
	}

	if spills.Match(out) {
		t.Errorf("%s for %s spills registers:\n%s", name, arch, out)
	}
}
