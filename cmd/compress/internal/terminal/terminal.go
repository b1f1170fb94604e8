// Package terminal prints tables on a terminal.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"github.com/charmbracelet/colorprofile"

	"github.com/modelcompress/compress/internal/report"
)

// Printable keeps names from files from steering the terminal: a text with control or format characters is quoted.
func Printable(text string) string {
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return strconv.Quote(text)
		}
	}
	return text
}

// Styled is out for text with colours and weights: they are left out where out is no terminal, and where NO_COLOR asks for plain text.
func Styled(out io.Writer) io.Writer {
	w := colorprofile.NewWriter(out, os.Environ())
	if os.Getenv("NO_COLOR") != "" {
		w.Profile = colorprofile.NoTTY // the library leaves out colours alone
	}
	return w
}

// Table writes a table for a terminal: figures flush right, headings underlined; colour only where it shows.
func Table(out io.Writer, t *report.Table) {
	if out == io.Discard {
		return
	}
	w := Styled(out)
	head := lipgloss.NewStyle().Bold(true)
	soft := lipgloss.NewStyle().Foreground(lipgloss.BrightBlack)
	grid := table.New().Border(lipgloss.NormalBorder()).BorderStyle(soft).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderColumn(false).Wrap(false).
		StyleFunc(func(row, col int) lipgloss.Style {
			s := lipgloss.NewStyle()
			if row == table.HeaderRow {
				s = head
			}
			if col > 0 {
				s = s.PaddingLeft(2)
			}
			if t.Numeric(col) {
				s = s.Align(lipgloss.Right)
			}
			return s
		})
	names := make([]string, len(t.Columns))
	for c := range t.Columns {
		names[c] = t.Columns[c].Name
	}
	grid.Headers(names...)
	for r := range t.Rows {
		cells := make([]string, len(names))
		for c := range cells {
			cells[c] = Printable(t.Cell(r, c))
		}
		grid.Row(cells...)
	}
	if t.Title != "" {
		fmt.Fprintln(w, head.Render(Printable(t.Title)))
	}
	for line := range strings.Lines(grid.Render()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	if t.Note != "" {
		fmt.Fprintln(w, soft.Render(Printable(t.Note)))
	}
}
