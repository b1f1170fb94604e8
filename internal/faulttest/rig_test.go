//go:build linux && amd64

package faulttest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcompress/compress/internal/hub/hubtest"
)

// repository is the root of the module, seen from this package.
const repository = "../.."

// verb is a command line of the program whose faults are looked at. Paths are relative to the folder of the
// rig: inputs are below in, everything that is written is below out.
type verb struct {
	name    string
	args    string
	again   string // what the same command needs to go on: --resume, or nothing
	place   string // a folder of in that is copied to out before the run
	growing string // regular expression: files that may be there, shorter, before the end
	family  bool   // it works through processes of its own
	short   bool   // part of the short campaign
	kinds   string // regular expression: only these kinds of faults
}

// verbs is the closed table of the campaign.
var verbs = []verb{
	{name: "merge", args: "merge in/ties.yaml --out out/m", again: "--resume", short: true},
	{name: "mediate", args: "merge in/mediate.yaml --out out/m", again: "--resume"},
	{
		name: "prune", args: "prune in/base --calib in/text/calib.txt --samples 2 --seqlen 32 --out out/p --masks " +
			"out/masks.safetensors --report out/report.json", again: "--resume",
		short: true,
	},
	{
		name: "prune layers", args: "prune in/base --layers 3 --calib in/text/calib.txt --samples 2 --seqlen 32 " +
			"--out out/p", again: "--resume", growing: `layers\.journal$`,
	},
	{
		name: "prune width", args: "prune in/base --ffn 25% --calib in/text/calib.txt --samples 2 --seqlen 32 " +
			"--out out/p", again: "--resume",
	},
	{
		name: "prune oats", args: "prune in/base --method oats --rank-turns 2 --calib in/text/calib.txt --samples 2 " +
			"--seqlen 32 --out out/p --adapter out/a", again: "--resume",
	},
	{
		name: "prune allocation", args: "prune in/base --method wanda --allocation search --generations 2 " +
			"--offspring 2 --calib in/text/calib.txt --samples 2 --seqlen 32 --out out/p", again: "--resume",
		growing: `search\.journal$`,
	},
	{
		name: "prune vocabulary", args: "prune in/base --vocab-from in/text/calib.txt --vocab-size 640 --out out/p",
		again: "--resume",
	},
	{
		name: "search", args: "search in/base --calib in/text/calib.txt --heldout in/text/valid.txt --samples 2 " +
			"--seqlen 32 --windows 2 --few 1 --select-windows 2 --test-windows 2 --sparsity 0.6 --population 3 " +
			"--generations 1 --seeds=false --workers 1 --out out/s", again: "--resume", growing: `journal\.jsonl$`,
	},
	{
		name: "search structure", args: "search in/base --structure ffn --calib in/text/calib.txt --heldout " +
			"in/text/valid.txt --samples 2 --seqlen 32 --windows 2 --few 1 --select-windows 2 --test-windows 2 " +
			"--population 3 --generations 1 --seeds=false --workers 1 --out out/s", again: "--resume",
		growing: `journal\.jsonl$`,
	},
	{
		name: "lora train", args: "lora train in/base --data in/text/calib.txt --steps 6 --batch 1 --seqlen 32 " +
			"--save-every 2 --kind mos --equivalent-rank 2 --dropout 0.1 --out out/a",
		again: "--resume", short: true,
	},
	{
		name: "merge search", args: "merge search in/open.yaml --data in/text/calib.txt --generations 1 " +
			"--population 4 --limit 4 --seqlen 32 --workers 1 --out out/m",
		again: "--resume", growing: `journal\.jsonl$`,
	},
	{
		name: "prune compare", args: "prune compare in/base --calib in/text/calib.txt --samples 2 --seqlen 32 --ppl " +
			"in/text/short.txt --methods magnitude,gblm,wanda@owl --patterns 0.5,2:4 --keep-models --out out/c",
		again: "--resume", growing: `journal\.jsonl$`,
	},
	{name: "lora fold", args: "lora fold in/base --adapter in/lora --out out/f", again: "--resume"},
	{
		name: "lora fold to", args: "lora fold in/base --adapter in/lora --to q8_0 --out out/f.gguf", again: "--resume",
		growing: `\.f\.gguf\.journal$`,
	},
	{
		name: "experts export", args: "experts export in/mediated --weights sums=0.6,news=0.4 --max-shard-size 300KB " +
			"--out out/x", again: "--resume",
	},
	{name: "lora combine", args: "lora combine in/lora in/lora2 --method linear --out out/c"},
	{name: "lora export", args: "lora export in/mos --out out/e"},
	{name: "lora export gguf", args: "lora export in/mos --to gguf --model in/base --out out/e.gguf"},
	{name: "eval", args: "eval in/base --tasks in/tasks/base.yaml,in/tasks/subtract.yaml --limit 4 " +
		"--log-samples --out out/e", again: "--resume"},
	{name: "eval batch", args: "eval batch in/batch.yaml --out out/b", again: "--resume"},
	{name: "edit", args: "edit in/base --edits in/edits.json --method rome --hparams in/rome.yaml --count 2 --texts " +
		"0 --out out/e", again: "--resume"},
	{name: "edit undo", args: "edit undo out/edited --to 1", place: "edited"},
	{
		name: "editeval", args: "editeval in/study.yaml --workers 1 --out out/s", again: "--resume",
		growing: `journal\.jsonl$`,
	},
	{
		name: "run", args: "run in/jobs.yaml --out out/r", again: "--resume",
		growing: `\.log$|/\.run/\w+\.json$|out/r/report\.json$`, family: true,
	},
	{name: "demo", args: "demo --quick --out out/d", again: "--resume", kinds: "^state$"},
	{name: "pull", args: "pull a/b --out out/h", kinds: "^(state|kill)$"},
	{
		name: "quantize", args: "quantize in/base --to w4a16 --group-size 32 --method gptq --calib in/text/calib.txt " +
			"--samples 2 --seqlen 32 --out out/q --report out/report.json", again: "--resume",
	},
	{
		name: "quantize awq", args: "quantize in/base --to w4a16 --group-size 32 --method awq --calib " +
			"in/text/calib.txt --samples 2 --seqlen 32 --out out/q", again: "--resume",
	},
	{
		name: "quantize file", args: "quantize in/base --to q4_0 --out out/q.gguf", again: "--resume",
		growing: `\.q\.gguf\.journal$`,
	},
	{
		name: "quantize search", args: "quantize in/base --to q4_0,q5_0,q8_0 --size 6bpw --calib in/text/calib.txt " +
			"--samples 2 --seqlen 32 --assign search --generations 2 --offspring 2 --out out/q.gguf", again: "--resume",
		growing: `\.q\.gguf\.journal$|\.jsonl$`,
	},
	{name: "convert", args: "convert in/base --out out/c --dtype bf16 --max-shard-size 300KB", short: true},
}

