package runcmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/internal/system"
)

// rowed is a run with jobs in some states, whose earlier times are known where they are not 0.
func rowed(limit int, jobs ...string) *run {
	r := &run{
		o: &Options{}, dir: "out", file: "p.yaml", limit: limit, rows: map[*job]*Row{}, known: map[string]float64{},
	}
	for _, text := range jobs { // NAME BASE STATE SECONDS KNOWN
		var name, base, state string
		var seconds, known float64
		if _, err := fmt.Sscan(text, &name, &base, &state, &seconds, &known); err != nil {
			panic(err)
		}

		j := &job{name: name, base: base, verb: "prune", out: name}
		r.jobs = append(r.jobs, j)
		r.rows[j] = &Row{Name: name, Verb: "prune", State: strings.ReplaceAll(state, "-", " "), Seconds: seconds}
		r.known[name] = known
	}

	return r
}

// TestRunsTimeLeft: what is left is by the times of earlier runs, or of variants of the same job; unknown jobs leave it
// open; jobs that go on beside each other share it.
func TestRunsTimeLeft(t *testing.T) {
	for _, c := range []struct {
		limit int
		jobs  []string
		want  string
	}{
		{1, nil, ""},
		{1, []string{"a a done 5 0"}, ""},
		{1, []string{"a a done 5 0", "b b not-run 0 0"}, ""},
		{1, []string{"a a done 5 0", "b b not-run 0 8"}, ", about 8s left"},
		{1, []string{"a-1 a done 5 0", "a-2 a not-run 0 0", "a-3 a not-run 0 0"}, ", about 10s left"},
		{2, []string{"a-1 a done 5 0", "a-2 a not-run 0 0", "a-3 a not-run 0 0"}, ", about 5s left"},
		{9, []string{"a-1 a done 5 0", "a-2 a not-run 0 0", "a-3 a not-run 0 0"}, ", about 5s left"},
		{1, []string{"a-1 a done 2 4", "a-2 a kept 6 6", "a-3 a not-run 0 0"}, ", about 5s left"},
		{1, []string{"a-1 a failed 2 0", "a-2 a not-run 0 0"}, ""},
		{1, []string{"a a not-run 0 1.26"}, ", about 1.3s left"},
	} {
		if got := rowed(c.limit, c.jobs...).left(); got != c.want {
			t.Errorf("%v, %d at a time: %q, want %q", c.jobs, c.limit, got, c.want)
		}
	}
}

// TestRunsWords: what is said of each job as it ends, and the table at the end.
func TestRunsWords(t *testing.T) {
	r := rowed(1, "a a done 1.2345 0", "b b kept 2 2", "c c failed 3 0", "d d not-run 0 7")
	r.rows[r.jobs[2]].Error = "compress prune: no"
	r.rows[r.jobs[0]].Resumed = true
	var said []string
	r.say = func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	for _, j := range r.jobs[:3] {
		r.tell(r.rows[j])
	}

	want := []string{
		"a: done in 1.23s (3 of 4, about 7s left)", "b: kept, nothing has changed (3 of 4)",
		"c: failed after 3s: compress prune: no",
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}

	for _, j := range r.jobs {
		*r.rows[j] = Row{
			Name: j.name, Verb: j.verb, State: r.rows[j].State, Seconds: r.rows[j].Seconds, Resumed: j.name == "a",
			Out: "out/" + j.name, Report: "out/" + j.name + ".report.json",
		}
	}
	r.rows[r.jobs[3]].Out = ""

	rep := r.report()
	if rep.Done != 1 || rep.Kept != 1 || rep.Failed != 1 || rep.Idle != 1 || rep.Plan != "p.yaml" ||
		rep.Out != "out" {
		t.Errorf("%+v", rep)
	}

	out, _ := clitest.Show(t, func(j *cli.Job) { r.Job = j; r.show(rep) })
	table := `job  verb   state            seconds  output
───────────────────────────────────────────────────────
a    prune  done, continued     1.23  out/a
b    prune  kept                2.00  out/b
c    prune  failed              3.00  out/c
d    prune  not run             0.00  out/d.report.json
`
	if out != table {
		t.Errorf("have\n%swant\n%s", out, table)
	}
}

