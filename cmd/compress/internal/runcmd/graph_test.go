package runcmd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
)

// verbs is a command table for tests: mix writes a folder, count nothing but its report, merge and report are
// as in the program, deep has a sub-verb only.
func verbs(a *cli.App) *cobra.Command {
	verb := func(use string, flags ...string) *cobra.Command {
		c := a.Verb(cli.Verb{
			Use: use, Short: "x", Args: cobra.MinimumNArgs(1),
			Run: func(*cli.Job, []string) (any, error) { return struct{}{}, nil },
		})
		for _, f := range flags {
			c.Flags().String(f, "", "x")
		}

		if strings.Contains(use, "--out") {
			c.Flags().Bool("overwrite", false, "x")
			cli.Require(c, "out")
		}

		return c
	}

	mix := verb("mix MODEL... --out DIR", "out", "data", "masks", "text")
	mix.Flags().Bool("resume", false, "x")
	mix.Flags().Int("n", 0, "x")
	mix.Flags().StringSlice("list", nil, "x")
	mix.Flags().Bool("yes", false, "x")
	cli.Inputs(mix, "data")

	count := verb("count MODEL", "text")
	report := verb("report RUN... --out report.html", "out")
	merge := verb("merge RECIPE.yaml --out DIR", "out")
	deep := a.Verb(cli.Verb{
		Use: "deep", Short: "x", Args: cobra.NoArgs,
		Run: func(*cli.Job, []string) (any, error) { return nil, nil },
	})
	deep.AddCommand(verb("inner MODEL"))

	root := &cobra.Command{Use: "compress"}
	root.AddCommand(mix, count, report, merge, deep, verb("run PLAN"))
	return root
}

// try runs a plan by the verb's own function.
func try(t testing.TB, ctx context.Context, plan string, o Options) (*Report, string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plan.yaml")
	if err := os.WriteFile(file, []byte(plan), 0o666); err != nil {
		t.Fatal(err)
	}
	if o.Verbs = verbs; o.Workers == 0 {
		o.Workers = 1
	}

	var said strings.Builder
	a := cli.New([]string{"try"}, io.Discard, &said)
	var rep *Report
	var failure error
	root := &cobra.Command{Use: "compress"}
	root.AddCommand(
		a.Verb(cli.Verb{Use: "try", Short: "x", Args: cobra.NoArgs, Run: func(j *cli.Job, _ []string) (any, error) {
			r, err := Run(j, file, o)
			rep, _ = r.(*Report)
			failure = err
			return r, err
		}}))

	a.Execute(ctx, root)
	return rep, said.String(), failure
}

// stand stands in for child processes: it writes what it was asked for, made of its command line and its inputs.
type stand struct {
	t    testing.TB
	mu   sync.Mutex
	ran  []string            // names of jobs, as they begin
	args map[string][]string // by job
	fail func(job string, args []string) (code int, err error)
}

func (s *stand) run(ctx context.Context, args []string, log, _ *os.File) (int, error) {
	value := func(flag string) string {
		for _, a := range args {
			if v, ok := strings.CutPrefix(a, "--"+flag+"="); ok {
				return v
			}
		}
		return ""
	}

	report, out := value("report"), value("out")
	job := strings.TrimSuffix(filepath.Base(report), ".report.json")
	s.mu.Lock()
	s.ran = append(s.ran, job)
	if s.args == nil {
		s.args = map[string][]string{}
	}

	s.args[job] = args
	fail := s.fail
	s.mu.Unlock()
	fmt.Fprintf(log, "working on %s\n", job)

	if fail != nil {
		if code, err := fail(job, args); code != 0 || err != nil {
			fmt.Fprintf(log, "compress %s: no luck\n", args[0])
			return code, err
		}
	}

	dir := filepath.Dir(report)
	h := sha256.New()
	for _, a := range args {
		if a == "--resume" || strings.HasPrefix(a, "--threads=") {
			continue
		}

		fmt.Fprintln(h, strings.ReplaceAll(a, dir, "")) // but for where it is
		if strings.HasPrefix(a, "-") || !strings.HasPrefix(a, "/") {
			continue
		}

		text, err := os.ReadFile(filepath.Join(a, "sum"))
		if err != nil {
			if text, err = os.ReadFile(a); err != nil {
				fmt.Fprintf(log, "compress %s: %v\n", args[0], err)
				return 1, nil
			}
		}

		h.Write(text)
	}

	sum := fmt.Appendf(nil, "%x", h.Sum(nil))
	var err error
	if out != "" && filepath.Ext(out) == "" {
		err = errors.Join(os.MkdirAll(out, 0o777), os.WriteFile(filepath.Join(out, "sum"), sum, 0o666))
	} else if out != "" {
		err = os.WriteFile(out, sum, 0o666)
	}

	if m := value("masks"); m != "" {
		err = errors.Join(err, os.WriteFile(m, []byte("masks"), 0o666))
	}

	err = errors.Join(err,
		os.WriteFile(report, fmt.Appendf(nil, `{"command": "compress mix", "version": "1", "sum": %q}`, sum), 0o666))
	return 0, err
}

