package taskfile

import (
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// What PyYAML's safe loader gives for these, unquoted; nil stands for what is refused.
func TestScalars(t *testing.T) {
	for text, want := range map[string]any{
		"yes": true, "On": true, "no": false, "OFF": false, "True": true, "y": "y", "nO": "nO", "'yes'": "yes",
		"1": int64(1), "-0": int64(0), "+12": int64(12), "\"1\"": "1", "08": "08", "12a": "12a", "1.2.3": "1.2.3",
		"1.": 1.0, ".5": 0.5, "-.5": "-.5", "1.5e+3": 1500.0, "1e5": "1e5", "1.0e5": "1.0e5", "0o17": "0o17",
		"017": nil, "0x1F": nil, "1_000": nil, "1:30": nil, "2024-05-01": nil, "2024-05-01 10:00:00": nil,
		"2024-05-01 a day": "2024-05-01 a day", ".inf": math.Inf(1), "-.Inf": math.Inf(-1), "!!str yes": "yes",
		"1234567890123456789012": 1234567890123456789012.0,
	} {
		doc, err := parseYAML("x.yaml", []byte("a: "+text+"\n"), func(string) string { return "" })
		if want == nil {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s: %v, want a refusal", text, err)
			}
			continue
		}

		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}

		if got, _ := doc.root.Get("a"); got != want {
			t.Errorf("%s: %s, want %s", text, pyvalue.Repr(got), pyvalue.Repr(want))
		}
	}

	doc, err := parseYAML(
		"x.yaml",
		[]byte("metadata: {date: 2024-05-01, n: 010}\na: ~\nb: !!null null\n"),
		func(string) string { return "" },
	)
	if err != nil {
		t.Fatal(err) // metadata have no influence
	}

	if v, _ := doc.root.Get("b"); v != nil {
		t.Errorf("!!null: %v", v)
	}
}
