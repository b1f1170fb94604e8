package strictyaml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The ways in which a file can be wrong. A Problem wraps one of them; test with errors.Is on the error that Parse or
// Reader.Err gave.
var (
	ErrSyntax       = errors.New("not valid YAML")
	ErrLimit        = errors.New("larger than is allowed here")
	ErrDuplicateKey = errors.New("key given twice")
	ErrUnknownKey   = errors.New("unknown key")
	ErrMissingKey   = errors.New("required key is missing")
	ErrType         = errors.New("wrong type")
	ErrValue        = errors.New("value not allowed")
	ErrUnsupported  = errors.New("not read here") // valid YAML that a format does without
)

// Place is a position in a file. Both count from 1; the zero value is no place.
type Place struct {
	Line, Column int
}

// Problem is one fault.
type Problem struct {
	Place
	Message string
	Err     error // one of this package's ways of failing
}

// Problems is every fault of a file, in the order of the file. As an error it is one line per fault.
type Problems struct {
	File string // the name for messages
	List []Problem

	lines []string // of the file, for excerpts
}

// Add notes a further fault in its place.
func (p *Problems) Add(at Place, kind error, message string) {
	p.add(Problem{Place: at, Message: message, Err: kind})
	p.sort()
}

// Error gives "file:line:column: message" per fault.
func (p *Problems) Error() string {
	var b strings.Builder
	for i, x := range p.List {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.prefix(x.Place))
		b.WriteString(x.Message)
	}
	return b.String()
}

// prefix gives "file:line:column: ", as far as it is known. A text without a name is of few lines, which are counted
// in words.
func (p *Problems) prefix(at Place) string {
	switch {
	case at.Line == 0 && p.File == "":
		return ""
	case at.Line == 0:
		return p.File + ": "
	case p.File == "":
		return fmt.Sprintf("line %d, column %d: ", at.Line, at.Column)
	}
	return fmt.Sprintf("%s:%d:%d: ", p.File, at.Line, at.Column)
}

// OneLine makes faults an error of a kind, on the one line that a command prints:
// "kind: file:line:column: message; file:line:column: message". Any other error, which should be of the kind too, is
// "kind: error"; nil stays nil.
func OneLine(kind, err error) error {
	if err == nil {
		return nil
	}

	var p *Problems
	if !errors.As(err, &p) {
		return fmt.Errorf("%w: %w", kind, err)
	}

	return &oneLine{kind: kind, problems: p}
}

type oneLine struct {
	kind     error
	problems *Problems
}

// Error gives all faults.
func (e *oneLine) Error() string {
	return e.kind.Error() + ": " + strings.ReplaceAll(e.problems.Error(), "\n", "; ")
}

// Unwrap gives both to errors.Is and errors.As.
func (e *oneLine) Unwrap() []error { return []error{e.kind, e.problems} }

// Unwrap gives the faults' kinds to errors.Is.
func (p *Problems) Unwrap() []error {
	var kinds []error
	for _, x := range p.List {
		if x.Err != nil && !slices.Contains(kinds, x.Err) {
			kinds = append(kinds, x.Err)
		}
	}
	return kinds
}

// excerptWidth bounds the part of a long line that an excerpt shows.
const excerptWidth = 100

// Excerpts gives each fault with the line it is about, the line before and a mark under the place:
//
//	recipe.yaml:3:5: unknown key "wieght"; did you mean "weight"?
//	     2 |   parameters:
//	     3 |     wieght: 0.5
//	       |     ^
func (p *Problems) Excerpts() string {
	var b strings.Builder
	for _, x := range p.List {
		fmt.Fprintf(&b, "%s%s\n", p.prefix(x.Place), x.Message)
		p.excerpt(&b, x.Place)
	}
	return b.String()
}

// excerpt writes the lines around one place.
func (p *Problems) excerpt(b *strings.Builder, at Place) {
	if at.Line < 1 || at.Line > len(p.lines) {
		return
	}

	if at.Line > 1 {
		if before := []rune(p.lines[at.Line-2]); len(before) <= excerptWidth {
			fmt.Fprintf(b, "%6d | %s\n", at.Line-1, printable(before))
		}
	}

	line, column := []rune(p.lines[at.Line-1]), max(at.Column-1, 0)
	if column > excerptWidth/2 {
		cut := min(column-excerptWidth/2, len(line))
		line, column = line[cut:], column-cut
	}

	line = line[:min(len(line), excerptWidth)]
	fmt.Fprintf(b, "%6d | %s\n       | %s^\n", at.Line, printable(line), strings.Repeat(" ", min(column, len(line))))
}

// printable replaces control characters, which a terminal would act on.
func printable(line []rune) string {
	out := make([]rune, len(line))
	for i, r := range line {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			r = ' '
		}
		out[i] = r
	}
	return string(out)
}

// sort puts the faults in the order of the file; those without a place come last.
func (p *Problems) sort() {
	slices.SortStableFunc(p.List, func(a, b Problem) int {
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// maxProblems bounds what is collected: a hostile file could hold a fault in every byte.
const maxProblems = 200

// add notes a fault once.
func (p *Problems) add(x Problem) {
	if len(p.List) >= maxProblems || slices.Contains(p.List, x) {
		return
	}
	p.List = append(p.List, x)
}
