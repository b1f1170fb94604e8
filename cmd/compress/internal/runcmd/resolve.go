package runcmd

import (
	"encoding/csv"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// folderMark stands for the folder of the run in what a plan says, so that a job's key does not depend on where
// that is.
const folderMark = '\x00'

// job is a job of a plan with everything settled but the folder.
type job struct {
	strictyaml.Place
	name   string
	base   string // name in the plan
	verb   string
	cmd    *cobra.Command     // of the verb; nil where there is no such verb
	values []binding          // of the matrix
	given  []strictyaml.Entry // flags, as the plan has them

	call   []string         // arguments of the program: verb, arguments and flags of the plan
	recipe *strictyaml.Node // document that the verb reads; nil: none
	inputs []string         // further inputs
	out    string           // name of the output in the folder; empty: the verb has none
	folder bool             // the output is a folder
	extra  []string         // further files that flags name, by their names in the folder
	named  []string         // texts that may name inputs
	// configured are inputs that files of settings name, as the verb's own check has read them.
	configured []string
	needs      []*job // in the order of the plan, each once

	resumes, replaces bool // the verb has --resume, --overwrite
	flags             map[string]bool
}

// endings are of the outputs that are files, by verb; all other outputs are folders.
var endings = map[string]string{"forward": ".safetensors", "merge statistics": ".safetensors", "report": ".html"}

// fileFlags are flags that name files to write beside --out.
var fileFlags = []string{"masks", "html"}

// ownFlags are flags that the runner gives.
var ownFlags = []string{"out", "report", "resume", "overwrite", "json", "dry-run", "help"}

// noJobs are verbs that make no sense as jobs.
var noJobs = []string{"run", "worker", "help", "completion"}

// hidden are the endings of what unfinished runs leave beside an output: .NAME.ENDING.
var hidden = []string{"partial", "training", "dense", "batch", "answers", "parts", "old", "new"}

// builder settles the jobs of a plan.
type builder struct {
	*sheet
	verbs func(*cli.App) *cobra.Command
	root  *cobra.Command
	jobs  []*job
	table map[string]string // the variables
	tried int               // bytes of recipes that were looked at
}

// build settles a plan: matrices are multiplied out, references resolved, verbs and flags checked, and the jobs
// put into an order in which each comes after what it needs.
func build(file string, text []byte, verbs func(*cli.App) *cobra.Command, given map[string]string) (*builder, error) {
	s, err := parse(file, text, given)
	if err != nil {
		return nil, err
	}

	b := &builder{sheet: s, verbs: verbs, root: verbs(cli.New(nil, io.Discard, io.Discard)), table: map[string]string{}}
	for _, v := range s.vars {
		b.table[v.name] = v.text
	}
	if !b.multiply() {
		return nil, cli.Usage(s.Err())
	}

	i := 0
	for _, t := range s.templates {
		for range variants(t.matrix) {
			b.settle(b.jobs[i], t)
			i++
		}
	}

	if b.jobs = b.order(); b.Err() == nil {
		for _, j := range b.jobs {
			b.rehearse(j)
		}
	}

	return b, cli.Usage(b.Err())
}

// multiply makes the jobs with their names, verbs and outputs. It is false for more jobs than are allowed.
func (b *builder) multiply() bool {
	taken := map[string]string{}
	for _, n := range reserved {
		taken[n] = "the run itself"
	}

	for _, t := range b.templates {
		list := variants(t.matrix)
		if len(b.jobs)+len(list) > maxJobs {
			b.Add(t.Place, strictyaml.ErrLimit, "more than %d jobs", maxJobs)
			return false
		}

		c := b.command(t.verb)
		for _, values := range list {
			j := &job{Place: t.Place, name: nameOf(t.name, values), base: t.name, values: values}
			b.jobs = append(b.jobs, j)
			j.cmd = c

			if c == nil {
				j.out = j.name // perhaps; others may name it
				continue
			}

			j.verb = strings.TrimPrefix(c.CommandPath(), b.root.Name()+" ")
			j.resumes, j.replaces = c.Flags().Lookup("resume") != nil, c.Flags().Lookup("overwrite") != nil
			b.place(j, t, c)

			for _, n := range append(j.files(), j.name) {
				if other := taken[n]; other != "" && (n != j.name || other != j.name) {
					b.Add(t.Place, strictyaml.ErrValue,
						"job %s: %s is written by %s already (HINT: rename the job, or give it out: NAME)", j.name, n,
						other)
				}
				taken[n] = j.name
			}
		}
	}

	return true
}

// files are the names that a job takes in the folder.
func (j *job) files() []string {
	list := []string{logName(j.name), reportName(j.name)}
	if j.out != "" {
		list = append(list, j.out)
	}
	return append(list, recipeName(j.name))
}

// command finds a verb.
func (b *builder) command(n *strictyaml.Node) *cobra.Command {
	if n == nil {
		return nil
	}

	words := strings.Fields(b.Text(n, "verb"))
	c := b.root
	for _, w := range words {
		i := slices.IndexFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == w })
		if i < 0 || slices.Contains(noJobs, w) {
			b.Add(n.Place, strictyaml.ErrValue, "unknown verb %.60q%s", strings.Join(words, " "),
				strictyaml.Suggest(w, verbNames(c)))
			return nil
		}

		c = c.Commands()[i]
	}

	if len(words) == 0 || c.HasSubCommands() && c.Args != nil && c.Args(c, []string{"x"}) != nil {
		b.Add(n.Place, strictyaml.ErrValue, "verb %q is not complete%s", strings.Join(words, " "),
			strictyaml.Suggest("", verbNames(c)))
		return nil
	}

	return c
}

