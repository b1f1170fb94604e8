package pyvalue

import (
	"fmt"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/failure"
)

// ErrUTF8: the bytes of a text are not UTF-8.
var ErrUTF8 = failure.New("not valid UTF-8",
	"write the file anew, with the text decoded from the encoding that it has; rows count from 0")

// CheckUTF8 is an error that wraps [ErrUTF8] and says at which byte a text stops to be one.
func CheckUTF8(text string) error {
	if utf8.ValidString(text) { // which is fast
		return nil
	}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			return fmt.Errorf("%w at byte %d", ErrUTF8, i)
		}
		i += n
	}
	return nil
}
