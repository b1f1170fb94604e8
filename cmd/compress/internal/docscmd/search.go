package docscmd

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"
)

// index is what the page's script searches: sections, and for every word the numbers of the sections that have it.
type index struct {
	Sections [][3]string `json:"sections"` // anchor, title, page
	Words    []string    `json:"words"`    // in order
	Places   [][]int     `json:"places"`   // of each word: the section's number doubled, 1 more if its title has it
}

// indexOf makes the index of a site as JSON that may stand in a script element.
func indexOf(s *Site) ([]byte, error) {
	var x index
	places := map[string][]int{}
	for _, p := range s.Pages {
		for _, sec := range p.Sections {
			n := len(x.Sections)
			title := sec.Title
			if title == p.Title {
				title = ""
			}
			x.Sections = append(x.Sections, [3]string{sec.ID, title, p.Title})

			heading := sec.Title
			if sec.ID == p.ID {
				heading += " " + p.Title
			}
			inTitle := wordsOf(heading)
			for w := range inTitle {
				places[w] = append(places[w], 2*n+1)
			}
			for w := range wordsOf(sec.Text) {
				if !inTitle[w] {
					places[w] = append(places[w], 2*n)
				}
			}
		}
	}

	for w := range places {
		x.Words = append(x.Words, w)
	}
	slices.Sort(x.Words)
	for _, w := range x.Words {
		list := places[w]
		slices.Sort(list)
		x.Places = append(x.Places, list)
	}
	return json.Marshal(x) // escapes <, > and &
}

// longestWord is the longest word that is searched for; hashes and numbers of files are longer.
const longestWord = 32

// wordsOf are the words of a text in lower case, as the script cuts a query: runs of letters, digits
// and underscores, and
// names with dashes and dots both whole and in parts.
func wordsOf(text string) map[string]bool {
	words := map[string]bool{}
	for _, name := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !inWord(r) && r != '-' && r != '.'
	}) {
		parts := strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '.' })
		whole := strings.Trim(name, "-.")
		for _, w := range append(parts, whole) {
			if len(w) > 1 && len(w) <= longestWord {
				words[w] = true
			}
		}
	}
	return words
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }
