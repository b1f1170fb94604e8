package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// TestHelp: what a verb's help looks like, to the letter: the text is wrapped, flags stand in their groups with what a
// reader needs first, long names have their meaning below, and defaults are said unless the description says them.
func TestHelp(t *testing.T) {
	var out bytes.Buffer
	a := New([]string{"try", "--help"}, &out, io.Discard)
	cmd := a.Verb(Verb{
		Use: "try MODEL --data FILE", Short: "Try", Args: cobra.ExactArgs(1),
		Example: "compress try m --data x\ncompress try n",
		Long: "Tries a model on a text that is long enough for the line to be broken at its eightieth column." +
			"\n\nTwice.",
		Unused: []string{"device", "threads", "seed", "quiet"},
		Run:    func(*Job, []string) (any, error) { return nil, nil },
	})
	cmd.Flags().String("zeta", "", "`X` comes last in its group (default: what the model says)")
	cmd.Flags().Int("samples", 128, "`N` windows")
	cmd.Flags().String("data", "", "`FILE` text")
	cmd.Flags().Bool("careful", true, "look twice")
	cmd.Flags().String("method-of-the-whole-thing", "", "`NAME` how")
	cmd.Flags().String("method", "wanda", "`NAME` what ranks the weights")
	cmd.Flags().String("hidden-flag", "", "not shown")
	cmd.Flags().Lookup("hidden-flag").Hidden = true
	chat := cmd.Flags().VarPF(&single{Value: cmd.Flags().Lookup("data").Value}, "chat", "c", "`FILE` talk")
	chat.NoOptDefVal = "-"

	root := &cobra.Command{Use: "compress"}
	root.AddCommand(cmd)
	if code := a.Execute(t.Context(), root); code != 0 {
		t.Fatal(code)
	}

	want := `
  Tries a model on a text that is long enough for the line to be broken at its
  eightieth column.

  Twice.

  USAGE

    compress try MODEL --data FILE [flags]

  EXAMPLES

    compress try m --data x
    compress try n

  DATA

    --data FILE        text
    --samples N        windows (default: 128)
    -c, --chat[=FILE]  talk

  METHOD

    --method NAME  what ranks the weights (default: wanda)
    --zeta X       comes last in its group (default: what the model says)
    --careful      look twice (default: yes, --careful=false turns it off)
    --method-of-the-whole-thing NAME
                   how

  GENERAL

    --json         print the result as JSON
    --report FILE  also write the result and the settings to this JSON file
    -h, --help     show this help

`
	got := out.String()
	for i, line := range strings.Split(got, "\n") {
		lines := strings.Split(want, "\n")
		if i >= len(lines) || strings.TrimRight(line, " ") != lines[i] {
			t.Fatalf("line %d is %q, want %q; all of it:\n%s", i+1, line, lines[min(i, len(lines)-1)], got)
		}
	}
}

// TestTableText: a table as a terminal has it, to the letter: numbers flush right, words flush left, nothing behind the
// last letter of a line, cells that are missing empty.
func TestTableText(t *testing.T) {
	table := &report.Table{
		Title: "Rows\nof two", Columns: report.Columns("name", "n", "share|%.2f", "word"), Note: "the end",
	}
	table.Add("a", 5, 0.5, "x")
	table.Add("longer", 12345, nil, nil)

	var b bytes.Buffer
	PrintTable(&b, table)
	want := `Rows; of two
name        n  share  word
──────────────────────────
a           5   0.50  x
longer  12345
the end
`
	if b.String() != want {
		t.Errorf("have\n%swant\n%s", b.String(), want)
	}

	PrintTable(io.Discard, nil) // with --json nothing is laid out
}

// TestTimeLeft: whatever was done in whatever time, the estimate of the stage is by proportion, steps of an earlier run
// count for nothing, and nothing is left at the end.
func TestTimeLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 1_000_000).Draw(t, "total")
		from := rapid.Int64Range(0, total-1).Draw(t, "from")
		done := rapid.Int64Range(from+1, total).Draw(t, "done")
		spent := time.Duration(rapid.Int64Range(1, 1_000_000).Draw(t, "ms")) * time.Millisecond

		now := time.Now()
		p := &Progress{job: &Job{}, total: total, from: from, done: done, start: now.Add(-spent)}
		text, ok := strings.CutSuffix(p.left(now), " left")
		left, err := time.ParseDuration(text)
		if !ok || err != nil {
			t.Fatal(p.left(now), err)
		}

		want := float64(spent) * float64(total-done) / float64(done-from)
		if d := float64(left) - want; d > float64(time.Second) || d < -float64(time.Second) {
			t.Errorf("%d to %d of %d in %v: %v left, want %v", from, done, total, spent, left, time.Duration(want))
		}
	})
}

