package prunecmd

import "strings"

// folderName names the model of a run: its target and method, and the beginning of its fingerprint where they
// do not fit into a name.
func folderName(w Work) string {
	label := w.Target + "-" + w.Method
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("+-.@", r) {
			return r
		}
		return '_'
	}, strings.ReplaceAll(label, ":", "-"))

	if len(plain) > 60 {
		plain = plain[:60]
	}
	if plain != strings.ReplaceAll(label, ":", "-") && len(w.Key) >= 8 {
		plain += "-" + w.Key[:8]
	}

	return plain
}
