package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/safetensors"
)

// Size prints bytes for people, in powers of ten.
func Size(n int64) string {
	f := float64(n)
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if f < 999.5 {
			return strconv.FormatFloat(f, 'g', 3, 64) + " " + unit
		}
		f /= 1000
	}
	return fmt.Sprintf("%.3g TB", f)
}

// Thousands prints a count with separators.
func Thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Bytes reads the value of a flag: a size such as 2GB or 500MiB.
func Bytes(flag, s string) (int64, error) {
	units := []struct {
		name string
		size int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}}

	for _, u := range units {
		if digits, ok := strings.CutSuffix(strings.ToLower(s), strings.ToLower(u.name)); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
			// From one byte on: what is rounded to 0 would mean no limit to some callers.
			if size := n * float64(u.size); err == nil && size >= 1 && size < 1<<62 {
				return int64(size), nil
			}
		}
	}

	return 0, Usagef("--%s %q: want a number with B, KB, MB, GB, KiB, MiB or GiB", flag, s)
}

// ShardHelp words --max-shard-size.
const ShardHelp = "largest file, e.g. 2GB or 500MiB; none for a single file"

// ShardLimit reads --max-shard-size of a verb whose output has the files of its input unless it is told
// otherwise: a size, 0 for none, [checkpoint.KeepShards] for keep.
func ShardLimit(s string) (int64, error) {
	if s == "keep" {
		return checkpoint.KeepShards, nil
	}
	n, err := ShardSize(s)
	if err != nil {
		err = Usagef("%w or keep", err)
	}
	return n, err
}

// ShardSize reads --max-shard-size: a size such as 2GB or 500MiB, 0 for none.
func ShardSize(s string) (int64, error) {
	if s == "none" {
		return 0, nil
	}
	n, err := Bytes("max-shard-size", s)
	if err != nil {
		err = Usagef("%w, or none", err)
	}
	return n, err
}

// dtypes are the element types that outputs can have.
var dtypes = []struct {
	short, long string
	dtype       safetensors.DType
}{{"f32", "float32", safetensors.F32}, {"bf16", "bfloat16", safetensors.BF16}, {"f16", "float16", safetensors.F16}}

// DType reads a flag that names the element type of an output, by its short name or the long one that files use.
func DType(flag, s string) (safetensors.DType, error) {
	for _, t := range dtypes {
		if s == t.short || s == t.long {
			return t.dtype, nil
		}
	}
	return 0, Usagef("--%s %q; known: f32, bf16, f16", flag, s)
}
