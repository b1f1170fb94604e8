package tokenizer_test

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// golden holds what Hugging Face tokenizers gave for every string of inputs.json.
type golden struct {
	IDs     [][]int32 // without the template's tokens; null: it failed
	Special [][]int32 // with them; null: the same
	Spans   [][]int   // of IDs: start, end, start, end …; null: not recorded
	Decoded []*string // of IDs; null: the input
	Skipped []*string // of IDs, without special tokens; null: as Decoded
	Pairs   []struct {
		A, B       int // places in inputs.json
		IDs, Types []int32
	}
}

// zoo is the folder of the tokenizers for TestZoo: our own, or a larger collection made the same way.
func zoo() string { return cmp.Or(os.Getenv("COMPRESS_TOKENIZER_ZOO"), "testdata") }

func TestZoo(t *testing.T) {
	var inputs []string
	readJSON(t, filepath.Join(zoo(), "golden/inputs.json"), &inputs)
	files, _ := filepath.Glob(filepath.Join(zoo(), "*.json"))
	if len(files) == 0 {
		t.Fatalf("no tokenizers in %s", zoo())
	}

	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			var want golden
			readJSON(t, filepath.Join(zoo(), "golden", name+".json"), &want)
			checkGolden(t, load(t, file), inputs, want)
		})
	}
}

func checkGolden(t *testing.T, tok *tokenizer.Tokenizer, inputs []string, want golden) {
	bad := map[string]int{}
	report := func(kind string, s string, got, want any) {
		bad[kind]++
		if bad[kind] <= 3 {
			t.Errorf("%s of %q:\n got %v\nwant %v", kind, s, got, want)
		}
	}

	for i, s := range inputs {
		ids, spans, err := tok.EncodeOffsets(s, tokenizer.EncodeOptions{NoSpecial: true})
		if (err != nil) != (want.IDs[i] == nil) {
			report("error", s, err, want.IDs[i])
		}

		if err != nil || want.IDs[i] == nil {
			continue
		}

		if !slices.Equal(ids, want.IDs[i]) {
			report("ids with offsets", s, ids, want.IDs[i])
			continue
		}

		plain, err := tok.Encode(s, tokenizer.EncodeOptions{NoSpecial: true})
		if err != nil || !slices.Equal(plain, want.IDs[i]) {
			report("ids", s, plain, want.IDs[i])
		}

		wantSpecial := want.Special[i]
		if wantSpecial == nil {
			wantSpecial = want.IDs[i]
		}

		special, err := tok.Encode(s, tokenizer.EncodeOptions{})
		if err != nil || !slices.Equal(special, wantSpecial) {
			report("ids with template", s, special, wantSpecial)
		}

		decoded := *cmp.Or(want.Decoded[i], &s)
		if got := tok.Decode(ids, false); got != decoded {
			report("text", s, got, decoded)
		}

		skipped := *cmp.Or(want.Skipped[i], &decoded)
		if got := tok.Decode(ids, true); got != skipped {
			report("text without special tokens", s, got, skipped)
		}
		if want.Spans[i] != nil && !covers(spans, want.Spans[i]) {
			report("spans", s, spans, want.Spans[i])
		}
	}

	for _, p := range want.Pairs {
		ids, types, err := tok.EncodePair(inputs[p.A], inputs[p.B], tokenizer.EncodeOptions{})
		if err != nil || !slices.Equal(ids, p.IDs) || !slices.Equal(types, p.Types) {
			report("pair", inputs[p.A]+" / "+inputs[p.B], [][]int32{ids, types}, [][]int32{p.IDs, p.Types})
		}
	}

	for kind, n := range bad {
		t.Errorf("%d × %s of %d", n, kind, len(inputs))
	}
}

// covers reports whether spans hold what they should. Where a normalizer composes or replaces characters, the reference
// gives a token only one of them and this package all.
func covers(spans []tokenizer.Span, want []int) bool {
	if len(want) != 2*len(spans) {
		return false
	}
	for i, sp := range spans {
		if sp.Start > want[2*i] || sp.End < want[2*i+1] {
			return false
		}
	}
	return true
}
