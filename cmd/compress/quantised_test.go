package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcompress/compress/internal/weights/weightstest"
	"github.com/modelcompress/compress/safetensors"
)

// verbRuns are command lines that read MODEL, in an order in which each finds what it reads. Their outputs are out1,
// out2, …
var verbRuns = []string{
	"inspect MODEL --tensors", "inspect MODEL --verify", "inspect diff MODEL other",
	"tokenize MODEL --text the~sum~of~3",
	"generate MODEL --decode --prompt 3~+~4~= --max-tokens 12", "ppl MODEL --decode --data short.txt --seqlen 64",
	"forward MODEL --decode --ids ids.safetensors --grad --out out1",
	"eval MODEL --decode --tasks nano/tasks/base.yaml --limit 3 --bootstrap-iters 10 --out out2",
	"eval batch batch.yaml --out out3",
	"convert MODEL --out out4", "convert MODEL --dtype bf16 --out out5",
	"convert MODEL --max-shard-size 300KB --out out6",
	"prune MODEL --method magnitude --save bitmask --out out7",
	"prune MODEL --method wanda --calib short.txt --samples 4 --seqlen 32 --masks masks --out out8",
	"prune MODEL --method wanda --calib short.txt --samples 4 --seqlen 32 --update admm --out out9",
	"prune MODEL --method sparsegpt --calib short.txt --samples 4 --seqlen 32 --out out10",
	"prune MODEL --method gblm --calib short.txt --samples 4 --seqlen 32 --out out11",
	"prune compare MODEL --methods magnitude,wanda --calib short.txt --samples 2 --seqlen 32 --ppl short.txt " +
		"--out out12",
	"search MODEL --workers 1 --calib short.txt --heldout short.txt --samples 2 --seqlen 32 --windows 2 --few 1 " +
		"--select-windows 2 --test-windows 2 --population 4 --generations 1 --sparsity 0.6 --out out13",
	"merge slerp.yaml --out out14", "merge union.yaml --out out15", "merge moe.yaml --out out16",
	"merge mediate.yaml --out out17", "experts verify out17", "conflict conflict.yaml",
	"merge search open.yaml --data short.txt --generations 1 --population 4 --seqlen 64 --limit 2 --out out18",
	"merge statistics MODEL --kind gram --data short.txt --samples 2 --seqlen 32 --out out19",
	"lora train MODEL --decode --data nano/text/calib.txt --steps 2 --batch 1 --seqlen 32 --out out20",
	"lora train MODEL --decode --data nano/text/calib.txt --kind full --steps 1 --batch 1 --seqlen 32 --out out21",
	"lora inspect out20 --model MODEL", "ppl MODEL --decode --data short.txt --seqlen 64 --adapter out20",
	"lora fold MODEL --adapter out20 --out out22", "lora fold out4 --adapter out20 --out out23",
	"lora extract MODEL other --rank 2 --out out24", "lora extract other MODEL --rank 2 --out out25",
	"edit MODEL --decode --edits nano/edits.json --count 1 --method ft --texts 0 --out out26",
	"edit verify out26 --base MODEL", "edit trace MODEL --decode --prompt Question:~14~+~6~= --subject 14 --samples 1",
	"edit undo out26 --to 0", "inspect diff out26 out4", "editeval plan.yaml --out out27",
	"report out8 out20 --out page.html", "report out20 --out page.md",
}

// fewRuns are those that each other form of quantised weights goes through: every kind of work that reads weights.
var fewRuns = []string{
	"inspect MODEL --verify", "inspect diff MODEL other", "generate MODEL --decode --prompt 3~+~4~= --max-tokens 12",
	"ppl MODEL --decode --data short.txt --seqlen 64", "forward MODEL --decode --ids ids.safetensors --grad --out out1",
	"eval MODEL --decode --tasks nano/tasks/base.yaml --limit 3 --bootstrap-iters 10 --out out2",
	"convert MODEL --out out4", "convert MODEL --dtype bf16 --out out5",
	"prune MODEL --method wanda --calib short.txt --samples 4 --seqlen 32 --out out7",
	"merge slerp.yaml --out out14", "merge moe.yaml --out out16",
	"lora train MODEL --decode --data nano/text/calib.txt --steps 2 --batch 1 --seqlen 32 --out out20",
	"lora fold MODEL --adapter out20 --out out22", "lora extract MODEL other --rank 2 --out out24",
	"edit MODEL --decode --edits nano/edits.json --count 1 --method ft --texts 0 --out out26",
	"edit verify out26 --base MODEL", "edit undo out26 --to 0", "inspect diff out26 out4",
}