// TestRates: bytes have a rate of this run alone, and progress beyond the end is the end.
func TestRates(t *testing.T) {
	var b bytes.Buffer
	p := (&Job{app: &App{stderr: &b}}).ByteProgress("read\ning", 8_000_000)
	p.Skip(2_000_000)
	p.start, p.last = time.Now().Add(-10*time.Second), time.Time{}
	p.Say("tensor\x1b[2J")
	p.Set(9_000_000)

	name, rest, _ := strings.Cut(b.String(), ": ")
	if name != "read; ing" || !strings.HasPrefix(rest, "100 %, 6") ||
		!strings.HasSuffix(rest, "left  tensor\\x1b[2J\n") {
		t.Errorf("%q", b.String())
	}
	if !strings.Contains(rest, " kB/s, 0s left") {
		t.Errorf("six megabytes in ten seconds: %q", rest)
	}

	b.Reset()

	empty := (&Job{app: &App{stderr: &b}}).Progress("nothing", 0)
	empty.last = time.Time{}
	empty.Set(0)
	if got := b.String(); got != "nothing: 0 %, 0s so far\n" {
		t.Errorf("%q", got)
	}
}

// TestPaceOfStages: what the stages to come take is known once work was done, and is proportional to their work.
func TestPaceOfStages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pace
		sum := 0.0
		for range rapid.IntRange(0, 4).Draw(t, "stages") {
			work := float64(rapid.IntRange(0, 1000).Draw(t, "work"))
			sum += work
			p.ahead = append(p.ahead, Stage{"s", work})
		}

		p.spent = time.Duration(rapid.IntRange(0, 1000).Draw(t, "spent")) * time.Second
		p.work = float64(rapid.IntRange(0, 100).Draw(t, "done"))
		spent := time.Duration(rapid.IntRange(0, 1000).Draw(t, "now")) * time.Second
		work := float64(rapid.IntRange(0, 100).Draw(t, "here"))

		got, known := p.after(spent, work)
		if known != (sum > 0 && p.work+work > 0) {
			t.Fatalf("%v of work ahead, %v done: known %t", sum, p.work+work, known)
		}

		want := time.Duration(0)
		if known {
			want = time.Duration(float64(p.spent+spent) * sum / (p.work + work))
		}
		if d := got - want; d > time.Millisecond || d < -time.Millisecond {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// gpu is a device that counts as a GPU and loses its work.
type gpu struct{ kernels.Device }

func (gpu) Info() kernels.Info { return kernels.Info{Name: "cuda:0"} }
func (gpu) Close() error       { return nil }

// TestWorkThatIsDoneAgain: after a GPU is lost the CPU begins anew, and what was printed until then is not printed
// twice, however either run divides its text; where the CPU says something else, all of it is there on a new line.
func TestWorkThatIsDoneAgain(t *testing.T) {
	chunks := func(t *rapid.T, text, name string) (list []string) {
		for text != "" {
			n := rapid.IntRange(1, len(text)).Draw(t, name)
			list, text = append(list, text[:n]), text[n:]
		}
		return list
	}

	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ab\n]{1,30}`).Draw(t, "text")
		lost := text[:rapid.IntRange(0, len(text)).Draw(t, "printed before")]
		same := rapid.Bool().Draw(t, "the CPU says the same")
		again := text
		if !same {
			again = rapid.StringMatching(`[ab\n]{1,30}`).Draw(t, "again")
		}

		var out bytes.Buffer
		j := &Job{
			app: &App{stdout: &out, stderr: io.Discard}, device: "auto", dev: gpu{ref.New()}, Ctx: t.Context(),
			verb: &cobra.Command{}, Quiet: true,
		}
		for _, part := range chunks(t, lost, "first") {
			fmt.Fprint(j.Out(), part)
		}

		if out.String() != lost {
			t.Fatalf("%q before the loss, want %q", out.String(), lost)
		}
		if j.fallBack(errors.New("something else")) || !j.fallBack(fmt.Errorf("block 3: %w", kernels.ErrLost)) {
			t.Fatal("what is lost and what is not")
		}

		for _, part := range chunks(t, again, "second") {
			fmt.Fprint(j.Out(), part)
		}

		want := again
		switch {
		case strings.HasPrefix(again, lost):
		case strings.HasPrefix(lost, again): // it broke off, or has less to say
			want = lost
		case strings.HasSuffix(lost, "\n"):
			want = lost + again
		default:
			want = lost + "\n" + again
		}
		if out.String() != want {
			t.Errorf("%q, then %q: %q, want %q", lost, again, out.String(), want)
		}
	})
}

// full is a disk that takes some bytes, or a reader that has gone away.
type full struct {
	room int
	err  error
}

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, f.err
	}
	return len(p), nil
}

// TestLostResults: results that do not reach stdout are a failure of the work, which is said once; a reader that has
// seen enough is none.
func TestLostResults(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{syscall.ENOSPC, 1, "compress try: not everything could be printed: no space left on device (HINT: look where"},
		{syscall.EPIPE, 0, ""},
	} {
		var stderr bytes.Buffer
		a := New([]string{"try"}, &full{room: 10, err: c.err}, &stderr)
		root := &cobra.Command{Use: "compress"}
		root.AddCommand(a.Verb(Verb{
			Use: "try", Short: "x", Args: cobra.NoArgs, Run: func(j *Job, _ []string) (any, error) {
				j.Printf("a line that is longer than the room\n")
				j.Printf("another\n")
				return nil, nil
			},
		}))

		if code := a.Execute(t.Context(), root); code != c.code || !strings.HasPrefix(stderr.String(), c.want) ||
			strings.Count(stderr.String(), "\n") > 1 || c.want == "" && stderr.Len() > 0 {
			t.Errorf("%v: exit code %d, %q", c.err, code, stderr.String())
		}
	}
}

// TestPlacesOfFiles: each thing that may be in the way of an output has its own answer, before the work.
func TestPlacesOfFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}

	own := write("own.html", "page")
	nowhere := filepath.Join(dir, "no")
	alien := write("alien.txt", "letters")
	input := write("input.html", "page")
	out := filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o777); err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct{ path, to, want string }{
		"nothing asked for":   {"", "", ""},
		"nothing there":       {filepath.Join(dir, "new"), filepath.Join(dir, "new"), ""},
		"of an earlier run":   {own, own, ""},
		"empty":               {write("empty.txt", ""), filepath.Join(dir, "empty.txt"), ""},
		"of somebody":         {alien, "", "there is a file that is not a page, which is not replaced"},
		"an input":            {input, "", "it is an input of this run"},
		"a link to an input":  {link("again.html", input), "", "it is an input of this run"},
		"a link to an output": {link("link.html", own), own, ""},
		"a folder":            {out, "", "a folder (HINT: name a file)"},
		"no such folder":      {filepath.Join(nowhere, "x"), "", "there is no folder " + nowhere},
		"a file as folder":    {filepath.Join(alien, "x"), "", "there is no folder " + alien},
		"a device":            {"/dev/null", "", "no file, but a pipe, a device"},
		"in the output":       {filepath.Join(out, "report.json"), filepath.Join(out, "report.json"), ""},
		"another in it":       {filepath.Join(out, "x.json"), "", "it may only be called report.json"},
	} {
		p := Place{
			Flag: "html", Path: c.path, What: "a page", Folder: out, Seeks: true, Inputs: []string{"nowhere", input},
			Own: func(path string) bool { return strings.HasSuffix(path, ".html") },
		}
		to, err := p.Target()
		switch {
		case c.want == "" && (err != nil || to != c.to):
			t.Errorf("%s: %q, %v; want %q", name, to, err, c.to)
		case c.want != "" && (!IsUsage(err) || !strings.Contains(err.Error(), "--html "+c.path+": ") ||
			!strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", name, err)
		}
	}

	if err := Apart([2]string{"a", ""}, [2]string{"b", ""}, [2]string{"c", own}); err != nil {
		t.Error(err)
	}
	for _, pair := range [][2]string{{own, filepath.Join(dir, "link.html")}, {"x/../y", "y"}} {
		err := Apart([2]string{"a", pair[0]}, [2]string{"other", "z"}, [2]string{"b", pair[1]})
		if !IsUsage(err) || !strings.HasPrefix(err.Error(), "--a and --b name the same file") {
			t.Errorf("%q: %v", pair, err)
		}
	}
}

// TestMemoryOfGroups: both forms of control groups are read, more in use than allowed leaves no room, and what an old
// kernel writes for no limit is none.
func TestMemoryOfGroups(t *testing.T) {
	const oldMost, oldUsed = "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"
	for name, c := range map[string]struct {
		files   map[string]string
		room    int64
		limited bool
	}{
		"new":       {map[string]string{"memory.max": "100", "memory.current": "30"}, 70, true},
		"over":      {map[string]string{"memory.max": "100", "memory.current": "130"}, 0, true},
		"half":      {map[string]string{"memory.max": "100"}, 0, false},
		"old":       {map[string]string{oldMost: "50\n", oldUsed: "20\n"}, 30, true},
		"old, none": {map[string]string{oldMost: "9223372036854771712", oldUsed: "1"}, 0, false},
		"garbage":   {map[string]string{"memory.max": "lots", "memory.current": "3"}, 0, false},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "memory"), 0o777); err != nil {
			t.Fatal(err)
		}
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}

		if room, limited := memoryRoomIn(dir); room != c.room || limited != c.limited {
			t.Errorf("%s: %d, %t; want %d, %t", name, room, limited, c.room, c.limited)
		}
	}
}
