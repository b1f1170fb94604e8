package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the files under testdata from the tables")

// file puts a length, a header and n data bytes 0, 1, 2, … together.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i))
	}
	return b
}

// one is a file whose only tensor "a" has the given entry.
func one(entry string, n int) []byte { return file(`{"a":`+entry+`}`, n) }

const okEntry = `{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`

// rules has files that break a rule; those with a file name are kept under testdata/rules too.
var rules = []struct {
	name   string
	want   error
	tensor string // that the error names
	at     int64  // where it places the fault; -1 for nowhere
	keep   bool
	data   []byte
}{
	{"HeaderTooShort", ErrHeaderTooShort, "", 0, true, []byte{2, 0, 0, 0}},
	{"empty file", ErrHeaderTooShort, "", 0, false, nil},
	{"no header", ErrHeaderTooShort, "", 0, false, file("", 0)},
	{"one byte of header", ErrHeaderTooShort, "", 0, false, file("{", 0)},
	{
		"HeaderTooLarge", ErrHeaderTooLarge, "", 0, true,
		append(binary.LittleEndian.AppendUint64(nil, maxHeaderSize+1), "{}"...),
	},
	{"length 2^64-1", ErrHeaderTooLarge, "", 0, false, append(bytes.Repeat([]byte{0xff}, 8), "{}"...)},
	{"git lfs pointer", ErrHeaderTooLarge, "", 0, false, []byte("version https://git-lfs.github.com/spec/v1\n")},
	{"HeaderNotUTF8", ErrHeaderNotUTF8, "", 10, true, file("{\"\xff\":"+okEntry+"}", 4)},
	{"HeaderStart", ErrHeaderStart, "", 8, true, file(` {"a":`+okEntry+`}`, 4)},
	{"array", ErrHeaderStart, "", 8, false, file(`[]`, 0)},
	{"InvalidJSON", ErrInvalidJSON, "", 61, true, file(`{"a":`+okEntry, 4)},
	{"comma at the end", ErrInvalidJSON, "", 62, false, file(`{"a":`+okEntry+`,}`, 4)},
	{"no comma", ErrInvalidJSON, "", 61, false, file(`{"a":`+okEntry+`"b"`, 4)},
	{"second value", ErrInvalidJSON, "", 10, false, file(`{}{}`, 0)},
	{"zero bytes behind", ErrInvalidJSON, "", 10, false, file("{}\x00\x00", 0)},
	{"zero byte inside", ErrInvalidJSON, "", 9, false, file("{\x00}", 0)},
	{"control character", ErrInvalidJSON, "", 10, false, file("{\"\x01\":"+okEntry+"}", 4)},
	{"control character after escape", ErrInvalidJSON, "", 12, false, file("{\"\\n\x01\":"+okEntry+"}", 4)},
	{"half a pair", ErrInvalidJSON, "", 16, false, file(`{"\ud800":`+okEntry+`}`, 4)},
	{"two high halves", ErrInvalidJSON, "", 16, false, file(`{"\ud800\ud800":`+okEntry+`}`, 4)},
	{"short escape", ErrInvalidJSON, "", 12, false, file(`{"\u12"`, 0)},
	{"bad escape", ErrInvalidJSON, "", 11, false, file(`{"\x":1}`, 0)},
	{"bad hex", ErrInvalidJSON, "", 12, false, file(`{"\u\u00":`+okEntry+`}`, 4)},
	{"string without end", ErrInvalidJSON, "", 11, false, file(`{"a`, 0)},
	{"escape without end", ErrInvalidJSON, "", 11, false, file(`{"\`, 0)},
	{"escaped string without end", ErrInvalidJSON, "", 12, false, file(`{"\n`, 0)},
	{"leading zero", ErrEntry, "a", 37, false, one(`{"dtype":"F32","shape":[01],"data_offsets":[0,4]}`, 4)},
	{"number without digits", ErrEntry, "a", 37, false, one(`{"dtype":"F32","shape":[-],"data_offsets":[0,4]}`, 4)},
	{"fraction without digits", ErrEntry, "a", 37, false, one(`{"dtype":"F32","shape":[1.],"data_offsets":[0,4]}`, 4)},
	{"unknown field with a leading zero", ErrInvalidJSON, "a", 18, false, one(`{"x":01}`, 0)},
	{"unknown field with a bare minus", ErrInvalidJSON, "a", 19, false, one(`{"x":[-]}`, 0)},
	{"unknown field with half a number", ErrInvalidJSON, "a", 18, false, one(`{"x":1e+}`, 0)},
	{"bad hex digits", ErrInvalidJSON, "", 12, false, file(`{"\u+123":`+okEntry+`}`, 4)},
	{"word", ErrInvalidJSON, "a", 18, false, one(`{"x":nul}`, 0)},
	{
		"nested too deeply", ErrInvalidJSON, "a", 144, false,
		one(`{"x":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`, 0),
	},
	{"DuplicateKey", ErrDuplicateKey, "", 62, true, file(`{"a":`+okEntry+`,"a":`+okEntry+`}`, 4)},
	{"duplicate by escape", ErrDuplicateKey, "", 62, false, file(`{"a":`+okEntry+`,"\u0061":`+okEntry+`}`, 4)},
	{
		"duplicate field", ErrDuplicateKey, "a", 28, false,
		one(`{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}`, 4),
	},
	{"duplicate in metadata", ErrDuplicateKey, "", 33, false, file(`{"__metadata__":{"x":"1","x":"2"}}`, 0)},
	{"duplicate metadata", ErrDuplicateKey, "", 27, false, file(`{"__metadata__":{},"__metadata__":{}}`, 0)},
	{"duplicate in unknown field", ErrDuplicateKey, "a", 26, false, one(`{"x":[{"y":1,"y":2}]}`, 0)},
	{
		"duplicate after many", ErrDuplicateKey, "a", 80, false,
		one(`{"x":{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1,"10":1,"3":1}}`, 0),
	},
	{"Entry", ErrEntry, "a", 13, true, one(`{"dtype":"F32","shape":[1]}`, 4)},
	{"entry as array", ErrEntry, "a", 13, false, one(`["F32",[1],[0,4]]`, 4)},
	{"entry null", ErrEntry, "a", 13, false, one(`null`, 0)},
	{"dtype number", ErrEntry, "a", 22, false, one(`{"dtype":1,"shape":[1],"data_offsets":[0,4]}`, 4)},
	{"shape number", ErrEntry, "a", 36, false, one(`{"dtype":"F32","shape":1,"data_offsets":[0,4]}`, 4)},
	{"dimension string", ErrEntry, "a", 37, false, one(`{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}`, 4)},
	{"dimension negative", ErrEntry, "a", 37, false, one(`{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}`, 4)},
	{"dimension -0", ErrEntry, "a", 37, false, one(`{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}`, 0)},
	{"dimension 1.0", ErrEntry, "a", 37, false, one(`{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}`, 4)},
	{"dimension 1e0", ErrEntry, "a", 37, false, one(`{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}`, 4)},
	{"offsets string", ErrEntry, "a", 55, false, one(`{"dtype":"F32","shape":[1],"data_offsets":"0"}`, 4)},
	{"three offsets", ErrEntry, "a", 55, false, one(`{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}`, 4)},
	{"one offset", ErrEntry, "a", 55, false, one(`{"dtype":"F32","shape":[1],"data_offsets":[0]}`, 4)},
	{"UnknownDType", ErrUnknownDType, "a", 22, true, one(`{"dtype":"F33","shape":[1],"data_offsets":[0,4]}`, 4)},
	{
		"dtype in small letters", ErrUnknownDType, "a", 22, false,
		one(`{"dtype":"f32","shape":[1],"data_offsets":[0,4]}`, 4),
	},
	{
		"ShapeOverflow", ErrShapeOverflow, "a", 13, true,
		one(`{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}`, 4),
	},
	{
		"overflow before zero", ErrShapeOverflow, "a", 13, false,
		one(`{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}`, 0),
	},
	{
		"bits overflow", ErrShapeOverflow, "a", 13, false,
		one(`{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,8]}`, 8),
	},
	{
		"dimension too large", ErrShapeOverflow, "a", 37, false,
		one(`{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}`, 4),
	},
	{"Offsets", ErrOffsets, "a", 13, true, one(`{"dtype":"F32","shape":[1],"data_offsets":[4,0]}`, 4)},
	{
		"offset too large", ErrOffsets, "a", 58, false,
		one(`{"dtype":"F32","shape":[1],"data_offsets":[0,9223372036854775808]}`, 4),
	},
	{
		"offset beyond any file", ErrOffsets, "a", 13, false,
		one(`{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}`, 1),
	},
	{"SizeMismatch", ErrSizeMismatch, "a", 13, true, one(`{"dtype":"F32","shape":[2],"data_offsets":[0,4]}`, 4)},
	{"scalar without bytes", ErrSizeMismatch, "a", 13, false, one(`{"dtype":"U8","shape":[],"data_offsets":[0,0]}`, 0)},
	{"NotByteAligned", ErrNotByteAligned, "a", 13, true, one(`{"dtype":"F4","shape":[3],"data_offsets":[0,2]}`, 2)},
	{
		"NotByteAligned F6", ErrNotByteAligned, "a", 13, false,
		one(`{"dtype":"F6_E3M2","shape":[3],"data_offsets":[0,3]}`, 3),
	},
	{
		"Overlap", ErrOverlap, "b", 117, true,
		file(`{"a":`+okEntry+`,"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`, 6),
	},
	{"same place", ErrOverlap, "b", 115, false, file(`{"a":`+okEntry+`,"b":`+okEntry+`}`, 4)},
	{
		"empty tensor inside another", ErrOverlap, "b", 117, false,
		file(`{"a":`+okEntry+`,"b":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}}`, 4),
	},
	{
		"Hole", ErrHole, "b", 120, true,
		file(`{"a":`+okEntry+`,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}`, 12),
	},
	{"hole at the start", ErrHole, "a", 62, false, one(`{"dtype":"F32","shape":[1],"data_offsets":[4,8]}`, 8)},
	{
		"empty tensor behind the end", ErrHole, "b", 119, false,
		file(`{"a":`+okEntry+`,"b":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}}`, 4),
	},
	{"Trailing", ErrTrailing, "", 66, true, one(okEntry, 5)},
	{"data without tensors", ErrTrailing, "", 10, false, file(`{}`, 1)},
	{"Truncated", ErrTruncated, "a", 64, true, one(okEntry, 2)},
	{"out of the file", ErrOffsets, "a", 64, false, one(okEntry, 2)},
	{"header truncated", ErrTruncated, "", 18, false, one(okEntry, 0)[:18]},
	{"Metadata", ErrMetadata, "", 29, true, file(`{"__metadata__":{"x":1}}`, 0)},
	{"metadata list", ErrMetadata, "", 24, false, file(`{"__metadata__":[]}`, 0)},
	{"metadata tensor", ErrMetadata, "", 33, false, file(`{"__metadata__":{"shape":[]}}`, 0)},
}

func TestRules(t *testing.T) {
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			_, err := OpenBytes(rule.data)
			checkRule(t, err, rule.want, rule.tensor, rule.at)
			path := filepath.Join(t.TempDir(), "x.safetensors")
			if err := os.WriteFile(path, rule.data, 0o600); err != nil {
				t.Fatal(err)
			}

			_, err = Open(path)
			checkRule(t, err, rule.want, rule.tensor, rule.at)
			if !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("not one line with the path: %v", err)
			}
		})
	}
}