// begun lists the jobs that were begun since the last call.
func (s *stand) begun() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.ran)
	s.ran = nil
	slices.Sort(list)
	return strings.Join(list, " ")
}

const chain = `version: 1
vars: {in: IN}
jobs:
  a: {verb: mix, args: ["${in}"], flags: {n: 1}}
  b: {verb: mix, args: ["${jobs.a.out}"], flags: {n: 2, masks: "${dir}/b-masks.safetensors"}}
  c: {verb: mix, args: ["${jobs.b.out}", "${jobs.a.out}"]}
  d: {verb: count, args: ["${jobs.c.out}"], needs: [a]}
  e: {verb: report, args: ["${jobs.d.report}"]}
`

// setUp makes a folder with an input and the plan for it.
func setUp(t testing.TB, plan string) (out, in, text string) {
	dir := t.TempDir()
	in = filepath.Join(dir, "in")
	if err := os.WriteFile(in, []byte("one"), 0o666); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "out"), in, strings.ReplaceAll(plan, "IN", in)
}

// TestRunsWhatHasChanged: a second run does nothing; then what an edit, a lost or a changed output, or another
// input concerns.
func TestRunsWhatHasChanged(t *testing.T) {
	out, in, plan := setUp(t, chain)
	s := &stand{t: t}
	step := func(name, plan, want string) {
		t.Helper()
		rep, said, err := try(t, t.Context(), plan,
			Options{Out: out, program: s.run, straight: name != "first" && name != "again"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}

		if got := s.begun(); got != want {
			t.Errorf("%s: began %q, want %q; %s", name, got, want, said)
		}
		if rep.Done+rep.Kept != 5 || rep.Failed+rep.Idle != 0 {
			t.Errorf("%s: %+v", name, rep)
		}
	}

	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	step("first", plan, "a b c d e")
	step("again", plan, "")
	step("another flag", strings.Replace(plan, "n: 2", "n: 3", 1), "b c d e")
	step("speed", strings.Replace(plan, "n: 2", "n: 3, threads: 1, quiet: true", 1), "")
	if err := os.RemoveAll(filepath.Join(out, "a")); err != nil {
		t.Fatal(err)
	}

	step("lost output", strings.Replace(plan, "n: 2", "n: 3", 1), "a")
	write(filepath.Join(out, "c", "sum"), "changed")
	step("changed output", strings.Replace(plan, "n: 2", "n: 3", 1), "c")
	write(in, "two")
	step("changed input", strings.Replace(plan, "n: 2", "n: 3", 1), "a b c d e")
	write(filepath.Join(out, "b-masks.safetensors"), "x")
	step("changed further output", strings.Replace(plan, "n: 2", "n: 3", 1), "b")
	moved := out + "-moved"
	if err := os.Rename(out, moved); err != nil {
		t.Fatal(err)
	}

	out = moved
	step("moved", strings.Replace(plan, "n: 2", "n: 3", 1), "")
	rep, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true, Overwrite: true})
	if err != nil || rep.Done != 5 {
		t.Errorf("overwrite: %v, %+v", err, rep)
	}
}

// TestFailures: what needs a job that failed is not run; without keep-going nothing is begun after a failure.
// The next run goes on from there.
func TestFailures(t *testing.T) {
	plan := "version: 1\njobs:\n  a: {verb: mix, args: [IN]}\n  b: {verb: mix, args: [\"${jobs.a.out}\"]}\n  c: " +
		"{verb: mix, args: [IN], flags: {n: 1}}\n"
	for _, keep := range []bool{false, true} {
		out, _, plan := setUp(t, plan)
		s := &stand{t: t, fail: func(job string, _ []string) (int, error) { return map[string]int{"a": 1}[job], nil }}
		rep, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true, KeepGoing: keep})
		want := map[bool]string{false: "a", true: "a c"}[keep]
		if got := s.begun(); !errors.Is(err, ErrFailed) || got != want ||
			!strings.Contains(fmt.Sprint(err), "1 of 3 jobs failed: a: compress mix: no luck") {
			t.Errorf("keep-going %v: began %q, %v", keep, got, err)
		}

		if rep.Jobs[1].State != stateIdle || rep.Failed != 1 {
			t.Errorf("%+v", rep.Jobs[1])
		}

		s.fail = nil
		if _, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true}); err != nil {
			t.Fatal(err)
		}
		if got := s.begun(); got != map[bool]string{false: "a b c", true: "a b"}[keep] {
			t.Errorf("keep-going %v: then began %q", keep, got)
		}
	}
}

