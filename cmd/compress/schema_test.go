package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/democmd"
	"github.com/modelcompress/compress/cmd/compress/internal/reportcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/runcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/searchcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/servecmd"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/hub/hubtest"
	"github.com/modelcompress/compress/safetensors"
)

var rewrite = flag.Bool("rewrite", false, "write the schemas of reports anew")

const schemaFolder = "internal/reportcmd/schemas"

// reportRuns are command lines that show every form of report, in an order in which they can follow each other.
// They run in a folder where nano is the folder of the shipped models.
var reportRuns = []string{
	"imatrix nano/base --data nano/text/calib.txt --seqlen 128 --chunks 2 --out im.gguf",
	"quantize nano/base --to w4a16 --group-size 32 --method gptq --calib nano/text/calib.txt --samples 2 --seqlen 64 " +
		"--ppl short.txt --out small",
	"quantize nano/base --to q5_0 --imatrix im.gguf --type blk.0.*=q8_0 --ppl short.txt --seqlen 64 " +
		"--out small.gguf",
	"version",
	"pull a/b --dry-run",
	"pull a/b",
	"eval tasks fetch gsm8k --out fetched",
	"inspect nano/base --verify --tensors",
	"inspect --device cpu",
	"inspect diff nano/base nano/sums",
	"tokenize nano/base --text words",
	"generate nano/base --prompt Question --max-tokens 2",
	"generate chatty --chat --prompt Question --max-tokens 2",
	"ppl nano/base --data nano/text/test.txt --seqlen 64 --limit 2",
	"forward nano/base --ids ids.safetensors --out logits.safetensors",
	"convert nano/base --dtype f32 --out wide",
	"prune nano/base --calib nano/text/calib.txt --samples 2 --seqlen 32 --ppl short.txt --out pruned",
	"prune nano/base --calib nano/text/calib.txt --samples 2 --seqlen 32 --imatrix-out told.gguf --out told",
	"prune nano/base --imatrix told.gguf --out known",
	"prune nano/base --vocab-from nano/text/calib.txt --vocab-min-count 20 --ppl short.txt --seqlen 64 --out fewer",
	"inspect told.gguf",
	"prune nano/base --method magnitude --pattern 2:4 --save bitmask --out packed",
	"prune compare nano/base --methods magnitude,wanda --calib nano/text/calib.txt --samples 2 --seqlen 32 --ppl " +
		"short.txt --out compared",
	"prune nano/base --layers 3 --calib nano/text/calib.txt --samples 2 --seqlen 32 --out three",
	"prune nano/base --ffn 25% --kv-heads 1 --hidden 64 --calib nano/text/calib.txt --samples 2 --seqlen 32 " +
		"--out narrow",
	"search nano/base --calib nano/text/calib.txt --heldout nano/text/valid.txt --samples 2 --seqlen 32 --windows 2 " +
		"--few 1 --select-windows 2 --test-windows 2 --population 4 --generations 1 --sparsity 0.6 --out found",
	"merge linear.yaml --out merged",
	"merge linear.yaml --dry-run",
	"merge moe.yaml --out mixed",
	"merge moe.yaml --dry-run",
	"merge mediate.yaml --out mediated",
	"merge mediate.yaml --dry-run",
	"merge search open.yaml --data nano/text/valid.txt --generations 1 --population 4 --seqlen 64 --limit 2 " +
		"--out numbers",
	"merge statistics nano/base --kind gram --data nano/text/calib.txt --samples 2 --seqlen 32 --out gram.safetensors",
	"merge recommend nano/sums nano/news --base nano/base",
	"conflict linear.yaml",
	"experts verify mediated",
	"experts route mediated --prompt Question",
	"experts export mediated --task sums --out sums",
	"lora train nano/base --data nano/text/calib.txt --steps 2 --batch 1 --seqlen 32 --eval " +
		"short.txt --out mos",
	"lora train nano/base --data nano/text/calib.txt --kind lora --rank 2 --steps 2 --batch 1 --seqlen 32 --out first",
	"lora train nano/base --data nano/text/calib.txt --kind full --steps 1 --batch 1 --seqlen 32 --out tuned",
	"lora inspect mos --model nano/base",
	"lora inspect mos first",
	"lora export mos --out exported",
	"lora fold nano/base --adapter first --out folded",
	"lora fold nano/base --adapter first --to q8_0 --out folded.gguf",
	"lora combine first --out both",
	"lora extract nano/base folded --rank 2 --out difference",
	"edit nano/base --edits nano/edits.json --count 1 --method ft --texts 1 --out edited",
	"edit verify edited --base nano/base",
	"edit trace nano/base --prompt Question:~14~+~6~= --subject 14 --samples 1",
	"edit undo edited --to 0",
	"eval nano/base --tasks nano/tasks/base.yaml --limit 4 --bootstrap-iters 10 --out dense-run",
	"eval pruned --tasks nano/tasks/base.yaml --limit 4 --bootstrap-iters 10 --out pruned-run",
	"eval compare dense-run pruned-run --bootstrap-iters 100",
	"eval batch batch.yaml --out batch",
	"eval tasks list",
	"eval tasks show nano/tasks/base.yaml",
	"eval tasks check nano/tasks/base.yaml",
	"editeval plan.yaml --dry-run",
	"editeval plan.yaml --out study",
	"report pruned-run/results.json --out page.html",
	"run jobs.yaml --dry-run",
	"merge methods",
	"man --out pages",
	"docs --out docs.html",
	"schema",
	"schema ppl",
	"schema --input",
	"bench eval --time 1ms --threads 1",
	"bench compare last.json last.json",
}

