package taskfile

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
)

// TestKeys: every key of the table is known where it says, and every key that is read by its name is in the table.
func TestKeys(t *testing.T) {
	names := map[string]bool{}
	for _, k := range keys {
		if k.Meaning == "" {
			t.Errorf("%s %s has no meaning", k.Within, k.Name)
		}
		names[k.Name] = true

		text := k.Name + ": null\n"
		switch k.Within {
		case "":
		case "filter_list", "metric_list":
			text = fmt.Sprintf("%s: [{%s: null}]\n", k.Within, k.Name)
		default:
			text = fmt.Sprintf("%s: {%s: null}\n", k.Within, k.Name)
		}
		doc, err := parseYAML("x.yaml", []byte(text), nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if _, err := doc.task(); errors.Is(err, ErrUnknownKey) {
			t.Errorf("%s: %v", text, err)
		}
	}

	source, err := os.ReadFile("decode.go")
	if err != nil {
		t.Fatal(err)
	}
	read := regexp.MustCompile(`\b[rk]\.(?:text|texts|int|ints|bool|number|function|field|dicts|get)\("([a-z_]+)"`)
	group := map[string]bool{
		"group_alias": true, "aggregate_metric_list": true, "weight_by_size": true, "filter_list": true,
	}
	for _, m := range read.FindAllSubmatch(source, -1) {
		if name := string(m[1]); !names[name] && !group[name] {
			t.Errorf("%s is read, and not in the table", name)
		}
	}
}
