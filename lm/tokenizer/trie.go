package tokenizer

import "math/bits"

// trie maps byte strings to values. Its edges (node, byte) → node lie in one open-addressing table, which is compact
// for large vocabularies and quick to build. The zero value is empty; node 0 is the root.
type trie struct {
	root   [256]int32 // the root's edges, 0: none
	slots  []edge     // all other edges; a power of two, at most half full
	used   int
	shift  uint
	values []int32 // by node: value + 1; 0: no string ends here
}

type edge struct {
	key  uint64 // node << 8 | byte; 0: empty
	node int32
}

func (t *trie) find(key uint64) *edge {
	i := key * 0x9E3779B97F4A7C15 >> t.shift
	for {
		e := &t.slots[i]
		if e.key == key || e.key == 0 {
			return e
		}
		i = (i + 1) & uint64(len(t.slots)-1)
	}
}

// child returns the node behind byte b, 0 if there is none.
func (t *trie) child(node int32, b byte) int32 {
	if node == 0 {
		return t.root[b]
	}
	if len(t.slots) == 0 {
		return 0
	}
	return t.find(uint64(node)<<8 | uint64(b)).node
}

// insert gives s the value v; a later value for the same string replaces it.
func (t *trie) insert(s string, v int32) {
	if len(t.values) == 0 {
		t.values = []int32{0}
	}

	node := int32(0)
	for i := range len(s) {
		next := t.child(node, s[i])
		if next == 0 {
			next = int32(len(t.values))
			t.values = append(t.values, 0)
			t.link(node, s[i], next)
		}

		node = next
	}

	t.values[node] = v + 1
}

func (t *trie) link(node int32, b byte, next int32) {
	if node == 0 {
		t.root[b] = next
		return
	}
	if 2*t.used >= len(t.slots) {
		t.grow()
	}
	t.used++
	*t.find(uint64(node)<<8 | uint64(b)) = edge{uint64(node)<<8 | uint64(b), next}
}

func (t *trie) grow() {
	old := t.slots
	t.slots = make([]edge, max(64, 2*len(old)))
	t.shift = uint(65 - bits.Len(uint(len(t.slots))))
	for _, e := range old {
		if e.key != 0 {
			*t.find(e.key) = e
		}
	}
}

// walk returns the node of s from a node on, false if there is none.
func (t *trie) walk(node int32, s string) (int32, bool) {
	for i := range len(s) {
		if node = t.child(node, s[i]); node == 0 {
			return 0, false
		}
	}
	return node, true
}

// longest returns the value and length of the longest string of the trie that s begins with; length 0: none.
func (t *trie) longest(s string) (value int32, length int) { return t.longestFrom(0, s) }

// longestFrom is longest below a node: the length is that of the part of s.
func (t *trie) longestFrom(node int32, s string) (value int32, length int) {
	for i := range len(s) {
		if node = t.child(node, s[i]); node == 0 {
			break
		}
		if v := t.values[node]; v != 0 {
			value, length = v-1, i+1
		}
	}
	return value, length
}
