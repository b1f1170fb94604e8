package loracmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// trainFlags are flags as lora train has them, of every type that settings can have.
func trainFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.String("kind", "lora", "")
	for _, name := range []string{"init", "eval", "bias"} {
		f.String(name, "", "")
	}
	for _, name := range []string{
		"rank", "equivalent-rank", "shards", "private", "unshared", "in-parts", "out-parts", "batch", "pack",
		"eval-every", "steps",
	} {
		f.Int(name, 0, "")
	}
	for _, name := range []string{"alpha", "dropout", "d-initial", "lr"} {
		f.Float64(name, 0, "")
	}
	for _, name := range []string{"paired", "dora", "lora-bias", "rslora", "keep-best", "allow-other-base"} {
		f.Bool(name, false, "")
	}
	for _, name := range []string{"rank-pattern", "alpha-pattern", "targets"} {
		f.StringSlice(name, nil, "")
	}
	f.String("sampling", "", "")
	f.Var(new(Files), "data", "")
	return f
}

// TestIdle: flags that would have no effect are refused, with the word that explains it.
func TestIdle(t *testing.T) {
	for line, want := range map[string]string{
		"":                               "",
		"--kind mos --shards 2":          "",
		"--kind lora --shards 2":         "--shards is for --kind mos",
		"--kind mos --dora":              "--dora is for --kind lora",
		"--kind lora --d-initial 1":      "--d-initial is for --kind vera",
		"--kind vera --in-parts 2":       "--in-parts is for --kind prolora",
		"--kind full --rank 4":           "--rank is for --kind mos, lora, vera, prolora",
		"--kind lora --dora --rslora":    "",
		"--init a --shards 2":            "--shards has no effect with --init", // its own count
		"--init a --kind lora --paired":  "--paired is for --kind mos",
		"--eval-every 3":                 "--eval-every has no effect without --eval",
		"--eval e --eval-every 3":        "",
		"--keep-best":                    "--keep-best has no effect without --eval",
		"--allow-other-base":             "--allow-other-base has no effect without --init",
		"--init a --allow-other-base":    "",
		"--batch 0":                      "--batch 0",
		"--batch 3 --pack 100":           "--batch has no effect beside --pack",
		"--batch 3 --pack 0":             "",
		"--kind prolora --lora-bias":     "--lora-bias is for --kind lora",
		"--kind full --bias all":         "--bias is for --kind",
		"--kind mos --rank-pattern q=2":  "--rank-pattern is for --kind lora",
		"--kind lora --rank-pattern q=2": "",
	} {
		f := trainFlags()
		if err := f.Parse(strings.Fields(line)); err != nil {
			t.Fatal(line, err)
		}

		err := Idle(f)
		if (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || !cli.IsUsage(err)) {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
}

// TestConfigure: a file of settings gives flags their values, in every way in which YAML writes them; those of the
// command line win; what is no flag, or no value, is refused at its place.
func TestConfigure(t *testing.T) {
	keys := []string{"kind", "rank", "lr", "targets", "data", "dora", "steps"}
	for text, want := range map[string]string{
		"kind: lora\nrank: 4\n":            "kind=lora rank=4",
		"rank: 4.0\nsteps: 1e3\n":          "rank=4 steps=1000",
		"lr: 1e-4\n":                       "lr=0.0001",
		"targets: [q, v]\n":                "targets=[q,v]",
		"targets: q,v\n":                   "targets=[q,v]",
		"data: [\"a, b\", c]\n":            "data=a, b, c",
		"dora: true\n":                     "dora=true",
		"{}\n":                             "",
		"rank: 4.5\n":                      "!c.yaml:1:7",
		"rank: \"1e1\"\n":                  "!rank",
		"kind:\n":                          "!no value",
		"rank: [[1]]\n":                    "!a list in a list",
		"rank: {a: 1}\n":                   "!no number, no text and no list",
		"seed: 1\n":                        "!unknown key \"seed\"",
		"rnak: 1\n":                        "!did you mean \"rank\"",
		"rank: 1\n---\nrank: 2\n":          "!c.yaml",
		"- 1\n":                            "!c.yaml:1",
		"rank: x\nlr: z\n":                 "!c.yaml:2:5", // all faults, not the first alone
		"dora: yes\n":                      "dora=true",
		"rank: yes\n":                      "!c.yaml:1:7", // a truth value is no number
		"data: []\n":                       "!no value",
		"targets: []\n":                    "targets=[]",
		"kind: vera # a remark\n\nrank: 3": "kind=vera rank=3",
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}

		f := trainFlags()
		err := Configure(path, f, keys)
		if wrong, ok := strings.CutPrefix(want, "!"); ok {
			if err == nil || !strings.Contains(err.Error(), wrong) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v, want %q", text, err, wrong)
			}
			continue
		}

		var got []string
		f.VisitAll(func(flag *pflag.Flag) {
			if flag.Changed {
				got = append(got, flag.Name+"="+flag.Value.String())
			}
		})
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

// TestConfigureAfterFlags: the command line wins, and a file that is too large, or not there, is an error.
func TestConfigureAfterFlags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("rank: 4\nsteps: 9\n"), 0o666); err != nil {
		t.Fatal(err)
	}

	f := trainFlags()
	if err := f.Parse([]string{"--rank", "2"}); err != nil {
		t.Fatal(err)
	}
	if err := Configure(path, f, []string{"rank", "steps"}); err != nil {
		t.Fatal(err)
	}
	if f.Lookup("rank").Value.String() != "2" || f.Lookup("steps").Value.String() != "9" {
		t.Errorf("rank %v, steps %v", f.Lookup("rank").Value, f.Lookup("steps").Value)
	}

	if err := Configure(path+"x", f, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, make([]byte, maxConfig+1), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Configure(path, f, nil); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: %v", err)
	}
}

