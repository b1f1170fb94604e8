package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// misuse is a command line that cannot do its work: the exit code, and what the message must say.
type misuse struct {
	line string
	code int
	says string
}

// misuses run in a folder with: nano (the shipped models), file (text), bad.yaml, bad.json, empty (a folder),
// full (a folder with a file in it), shut (a folder that nobody may write to), damaged (a checkpoint that is
// cut off).
var misuses = []misuse{
	{"nosuch", 2, "nosuch"},
	{"prun", 2, "did you mean prune"},
	{"version extra", 2, "1 argument is given, but there is nothing to give"},
	{"version --nosuch", 2, "--nosuch"},
	{"version --threads -1", 2, "--threads -1"},
	{"version --threads x", 2, "whole number"},
	{"version --seed -1", 2, "--seed"},
	{"version --device tpu", 2, "tpu"},
	{"version --device cuda:99", 1, "cuda:99"},
	{"version --report nowhere/r.json", 2, "nowhere"},
	{"version --report file", 2, "file"},
	{"version --report empty", 2, "empty"},
	{"version --report shut/r.json", 1, "shut"},
	{"version --report -", 2, "--json"},
	{"version --report ~", 2, "--report is empty"},
	{"inspect nowhere", 1, "nowhere"},
	{"inspect empty", 1, "empty"},
	{"inspect file", 1, "file"},
	{"inspect damaged", 1, "model.safetensors"},
	{"inspect nano/base --verify --headers", 2, "--verify and --headers"},
	{"inspect diff nano/base", 2, "1 argument is given, which is too few"},
	{"inspect diff nano/base nowhere", 1, "nowhere"},
	{"tokenize nano/base", 2, "--text or --file"},
	{"tokenize nano/base --text a --file file", 2, "exclude each other"},
	{"tokenize nano/base --file nowhere", 1, "nowhere"},
	{"tokenize nano/base --file empty", 1, "empty"},
	{"tokenize nowhere --text a", 1, "nowhere"},
	{"generate nano/base", 2, "--prompt is not given"},
	{"generate nano/base --prompt a --max-tokens -1", 2, "--max-tokens -1"},
	{"generate nano/base --prompt a --temperature NaN", 2, "--temperature NaN"},
	{"generate nano/base --prompt a --top-p 2", 2, "--top-p 2"},
	{"generate nano/base --prompt \xff", 2, "not valid UTF-8"},
	{"generate nano/base --prompt ~", 2, "nothing to continue"},
	{"ppl nano/base file", 2, "did you mean compress ppl nano/base --data file?"},
	{"merge linear.yaml o --dry-run", 2, "did you mean compress merge linear.yaml --out o --dry-run?"},
	{"lora fold nano/base a o", 2, "did you mean compress lora fold nano/base --adapter a --out o?"},
	{"merge linear.yaml --cuda --out o", 2, "--cuda of mergekit is --device cuda:0 here"},
	{"lora trian", 2, "did you mean train"},
	{"pruen --data x", 2, "unknown verb \"pruen\" (HINT: did you mean prune"},
	{"train --data x", 2, "unknown verb \"train\" (HINT: did you mean lora train?"},
	{"lora trian --data x", 2, "compress lora: unknown verb \"trian\" (HINT: did you mean train?)"},
	{"lora trian nano/base --rank 2", 2, "unknown verb \"trian\" (HINT: did you mean train?)"},
	{"lora --data x", 2, "unknown flag --data"},
	{"experts rout --prompt a", 2, "unknown verb \"rout\" (HINT: did you mean route?)"},
	{"eval tasks chekc --task-data x", 2, "unknown verb \"chekc\" (HINT: did you mean check?)"},
	{"eval taks", 2, "did you mean compress eval tasks?"},
	{"edit udno --to 0", 2, "\"udno\" is neither a verb nor a file or folder here (HINT: did you mean compress edit"},
	{"inspect dif a b", 2, "did you mean compress inspect diff?"},
	{"merge methdos --x", 2, "did you mean compress merge methods?"},
	{"prune compar nano/base --calib x", 2, "did you mean compress prune compare?"},
	{"bench comapre a b", 2, "did you mean compress bench compare?"},
	{"completion bsh", 2, "did you mean bash"},
	{"completion zhs --x", 2, "did you mean zsh?"},
	{"help lora trian", 2, "unknown verb \"trian\" (HINT: did you mean train?)"},
	{"help lora train x", 2, "unknown verb \"x\": compress lora train has none"},
	{"nope --json", 2, "unknown verb \"nope\" (HINT: compress --help"},
	{"lora nope", 2, "unknown verb \"nope\" (HINT: compress lora --help"},
	{"eval tasks chekc", 2, "did you mean check"},
	{"experts nope", 2, "unknown verb \"nope\""},
	{"search nano/base --calib file --heldout file --sparsity 0.5 --out o --listen nonsense", 2, "host:port"},
	{"search nano/base --calib file --heldout file --sparsity 0.5 --out o --cluster http://x", 2, "nats://host:port"},
	{"worker --cluster http://x", 2, "nats://host:port"},
	{"worker --cluster nats://", 2, "nats://host:port"},
	{"generate nano/base --prompt a --adapter nowhere", 1, "nowhere"},
	{"ppl nano/base --data nowhere", 1, "nowhere"},
	{"ppl nano/base --data empty", 1, "empty"},
	{"ppl nano/base --data nano/text/test.txt --seqlen -5", 2, "-5"},
	{"ppl nano/base --data nano/text/test.txt --convention other", 2, "other"},
	{"ppl file --data nano/text/test.txt", 1, "file"},
	{"ppl nano/base --data nano/text/test.txt --adapter file", 1, "file"},
	{"forward nano/base --ids nowhere --out o", 1, "nowhere"},
	{"forward nano/base --ids file --out o", 1, "file"},
	{"forward nano/base --ids file", 2, "--out is not given"},
	{"convert nano/base --out full", 2, "full"},
	{"convert nano/base --out nano/base/sub", 2, "nano/base"},
	{"convert nano/base --out nano/base --overwrite", 2, "nano/base"},
	{"convert nano/base --out shut/o", 1, "shut"},
	{"convert nano/base --out o --dtype f8", 2, "f8"},
	{"convert nano/base --out o --max-shard-size -2GB", 2, "-2GB"},
	{"convert nano/base --out o --max-shard-size NaNGB", 2, "NaNGB"},
	{"convert damaged --out o", 1, "model.safetensors"},
	{"prune nano/base --method magnitude --out full", 2, "full"},
	{"prune nano/base --out o", 2, "--calib"},
	{"prune nano/base --out o --method nosuch", 2, "nosuch"},
	{"prune nano/base --out o --method magnitude --sparsity NaN", 2, "--sparsity NaN"},
	{"prune nano/base --out o --method magnitude --sparsity 1.5", 2, "1.5"},
	{"prune nano/base --out o --method magnitude --pattern 4:2", 2, "4:2"},
	{"prune nano/base --out o --method tree:nowhere", 1, "nowhere"},
	{"prune nano/base --out o --method magnitude --overrides bad.yaml", 2, "bad.yaml"},
	{"prune nano/base --out o --calib nowhere", 1, "nowhere"},
	{"prune compare nano/base --out o --ppl nowhere --methods magnitude", 1, "nowhere"},
	{"prune compare nano/base --out o --ppl file --methods nosuch", 2, "nosuch"},
	{"search nano/base --calib nano/text/calib.txt --heldout nowhere --seqlen 32 --out o", 1, "nowhere"},
	{"search nano/base --calib file --heldout file --out full", 2, "full"},
	{"search nano/base --calib file --heldout file --out o --workers -5", 2, "--workers -5"},
	{"search nano/base --calib file --heldout file --out o --keep NaN", 2, "--keep NaN"},
	{"worker", 2, "--cluster is not given"},
	{"merge nowhere --out o", 1, "nowhere"},
	{"merge bad.yaml --out o", 2, "bad.yaml"},
	{"merge empty --out o", 1, "empty"},
	{"merge linear.yaml", 2, "--out is not given"},
	{"merge linear.yaml --out full", 2, "full"},
	{"merge linear.yaml --out o --memory -1GiB", 2, "-1GiB"},
	{"merge linear.yaml --out o --missing nosuch", 2, "nosuch"},
	{"merge search linear.yaml --out o", 2, "--data"},
	{"merge search linear.yaml --out o --data nano/text/valid.txt", 2, "linear.yaml"},
	{"merge statistics nano/base --kind nosuch --data file --out o", 2, "nosuch"},
	{"conflict bad.yaml", 2, "bad.yaml"},
	{"conflict linear.yaml --density NaN", 2, "density NaN"},
	{"experts", 2, "export, route or verify"},
	{"experts verify empty", 1, "empty"},
	{"experts export nano/base --task a --out o", 1, "nano/base"},
	{"lora", 2, "compress lora --help"},
	{"lora train nano/base --out o", 2, "--data"},
	{"lora train nano/base --data nowhere --out o", 1, "nowhere"},
	{"lora train nano/base --data nano/text/calib.txt --out o --kind nosuch", 2, "nosuch"},
	{"lora train nano/base --data nano/text/calib.txt --out o --lr NaN", 2, "NaN"},
	{"lora train nano/base --data nano/text/calib.txt --out o --memory -3", 2, "--memory"},
	{"lora train nano/base --config bad.yaml", 2, "bad.yaml"},
	{"lora inspect empty", 1, "empty"},
	{"lora inspect file", 1, "file"},
	{"lora fold nano/base --adapter nowhere --out o", 1, "nowhere"},
	{"lora combine nowhere --out o", 1, "nowhere"},
	{"lora extract nano/base nowhere --rank 2 --out o", 1, "nowhere"},
	{"lora extract nano/base nano/sums --rank -2 --out o", 2, "-2"},
	{"edit nano/base --edits file --out o --count 0", 2, "--count 0 writes nothing"},
	{"edit nano/base --edits nowhere --out o", 1, "nowhere"},
	{"edit nano/base --edits bad.json --out o", 1, "bad.json"},
	{"edit nano/base --edits nano/edits.json --method nosuch --out o", 2, "nosuch"},
	{"edit undo empty --to 0", 1, "empty"},
	{"edit verify empty", 1, "empty"},
	{"eval nano/base --tasks nosuch --out o", 2, "nosuch"},
	{"eval nano/base --tasks bad.yaml --out o", 1, "bad.yaml"},
	{"eval nano/base --tasks nano/tasks/base.yaml --limit -1 --out o", 2, "-1"},
	{"eval nano/base --tasks nano/tasks/base.yaml --out full", 2, "full"},
	{"eval compare nowhere empty", 1, "nowhere"},
	{"eval batch bad.yaml --out o", 2, "bad.yaml"},
	{"eval tasks", 2, "list, show, fetch or check"},
	{"eval tasks show nosuch", 2, "nosuch"},
	{"editeval nowhere --out o", 1, "nowhere"},
	{"editeval bad.yaml --out o", 2, "bad.yaml"},
	{"run nowhere --out o", 1, "nowhere"},
	{"run bad.yaml --out o", 2, "bad.yaml"},
	{"report nowhere --out o.html", 1, "nowhere"},
	{"report bad.json --out o.html", 1, "bad.json"},
	{"bench nosuch", 2, "nosuch"},
	{"demo --out full", 2, "full"},
	{"schema nosuch", 2, "nosuch"},
	{"man --out file", 2, "file"},
}

