package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/safetensors"
)

// TestBytes: sizes with their units, in any case and with a blank; what is none, or less than a byte, is a wrong use
// that names the flag.
func TestBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"1B": 1, "2GB": 2e9, "500MiB": 500 << 20, "1.5KiB": 1536, "3 kb": 3000, "1e3MB": 1e9, "0.5GiB": 1 << 29,
	} {
		if n, err := Bytes("memory", text); err != nil || n != want {
			t.Errorf("%q: %d, %v; want %d", text, n, err, want)
		}
	}

	for _, text := range []string{
		"", "5", "GB", "-1GB", "0GB", "NaNGB", "InfGB", "1e30GB", "0.5B", "1PB", "1GBs", "one MB",
	} {
		if n, err := Bytes("memory", text); !IsUsage(err) || !strings.Contains(err.Error(), "--memory ") {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

// TestShardLimits: none, keep and sizes; none is 0, which no size is.
func TestShardLimits(t *testing.T) {
	for text, want := range map[string]int64{"none": 0, "keep": checkpoint.KeepShards, "2MB": 2e6} {
		if n, err := ShardLimit(text); err != nil || n != want {
			t.Errorf("%q: %d, %v; want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "0", "0.1B", "all"} {
		if n, err := ShardLimit(text); !IsUsage(err) || !strings.Contains(err.Error(), "none or keep") {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	if _, err := ShardSize("keep"); !IsUsage(err) {
		t.Errorf("keep, where there is nothing to keep: %v", err)
	}
}

// TestSizes: three digits and the unit that fits, also where rounding reaches the next one.
func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1 kB", 999_499: "999 kB", 999_500: "1 MB", 1_234_567: "1.23 MB", 5e9: "5 GB",
		2e12: "2 TB", 5e15: "5e+03 TB",
	} {
		if got := Size(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}

	for n, want := range map[int64]string{0: "0", 999: "999", -999: "-999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := Thousands(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestDType(t *testing.T) {
	for text, want := range map[string]safetensors.DType{
		"f32": safetensors.F32, "bfloat16": safetensors.BF16, "float16": safetensors.F16,
	} {
		if d, err := DType("dtype", text); err != nil || d != want {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "F32", "f64", "int8"} {
		if _, err := DType("dtype", text); !IsUsage(err) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestFingerprints: equal parts have one, and neither their order nor where one ends and the next begins is lost.
func TestFingerprints(t *testing.T) {
	seen := map[string][]any{}
	for _, parts := range [][]any{{}, {""}, {"a", "b"}, {"b", "a"}, {"ab"}, {"a", "b", nil}, {1}, {"1"}, {[]int{1}}} {
		print := Fingerprint(parts...)
		if len(print) != 64 || print != Fingerprint(parts...) {
			t.Errorf("%v: %q", parts, print)
		}
		if other, twice := seen[print]; twice {
			t.Errorf("%v and %v have the same", parts, other)
		}
		seen[print] = parts
	}

	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, path := range []string{a, b} {
		if err := os.WriteFile(path, []byte("text"), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	first, errFirst := FileHash(t.Context(), a)
	second, errSecond := FileHash(t.Context(), b)
	if errFirst != nil || errSecond != nil || first != second {
		t.Errorf("files of the same content: %s, %s: %v %v", first, second, errFirst, errSecond)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if sum, err := FileHash(ended, a); err == nil {
		t.Errorf("after the end of the work: %s", sum)
	}
}
