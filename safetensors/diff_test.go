package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	other "github.com/nlpodyssey/safetensors"
	"pgregory.net/rapid"
)

// otherDTypes maps the types that the other library knows.
var otherDTypes = map[DType]other.DType{
	BOOL: other.BOOL, U8: other.U8, I8: other.I8, I16: other.I16, U16: other.U16, F16: other.F16, BF16: other.BF16,
	I32: other.I32, U32: other.U32, F32: other.F32, F64: other.F64, I64: other.I64, U64: other.U64,
}

// plain draws a model that both libraries write.
func plain(t *rapid.T) (tensors []Info, meta map[string]string) {
	name := rapid.StringMatching(`[a-zé0-9._"\\/]{1,12}`)
	for _, n := range rapid.SliceOfNDistinct(name, 0, 8, rapid.ID[string]).Draw(t, "names") {
		d := dtypeGen.Filter(func(d DType) bool { _, ok := otherDTypes[d]; return ok }).Draw(t, "dtype")
		tensors = append(tensors, Info{Name: n, DType: d, Shape: shapeGen.Draw(t, "shape")})
	}
	if rapid.Bool().Draw(t, "with metadata") {
		meta = map[string]string{name.Draw(t, "key"): name.Draw(t, "value")}
	}
	return tensors, meta
}

// views hands the tensors to the other library.
func views(t *rapid.T, tensors []Info) map[string]other.TensorView {
	m := map[string]other.TensorView{}
	for _, info := range tensors {
		shape := make([]uint64, len(info.Shape))
		for i, dim := range info.Shape {
			shape[i] = uint64(dim)
		}

		v, err := other.NewTensorView(otherDTypes[info.DType], shape, dataOf(info))
		if err != nil {
			t.Skip("it refuses scalars: ", err)
		}

		m[info.Name] = v
	}

	return m
}

// TestDifferentialWrite writes the same as the other library in the reference order: the same
// data, and a header of the same length and content. The other one sorts the header's keys, which the
// reference implementation does not; testdata/all-dtypes.safetensors holds us to that byte by byte.
func TestDifferentialWrite(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tensors, meta := plain(rt)
		// it writes those in any order
		tensors = slices.DeleteFunc(tensors, func(i Info) bool { return i.Elements() == 0 })
		theirs, err := other.Serialize(views(rt, tensors), meta)
		if err != nil {
			rt.Fatal(err)
		}

		l, err := plan(tensors, meta, OrderHF)
		if err != nil {
			rt.Fatal(err)
		}

		ours := bytes.Clone(l.head)
		for _, info := range l.tensors {
			ours = append(ours, dataOf(info)...)
		}

		n := len(l.head)
		if len(ours) != len(theirs) || !bytes.Equal(ours[n:], theirs[n:]) || !bytes.Equal(ours[:8], theirs[:8]) ||
			!reflect.DeepEqual(decode(rt, ours[8:n]), decode(rt, theirs[8:n])) {
			rt.Fatalf("\nours   %q\ntheirs %q", ours, theirs)
		}

		f, err := OpenBytes(theirs)
		if err != nil {
			rt.Fatal(err)
		}

		checkAll(rt2tb{t, rt}, f, tensors)
	})
}

