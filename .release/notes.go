package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

var link = regexp.MustCompile(`(!?)\[([^\]]*)\]\(([^):]+)\)`)

// absolute gives the links of a page between files of the repository as they are on the web, at the commit of the
// release: beside archives and wheels there are none of those files.
func (r *release) absolute(page []byte) []byte {
	return link.ReplaceAllFunc(page, func(found []byte) []byte {
		m := link.FindSubmatch(found)
		view := "blob"
		if len(m[1]) > 0 {
			view = "raw" // a picture
		}
		if m[3][0] == '#' {
			return found
		}
		return fmt.Appendf(nil, "%s[%s](%s/%s/%s/%s)", m[1], m[2], homepage, view, r.commit, m[3])
	})
}

// notes writes what the page of the release says: what the changelog has of this version, as far as the list of all
// changes, which stays there.
func (r *release) notes() error {
	papers, err := r.read("", "CHANGELOG.md")
	if err != nil {
		return err
	}

	// Its own section, or that of what has no version yet.
	text := papers[0].data
	own := bytes.Index(text, []byte("\n## "+r.version+"\n"))
	if own < 0 {
		own = bytes.Index(text, []byte("\n## UNRELEASED\n"))
	}
	if own < 0 {
		return fmt.Errorf("CHANGELOG.md has no section %s, and none UNRELEASED", r.version)
	}
	_, section, _ := strings.Cut(string(text[own+1:]), "\n")
	section, _, _ = strings.Cut(section, "\n## ")
	section, _, whole := strings.Cut(section, "\n### All changes\n")
	if !whole {
		return fmt.Errorf("the section of the changelog about %s has no part \"All changes\"", r.version)
	}

	page := fmt.Sprintf("# compress %s\n\n%s\n\n[All changes](CHANGELOG.md), "+
		"[how to install](docs/releasing.md#install-one).\n", r.version, strings.TrimSpace(section))
	return r.write("NOTES.md", r.absolute([]byte(page)))
}
