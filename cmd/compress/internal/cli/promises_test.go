package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"pgregory.net/rapid"
)

// split takes a command line apart as a POSIX shell does: words, single quotes, and a backslash outside of them.
func split(t *rapid.T, line string) (words []string) {
	var word strings.Builder
	begun := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\'':
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				t.Fatalf("a quote of %q is open", line)
			}
			word.WriteString(line[i+1 : i+1+end])
			i, begun = i+1+end, true
		case c == '\\':
			i++
			word.WriteByte(line[i])
			begun = true
		case c == ' ':
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		case strings.IndexByte("\t\n\"$`*?[]{}()<>|&;#~!", c) >= 0:
			t.Fatalf("a shell acts on %q of %q", c, line)
		default:
			word.WriteByte(c)
			begun = true
		}
	}

	if begun {
		words = append(words, word.String())
	}

	return words
}

// TestShellLine: a shell takes the line apart into the words that it was made of, whatever they hold.
func TestShellLine(t *testing.T) {
	word := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
		"", "--out=a b", "it's", "$HOME", "`x`", `\`, "a\nb", "'", "~", "#", "plain/word.txt", "a;b", "!", "*",
	}))
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(word, 1, 5).Draw(t, "words")
		line := ShellLine(words)
		if got := split(t, line); !slices.Equal(got, words) {
			t.Errorf("%q is %q, which is %q", words, line, got)
		}
	})

	if got := ShellLine([]string{"compress", "prune", "a/b-c_1.txt", "--n=2:4,0.5%"}); strings.Contains(got, "'") {
		t.Errorf("plain words are quoted: %s", got)
	}
}

// TestPasswordsStay: no spelling of a cluster's address leaves a part of its password in a report, and hosts stay.
func TestPasswordsStay(t *testing.T) {
	for _, c := range []struct{ given, want []string }{
		{[]string{"nats://me:p@ss@host:4222"}, []string{"nats://host:4222"}},
		{[]string{"--cluster", "me:secret@host:4222"}, []string{"--cluster", "host:4222"}},
		{[]string{"--cluster=me:secret@one, you:hidden@two"}, []string{"--cluster=one, two"}},
		{[]string{"--cluster=nats://me:p@ss@one,tls://t@two"}, []string{"--cluster=nats://one,tls://two"}},
		{[]string{"--subject", "me@home"}, []string{"--subject", "me@home"}},
		{[]string{"--cluster", "host:4222", "a@b"}, []string{"--cluster", "host:4222", "a@b"}},
	} {
		if got := withoutSecrets(c.given); !slices.Equal(got, c.want) {
			t.Errorf("%q gives %q, want %q", c.given, got, c.want)
		}
	}

	cmd := &cobra.Command{}
	cmd.Flags().String("cluster", "", "")
	if err := cmd.ParseFlags([]string{"--cluster", "me:secret@host"}); err != nil {
		t.Fatal(err)
	}
	if got := flagValues(cmd)["cluster"]; got != "host" {
		t.Errorf("the flag is reported as %q", got)
	}
}

// TestFlagsInReports: values have the types that JSON has for them, and what JSON has no number for is a text.
func TestFlagsInReports(t *testing.T) {
	cmd := &cobra.Command{}
	f := cmd.Flags()
	f.Bool("b", false, "")
	f.Int("i", -3, "")
	f.Uint64("u", 1<<63, "")
	f.Float64("x", 0.1, "")
	f.Float64("inf", 0, "")
	f.Duration("d", 0, "")
	f.StringSlice("list", nil, "")
	f.String("text", "12", "")
	if err := cmd.ParseFlags([]string{"--b", "--inf=Inf", "--d=1500ms", "--list=a,nats://p@h"}); err != nil {
		t.Fatal(err)
	}

	want := map[string]any{
		"b": true, "i": int64(-3), "u": uint64(1 << 63), "x": 0.1, "inf": "+Inf", "d": "1.5s",
		"list": []string{"a", "nats://h"}, "text": "12",
	}
	got := flagValues(cmd)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Error(err)
	}
}

// TestHintsStay: a line that is cut keeps the hint at its end, also where the text alone would fit.
func TestHintsStay(t *testing.T) {
	const hint = " (HINT: do this)"
	for _, size := range []int{MaxLine - 5, MaxLine, MaxLine + 1, 3 * MaxLine} {
		got := ShownLine(strings.Repeat("x", size) + hint)
		if !strings.HasSuffix(got, hint) || len(got) > MaxLine+64 {
			t.Errorf("%d bytes: it ends in %q, %d bytes", size, got[len(got)-40:], len(got))
		}

		shown := strings.Count(got, "x")
		if missing := fmt.Sprintf("(%d bytes more)", size-shown); !strings.Contains(got, missing) {
			t.Errorf("%d bytes, %d of them shown: it ends in %q", size, shown, got[len(got)-40:])
		}
	}

	if text := strings.Repeat("y", MaxLine-len(hint)) + hint; ShownLine(text) != text {
		t.Error("a line that fits is cut")
	}
	if got := ShownLine("x (HINT: " + strings.Repeat("long ", MaxLine) + ")"); len(got) > MaxLine+64 {
		t.Errorf("an endless hint is kept: %d bytes", len(got))
	}
}

// TestInputsOfLists: each file of a flag that takes several counts as an input, which no report replaces.
func TestInputsOfLists(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	earlier := []byte(`{"command": "compress x", "args": [], "version": "1", "started": "x"}`)
	if err := os.WriteFile(file, earlier, 0o666); err != nil {
		t.Fatal(err)
	}

	for name, args := range map[string][]string{
		"one":     {"--calib", file},
		"two":     {"--calib", "a", "--calib", file},
		"commas":  {"--list", "a," + file},
		"nothing": nil,
	} {
		var stderr strings.Builder
		a := New(append([]string{"try", "--report", file}, args...), io.Discard, &stderr)
		var inputs []string
		cmd := a.Verb(Verb{
			Use: "try", Short: "x", Args: cobra.NoArgs,
			Run: func(j *Job, _ []string) (any, error) { inputs = j.Inputs; return nil, errors.New("no work") },
		})

		cmd.Flags().StringArray("calib", nil, "")
		cmd.Flags().StringSlice("list", nil, "")
		Inputs(cmd, "calib", "list")
		root := &cobra.Command{Use: "compress"}
		root.AddCommand(cmd)

		code := a.Execute(context.Background(), root)
		refused := code == 2 && strings.Contains(stderr.String(), "it is an input of this run")
		if refused != (name != "nothing") || name == "nothing" && inputs == nil {
			t.Errorf("%s: exit code %d, inputs %q: %s", name, code, inputs, stderr.String())
		}
	}
}

// TestWordsOfFlagGroups: what the flag library says about flags that belong together is said in our words.
func TestWordsOfFlagGroups(t *testing.T) {
	cmd := &cobra.Command{}
	cmd.Flags().StringP("out", "o", "", "`DIR` folder")
	cmd.Flags().String("data", "", "`FILE` text")
	cmd.Flags().Bool("all", false, "everything")

	for text, want := range map[string]string{
		"at least one of the flags in the group [text file] is required": "give --text or --file",
		"if any flags in the group [a b c] are set none of the others can be; [c a] were all set": "--a and --c " +
			"exclude each other",
		`required flag(s) "out" not set`: "--out is not given (HINT: add -o, --out DIR)",
		`required flag(s) "data", "out" not set`: "--data and --out are not given (HINT: add --data FILE " +
			"-o, --out DIR)",
		`required flag(s) "all" not set`:                "--all is not given (HINT: add --all)",
		`something else about the flag(s) "a" not set.`: `something else about the flag(s) "a" not set.`,
	} {
		if got := plainer(cmd, text); got != want {
			t.Errorf("%s\nis worded: %s\n     want: %s", text, got, want)
		}
	}
}

// runOf runs a verb that takes one argument and some flags, and gives its exit code and the line that it says.
func runOf(t *testing.T, v Verb, args ...string) (int, string) {
	t.Helper()
	var stderr bytes.Buffer
	a := New(append([]string{"try"}, args...), io.Discard, &stderr)
	v.Short = "x"
	v.Run = func(*Job, []string) (any, error) { return struct{}{}, nil }
	cmd := a.Verb(v)
	cmd.Flags().String("data", "", "`FILE` text")
	cmd.Flags().String("out", "", "`DIR` folder")
	cmd.Flags().Int("count", 1, "`N` number")
	cmd.Flags().Bool("all", false, "everything")
	cmd.Flags().StringSlice("list", nil, "`NAME` names")
	cmd.Flags().String("place", "", "`NAME` of a place")
	OneOf(cmd, "place", "here", "there")
	root := &cobra.Command{Use: "compress"}
	root.AddCommand(cmd)
	code := a.Execute(t.Context(), root)
	return code, strings.TrimSpace(stderr.String())
}

// TestWrongArguments: too many and too few are told with the verb's line, and values that people give as further
// arguments are put behind their flags, quoted as a shell needs it.
func TestWrongArguments(t *testing.T) {
	one := Verb{Use: "try MODEL --data FILE", Args: cobra.ExactArgs(1), Habit: []string{"data", "out"}}
	none := Verb{Use: "try", Args: cobra.NoArgs}
	for _, c := range []struct {
		verb Verb
		args []string
		want string
	}{
		{one, nil, "compress try: 0 arguments are given, which is too few: compress try MODEL --data FILE"},
		{
			one,
			[]string{"m", "my text.txt"},
			"compress try: 2 arguments are given, which is too many: compress try MODEL --data FILE " +
				"(HINT: did you mean compress try m --data 'my text.txt'?)",
		},
		{
			one,
			[]string{"m", "a", "b", "--all", "--list", "x,y", "--count=3"},
			"compress try: 3 arguments are given, which is too many: compress try MODEL --data FILE " +
				"(HINT: did you mean compress try m --data a --out b --all --count 3 --list x --list y?)",
		},
		{
			one,
			[]string{"m", "a", "--data", "b", "--out=here", "--all=false"},
			"compress try: 2 arguments are given, which is too many: compress try MODEL --data FILE " +
				"(HINT: a name with blanks needs quotes)",
		},
		{ // a word that a flag knows goes to it, as llama-quantize takes them
			Verb{Use: "try MODEL", Args: cobra.ExactArgs(1), Habit: []string{"place", "data"}},
			[]string{"m", "file", "There"},
			"compress try: 3 arguments are given, which is too many: compress try MODEL " +
				"(HINT: did you mean compress try m --place there --data file?)",
		},
		{ // an argument that may be left out is still the first of two
			Verb{Use: "try [MODEL] --data LIST", Args: cobra.MaximumNArgs(1), Habit: []string{"data"}},
			[]string{"m", "piqa"},
			"compress try: 2 arguments are given, which is too many: compress try [MODEL] --data LIST " +
				"(HINT: did you mean compress try m --data piqa?)",
		},
		{none, []string{"x"}, "compress try: 1 argument is given, but there is nothing to give: compress try"},
		{one, []string{"m", "--count", "many"}, `compress try: --count "many": want a whole number`},
		{
			one, []string{"m", "--count", "auto"}, `compress try: --count "auto": want a whole number ` +
				`(HINT: leave --count out: its default is chosen automatically)`,
		},
		{one, []string{"m", "--data"}, "compress try: --data needs a value: --data FILE"},
		{one, []string{"m", "--place", "heer"}, `compress try: --place "heer"; known: here, there; did you mean "here"?`},
		{one, []string{"m", "--dta", "x"}, "compress try: unknown flag --dta (HINT: did you mean --data?)"},
		{one, []string{"m", "--zzzz"}, "compress try: unknown flag --zzzz (HINT: compress try --help lists the flags)"},
		{one, []string{""}, "compress try: argument 1 is empty"},
	} {
		if code, got := runOf(t, c.verb, c.args...); code != 2 || got != c.want {
			t.Errorf("%q: exit code %d\nhave %s\nwant %s", c.args, code, got, c.want)
		}
	}
}

// TestHeadWins: what the head of a report says, the result does not say again; a result that is no object has a key of
// its own, and nothing is one without keys.
func TestHeadWins(t *testing.T) {
	a := New([]string{"try"}, io.Discard, io.Discard)
	record := func(result any) map[string]any {
		t.Helper()
		var text []byte
		work := func(j *Job, _ []string) (_ any, err error) {
			j.Remark("mind %s", "the gap")
			text, err = j.Record(result)
			return nil, err
		}
		cmd := a.Verb(Verb{Use: "try", Short: "x", Args: cobra.NoArgs, Run: work})
		root := &cobra.Command{Use: "compress"}
		root.AddCommand(cmd)
		if code := a.Execute(t.Context(), root); code != 0 {
			t.Fatalf("exit code %d", code)
		}

		var got map[string]any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if !bytes.HasPrefix(text, []byte("{\n  \"command\": \"compress try\",\n  \"args\"")) {
			t.Errorf("the head does not come first: %.60s", text)
		}

		return got
	}

	got := record(map[string]any{"seconds": -1, "command": "mine", "loss": 2.5, "device": "own"})
	if got["command"] != "compress try" || got["seconds"] == -1.0 || got["loss"] != 2.5 || got["device"] != "own" {
		t.Errorf("%v", got)
	}
	if remarks, _ := got["remarks"].([]any); len(remarks) != 1 || remarks[0] != "mind the gap" {
		t.Errorf("remarks %v", got["remarks"])
	}

	head := slices.Sorted(maps.Keys(record(nil)))
	if got := record([]int{1, 2}); fmt.Sprint(got["result"]) != "[1 2]" {
		t.Errorf("a list: %v", got)
	}
	if got := slices.Sorted(maps.Keys(record(struct{}{}))); !slices.Equal(got, head) {
		t.Errorf("nothing has the keys %v, not %v", got, head)
	}
}
