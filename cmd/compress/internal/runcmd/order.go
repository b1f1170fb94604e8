package runcmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/editevalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/evalcmd"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/merge"
)

// order sorts the jobs so that each comes after what it needs, otherwise as in the plan. What is left is a cycle.
func (b *builder) order() []*job {
	done := map[*job]bool{}
	var out []*job
	for len(out) < len(b.jobs) {
		before := len(out)

		for _, j := range b.jobs {
			if !done[j] && !slices.ContainsFunc(j.needs, func(n *job) bool { return !done[n] }) {
				done[j] = true
				out = append(out, j)
			}
		}

		if len(out) == before {
			b.cycle(done)
			return nil
		}
	}

	return out
}

// cycle names the jobs that need each other.
func (b *builder) cycle(done map[*job]bool) {
	i := slices.IndexFunc(b.jobs, func(j *job) bool { return !done[j] })
	var path []*job
	for j := b.jobs[i]; ; {
		if at := slices.Index(path, j); at >= 0 {
			var names []string
			for _, k := range append(path[at:], j) {
				names = append(names, k.name)
			}
			b.Add(j.Place, strictyaml.ErrValue, "jobs need each other: %s", strings.Join(names, " needs "))
			return
		}

		path = append(path, j)
		j = j.needs[slices.IndexFunc(j.needs, func(n *job) bool { return !done[n] })]
	}
}

// pick keeps the named jobs and what they need, in order. No names keep all.
func pick(jobs []*job, names []string) ([]*job, error) {
	if len(names) == 0 {
		return jobs, nil
	}

	wanted := map[*job]bool{}
	var want func(j *job)
	want = func(j *job) {
		if !wanted[j] {
			wanted[j] = true
			for _, n := range j.needs {
				want(n)
			}
		}
	}

	for _, name := range names {
		found := false
		for _, j := range jobs {
			if j.name == name || j.base == name {
				want(j)
				found = true
			}
		}
		if !found {
			var known []string
			for _, j := range jobs {
				known = append(known, j.name)
			}
			return nil, cli.Usagef("there is no job %.60q%s", name, strictyaml.Suggest(name, known))
		}
	}

	return slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return !wanted[j] }), nil
}

// arguments are those of the program for a job: what the plan says and what the run gives. dir is the folder as
// it is to be written.
func (j *job) arguments(dir string) []string {
	words := len(strings.Fields(j.verb))
	args := slices.Clone(j.call[:words])
	if j.out != "" {
		args = append(args, "--out="+inFolder(j.out))
	}

	args = append(args, "--report="+inFolder(reportName(j.name)))
	args = append(args, j.call[words:]...)
	for i := range args {
		args[i] = at(dir, args[i])
	}

	return args
}

// at puts a folder in its place.
func at(dir, text string) string { return strings.ReplaceAll(text, string(folderMark), dir) }

// document is what the verb reads, with the folder in its place; nil if it reads none.
func (j *job) document(dir string) []byte {
	if j.recipe == nil {
		return nil
	}
	return strictyaml.Marshal(placed(j.recipe, dir))
}

// placed is a document with the folder in its place.
func placed(n *strictyaml.Node, dir string) *strictyaml.Node {
	out := *n
	out.Text = at(dir, n.Text)
	out.Items = nil
	out.Entries = nil
	for _, item := range n.Items {
		out.Items = append(out.Items, placed(item, dir))
	}

	for _, e := range n.Entries {
		e.Value = placed(e.Value, dir)
		out.Entries = append(out.Entries, e)
	}

	return &out
}

// rehearse has the verb's own command look at a job's command line, without doing the work.
func (b *builder) rehearse(j *job) {
	var said bytes.Buffer
	args := j.arguments(unmade)
	a := cli.New(args, io.Discard, &said)
	a.Rehearse()
	root := b.verbs(a)
	c, _, err := root.Find(args)
	if err != nil || c == root {
		b.Add(j.Place, strictyaml.ErrValue, "job %s: %v", j.name, err)
		return
	}

	if err := a.Run(context.Background(), root); err == nil || errors.Is(err, fs.ErrNotExist) && j.waits() {
		j.configure(c)
		return
	}

	text := strings.TrimPrefix(strings.TrimSpace(said.String()), c.CommandPath()+": ")
	b.Add(j.blame(text), strictyaml.ErrValue, "job %s: %s", j.name, text)
}

// waits tells a job with inputs that other jobs make.
func (j *job) waits() bool {
	return slices.ContainsFunc(j.named, func(s string) bool { return strings.ContainsRune(s, folderMark) })
}

// blame is where the plan says what a message is about: the flag that it names, or whose value it quotes; else the job.
func (j *job) blame(text string) strictyaml.Place {
	for _, f := range j.given {
		if regexp.MustCompile(`(^|[^-\w])--` + regexp.QuoteMeta(f.Key) + `($|[^-\w])`).MatchString(text) {
			return f.Value.Place
		}
	}

	for _, f := range j.given {
		for _, n := range append(f.Value.Items, f.Value) {
			for part := range strings.SplitSeq(n.Text, ",") {
				if part != "" &&
					(strings.Contains(text, f.Key+" "+part) ||
						len(part) > 1 && strings.Contains(text, strconv.Quote(part))) {
					return n.Place
				}
			}
		}
	}

	return j.Place
}

// recipeFaults finds what is wrong with a document by itself, before models are looked at.
func recipeFaults(verb, name string, text []byte) []strictyaml.Problem {
	var err error
	switch {
	case verb == "eval batch":
		err = evalcmd.CheckPlan(name, text)
	case verb == "editeval":
		err = editevalcmd.CheckPlan(name, text)
	case verb != "merge" && verb != "conflict":
		return nil
	default:
		_, err = merge.Parse(name, text)
	}

	var all *strictyaml.Problems
	if errors.As(err, &all) {
		return all.List
	}

	if err != nil {
		return []strictyaml.Problem{{Message: err.Error(), Err: strictyaml.ErrValue}}
	}

	return nil
}

// inspect checks what a plan names against the disk: inputs that no job makes must be there, and what a job
// makes must be named by reference, since the order would not be known otherwise.
func (b *builder) inspect(jobs []*job, dir string) error {
	for _, j := range jobs {
		c, _, err := b.root.Find(strings.Fields(j.verb))
		if err != nil {
			return err
		}

		b.present(c, j)
		for _, text := range j.named {
			b.direct(jobs, j, dir, text)
		}
	}

	return cli.Usage(b.Err())
}

// isPathWord tells a word of a usage line that stands for an argument.
func isPathWord(word string) bool {
	return strings.Trim(word, "[].…") == strings.ToUpper(strings.Trim(word, "[].…")) || strings.HasSuffix(word, ".yaml")
}

// direct refuses the name of another job's output that is written out.
func (b *builder) direct(jobs []*job, j *job, dir, text string) {
	if strings.ContainsRune(text, folderMark) || text == "" || len(text) > 4096 {
		return
	}

	folder, errA := filepath.Abs(dir)
	path, errB := filepath.Abs(text)
	if errA != nil || errB != nil {
		return
	}

	rel, err := filepath.Rel(folder, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") || rel == "." {
		return
	}

	first, _, _ := strings.Cut(rel, "/")
	for _, other := range jobs {
		if slices.Contains(other.files(), first) {
			b.Add(j.Place, strictyaml.ErrValue, "job %s: %s is what job %s writes (HINT: write ${jobs.%s.out})", j.name,
				text, other.name, other.name)
		}
	}
}
