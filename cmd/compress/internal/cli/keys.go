package cli

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
)

// maxKeys bounds a file with keys, in bytes.
const maxKeys = 1 << 20

// Keys reads a file with a key on each line, at least one. What the file holds is in no error.
func Keys(flag, file string, least int) (keys []string, err error) {
	text, err := safefile.ReadFile(file, maxKeys)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}

	// Some editors begin files with a mark of the encoding, which no client sends.
	for i, line := range strings.Split(strings.TrimPrefix(string(text), "\ufeff"), "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if len(line) < least || strings.ContainsAny(line, " \t") {
			return nil, Usagef("--%s: %s: line %d: want a key of at least %d characters without blanks", flag, file,
				i+1, least)
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, Usagef("--%s: %s has no key: want one on each line", flag, file)
	}
	return keys, nil
}
