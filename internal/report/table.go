// Package report turns plain figures into tables (Markdown, CSV, JSON), charts (inline SVG) and one
// self-contained HTML page that needs no other file and no network. It knows nothing about models.
package report

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Table is a titled grid of figures and words. Cells are strings, int, int64, float64, [Estimate], bool or nil (an
// empty cell).
type Table struct {
	Title   string
	Columns []Column
	Rows    [][]any
	Note    string // one line below the table; empty: none
	Folded  bool   // on a page only its title is shown until a reader opens it
}

// Column is a heading and the way its numbers are printed.
type Column struct {
	Name   string
	Format string // fmt verb for floats, "%.4g" when empty
}

// Estimate is a figure with its standard error, both printed in the column's format; without one (nil) it is a
// plain figure. Mark, such as an asterisk, follows it.
type Estimate struct {
	Value  float64  `json:"value"`
	Stderr *float64 `json:"stderr"`
	Mark   string   `json:"mark,omitempty"`
}

// String is the form with full precision.
func (e Estimate) String() string {
	return e.in("%v")
}

// in prints the figure in a format.
func (e Estimate) in(format string) string {
	text := figure(e.Value, format)
	if e.Stderr != nil {
		text += " ± " + figure(*e.Stderr, format)
	}
	if e.Mark != "" {
		text += " " + e.Mark
	}
	return text
}

// Columns makes columns from "name" or "name|format".
func Columns(specs ...string) []Column {
	out := make([]Column, len(specs))
	for i, s := range specs {
		out[i].Name, out[i].Format, _ = strings.Cut(s, "|")
	}
	return out
}

// Add appends one row.
func (t *Table) Add(cells ...any) { t.Rows = append(t.Rows, cells) }

// Pick is the table with the columns that keep chooses, in their order.
func (t *Table) Pick(keep func(col int) bool) *Table {
	out := &Table{Title: t.Title, Note: t.Note, Folded: t.Folded}
	for i, c := range t.Columns {
		if keep(i) {
			out.Columns = append(out.Columns, c)
		}
	}

	for _, row := range t.Rows {
		var cells []any
		for i, cell := range row {
			if keep(i) {
				cells = append(cells, cell)
			}
		}
		out.Add(cells...)
	}

	return out
}

// Filled reports whether any row has a value in a column.
func (t *Table) Filled(col int) bool {
	return slices.ContainsFunc(t.Rows, func(row []any) bool { return col < len(row) && row[col] != nil })
}

// Cell is the text of one cell.
func (t *Table) Cell(row, col int) string {
	if col >= len(t.Rows[row]) || t.Rows[row][col] == nil {
		return ""
	}

	switch v := t.Rows[row][col].(type) {
	case Estimate:
		return v.in(t.Columns[col].Format)
	case float64:
		return figure(v, t.Columns[col].Format)
	default:
		return fmt.Sprint(v)
	}
}

// figure prints a number.
func figure(f float64, format string) string {
	if format == "" || math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Sprintf("%.4g", f)
	}
	return fmt.Sprintf(format, f)
}

// Numeric reports whether a column holds numbers only, and is therefore set flush right.
func (t *Table) Numeric(col int) bool {
	for _, r := range t.Rows {
		if col >= len(r) {
			continue
		}

		switch r[col].(type) {
		case nil, float64, Estimate, int, int64:
		default:
			return false
		}
	}

	return true
}

// Classes are what a page sets each column as: "num" for numbers only, "fig" for texts that begin with a
// figure, such as intervals, which are not broken into lines; "text" for sentences, which are; else nothing.
func (t *Table) Classes() []string {
	list := make([]string, len(t.Columns))
	for col := range list {
		switch {
		case t.Numeric(col):
			list[col] = "num"
		case t.figures(col):
			list[col] = "fig"
		case t.sentences(col):
			list[col] = "text"
		}
	}

	return list
}

// figures tells a column whose texts all begin with a figure.
func (t *Table) figures(col int) bool {
	for r := range t.Rows {
		if text := t.Cell(r, col); text != "" && !strings.ContainsAny(text[:1], "+-0123456789") {
			return false
		}
	}
	return true
}

// sentences tells a column that holds a text too long for a line of a phone, of several words.
func (t *Table) sentences(col int) bool {
	for r := range t.Rows {
		if text := t.Cell(r, col); len(text) > 40 && strings.Count(text, " ") > 4 {
			return true
		}
	}
	return false
}

// Markdown writes a table of the pipe form, title first.
func (t *Table) Markdown(w io.Writer) error {
	var b strings.Builder
	if t.Title != "" {
		fmt.Fprintf(&b, "**%s**\n\n", t.Title)
	}

	rule := "|"
	for i, c := range t.Columns {
		fmt.Fprintf(&b, "| %s ", pipes(c.Name))
		rule += map[bool]string{true: "---:|", false: "---|"}[t.Numeric(i)]
	}

	b.WriteString("|\n" + rule + "\n")

	for r := range t.Rows {
		for c := range t.Columns {
			fmt.Fprintf(&b, "| %s ", pipes(t.Cell(r, c)))
		}
		b.WriteString("|\n")
	}

	if t.Note != "" {
		fmt.Fprintf(&b, "\n%s\n", t.Note)
	}

	_, err := io.WriteString(w, b.String())
	return err
}

var pipes = strings.NewReplacer("|", `\|`, "\n", " ").Replace

// CSV writes the headings and the rows; floats keep their full precision.
func (t *Table) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	rec := make([]string, len(t.Columns))
	for i := range rec {
		rec[i] = t.Columns[i].Name
	}

	err := c.Write(rec)
	for r, row := range t.Rows {
		for i := range rec {
			rec[i] = t.Cell(r, i)
			if i < len(row) && rec[i] != "" {
				rec[i] = fmt.Sprint(row[i])
			}
		}

		err = errors.Join(err, c.Write(rec))
	}

	c.Flush()
	return errors.Join(err, c.Error())
}

// MarshalJSON gives an array with one object a row, keyed by the headings; NaN and infinities become null.
func (t *Table) MarshalJSON() ([]byte, error) {
	out := make([]map[string]any, len(t.Rows))
	for r, row := range t.Rows {
		out[r] = map[string]any{}

		for c, v := range row {
			if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
				v = nil
			}
			out[r][t.Columns[c].Name] = v
		}
	}

	return json.Marshal(out)
}
