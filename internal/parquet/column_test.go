package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// packed writes numbers of a width bit by bit, in one group of eights.
func packed(values []uint32, width int) []byte {
	groups := (len(values) + 7) / 8
	out := binary.AppendUvarint(nil, uint64(groups)<<1|1)
	bits := make([]byte, groups*width)
	for i, v := range values {
		for b := range width {
			if v>>b&1 == 1 {
				at := i*width + b
				bits[at/8] |= 1 << (at % 8)
			}
		}
	}
	return append(out, bits...)
}

// run writes a number so many times.
func run(v uint32, count, width int) []byte {
	out := binary.AppendUvarint(nil, uint64(count)<<1)
	for i := range (width + 7) / 8 {
		out = append(out, byte(v>>(8*i)))
	}
	return out
}

// TestHybrid: runs and packed groups of any width come back, in any mixture; what is cut short is an error.
func TestHybrid(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for width := 1; width <= 32; width++ {
		var want []uint32
		var text []byte
		for range 1 + random.IntN(5) {
			top := uint64(1) << width
			if random.IntN(2) == 0 {
				v, n := uint32(random.Uint64N(top)), 1+random.IntN(20)
				text = append(text, run(v, n, width)...)
				want = append(want, slices.Repeat([]uint32{v}, n)...)
				continue
			}

			group := make([]uint32, 8*(1+random.IntN(3)))
			for i := range group {
				group[i] = uint32(random.Uint64N(top))
			}
			text = append(text, packed(group, width)...)
			want = append(want, group...)
		}

		var got []uint32
		each := func(v uint32) { got = append(got, v) }
		if err := hybrid(text, width, int64(len(want)), each); err != nil || !slices.Equal(got, want) {
			t.Errorf("width %d: %v, want %v (%v)", width, got, want, err)
		}
		if err := hybrid(text[:len(text)-1], width, int64(len(want)), each); !errors.Is(err, ErrFormat) {
			t.Errorf("width %d, cut short: %v", width, err)
		}
	}

	none := func(uint32) { t.Error("a number") }
	for name, text := range map[string][]byte{"nothing": {}, "a run of none": {0, 0}, "a group of none": {1}} {
		if err := hybrid(text, 1, 1, none); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := hybrid(run(0, 1, 8), 33, 1, none); !errors.Is(err, ErrFormat) {
		t.Errorf("33 bits: %v", err)
	}
}

// TestPlainValues: numbers of every type as they lie in memory, texts behind their length, and what is too short.
func TestPlainValues(t *testing.T) {
	le32 := func(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
	le64 := func(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
	for _, c := range []struct {
		leaf node
		text []byte
		want any
	}{
		{node{kind: typeInt32}, le32(math.MaxUint32), int64(-1)},
		{node{kind: typeInt64}, le64(1 << 40), int64(1 << 40)},
		{node{kind: typeInt96}, append(le64(7), 0, 0, 0, 0), int64(7)},
		{node{kind: typeFloat}, le32(math.Float32bits(1.5)), 1.5},
		{node{kind: typeDouble}, le64(math.Float64bits(-2.25)), -2.25},
		{node{kind: typeBytes}, append(le32(2), "hé"[:2]...), "h\ufffd"},
		{node{kind: typeBytes, text: true}, append(le32(3), "hé"...), "hé"},
		{node{kind: typeFixed, length: 3}, []byte("abc"), "abc"},
	} {
		col := &chunk{leaf: &c.leaf}
		vs, rest, err := col.plain(append(slices.Clone(c.text), 9), 1)
		if err != nil || len(rest) != 1 || vs[0] != c.want {
			t.Errorf("type %d: %v %v %v", c.leaf.kind, vs, rest, err)
		}
		if _, _, err := col.plain(c.text[:len(c.text)-1], 1); !errors.Is(err, ErrFormat) {
			t.Errorf("type %d, cut short: %v", c.leaf.kind, err)
		}
	}

	col := &chunk{leaf: &node{kind: typeBool}}
	if vs, _, err := col.plain([]byte{0b101, 1}, 9); err != nil ||
		fmt.Sprint(vs) != "[true false true false false false false false true]" {
		t.Errorf("%v %v", vs, err)
	}
	for _, n := range []int64{-1, 17, maxValues + 1} {
		if _, _, err := col.plain([]byte{0, 0}, n); !errors.Is(err, ErrFormat) {
			t.Errorf("%d truth values in two bytes: %v", n, err)
		}
	}
	if _, _, err := (&chunk{leaf: &node{kind: 99}}).plain([]byte{0}, 1); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a type that nobody knows: %v", err)
	}
}

// TestPages: values join their levels, places in a dictionary lead to its values, and a page that says too much is
// refused.
func TestPages(t *testing.T) {
	col := &chunk{leaf: &node{kind: typeInt32, def: 1}, dict: []any{"x", "y"}, total: 4}
	body := append([]byte{1}, packed([]uint32{1, 0, 1}, 1)...)
	if err := col.values(body, dictionary, nil, []uint8{1, 0, 1, 1}, 4); err != nil {
		t.Fatal(err)
	}

	var got []any
	for _, e := range col.out {
		got = append(got, e.v)
	}
	if fmt.Sprint(got) != "[y <nil> x y]" {
		t.Errorf("%v", got)
	}
	if err := col.values(body, dictionary, nil, nil, 1); !errors.Is(err, ErrFormat) {
		t.Errorf("more values than announced: %v", err)
	}

	col.out = nil
	outside := append([]byte{2}, packed([]uint32{3}, 2)...)
	if err := col.values(outside, plainDictionary, nil, nil, 1); !errors.Is(err, ErrFormat) {
		t.Errorf("outside of the dictionary: %v", err)
	}
	if err := col.values(nil, dictionary, nil, nil, 1); !errors.Is(err, ErrFormat) {
		t.Errorf("no width: %v", err)
	}
	if err := col.values(nil, 5, nil, nil, 1); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(err.Error(), "delta integers") {
		t.Errorf("another encoding: %v", err)
	}

	bools := &chunk{leaf: &node{kind: typeBool}, total: 3}
	err := bools.values(append(make([]byte, 4), packed([]uint32{1, 0, 1}, 1)...), runLength, nil, nil, 3)
	if err != nil || bools.out[0].v != true || bools.out[1].v != false {
		t.Errorf("truth values in runs: %v %v", bools.out, err)
	}
}

// TestLevels: levels above the column's are refused, and a column that is always there has none.
func TestLevels(t *testing.T) {
	if l, err := levelsOf(nil, 5, 0); l != nil || err != nil {
		t.Errorf("%v %v", l, err)
	}
	if l, err := levelsOf(packed([]uint32{2, 0, 1}, 2), 3, 2); err != nil || !slices.Equal(l, []uint8{2, 0, 1}) {
		t.Errorf("%v %v", l, err)
	}
	if _, err := levelsOf(packed([]uint32{3}, 2), 1, 2); !errors.Is(err, ErrFormat) {
		t.Errorf("level 3 of 2: %v", err)
	}
	if _, err := levelsOf(nil, -1, 1); !errors.Is(err, ErrFormat) {
		t.Errorf("fewer than none: %v", err)
	}
	for _, body := range [][]byte{{1, 0}, {9, 0, 0, 0, 1}} {
		if _, _, err := prefixed(body, 1, 1); !errors.Is(err, ErrFormat) {
			t.Errorf("%v: %v", body, err)
		}
	}
}

// group and leafOf make elements of a schema.
func group(name string, children, repeat int64, list bool) fields {
	f := fields{4: []byte(name), 3: repeat, 5: children}
	if list {
		f[6] = int64(convertedList)
	}
	return f
}

func leafOf(name string, repeat int64) fields {
	return fields{4: []byte(name), 1: int64(typeInt32), 3: repeat}
}

// TestRecords: lists, lists of lists, empty and absent ones, and groups come out of their levels (Dremel, 2010).
func TestRecords(t *testing.T) {
	// {a: optional list of optional lists of optional numbers, b: {c: optional number}}
	root, err := schema([]any{
		group("schema", 2, required, false),
		group("a", 1, optional, true), group("list", 1, repeated, false),
		group("element", 1, optional, true), group("list", 1, repeated, false), leafOf("element", optional),
		group("b", 1, required, false), leafOf("c", optional),
	})
	if err != nil {
		t.Fatal(err)
	}

	a, path := root.leaf(0)
	c, _ := root.leaf(1)
	if root.leaves != 2 || a.def != 5 || a.rep != 2 || c.name != "c" || c.def != 1 ||
		strings.Join(path, ".") != "a.list.element.list.element" {
		t.Fatalf("%+v at %q, %+v", a, path, c)
	}

	n := func(rep, def uint8, v any) entry { return entry{rep, def, v} }
	for want, entries := range map[string][]entry{
		"None":          {n(0, 0, nil)},
		"[]":            {n(0, 1, nil)},
		"[None]":        {n(0, 2, nil)},
		"[[]]":          {n(0, 3, nil)},
		"[[None]]":      {n(0, 4, nil)},
		"[[1, 2], [3]]": {n(0, 5, int64(1)), n(2, 5, int64(2)), n(1, 5, int64(3))},
		"[[1], [], [None, 2], None]": {
			n(0, 5, int64(1)), n(1, 3, nil), n(1, 4, nil), n(2, 5, int64(2)), n(1, 2, nil),
		},
	} {
		d := root.record([][]entry{entries, {n(0, 1, int64(9))}})
		if got := pyvalue.Repr(d); got != "{'a': "+want+", 'b': {'c': 9}}" {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestSchemas: trees that do not close, or go too deep, are refused.
func TestSchemas(t *testing.T) {
	deep := []any{}
	for range maxSchemaDepth + 2 {
		deep = append(deep, group("g", 1, required, false))
	}

	for name, list := range map[string][]any{
		"nothing": {}, "no element": {"x"}, "too few": {group("s", 2, required, false), leafOf("a", required)},
		"too many": {group("s", 1, required, false), leafOf("a", required), leafOf("b", required)},
		"deep":     append(deep, leafOf("a", required)), "fewer than none": {group("s", -1, required, false)},
	} {
		if _, err := schema(list); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestThrift: every type of the compact protocol, and every structure that is cut short or too deep.
func TestThrift(t *testing.T) {
	text := []byte{
		0x11,       // field 1: true
		0x12,       // field 2: false
		0x13, 0xff, // field 3: byte -1
		0x15, 0x05, // field 4: i32, zigzag 5 = -3
		0x17, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, // field 5: double 1.5
		0x18, 2, 'h', 'i', // field 6: text
		0x19, 0x25, 2, 4, // field 7: list of two i32: 1, 2
		0x19, 0x21, 1, 2, // field 8: list of two truth values: true, false
		0x1b, 1, 0x88, 1, 'k', 1, 'v', // field 9: a map, skipped
		0x1c, 0x15, 2, 0, // field 10: a structure with field 1 = 1
		0x05, 0xc8, 0x01, 2, // field 100, named in full: 1
		0x1b, 0, // field 101: an empty map
		0, 0xaa, // the end, and what follows
	}

	f, n, err := parseThrift(text)
	if err != nil || n != len(text)-1 {
		t.Fatalf("%d of %d bytes: %v", n, len(text), err)
	}
	if f[1] != true || f[2] != false || f.int(3) != -1 || f.int(4) != -3 || f[5] != 1.5 || f.text(6) != "hi" ||
		fmt.Sprint(f.list(7), f.list(8)) != "[1 2] [true false]" || f.sub(10).int(1) != 1 || f.int(100) != 1 {
		t.Errorf("%v", f)
	}
	if f.int(6) != 0 || f.list(1) != nil || f.sub(1) != nil || f.text(99) != "" {
		t.Error("a field is taken for one of another type")
	}

	for cut := range len(text) - 2 {
		if _, _, err := parseThrift(text[:cut]); !errors.Is(err, ErrFormat) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
	if _, _, err := parseThrift(slices.Repeat([]byte{0x1c}, 100)); !errors.Is(err, ErrFormat) {
		t.Errorf("too deep: %v", err)
	}
	if _, _, err := parseThrift([]byte{0x1d}); !errors.Is(err, ErrFormat) {
		t.Errorf("a type that nobody knows: %v", err)
	}
}

// TestDeclaredTexts: both ways of declaring a column to be UTF-8 are known, and what is declared to be something else,
// or nothing, may be any bytes.
func TestDeclaredTexts(t *testing.T) {
	for name, c := range map[string]struct {
		more fields
		text bool
	}{
		"nothing": {nil, false}, "UTF8": {fields{6: int64(0)}, true}, "DECIMAL": {fields{6: int64(5)}, false},
		"STRING": {fields{10: fields{1: fields{}}}, true}, "BSON": {fields{10: fields{13: fields{}}}, false},
		"ENUM": {fields{6: int64(4)}, true}, "JSON": {fields{10: fields{12: fields{}}}, true},
	} {
		leaf := fields{4: []byte("text"), 1: int64(typeBytes), 3: int64(required)}
		maps.Copy(leaf, c.more)
		root, err := schema([]any{group("schema", 1, required, false), leaf})
		if err != nil {
			t.Fatal(err)
		}

		column, path := root.leaf(0)
		col := &chunk{leaf: column}
		vs, _, err := col.plain([]byte{2, 0, 0, 0, 'h', 0xc3}, 1)
		if err != nil {
			t.Fatal(err)
		}
		row, err := noText([]entry{{0, 0, "fine"}, {1, 0, "fine"}, {0, 0, vs[0]}})
		if errors.Is(err, pyvalue.ErrUTF8) != c.text || c.text && (row != 1 || path[0] != "text") ||
			!c.text && vs[0] != "h\ufffd" {
			t.Errorf("%s: %v in row %d: %v", name, vs, row, err)
		}
	}
}
