package democmd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm"
)

// modelWord stands for the user's model in the command lines of its story.
const modelWord = "MODEL"

// own is the story of a model of the user's.
type own struct {
	builder
	model string
}

// fact3 is a fact that is edited: what is asked, and what the model is to say.
type fact3 struct{ prompt, old, new string }

// ownFacts are those of testdata/demo/facts.json.
var ownFacts = []fact3{
	{"The Eiffel Tower is located in the city of", "Paris", "Rome"},
	{"The capital of Japan is", "Tokyo", "Oslo"},
	{"The field in which Albert Einstein worked is", "physics", "music"},
}

// step is that of the builder, with the model's path for the word that stands for it.
func (b own) step(cost float64, line string, out ...string) step {
	p := b.builder.step(cost, line, out...)
	for i, a := range p.args {
		if a == modelWord {
			p.args[i] = b.model
		}
	}
	return p
}

// ownStory is the plan of a demo of the user's model: what the program does to it in about ten minutes where it has
// 135M parameters.
func ownStory(o Options, common []string) []stage {
	b := own{builder: builder{o.Out, common, o.Quick}, model: o.Model}
	return []stage{
		{"dense", "look at the model as it is", b.dense()},
		{"prune", "remove half of its weights by three methods", b.pruneOwn()},
		{"quantise", "store it in 4 bits a weight", b.quantiseOwn()},
		{"heal", "train the best pruned model back for a moment", b.heal()},
		{"edit", "write three facts", b.editOwn()},
	}
}

// window is the length of the sequences of measurements.
func (b own) window() string { return " --seqlen " + b.pick("256", "64") }

// measured are the steps that say how good a model is: perplexity and the shipped questions.
func (b own) measured(cost float64, path, name string) []step {
	against := " --against MODEL"
	if name == "dense" {
		against = ""
	}
	return []step{
		b.step(cost*b.cost(10, 1), "ppl "+path+" --data @/text/test.txt"+b.window()+against+
			" --report @/"+name+"/ppl.json", name+"/ppl.json"),
		b.step(b.cost(14, 1), "eval "+path+" --tasks @/demo/general.yaml"+b.pick("", " --limit 8")+" --out @/"+name+
			"/questions", name+"/questions"),
	}
}

// said are the steps in which a model continues the prompts of the facts.
func (b own) said(path, name string) (steps []step) {
	for i, f := range ownFacts {
		p := b.step(2, "generate "+path, name+fmt.Sprintf("/said-%d.json", i+1))
		at := slices.Index(p.args, "generate") + 2
		more := []string{
			"--prompt", f.prompt, "--max-tokens", "8", "--report",
			filepath.ToSlash(filepath.Join(b.dir, name, fmt.Sprintf("said-%d.json", i+1))),
		}
		p.args = slices.Insert(p.args, at, more...)
		steps = append(steps, p)
	}
	return steps
}

func (b own) dense() []step {
	steps := []step{b.step(1, "inspect MODEL --report @/dense/inspect.json", "dense/inspect.json")}
	steps = append(steps, b.measured(1, modelWord, "dense")...)
	return append(steps, b.said(modelWord, "dense")...)
}

// ownCalibration is what pruning is given.
func (b own) ownCalibration() string {
	return " --calib @/text/calib.txt" + b.window() + " --samples " + b.pick("8", "4")
}

func (b own) pruneOwn() []step {
	steps := []step{
		b.step(b.cost(140, 4),
			"prune compare MODEL --methods magnitude,wanda,sparsegpt --patterns 0.5"+b.ownCalibration()+
				" --ppl @/text/test.txt --out @/prune/compared", "prune/compared"),
		b.step(b.cost(60, 2), "prune MODEL --method sparsegpt --sparsity 0.5"+b.ownCalibration()+
			" --out @/prune/sparsegpt-50", "prune/sparsegpt-50"),
	}
	return append(steps, b.measured(2, "@/prune/sparsegpt-50", "prune")...)
}

func (b own) quantiseOwn() []step {
	steps := []step{b.step(b.cost(10, 1), "quantize MODEL --to q4_0 --out @/quantise/model.Q4_0.gguf",
		"quantise/model.Q4_0.gguf")}
	return append(steps, b.measured(2, "@/quantise/model.Q4_0.gguf", "quantise")...)
}