// TestVariables: variables that a plan does not have are told in one order, and of names that are as near to a wrong
// one the same is suggested every time.
func TestVariables(t *testing.T) {
	given := map[string]string{}
	for _, name := range []string{"zeta", "beta", "alpha", "gamma", "delta"} {
		given[name] = "x"
	}

	text := []byte("version: 1\nvars: {sed: 1, see: 2, set: 3, sew: 4}\njobs: {a: {verb: mix, args: [\"${sex}\"]}}\n")
	var first string
	for range 20 {
		_, err := build("plan.yaml", text, verbs, given)
		if err == nil {
			t.Fatal("variables that are not there")
		}
		if first == "" {
			first = err.Error()
		}
		if err.Error() != first {
			t.Fatalf("%s\nand then %s", first, err)
		}
	}

	at := -1
	for _, name := range []string{"alpha", "beta", "delta", "gamma", "zeta"} {
		next := strings.Index(first, "--var "+name+": the plan has no such variable")
		if next <= at {
			t.Errorf("%s is out of order in %s", name, first)
		}
		at = next
	}
	if _, err := build(
		"plan.yaml",
		text,
		verbs,
		nil,
	); err == nil ||
		!strings.Contains(err.Error(), `did you mean "sed"?`) {
		t.Error(err)
	}

	for list, fault := range map[string]bool{"a=b": false, "a=b=c": false, "a=": false, "a": true, "=b": true} {
		vars, err := (&Options{Vars: []string{list}}).given()
		if fault != cli.IsUsage(err) || !fault && vars["a"] != strings.TrimPrefix(list, "a=") {
			t.Errorf("%s: %v, %v", list, vars, err)
		}
	}
}

// TestMatrices: a matrix has every combination once, the last key runs fastest, and names of variants are names.
func TestMatrices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var axes []axis
		count := 1
		for i := range rapid.IntRange(0, 3).Draw(t, "axes") {
			values := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9:./ é]{1,4}`), 1, 4, rapid.ID).
				Draw(t, "values")
			axes = append(axes, axis{fmt.Sprint("k", i), values})
			count *= len(values)
		}

		all := variants(axes)
		if len(all) != count {
			t.Fatalf("%d variants of %v", len(all), axes)
		}

		seen := map[string]bool{}
		for i, v := range all {
			n := i
			for k := len(axes) - 1; k >= 0; k-- { // a number in a mixed base
				values := axes[k].values
				if v[k] != (binding{axes[k].key, values[n%len(values)]}) {
					t.Fatalf("variant %d of %v is %v", i, axes, v)
				}
				n /= len(values)
			}

			key := fmt.Sprint(v)
			name := nameOf("job", v)
			if seen[key] || !plainName.MatchString(name) || strings.Count(name, "-") < len(v) {
				t.Fatalf("%v is called %q", v, name)
			}
			seen[key] = true
		}
	})

	many := axis{"k", make([]string, 100)}
	if n := len(variants([]axis{many, many, many})); n != maxJobs+1 {
		t.Errorf("a million variants are cut to %d", n)
	}
}

// TestNamesInTexts: what may be a name in a value and in a line of a document.
func TestNamesInTexts(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil, "a": {"a"}, "a,b=c+d;e": {"a", "a,b=c+d;e", "b", "c", "d", "e"}, strings.Repeat("x", 4097): nil,
	} {
		if got := pieces(text); !slices.Equal(got, want) {
			t.Errorf("%.20q: %q", text, got)
		}
	}

	got := words("data: 'my file.txt'\n- \"b c\"\n{path: [x/y, z]}\n")
	for _, want := range []string{"my file.txt", "b c", "x/y", "z"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not among %q", want, got)
		}
	}
}

// TestWhatIsSaidOfJobs: outcomes that contradict themselves are not believed, and words of strangers are made plain.
func TestWhatIsSaidOfJobs(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"state":"done","seconds":1}`: true, `{"state":"kept","seconds":0}`: true,
		`{"state":"failed","seconds":1,"failure":"no"}`: true,
		`{"state":"done","seconds":1,"failure":"no"}`:   false, `{"state":"failed","seconds":1}`: false,
		`{"state":"not run","seconds":1}`: false, `{"state":"done","seconds":-1}`: false,
		`{"state":"done","seconds":1e12}`: false, `{"state":"done","seconds":1,"more":2}`: false, "": false,
		"null": false,
	} {
		if o, err := readOutcome([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %+v, %v", text, o, err)
		}
	}

	o, err := readOutcome([]byte(`{"state":"failed","seconds":1,"failure":"a\u001b[2Jb"}`))
	if err != nil || strings.ContainsRune(o.Failure, 0x1b) {
		t.Error(o, err)
	}
	if _, err := readOutcome([]byte(`{"state":"` + strings.Repeat("x", 100) + `"}`)); !errors.Is(err, jobs.ErrItem) ||
		len(err.Error()) > 150 {
		t.Error(err)
	}
}