// TestTexts: flags that are texts.
func TestTexts(t *testing.T) {
	for text, want := range map[string]any{
		"": int64(0), "none": int64(-1), "1KiB": int64(1024), "x": nil,
	} {
		n, err := kept(text)
		if want == nil != (err != nil) || want != nil && n != want {
			t.Errorf("--memory %q: %d, %v", text, n, err)
		}
	}

	for text, want := range map[string][]float64{
		"": nil, "1": {1}, " 1, -0.5,2e1 ": {1, -0.5, 20}, "1,,2": {}, "a": {},
	} {
		list, err := numbers("weights", text)
		if (err != nil) != (len(want) == 0 && text != "") || err == nil && !slices.Equal(list, want) {
			t.Errorf("--weights %q: %v, %v", text, list, err)
		}
	}

	if list := names([]string{" q_proj", "", "v_proj "}); !slices.Equal(list, []string{"q_proj", "v_proj"}) {
		t.Errorf("%q", list)
	}

	for _, c := range []struct {
		flag, text string
		want       *lora.Pattern
	}{
		{"rank-pattern", "q_proj=4", &lora.Pattern{Key: "q_proj", Value: 4}},
		{"rank-pattern", "a=b=4", &lora.Pattern{Key: "a=b", Value: 4}},
		{"alpha-pattern", "q=0.5", &lora.Pattern{Key: "q", Value: 0.5}},
		{"rank-pattern", "q=0.5", nil},
		{"rank-pattern", "=4", nil},
		{"rank-pattern", "q", nil},
		{"rank-pattern", "q=0", nil},
		{"alpha-pattern", "q=-1", nil},
		{"alpha-pattern", "q=x", nil},
	} {
		list, err := patterns(c.flag, []string{c.text})
		switch {
		case c.want == nil:
			if err == nil || !strings.Contains(err.Error(), "--"+c.flag) || !cli.IsUsage(err) {
				t.Errorf("--%s %s: %v, %v", c.flag, c.text, list, err)
			}
		case err != nil || len(list) != 1 || list[0] != *c.want:
			t.Errorf("--%s %s: %v, %v", c.flag, c.text, list, err)
		}
	}
}

