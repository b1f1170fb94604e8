package strictyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"pgregory.net/rapid"
)

func parseOne(t testing.TB, text string) *Node {
	t.Helper()
	src, err := Parse("recipe.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if len(src.Documents) != 1 {
		t.Fatalf("%d documents in %q", len(src.Documents), text)
	}
	return src.Documents[0]
}

func TestParseReadsEveryFormOfValue(t *testing.T) {
	n := parseOne(t, `# a comment
plain: some text
number: 1e-09
quoted: "5e-1"
single: 'it''s'
block: |
  two
  lines
flow: [1, 2.5, {a: b}]
list:
  - x
  - y: 1
    z: ~
empty:
`)

	for key, want := range map[string]string{
		"plain": "some text", "number": "1e-09", "quoted": "5e-1", "single": "it's", "block": "two\nlines\n",
	} {
		if got := n.Get(key); got == nil || got.Kind != Scalar || got.Text != want {
			t.Errorf("%s: %+v, want %q", key, got, want)
		}
	}

	if !n.Get("quoted").Quoted || n.Get("plain").Quoted || !n.Get("block").Quoted {
		t.Error("what stands in quotes is not told apart")
	}
	if f := n.Get("flow"); f.Kind != List || len(f.Items) != 3 || f.Items[2].Get("a").Text != "b" {
		t.Errorf("flow: %+v", f)
	}
	if l := n.Get("list"); l.Kind != List || l.Items[1].Get("y").Text != "1" || l.Items[1].Get("z").Kind != Null {
		t.Errorf("list: %+v", l)
	}
	if e := n.Get("empty"); e.Kind != Null || e.Line == 0 {
		t.Errorf("empty: %+v", e)
	}
	if at := n.Get("list").Items[1].Get("y"); at.Line != 12 || at.Column != 8 {
		t.Errorf("y is at %v", at.Place)
	}
}

func TestParseResolvesAliasesAndMergeKeys(t *testing.T) {
	n := parseOne(t, "a: &x {p: 1, q: 2}\nb: *x\nc:\n  <<: *x\n  q: 3\nd:\n  <<: [*x, {r: 4}]\n")
	if n.Get("b").Get("p").Text != "1" || n.Get("c").Get("q").Text != "3" || n.Get("c").Get("p").Text != "1" ||
		n.Get("d").Get("r").Text != "4" {
		t.Errorf("%+v", n)
	}
}

func TestParseKeepsDocumentsApart(t *testing.T) {
	src, err := Parse("r.yaml", []byte("---\na: &x 1\n---\n---\nb: 2\n...\n"))
	if err != nil || len(src.Documents) != 2 || src.Documents[1].Get("b") == nil {
		t.Fatalf("%v %+v", err, src)
	}
	if _, err := Parse("r.yaml", []byte("a: &x 1\n---\nb: *x\n")); !errors.Is(err, ErrSyntax) {
		t.Errorf("an alias reached into another document: %v", err)
	}
}

// bomb is a map of levels in which each refers to the one before ten times.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n")
	for i := 1; i < levels; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	return b.String()
}

func TestParseRefusesHostileText(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		kind error
	}{
		"not UTF-8":          {"a: \xff", ErrSyntax},
		"too long":           {strings.Repeat("# x\n", MaxBytes/4+1), ErrLimit},
		"brackets":           {strings.Repeat("[", 100000), ErrLimit},
		"braces":             {strings.Repeat("{a: ", 100000), ErrLimit},
		"closed brackets":    {"a: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), ErrLimit},
		"brackets on lines":  {strings.Repeat("[\n", 100000), ErrLimit},
		"dashes":             {strings.Repeat("- ", 100000) + "x", ErrLimit},
		"question marks":     {strings.Repeat("? ", 100000) + "x", ErrLimit},
		"indentation":        {staircase(1200), ErrLimit},
		"alias bomb":         {bomb(12), ErrLimit},
		"alias of itself":    {"a: &a [*a]", ErrSyntax},
		"duplicate key":      {"a: 1\nb: 2\na: 3\n", ErrDuplicateKey},
		"unclosed quote":     {"a: \"x\nb: 2\n", ErrSyntax},
		"tab as indentation": {"a:\n\tb: 1\n", ErrSyntax},
		"custom tag":         {"a: !!python/object:os.system x", ErrSyntax},
		"map as key":         {"{a: b}: c", ErrSyntax},
	} {
		_, err := Parse("recipe.yaml", []byte(c.text))
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
}

// tree draws a document of at most the given depth.
func tree(t *rapid.T, depth int) any {
	kinds := 2
	if depth > 0 {
		kinds = 4
	}

	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]string{
			"", "a", "x: y - z", "it's [so]", "- ? {", "two\nlines", "true", "#",
			"ä, ö",
		}).Draw(t, "text")
	case 1:
		return rapid.IntRange(-5, 1000).Draw(t, "number")
	case 2:
		list := []any{}
		for range rapid.IntRange(0, widest(depth)).Draw(t, "items") {
			list = append(list, tree(t, rapid.IntRange(0, depth-1).Draw(t, "depth")))
		}
		return list
	}

	m := map[string]any{}
	for i := range rapid.IntRange(0, widest(depth)).Draw(t, "entries") {
		m[fmt.Sprintf("key %d", i)] = tree(t, rapid.IntRange(0, min(depth-1, 1)).Draw(t, "depth"))
	}

	return m
}