// twins say what is another in a command with the same output as that of a verb, and what that is there.
var twins = map[string][2]string{
	"merge":            {"ties.yaml", "ties2.yaml"},
	"mediate":          {"mediate.yaml", "mediate2.yaml"},
	"prune":            {"--seqlen 32", "--seqlen 32 --sparsity 0.6"},
	"prune layers":     {"--samples 2", "--samples 3"},
	"prune width":      {"25%", "50%"},
	"prune oats":       {"--samples 2", "--samples 3"},
	"prune allocation": {"--offspring 2", "--offspring 3"},
	"prune vocabulary": {"size 640", "size 576"},
	"search":           {"--sparsity 0.6", "--sparsity 0.7"},
	"search structure": {"--samples 2", "--samples 3"},
	"lora train":       {"--dropout 0.1", "--dropout 0.2"},
	"merge search":     {"calib.txt", "valid.txt"},
	"prune compare":    {"--samples 2", "--samples 3"},
	"lora fold":        {"in/lora", "in/lora2"},
	"experts export":   {"sums=0.6", "sums=0.5"},
	"eval":             {"--limit 4", "--limit 3"},
	"eval batch":       {"batch.yaml", "batch2.yaml"},
	"edit":             {"rome.yaml", "rome2.yaml"},
	"editeval":         {"study.yaml", "study2.yaml"},
	"run":              {"jobs.yaml", "jobs2.yaml"},
	"quantize":         {"--samples 2", "--samples 3"},
	"quantize awq":     {"--samples 2", "--samples 3"},
	"quantize file":    {"q4_0", "q8_0"},
	"quantize search":  {"--size 6bpw", "--size 7bpw"},
}

