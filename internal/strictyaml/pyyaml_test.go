package strictyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"testing"
)

// TestAsPyYAML: documents in every style of PyYAML, which the programs that recipes come from read them with, are read
// as the same text. Two forms are refused instead: an indentation that is given as a number, and plain text on several
// lines within brackets.
func TestAsPyYAML(t *testing.T) {
	data, err := os.ReadFile("testdata/pyyaml.jsonl")
	if err != nil {
		t.Fatal(err)
	}

	n, refused := 0, 0
	for line := range bytes.Lines(data) {
		var row struct {
			Text string
			Want any
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}

		n++
		src, err := Parse("x", []byte(row.Text))
		if errors.Is(err, ErrSyntax) {
			refused++
			continue
		}
		if err != nil || len(src.Documents) != 1 {
			t.Errorf("%q:\n%v", row.Text, err)
			continue
		}
		if got := texts(src.Documents[0], row.Want); !reflect.DeepEqual(got, row.Want) {
			t.Errorf("%q:\n got %q\nwant %q", row.Text, got, row.Want)
		}
	}

	if n < 300 || refused > 3 {
		t.Errorf("%d of %d rows are refused", refused, n)
	}
}

// texts is a tree with scalars as text, as JSON is read. What stands for nothing is any of its spellings, whichever was
// written.
func texts(n *Node, want any) any {
	switch n.Kind {
	case List:
		given, _ := want.([]any)
		out := []any{}
		for i, item := range n.Items {
			var w any
			if i < len(given) {
				w = given[i]
			}
			out = append(out, texts(item, w))
		}
		return out
	case Map:
		given, _ := want.(map[string]any)
		out := map[string]any{}
		for _, e := range n.Entries {
			out[e.Key] = texts(e.Value, given[e.Key])
		}
		return out
	case Null:
		if word, ok := want.(string); ok && slices.Contains([]string{"", "~", "null", "Null", "NULL"}, word) {
			return word
		}
		return nil
	}

	return n.Text
}