// widest bounds the entries of a level: the lowest ones are wide enough to have more than the levels that are
// allowed, side by side.
func widest(depth int) int {
	if depth <= 1 {
		return 2 * maxDepth
	}
	return 5
}

// A document is the same in blocks and in brackets: on one line, on many, and as this package writes it.
func TestStylesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := map[string]any{"top": tree(t, 3)}
		flow, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}

		var spaced bytes.Buffer // as Python's json.dumps writes it, whose colons YAML knows
		if err := json.Indent(&spaced, flow, "", " "); err != nil {
			t.Fatal(err)
		}

		python := strings.ReplaceAll(string(flow), "\":", "\": ")
		first, err := Parse("a.yaml", []byte(python))
		if err != nil {
			var p *Problems
			if errors.As(err, &p) && strings.Contains(p.Error(), "words and signs") {
				t.Skip("larger than is read")
			}
			t.Fatalf("%v\n%.300s", err, python)
		}

		want := string(Marshal(first.Documents[0]))
		for name, text := range map[string]string{"indented": spaced.String(), "blocks": want} {
			src, err := Parse("a.yaml", []byte(text))
			if err != nil {
				t.Fatalf("%s: %v\n%.300s", name, err, text)
			}

			if got := string(Marshal(src.Documents[0])); got != want {
				t.Fatalf("%s: %.300s\nwant %.300s", name, got, want)
			}
		}
	})
}