func verbNames(c *cobra.Command) (names []string) {
	for _, sub := range c.Commands() {
		if !slices.Contains(noJobs, sub.Name()) {
			names = append(names, sub.Name())
		}
	}
	return names
}

// place says where a job writes.
func (b *builder) place(j *job, t *template, c *cobra.Command) {
	if c.Flags().Lookup("out") == nil {
		if t.out != nil {
			b.Add(t.out.Place, strictyaml.ErrUnknownKey, "%s has no output", j.verb)
		}
		return
	}

	end := endings[j.verb]
	j.out, j.folder = j.name+end, end == ""
	if t.out == nil {
		return
	}

	s := &scope{b: b, self: j}
	j.out = b.expand(t.out, b.Text(t.out, "out"), s.plain)
	if !plainName.MatchString(j.out) || len(j.out) > maxName ||
		slices.Contains(hidden, strings.TrimPrefix(filepath.Ext(j.out), ".")) {
		b.Add(t.out.Place, strictyaml.ErrValue,
			"out %.60q: a name in the folder of the run, with letters, digits, and . _ + - after the first", j.out)
	}
}

// scope is where references of a job are looked up.
type scope struct {
	b    *builder
	self *job
}

// plain looks up a reference that does not lead to another job.
func (s *scope) plain(ref string) (string, string) {
	if key, ok := strings.CutPrefix(ref, "matrix."); ok {
		for _, v := range s.self.values {
			if v.name == key {
				return v.text, ""
			}
		}
		return "", "the job's matrix has no key " + key
	}

	if strings.HasPrefix(ref, "jobs.") {
		return "", "other jobs cannot be named here"
	}

	return known(s.b.table, ref)
}

// value looks up a reference.
func (s *scope) value(ref string) (string, string) {
	switch rest, other := strings.CutPrefix(ref, "jobs."); {
	case ref == "dir":
		return string(folderMark), ""
	case ref == "out" && s.self.out == "":
		return "", s.self.verb + " has no output"
	case ref == "out":
		return inFolder(s.self.out), ""
	case other:
		dot := max(0, strings.LastIndexByte(rest, '.'))
		name, field := rest[:dot], strings.TrimPrefix(rest[dot:], ".")
		list, fault := s.b.named(name, s.self)
		if fault == "" && len(list) > 1 {
			fault = fmt.Sprintf("job %s stands for %d jobs: %s (HINT: name one of them, give this job the same "+
				"matrix, or take all with ${jobs.%s.%ss})",
				name, len(list), shorten(list), name, field)
		}

		if fault != "" {
			return "", fault
		}

		return s.output(list[0], field)
	}

	return s.plain(ref)
}

