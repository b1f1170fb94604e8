package main

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// TestCommittedFilesAreCurrent regenerates every file and compares it with the committed one.
func TestCommittedFilesAreCurrent(t *testing.T) {
	for _, o := range outputs {
		got, err := os.ReadFile(filepath.Join(target, o.name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, generate(o.write)) {
			t.Errorf("%s is stale: run `go run .` in kernels/_gen", o.name)
		}
	}
}

// TestEncodings holds the hand-made encoders to bytes taken from GNU as.
func TestEncodings(t *testing.T) {
	for _, c := range []struct {
		name, want string
		got        []byte
	}{
		{"vdpbf16ps zmm5, zmm24, dword ptr [rax+8]{1to16}", "62f23e505268 02", dpbf16Bcst(5, 24, rAX, 8)},
		{"vdpbf16ps zmm17, zmm25, zmm28", "6282364052cc", dpbf16(17, 25, 28)},
		{"vcvtne2ps2bf16 zmm3, zmm2, zmm1", "62f26f4872d9", cvtne2(3, 2, 1)},
		{"tileloadd tmm4, [rax+rcx*1+1024]", "c4e27b4ba40800040000", tileLoad(4, rAX, rCX, 1024)},
		{"tileloadd tmm5, [r13+rcx*1+1024]", "c4c27b4bac0d00040000", tileLoad(5, rR13, rCX, 1024)},
		{"tdpbssd tmm3, tmm5, tmm7", "c4e2435edd", tdpbssd(3, 5, 7)},
		{"tilestored [rdx+rsi*1+64], tmm1", "c4e27a4b8c3240000000", tileStore(1, rDX, rSI, 64)},
		{"tdpbf16ps tmm3, tmm5, tmm7", "c4e2425cdd", tdpbf16(3, 5, 7)},
		{"tilezero tmm2", "c4e27b49d0", tileZero(2)},
		{"ldtilecfg [rdi]", "c4e2784907", loadTileConfig(rDI)},
		{"tilerelease", "c4e27849c0", tileRelease()},
		{"{vex} vpdpbusd ymm3, ymm12, ymm15", "c4c21d50df", vpdpbusd(3, 12, 15)},
		{"{vex} vpdpbusd ymm9, ymm1, ymm2", "c4627550ca", vpdpbusd(9, 1, 2)},
		{"{vex} {disp32} vpdpbusd ymm14, ymm0, ymmword ptr [r8+32]", "c4427d50b020000000", vpdpbusdFrom(14, 0, rR8, 32)},
	} {
		want := bytes.ReplaceAll([]byte(c.want), []byte(" "), nil)
		if got := hexOf(c.got); got != string(want) {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
	}
}

// TestEncodedDotsDecode: GNU objdump, where there is one, reads the encoded products of every kernel, VPDPBUSD and those
// of tiles, as what the comment beside them says. TestEncodings has a case of each form.
func TestEncodedDotsDecode(t *testing.T) {
	disassembler(t)
	var code []byte
	var want []string
	line := regexp.MustCompile(`^\t(BYTE .*) // ((?:VPDPBUSD|TDPBSSD|TDPBF16PS) .*)$`)
	for _, o := range outputs {
		for text := range strings.SplitSeq(string(generate(o.write)), "\n") {
			m := line.FindStringSubmatch(text)
			if m == nil {
				continue
			}
			b, err := hex.DecodeString(strings.NewReplacer("BYTE $0x", "", "; ", "").Replace(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			code = append(code, b...)
			want = append(want, strings.ToLower(strings.ReplaceAll(m[2], " ", "")))
		}
	}

	if len(want) == 0 {
		t.Fatal("no kernel has an encoded product")
	}
	lines := disassemble(t, code)
	if len(lines) != len(want) {
		t.Fatalf("%d instructions, want %d", len(lines), len(want))
	}
	for i, l := range lines {
		if got := plain(l.text); got != want[i] {
			t.Errorf("%x is %s, want %s", l.code, got, want[i])
		}
	}
}

// plain writes an instruction of objdump as the comments do, in lower case without spaces: {vex} vpdpbusd
// 0x20(%r8),%ymm0,%ymm14 is vpdpbusd32(r8),y0,y14.
func plain(s string) string {
	s = strings.NewReplacer("{vex}", "", "{disp32}", "", "%ymm", "y", "%tmm", "t", "%", "", " ", "").Replace(s)
	return regexp.MustCompile(`0x[0-9a-f]+`).ReplaceAllStringFunc(s, func(x string) string {
		n, err := strconv.ParseInt(x, 0, 64)
		if err != nil {
			return x
		}
		return strconv.FormatInt(n, 10)
	})
}

// TestNoInstructionOfAVX512: the kernels for AVX2 and for AVX-VNNI have no instruction in AVX-512's encoding. Go's
// assembler takes it without a word where it knows no other, and only a processor without AVX-512 would complain.
func TestNoInstructionOfAVX512(t *testing.T) {
	disassembler(t)
	program := filepath.Join(t.TempDir(), "cpu.test")
	build := exec.Command("go", "test", "-c", "-o", program, ".")
	build.Dir = target
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}

	found := 0
	name := regexp.MustCompile(`/kernels/cpu\.\w+(AVX2|AVXVNNI)(\.abi0)?$`)
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || !name.MatchString(s.Name) {
			continue
		}
		found++
		section := f.Sections[s.Section]
		code := make([]byte, s.Size)
		if _, err := section.ReadAt(code, int64(s.Value-section.Addr)); err != nil {
			t.Fatal(err)
		}
		for _, l := range disassemble(t, code) {
			if l.code[0] == 0x62 || strings.Contains(l.text, "(bad)") {
				t.Errorf("%s: %x %s", s.Name, l.code, l.text)
			}
		}
	}
	if found < 2*len(ymmFormats) {
		t.Errorf("found %d kernels only", found)
	}
}

// disassembler skips the test where there is no objdump, or programs are none that it reads.
func disassembler(t *testing.T) {
	if _, err := exec.LookPath("objdump"); err != nil || runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("needs GNU objdump on linux/amd64")
	}
}

// instruction is a line of objdump's output.
type instruction struct {
	code []byte
	text string
}

// disassemble reads machine code.
func disassemble(t *testing.T, code []byte) []instruction {
	path := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(path, code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("objdump", "-D", "-w", "-b", "binary", "-m", "i386:x86-64", path).Output()
	if err != nil {
		t.Fatal(err)
	}

	var list []instruction
	for m := range strings.SplitSeq(string(out), "\n") {
		parts := strings.Split(m, "\t") // address:, bytes, text
		if len(parts) < 3 {
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(parts[1], " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", m, err)
		}
		list = append(list, instruction{b, strings.TrimSpace(parts[2])})
	}
	return list
}