// What counts is how deep a document is, not how much of it stands on a line.
func TestDepthIsCounted(t *testing.T) {
	entries := strings.TrimSuffix(strings.Repeat(`{"a": {"b": [1, "x: y"]}}, `, 500), ", ")
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for name, c := range map[string]struct {
		text string
		fine bool
	}{
		"wide, in brackets":      {`{"list": [` + entries + `]}`, true},
		"prose with colons":      {"text: \"" + strings.Repeat("Q: a - b ", 500) + "\"", true},
		"prose in a block":       {"text: |\n  " + strings.Repeat("[ - a: ", 500), true},
		"lists at their key":     {"a:\n- b:\n  - c:\n    - d\n", true},
		"as deep as allowed":     {nested(maxDepth), true},
		"one deeper":             {nested(maxDepth + 1), false},
		"pairs in lists":         {strings.Repeat("[a: ", maxDepth), false},
		"dashes":                 {strings.Repeat("- ", maxDepth+1) + "x", false},
		"stairs":                 {staircase(maxDepth + 1), false},
		"stairs, then a bracket": {staircase(maxDepth-1) + strings.Repeat(" ", maxDepth) + "[[1]]", false},
		"a million of brackets":  {strings.Repeat("[", MaxBytes), false},
		"a million in pairs":     {strings.Repeat("[{", MaxBytes/2), false},
		"keys on a line":         {strings.Repeat("a: ", MaxBytes/3), false},
	} {
		_, err := Parse("a.yaml", []byte(c.text))
		if c.fine && err != nil || !c.fine && !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// staircase indents every line one further than the last.
func staircase(lines int) string {
	var b strings.Builder
	for i := range lines {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestProblemsPointIntoTheFile(t *testing.T) {
	src, err := Parse("recipe.yaml", []byte("models:\n  - model: a\n    wieght: heavy\n"))
	if err != nil {
		t.Fatal(err)
	}

	r := src.NewReader()
	top := r.Object(src.Documents[0], "a recipe")
	for _, item := range r.List(top.Need("models"), "models") {
		o := r.Object(item, "a model")
		r.Text(o.Need("model"), "model")
		if w := o.Get("weight"); w != nil {
			t.Error("weight found")
		}

		r.Number(item.Get("wieght"), "weight")
		o.Close()
	}

	top.Need("merge_method")
	top.Close()
	want := `recipe.yaml:1:1: a recipe needs the key "merge_method"
     1 | models:
       | ^
recipe.yaml:3:5: unknown key "wieght" in a model; did you mean "weight"?
     2 |   - model: a
     3 |     wieght: heavy
       |     ^
recipe.yaml:3:13: weight must be a number, not "heavy"
     2 |   - model: a
     3 |     wieght: heavy
       |             ^
`

	var p *Problems
	if err := r.Err(); !errors.As(err, &p) || p.Excerpts() != want {
		t.Errorf("%v\n%s", err, p.Excerpts())
	}
	if !errors.Is(p, ErrUnknownKey) || !errors.Is(p, ErrMissingKey) || errors.Is(p, ErrLimit) {
		t.Error("the kinds of faults are lost")
	}
}

func TestScalarsConvertAsInTheProgramsRecipesComeFrom(t *testing.T) {
	for text, want := range map[string]float64{
		"1": 1, "-0.5": -0.5, "4e-1": 0.4, "'5e-1'": 0.5, "1_000": 1000, "0x10": 16, "true": 1, ".5": 0.5, "+2": 2,
		"1.": 1,
	} {
		if got, ok := parseOne(t, "a: "+text).Get("a").Number(); !ok || got != want {
			t.Errorf("%s: %v %v", text, got, ok)
		}
	}

	for _, text := range []string{"heavy", ".inf", ".nan", "1e999", "'true'", "[1]", "1.2.3", "inf", "nan", "0x1p-2"} {
		if got, ok := parseOne(t, "a: "+text).Get("a").Number(); ok {
			t.Errorf("%s counts as %v", text, got)
		}
	}

	for text, want := range map[string]bool{"true": true, "no": false, "On": true, "0": false, "'yes'": true} {
		if got, ok := parseOne(t, "a: "+text).Get("a").Bool(); !ok || got != want {
			t.Errorf("%s: %v %v", text, got, ok)
		}
	}
}

// drawNode draws a tree as the parser would give it.
func drawNode(t *rapid.T, depth int) *Node {
	kind := Kind(rapid.IntRange(0, 3).Draw(t, "kind"))
	if depth == 0 && kind > Scalar {
		kind = Scalar
	}

	n := &Node{Kind: kind}
	switch kind {
	case Scalar:
		n.Text = rapid.StringMatching(`[ -~é\n\t"\\]{0,12}`).Draw(t, "text")
		n.Quoted = true
	case List:
		for range rapid.IntRange(0, 4).Draw(t, "items") {
			n.Items = append(n.Items, drawNode(t, depth-1))
		}
	case Map:
		for _, key := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z_:<# ]{1,8}`), 0, 4,
			func(s string) string { return s }).Draw(t, "keys") {
			n.Entries = append(n.Entries, Entry{Key: key, Value: drawNode(t, depth-1)})
		}
	}

	return n
}

// same compares trees without places.
func same(a, b *Node) bool {
	if a.Kind != b.Kind || a.Text != b.Text || len(a.Items) != len(b.Items) || len(a.Entries) != len(b.Entries) {
		return false
	}

	for i := range a.Items {
		if !same(a.Items[i], b.Items[i]) {
			return false
		}
	}

	for i := range a.Entries {
		if a.Entries[i].Key != b.Entries[i].Key || !same(a.Entries[i].Value, b.Entries[i].Value) {
			return false
		}
	}

	return true
}

func TestMarshalIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &Node{Kind: Map, Entries: []Entry{{Key: "top", Value: drawNode(t, 4)}}}
		text := Marshal(n)
		src, err := Parse("x", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if len(src.Documents) != 1 || !same(n, src.Documents[0]) {
			t.Fatalf("came back different:\n%s", text)
		}
	})
}

// FuzzParse: whatever the text, Parse ends with a bounded tree or an error.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"a: 1", "a: &x [1, 2]\nb: *x", "- - - x", "? a\n: b", "a: |\n  x\n",
		"a: {b: [c, {d: e}]}", "<<: {a: 1}", "--- \na: !!str 1\n...", "a: \"\\u00e9\"",
	} {
		f.Add(text)
	}

	paths, _ := filepath.Glob(filepath.Join(oracle(), "*", "config.yaml"))
	for _, p := range paths {
		if text, err := os.ReadFile(p); err == nil {
			f.Add(string(text))
		}
	}

	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()

		src, err := Parse("x", []byte(text))
		if (src == nil) == (err == nil) {
			t.Fatalf("both or neither: %v %v", src, err)
		}

		var p *Problems
		if err != nil && (!errors.As(err, &p) || len(p.List) == 0 || p.Excerpts() == "") {
			t.Fatalf("not a list of problems: %v", err)
		}

		if src == nil {
			return
		}

		for _, d := range src.Documents {
			if d.nodes > maxNodes {
				t.Fatalf("%d nodes", d.nodes)
			}

			back, err := Parse("x", Marshal(d))
			if err != nil || len(back.Documents) != 1 || !same(d, back.Documents[0]) {
				t.Fatalf("not read back: %v\n%s", err, Marshal(d))
			}
		}
	})
}

// oracle is the folder of reference cases.
func oracle() string {
	if dir := os.Getenv("COMPRESS_ORACLE"); dir != "" {
		return filepath.Join(dir, "merge")
	}
	return filepath.Join("..", "..", "..", "..", "shared", "oracle", "merge")
}
