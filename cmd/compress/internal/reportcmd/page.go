package reportcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/weights"
)

// Page puts the comparison first, then every run.
func Page(runs []*Run, side *report.Table) *report.Page {
	p := &report.Page{Title: "compress report", Subtitle: fmt.Sprintf("%d runs", len(runs))}
	if len(runs) == 1 {
		p.Title, p.Subtitle = runs[0].title(), ""
	} else {
		table := InWords(side)
		if len(runs) <= uprightRuns {
			table = Upright(table)
		}
		charts := compareCharts(side)
		if c, left := front(runs); c != nil {
			c.Note = without(left)
			charts = append([]*report.Chart{c}, charts...)
		}
		p.Sections = append(p.Sections,
			report.Section{Title: "Side by side", Charts: charts, Tables: []*report.Table{table}})
	}

	var versions []string
	for _, r := range runs {
		if v := r.version(); v != "" && !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	if len(versions) > 0 {
		p.Subtitle = strings.TrimPrefix(p.Subtitle+" · version "+strings.Join(versions, ", "), " · ")
	}

	for _, r := range runs {
		s := report.Section{Title: r.name, Facts: r.facts(), Charts: r.charts}
		for _, t := range r.Tables {
			s.Tables = append(s.Tables, readable(t))
		}
		if len(runs) > 1 && r.title() != r.name {
			s.Text = []string{r.title()}
		}
		s.Text = append(s.Text, r.sources...)
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

// errNothing: a report holds neither figures nor tables.
var errNothing = errors.New("there is nothing in it")

// quantised lists what a report says of models whose values are those of a quantised form.
func quantised(top *orderedjson.Object) (texts []string) {
	var list []weights.Quantised
	if !top.Decode("source_quantization", &list) {
		return nil
	}
	for _, q := range list {
		texts = append(texts, q.String())
	}
	return texts
}

// Read reads one report: a JSON file, or that of a folder.
func Read(path string) (*Run, error) {
	r, _, _, err := read(path)
	return r, err
}

// ReadAll is Read that gives, behind the report of a run of jobs, those of the jobs that are done, as far as
// they are there: what came of it.
func ReadAll(path string) ([]*Run, error) {
	r, file, top, err := read(path)
	if err != nil {
		return nil, err
	}

	all := []*Run{r}
	for _, job := range jobsOf(top) {
		// The folder may have been moved since, and leads nowhere else.
		one, err := Read(filepath.Join(filepath.Dir(file), filepath.Base(job.Report)))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNothing) {
			continue
		}

		if err != nil {
			return nil, err
		}

		one.name, one.path = job.Name, filepath.ToSlash(filepath.Join(path, job.Name))
		all = append(all, one)
	}

	return all, nil
}

// done is a job of a run that has a report.
type done struct{ Name, State, Report string }

// jobsOf lists the jobs of a report that compress run wrote whose work is done.
func jobsOf(top *orderedjson.Object) []done {
	var command string
	var jobs []done
	if !top.Decode("command", &command) || command != "compress run" || !top.Decode("jobs", &jobs) {
		return nil
	}
	return slices.DeleteFunc(jobs, func(j done) bool {
		return j.Report == "" ||
			j.State != "done" && j.State != "kept"
	})
}

// apart gives runs of the same name, as in dense/scores and pruned/scores, as much of their paths as tells them apart.
func apart(runs []*Run) {
	same := map[string][]*Run{}
	for _, r := range runs {
		same[r.name] = append(same[r.name], r)
	}

	for _, group := range same {
		longest := 0
		for _, r := range group {
			longest = max(longest, strings.Count(r.path, "/")+1)
		}
		names := map[string]bool{}
		for n := 2; n <= longest && len(names) < len(group) && len(group) > 1; n++ {
			clear(names)
			for _, r := range group {
				parts := strings.Split(r.path, "/")
				r.name = strings.Join(parts[max(0, len(parts)-n):], "/")
				names[r.name] = true
			}
		}
	}
}

// read reads one report, and says in which file it stands and what that holds.
func read(path string) (r *Run, file string, top *orderedjson.Object, err error) {
	file = path
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		i := max(0, slices.IndexFunc(reports, func(name string) bool { return exists(filepath.Join(path, name)) }))
		file = filepath.Join(path, reports[i])
	}

	data, err := safefile.ReadFile(file, maxReport)
	if err != nil {
		return nil, file, nil, err
	}

	name := strings.TrimSuffix(filepath.Base(file), ".json")
	if file != path {
		name = filepath.Base(filepath.Clean(path))
	}

	r = &Run{name: name, path: strings.TrimSuffix(filepath.ToSlash(filepath.Clean(path)), ".json")}
	if !json.Valid(data) {
		return nil, file, nil, fmt.Errorf("%s: not JSON", file)
	}
	if top, err = orderedjson.Parse(data); err != nil {
		return nil, file, nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := r.collect("", top, 0); err != nil {
		return nil, file, nil, fmt.Errorf("%s: %w", file, err)
	}
	r.sources = quantised(top)
	if len(r.leaves)+len(r.Tables) == 0 {
		return nil, file, nil, fmt.Errorf("%s: %w", file, errNothing)
	}

	return r, file, top, nil
}
