package loracmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lora"
)

// TestNumbersOfFlags: lists of weights, patterns with values and amounts of memory, and what is none of them.
func TestNumbersOfFlags(t *testing.T) {
	for text, want := range map[string][]float64{"": nil, "1": {1}, "0.5, -1e2": {.5, -100}} {
		if got, err := numbers("weights", text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{",", "1,", "x", "NaN", "1,Inf", "1 2"} {
		if got, err := numbers("weights", text); !cli.IsUsage(err) || !strings.HasPrefix(err.Error(), "--weights ") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}

	got, err := patterns("rank-pattern", []string{"q=2", `layers\.(0|1)=x=16`})
	if diff := cmp.Diff(
		[]lora.Pattern{{Key: "q", Value: 2}, {Key: `layers\.(0|1)=x`, Value: 16}},
		got,
	); err != nil ||
		diff != "" {
		t.Error(err, diff)
	}
	for _, bad := range []string{"q", "=2", "q=", "q=0", "q=-1", "q=1.5", "q=NaN", "q=Inf", "q=x"} {
		if got, err := patterns("rank-pattern", []string{"v=1", bad}); !cli.IsUsage(err) || got != nil ||
			!strings.Contains(err.Error(), "--rank-pattern") {
			t.Errorf("%s: %v, %v", bad, got, err)
		}
	}
	if got, err := patterns("alpha-pattern", []string{"q=1.5"}); err != nil || got[0].Value != 1.5 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := patterns("alpha-pattern", []string{"q=Inf"}); !cli.IsUsage(err) {
		t.Errorf("an endless alpha: %v, %v", got, err)
	}

	for text, want := range map[string]int64{"": 0, "none": -1, "2MB": 2_000_000} {
		if got, err := kept(text); err != nil || got != want {
			t.Errorf("--memory %q: %d, %v", text, got, err)
		}
	}
	if got := names([]string{" q ", "", "v", " "}); !slices.Equal(got, []string{"q", "v"}) {
		t.Errorf("%q", got)
	}
}

// TestAdaptersRefused: what the flags of the verbs about adapters say by themselves is told before anything is opened.
func TestAdaptersRefused(t *testing.T) {
	dir := t.TempDir()
	for want, work := range map[string]func(j *cli.Job) (any, error){
		`--dtype "f8"; known: f32, bf16, f16`: func(j *cli.Job) (any, error) {
			return Combine(j, []string{"a"}, CombineOptions{DType: "f8"})
		},
		`--weights "1,x": "x" is no number`: func(j *cli.Job) (any, error) {
			return Combine(j, []string{"a"}, CombineOptions{DType: "f32", Weights: "1,x"})
		},
		"--rank -1; 0 keeps the rank": func(j *cli.Job) (any, error) {
			return Export(j, "a", ExportOptions{DType: "f32", Rank: -1})
		},
		"--max-shard-size": func(j *cli.Job) (any, error) {
			return Fold(j, dir, FoldOptions{Out: "out", Shard: "much"})
		},
		"none or keep": func(j *cli.Job) (any, error) {
			return Fold(j, dir, FoldOptions{Out: "out", Shard: "1"})
		},
	} {
		clitest.Refused(t, clitest.Run(t, work), want)
	}

	for name, work := range map[string]func(j *cli.Job) (any, error){
		"fold into the model": func(j *cli.Job) (any, error) {
			return Fold(j, dir, FoldOptions{Out: dir, Shard: "keep"})
		},
		"fold into the adapter": func(j *cli.Job) (any, error) {
			return Fold(j, dir, FoldOptions{Out: dir + "/x", Adapter: dir + "/x", Shard: "keep"})
		},
		"combine into the second": func(j *cli.Job) (any, error) {
			return Combine(j, []string{"a", dir}, CombineOptions{DType: "f32", Out: dir})
		},
		"export into itself": func(j *cli.Job) (any, error) {
			return Export(j, dir, ExportOptions{DType: "f32", Out: dir})
		},
		"extract into the base": func(j *cli.Job) (any, error) {
			return Extract(j, dir, dir, ExtractOptions{DType: "f32", Out: dir})
		},
	} {
		if said := clitest.Run(t, work); said.Code != 2 || said.Stdout != "" {
			t.Errorf("%s: %+v", name, said)
		}
	}
}

// TestTrainingsThatDiffer: a training that is finished is not begun again with other settings, which are told in order;
// settings that change nothing of the result do not count.
func TestTrainingsThatDiffer(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if err := os.Mkdir(out, 0o777); err != nil {
		t.Fatal(err)
	}

	finished := func(record, line string) error {
		t.Helper()
		path := filepath.Join(out, "training.json")
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if record != "" {
			if err := os.WriteFile(path, []byte(record), 0o666); err != nil {
				t.Fatal(err)
			}
		}

		var err error
		a := cli.New(append([]string{"train"}, strings.Fields(line)...), os.Stdout, os.Stderr)
		cmd := a.Verb(
			cli.Verb{Use: "train", Short: "x", Args: cobra.NoArgs, Run: func(j *cli.Job, _ []string) (any, error) {
				_, err = (&run{Job: j, o: &Options{Out: out}}).finished()
				return nil, nil
			}},
		)
		cmd.Flags().Int("rank", 8, "")
		cmd.Flags().Float64("lr", .001, "")
		cmd.Flags().StringSlice("targets", nil, "")
		cmd.Flags().String("memory", "", "")
		root := &cobra.Command{Use: "compress"}
		root.AddCommand(cmd)
		if code := a.Execute(t.Context(), root); code != 0 {
			t.Fatal(code)
		}
		return err
	}

	const record = `{"flags": {"rank": 8, "lr": 0.001, "targets": [ "q", "v" ], "memory": "1GB", "seed": 0,
		"threads": 2}}`
	for line, want := range map[string]string{
		"--targets q,v": "", "--targets q,v --memory 2GB --threads 3 --device cpu": "",
		"--targets q,v --rank 4": "--rank is 8 there and 4 here",
		"--targets q --lr 0.01 --seed 5": "--lr is 0.001 there and 0.01 here, --seed is 0 there and 5 here, " +
			`--targets is ["q","v"] there and ["q"] here`,
		"--targets q,v --seed 1 --rank=8": "--seed is 0 there and 1 here",
		"--targets v,q":                   `--targets is ["q","v"] there and ["v","q"] here`,
	} {
		err := finished(record, line)
		if want == "" && err != nil ||
			want != "" && (!cli.IsUsage(err) || !strings.Contains(err.Error(), ": "+want+" (HINT: --overwrite")) {
			t.Errorf("%s: %v", line, err)
		}
	}

	if err := finished("", "--rank 4"); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
	if err := finished(
		"{",
		"",
	); err == nil ||
		!strings.Contains(err.Error()+failure.Hint(err), "--overwrite replaces what is there") {
		t.Errorf("a damaged record: %v", err)
	}
	if err := finished(`{"flags": {"other": 1}}`, "--rank 4"); err != nil {
		t.Errorf("a record of an earlier program: %v", err)
	}
}

// TestTrainingInWords: what is said of a training at its end, and that nothing is left of its state.
func TestTrainingInWords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), ".out.training")
	done := &Report{Out: "out", Report: &lora.Report{
		Trainable: 1234, Base: 480_096, PerSecond: 99.6, Steps: []lora.Step{{Loss: 3}, {Loss: 2.5}, {Loss: 1.25}},
	}}

	for _, c := range []struct {
		evals []lora.Eval
		best  int
		want  string
	}{
		{nil, 0, ""},
		{[]lora.Eval{{Loss: 2}, {Loss: 1.5}}, 0, "; held out 1.5000"},
		{[]lora.Eval{{Loss: 2}}, 2, "; held out 2.0000, kept that of step 2"},
	} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		done.Evals, done.Best = c.evals, c.best
		said := clitest.Run(t, func(j *cli.Job) (any, error) {
			r := &run{Job: j, o: &Options{}, done: done}
			r.o.StateDir = dir
			return nil, r.finish()
		})
		if want := "1,234 of 480,096 parameters trained in 3 steps, 100 tokens/s; loss 3.0000 → 1.2500" + c.want +
			"; in out\n"; said.Stdout != want {
			t.Errorf("have %swant %s", said.Stdout, want)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("the state stays: %v", err)
		}
	}
}

// TestSettingsInReports: one file is a text, several are a list, and a list that is changed later does not change the
// report.
func TestSettingsInReports(t *testing.T) {
	f := Files{"a,b"}
	if got := f.Reported(); got != "a,b" {
		t.Errorf("%v", got)
	}
	if err := f.Append("c"); err != nil {
		t.Fatal(err)
	}

	got := f.Reported()
	f[0] = "changed"
	if text, err := json.Marshal(got); err != nil || string(text) != `["a,b","c"]` {
		t.Errorf("%s, %v", text, err)
	}
	if err := f.Append(""); err == nil || len(f) != 2 {
		t.Error("a file without a name")
	}
	if err := f.Replace([]string{"x", ""}); err == nil {
		t.Error("a list with a file without a name")
	}

	path := filepath.Join(t.TempDir(), "template")
	if err := os.WriteFile(path, []byte("12345"), 0o666); err != nil {
		t.Fatal(err)
	}
	if text, err := small(path, 5); err != nil || text != "12345" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := small(path, 4); err == nil || !strings.Contains(err.Error(), "larger than 4 bytes") {
		t.Errorf("a file that is too large: %v", err)
	}
}