func decode(t *rapid.T, text []byte) (v any) {
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// known reports whether both libraries may rightly differ about a file. The other one accepts
// duplicate keys, a leading space, invalid UTF-8, half surrogate pairs, a header that is null
// and places of tensors without bytes inside others in some orders; it refuses further fields
// and the newer dtypes.
func known(b []byte, ours error) bool {
	if errors.Is(ours, ErrHeaderStart) || errors.Is(ours, ErrHeaderNotUTF8) ||
		hasDuplicate(json.NewDecoder(bytes.NewReader(b[min(8, len(b)):]))) {
		return true
	}

	text := string(b[min(8, len(b)):])
	for _, name := range []string{`"F4"`, `"F6_`, `"F8_`, `"C64"`, `\u`} {
		if strings.Contains(text, name) {
			return true
		}
	}

	return ours == nil && hasUnknownField(b)
}

// hasDuplicate walks over one value with the standard library's decoder.
func hasDuplicate(dec *json.Decoder) bool {
	tok, err := dec.Token()
	if delim, ok := tok.(json.Delim); err != nil || !ok || delim == ']' || delim == '}' {
		return false
	}

	seen := map[json.Token]bool{}
	for found := false; ; {
		if !dec.More() {
			_, _ = dec.Token()
			return found
		}

		if tok == json.Delim('{') {
			key, err := dec.Token()
			if err != nil {
				return found
			}
			found = found || seen[key]
			seen[key] = true
		}

		found = hasDuplicate(dec) || found
	}
}

func hasUnknownField(b []byte) bool {
	found := false
	n, _ := headerSize(b, int64(len(b)))
	s := &scanner{text: b[8 : 8+n]}
	_ = s.object(func(key string) error {
		if key == metadataKey {
			return s.skip(1)
		}
		return s.object(func(key string) error {
			found = found || key != "dtype" && key != "shape" && key != "data_offsets"
			return s.skip(2)
		})
	})

	return found
}

// pieces are put into headers by the mutations.
var pieces = []string{
	`"`, `{`, `}`, `[`, `]`, `,`, `:`, ` `, `0`, `1`, `4`, `-`, `.5`, `e9`, `18446744073709551615`, `4294967296`,
	`null`, `true`,
	`"F32"`, `"U8"`, `"F33"`, `"dtype"`, `"shape"`, `"data_offsets"`, `"__metadata__":{"a":"b"},`,
	`"a":` + okEntry + `,`, "\n", "\x00", "é",
}

// mutate changes a header in a few places and fixes its length, mostly.
func mutate(rng *rand.Rand, b []byte) []byte {
	n, _ := headerSize(b, int64(len(b)))
	text, data := bytes.Clone(b[8:8+n]), b[8+n:]
	for range 1 + rng.IntN(3) {
		at := rng.IntN(len(text) + 1)
		cut := min(len(text), at+rng.IntN(3))
		if rng.IntN(2) == 0 {
			text = append(text[:at:at], append([]byte(pieces[rng.IntN(len(pieces))]), text[cut:]...)...)
		} else {
			text = append(text[:at:at], text[cut:]...)
		}
	}

	length := len(text)
	if rng.IntN(10) == 0 {
		length += rng.IntN(9) - 4
	}

	head := file(strings.Repeat(" ", max(length, 0)), 0)[:8]
	if rng.IntN(10) == 0 {
		data = data[:rng.IntN(len(data)+1)]
	}

	return append(append(head, text...), data...)
}

// TestDifferentialRead changes headers at random; both libraries must agree on each.
func TestDifferentialRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	seeds := [][]byte{
		file(`{"__metadata__":{"x":"y"},"a":`+okEntry+`,"b":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]}}`, 8),
		file(
			`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}  `, 2),
		file(`{}`, 0), one(okEntry, 4),
	}

	agreed := map[bool]int{}
	for range 60_000 {
		b := mutate(rng, seeds[rng.IntN(len(seeds))])
		_, theirs := readOther(b)
		_, ours := OpenBytes(b)
		if (ours == nil) == (theirs == nil) {
			agreed[ours == nil]++
		} else if !known(b, ours) {
			t.Fatalf("%q:\nours   %v\ntheirs %v", b, ours, theirs)
		}
	}

	if agreed[true] < 1000 || agreed[false] < 1000 {
		t.Errorf("accepted %d, refused %d: too few of one kind", agreed[true], agreed[false])
	}
}

func readOther(b []byte) (st other.SafeTensors, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if !utf8.Valid(b[min(8, len(b)):min(len(b), 9)]) {
		return st, ErrHeaderNotUTF8
	}
	return other.Deserialize(b)
}
