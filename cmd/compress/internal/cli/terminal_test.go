package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/report"
)

// TestNamesDoNotSteerTheTerminal: what comes from a file is printed without control characters.
func TestNamesDoNotSteerTheTerminal(t *testing.T) {
	var b bytes.Buffer
	table := &report.Table{Columns: report.Columns("tensor"), Note: "zeros"}
	table.Add("evil\x1b]0;title\a\u202e")
	table.Add("block.0.weight")
	PrintTable(&b, table)
	if strings.ContainsAny(b.String(), "\x1b\a\u202e") || !strings.Contains(b.String(), `"evil\x1b]0;title\a\u202e"`) ||
		!strings.Contains(b.String(), "block.0.weight") {
		t.Errorf("%q", b.String())
	}
}
