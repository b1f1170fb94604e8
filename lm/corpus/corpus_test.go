package corpus

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// byteTokenizer gives every byte its value as id, 256 as BOS and, if eos is set, 257 behind the text.
type byteTokenizer struct{ eos, nobos bool }

func (t byteTokenizer) Encode(text string, o tokenizer.EncodeOptions) ([]int32, error) {
	var ids []int32
	if !o.NoSpecial && !t.nobos {
		ids = append(ids, 256)
	}
	for i := range len(text) {
		ids = append(ids, int32(text[i]))
	}
	if !o.NoSpecial && t.eos {
		ids = append(ids, 257)
	}

	return ids, nil
}
func (t byteTokenizer) BOS() (int32, bool) { return 256, !t.nobos }
func (t byteTokenizer) EOS() (int32, bool) { return 257, t.eos }
func (t byteTokenizer) VocabSize() int     { return 258 }

var ctx = context.Background()

func write(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)

	if strings.HasSuffix(name, ".gz") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(data)
		_ = z.Close()
		data = b.Bytes()
	}

	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

func text(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		if id < 256 {
			b.WriteByte(byte(id))
		} else {
			fmt.Fprintf(&b, "<%d>", id)
		}
	}
	return b.String()
}

// records makes documents of rising length: document i is i+1 times a letter.
func records(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "{\"text\": %q}\n", strings.Repeat(string(rune('a'+i%26)), i+1))
	}
	return b.Bytes()
}

// The draws were computed with Python 3.12: random.seed(s); randint(0, 39) until the document has more than 20 tokens
// (BOS included), then randint(0, tokens-20-1); and, for the joined text, randint(0, tokens-20-1).
func TestSampleDrawsAsPython(t *testing.T) {
	path := write(t, "docs.jsonl", records(40))
	for _, c := range drawCases {
		w, err := Sample(ctx, path, byteTokenizer{}, SampleOptions{Samples: 4, SeqLen: 20, Seed: c.seed})
		if err != nil {
			t.Fatal(err)
		}

		var got []string
		for _, ids := range w.IDs {
			got = append(got, text(ids))
		}
		if !slices.Equal(got, c.documents) {
			t.Errorf("seed %d: documents\n got %q\nwant %q", c.seed, got, c.documents)
		}

		if w.Redrawn != c.redrawn || w.Docs != 40 || w.Mode != Documents {
			t.Errorf("seed %d: %d redrawn of %d documents, mode %s; want %d of 40", c.seed, w.Redrawn, w.Docs, w.Mode,
				c.redrawn)
		}

		w, err = Sample(ctx, path, byteTokenizer{}, SampleOptions{Samples: 3, SeqLen: 20, Seed: c.seed, Join: true})
		if err != nil {
			t.Fatal(err)
		}

		whole := "<256>" + joined(40)
		for i, ids := range w.IDs {
			want := "<256>" + whole[5:][:19]
			if at := c.starts[i]; at > 0 {
				want = whole[5:][at-1 : at+19]
			}
			if text(ids) != want {
				t.Errorf("seed %d: joined window %d: got %q, want %q", c.seed, i, text(ids), want)
			}
		}
	}
}

func joined(n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, strings.Repeat(string(rune('a'+i%26)), i+1))
	}
	return strings.Join(parts, " ")
}

func TestSampleIsTheSameForEveryContainer(t *testing.T) {
	data := records(40)
	o := SampleOptions{Samples: 5, SeqLen: 12, Seed: 7}
	want, err := Sample(ctx, write(t, "a.jsonl", data), byteTokenizer{}, o)
	if err != nil {
		t.Fatal(err)
	}

	variants := map[string][]byte{
		"b.jsonl.gz": data, "c.json.gz": data, "d.json": data,
		"bom.jsonl":    append([]byte("\ufeff"), data...),
		"bom.jsonl.gz": append([]byte("\ufeff"), data...),
		"crlf.ndjson":  bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n")),
		"blank.jsonl":  bytes.ReplaceAll(data, []byte("\n"), []byte("\n\n  \n")),
		"open.jsonl":   bytes.TrimSuffix(data, []byte("\n")),
	}

	for name, v := range variants {
		got, err := Sample(ctx, write(t, name, v), byteTokenizer{}, o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}

		if got.Hash != want.Hash {
			t.Errorf("%s: other windows than the plain file", name)
		}
		if name == "blank.jsonl" && got.Blank != 80 {
			t.Errorf("%s: %d blank lines counted, want 80", name, got.Blank)
		}
	}
}