// output is what another job gives, which is then needed.
func (s *scope) output(other *job, field string) (string, string) {
	switch {
	case other == s.self:
		return "", "a job cannot need itself"
	case field == "report":
		s.need(other)
		return inFolder(reportName(other.name)), ""
	case field != "out":
		return "", fmt.Sprintf("a job has out and report, not %.60q", field)
	case other.out == "":
		return "", fmt.Sprintf("%s has no output (HINT: ${jobs.%s.report} is its report)", other.verb, other.name)
	}

	s.need(other)
	return inFolder(other.out), ""
}

func (s *scope) need(other *job) {
	if !slices.Contains(s.self.needs, other) {
		s.self.needs = append(s.self.needs, other)
	}
}

func inFolder(name string) string { return string(folderMark) + "/" + name }

// shorten lists names of jobs for a message.
func shorten(list []*job) string {
	var names []string
	for _, j := range list[:min(len(list), 6)] {
		names = append(names, j.name)
	}
	if len(list) > 6 {
		names = append(names, "…")
	}
	return strings.Join(names, ", ")
}

// named finds the jobs of a name: one, or the variants of a matrix. If exactly one variant has the values that
// self has for all of its keys, it is that one.
func (b *builder) named(name string, self *job) ([]*job, string) {
	var list, same []*job
	for _, j := range b.jobs {
		if j.name == name {
			return []*job{j}, ""
		}

		if j.base == name {
			list = append(list, j)
			if j.matches(self) {
				same = append(same, j)
			}
		}
	}

	switch {
	case len(list) == 0:
		var names []string
		for _, t := range b.templates {
			names = append(names, t.name)
		}
		return nil, fmt.Sprintf("there is no job %.60q%s", name, strictyaml.Suggest(name, names))
	case len(same) == 1:
		return same, ""
	}

	return list, ""
}

// matches reports whether another job's matrix has the values of this one's.
func (j *job) matches(other *job) bool {
	for _, v := range j.values {
		if !slices.Contains(other.values, v) {
			return false
		}
	}
	return true
}

// all is the value of an item of a list that is nothing but ${jobs.NAME.outs} or reports: those of all variants.
func (s *scope) all(text string) (list []string, fault string, ok bool) {
	ref, isJob := strings.CutPrefix(text, "${jobs.")
	ref, closed := strings.CutSuffix(ref, "}")
	dot := strings.LastIndexByte(ref, '.')
	if !isJob || !closed || dot < 0 || ref[dot:] != ".outs" && ref[dot:] != ".reports" {
		return nil, "", false
	}

	var found []*job
	for _, j := range s.b.jobs {
		if j.base == ref[:dot] || j.name == ref[:dot] {
			found = append(found, j)
		}
	}
	if len(found) == 0 {
		_, fault := s.b.named(ref[:dot], s.self)
		return nil, fault, true
	}

	for _, j := range found {
		text, fault := s.output(j, strings.TrimSuffix(ref[dot+1:], "s"))
		if fault != "" {
			return nil, fault, true
		}

		list = append(list, text)
		if !s.b.spend(&strictyaml.Node{}, len(text)) {
			return nil, "", true
		}
	}

	return list, "", true
}

// text resolves a scalar.
func (s *scope) text(n *strictyaml.Node, what string) string {
	return s.b.expand(n, s.b.Text(n, what), s.value)
}

// texts resolves an item of a list, which may stand for several.
func (s *scope) texts(n *strictyaml.Node, what string) []string {
	if n.Kind == strictyaml.Scalar {
		if list, fault, ok := s.all(n.Text); ok {
			if fault != "" {
				s.b.Add(n.Place, strictyaml.ErrValue, "%.200s: %s", n.Text, fault)
			}
			return list
		}
	}
	return []string{s.text(n, what)}
}

