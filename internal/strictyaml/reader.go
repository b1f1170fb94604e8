package strictyaml

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Reader converts nodes to the types that a schema wants and collects the faults.
type Reader struct {
	problems Problems
}

// NewReader gives a reader for the documents of a file.
func (s *Source) NewReader() *Reader {
	return &Reader{problems: Problems{File: s.File, lines: s.lines}}
}

// Add notes a fault at a place: kind is one of this package's ways of failing.
func (r *Reader) Add(at Place, kind error, format string, args ...any) {
	r.problems.add(Problem{Place: at, Message: fmt.Sprintf(format, args...), Err: kind})
}

// withdraw takes back that something is missing, because another fault explains it.
func (r *Reader) withdraw(at Place, message string) {
	r.problems.List = slices.DeleteFunc(r.problems.List, func(p Problem) bool {
		return p.Place == at && p.Message == message && errors.Is(p.Err, ErrMissingKey)
	})
}

// Err gives the faults so far as a *Problems, nil if there are none.
func (r *Reader) Err() error {
	if len(r.problems.List) == 0 {
		return nil
	}
	out := r.problems
	out.List = slices.Clone(out.List)
	out.sort()
	return &out
}

// Text reads a scalar as text.
func (r *Reader) Text(n *Node, what string) string {
	if n.Kind != Scalar {
		r.Add(n.Place, ErrType, "%s must be text, not %s", what, n.Kind)
		return ""
	}
	return n.Text
}

// Number reads a finite number. Numbers given as text count, and the truth values as 1 and 0, as in the programs that
// recipes come from.
func (r *Reader) Number(n *Node, what string) float64 {
	x, ok := n.Number()
	if !ok {
		r.Add(n.Place, ErrType, "%s must be a number, not %s", what, n.describe())
	}
	return x
}

// Number gives the finite number that a scalar stands for; see Reader.Number.
func (n *Node) Number() (float64, bool) {
	if n.Kind != Scalar {
		return 0, false
	}

	text := strings.TrimSpace(n.Text)
	if x, err := strconv.ParseFloat(text, 64); err == nil && !strings.ContainsAny(text, "xXpP") {
		return x, !math.IsNaN(x) && !math.IsInf(x, 0)
	}
	if x, err := strconv.ParseInt(text, 0, 64); err == nil && !n.Quoted {
		return float64(x), true
	}

	if b, ok := n.Bool(); ok && !n.Quoted {
		if b {
			return 1, true
		}
		return 0, true
	}

	return 0, false
}

// Int reads a whole number between low and high.
func (r *Reader) Int(n *Node, what string, low, high int) int {
	x, ok := n.Number()
	if !ok || x != math.Trunc(x) {
		r.Add(n.Place, ErrType, "%s must be a whole number, not %s", what, n.describe())
		return low
	}

	if x < float64(low) || x > float64(high) {
		r.Add(n.Place, ErrValue, "%s must be from %d to %d, not %s", what, low, high, n.describe())
		return low
	}

	return int(x)
}

// Bool reads a truth value: true, yes, on or 1, and their opposites.
func (r *Reader) Bool(n *Node, what string) bool {
	b, ok := n.Bool()
	if !ok {
		r.Add(n.Place, ErrType, "%s must be true or false, not %s", what, n.describe())
	}
	return b
}

// Bool gives the truth value that a scalar stands for; see Reader.Bool.
func (n *Node) Bool() (value, ok bool) {
	if n.Kind != Scalar {
		return false, false
	}

	switch strings.ToLower(n.Text) {
	case "true", "yes", "on", "1", "1.0", "y", "t":
		return true, true
	case "false", "no", "off", "0", "0.0", "n", "f":
		return false, true
	}

	return false, false
}

// List reads a list; for anything else the fault is noted and the result is empty.
func (r *Reader) List(n *Node, what string) []*Node {
	if n.Kind != List {
		r.Add(n.Place, ErrType, "%s must be a list, not %s", what, n.describe())
	}
	return n.Items
}

// Choice reads text that must be one of the known words.
func (r *Reader) Choice(n *Node, what string, known ...string) string {
	text := r.Text(n, what)
	if n.Kind == Scalar && !slices.Contains(known, text) {
		r.Add(n.Place, ErrValue, "%s must be one of %s, not %q", what, strings.Join(known, ", "), text)
	}
	return text
}

// String names a kind for messages.
func (k Kind) String() string {
	return [...]string{Null: "nothing", Scalar: "a scalar", List: "a list", Map: "a map"}[k]
}

// describe names a value for messages.
func (n *Node) describe() string {
	if n.Kind != Scalar {
		return n.Kind.String()
	}
	if text := []rune(n.Text); len(text) > 40 {
		return strconv.Quote(string(text[:40]) + "…")
	}
	return strconv.Quote(n.Text)
}

// Object is a map while a schema takes it apart: keys that were not asked for are unknown.
type Object struct {
	r     *Reader
	node  *Node
	what  string
	asked []string
}

// Object begins to read a map; what names it in messages ("a slice"). Anything but a map is noted as a fault and reads
// as one without keys.
func (r *Reader) Object(n *Node, what string) *Object {
	if n.Kind != Map {
		r.Add(n.Place, ErrType, "%s must be a map of keys, not %s", what, n.describe())
		n = &Node{Place: n.Place}
	}
	return &Object{r: r, node: n, what: what}
}

// Get gives the value of a key, nil if it is absent or null.
func (o *Object) Get(key string) *Node {
	if !slices.Contains(o.asked, key) {
		o.asked = append(o.asked, key)
	}
	n := o.node.Get(key)
	if n == nil || n.Kind == Null {
		return nil
	}
	return n
}

// Need is Get for a key that must be there.
func (o *Object) Need(key string) *Node {
	n := o.Get(key)
	if n == nil && o.node.Kind == Map {
		o.r.Add(o.node.Place, ErrMissingKey, missingKey, o.what, key)
	}
	return n
}

// missingKey says what Need misses.
const missingKey = "%s needs the key %q"

// Close notes the keys that nobody asked for. A key that is only misspelt is not said to be missing too.
func (o *Object) Close() {
	for _, e := range o.node.Entries {
		if !slices.Contains(o.asked, e.Key) {
			if near := Near(e.Key, o.asked); near != "" {
				o.r.withdraw(o.node.Place, fmt.Sprintf(missingKey, o.what, near))
			}
			o.r.Add(e.Place, ErrUnknownKey, "unknown key %q in %s%s", e.Key, o.what, Suggest(e.Key, o.asked))
		}
	}
}

// Suggest ends a message about an unknown word: the known word that is nearest to it if one is near, or all of
// them; nothing if there are none.
func Suggest(word string, known []string) string {
	if near := Near(word, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	if len(known) == 0 {
		return ""
	}

	sorted := slices.Sorted(slices.Values(known))
	return "; known: " + strings.Join(sorted, ", ")
}

// Near is the known word that an unknown one is likely to be a misspelling of; "" if none is near.
func Near(word string, known []string) string {
	best, least := "", 1+len(word)/3
	for _, k := range known {
		if d := Distance(word, k); d <= least && (best == "" || d < least) {
			best, least = k, d
		}
	}
	return best
}

// maxWord bounds the words that are compared letter by letter.
const maxWord = 64

// Distance counts the letters to insert, delete, replace or swap with their neighbour that turn a into b.
func Distance(a, b string) int {
	if len(a) > maxWord || len(b) > maxWord {
		return maxWord
	}

	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}

	for j := range rows[0] {
		rows[0][j] = j
	}

	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}

			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}

	return rows[len(a)][len(b)]
}