// Windows collected in a second pass over a text in pieces equal those cut from the whole.
func TestDrawTwinsPiecesAndWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(200, 3000).Draw(rt, "bytes")
		words := rapid.StringMatching(`([a-z]{1,8}[ \n]{1,2}){20,60}`).Draw(rt, "words")
		content := strings.Repeat(words, n/len(words)+1)
		w := Windows{Count: 6, SeqLen: rapid.IntRange(1, 90).Draw(rt, "seqlen"), Seed: rapid.Uint64().Draw(rt, "seed")}
		if len(content) <= w.SeqLen {
			return
		}

		open := func() (feed, error) {
			rest := []byte(content)
			return func() ([]byte, error) {
				if len(rest) == 0 {
					return nil, io.EOF
				}
				k := min(len(rest), 37)
				part := rest[:k]
				rest = rest[k:]
				return part, nil
			}, nil
		}

		whole, parts := w, w
		a := &textSource{path: "t", open: open, tok: byteTokenizer{eos: true}, piece: 1 << 20}
		b := &textSource{
			path: "t", open: open, tok: byteTokenizer{eos: true},
			piece: rapid.IntRange(8, 200).Draw(rt, "piece"),
		}
		if err := whole.draw(ctx, a, 1<<20); err != nil {
			rt.Fatal(err)
		}
		if err := parts.draw(ctx, b, rapid.SampledFrom([]int{0, 100, 1 << 20}).Draw(rt, "keep")); err != nil {
			rt.Fatal(err)
		}
		if whole.Hash != parts.Hash || whole.Tokens != parts.Tokens {
			rt.Fatalf("%d and %d tokens, hashes %s and %s", whole.Tokens, parts.Tokens, whole.Hash, parts.Hash)
		}
	})
}

func TestBoundaryKeepsCharactersWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.StringOfN(rapid.SampledFrom([]rune("aé€😀 \n\t")), 10, 200, -1).Draw(rt, "text")
		size := rapid.IntRange(1, 40).Draw(rt, "size")
		given := false
		p := pieces{size: size, path: "t", next: func() ([]byte, error) {
			if given {
				return nil, io.EOF
			}
			given = true
			return []byte(s), nil
		}}

		var all strings.Builder
		for !p.ended {
			part, err := p.piece()
			if err != nil {
				rt.Fatal(err)
			}
			all.Write(part)
		}

		if all.String() != s {
			rt.Fatalf("pieces give %q, want %q", all.String(), s)
		}
	})
}

func TestCutWindow(t *testing.T) {
	w, err := Cut(ctx, write(t, "a.txt", []byte("abcdefghijk")), byteTokenizer{}, CutOptions{SeqLen: 4})
	if err != nil {
		t.Fatal(err)
	}

	if len(w.IDs) != 3 || text(w.IDs[0]) != "<256>abc" || text(w.IDs[2]) != "hijk" || w.Dropped != 0 || w.Tokens != 12 {
		t.Errorf("got %v", w)
	}

	w, err = Cut(ctx, write(t, "a.jsonl", []byte("\"ab\"\n{\"prompt\":\"c\",\"completion\":\"d\"}\n")),
		byteTokenizer{nobos: true}, CutOptions{SeqLen: 4})
	if err != nil || text(w.IDs[0]) != "ab\n\n" || w.Dropped != 2 || w.Docs != 2 {
		t.Errorf("got %v, %v; want one window, ab and two line ends", w, err)
	}

	w, err = Cut(ctx, write(t, "a.txt", []byte("abcdefghijk")), byteTokenizer{}, CutOptions{SeqLen: 4, Limit: 1})
	if err != nil || len(w.IDs) != 1 {
		t.Errorf("limit 1: %v, %v", w, err)
	}
}