// settle resolves everything that a job says.
func (b *builder) settle(j *job, t *template) {
	c, s := j.cmd, &scope{b: b, self: j}
	j.flags = map[string]bool{}
	if c == nil {
		return
	}

	var args []string
	if t.recipe != nil {
		b.document(s, j, t, c)
		args = append(args, inFolder(recipeName(j.name)))
	}

	for _, n := range t.args {
		args = append(args, s.texts(n, "an argument")...)
	}

	j.named = append(j.named, args...)
	var flags []string
	j.given = t.flags
	for _, e := range t.flags {
		flags = append(flags, b.flag(s, j, c, e)...)
	}
	for _, n := range t.inputs {
		j.inputs = append(j.inputs, s.texts(n, "an input")...)
	}

	for _, n := range t.needs {
		name := b.Text(n, "a need")
		list, fault := b.named(name, j)
		if fault != "" {
			b.Add(n.Place, strictyaml.ErrValue, "needs: %s", fault)
		}

		for _, other := range list {
			if other == j {
				b.Add(n.Place, strictyaml.ErrValue, "needs: a job cannot need itself")
				continue
			}
			s.need(other)
		}
	}

	j.call = strings.Fields(j.verb)
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") }) {
		j.call = append(append(append(j.call, flags...), "--"), args...)
	} else {
		j.call = append(append(j.call, args...), flags...)
	}
}

// document settles the recipe of a job.
func (b *builder) document(s *scope, j *job, t *template, c *cobra.Command) {
	if use := strings.Fields(c.Use); len(use) < 2 || !strings.HasSuffix(use[1], ".yaml") {
		b.Add(t.recipe.Place, strictyaml.ErrUnknownKey, "%s reads no recipe or plan", j.verb)
		return
	}

	j.recipe = s.tree(j, t.recipe)
	if b.Err() != nil {
		return
	}

	text := j.document("DIR")
	if b.tried += len(text); b.tried > strictyaml.MaxBytes {
		return // the verb will look at it
	}
	for _, p := range recipeFaults(j.verb, recipeName(j.name), text) {
		b.Add(t.recipe.Place, p.Err, "recipe of %s: %s", j.name, p.Message)
	}
}

// tree resolves the texts of a document. One that is nothing but a reference takes the form of the value: ${x}
// is the number 5 where x is.
func (s *scope) tree(j *job, n *strictyaml.Node) *strictyaml.Node {
	out := *n
	out.Items, out.Entries = nil, nil
	if !s.b.spend(n, 0) {
		return &out
	}

	switch n.Kind {
	case strictyaml.Scalar:
		out.Text = s.b.expand(n, n.Text, s.value)
		if out.Text != n.Text && reference.FindString(n.Text) == n.Text {
			out.Quoted = false
		}
		j.named = append(j.named, out.Text)
	case strictyaml.List:
		for _, item := range n.Items {
			if item.Kind != strictyaml.Scalar {
				out.Items = append(out.Items, s.tree(j, item))
				continue
			}

			list, fault, ok := s.all(item.Text)
			if !ok {
				out.Items = append(out.Items, s.tree(j, item))
			}

			if fault != "" {
				s.b.Add(item.Place, strictyaml.ErrValue, "%.200s: %s", item.Text, fault)
			}

			for _, text := range list {
				out.Items = append(out.Items, &strictyaml.Node{Place: item.Place, Kind: strictyaml.Scalar, Text: text})
				j.named = append(j.named, text)
			}
		}
	case strictyaml.Map:
		for _, e := range n.Entries {
			out.Entries = append(out.Entries, strictyaml.Entry{Place: e.Place, Key: e.Key, Value: s.tree(j, e.Value)})
		}
	}

	return &out
}

