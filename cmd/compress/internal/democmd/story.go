package democmd

import (
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

// stage is a part of the story: command lines of the program.
type stage struct {
	name  string // also the folder of what it writes
	title string
	steps []step
}

// step is one command line.
type step struct {
	args []string
	out  []string // what it writes
	cost float64  // about how long it takes, in any unit that all steps share
}

// line is the command line as it is typed.
func (p step) line() string { return cli.ShellLine(append([]string{"compress"}, p.args...)) }

// key names the step in the journal.
func (p step) key() string { return strings.Join(p.args, "\x00") }

// weight is the cost of the steps that are not done.
func (s stage) weight(done func(step) bool) (w float64) {
	for _, p := range s.steps {
		if !done(p) {
			w += p.cost
		}
	}
	return w
}

// builder collects steps for an output folder.
type builder struct {
	dir    string
	common []string
	quick  bool
}

// step makes a command line: words of line are split at blanks, and @ stands for the demo's folder. out are its
// outputs below that.
func (b builder) step(cost float64, line string, out ...string) step {
	p := step{cost: cost}
	for _, w := range strings.Fields(line) {
		p.args = append(p.args, strings.ReplaceAll(w, "@", filepath.ToSlash(b.dir)))
	}
	p.args = append(p.args, b.common...)
	for _, o := range out {
		p.out = append(p.out, filepath.Join(b.dir, filepath.FromSlash(o)))
	}
	return p
}

// pick is the first word in full and the second in a quick demo.
func (b builder) pick(full, quick string) string {
	if b.quick {
		return quick
	}
	return full
}

// found is the formula that the search ends with, as a method of prune.
const found = "tree:@/search/best.json"

// calibration is what every pruning is given.
func (b builder) calibration() string {
	return " --calib @/nano/text/calib.txt --seqlen 256 --samples " + b.pick("32", "8")
}

// experts are the fine-tuned models, and task the one each was trained for.
var experts = []struct{ name, task string }{
	{"sums", "subtract"},
	{"news", "news"},
	{"rumours", "rumours"},
	{"tales", "tales"},
}

// story is the whole plan of a demo.
func story(dir string, common []string, quick bool) []stage {
	b := builder{dir, common, quick}
	return []stage{
		{"search", "search a formula that says which weights matter", b.search()},
		{"prune", "prune with it and with the known methods, on the same calibration ids", b.prune()},
		{"quantise", "store it in 4 to 8 bits a weight, as files for llama.cpp and folders for vLLM", b.quantise()},
		{"conflict", "how much four fine-tuned models contradict each other", b.conflict()},
		{"merge", "merge them, and mediate between them", b.merge()},
		{"adapt", "train a Mixture of Shards beside a LoRA", b.adapt()},
		{"edit", "write facts, and see what holds and what is lost", b.edit()},
		{"score", "score every model on the same tasks", b.score()},
	}
}

func (b builder) search() []step {
	data := b.pick("--samples 16 --seqlen 128 --windows 16 --few 4 --select-windows 16 --test-windows 32",
		"--samples 4 --seqlen 128 --windows 4 --few 2 --select-windows 4 --test-windows 8")
	size := b.pick("--population 40 --generations 8", "--population 12 --generations 1")
	return []step{b.step(b.cost(10, 2), "search @/nano/base --calib @/nano/text/calib.txt --heldout "+
		"@/nano/text/valid.txt "+data+
		" --sparsity 0.6 "+size+" --out @/search", "search")}
}

func (b builder) cost(full, quick float64) float64 {
	if b.quick {
		return quick
	}
	return full
}

// sparsities are those of the comparison, and of the models that are packed.
func (b builder) sparsities() []string {
	return strings.Split(b.pick("0.3,0.5,0.6,0.7,2:4", "0.5,0.6"), ",")
}

func (b builder) prune() []step {
	methods := b.pick("magnitude,wanda,ria,pruner-zero,sparsegpt,"+found+","+found+"+sparsegpt",
		"magnitude,wanda,sparsegpt,"+found)
	steps := []step{b.step(b.cost(10, 2),
		"prune compare @/nano/base --methods "+methods+" --patterns "+strings.Join(b.sparsities(), ",")+
			b.calibration()+" --ppl @/nano/text/test.txt --out @/prune/compared", "prune/compared")}

	for _, m := range []struct{ name, method string }{
		{"wanda-50", "wanda"},
		{"found-50", found},
		{"sparsegpt-50", "sparsegpt"},
	} {
		steps = append(steps,
			b.step(.3, "prune @/nano/base --method "+m.method+" --sparsity 0.5"+b.calibration()+
				" --out @/prune/"+m.name, "prune/"+m.name))
	}

	for _, s := range b.sparsities() {
		how := " --sparsity " + s
		if strings.Contains(s, ":") {
			how = " --pattern " + s
		}

		name := packed(s)
		steps = append(steps,
			b.step(.3, "prune @/nano/base --method wanda"+how+b.calibration()+" --save bitmask --out @/prune/"+name,
				"prune/"+name))
	}

	return steps
}

// quantised are the models of few bits: how each is made, and what it is called.
func (b builder) quantised() []struct{ name, path, how string } {
	text := " --calib @/nano/text/calib.txt --seqlen 128 --samples " + b.pick("32", "4")
	const weighed = " --imatrix @/quantise/base.imatrix.gguf"
	list := []struct{ name, path, how string }{
		{"q8_0", "quantise/base.Q8_0.gguf", "--to q8_0"},
		{"q4_0", "quantise/base.Q4_0.gguf", "--to q4_0" + weighed},
		{"mixed", "quantise/base.mixed.gguf", "--to q4_0,q5_0,q8_0 --size 5bpw" + weighed + text},
		{"w4a16", "quantise/w4a16", "--to w4a16 --group-size 32 --method gptq" + text},
	}
	if b.quick {
		return list[1:3]
	}
	return list
}

func (b builder) quantise() []step {
	steps := []step{b.step(.1, "imatrix @/nano/base --data @/nano/text/calib.txt --seqlen 128 --chunks "+
		b.pick("64", "4")+" --out @/quantise/base.imatrix.gguf", "quantise/base.imatrix.gguf")}
	for _, q := range b.quantised() {
		steps = append(steps, b.step(.2, "quantize @/nano/base "+q.how+" --out @/"+q.path, q.path))
	}
	return steps
}

// packed names the folder of a packed model.
func packed(target string) string { return "packed-" + strings.ReplaceAll(target, ":", "-") }

// pairs are two experts each, in the order of their recipes.
func (b builder) pairs() (list []string) {
	for i, x := range experts {
		for _, y := range experts[i+1:] {
			list = append(list, x.name+"-"+y.name)
		}
	}
	if b.quick {
		return []string{"sums-news", "news-rumours"}
	}
	return list
}

func (b builder) conflict() []step {
	steps := []step{b.step(.1, "conflict @/demo/mediate.yaml --report @/conflict/all.json --html @/conflict/all.html",
		"conflict/all.json", "conflict/all.html")}
	for _, p := range b.pairs() {
		steps = append(steps,
			b.step(.1, "conflict @/demo/pair-"+p+".yaml --report @/conflict/"+p+".json", "conflict/"+p+".json"))
	}
	return steps
}

// mediated is the folder that mediate writes; the others are static merges.
const mediated = "mediated"

func (b builder) static() []string {
	return strings.Split(b.pick("linear,task_arithmetic,ties,dare_ties,sce", "linear,ties"), ",")
}

func (b builder) merge() (steps []step) {
	for _, m := range b.static() {
		steps = append(steps, b.step(.1, "merge @/demo/"+m+".yaml --out @/merge/"+m, "merge/"+m))
	}
	return append(steps, b.step(.4, "merge @/demo/mediate.yaml --out @/merge/"+mediated, "merge/"+mediated))
}

func (b builder) adapt() (steps []step) {
	how := " --steps " + b.pick("120", "10") + " --batch 8 --lr 1e-2 --schedule cosine --warmup " + b.pick("10",
		"2") + " --clip 1 --out @/adapt/"
	for _, k := range []string{"lora --rank 8", "mos --equivalent-rank 2 --rank 8 --private -1"} {
		name, _, _ := strings.Cut(k, " ")
		steps = append(steps,
			b.step(b.cost(6, .6), "lora train @/nano/base --data @/nano/train/tales.jsonl --kind "+k+how+name,
				"adapt/"+name))
	}
	return steps
}

// edits is how many facts the edited models that are scored have.
func (b builder) edits() string { return b.pick("12", "2") }

// edited are the editors whose models are scored, with the files of their hyper-parameters.
func (b builder) edited() []string { return strings.Split(b.pick("ft,memit", "ft"), ",") }

func (b builder) edit() []step {
	steps := []step{b.step(b.cost(9, 2),
		"editeval @/demo/"+b.pick("editing", "editing-quick")+".yaml --out @/edit/study", "edit/study")}
	for _, e := range b.edited() {
		method := map[string]string{"ft": "ft-l"}[e]
		if method == "" {
			method = e
		}

		steps = append(steps,
			b.step(.9,
				"edit @/nano/base --edits @/nano/edits.json --count "+b.edits()+" --method "+method+
					" --hparams @/demo/"+e+
					".yaml --stats @/nano/text/calib.txt --texts 0 --out @/edit/"+e, "edit/"+e))
	}

	return steps
}

// model is one that is scored.
type model struct{ name, what, path, flags string }

func (b builder) models() []model {
	list := []model{{"base", "base", "@/nano/base", ""}}
	for _, e := range experts {
		list = append(list, model{e.name, "expert", "@/nano/" + e.name, ""})
	}
	for _, m := range []string{"wanda-50", "found-50", "sparsegpt-50"} {
		list = append(list, model{m, "pruned", "@/prune/" + m, ""})
	}
	for _, q := range b.quantised() {
		list = append(list, model{q.name, "quantised", "@/" + q.path, ""})
	}
	for _, m := range b.static() {
		list = append(list, model{m, "merged", "@/merge/" + m, ""})
	}

	list = append(list, model{mediated, "mediated", "@/merge/" + mediated, " --experts top1"})
	for _, a := range []string{"lora", "mos"} {
		list = append(list, model{a, "adapted", "@/nano/base", " --adapter @/adapt/" + a})
	}
	for _, e := range b.edited() {
		list = append(list, model{e + "-" + b.edits(), "edited", "@/edit/" + e, ""})
	}

	return list
}

// score evaluates every model, measures its perplexity on the base's kind of text, and compares all with the base.
func (b builder) score() (steps []step) {
	limit := b.pick("", " --limit 12")
	windows := b.pick("", " --limit 8")
	for _, m := range b.models() {
		against := ""
		if m.what == "pruned" || m.what == "quantised" { // of which one asks how far they are from what they were
			against = " --against @/nano/base"
		}
		steps = append(steps,
			b.step(b.cost(.4, .1),
				"eval "+m.path+m.flags+" --tasks @/nano/tasks,@/demo/add.yaml"+limit+" --out @/score/"+m.name,
				"score/"+m.name),
			b.step(.2,
				"ppl "+m.path+m.flags+" --data @/nano/text/test.txt --seqlen 256"+windows+against+
					" --report @/score/"+m.name+".json", "score/"+m.name+".json"))
	}

	for _, c := range b.contests() {
		steps = append(steps,
			b.step(.1, "eval compare @/score/"+c[0]+" @/score/"+c[1]+" --report @/score/"+contestFile(c),
				"score/"+contestFile(c)))
	}

	return steps
}

func contestFile(c [2]string) string { return c[0] + "-" + c[1] + ".json" }

// contests are the pairs of models that are tested on the same documents.
func (b builder) contests() (list [][2]string) {
	for _, m := range b.models()[1:] {
		if m.what != "expert" && m.what != "merged" {
			list = append(list, [2]string{"base", m.name})
		}
	}
	for _, m := range b.static() {
		list = append(list, [2]string{m, mediated})
	}
	return append(list, [2]string{"wanda-50", "found-50"}, [2]string{"lora", "mos"})
}