// alsoReported are forms of reports that no command line here shows: run starts the program itself, worker and serve
// are interrupted (TestStudyElsewhere, TestServe), demo takes its time (the script of that name).
var alsoReported = map[string][]reflect.Type{
	"run": {reflect.TypeFor[*runcmd.Report]()}, "worker": {reflect.TypeFor[*workers.WorkerReport]()},
	"demo": {
		reflect.TypeFor[*democmd.Report](),
		reflect.TypeFor[*democmd.OwnReport](),
	}, "serve": {reflect.TypeFor[*servecmd.Report]()},
}

// without lists the verbs whose reports have no schema, and why.
var without = map[string]string{
	"eval tasks": "only has verbs", "experts": "only has verbs", "lora": "only has verbs",
}

// inFolders are the types of a report.json that a verb leaves in its folder where it is no form of what
// --report writes: that of search is the same for every run of a search, so that it says nothing about the run.
var inFolders = map[string]struct {
	of   reflect.Type
	file string
}{"search": {reflect.TypeFor[*searchcmd.Report](), "found/report.json"}}

// reportInputs are the files that the command lines read.
var reportInputs = map[string]string{
	"linear.yaml": "merge_method: task_arithmetic\n" +
		"base_model: nano/base\n" +
		"models:\n- {model: nano/sums, parameters: {weight: 0.5}}\n- {model: nano/news, parameters: {weight: 0.5}}\n",
	"open.yaml": "merge_method: task_arithmetic\n" +
		"base_model: nano/base\n" +
		"models:\n- {model: nano/sums, parameters: {weight: {search: [0, 1]}}}\n",
	"moe.yaml": "base_model: nano/base\n" +
		"gate_mode: random\nexperts_per_token: 1\nexperts:\n- {source_model: nano/sums}\n- {source_model: " +
		"nano/tales}\n",
	"mediate.yaml": "merge_method: mediate\n" +
		"base_model: nano/base\n" +
		"models:\n- {model: nano/news, name: news}\n- {model: nano/sums, name: sums}\nparameters:\n  select: " +
		"{top_k: 1}\n  router: {prompts: {news: nano/tasks/prompts/news.jsonl, sums: " +
		"nano/tasks/prompts/sums.jsonl}}\n",
	"batch.yaml": "models: [nano/base, nano/tales]\ntasks: [nano/tasks/base.yaml]\nlimit: 2\nbootstrap_iters: -1\n",
	"plan.yaml": "models: [nano/base]\neditors: [{method: ft, hparams: {steps: 2}}]\nedits: " +
		"nano/edits.json\ncounts: [1]\nneighborhood: 1\ntasks:\n- {task: nano/tasks/base.yaml, limit: 4}\n",
	"jobs.yaml": "version: 1\njobs:\n  small: {verb: prune, args: [nano/base], flags: {method: magnitude}}\n",
}

