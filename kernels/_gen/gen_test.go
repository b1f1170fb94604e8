package main

import (
	"bytes"
	"os"
	"path/filepath"
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
		{"tilestored [rdx+rsi*1+64], tmm1", "c4e27a4b8c3240000000", tileStore(1, rDX, rSI, 64)},
		{"tdpbf16ps tmm3, tmm5, tmm7", "c4e2425cdd", tdpbf16(3, 5, 7)},
		{"tilezero tmm2", "c4e27b49d0", tileZero(2)},
		{"ldtilecfg [rdi]", "c4e2784907", loadTileConfig(rDI)},
		{"tilerelease", "c4e27849c0", tileRelease()},
	} {
		want := bytes.ReplaceAll([]byte(c.want), []byte(" "), nil)
		if got := hexOf(c.got); got != string(want) {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
	}
}