// recipes are the files that the verbs read besides the models, tasks and texts of the repository.
var recipes = map[string]string{
	"ties.yaml": `merge_method: ties
base_model: in/base
models:
- {model: in/news, parameters: {weight: 0.5, density: 0.5}}
- {model: in/sums, parameters: {weight: 0.5, density: 0.5}}
`,
	"open.yaml": `merge_method: task_arithmetic
base_model: in/base
models:
- {model: in/tales, parameters: {weight: {search: [0, 1]}}}
- {model: in/sums, parameters: {weight: {search: [0, 1]}}}
`,
	"mediate.yaml": `merge_method: mediate
base_model: in/base
models:
- {model: in/news, name: news}
- {model: in/sums, name: sums}
parameters:
  select: {top_k: 1}
  router: {prompts: {news: in/tasks/prompts/news.jsonl, sums: in/tasks/prompts/sums.jsonl}}
`,
	"study.yaml": `models: [in/base]
editors:
- {method: ft, hparams: {steps: 2}}
- {method: memit, batch: 2, hparams: {steps: 2}}
edits: in/edits.json
counts: [1, 2]
neighborhood: 1
tasks:
- {task: in/tasks/base.yaml, limit: 4}
`,
	"batch.yaml": `models: [in/base, {name: tales, path: in/tales}]
tasks: [in/tasks/base.yaml, in/tasks/subtract.yaml]
limit: 4
bootstrap_iters: -1
`,
	"rome.yaml": "steps: 3\n",
	"jobs.yaml": `version: 1
jobs:
  prune:
    verb: prune
    args: [in/base]
    flags: {method: magnitude, sparsity: 0.5}
  merge:
    verb: merge
    recipe:
      merge_method: linear
      models:
      - {model: "${jobs.prune.out}", parameters: {weight: 0.7}}
      - {model: in/sums, parameters: {weight: 0.3}}
      dtype: float32
  adapt:
    verb: lora train
    args: ["${jobs.merge.out}"]
    flags: {data: in/text/calib.txt, kind: lora, rank: 2, steps: 3, batch: 1, seqlen: 32, save-every: 1}
`,
}

// otherRecipes are recipes that differ from one of recipes in one place: its name, what is there, what is instead.
var otherRecipes = map[string][3]string{
	"ties2.yaml": {"ties.yaml", "density: 0.5}}\n- {model: in/sums, parameters: {weight: 0.5", "density: 0.5}}\n" +
		"- {model: in/sums, parameters: {weight: 0.4"},
	"mediate2.yaml": {"mediate.yaml", "in/sums, name", "in/tales, name"},
	"batch2.yaml":   {"batch.yaml", "limit: 4", "limit: 3"},
	"rome2.yaml":    {"rome.yaml", "steps: 3", "steps: 2"},
	"study2.yaml":   {"study.yaml", "neighborhood: 1", "neighborhood: 2"},
	"jobs2.yaml":    {"jobs.yaml", "sparsity: 0.5", "sparsity: 0.6"},
}

// preparations are the commands that make what some verbs start from.
var preparations = []string{
	"lora train in/base --data in/text/calib.txt --kind lora --rank 2 --steps 1 --batch 1 --seqlen 32 --out in/lora",
	"lora train in/base --data in/text/calib.txt --kind lora --rank 2 --steps 1 --batch 1 --seqlen 32 --seed 1 " +
		"--out in/lora2",
	"lora train in/base --data in/text/calib.txt --steps 1 --batch 1 --seqlen 32 --kind mos --equivalent-rank 2 " +
		"--out in/mos",
	"edit in/base --edits in/edits.json --method rome --hparams in/rome.yaml --count 2 --texts 0 --out in/edited",
	"merge in/mediate.yaml --out in/mediated",
}

// rig is a folder in which verbs run.
type rig struct {
	binary, dir, home string
	hub               string             // address of a hub on this machine that has a model
	wanted            map[string]outputs // of runs that were left alone, by verb
}

// outputs are files by path, with the hash of what they hold, figures of time and memory apart.
type outputs map[string]string