func (b own) heal() []step {
	steps := []step{
		b.step(b.cost(120, 3), "lora train @/prune/sparsegpt-50 --keep-zeros --targets q,k,v,o "+
			"--data @/text/calib.txt --seqlen 128 --batch 4 --steps "+b.pick("16", "4")+
			" --lr 1e-3 --schedule cosine --warmup 2 --clip 1 --out @/heal/adapter", "heal/adapter"),
		b.step(5, "lora fold @/prune/sparsegpt-50 --adapter @/heal/adapter --keep-zeros --out @/heal/model",
			"heal/model"),
	}
	return append(steps, b.measured(2, "@/heal/model", "heal")...)
}

func (b own) editOwn() []step {
	steps := []step{b.step(b.cost(50, 2), "edit MODEL --edits @/demo/facts.json --method grace --texts 0 "+
		"--out @/edit/model --report @/edit/edits.json", "edit/model", "edit/edits.json")}
	steps = append(steps, b.measured(2, "@/edit/model", "edit")...)
	return append(steps, b.said("@/edit/model", "edit")...)
}

// The texts of a model's demo: without one of the user's, pages of this project's documentation, which no model that
// is older than them has seen.
var (
	calibrationPages = []string{"docs/howto", "docs/tutorials", "docs/pruning.md", "docs/adapters.md"}
	testPages        = []string{"docs/concepts", "docs/faq.md", "docs/serving.md"}
)

// maxOwnText bounds what is taken of the user's text: a demo reads a few thousand tokens.
const maxOwnText = 8 << 20

// testBytes is how much text is measured on: some 3,500 tokens of English.
const testBytes = 12 << 10

// errShortText: there is not enough text to measure with.
var errShortText = errors.New("too little text")

// leastText is how many bytes a text of the user's has to have.
const leastText = 20_000

// shipTexts writes text/calib.txt and text/test.txt: the first four fifths and the rest of --data, or the pages.
func (d *demo) shipTexts() error {
	calib, test, err := d.texts()
	if err != nil {
		return err
	}
	dir := filepath.Join(d.o.Out, "text")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	most := testBytes
	if d.o.Quick {
		most /= 4
	}
	if len(test) > most {
		end := bytes.LastIndexByte(test[:most], '\n')
		if end < most/2 { // one long line: between letters, then
			end = most
		}
		test = []byte(strings.ToValidUTF8(string(test[:end]), "") + "\n")
	}
	return errors.Join(cli.WriteFile(filepath.Join(dir, "calib.txt"), calib),
		cli.WriteFile(filepath.Join(dir, "test.txt"), test))
}

// usable refuses texts that are too short, and a model that the verbs of a demo could not run, or not give texts to. It
// notes what they are: steps that were done with others are not gone on with.
func (d *demo) usable() error {
	calib, test, err := d.texts()
	if err != nil {
		return err
	}

	m, err := d.job.Load(d.o.Model, lm.Options{Stream: true})
	if err != nil {
		return err
	}

	tok, err := cli.Tokenizer(m)
	if err == nil && tok == nil {
		err = fmt.Errorf("%s: %w", d.o.Model, errNoTokenizer)
	}

	weights := ""
	if err == nil {
		weights, err = m.Fingerprint(d.job.Ctx)
	}
	d.about = cli.Fingerprint(d.o.Model, weights, calib, test)
	return errors.Join(err, m.Close())
}

var errNoTokenizer = failure.New("the model's folder has no tokenizer, and the demo's texts need one",
	"put tokenizer.json into the folder")

// texts are what the demo calibrates with and measures on.
func (d *demo) texts() (calib, test []byte, err error) {
	if d.o.Data == "" {
		calib, err = pages(calibrationPages)
		if err == nil {
			test, err = pages(testPages)
		}
		return calib, test, err
	}

	all, err := safefile.ReadFile(d.o.Data, maxOwnText)
	if err != nil {
		return nil, nil, fmt.Errorf("--data: %w", err)
	}
	if len(all) < leastText {
		return nil, nil, fmt.Errorf("--data %s: %w: %s bytes, want %s or more", d.o.Data, errShortText,
			cli.Thousands(int64(len(all))), cli.Thousands(leastText))
	}

	at := len(all) / 5 * 4
	// The cut is at the end of a line, or at least between letters.
	if i := bytes.IndexByte(all[at:], '\n'); i >= 0 && at+i+1 < len(all) {
		at += i + 1
	}
	return []byte(strings.ToValidUTF8(string(all[:at]), "")), []byte(strings.ToValidUTF8(string(all[at:]), "")), nil
}

// pages are pages of the documentation, one after the other.
func pages(roots []string) (text []byte, err error) {
	for _, root := range roots {
		err := fs.WalkDir(compress.Pages, root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".md") {
				return err
			}
			one, err := compress.Pages.ReadFile(path)
			text = append(append(text, one...), '\n')
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return text, nil
}