// TestCutAnyLength: where nobody has asked for a length, a shorter text is one window, and a single token none.
func TestCutAnyLength(t *testing.T) {
	o := CutOptions{SeqLen: 40, AnyLength: true}
	w, err := Cut(ctx, write(t, "short.txt", []byte("hello")), byteTokenizer{}, o)
	if err != nil || len(w.IDs) != 1 || w.SeqLen != 6 || len(w.IDs[0]) != 6 || w.Dropped != 0 {
		t.Errorf("%+v, %v", w, err)
	}

	if _, err = Cut(ctx, write(t, "one.txt", []byte("h")), byteTokenizer{nobos: true}, o); !errors.Is(err, ErrShort) {
		t.Errorf("%v", err)
	}

	o.AnyLength = false
	if _, err = Cut(ctx, write(t, "short.txt", []byte("hello")), byteTokenizer{}, o); !errors.Is(err, ErrShort) {
		t.Errorf("%v", err)
	}
}

// The windows follow lm-evaluation-harness' get_rolling_token_windows with max_seq_len = SeqLen-1 inputs.
func TestCutRolling(t *testing.T) {
	for _, c := range []struct {
		stride int
		ids    []string
		first  []int // tokens that are context in each window
	}{
		{0, []string{"<256>abc", "cdef", "defg"}, []int{1, 1, 3}},
		{1, []string{"<256>abc", "abcd", "bcde", "cdef", "defg"}, []int{1, 3, 3, 3, 3}},
		{2, []string{"<256>abc", "bcde", "defg"}, []int{1, 2, 2}},
	} {
		w, err := Cut(ctx, write(t, "a.txt", []byte("abcdefg")), byteTokenizer{},
			CutOptions{Convention: Rolling, SeqLen: 4, Stride: c.stride})
		if err != nil {
			t.Fatal(err)
		}

		var got []string
		var first []int
		for i, ids := range w.IDs {
			got = append(got, text(ids))
			n := 0
			for n < len(w.Labels[i]) && w.Labels[i][n] == Ignore {
				n++
			}
			first = append(first, n)
		}

		if !slices.Equal(got, c.ids) || !slices.Equal(first, c.first) {
			t.Errorf("stride %d: %q with %v context tokens; want %q with %v", c.stride, got, first, c.ids, c.first)
		}
	}
}

// Records are rolled over one by one; what has no token is left out and counted.
func TestCutRollingRecords(t *testing.T) {
	path := write(t, "a.jsonl", []byte("\"abcd\"\n\"\"\n\n{\"text\":\"xy\"}\n"))
	w, err := Cut(ctx, path, byteTokenizer{nobos: true, eos: true}, CutOptions{Convention: Rolling, SeqLen: 4})
	if err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, ids := range w.IDs {
		got = append(got, text(ids))
	}
	if want := []string{"<257>abc", "abcd", "<257>xy"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q: EOS stands in for a BOS", got, want)
	}
	if w.Docs != 3 || w.Blank != 2 || w.Tokens != 6 {
		t.Errorf("%d documents, %d blank, %d tokens; want 3, 2 and 6", w.Docs, w.Blank, w.Tokens)
	}

	w, err = Cut(ctx, path, byteTokenizer{nobos: true}, CutOptions{Convention: Rolling, SeqLen: 4})
	if err != nil || len(w.IDs) != 2 || text(w.IDs[0]) != "abcd" || w.Labels[0][0] != Ignore {
		t.Errorf("without BOS and EOS: %v, %v", w, err)
	}

	if _, err = Cut(ctx, write(t, "b.jsonl", []byte("\"ab\"\n{\n")), byteTokenizer{},
		CutOptions{Convention: Rolling}); !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("%v", err)
	}
}

