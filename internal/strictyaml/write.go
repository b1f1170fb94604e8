package strictyaml

import (
	"strconv"
	"strings"
)

// Marshal writes a tree as YAML: maps and lists of maps in blocks, lists of scalars in brackets. Comments and
// anchors are not kept.
func Marshal(n *Node) []byte {
	var b strings.Builder
	writeBlock(&b, n, 0)
	return []byte(b.String())
}

// writeBlock writes a node that begins a line, or follows "- ".
func writeBlock(b *strings.Builder, n *Node, indent int) {
	pad := strings.Repeat(" ", indent)
	switch {
	case n.Kind == Map && len(n.Entries) > 0:
		for i, e := range n.Entries {
			if i > 0 {
				b.WriteString(pad)
			}
			b.WriteString(scalar(e.Key, false) + ":")
			writeValue(b, e.Value, indent)
		}
	case n.Kind == List && !flat(n):
		for i, item := range n.Items {
			if i > 0 {
				b.WriteString(pad)
			}
			b.WriteString("- ")
			writeBlock(b, item, indent+2)
		}
	default:
		b.WriteString(inline(n) + "\n")
	}
}

// writeValue writes what follows a key.
func writeValue(b *strings.Builder, n *Node, indent int) {
	if (n.Kind == Map && len(n.Entries) > 0) || (n.Kind == List && !flat(n)) {
		b.WriteString("\n" + strings.Repeat(" ", indent+2))
		writeBlock(b, n, indent+2)
		return
	}
	b.WriteString(" " + inline(n) + "\n")
}

// flat tells a list that fits in brackets.
func flat(n *Node) bool {
	for _, item := range n.Items {
		if item.Kind != Scalar && item.Kind != Null {
			return false
		}
	}
	return true
}

// inline writes a scalar, a list of scalars or an empty map.
func inline(n *Node) string {
	switch n.Kind {
	case Scalar:
		return scalar(n.Text, n.Quoted)
	case List:
		parts := make([]string, len(n.Items))
		for i, item := range n.Items {
			parts[i] = inline(item)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case Map:
		return "{}"
	}

	return "null"
}

// scalar writes text plain where every reader takes it for the same thing, in double quotes otherwise.
func scalar(text string, quoted bool) string {
	if !quoted && plain(text) {
		return text
	}
	return quote(text)
}

// plain tells text that needs no quotes: letters, digits and the punctuation of paths and numbers.
func plain(text string) bool {
	// "..." at the beginning of a line ends a document
	if text == "" || strings.HasPrefix(text, "...") || text[0] == '-' && !isNumber(text) {
		return false
	}

	for i := range len(text) {
		c := text[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("_./+-", c) >= 0:
		default:
			return false
		}
	}

	return true
}

// isNumber tells text that reads as a number.
func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

// quote writes a double-quoted scalar with the escapes that YAML and JSON share.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')

	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff:
			b.WriteString(`\u` + strconv.FormatInt(0x10000+int64(r), 16)[1:])
		default:
			b.WriteRune(r)
		}
	}

	b.WriteByte('"')
	return b.String()
}
