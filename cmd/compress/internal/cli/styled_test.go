package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/charmbracelet/colorprofile"

	"github.com/modelcompress/compress/internal/report"
)

// TestNoColour: NO_COLOR takes all of the escape sequences out, also the bold ones, even where colours are asked for.
func TestNoColour(t *testing.T) {
	table := &report.Table{Title: "title", Columns: report.Columns("name"), Note: "note"}
	table.Add("value")

	for _, none := range []string{"", "1", "yes"} {
		t.Setenv("NO_COLOR", none)
		t.Setenv("CLICOLOR_FORCE", "1")
		t.Setenv("TERM", "xterm-256color")
		t.Setenv("COLORTERM", "truecolor")

		var b bytes.Buffer
		PrintTable(&b, table)
		w, ok := Styled(os.Stdout).(*colorprofile.Writer)
		if !ok || none != "" && w.Profile != colorprofile.NoTTY {
			t.Errorf("NO_COLOR=%q: %+v", none, w)
		}

		if strings.Contains(b.String(), "\x1b") != (none == "") {
			t.Errorf("NO_COLOR=%q: %q", none, b.String())
		}
	}
}
