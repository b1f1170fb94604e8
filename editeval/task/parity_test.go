package task

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
)

// Tasks that use less usual keys (prefixes of answers, own delimiters and templates of examples, several
// targets, tables, conditions and loops in templates), against lm-evaluation-harness on the shipped tiny model;
// testdata/parity/golden.py made the numbers.
func TestParity(t *testing.T) {
	var golden map[string]struct {
		Results map[string]any `json:"results"`
		Samples []struct {
			DocID  int       `json:"doc_id"`
			Filter string    `json:"filter"`
			Hashes [3]string `json:"hashes"`
			Resps  []any     `json:"resps"`
		} `json:"samples"`
	}

	readJSON(t, "testdata/parity/golden.json", &golden)
	r, samples, err := evaluate(t, t.Context(), open(t, nano+"/base"), []string{"testdata/parity"},
		Options{Bootstrap: 100})
	if err != nil {
		t.Fatal(err)
	}

	lines := strings.Split(strings.TrimSpace(samples), "\n")
	for _, task := range []string{"odd1", "odd2", "odd3", "odd4", "odd5"} {
		for _, want := range golden[task].Samples {
			var got struct {
				row
				Doc    string `json:"doc_hash"`
				Prompt string `json:"prompt_hash"`
				Target string `json:"target_hash"`
			}

			if err := json.Unmarshal([]byte(lines[0]), &got); err != nil {
				t.Fatal(err)
			}

			lines = lines[1:]

			if got.DocID != want.DocID || got.Filter != want.Filter ||
				[3]string{got.Doc, got.Prompt, got.Target} != want.Hashes {
				t.Errorf("%s, document %d: another document, prompt or target: %q", task, want.DocID, got.arg(t, 0, 0))
			}

			for i, w := range want.Resps {
				compareResponse(t, fmt.Sprintf("%s, document %d, request %d", task, want.DocID, i), got.Resps[i][0], w)
			}
		}

		for key, v := range golden[task].Results {
			x, isNumber := v.(float64)
			y, ok := r.Results[task][key].(float64)
			// likelihoods agree to 1e-5
			if isNumber && (!ok || math.Abs(x-y) > 1e-6+1e-4*math.Abs(x)) || !isNumber && v != r.Results[task][key] {
				t.Errorf("%s %s: %v, want %v", task, key, r.Results[task][key], v)
			}
		}
	}
}

// compareResponse compares a text, or a likelihood and a flag.
func compareResponse(t *testing.T, what string, got, want any) {
	t.Helper()
	pair, ok := want.([]any)
	if !ok {
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		return
	}

	mine := got.([]any)
	var ll float64
	fmt.Sscan(mine[0].(string), &ll)
	if w := pair[0].(float64); math.Abs(ll-w) > 1e-3+1e-5*math.Abs(w) || (mine[1] == "True") != pair[1] {
		t.Errorf("%s: %v, want %v", what, mine, pair)
	}
}
