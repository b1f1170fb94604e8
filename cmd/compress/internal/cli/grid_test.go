package cli

import (
	"strings"
	"testing"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/report"
)

// reference lays a table out by the library.
func reference(t *report.Table, head, soft lipgloss.Style) []string {
	grid := table.New().Border(lipgloss.NormalBorder()).BorderStyle(soft).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderColumn(false).Wrap(false).
		StyleFunc(func(row, col int) lipgloss.Style {
			s := lipgloss.NewStyle()
			if row == table.HeaderRow {
				s = head
			}
			if col > 0 {
				s = s.PaddingLeft(gap)
			}
			if t.Numeric(col) {
				s = s.Align(lipgloss.Right)
			}

			return s
		})

	var names []string
	for _, c := range t.Columns {
		names = append(names, c.Name)
	}

	grid.Headers(names...)

	for r := range t.Rows {
		var cells []string
		for c := range t.Columns {
			cells = append(cells, Printable(t.Cell(r, c)))
		}
		grid.Row(cells...)
	}

	return strings.Split(grid.Render(), "\n")
}

// Tables look as the library for tables sets them, colours and all.
func TestGridIsTheLibrarys(t *testing.T) {
	head, soft := lipgloss.NewStyle().Bold(true), lipgloss.NewStyle().Foreground(lipgloss.BrightBlack)
	words := rapid.SampledFrom([]string{"", "a", "model.layers.0.weight", "名前 wide", "two words", "\x1b[2J", "é"})
	rapid.Check(t, func(t *rapid.T) {
		table := &report.Table{
			Columns: report.Columns(
				rapid.SliceOfN(rapid.SampledFrom([]string{"tensor", "x", "名前", "zeros"}), 1, 5).Draw(t, "columns")...),
		}
		numbers := rapid.SliceOfN(rapid.Bool(), len(table.Columns), len(table.Columns)).Draw(t, "numbers")
		for range rapid.IntRange(1, 6).Draw(t, "rows") {
			var row []any
			for _, number := range numbers {
				if number {
					row = append(row, rapid.IntRange(-5, 100_000).Draw(t, "number"))
				} else {
					row = append(row, words.Draw(t, "word"))
				}
			}

			table.Add(row...)
		}

		have, want := grid(table, head, soft), reference(table, head, soft)
		for i := range max(len(have), len(want)) {
			if i >= len(have) || i >= len(want) || strings.TrimRight(have[i], " ") != strings.TrimRight(want[i], " ") {
				t.Fatalf("have %q, want %q", have, want)
			}
		}
	})
}