// TestReasons: why a program failed is its own last line if that is an error of ours, otherwise how it ended; what an
// earlier run has printed is no reason.
func TestReasons(t *testing.T) {
	signal := errors.New("was ended by the signal killed")
	for _, c := range []struct {
		earlier, text string
		code          int
		err           error
		want          string
	}{
		{"", "working\ncompress prune: no data\n\n", 1, nil, "compress prune: no data"},
		{"compress prune: old\n", "", 1, nil, "ended with exit code 1"},
		{"", "compress prune: said first\npanic: x\n", 2, nil, "ended with exit code 2"},
		{"", "half a line", -1, signal, "was ended by the signal killed"},
		{"", strings.Repeat("x", 20_000) + "\ncompress ppl: late\n", 1, nil, "compress ppl: late"},
	} {
		log, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.WriteString(c.earlier + c.text); err != nil {
			t.Fatal(err)
		}
		if got := (&team{}).reason(log, int64(len(c.earlier)), c.code, c.err); got != c.want {
			t.Errorf("%.40q: %q, want %q", c.text, got, c.want)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHashesAreRemembered: the hash of a file that has long not changed is taken from the notes, one that may change
// within a tick of the clock is not, and only what was of use is kept.
func TestHashesAreRemembered(t *testing.T) {
	dir := t.TempDir()
	file, notes := filepath.Join(dir, "f"), filepath.Join(dir, "notes.json")
	if err := os.WriteFile(file, []byte("text"), 0o666); err != nil {
		t.Fatal(err)
	}

	h := newHasher(notes, "")
	sum, err := h.identity(t.Context(), file, false)
	if err != nil || len(h.used) != 0 {
		t.Fatalf("a fresh file is remembered: %v, %v", h.used, err)
	}

	now, _, err := system.State(file)
	if err != nil {
		t.Fatal(err)
	}
	h.notes[now], h.notes["another"] = "noted", "useless"
	if got, err := h.identity(t.Context(), file, false); err != nil || got != "noted" {
		t.Errorf("%s, %v", got, err)
	}

	h.used[now] = true
	if err := h.save(notes); err != nil {
		t.Fatal(err)
	}
	if again := newHasher(notes, ""); len(again.notes) != 1 || again.notes[now] != "noted" {
		t.Errorf("%v", again.notes)
	}

	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	if got, err := newHasher(notes, "").identity(t.Context(), file, false); err != nil || got != sum {
		t.Errorf("after a change of the time: %s, %v; want that of the content", got, err)
	}

	if err := os.WriteFile(notes, []byte("{damaged"), 0o666); err != nil {
		t.Fatal(err)
	}
	if got, err := newHasher(notes, "").identity(t.Context(), file, false); err != nil || got != sum {
		t.Errorf("with damaged notes: %s, %v", got, err)
	}
}

// TestIdentityOfSplitModels: whichever part of a GGUF model is named, all parts count, and one that is missing.
func TestIdentityOfSplitModels(t *testing.T) {
	dir := t.TempDir()
	var parts []string
	for i := range 3 {
		parts = append(parts, filepath.Join(dir, fmt.Sprintf("m-%05d-of-00003.gguf", i+1)))
	}
	other := filepath.Join(dir, "other-00001-of-00003.gguf")
	for i, path := range append(slices.Clone(parts), other) {
		if err := os.WriteFile(path, []byte(fmt.Sprint(i)), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	ids := func() string {
		t.Helper()
		var list []string
		for _, path := range parts[:2] {
			id, err := newHasher("", "").identity(t.Context(), path, false)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, id)
		}
		if list[0] != list[1] {
			t.Errorf("the model is %s by its first part, and %s by its second", list[0], list[1])
		}
		return list[0]
	}

	before := ids()
	if err := os.WriteFile(other, []byte("changed"), 0o666); err != nil {
		t.Fatal(err)
	}
	if ids() != before {
		t.Error("another model counts")
	}

	if err := os.WriteFile(parts[2], []byte("changed"), 0o666); err != nil {
		t.Fatal(err)
	}
	changed := ids()
	if changed == before {
		t.Error("a part that is not named does not count")
	}

	if err := os.Remove(parts[2]); err != nil {
		t.Fatal(err)
	}
	if id := ids(); id == before || id == changed {
		t.Error("a part that is missing does not count")
	}
}

// TestIdentityOfFolders: reports beside weights hold times and do not count, elsewhere and with all set they do; the
// folder of the run is no part of what it lies in, and what is no file is told apart from one.
func TestIdentityOfFolders(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	id := func(all bool) string {
		t.Helper()
		got, err := newHasher("", filepath.Join(dir, "run")).identity(t.Context(), dir, all)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	changes := func(what string, all bool, change func()) bool {
		before := id(all)
		change()
		return id(all) != before
	}

	write("config.json", "{}")
	if !changes("a report without weights", false, func() { write("report.json", "1") }) {
		t.Error("a report in a folder without weights does not count")
	}

	write("model.safetensors", "w")
	for name, counts := range map[string]bool{
		"report.json": false, "training.html": false, "config.json": true, "model.safetensors": true,
		"run/report.json": false, "run/model.safetensors": false, "sub/report.json": true, "new.txt": true,
	} {
		if got := changes(name, false, func() { write(name, name+"!") }); got != counts {
			t.Errorf("%s changes the identity: %t", name, got)
		}
	}
	if !changes("all", true, func() { write("report.json", "other") }) {
		t.Error("with all the report does not count")
	}

	if !changes("a link", false, func() {
		if err := os.Symlink("/nowhere", filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
	}) {
		t.Error("a link to nothing does not count")
	}
	if _, err := newHasher("", "").identity(t.Context(), "/dev/null", false); err == nil {
		t.Error("a device has an identity")
	}
}

// TestFlagsOfTheRun: the run's own device and seed are lent to jobs that do not set them, and threads are not.
func TestFlagsOfTheRun(t *testing.T) {
	text := []byte("version: 1\njobs:\n  a: {verb: mix, args: [.]}\n  b: {verb: mix, args: [.], flags: {seed: 7}}\n")
	b, err := build("plan.yaml", text, verbs, nil)
	if err != nil {
		t.Fatal(err)
	}

	for _, j := range b.jobs {
		j.lend([]string{"--device", "cpu", "--threads", "3", "--seed", "5"}, b.root)
		line := strings.Join(j.arguments("OUT"), " ")
		seed := map[string]string{"a": "--seed=5", "b": "--seed=7"}[j.name]
		if !strings.Contains(line, "--device=cpu") || strings.Count(line, "--seed=") != 1 ||
			!strings.Contains(line, seed) ||
			strings.Contains(line, "threads") {
			t.Errorf("%s: %s", j.name, line)
		}
	}
}

// TestBlame: a message is told at the flag that it names, or whose value it quotes, otherwise at the job.
func TestBlame(t *testing.T) {
	node := func(line int, text string) *strictyaml.Node {
		return &strictyaml.Node{Place: strictyaml.Place{Line: line}, Kind: strictyaml.Scalar, Text: text}
	}
	j := &job{Place: strictyaml.Place{Line: 1}, given: []strictyaml.Entry{
		{Key: "seq", Value: node(2, "128")},
		{Key: "seqlen", Value: node(3, "7")},
		{Key: "methods", Value: node(4, "wanda,mgnitude")},
	}}

	for text, line := range map[string]int{
		"--seqlen 7: want more": 3, "--seq 128: want less": 2, "--seqlength: no": 1, `unknown metric "mgnitude"`: 4,
		"seqlen 7 is short": 3, "nothing about flags": 1,
	} {
		if got := j.blame(text); got.Line != line {
			t.Errorf("%s: line %d, want %d", text, got.Line, line)
		}
	}
}
