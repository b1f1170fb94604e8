package runcmd

import (
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// Report is what a run gives.
type Report struct {
	Plan   string `json:"plan"`
	Out    string `json:"out"`
	Done   int    `json:"done"`
	Kept   int    `json:"kept"`
	Failed int    `json:"failed"`
	Idle   int    `json:"not_run"`
	Jobs   []*Row `json:"jobs"` // in an order in which each comes after what it needs
}

// Row is a job in a report.
type Row struct {
	Name    string  `json:"name"`
	Verb    string  `json:"verb"`
	Matrix  string  `json:"matrix,omitempty"` // KEY=VALUE, with blanks between
	State   string  `json:"state"`            // done, kept, failed or not run
	Seconds float64 `json:"seconds"`          // of a job that was kept: those that it took
	Resumed bool    `json:"resumed,omitempty"`
	Needs   string  `json:"needs,omitempty"` // names with blanks between
	Key     string  `json:"key,omitempty"`   // hash of all that the outputs depend on
	Out     string  `json:"out,omitempty"`
	Report  string  `json:"report"`
	Log     string  `json:"log"`
	Command string  `json:"command"`
	Worker  string  `json:"worker,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// ready reports whether those who need the job can begin.
func (r *Row) ready() bool { return r.State == stateDone || r.State == stateKept }

// row is that of a job that has not begun.
func (r *run) row(j *job) *Row {
	row := &Row{
		Name: j.name, Verb: j.verb, State: stateIdle, Command: "compress " + cli.ShellLine(j.arguments(r.dir)),
		Report: filepath.Join(r.dir, reportName(j.name)), Log: filepath.Join(r.dir, logName(j.name)),
	}

	var values, needs []string
	for _, v := range j.values {
		values = append(values, v.name+"="+v.text)
	}
	for _, n := range j.needs {
		needs = append(needs, n.name)
	}

	row.Matrix, row.Needs = strings.Join(values, " "), strings.Join(needs, " ")
	if j.out != "" {
		row.Out = filepath.Join(r.dir, j.out)
	}

	return row
}

// report puts the rows together.
func (r *run) report() *Report {
	out := &Report{Plan: r.file, Out: r.dir, Jobs: []*Row{}}
	for _, j := range r.jobs {
		row := r.rows[j]
		out.Jobs = append(out.Jobs, row)

		switch row.State {
		case stateDone:
			out.Done++
		case stateKept:
			out.Kept++
		case stateFailed:
			out.Failed++
		default:
			out.Idle++
		}
	}

	return out
}

// show prints the rows.
func (r *run) show(rep *Report) {
	t := &report.Table{Columns: report.Columns("job", "verb", "state", "seconds|%.2f", "output")}
	for _, row := range rep.Jobs {
		where := row.Out
		if where == "" {
			where = row.Report
		}

		state := row.State
		if row.Resumed {
			state += ", continued"
		}

		t.Add(row.Name, row.Verb, state, row.Seconds, where)
	}

	r.Table(t)
}

// Rehearsal is the report of --dry-run.
type Rehearsal struct {
	Plan string     `json:"plan"`
	Jobs []*Planned `json:"jobs"`
}

// Planned is a job in a rehearsal.
type Planned struct {
	Name    string   `json:"name"`
	Verb    string   `json:"verb"`
	Action  string   `json:"action"` // run, continue or keep
	Needs   []string `json:"needs"`
	Command []string `json:"command"`
	Recipe  string   `json:"recipe,omitempty"` // document that the verb reads
}

// rehearse shows the command lines and what they need, and which jobs the folder has already. It writes nothing.
func (r *run) rehearse() (any, error) {
	out := &Rehearsal{Plan: r.file}
	h := newHasher(filepath.Join(r.dir, stateFolder, hashesFile), absolute(r.dir))
	kept := map[*job]bool{}
	for _, j := range r.jobs {
		p := &Planned{
			Name: j.name, Verb: j.verb, Action: "run", Needs: []string{},
			Command: append([]string{"compress"}, j.arguments(r.dir)...), Recipe: string(j.document(r.dir)),
		}
		there := true
		for _, n := range j.needs {
			p.Needs = append(p.Needs, n.name)
			there = there && kept[n]
		}

		if rec := readRecord(r.dir, j.name); rec != nil && there && !r.o.Overwrite {
			key, err := keyOf(r.Ctx, h, j, r.dir, r.version)
			switch {
			case err != nil:
				return nil, err
			case rec.isDone(r.Ctx, h, r.dir, key):
				p.Action, kept[j] = "keep", true
			case rec.Key == key && !rec.Done:
				p.Action = "continue"
			}
		}

		out.Jobs = append(out.Jobs, p)
	}

	r.showPlan(out)
	return out, nil
}

// showPlan prints the graph and the command lines.
func (r *run) showPlan(p *Rehearsal) {
	t := &report.Table{Columns: report.Columns("job", "verb", "needs", "would")}
	for _, j := range p.Jobs {
		t.Add(j.Name, j.Verb, strings.Join(j.Needs, " "), j.Action)
	}

	r.Table(t)

	for _, j := range p.Jobs {
		r.Printf("\n# %s\n%s\n", j.Name, cli.ShellLine(j.Command))
		if j.Recipe != "" {
			r.Printf("  %s\n", strings.ReplaceAll(strings.TrimRight(j.Recipe, "\n"), "\n", "\n  "))
		}
	}
}