// verbInputs are the files that they read.
var verbInputs = map[string]string{
	"slerp.yaml": "merge_method: slerp\nbase_model: other\nmodels: [{model: MODEL}, {model: other}]\n" +
		"parameters: {t: 0.3}\n",
	"union.yaml": "merge_method: linear\nmodels:\n- {model: MODEL, parameters: {weight: 0.5}}\n" +
		"- {model: other, parameters: {weight: 0.5}}\ntokenizer_source: union\ndtype: bfloat16\n",
	"moe.yaml": "base_model: MODEL\ngate_mode: random\nexperts_per_token: 1\nexperts:\n- {source_model: MODEL}\n" +
		"- {source_model: other}\n",
	"mediate.yaml": "merge_method: mediate\nbase_model: other\nmodels:\n- {model: MODEL, name: one}\n" +
		"- {model: nano/sums, name: sums}\nparameters:\n  select: {top_k: 1}\n",
	"conflict.yaml": "merge_method: task_arithmetic\nbase_model: other\nmodels:\n" +
		"- {model: MODEL, parameters: {weight: 0.5}}\n- {model: nano/sums, parameters: {weight: 0.5}}\n",
	"open.yaml": "merge_method: task_arithmetic\nbase_model: other\n" +
		"models:\n- {model: MODEL, parameters: {weight: {search: [0, 1]}}}\n",
	"batch.yaml": "models: [MODEL]\ntasks: [nano/tasks/base.yaml]\nlimit: 2\nbootstrap_iters: -1\n",
	"plan.yaml": "models: [MODEL]\neditors: [{method: ft, hparams: {steps: 2}}]\nedits: nano/edits.json\n" +
		"counts: [1]\nneighborhood: 1\ntasks:\n- {task: nano/tasks/base.yaml, limit: 2}\n",
}

// TestQuantisedVerbs: every verb does to a model that is stored quantised what it does to the same values stored as
// floats, and says that they are those of a quantised model.
func TestQuantisedVerbs(t *testing.T) {
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range append(weightstest.Formats(), "GGUF") {
		t.Run(form, func(t *testing.T) {
			quantised, plain := weightstest.Quantised(t, filepath.Join(nano, "base"), form)
			name, runs := "model", fewRuns
			switch form {
			case "GGUF":
				// A study computes with Q8_0 as it is stored, where sums are rounded otherwise than those of floats.
				name = "model.gguf"
				runs = slices.DeleteFunc(slices.Clone(verbRuns), func(line string) bool {
					return strings.HasPrefix(line, "editeval")
				})
			case "gptq":
				runs = verbRuns
			}
			sameVerbs(t, nano, quantised, plain, name, runs)
		})
	}
}

// sameVerbs runs command lines on a quantised model and on a plain one, each in a folder of its own.
func sameVerbs(t *testing.T, nano, quantised, plain, name string, runs []string) {
	var results [2][]string
	var folders [2]string
	placeless := func(i int, text string) string { return strings.ReplaceAll(text, folders[i], "FOLDER") }
	for i, model := range []string{quantised, plain} {
		folders[i] = t.TempDir()
		t.Chdir(folders[i])
		for link, to := range map[string]string{"nano": nano, "other": filepath.Join(nano, "tales"), name: model} {
			if err := os.Symlink(to, link); err != nil {
				t.Fatal(err)
			}
		}
		for file, text := range verbInputs {
			write(t, file, strings.ReplaceAll(text, "MODEL", name))
		}
		text, err := os.ReadFile("nano/text/test.txt")
		if err != nil {
			t.Fatal(err)
		}
		write(t, "short.txt", string(text[:4000]))
		tokenIDs(t, "ids.safetensors")

		for _, line := range runs {
			words := strings.Fields(strings.ReplaceAll(line, "MODEL", name))
			for i := range words {
				words[i] = strings.ReplaceAll(words[i], "~", " ")
			}
			var stdout, stderr strings.Builder
			code := run(append(words, "--json", "--quiet", "--report", "report"), &stdout, &stderr)
			if code != 0 && words[1] != "diff" {
				t.Errorf("%s: exit code %d: %s", line, code, &stderr)
			}

			reads := strings.Contains(line, "MODEL") || strings.Contains(line, ".yaml")
			if reads && words[0] != "tokenize" {
				report, err := os.ReadFile("report")
				if err != nil || strings.Contains(string(report), `"source_quantization"`) != (i == 0) {
					t.Errorf("%s: source_quantization is where it should not be, or not where it should (%v)", line,
						err)
				}
			}
			results[i] = append(results[i], normal(t, placeless(i, stdout.String())))
			_ = os.Remove("report")
		}
	}

	// without its edits, an edited model is the converted one
	if at := slices.Index(runs, "inspect diff out26 out4"); !strings.Contains(results[0][at], `"equal": true`) {
		t.Errorf("%s: %s", runs[at], results[0][at])
	}

	for k, line := range runs {
		if a, b := results[0][k], results[1][k]; a != b {
			t.Errorf("%s: the results differ:\n%s", line, firstDifference(a, b))
		}
	}
	recorded(t, folders, strings.Join(runs, "\n")+"\n")
	sameOutputs(t, folders[0], folders[1])
}

