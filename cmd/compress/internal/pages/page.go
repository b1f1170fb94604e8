package pages

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/ordered"
	"github.com/modelcompress/compress/internal/regular"
	"github.com/modelcompress/compress/internal/report"
)

// Page puts the comparison first, then every run.
func Page(runs []*Run, side *report.Table) *report.Page {
	p := &report.Page{Title: "compress report", Subtitle: fmt.Sprintf("%d run(s)", len(runs))}
	if len(runs) == 1 {
		p.Title, p.Subtitle = runs[0].title(), ""
	} else {
		table := side
		if len(runs) <= uprightRuns {
			table = Upright(side)
		}
		p.Sections = append(p.Sections, report.Section{Title: "Side by side", Charts: compareCharts(side), Tables: []*report.Table{table}})
	}
	for _, r := range runs {
		s := report.Section{Title: r.name, Facts: r.facts(), Charts: r.charts, Tables: r.Tables}
		if len(runs) > 1 {
			s.Text = []string{r.title()}
		}
		p.Sections = append(p.Sections, s)
	}
	return p
}

// uprightRuns is up to how many runs are columns, so that the table of their figures is narrow; more of them are rows.
const uprightRuns = 6

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// maxReport bounds what is read of a report.
const maxReport = 256 << 20

// reports are the names of reports in the folders that verbs write, the first that is there counts.
var reports = []string{"report.json", "training.json", "results.json", "pruning.json", "merge.json", "comparison.json"}

// Read reads one report: a JSON file, or that of a folder.
func Read(path string) (*Run, error) {
	file := path
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		i := max(0, slices.IndexFunc(reports, func(name string) bool { return exists(filepath.Join(path, name)) }))
		file = filepath.Join(path, reports[i])
	}
	data, err := regular.ReadFile(file, maxReport)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(file), ".json")
	if file != path {
		name = filepath.Base(filepath.Clean(path))
	}
	r := &Run{name: name}
	if !json.Valid(data) {
		return nil, fmt.Errorf("%s: not JSON", file)
	}
	top, err := ordered.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if r.collect("", top, 0); len(r.leaves)+len(r.Tables) == 0 {
		return nil, fmt.Errorf("%s: there is nothing in it", file)
	}
	return r, nil
}