// TestContinues: a job that was interrupted is continued by the verb's own means where there is something to
// continue; where it refuses that, it begins anew. One that was complete but for the note of it is taken as it
// is.
func TestContinues(t *testing.T) {
	out, _, plan := setUp(t, "version: 1\njobs:\n  a: {verb: mix, args: [IN]}\n")
	ctx, cancel := context.WithCancel(t.Context())
	s := &stand{t: t, fail: func(string, []string) (int, error) {
		cancel()
		return -1, errors.Join(ctx.Err(), os.Mkdir(filepath.Join(out, ".a.partial"), 0o777))
	}}

	if _, _, err := try(t, ctx, plan, Options{Out: out, program: s.run, straight: true}); !errors.Is(err,
		context.Canceled) {
		t.Fatal(err)
	}

	s.fail = func(_ string, args []string) (int, error) {
		if slices.Contains(args, "--resume") {
			return 2, nil
		}
		if len(leftovers(out, []string{"a"})) > 0 {
			t.Error("what was left is still there")
		}
		return 0, nil
	}

	s.begun()

	if _, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true}); err != nil ||
		s.begun() != "a a" {
		t.Error("an attempt to continue that is refused", err)
	}

	rec := readRecord(out, "a")
	rec.Done = false
	if err := rec.write(out); err != nil {
		t.Fatal(err)
	}

	rep, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true})
	if err != nil || s.begun() != "" || rep.Done != 1 || !rep.Jobs[0].Resumed {
		t.Errorf("complete but for the note: %v, %+v", err, rep)
	}

	rec = readRecord(out, "a")
	rec.Done = false
	if err := errors.Join(rec.write(out), os.Remove(filepath.Join(out, "a.report.json"))); err != nil {
		t.Fatal(err)
	}

	s.fail = nil

	if _, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true}); err != nil ||
		!slices.Contains(s.args["a"], "--resume") {
		t.Errorf("without its report: %v, %q", err, s.args["a"])
	}
}

// TestPlaces: a folder that is not from run, a file of somebody else in the place of an output, and a folder
// that is in use are refused.
func TestPlaces(t *testing.T) {
	out, _, plan := setUp(t, "version: 1\njobs:\n  a: {verb: mix, args: [IN]}\n  b: {verb: mix, args: [IN], "+
		"flags: {n: 2}}\n")
	s := &stand{t: t}
	if err := errors.Join(os.Mkdir(out, 0o777), os.WriteFile(filepath.Join(out, "mine"), nil, 0o666)); err != nil {
		t.Fatal(err)
	}

	if _, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true}); !cli.IsUsage(err) ||
		s.begun() != "" {
		t.Error(err)
	}

	if err := os.Remove(filepath.Join(out, "mine")); err != nil {
		t.Fatal(err)
	}

	if _, _, err := try(t, t.Context(), plan,
		Options{Out: out, program: s.run, straight: true, Jobs: []string{"a"}}); err != nil || s.begun() != "a" {
		t.Error(err)
	}

	if err := os.WriteFile(filepath.Join(out, "b"), []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}

	if _, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true}); err == nil ||
		!strings.Contains(err.Error(), "not from this run") || s.begun() != "" {
		t.Error(err)
	}

	p, err := take(out, false)
	if err != nil {
		t.Fatal(err)
	}

	if _, _, err := try(t, t.Context(), plan, Options{Out: out, program: s.run, straight: true}); !errors.Is(err,
		cli.ErrBusy) {
		t.Error(err)
	}

	if err := p.release(); err != nil {
		t.Fatal(err)
	}

	for _, o := range []Options{
		{Out: out, Resume: true, Overwrite: true},
		{},
		{Out: out, Where: workers.Where{Workers: -1}},
		{Out: out, Vars: []string{"x"}},
		{Out: out, Vars: []string{"x=1"}},
		{Out: out, Jobs: []string{"z"}},
	} {
		if _, _, err := try(t, t.Context(), plan, o); !cli.IsUsage(err) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestNothingBegun: a folder in which no job was begun goes, unless more is in it: then it is still known as
// that of a run.
func TestNothingBegun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	for _, more := range []string{"", "merge.recipe.yaml"} {
		p, err := take(dir, false)
		if err != nil {
			t.Fatal(err)
		}

		for _, name := range []string{planFile, more} {
			if name != "" {
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}

		if err := p.release(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) != (more == "") {
			t.Errorf("with %q in it: %v", more, err)
		}
	}

	p, err := take(dir, false)
	if err != nil {
		t.Fatal(err)
	}

	if err := p.release(); err != nil {
		t.Error(err)
	}
}

// TestLeftovers: what unfinished work leaves beside an output is known by its name, and belongs to that output alone.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	all := []string{
		".a.partial", "..a.dense.partial", ".a.training", ".a.answers", ".a.partial.old", ".a.new",
		"a.partial", ".a-0.5.partial", ".a.b.partial", "a", "a.log", ".a", ".run",
	}

	for _, n := range all {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}

	got := leftovers(dir, []string{"a"})
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(all[:7])); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := leftovers(dir, []string{"a-0"}); len(got) > 0 {
		t.Errorf("of another output: %q", got)
	}
}