// flag settles a flag of a job.
func (b *builder) flag(s *scope, j *job, c *cobra.Command, e strictyaml.Entry) []string {
	f := c.Flags().Lookup(e.Key)
	switch {
	case slices.Contains(ownFlags, e.Key) || f != nil && slices.Contains(ownFlags, f.Name):
		b.Add(e.Place, strictyaml.ErrUnknownKey, "flag %s is given by the run itself", e.Key)
		return nil
	case f == nil:
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(ownFlags, f.Name) {
				known = append(known, f.Name)
			}
		})

		b.Add(e.Place, strictyaml.ErrUnknownKey, "%s has no flag %.60q%s", j.verb, e.Key,
			strictyaml.Suggest(e.Key, known))
		return nil
	}

	var texts []string
	switch _, several := f.Value.(pflag.SliceValue); {
	case e.Value.Kind == strictyaml.Scalar:
		texts = s.texts(e.Value, "flag "+e.Key)
		if len(texts) > 1 && !several {
			b.Add(e.Value.Place, strictyaml.ErrType, "flag %s takes one value", e.Key)
		}
	case e.Value.Kind == strictyaml.List && several:
		for _, n := range e.Value.Items {
			for _, text := range s.texts(n, "a value of flag "+e.Key) {
				texts = append(texts, asItem(f, text))
			}
		}
	default:
		b.Add(e.Value.Place, strictyaml.ErrType, "flag %s takes %s", e.Key,
			map[bool]string{true: "a value or a list of values", false: "one value"}[several])
	}

	var out []string
	for _, text := range texts {
		b.tryFlag(f, e, text)
		out = append(out, "--"+f.Name+"="+text)
	}

	j.flags[f.Name] = true
	j.named = append(j.named, texts...)
	b.written(j, f, e, texts)

	return out
}

// asItem writes a value so that a flag that is split at commas takes it for one.
func asItem(f *pflag.Flag, text string) string {
	if !strings.HasSuffix(f.Value.Type(), "Slice") || !strings.ContainsAny(text, ",\"\n") {
		return text
	}
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write([]string{text}) // into memory
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// valueKinds says what the values of flags look like.
var valueKinds = map[string]string{
	"int": "a whole number", "int64": "a whole number", "uint64": "a whole number, 0 or more",
	"float64": "a number such as 0.5", "bool": "true or false",
	"duration": "a time such as 300ms or 2s", "intSlice": "whole numbers",
}

// tryFlag checks a value against the flag's own type, and that inputs which no job makes are there.
func (b *builder) tryFlag(f *pflag.Flag, e strictyaml.Entry, text string) {
	if text == "" && f.Value.Type() == "string" && !cli.TakesEmpty(f) {
		b.Add(e.Value.Place, strictyaml.ErrValue, "flag %s is empty", e.Key)
		return
	}

	if err := cli.Try(f, text); err != nil {
		want := valueKinds[f.Value.Type()]
		if want == "" {
			want = "a " + f.Value.Type()
		}
		b.Add(e.Value.Place, strictyaml.ErrValue, "flag %s is %.60q: want %s", e.Key, text, want)
		return
	}

	if err := cli.CheckWord(f, text); err != nil {
		b.Add(e.Value.Place, strictyaml.ErrValue, "%v", err)
	}
}

// written notes the files that a flag names to be written, which must be in the folder.
func (b *builder) written(j *job, f *pflag.Flag, e strictyaml.Entry, texts []string) {
	if !slices.Contains(fileFlags, f.Name) {
		return
	}

	for _, text := range texts {
		name, inside := strings.CutPrefix(text, string(folderMark)+"/")
		if !inside || !plainName.MatchString(name) {
			b.Add(e.Value.Place, strictyaml.ErrValue, "flag %s writes a file: want ${dir}/NAME", e.Key)
			continue
		}

		for _, other := range b.jobs {
			if slices.Contains(other.files(), name) || slices.Contains(other.extra, name) ||
				slices.Contains(reserved, name) {
				b.Add(e.Value.Place, strictyaml.ErrValue, "flag %s: %s is written by something else already", e.Key,
					name)
				break
			}
		}

		j.extra = append(j.extra, name)
	}
}