// TestCheck: what is wrong with flags by themselves.
func TestCheck(t *testing.T) {
	good := Options{Data: Files{"a"}, Out: "b"}
	for what, c := range map[string]struct {
		change func(o *Options)
		config string
		want   string
	}{
		"nothing":        {func(*Options) {}, "", ""},
		"no data":        {func(o *Options) { o.Data = nil }, "", "--data and --out are needed"},
		"data in a file": {func(o *Options) { o.Data = nil }, "c.yaml", ""},
		"bits":           {func(o *Options) { o.Bits = 5 }, "", "--base-bits 5"},
		"bits of all":    {func(o *Options) { o.Bits, o.Kind = 8, "full" }, "", "--base-bits 8"},
		"memory":         {func(o *Options) { o.Kept = "x" }, "", "--memory"},
		"both":           {func(o *Options) { o.Resume, o.Overwrite = true, true }, "", "--resume continues"},
		"a rank":         {func(o *Options) { o.Rank = -1 }, "", "rank -1"},
		"the best": {func(o *Options) {
			o.KeepBest = true
			o.Held = "e"
		}, "", ""},
		"a pattern": {func(o *Options) { o.RankPattern = []string{"q"} }, "", "REGEX=VALUE"},
	} {
		o := good
		c.change(&o)
		err := Check(o, c.config)
		if (err != nil) != (c.want != "") ||
			err != nil && (!strings.Contains(err.Error(), c.want) || !cli.IsUsage(err)) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestFlags: errors of the library about what the flags ask for are wrong use, with their hints; others are not.
func TestFlags(t *testing.T) {
	for _, base := range []error{lora.ErrConfig, lora.ErrTarget, lora.ErrOtherRun, lora.ErrUnsupported} {
		err := flags(fmt.Errorf("here: %w", base))
		if !cli.IsUsage(err) || !errors.Is(err, base) {
			t.Errorf("%v is no wrong use", err)
		}
	}
	hinted := flags(failure.Hinted(fmt.Errorf("%w: x", lora.ErrUnsupported), "do y"))
	if failure.Hint(hinted) != "do y" {
		t.Errorf("the hint is %q", failure.Hint(hinted))
	}
	if err := flags(lora.ErrNothingToLearn); cli.IsUsage(err) {
		t.Errorf("%v is wrong use", err)
	}
}

// TestState: the state lies hidden beside the output, whatever its path looks like; two runs do not have it at once.
func TestState(t *testing.T) {
	for out, want := range map[string]string{
		"a": ".a.training", "x/a/": "x/.a.training", "x/../a": ".a.training", "./a": ".a.training",
	} {
		if got := state(out); got != filepath.FromSlash(want) {
			t.Errorf("%s: %s, want %s", out, got, want)
		}
	}

	dir := state(filepath.Join(t.TempDir(), "out"))
	release, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim(dir); !errors.Is(err, stage.ErrBusy) {
		t.Errorf("a second run: %v", err)
	}

	release()
	if _, err := os.Stat(dir); err == nil {
		t.Error("an empty folder of state stays")
	}
	if release, err = claim(dir); err != nil {
		t.Fatal(err)
	}
	release()
}

// TestApart: an output that is an input, or holds one, is refused.
func TestApart(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(in, 0o777); err != nil {
		t.Fatal(err)
	}
	for out, wrong := range map[string]bool{
		in: true, filepath.Join(dir, "a"): true, filepath.Join(dir, "c"): false, filepath.Join(dir, "a", "c"): false,
	} {
		if err := apart(out, "", in); (err != nil) != wrong {
			t.Errorf("%s: %v", out, err)
		}
	}
}

// TestJoin: sequences of several files stand one after another, their counts add up, and a report names each file only
// where there are several.
func TestJoin(t *testing.T) {
	source := func(name string, n int) Source {
		var ids [][]int32
		for i := range n {
			ids = append(ids, []int32{int32(i), 1})
		}
		return Source{Windows: corpus.New(ids, name), Records: lora.DataCounts{Records: n, Cut: 1}}
	}

	r := &run{o: &Options{}}
	r.join([]Source{source("a", 2)})
	if r.sources != nil || len(r.data.IDs) != 2 || r.data.Source != "a" {
		t.Errorf("%+v", r.data)
	}

	r = &run{o: &Options{}}
	r.join([]Source{source("a", 2), source("b", 3)})
	if len(r.sources) != 2 || len(r.data.IDs) != 5 || r.count.Records != 5 || r.count.Cut != 2 {
		t.Errorf("%+v, %+v", r.data, r.count)
	}
}

// TestPage: a run becomes one page with its figures and a curve for each kind of loss.
func TestPage(t *testing.T) {
	r := &Report{Out: "out<1>", Report: &lora.Report{
		Options: lora.Options{Kind: "lora"}, Trainable: 12345, Tokens: 678,
		Steps: []lora.Step{{Step: 0, Loss: 3.5, LR: 0.1, GradNorm: 2}, {Step: 1, Loss: 2.25, LR: 0.05, GradNorm: 1}},
		Evals: []lora.Eval{{Step: 2, Loss: 2.5, Best: true}},
	}}
	page, err := Page(r, "models/base", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"12,345", "2.2500", "held out", "Learning rate", "out&lt;1&gt;", "models/base",
		"Settings and data",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
