package gp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
)

// ParseLines reads formulas that the grammar allows, one on each line: in the notation of [Parse], or of [ParseJSON]
// where the line begins with a brace. Empty lines, and what follows a #, count for nothing; of equal formulas
// (simplified) the first counts. Errors name the line, and the column or byte where it cannot be read, and wrap those
// of Parse and [Grammar.Check].
func (g Grammar) ParseLines(text string) ([]*Expr, error) {
	g = g.withDefaults()
	var list []*Expr
	n := 0
	text = strings.TrimPrefix(text, "\ufeff") // some editors put it before the text
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}

		parse := Parse
		if strings.HasPrefix(strings.TrimSpace(line), "{") {
			parse = func(text string) (*Expr, error) { return ParseJSON([]byte(text)) }
		}
		e, err := parse(strings.TrimRight(line, " \t\r\n"))
		if err != nil {
			return nil, fmt.Errorf("line %d, %w", n, err)
		}
		if e, err = g.Check(e, nil); err != nil {
			err = fmt.Errorf("line %d: %w", n, err)
			if errors.Is(err, ErrOnlyW) {
				err = failure.Hinted(err, "a score of the weight alone ranks as magnitude does, which the search "+
					"knows: add what flows in, such as abs(W) * X")
			}
			return nil, err
		}
		if !slices.ContainsFunc(list, e.Equal) {
			list = append(list, e)
		}
	}
	return list, nil
}
