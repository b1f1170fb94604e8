package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// raw builds files byte by byte, right ones and wrong ones.
type raw struct{ b []byte }

func (r *raw) u32(v ...uint32) *raw {
	for _, n := range v {
		r.b = binary.LittleEndian.AppendUint32(r.b, n)
	}
	return r
}

func (r *raw) u64(v ...uint64) *raw {
	for _, n := range v {
		r.b = binary.LittleEndian.AppendUint64(r.b, n)
	}
	return r
}

func (r *raw) bytes(b ...byte) *raw {
	r.b = append(r.b, b...)
	return r
}

func (r *raw) str(s string) *raw { return r.u64(uint64(len(s))).bytes([]byte(s)...) }

// pair appends a key and a value.
func (r *raw) pair(key string, v Value) *raw {
	r.str(key).u32(uint32(v.kind))
	r.b = v.append(r.b)
	return r
}

// tensor appends a description; dims are fastest first.
func (r *raw) tensor(name string, t Type, offset uint64, dims ...uint64) *raw {
	return r.str(name).u32(uint32(len(dims))).u64(dims...).u32(uint32(t)).u64(offset)
}

// data pads and appends so many bytes.
func (r *raw) data(n int) *raw {
	r.b = append(r.b, make([]byte, int(align(int64(len(r.b)), defaultAlignment))-len(r.b)+n)...)
	return r
}

// head begins a file.
func head(tensors, pairs uint64) *raw { return (&raw{[]byte(magic)}).u32(3).u64(tensors, pairs) }

