package library

import (
	"fmt"
	"strings"
	"time"
)

// timeForms are the directives of strftime as layouts of package time.
var timeForms = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'H': "15", 'I': "03", 'j': "002", 'm': "01",
	'M': "04", 'p': "PM",
	'S': "05", 'y': "06", 'Y': "2006", 'z': "-0700", 'Z': "MST", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06",
	'e': "_2",
}

// strftime writes a time as Python's strftime does.
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}

		plain := false
		i++
		if i < len(format) && format[i] == '-' { // no zeros in front
			plain = true
			i++
		}

		if i == len(format) {
			return "", fmt.Errorf("%w: strftime_now(%q) ends in a directive", ErrType, format)
		}

		if format[i] == '%' {
			b.WriteByte('%')
			continue
		}

		layout, ok := timeForms[format[i]]
		if !ok {
			return "", fmt.Errorf("%w: %%%c in strftime_now", ErrUnknown, format[i])
		}

		text := t.Format(layout)
		if plain && len(text) > 1 {
			text = strings.TrimLeft(text[:len(text)-1], "0 ") + text[len(text)-1:]
		}

		b.WriteString(text)
	}

	return b.String(), nil
}
