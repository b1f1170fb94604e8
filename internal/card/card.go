// Package card writes the README.md of a model or an adapter, in the form that the Hugging Face hub reads: what it was
// made of, by which command, with which data and settings, and what was measured. The same run gives the same bytes:
// there is no time, no version and no path in it but those that the user has given.
//
// The last line of a card is a mark that names the hash of everything above it. By the mark a card that nobody has
// changed is told from a text of the user's, which is not replaced ([Own]).
package card

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Name is what a card is called.
const Name = "README.md"

// Libraries that load what a card is about, as the hub calls them.
const (
	Transformers = "transformers"
	PEFT         = "peft"
)

// MaxBase is the most that is kept of the card of a base, in bytes.
const MaxBase = 256 << 10

// Card is what a card says. Parts that are empty are left out.
type Card struct {
	Base    []string // models that it was made of
	Library string   // that loads it
	Tags    []string
	Title   string
	Text    string // paragraphs below the title, in Markdown

	Command  string   // that made it
	Data     []Row    // texts that were used: name, hash and extent
	Settings []Row    // what was asked for
	Figures  []Row    // what was measured
	Before   bool     // figures have two values, before and after
	Remarks  []string // what a reader has to know
	Rest     string   // Markdown below all of this

	// Of is the card of the base, or nil: licence and language are taken over, and its text stands at the end.
	Of []byte
}

// Row is a line of a table.
type Row struct {
	Name   string
	Values []string
}

// Bytes is the card as a file.
func (c *Card) Bytes() []byte {
	var b strings.Builder
	front, text := split(c.Of)

	b.WriteString("---\n")
	c.front(&b, front)
	fmt.Fprintf(&b, "---\n\n# %s\n\n", c.Title)
	b.WriteString(strings.TrimRight(c.Text, "\n") + "\n")

	for _, r := range c.Remarks {
		b.WriteString("\n" + r + "\n")
	}
	if c.Command != "" {
		fmt.Fprintf(&b, "\n```sh\n%s\n```\n", c.Command)
	}

	table(&b, []string{"setting", "value"}, c.Settings)
	table(&b, []string{"data", "hash", "extent"}, c.Data)
	measured := []string{"measured", "value"}
	if c.Before {
		measured = []string{"measured", "before", "after"}
	}
	table(&b, measured, c.Figures)

	if c.Rest != "" {
		b.WriteString("\n" + strings.TrimRight(c.Rest, "\n") + "\n")
	}
	base(&b, text)
	return seal(b.String())
}

// front writes the keys that the hub reads.
func (c *Card) front(b *strings.Builder, inherited string) {
	for _, list := range []struct {
		key   string
		items []string
	}{{"base_model", quoted(c.Base)}, {"library_name", []string{c.Library}}, {"tags", c.Tags}} {
		switch {
		case len(list.items) == 0:
		case list.key == "library_name":
			fmt.Fprintf(b, "library_name: %s\n", c.Library)
		default:
			fmt.Fprintf(b, "%s:\n", list.key)
			for _, item := range list.items {
				fmt.Fprintf(b, "- %s\n", item)
			}
		}
	}
	b.WriteString(inherited)
}

// quoted makes texts of any kind YAML scalars.
func quoted(texts []string) (list []string) {
	for _, s := range texts {
		text, err := json.Marshal(s)
		if err != nil {
			text = []byte(`""`)
		}
		list = append(list, string(text))
	}
	return list
}

// table writes rows, unless there are none.
func table(b *strings.Builder, head []string, rows []Row) {
	if len(rows) == 0 {
		return
	}

	fmt.Fprintf(b, "\n| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, r := range rows {
		cells := []string{cell(r.Name)}
		for _, v := range r.Values {
			cells = append(cells, cell(v))
		}
		for len(cells) < len(head) {
			cells = append(cells, "")
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
	}
}

// cell keeps a text within its cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ").Replace(text)
}

// base writes the text of the base's card below a line, or says that it has not been taken over.
func base(b *strings.Builder, text string) {
	switch {
	case text == "":
	case len(text) > MaxBase:
		fmt.Fprintf(b, "\nThe card of the base is longer than %d KiB and was left out.\n", MaxBase>>10)
	default:
		fmt.Fprintf(b, "\n---\n\nThe card of the base, of which not all may be true of this model:\n\n%s\n", text)
	}
}

// inheritable are the keys of a base's front matter that are true of what is made of it as well.
var inheritable = []string{"license", "license_name", "license_link", "language", "pipeline_tag"}

// Lines of front matter that are taken over: a key with a plain value or none, and an item of a list. Anything else
// would have to be understood first.
var (
	keyLine  = regexp.MustCompile(`^([a-z_]+):( +[\w./:@+ -]+| +"[\w./:@+ -]*")? *$`)
	itemLine = regexp.MustCompile(`^ *- +[\w./:@+ -]+ *$`)
)

// split takes a card apart: the keys of its front matter that hold for other models, and its text without the mark.
func split(text []byte) (front, body string) {
	lines := strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	end := -1
	if lines[0] == "---" {
		end = slices.Index(lines[1:], "---")
	}

	taking := false
	for _, line := range lines[1:max(1, end+1)] {
		if k := keyLine.FindStringSubmatch(line); k != nil {
			taking = slices.Contains(inheritable, k[1])
		} else if !itemLine.MatchString(line) {
			taking = false
		}
		if taking {
			front += line + "\n"
		}
	}

	if end >= 0 {
		lines = lines[end+2:]
	}
	kept := lines[:0]
	for _, line := range lines {
		if !markLine.MatchString(line) {
			kept = append(kept, line)
		}
	}
	return front, strings.TrimSpace(strings.Join(kept, "\n"))
}

// markLine is the last line of a card.
var markLine = regexp.MustCompile(`^<!-- made with compress: [0-9a-f]{64} -->$`)

// seal adds the mark.
func seal(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return fmt.Appendf(nil, "%s\n<!-- made with compress: %s -->\n", text, hex.EncodeToString(sum[:]))
}

// Own reports whether a text is a card that this package has written, as it was written.
func Own(text []byte) bool {
	at := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n')
	return at > 0 && bytes.Equal(seal(string(text[:at])), text)
}

// Amend puts a paragraph about what was done since below the title of a card that is [Own]; any other text stays as it
// is.
func Amend(text []byte, paragraph string) []byte {
	if !Own(text) {
		return text
	}

	whole := strings.TrimSuffix(string(text), "\n")
	whole = whole[:strings.LastIndexByte(whole, '\n')]
	title := strings.Index(whole, "\n# ")
	if title < 0 {
		return text
	}

	end := title + 1 + strings.IndexByte(whole[title+1:], '\n') + 1
	return seal(whole[:end] + "\n" + paragraph + "\n" + whole[end:])
}
