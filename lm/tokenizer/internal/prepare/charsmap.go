package prepare

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
)

// charsMap is SentencePiece's precompiled_charsmap: a double-array trie (darts-clone) from character sequences to
// places in a list of zero-terminated replacements.
type charsMap struct {
	units []uint32
	list  string
	plain [utf8.RuneSelf]bool // ASCII characters that stay as they are
}

// longestCluster is the length in bytes from which a cluster of characters is not looked up as a whole.
const longestCluster = 6

func newCharsMap(n *config.Node) Normalizer {
	m := &charsMap{}
	if !n.Has("precompiled_charsmap") {
		return runeMap(func(rune) (string, bool) { return "", false })
	}

	data, err := base64.StdEncoding.DecodeString(n.Text("precompiled_charsmap", ""))
	if err == nil {
		err = m.parse(data)
	}
	if err != nil {
		n.Fail(fmt.Errorf("%w: %w", config.ErrSyntax, err), "precompiled_charsmap")
		return m
	}

	for i := range m.plain {
		_, found := m.lookup(asciiStrings[i])
		m.plain[i] = !found
	}

	return m
}

// parse reads the size of the trie in bytes, the trie, and the replacements.
func (m *charsMap) parse(data []byte) error {
	if len(data) < 4 {
		return fmt.Errorf("%d bytes are too few", len(data))
	}

	size := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if size%4 != 0 || uint64(size) > uint64(len(data)) {
		return fmt.Errorf("trie of %d bytes in %d", size, len(data))
	}

	m.units = make([]uint32, size/4)
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}

	m.list = string(data[size:])
	if !utf8.ValidString(m.list) {
		return fmt.Errorf("replacements are not UTF-8")
	}

	return nil
}

// lookup returns the replacement of the shortest sequence in the map that s begins with: the rule of the format's
// reference implementation.
func (m *charsMap) lookup(s string) (string, bool) {
	if len(m.units) == 0 {
		return "", false
	}

	at := unitOffset(m.units[0])
	for i := range len(s) {
		if s[i] == 0 {
			break
		}

		at ^= uint32(s[i])
		if uint64(at) >= uint64(len(m.units)) {
			break
		}

		u := m.units[at]
		if u&(1<<31|0xFF) != uint32(s[i]) {
			break
		}

		at ^= unitOffset(u)
		if u>>8&1 == 1 && uint64(at) < uint64(len(m.units)) {
			return m.replacement(m.units[at] &^ (1 << 31))
		}
	}

	return "", false
}

// unitOffset is where the children of a trie unit lie, relative to it.
func unitOffset(u uint32) uint32 { return u >> 10 << (u & (1 << 9) >> 6) }

func (m *charsMap) replacement(at uint32) (string, bool) {
	if uint64(at) >= uint64(len(m.list)) || !utf8.RuneStart(m.list[at]) {
		return "", uint64(at) == uint64(len(m.list))
	}
	s, _, _ := strings.Cut(m.list[at:], "\x00")
	return s, true
}

// Normalize implements Normalizer.
func (m *charsMap) Normalize(p Piece, track bool) (Piece, error) {
	var e *editor
	s := p.Text
	from := 0
	change := func(a, b int) bool {
		with, ok := m.lookup(s[a:b])
		if !ok {
			return false
		}

		if e == nil {
			e = edit(p, track)
		}

		e.keep(from, a)
		e.put(with, a, b)
		from = b
		return true
	}

	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf && m.plain[s[i]] && (i+1 == len(s) || s[i+1] < utf8.RuneSelf) {
			i++
			continue
		}

		end := i + chars.ClusterLen(s[i:])
		if end-i < longestCluster && change(i, end) {
			i = end
			continue
		}

		for i < end {
			n := chars.RuneLen(s, i)
			change(i, i+n)
			i += n
		}
	}

	if e == nil {
		return p, nil
	}

	e.keep(from, len(s))
	q := e.piece()
	q.First = p.First // also when the first character is gone: the reference implementation says so

	return q, nil
}