func checkRule(t *testing.T, err, want error, tensor string, at int64) {
	t.Helper()
	var e *Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Fatalf("got %v, want %v", err, want)
	}
	if e.Tensor != tensor || e.Offset != at {
		t.Errorf("tensor %q at %d, want %q at %d: %v", e.Tensor, e.Offset, tensor, at, err)
	}
}

// TestRuleFiles holds a file per rule under testdata, named after the sentinel error.
func TestRuleFiles(t *testing.T) {
	for _, rule := range rules {
		if !rule.keep {
			continue
		}

		path := filepath.Join("testdata", "rules", rule.name+".safetensors")
		if *rewrite {
			if err := os.WriteFile(path, rule.data, 0o644); err != nil {
				t.Fatal(err)
			}
		}

		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, rule.data) {
			t.Errorf("%s differs from the table (%v)", path, err)
		}

		_, err := Open(path)
		checkRule(t, err, rule.want, rule.tensor, rule.at)
	}
}

// TestAccepted holds odd files that are within the rules.
func TestAccepted(t *testing.T) {
	for _, c := range []struct {
		name  string
		data  []byte
		names []string
		meta  map[string]string
	}{
		{"nothing", file(`{}`, 0), []string{}, nil},
		{"spaces behind", file("{ } \n\t\r  ", 0), []string{}, nil},
		{
			"metadata alone", file(`{"__metadata__":{"x":"1","é":""}}`, 0),
			[]string{},
			map[string]string{"x": "1", "é": ""},
		},
		{"metadata null", file(`{"__metadata__":null}`, 0), []string{}, nil},
		{
			"unknown fields",
			one(`{"x":{"y":[1,-2.5e+3,{},[],true,null,"z"]},"dtype":"F32","shape":[1],"data_offsets":[0,4]}`, 4),
			[]string{"a"},
			nil,
		},
		{"escapes", file(`{"\ud83d\ude00\u00E9\"\\\/\b\f\n\r\t":`+okEntry+`}`, 4), []string{"😀é\"\\/\b\f\n\r\t"}, nil},
		{"empty name", file(`{"":`+okEntry+`}`, 4), []string{""}, nil},
		{"zero first", one(`{"dtype":"F32","shape":[0,9223372036854775807,9223372036854775807],"data_offsets":[0,0]}`,
			0), []string{"a"}, nil},
		{
			"any order, empty ones in between",
			file(
				`{"c":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},"a":`+okEntry+`}`, 6),
			[]string{"a", "b", "c"},
			nil,
		},
		{
			"sub-byte",
			file(
				`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"b":{"dtype":"F6_E2M3","shape":[2,2],"data_offsets":[1,4]}}`, 4),
			[]string{"a", "b"},
			nil,
		},
	} {
		f, err := OpenBytes(c.data)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}

		if !slices.Equal(f.Names(), c.names) || !maps.Equal(f.Metadata(), c.meta) {
			t.Errorf("%s: %q %v", c.name, f.Names(), f.Metadata())
		}
	}
}

