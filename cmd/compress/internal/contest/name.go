package contest

import "strings"

// Folder names the model of a run: its target and method, and the beginning of its fingerprint where they do not fit into
// a name.
func Folder(target, method, key string) string {
	label := target + "-" + method
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("+-.@", r) {
			return r
		}
		return '_'
	}, strings.ReplaceAll(label, ":", "-"))
	if len(plain) > 60 {
		plain = plain[:60]
	}
	if plain != strings.ReplaceAll(label, ":", "-") && len(key) >= 8 {
		plain += "-" + key[:8]
	}
	return plain
}