func TestCheck(t *testing.T) {
	w := New([][]int32{{1, 2, 3}, {4}}, "x.json")
	if err := w.Check(5); err != nil {
		t.Error(err)
	}
	if err := w.Check(4); !errors.Is(err, ErrVocabulary) ||
		err.Error() != "x.json: row 1, column 0: token id outside the vocabulary: id 4, the vocabulary has 4" {
		t.Error(err)
	}
}

// Every token of every document is predicted exactly once, whatever the window and the stride.
func TestRollingPredictsEachTokenOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 300).Draw(rt, "tokens")
		seqlen := rapid.IntRange(2, 60).Draw(rt, "seqlen")
		stride := rapid.IntRange(1, seqlen-1).Draw(rt, "stride")
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(i)
		}

		var w Windows
		w.roll(ids, CutOptions{SeqLen: seqlen, Stride: stride})

		next := int32(1)
		for i, labels := range w.Labels {
			if len(labels) > seqlen || labels[0] != Ignore {
				rt.Fatalf("window %d has %d tokens, the first label is %d", i, len(labels), labels[0])
			}

			for j, label := range labels {
				if label == Ignore {
					continue
				}
				if label != next || w.IDs[i][j] != label {
					rt.Fatalf("window %d predicts %d, want %d", i, label, next)
				}
				if have := j; i > 0 && have < seqlen-stride && have < int(label) {
					rt.Fatalf("token %d has %d tokens before it, want %d", label, have, seqlen-stride)
				}

				next++
			}
		}

		if int(next) != n {
			rt.Fatalf("%d of %d tokens predicted", next-1, n-1)
		}
	})
}

