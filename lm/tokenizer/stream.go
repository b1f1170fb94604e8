package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// StreamDecoder turns ids into text one at a time, as a generation yields them. What it returns, joined, is what Decode
// gives for all ids together, as long as the tokens form well-formed text. It belongs to one goroutine.
type StreamDecoder struct {
	t           *Tokenizer
	skipSpecial bool
	bytes       []byte  // byte-level decoders: bytes of an unfinished character
	byteLevel   bool    // tokens are bytes and need no context
	window      []int32 // other decoders: the ids that give shown, and those behind them
	shownIDs    int     // ids of the window that give shown
	shown       string  // text of these ids
}

// maxPending is the number of ids after which an unfinished character is given up: no character is longer than four
// bytes.
const maxPending = 8

// StreamDecoder returns a decoder for one generation. With skipSpecial special tokens give no text.
func (t *Tokenizer) StreamDecoder(skipSpecial bool) *StreamDecoder {
	return &StreamDecoder{t: t, skipSpecial: skipSpecial, byteLevel: t.byteDecoder}
}

// Next takes the next id and returns the text that is complete with it: always whole characters, and "" while a
// character lacks bytes.
func (d *StreamDecoder) Next(id int32) string {
	token, ok := d.t.Token(id)
	if !ok || d.skipSpecial && d.t.Special(id) {
		return ""
	}

	if d.byteLevel {
		d.bytes = append(d.bytes, tokenBytes(token)...)
		return d.take(len(d.bytes) - unfinished(d.bytes))
	}

	d.window = append(d.window, id)
	text := d.t.Decode(d.window, d.skipSpecial)
	waiting := len(d.window) - d.shownIDs
	if strings.HasSuffix(text, "\uFFFD") && waiting < maxPending {
		return ""
	}

	return d.advance(text)
}

// Flush returns the text of what is left at the end; an unfinished character gives U+FFFD.
func (d *StreamDecoder) Flush() string {
	if d.byteLevel {
		return d.take(len(d.bytes))
	}
	if len(d.window) == d.shownIDs {
		return ""
	}
	return d.advance(d.t.Decode(d.window, d.skipSpecial))
}

// take returns the first n bytes that wait.
func (d *StreamDecoder) take(n int) string {
	s := validUTF8(string(d.bytes[:n]))
	d.bytes = append(d.bytes[:0], d.bytes[n:]...)
	return s
}

// advance returns what text, that of the window, adds to what was shown, and keeps the ids behind as the context of
// the next ones.
func (d *StreamDecoder) advance(text string) string {
	fresh := strings.TrimPrefix(text, d.shown)
	d.window = append(d.window[:0], d.window[d.shownIDs:]...)
	d.shownIDs = len(d.window)
	d.shown = d.t.Decode(d.window, d.skipSpecial)
	return fresh
}

// unfinished returns the number of bytes at the end of b that are the beginning of a character.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		tail := b[len(b)-n:]
		if utf8.RuneStart(tail[0]) {
			if tail[0] >= utf8.RuneSelf && !utf8.FullRune(tail) {
				return n
			}
			return 0
		}
	}

	return 0
}