// TestHint says what a file of another format is.
func TestHint(t *testing.T) {
	for magic, hint := range map[string]string{
		"PK\x03\x04\x00\x00\x08\x08": "zip archive", "GGUF\x03\x00\x00\x00": "GGUF",
		"version https://": "Git LFS", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46": "pickle",
	} {
		if _, err := OpenBytes([]byte(magic + "more")); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v", magic, err)
		}
	}
}

func TestDTypes(t *testing.T) {
	if len(DTypeNames()) != 22 {
		t.Errorf("%d types: %v", len(DTypeNames()), DTypeNames())
	}

	for _, name := range DTypeNames() {
		d, err := ParseDType(name)
		if err != nil || d.String() != name || d.Bits() == 0 || !d.Valid() {
			t.Errorf("%s: %v %v", name, d, err)
		}
	}

	if d := DType(99); d.Valid() || d.Bits() != 0 || d.String() != "DType(99)" || d.Align() != 1 {
		t.Errorf("invalid type: %v", d)
	}
	if _, err := ParseDType(strings.Repeat("x", 1000)); !errors.Is(err, ErrUnknownDType) || len(err.Error()) > 500 {
		t.Errorf("got %v", err)
	}

	for _, c := range []struct {
		d     DType
		shape []int64
		want  error
	}{
		{DType(0), nil, ErrUnknownDType},
		{F32, []int64{-1}, ErrShapeOverflow},
		{F64, []int64{1 << 60}, ErrShapeOverflow},
		{F4, nil, ErrNotByteAligned},
	} {
		if _, err := c.d.ByteSize(c.shape); !errors.Is(err, c.want) {
			t.Errorf("%v %v: %v", c.d, c.shape, err)
		}
	}

	if n := (Info{Shape: []int64{1 << 40, 1 << 40}}).Elements(); n != -1 {
		t.Errorf("%d elements", n)
	}
}