func TestRecordForms(t *testing.T) {
	for in, want := range map[string]string{
		`"plain"`:                          "plain",
		`{"text":"t","prompt":"x"}`:        "t",
		`{"prompt":"p ","completion":"c"}`: "p c",
		`{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"text","text":"yo"}]},{"role":"tool","content":null}]}`: "user: hi\nassistant: yo\ntool: ",

		`{"id":3,"text":"\ud83d\ude00"}`: "😀",

		`{"instruction":"add","input":"1 2","output":"3"}`: "user: add\n\n1 2\nassistant: 3",
		`{"instruction":"sing","input":"","output":"la"}`:  "user: sing\nassistant: la",

		`{"conversations":[{"from":"system","value":"s"},{"from":"human","value":"hi"},{"from":"gpt","value":"yo"}]}`: "system: s\nuser: hi\nassistant: yo",
	} {
		got, err := parseRecord([]byte(in))
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestFaults(t *testing.T) {
	type fault struct {
		name, data string
		want       error
		says       string
	}

	for _, c := range []fault{
		{"empty.txt", "", ErrEmpty, "empty.txt"},
		{"none.json", " [ ]", ErrEmpty, "none.json"},
		{"white.jsonl", "\n\n", ErrEmpty, "white.jsonl"},
		{"short.txt", "hello", ErrShort, "6 tokens, a window of 10 needs 11"},
		{"short.jsonl", "\"abc\"\n\"abcdef\"\n", ErrShort, "none of the 2 documents has more than 10 tokens, the " +
			"longest has 7"},
		{"bad.jsonl", "\"" + strings.Repeat("a", 30) + "\"\n{\"text\": \n", ErrRecord, "line 2"},
		{"form.jsonl", "{\"txt\":\"a\"}\n", ErrRecord, "line 1"},
		{"number.jsonl", "12\n", ErrRecord, "line 1"},
		{"part.jsonl", `{"messages":[{"role":"u","content":[{"type":"image"}]}]}`, ErrRecord, "message 0"},
		{"stray.jsonl", "\"a\xffb\"\n", ErrUTF8, "line 1"},
		{"stray.txt", "aaaaaaaaaaaaaaaaaaaaa\xffb", ErrUTF8, "byte 21"},
		{"ids.json", "[[1,2],[3,999]]", ErrVocabulary, "row 1, column 1"},
		{"float.json", "[[1.5]]", ErrIDs, "row 0, column 0"},
		{"flat.json", "[1,2]", ErrIDs, "flat.json"},
		{"open.json", "[[1,2],[3", ErrIDs, "row 1"},
		{"tail.json", "[[1]] 2", ErrIDs, "follows"},
		{"none.json", "[[],[1]]", ErrIDs, "row 0 is empty"},
		{"x.safetensors", "\x08\x00\x00\x00\x00\x00\x00\x00{}      ", ErrIDs, "no tensor called"},
		{"cut.safetensors", "\xff\x00\x00\x00\x00\x00\x00\x00{}", ErrIDs, "header ends"},
		{"huge.safetensors", "\xff\xff\xff\xff\xff\xff\xff\x7f{}", ErrIDs, "header of"},
	} {
		path := write(t, c.name, []byte(c.data))
		_, err := Sample(ctx, path, byteTokenizer{}, SampleOptions{Samples: 60, SeqLen: 10})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) ||
			!strings.Contains(err.Error(), filepath.Base(c.name)) {
			t.Errorf("%s: %v; want %q saying %q", c.name, err, c.want, c.says)
		}
	}

	if _, err := Sample(ctx, t.TempDir(), byteTokenizer{}, SampleOptions{}); !errors.Is(err, ErrFolder) ||
		failure.IsUsage(err) {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Sample(ctx, write(t, "a.txt", []byte("a")), nil, SampleOptions{}); !errors.Is(err, ErrNoTokenizer) {
		t.Errorf("no tokenizer: %v", err)
	}

	if _, err := Sample(ctx, write(t, "a.txt", []byte(strings.Repeat("z", 40))), byteTokenizer{},
		SampleOptions{SeqLen: 8, VocabSize: 100}); !errors.Is(err, ErrVocabulary) {
		t.Errorf("small vocabulary: %v", err)
	}

	for _, o := range []CutOptions{
		{SeqLen: 1}, {Convention: "all"}, {Stride: 3}, {Convention: Rolling, SeqLen: 4, Stride: 4}, {Limit: -1},
	} {
		if _, err := Cut(ctx, write(t, "a.txt", []byte("abc")), byteTokenizer{}, o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}

	if _, err := Cut(ctx, write(t, "a.txt", []byte("abc")), byteTokenizer{}, CutOptions{SeqLen: 8}); !errors.Is(err,
		ErrShort) {
		t.Errorf("short text: %v", err)
	}
}

// tensorFile makes a .safetensors file with one tensor of ids.
func tensorFile(name, dtype string, rows, cols int, id func(i, j int) int64) []byte {
	var data []byte
	for i := range rows {
		for j := range cols {
			if dtype == "I64" {
				data = binary.LittleEndian.AppendUint64(data, uint64(id(i, j)))
			} else {
				data = binary.LittleEndian.AppendUint32(data, uint32(id(i, j)))
			}
		}
	}

	head := fmt.Sprintf(
		`{"__metadata__":{"a":"b"},"other":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},%q:{"dtype":%q,"shape":[%d,%d],"data_offsets":[3,%d]}}`,
		name, dtype, rows, cols, 3+len(data))
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	return append(append(append(out, head...), 9, 9, 9), data...)
}

func TestIDs(t *testing.T) {
	id := func(i, j int) int64 { return int64(10*i + j) }
	for _, c := range []struct{ tensor, dtype string }{{"calib_ids", "I64"}, {"input_ids", "I32"}} {
		path := write(t, "x.safetensors", tensorFile(c.tensor, c.dtype, 3, 5, id))
		w, err := Sample(ctx, path, nil, SampleOptions{Samples: 1, SeqLen: 2, VocabSize: 25})
		if err != nil {
			t.Fatal(err)
		}

		if w.Count != 3 || w.SeqLen != 5 || w.Mode != IDs || w.IDs[2][4] != 24 {
			t.Errorf("%v: got %+v", c, w)
		}

		if _, err := Sample(ctx, path, nil, SampleOptions{VocabSize: 24}); !errors.Is(err, ErrVocabulary) ||
			!strings.Contains(err.Error(), "row 2, column 4") {
			t.Errorf("%v: %v; want row 2, column 4 outside", c, err)
		}
	}

	path := write(t, "x.safetensors", tensorFile("eval_ids", "I64", 2, 7, id))
	w, err := Cut(ctx, path, nil, CutOptions{SeqLen: 3})
	if err != nil || w.Count != 4 || w.Dropped != 2 || w.SeqLen != 3 {
		t.Errorf("rows cut: %+v, %v", w, err)
	}

	w, err = Cut(ctx, path, nil, CutOptions{})
	if err != nil || w.Count != 2 || w.SeqLen != 7 || w.Labels != nil {
		t.Errorf("rows as they are: %+v, %v", w, err)
	}

	w, err = Cut(ctx, path, nil, CutOptions{Convention: Rolling, SeqLen: 4, Stride: 2})
	if err != nil || w.Count != 6 {
		t.Errorf("rows rolled over: %+v, %v", w, err)
	}

	if _, err = Sample(ctx, path, nil, SampleOptions{Tensor: "eval_ids"}); err != nil {
		t.Errorf("a tensor by name: %v", err)
	}
}

func TestHash(t *testing.T) {
	// printf '\2\0\0\0\1\0\0\0\2\0\0\0\1\0\0\0\3\0\0\0' | sha256sum
	const want = hashOfTwoRows
	if got := HashIDs([][]int32{{1, 2}, {3}}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUnpackingIsBounded(t *testing.T) {
	path := write(t, "bomb.txt.gz", bytes.Repeat([]byte("a"), 1<<20))
	s, err := openSource(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()

	s.limit = 1 << 16
	w := Windows{Count: 1, SeqLen: 4}
	if err := w.draw(ctx, s.text(byteTokenizer{}, 0, " ", &w), keepTokens); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestCancel(t *testing.T) {
	done, cancel := context.WithCancel(ctx)
	cancel()
	path := write(t, "a.txt", []byte(strings.Repeat("abc ", 100)))
	if _, err := Sample(done, path, byteTokenizer{}, SampleOptions{SeqLen: 5}); !errors.Is(err, context.Canceled) {
		t.Errorf("Sample: %v", err)
	}
	if _, err := Cut(done, path, byteTokenizer{}, CutOptions{SeqLen: 5}); !errors.Is(err, context.Canceled) {
		t.Errorf("Cut: %v", err)
	}
}

// TestHugeWindows: sizes that overflow when they are multiplied are refused before anything is allocated.
func TestHugeWindows(t *testing.T) {
	for _, o := range []SampleOptions{
		{Samples: math.MaxInt, SeqLen: 128},
		{Samples: 128, SeqLen: math.MaxInt},
		{Samples: math.MaxInt, SeqLen: math.MaxInt},
		{Samples: 1 << 32, SeqLen: 1 << 32},
	} {
		if _, err := Sample(t.Context(), "none.txt", nil, o); !errors.Is(err, ErrOptions) {
			t.Errorf("%d windows of %d: %v, want ErrOptions", o.Samples, o.SeqLen, err)
		}
	}
}

// TestRender: messages are written as the caller wants them, whether documents are drawn or joined; other records stay.
func TestRender(t *testing.T) {
	dir := place(t, map[string]string{"chat.jsonl": `{"messages": [{"role": "user", "content": "one two three four"}]}
{"text": "five six seven eight nine"}
`})
	var seen []string
	render := func(messages []Turn) (string, error) {
		seen = append(seen, messages[0].Role)
		return "<" + messages[0].Content + ">", nil
	}

	for _, join := range []bool{false, true} {
		seen = nil
		o := SampleOptions{Samples: 8, SeqLen: 2, Join: join, Render: render}
		with, err := Sample(context.Background(), filepath.Join(dir, "chat.jsonl"), byteTokenizer{}, o)
		if err != nil {
			t.Fatal(err)
		}

		o.Render = nil
		plain, err := Sample(context.Background(), filepath.Join(dir, "chat.jsonl"), byteTokenizer{}, o)
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) == 0 || with.Hash == plain.Hash {
			t.Errorf("join %v: rendered %v, and the windows are the same", join, seen)
		}
	}
}