// TestSchemas: what every verb reports is what its committed schema says, and the schemas are those of the
// program's types. go test ./cmd/compress -run TestSchemas -rewrite writes them anew.
func TestSchemas(t *testing.T) {
	home, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}

	nano, _ := filepath.Abs("../../testdata/nano")
	t.Chdir(t.TempDir())
	if err := os.Symlink(nano, "nano"); err != nil {
		t.Fatal(err)
	}

	for name, text := range reportInputs {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	text, err := os.ReadFile("nano/text/test.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("short.txt", text[:2000], 0o666); err != nil { // a perplexity takes as long as its text
		t.Fatal(err)
	}

	h := hubtest.New(t)
	h.Data = "openai/gsm8k"
	for _, split := range []string{"train", "test"} {
		h.Files["main/"+split+"-00000-of-00001.parquet"] = "records of " + split
	}
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Setenv("HF_HOME", t.TempDir())
	if err := os.CopyFS("chatty", os.DirFS("nano/base")); err != nil {
		t.Fatal(err)
	}
	template := []byte("{% for m in messages %}{{ m.content }}{% endfor %}")
	if err := os.WriteFile("chatty/chat_template.jinja", template, 0o666); err != nil {
		t.Fatal(err)
	}

	tokenIDs(t, "ids.safetensors")
	types, outputs := map[string][]reflect.Type{}, map[string][][]byte{}
	for _, line := range reportRuns {
		words := strings.Fields(line)
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "~", " ")
		}

		verb, result, texts := reported(t, words)
		if !slices.Contains(types[verb], result) {
			types[verb] = append(types[verb], result)
		}

		outputs[verb] = append(outputs[verb], texts...)
	}

	everyVerb(func(c *cobra.Command) {
		verb := strings.TrimPrefix(c.CommandPath(), "compress ")
		forms := append(types[verb], alsoReported[verb]...)
		if forms == nil {
			if without[verb] == "" {
				t.Errorf("no command line shows a report of %s", verb)
			}
			return
		}

		text := reportSchema(verb, "What compress "+verb+" prints with --json and writes with --report.", forms,
			inFolders[verb].of)

		if name := inFolders[verb].file; name != "" {
			left, err := os.ReadFile(name)
			if err != nil {
				t.Error(err)
			}
			outputs[verb] = append(outputs[verb], left)
		}

		file := filepath.Join(home, schemaFolder, reportcmd.SchemaFile(verb))
		if *rewrite {
			if err := os.WriteFile(file, text, 0o666); err != nil {
				t.Error(err)
			}
		}

		committed, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(committed, text) {
			t.Errorf("%s is not the schema of the program's types (%v): go test ./cmd/compress -run "+
				"TestSchemas -rewrite", file, err)
			return
		}

		for _, out := range outputs[verb] {
			if err := fits(committed, out, verb); err != nil {
				t.Error(err)
			}
		}
	})
}

// fits compares a report with the text of a schema.
func fits(text, report []byte, verb string) error {
	var s, value any
	if err := errors.Join(decode(text, &s), decode(report, &value)); err != nil {
		return err
	}
	defs, _ := s.(object)["$defs"].(object)
	return checker{defs}.check(s.(object), value, verb)
}

// fitsSchema compares a report with the committed schema of a verb: schema FILE VERB
func fitsSchema(ts *testscript.TestScript, _ bool, args []string) {
	text, err := os.ReadFile(filepath.Join(schemaFolder, reportcmd.SchemaFile(args[1])))
	ts.Check(err)
	ts.Check(fits(text, []byte(ts.ReadFile(args[0])), args[1]))
}

// reported runs a command line, and returns its verb, the type of its result, and what --json and --report gave.
func reported(t *testing.T, words []string) (verb string, result reflect.Type, texts [][]byte) {
	var stdout, stderr bytes.Buffer
	a := cli.New(append(words, "--json", "--quiet", "--report", "r.json"), &stdout, &stderr)
	top := root(a)
	c, _, err := top.Find(words)
	if err != nil {
		t.Fatal(err)
	}

	if code := a.Execute(context.Background(), top); code != 0 {
		t.Fatalf("%s: exit code %d: %s", strings.Join(words, " "), code, stderr.String())
	}

	file, err := os.ReadFile("r.json")
	if err != nil {
		t.Fatal(err)
	}

	list := a.Results()
	if r := list[len(list)-1]; r != nil {
		result = reflect.TypeOf(r)
	}
	if err := os.Rename("r.json", "last.json"); err != nil {
		t.Fatal(err)
	}

	return strings.TrimPrefix(c.CommandPath(), "compress "), result, [][]byte{stdout.Bytes(), file}
}

// decode reads JSON with numbers as they are written.
func decode(text []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

// tokenIDs writes token ids for the verb forward.
func tokenIDs(t *testing.T, path string) {
	w, err := safetensors.Create(path,
		[]safetensors.Info{{Name: "input_ids", DType: safetensors.I64, Shape: []int64{1, 4}}}, nil,
		safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	var data []byte
	for _, id := range []uint64{5, 6, 7, 8} {
		data = binary.LittleEndian.AppendUint64(data, id)
	}
	if err := errors.Join(w.WriteTensor("input_ids", data), w.Finish()); err != nil {
		t.Fatal(err)
	}
}
