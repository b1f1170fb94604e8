package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// structure is the page that shows the import table to people.
const structure = "docs/structure.md"

// TestStructure: the page and the import table say the same, so that neither is out of date.
func TestStructure(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(structure)))
	if err != nil {
		t.Fatal(err)
	}

	shown := tableRows(string(text))
	for folder, want := range mayImport {
		got, ok := shown[folder]
		if !ok {
			t.Errorf("%s has no row of its own for | `%s` | what it holds | %s |", structure, folder, inWords(want))
			continue
		}
		if !slices.Equal(sorted(got), sorted(want)) {
			t.Errorf("%s: %q may import %q; the import table says %s", structure, folder, got, inWords(want))
		}
	}

	for folder := range shown {
		if _, ok := mayImport[folder]; !ok {
			t.Errorf("%s: %q is not in the import table", structure, folder)
		}
	}

	for _, name := range everywhere {
		before, _, _ := strings.Cut(string(text), "\n|")
		if !strings.Contains(before, "`"+name+"`") {
			t.Errorf("%s does not say that every package may import %s", structure, name)
		}
	}
}

// TestTableRows tries the reading of the page on a piece of one.
func TestTableRows(t *testing.T) {
	got := tableRows("# A page\n\n| folder | what | may |\n|---|---|---|\n| `a/b` | holds `x` | nothing |\n" +
		"| `.` | root | `lm*`, `c` |\n| `cmd` | all | everything |\n")
	if len(got) != 3 || len(got["a/b"]) != 0 || !slices.Equal(got[""], append(slices.Clone(engine), "c")) ||
		!slices.Equal(got["cmd"], []string{anything}) {
		t.Errorf("%q", got)
	}
}

// quotedName is a name between backquotes.
var quotedName = regexp.MustCompile("`([^`]+)`")

// tableRows gives the imports of each folder that a table of three columns has, by their full names.
func tableRows(page string) map[string][]string {
	rows := map[string][]string{}
	for line := range strings.SplitSeq(page, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}

		folder := quotedName.FindStringSubmatch(cells[1])
		if folder == nil {
			continue // the heading
		}

		var imports []string
		if strings.TrimSpace(cells[3]) == "everything" {
			imports = append(imports, anything)
		}
		for _, m := range quotedName.FindAllStringSubmatch(cells[3], -1) {
			if m[1] == "lm*" {
				imports = append(imports, engine...)
			} else {
				imports = append(imports, m[1])
			}
		}

		rows[strings.TrimPrefix(folder[1], ".")] = imports
	}

	return rows
}

// inWords is the third column of a row.
func inWords(imports []string) string {
	switch {
	case slices.Contains(imports, anything):
		return "everything"
	case len(imports) == 0:
		return "nothing"
	}

	rest := imports
	var words []string
	if !slices.ContainsFunc(engine, func(s string) bool { return !slices.Contains(imports, s) }) {
		words = append(words, "`lm*`")
		rest = slices.DeleteFunc(slices.Clone(imports), func(s string) bool { return slices.Contains(engine, s) })
	}
	for _, name := range rest {
		words = append(words, "`"+name+"`")
	}

	return strings.Join(words, ", ")
}

func sorted(list []string) []string {
	out := slices.Clone(list)
	slices.Sort(out)
	return out
}
