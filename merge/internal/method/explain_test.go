package method

import (
	"strings"
	"testing"
)

// TestExplained: every method and every parameter is explained, and nothing else is.
func TestExplained(t *testing.T) {
	left := map[string]bool{}
	for key := range meanings {
		left[key] = true
	}

	for i := range table {
		m := &table[i]
		formula, fits, source := m.Explain()
		if formula == "" || !strings.HasSuffix(fits, ".") || source == "" {
			t.Errorf("%s: formula %q, fits %q, source %q", m.Spec.Name, formula, fits, source)
		}
		for _, p := range m.Spec.Params {
			if m.Meaning(p.Name) == "" {
				t.Errorf("%s: %s is not explained", m.Spec.Name, p.Name)
			}
			own := m.Spec.Name + " " + p.Name
			if _, ok := meanings[own]; ok {
				delete(left, own)
			} else {
				delete(left, p.Name)
			}
		}
	}

	if len(explanations) != len(table) {
		t.Errorf("%d explanations of %d methods", len(explanations), len(table))
	}
	for key := range left {
		t.Errorf("%q explains what no method has", key)
	}
}