// newRig copies the inputs and makes the prepared ones. The reason is why nothing can be traced here, if there is one.
func newRig(binary, dir string) (*rig, error) {
	r := &rig{
		binary: binary, dir: filepath.Join(dir, "run"), home: filepath.Join(dir, "home"),
		wanted: map[string]outputs{},
	}
	_ = syscall.Unmount(filepath.Join(r.dir, "out"), 0) // a campaign that was killed may have left its small disk

	for _, d := range []string{filepath.Join(r.dir, "in"), filepath.Join(r.dir, "out"), r.home} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}

	if _, err := os.Stat(filepath.Join(r.dir, "in", "mediated")); err == nil {
		return r, nil // of an earlier part of the campaign
	}
	if err := os.CopyFS(filepath.Join(r.dir, "in"), os.DirFS(filepath.Join(repository, "testdata/nano"))); err != nil {
		return nil, err
	}

	for name, text := range recipes {
		if err := os.WriteFile(filepath.Join(r.dir, "in", name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}

	for name, change := range otherRecipes {
		text := strings.Replace(recipes[change[0]], change[1], change[2], 1)
		if err := os.WriteFile(filepath.Join(r.dir, "in", name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}

	if err := r.shortText(); err != nil {
		return nil, err
	}

	for _, p := range preparations {
		if text, err := r.plain(strings.Fields(p)).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", p, err, text)
		}
	}

	return r, nil
}

// shortText writes a text on which a perplexity takes a moment.
func (r *rig) shortText() error {
	text, err := os.ReadFile(filepath.Join(r.dir, "in/text/valid.txt"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, "in/text/short.txt"), text[:1500], 0o644)
}

// env is what the program sees of the surroundings: little, so that runs are alike.
func (r *rig) env() []string {
	return []string{"PATH=/usr/bin:/bin", "HOME=" + r.home, "TMPDIR=" + r.home, "GOMAXPROCS=2", "HF_ENDPOINT=" + r.hub}
}

func (r *rig) plain(args []string) *exec.Cmd {
	cmd := exec.Command(r.binary, slices.Concat(args, []string{"--threads", "1", "--quiet"})...)
	cmd.Dir, cmd.Env = r.dir, r.env()
	return cmd
}

// clear makes out as it is before a run.
func (r *rig) clear(v verb) error {
	for _, d := range []string{filepath.Join(r.dir, "out"), r.home} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}

	if v.place == "" {
		return nil
	}

	return os.CopyFS(filepath.Join(r.dir, "out", v.place), os.DirFS(filepath.Join(r.dir, "in", v.place)))
}

// line is the command line of a verb, from the beginning or going on.
func (r *rig) line(v verb, again bool) command {
	args := strings.Fields(v.args)
	if again && v.again != "" {
		args = append(args, v.again)
	}
	return command{
		binary: r.binary, dir: r.dir, args: append(args, "--threads", "1", "--quiet"), env: r.env(),
		family: v.family,
	}
}

// reference makes the run that is left alone, and gives its calls.
func (r *rig) reference(v verb) (calls []call, err error) {
	if err := r.clear(v); err != nil {
		return nil, err
	}

	end, err := trace(r.line(v, false), fault{match: func(c call) bool { calls = append(calls, c); return true }})
	if err != nil {
		return nil, err
	}

	if end.code != 0 {
		return nil, fmt.Errorf("%s: exit code %d: %s", v.name, end.code, end.stderr)
	}

	r.wanted[v.name], err = r.outputs()
	return calls, err
}

// outputs reads what is below out, and what was left where temporary files go.
func (r *rig) outputs() (outputs, error) {
	o := outputs{}
	for _, top := range []string{filepath.Join(r.dir, "out"), r.home} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == top {
				return err
			}

			name, _ := filepath.Rel(filepath.Dir(r.home), path)
			if d.IsDir() {
				o[name+"/"] = "a folder"
				return nil
			}

			o[name], err = digest(path)
			return err
		})
		if err != nil {
			return nil, err
		}
	}

	return o, nil
}

// volatile are the keys of JSON files that hold times, memory, or whether a run was continued.
var volatile = regexp.MustCompile(
	`seconds(_[a-z]+)?$|^(date|start_time|end_time|started|finished|memory_free_bytes|peak_memory_bytes|notes|resume|overwrite|resumed|runs_reused|reused|args|command|arguments|cpu_seconds|cached|tokens_per_second|bytes_per_second|restored|restarts|timings|weight_error|output_error|rounded_error|dead_inputs|damping)$`)

