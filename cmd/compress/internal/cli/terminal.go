package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/modelcompress/compress/internal/report"
)

// Printable keeps names from files from steering the terminal: a text with control or format characters, or
// bytes that are no UTF-8, is quoted; a very long one is cut.
func Printable(text string) string {
	text = shorten(text, maxCell)
	if !utf8.ValidString(text) {
		return strconv.Quote(text)
	}

	for _, r := range text {
		if !unicode.IsPrint(r) {
			return strconv.Quote(text)
		}
	}

	return text
}

// Styled is out for text with colours and weights: they are left out where out is no terminal, and where
// NO_COLOR asks for plain text.
func Styled(out io.Writer) io.Writer {
	w := colorprofile.NewWriter(out, os.Environ())
	if os.Getenv("NO_COLOR") != "" {
		w.Profile = colorprofile.NoTTY // the library leaves out colours alone
	}
	return w
}

// PrintTable writes a table for a terminal: figures flush right, headings underlined; colour only where it shows.
func PrintTable(out io.Writer, t *report.Table) {
	if out == io.Discard {
		return
	}

	w := Styled(out)
	head, soft := lipgloss.NewStyle().Bold(true), lipgloss.NewStyle().Foreground(lipgloss.BrightBlack)
	if t.Title != "" {
		fmt.Fprintln(w, head.Render(ShownLine(t.Title)))
	}
	for _, line := range grid(t, head, soft) {
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
	if t.Note != "" {
		fmt.Fprintln(w, soft.Render(ShownLine(t.Note)))
	}
}

// gap is what stands between two columns.
const gap = 2

// grid lays a table out: headings, a rule, a line for each row. Rows are padded here and not by a library that
// styles every cell: a checkpoint has a hundred thousand tensors, and a line for each.
func grid(t *report.Table, head, soft lipgloss.Style) []string {
	cells := make([][]string, len(t.Rows))
	widths := make([]int, len(t.Columns))
	for c := range t.Columns {
		widths[c] = lipgloss.Width(t.Columns[c].Name)
	}

	for r := range t.Rows {
		cells[r] = make([]string, len(t.Columns))
		for c := range t.Columns {
			cells[r][c] = Printable(t.Cell(r, c))
			widths[c] = max(widths[c], lipgloss.Width(cells[r][c]))
		}
	}

	var names, rule strings.Builder
	numeric := make([]bool, len(t.Columns))
	for c := range t.Columns {
		numeric[c] = t.Numeric(c)
		style, width := head, widths[c]
		if c > 0 {
			style, width = style.PaddingLeft(gap), width+gap
		}
		if numeric[c] {
			style = style.Align(lipgloss.Right)
		}

		names.WriteString(style.Width(width).Render(t.Columns[c].Name))
		rule.WriteString(soft.Render(strings.Repeat(lipgloss.NormalBorder().Top, width)))
	}

	// A list of settings has no headings, and then no rule under them.
	var lines []string
	if slices.ContainsFunc(t.Columns, func(c report.Column) bool { return c.Name != "" }) {
		lines = []string{names.String(), rule.String()}
	}

	for _, row := range cells {
		var line strings.Builder
		for c, text := range row {
			if c > 0 {
				line.WriteString(strings.Repeat(" ", gap))
			}

			pad := strings.Repeat(" ", widths[c]-lipgloss.Width(text))
			if numeric[c] {
				line.WriteString(pad + text)
			} else {
				line.WriteString(text + pad)
			}
		}

		lines = append(lines, line.String())
	}

	return lines
}