// faults are the rules of the format, each with a file that breaks it.
var faults = []struct {
	name string
	data []byte
	want error
	says string
}{
	{"empty", nil, ErrMagic, `""`},
	{"magic", []byte("GGML\x03\x00\x00\x00"), ErrMagic, `"GGML"`},
	{"no version", []byte("GGUF\x03"), ErrTruncated, "1 are left"},
	{"version 1", (&raw{[]byte(magic)}).u32(1).u32(0, 0).b, ErrVersion, "1 (known: 2, 3)"},
	{"version 4", (&raw{[]byte(magic)}).u32(4).u64(0, 0).b, ErrVersion, "4"},
	{"big-endian", []byte("GGUF\x00\x00\x00\x03"), ErrBigEndian, "other order"},
	{"counts cut off", head(0, 0).b[:20], ErrTruncated, "number of key-value pairs"},
	{"too many tensors", head(1<<62, 0).b, ErrTruncated, "4611686018427387904 tensors do not fit into the 8 bytes"},
	{"too many pairs", head(0, 1<<63).b, ErrTruncated, "9223372036854775808 key-value pairs"},

	{
		"key of 2^63 bytes", head(0, 1).u64(1 << 63).bytes(make([]byte, 20)...).b, ErrTruncated,
		"a key of 9223372036854775808 bytes, 20 are left",
	},
	{"empty key", head(0, 1).pair("", Of(uint32(1))).b, ErrKey, `""`},
	{"key is no text", head(0, 1).pair("\xff", Of(uint32(1))).b, ErrKey, `"\xff"`},
	{"long key", head(0, 1).pair(strings.Repeat("k", 1<<16), Of(uint32(1))).b, ErrKey, "65535"},
	{
		"duplicate key", head(0, 2).pair("a", Of(uint8(1))).pair("a", Of(uint8(1))).b, ErrDuplicateKey, `key "a"`,
	},
	{"unknown kind", head(0, 1).str("a").u32(13).bytes(make([]byte, 9)...).b, ErrUnknownKind, "13"},
	{"kind cut off", head(0, 1).str("abc").bytes(1, 2).b, ErrTruncated, "the type of a value"},
	{"value cut off", head(0, 1).str("abc").u32(uint32(Uint64)).bytes(1).b, ErrTruncated, "a uint64 of 8 bytes"},
	{
		"string of 2^63 bytes", head(0, 1).str("a").u32(uint32(String)).u64(1 << 63).b, ErrTruncated,
		"a string of 9223372036854775808 bytes",
	},
	{"bool of 2", head(0, 1).str("a").u32(uint32(Bool)).bytes(2).b, ErrValue, "not 2"},
	{
		"array of arrays", head(0, 1).str("a").u32(uint32(Array), uint32(Array)).u64(0).b, ErrNestedArray, `key "a"`,
	},
	{
		"array of unknown kind", head(0, 1).str("a").u32(uint32(Array), 99).u64(0).b, ErrUnknownKind, "99",
	},
	{
		"long array", head(0, 1).str("a").u32(uint32(Array), uint32(Float64)).u64(1 << 61).b, ErrTruncated,
		"2305843009213693952 float64 items",
	},
	{
		"long array of strings", head(0, 1).str("a").u32(uint32(Array), uint32(String)).u64(3).u64(0, 0).b,
		ErrTruncated, "3 string items",
	},
	{
		"string of an array", head(0, 1).str("a").u32(uint32(Array), uint32(String)).u64(2).u64(0, 1<<60).b,
		ErrTruncated, "a string of 1152921504606846976 bytes",
	},
	{
		"bools of an array", head(0, 1).str("a").u32(uint32(Array), uint32(Bool)).u64(3).bytes(1, 0, 7).b, ErrValue,
		"not 7",
	},
	{"alignment 0", head(0, 1).pair(alignmentKey, Of(uint32(0))).b, ErrAlignment, "uint32 0"},
	{"alignment 48", head(0, 1).pair(alignmentKey, Of(uint32(48))).b, ErrAlignment, "48"},
	{"alignment of another kind", head(0, 1).pair(alignmentKey, Of(uint64(32))).b, ErrAlignment, "uint64 32"},

	{"nameless tensor", head(1, 0).tensor("", F32, 0, 1).data(4).b, ErrTensorName, `""`},
	{"name is no text", head(1, 0).tensor("\xc3", F32, 0, 1).data(4).b, ErrTensorName, `"\xc3"`},
	{
		"duplicate tensor", head(2, 0).tensor("a", F32, 0, 1).tensor("a", F32, 32, 1).data(64).b, ErrDuplicate,
		`tensor "a"`,
	},
	{"five dimensions", head(1, 0).tensor("a", F32, 0, 1, 1, 1, 1, 1).data(4).b, ErrDimensions, "5; at most 4"},
	{"dimension of 2^63", head(1, 0).tensor("a", F32, 0, 1<<63).data(4).b, ErrShapeOverflow, "9223372036854775808"},
	{
		"product overflows", head(1, 0).tensor("a", F32, 0, 1<<32, 1<<32).data(4).b, ErrShapeOverflow,
		"[4294967296 4294967296]",
	},
	{
		"product overflows before a zero", head(1, 0).tensor("a", F32, 0, 0, 1<<32, 1<<32).data(4).b,
		ErrShapeOverflow, "0]",
	},
	{"bytes overflow", head(1, 0).tensor("a", F32, 0, 1<<62).data(4).b, ErrShapeOverflow, "F32"},
	{"unknown type", head(1, 0).tensor("a", 4, 0, 32).data(18).b, ErrUnknownType, "4 (known: F32, F16"},
	{
		"row of no whole blocks", head(1, 0).tensor("a", Q4_0, 0, 16, 2).data(18).b, ErrRowSize,
		"32 elements, the rows have 16",
	},
	{"offset is not aligned", head(1, 0).tensor("a", F32, 4, 1).data(40).b, ErrOffset, "4 is no multiple"},
	{"offset of 2^63", head(1, 0).tensor("a", F32, 1<<63, 1).data(40).b, ErrOffset, "9223372036854775808"},
	{
		"offset beyond the end", head(1, 0).tensor("a", F32, 64, 1).data(4).b, ErrTruncated,
		"takes 4 bytes from 64 on, the file has 4",
	},
	{
		"offset and size overflow", head(1, 0).tensor("a", I8, math.MaxInt64&^31, 64).data(64).b, ErrTruncated,
		"from 9223372036854775776 on",
	},
	{"no data", head(1, 0).tensor("a", F32, 0, 1).b, ErrTruncated, "has 0 after its header"},
	{
		"overlap", head(2, 0).tensor("a", F32, 0, 9).tensor("b", F32, 32, 1).data(64).b, ErrOverlap,
		`tensor "b": at byte 128: tensors overlap: it begins within "a"`,
	},
	{"description cut off", head(1, 0).bytes(make([]byte, 15)...).b, ErrTruncated, "1 tensors do not fit into the 23"},
	{"dimension cut off", head(1, 0).str("abcd").u32(2).u64(1).b, ErrTruncated, "a dimension of 8 bytes"},
	{
		"quantisation version", head(1, 1).pair(quantVersionKey, Of(uint32(1))).tensor("a", Q4_0, 0, 32).data(18).b,
		ErrQuantVersion, "1 (known: 2)",
	},
	{
		"quantisation version of another kind",
		head(1, 1).pair(quantVersionKey, Of("2")).tensor("a", Q4_0, 0, 32).data(18).b, ErrQuantVersion, `"2"`,
	},
}