// digest is the hash of a file without volatile figures. Pages are the same if they are whole: their figures
// are those of the JSON files beside them.
func digest(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}

	if filepath.Base(filepath.Dir(path)) == ".run" {
		if data = bookkeeping(filepath.Base(path), data); data == nil {
			return "kept for the next run", nil
		}
	}

	switch filepath.Ext(path) {
	case ".log":
		return "a log", nil // with figures of time, and of every beginning
	case ".html":
		if bytes.HasSuffix(bytes.TrimSpace(data), []byte("</html>")) {
			return "a whole page", nil
		}
	case ".jsonl":
		data = lines(data)
	case ".json":
		var v any
		if json.Unmarshal(data, &v) == nil {
			if strings.HasSuffix(path, "out/r/report.json") {
				// whether this run or an earlier one has done a job
				for _, key := range []string{"state", "done", "kept"} {
					forget(v, key)
				}
			}

			if data, err = json.Marshal(stable(v)); err != nil {
				return "", err
			}
		}
	}

	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

// lines are those of a file of JSON, without volatile figures and without the sums that cover them. Lines that are
// something else stay as they are. A comparison notes a run that had to be done again behind the others, once more.
func lines(data []byte) []byte {
	var list [][]byte
	for line := range bytes.Lines(data) {
		var v any
		if json.Unmarshal(line, &v) != nil {
			list = append(list, line)
			continue
		}

		if m, ok := v.(map[string]any); ok {
			delete(m, "sum")
		}

		text, err := json.Marshal(stable(v))
		if err != nil {
			panic("a value of JSON that cannot be written")
		}
		list = append(list, append(text, '\n'))
	}

	if bytes.HasPrefix(data, []byte(`{"command":"compress prune compare"`)) {
		slices.SortFunc(list, bytes.Compare)
		list = slices.CompactFunc(list, bytes.Equal)
	}

	return bytes.Join(list, nil)
}

// bookkeeping is what files of the verb run about its jobs say without what differs by nature: hashes of
// outputs, which hold times, by path and by the times of files, and the name of the session. The outputs are
// compared themselves. Nil: nothing is left.
func bookkeeping(name string, data []byte) []byte {
	var v map[string]any
	if !json.Valid(data) || json.Unmarshal(data, &v) != nil {
		return data
	}
	if name == "session.json" || name == "hashes.json" {
		return nil
	}

	delete(v, "outputs")
	data, err := json.Marshal(v)
	if err != nil {
		panic("a map of JSON that cannot be written")
	}

	return data
}

// forget leaves out a key, at any depth.
func forget(v any, key string) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, key)
		for _, x := range v {
			forget(x, key)
		}
	case []any:
		for _, x := range v {
			forget(x, key)
		}
	}
}

// stable leaves out volatile keys, at any depth.
func stable(v any) any {
	switch v := v.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(k string, _ any) bool { return volatile.MatchString(k) })
		for k := range v {
			v[k] = stable(v[k])
		}
	case []any:
		for i := range v {
			v[i] = stable(v[i])
		}
	}

	return v
}

// difference says how outputs differ from those of the run that was left alone; "" if they don't.
func difference(want, got outputs) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have, ok := got[name]; !ok {
			list = append(list, name+" is missing")
		} else if have != want[name] {
			list = append(list, name+" differs")
		}
	}

	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			list = append(list, name+" was left behind")
		}
	}

	return strings.Join(list, ", ")
}

// unfinished says which files stand under a final name without being what they will be; "" if none do. before
// is what stood there at the start.
func unfinished(v verb, want, got, before outputs) string {
	growing := regexp.MustCompile(`^$`)
	if v.growing != "" {
		growing = regexp.MustCompile(v.growing)
	}

	var list []string
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if w, ok := want[name]; ok && w != got[name] && before[name] != got[name] && !growing.MatchString(name) {
			list = append(list, name+" is half-written")
		}
	}

	return strings.Join(list, ", ")
}

// build makes the program, unless the environment names one.
func build(dir string) (string, error) {
	if path := os.Getenv("COMPRESS_FAULT_BINARY"); path != "" {
		return filepath.Abs(path)
	}

	path := filepath.Join(dir, "compress")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "./cmd/compress")
	cmd.Dir = repository
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}

	return path, nil
}

// rigOf makes a rig for a test, or skips it.
func rigOf(t *testing.T) *rig {
	t.Helper()
	dir := *workDir
	if dir == "" {
		dir = t.TempDir()
	}

	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}

	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}

	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}

	r, err := newRig(binary, dir)
	if err != nil {
		t.Fatal(err)
	}
	r.hub = hubtest.New(t).URL

	if end, err := trace(command{binary: binary, dir: r.dir, args: []string{"version"}, env: r.env()},
		fault{}); err != nil || end.code != 0 {
		t.Skipf("children cannot be traced here: exit code %d, %v: %s", end.code, err, end.stderr)
	}

	return r
}
