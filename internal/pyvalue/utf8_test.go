package pyvalue

import (
	"errors"
	"testing"
)

// TestCheckUTF8: a replacement character that is written out is a text; a stray or a cut byte is found at its place.
func TestCheckUTF8(t *testing.T) {
	for _, text := range []string{"", "abc", "é\ufffd€😀"} {
		if err := CheckUTF8(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"\xff": "byte 0", "caf\xe9 au lait": "byte 3", "é€\xe2\x82": "byte 5", "\xed\xa0\x80": "byte 0",
	} {
		want = "not valid UTF-8 at " + want
		if err := CheckUTF8(text); !errors.Is(err, ErrUTF8) || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