// TestMisuse: what cannot work ends with the right code and exactly one line on stderr that names what is
// wrong, says nothing on stdout, and leaves nothing behind.
func TestMisuse(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}

	t.Chdir(t.TempDir())
	prepareMisuse(t, nano)

	before := names(t)
	for _, c := range misuses {
		words := strings.Fields(c.line)
		for i := range words {
			if words[i] == "~" {
				words[i] = ""
			}
		}

		if os.Geteuid() == 0 && strings.Contains(c.line, "shut") {
			continue // who may do everything is not kept out
		}

		var stdout, stderr bytes.Buffer
		code := run(words, &stdout, &stderr)
		text := stderr.String()
		if code != c.code || strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "compress") ||
			!strings.Contains(text, c.says) || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, want %d and %q; stdout %q\n\t%s", c.line, code, c.code, c.says, stdout.String(),
				text)
		}

		if after := names(t); !slices.Equal(before, after) {
			t.Errorf("%s: leaves %q", c.line, after)
			before = after
		}
	}
}

// prepareMisuse makes the files that the command lines name.
func prepareMisuse(t *testing.T, nano string) {
	for _, dir := range []string{"empty", "full", "shut", "damaged"} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}

	model, err := os.ReadFile(filepath.Join(nano, "base/model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}

	config, err := os.ReadFile(filepath.Join(nano, "base/config.json"))
	if err != nil {
		t.Fatal(err)
	}

	for name, text := range map[string]string{
		"file": "some text\n", "bad.yaml": "a: [b\nc: }\n", "bad.json": "{\"a\": ", "full/precious.txt": "kept\n",
		"linear.yaml":               reportInputs["linear.yaml"],
		"damaged/model.safetensors": string(model[:len(model)/2]), "damaged/config.json": string(config),
	} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Symlink(nano, "nano"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod("shut", 0o555); err != nil {
		t.Fatal(err)
	}
}

// names lists the files below the working directory, hidden ones too.
func names(t *testing.T) (list []string) {
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		list = append(list, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestMisspeltVerbs: every verb of every group with a letter too many is answered with the verb that was meant,
// whatever flags follow.
func TestMisspeltVerbs(t *testing.T) {
	t.Chdir(t.TempDir())
	groups := 0

	var walk func(group *cobra.Command)
	walk = func(group *cobra.Command) {
		if group.HasSubCommands() {
			groups++
		}
		for _, verb := range group.Commands() {
			walk(verb)

			name := verb.Name()
			n := len(name)
			wrong := name[:n-1] + "q" + name[n-1:]
			words := append(strings.Fields(group.CommandPath())[1:], wrong, "--data", "x", "--nosuch")
			var stdout, stderr bytes.Buffer
			code := run(words, &stdout, &stderr)

			_, meant, _ := strings.Cut(stderr.String(), "(HINT: did you mean ")
			meant = strings.TrimRight(meant, "?)\n")
			hit := slices.ContainsFunc(strings.Split(meant, ", "), func(m string) bool {
				return m == name || m == verb.CommandPath()
			})
			if code != 2 || stdout.Len() > 0 || !strings.Contains(stderr.String(), `"`+wrong+`"`) || !hit {
				t.Errorf("%q: exit code %d: %s%s", words, code, stderr.String(), stdout.String())
			}
		}
	}

	walk(root(cli.New(nil, io.Discard, io.Discard)))
	if groups < 9 {
		t.Errorf("%d groups of verbs", groups)
	}
}

// TestMisspeltInstructionSet: a name that switches nothing off is refused before anything is done.
func TestMisspeltInstructionSet(t *testing.T) {
	t.Setenv("COMPRESS_CPU_DISABLE", "amx,avx-512")
	var stdout, stderr bytes.Buffer
	code := run([]string{"inspect", "--device", "cpu"}, &stdout, &stderr)
	if text := stderr.String(); code != 2 || stdout.Len() > 0 ||
		!strings.HasPrefix(text, `compress inspect: COMPRESS_CPU_DISABLE: "avx-512" is no instruction set`) {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout.String(), text)
	}
}