func TestFaults(t *testing.T) {
	for _, c := range faults {
		_, err := OpenBytes(c.data)
		checkFault(t, c.name, err, c.want, c.says)

		path := filepath.Join(t.TempDir(), "x.gguf")
		if err := os.WriteFile(path, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = OpenModel(path)
		checkFault(t, c.name, err, c.want, c.says)
		if err != nil && !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%s: the error does not begin with the file: %v", c.name, err)
		}
	}
}

// checkFault looks for the rule, the detail, and one line.
func checkFault(t *testing.T, name string, err, want error, says string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %v; want %v: … %s", name, err, want, says)
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%s: %T is no *Error", name, err)
	}
}

// TestEveryCut: a file that is cut off anywhere within its header or its data is refused.
func TestEveryCut(t *testing.T) {
	whole := head(2, 3).pair("a", Of("text")).pair("b", List([]string{"x", "yy"})).pair("c", List([]int16{1, 2})).
		tensor("a", F32, 0, 3, 2).tensor("b", Q4_0, 32, 32).data(32 + 18).b
	if _, err := OpenBytes(whole); err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if _, err := OpenBytes(whole[:n]); err == nil {
			t.Errorf("accepted with %d of %d bytes", n, len(whole))
		}
	}
}

// TestAccepted: what the format allows and little software writes.
func TestAccepted(t *testing.T) {
	second := head(0, 0)
	second.b[4] = 2
	wide := head(1, 1).pair(alignmentKey, Of(uint32(1024))).tensor("a", I8, 1024, 1)

	for _, c := range []struct {
		name  string
		data  []byte
		check func(f *File) bool
	}{
		{"version 2", second.b, func(f *File) bool { return f.Version() == 2 }},
		{"nothing", head(0, 0).b, func(f *File) bool { return len(f.Names()) == 0 && f.Metadata() == nil }},
		{
			"wide alignment", append(wide.b, make([]byte, 2*1024+1-len(wide.b))...),
			func(f *File) bool {
				info, _ := f.Info("a")
				return f.Alignment() == 1024 && info.Offset == 2048
			},
		},
		{
			"scalar, empty, in another order", head(3, 0).tensor("b", F32, 32).tensor("a", F32, 0, 2).
				tensor("empty", Q8_0, 64, 0, 7).data(64).b,
			func(f *File) bool {
				info, _ := f.Info("b")
				return strings.Join(f.Names(), " ") == "a b empty" && info.Size == 4 && info.Rows() == 1 &&
					info.Cols() == 1
			},
		},
		{
			"type that cannot be decoded", head(1, 0).tensor("a", IQ2_XXS, 0, 256).data(66).b,
			func(f *File) bool {
				data, err := f.Bytes("a")
				bad := IQ2_XXS.Decode(make([]float32, 256), data)
				return err == nil && len(data) == 66 && errors.Is(bad, ErrNotDecodable) &&
					strings.Contains(bad.Error(), "IQ2_XXS (known: F32")
			},
		},
		{
			"quantisation version without quantised tensors",
			head(1, 1).pair(quantVersionKey, Of(uint32(1))).tensor("a", F16, 0, 1).data(2).b,
			func(*File) bool { return true },
		},
	} {
		f, err := OpenBytes(c.data)
		if err != nil || !c.check(f) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestNotFinite: a scale that is no number is an error of decoding, and one line.
func TestNotFinite(t *testing.T) {
	block := bytes.Repeat([]byte{0x7e}, 18) // 0x7e7e is a NaN
	err := Q4_0.Decode(make([]float32, 32), block)
	if !errors.Is(err, ErrNotFinite) || !strings.HasSuffix(err.Error(), ": the block of Q4_0 from element 0 on") {
		t.Error(err)
	}
	long := append(make([]byte, 70*18), block...)
	err = Q4_0.Decode(make([]float32, 71*32), long)
	if err == nil || !strings.Contains(err.Error(), "element 2240 on") {
		t.Error(err)
	}
	if err := Q4_0.Decode(make([]float32, 33), block); !errors.Is(err, ErrSizeMismatch) {
		t.Error(err)
	}
}
