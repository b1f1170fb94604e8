package prepare

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// libraryRow is a line of testdata/tokenizers.jsonl: a component of a tokenizer.json, a text, and what Hugging Face's
// tokenizers makes of it.
type libraryRow struct {
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Normalizer   json.RawMessage
	Text         string
	Pieces       []struct {
		Text       string
		Start, End int
	}
	Normal string
}

// TestAsLibrary: the same pieces, from the same bytes of the text, and the same normalized texts; whether offsets are
// wanted changes nothing.
func TestAsLibrary(t *testing.T) {
	data, err := os.ReadFile("testdata/tokenizers.jsonl")
	if err != nil {
		t.Fatal(err)
	}

	n := 0
	for line := range bytes.Lines(data) {
		var r libraryRow
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}

		n++
		if r.Normalizer != nil {
			r.checkNormal(t)
		} else {
			r.checkPieces(t)
		}
	}

	if n < 130 {
		t.Errorf("%d rows", n)
	}
}

func (r libraryRow) checkPieces(t *testing.T) {
	list, err := Splitters(value(t, string(r.PreTokenizer)))
	if err != nil {
		t.Errorf("%s: %v", r.PreTokenizer, err)
		return
	}

	plain, _ := split(t, list, r.Text, false)
	got, spans := split(t, list, r.Text, true)
	if len(got) != len(r.Pieces) || len(plain) != len(r.Pieces) {
		t.Errorf("%s on %q: %q, without offsets %q, want %+v", r.PreTokenizer, r.Text, got, plain, r.Pieces)
		return
	}

	for i, want := range r.Pieces {
		at := Span{want.Start, want.End}
		if got[i] != want.Text || plain[i] != want.Text || want.Text != "" && spans[i] != at {
			t.Errorf("%s on %q: piece %d is %q (%q without offsets) of %v, want %+v", r.PreTokenizer, r.Text, i, got[i],
				plain[i], spans[i], want)
		}
	}
}

func (r libraryRow) checkNormal(t *testing.T) {
	list, err := Normalizers(value(t, string(r.Normalizer)))
	if err != nil {
		t.Errorf("%s: %v", r.Normalizer, err)
		return
	}

	for _, track := range []bool{false, true} {
		p := Piece{Text: r.Text, First: true}
		for _, n := range list {
			if p, err = n.Normalize(p, track); err != nil {
				t.Fatal(err)
			}
		}

		if p.Text != r.Normal {
			t.Errorf("%s on %q: %q, want %q", r.Normalizer, r.Text, p.Text, r.Normal)
		}
		if track && p.origin != nil && len(p.origin) != len(p.Text) {
			t.Errorf("%s on %q: %d bytes have %d origins", r.Normalizer, r.Text, len(p.Text), len(p.origin))
		}
	}
}