// recorded checks that the records that stay, and the pages among them, say which of two runs had a quantised model.
func recorded(t *testing.T, folders [2]string, runs string) {
	t.Helper()
	for _, pattern := range []string{
		"out2/results.json", "out3/*/*/results.json", "out7/pruning.json", "out12/report.json", "out13/report.json",
		"out13/report.html", "out20/training.json", "out27/results.json", "out27/report.html", "out12/report.html",
		"out14/README.md", "out15/README.md", "out16/README.md", "out17/README.md", "out20/training.html",
		"out26/edits.journal", "page.html", "page.md",
	} {
		out, _, _ := strings.Cut(pattern, "/")
		if !strings.Contains(runs, out+"\n") {
			continue
		}
		for i, dir := range folders {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil || len(found) == 0 {
				t.Fatal(pattern, err)
			}
			for _, path := range found {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				ext := filepath.Ext(path)
				if page := ext == ".html" || ext == ".md"; !page &&
					bytes.Contains(text, []byte(`"source_quantization"`)) != (i == 0) ||
					page && bytes.Contains(text, []byte("are those of a quantised model")) != (i == 0) {
					t.Errorf("%s: it says that the model is quantised where it is not, or does not say it", path)
				}
			}
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// aside are what results say about the run and the form of the source, not about what came of it: times, sizes of the
// source's files, and identities and hashes into which those go.
var aside = []string{
	"started", "finished", "date", "start_time", "end_time", "disk_free_bytes", "model_name_sanitized",
	"candidates_per_hour", "elapsed", "timings", "busy_workers", "bytes_per_second",
	"tokens_per_second", "peak_memory_bytes", "device", "source_quantization", "remarks", "notes", "bytes", "bytes_in",
	"model_bytes", "size", "files", "quantization", "format", "job", "identity", "sha256",
}

// normal is a JSON text without what is aside, with its keys in order.
func normal(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return text
	}
	strip(v)
	out, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func strip(v any) {
	switch x := v.(type) {
	case map[string]any:
		maps.DeleteFunc(x, func(key string, v any) bool {
			hash, _ := v.(string)
			return slices.Contains(aside, key) || strings.Contains(key, "seconds") || len(hash) == 64
		})
		for _, inner := range x {
			strip(inner)
		}
	case []any:
		for _, inner := range x {
			strip(inner)
		}
	}
}

// withoutRemark is the lines of a card without what it says of the form and the size of the sources, and without the
// mark that follows from its text.
func withoutRemark(card string) string {
	lines := slices.DeleteFunc(strings.Split(card, "\n"), func(line string) bool {
		return line == "" || strings.Contains(line, "of a quantised model (") ||
			strings.HasPrefix(line, "| weights |") || strings.HasPrefix(line, "<!-- made with compress: ")
	})
	return strings.Join(lines, "\n")
}

// firstDifference is the first lines in which two texts differ; empty where they are the same.
func firstDifference(a, b string) string {
	if a == b {
		return ""
	}
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return x[i] + "\n" + y[i]
		}
	}
	return "one is longer"
}

// sameOutputs compares what two runs have written: tensors by their values, JSON without what is aside, all else by its
// bytes.
func sameOutputs(t *testing.T, got, want string) {
	t.Helper()
	list := func(dir string) (names []string) {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			name, err := filepath.Rel(dir, path)
			names = append(names, name)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}

	names := list(want)
	if others := list(got); !slices.Equal(others, names) {
		t.Errorf("files %q, want %q", others, names)
	}

	for _, name := range names {
		a, errA := os.ReadFile(filepath.Join(got, name))
		b, errB := os.ReadFile(filepath.Join(want, name))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		a, b = bytes.ReplaceAll(a, []byte(got), []byte("FOLDER")), bytes.ReplaceAll(b, []byte(want), []byte("FOLDER"))

		x, errX := safetensors.OpenBytes(a)
		y, errY := safetensors.OpenBytes(b)
		switch {
		case errX == nil && errY == nil:
			weightstest.Values(t, x, y)
			if !reflect.DeepEqual(x.Names(), y.Names()) {
				t.Errorf("%s: tensors in the order %q, want %q", name, x.Names(), y.Names())
			}
		case filepath.Base(name) == "README.md":
			if firstDifference(withoutRemark(string(a)), withoutRemark(string(b))) != "" {
				t.Errorf("%s: %s", name, firstDifference(withoutRemark(string(a)), withoutRemark(string(b))))
			}
		case slices.Contains([]string{".html", ".md", ".journal", ".jsonl"}, filepath.Ext(name)),
			filepath.Base(name) == "timings.json":
			// with times, identities, or what is said of the source
		case filepath.Ext(name) == ".json" && normal(t, string(a)) != normal(t, string(b)):
			t.Errorf("%s: %s", name, firstDifference(normal(t, string(a)), normal(t, string(b))))
		case filepath.Ext(name) != ".json" && !bytes.Equal(a, b):
			t.Errorf("%s: %d and %d bytes that differ", name, len(a), len(b))
		}
	}
}

// TestQuantisedKilled: work on a quantised model that was killed goes on to the bytes of work that was not, and
// a conversion, which is done in one go, leaves nothing behind that would stop the next one.
func TestQuantisedKilled(t *testing.T) {
	binary, dir := program(t), t.TempDir()
	nano, err := filepath.Abs("../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}
	quantised, _ := weightstest.GGUF(t, filepath.Join(nano, "base"))
	recipe := filepath.Join(dir, "recipe.yaml")
	write(t, recipe, "merge_method: linear\nmodels:\n- {model: "+quantised+", parameters: {weight: 1}}\n"+
		"- {model: "+nano+"/sums, parameters: {weight: 1}}\n")

	for verb, args := range map[string][]string{
		"prune": {
			"prune", quantised, "--calib", nano + "/text/calib.txt", "--samples", "16", "--seqlen", "256", "--threads",
			"1",
		},
		"merge":   {"merge", recipe, "--threads", "1"},
		"convert": {"convert", quantised, "--dtype", "bf16"},
	} {
		with := func(out string, more ...string) []string {
			return append(append(slices.Clone(args), "--quiet", "--out", out), more...)
		}
		want := filepath.Join(dir, verb, "want")
		if err := os.Mkdir(filepath.Dir(want), 0o777); err != nil {
			t.Fatal(err)
		}
		run1(t, binary, with(want)...)

		midway := 0
		for i := range 4 {
			out := filepath.Join(dir, verb, strconv.Itoa(i))
			hidden := filepath.Join(filepath.Dir(out), "."+filepath.Base(out)+".partial")
			cmd := exec.Command(binary, with(out)...)
			_, _, stopped := stopWhen(t, cmd, syscall.SIGKILL, filepath.Dir(out), func() bool {
				journal, _ := os.ReadFile(filepath.Join(hidden, "journal.jsonl"))
				entries, _ := os.ReadDir(hidden)
				return bytes.Count(journal, []byte("\n")) > i || verb == "convert" && len(entries) > 0
			})

			more := []string{"--overwrite"}
			if stopped {
				midway++
				more = []string{"--resume"}
			}
			if verb == "convert" {
				more = []string{"--overwrite"}
			}
			run1(t, binary, with(out, more...)...)
			if diff := differences(want, out); diff != "" {
				t.Errorf("%s, killed %v: %s", verb, stopped, diff)
			}
		}
		t.Logf("%s: %d of 4 runs were killed midway", verb, midway)
	}
}
