package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// foreign is a flag of another tool that has another name here, or none.
type foreign struct {
	tool  string // whose it is
	flags string // its names, as there, with blanks between them
	verbs string // verbs that it is about, with commas between them; empty: all
	here  string // the flag here, with its dashes; or a sentence that says what to do instead
}

// The other tools.
const (
	mergekit = "mergekit"
	peft     = "PEFT and TRL"
	axolotl  = "axolotl"
	harness  = "lm-eval"
	llamaCpp = "llama.cpp"
	pruners  = "SparseGPT and Wanda"
)

// foreigners answers the flags that people bring along. The first that fits counts, so that what is about certain verbs
// stands before what is about all.
var foreigners = []foreign{
	{mergekit, "cuda", "", "--device cuda:0"},
	{
		mergekit, "gpu-rich low-cpu-memory read-to-gpu multi-gpu", "",
		"--device cuda:0 uses the GPU, and memory is bounded without a flag",
	},
	{mergekit, "out-shard-size", "", "--max-shard-size"},
	{mergekit, "copy-tokenizer no-copy-tokenizer", "", "the tokenizer's files are always copied"},
	{
		mergekit, "lazy-unpickle safe-serialization async-write", "",
		"only safetensors files are read and written, a part at a time",
	},
	{mergekit, "trust-remote-code", "", "no code of a model is run, so there is nothing to trust"},
	{
		mergekit, "lora-merge-cache transformers-cache hf-cache-dir", "",
		"compress pull downloads a model into the hub's cache (HF_HOME), and a recipe may name it as owner/name",
	},
	{mergekit, "lora-merge-dtype", "", "adapters in a recipe are folded in float32"},
	{mergekit, "allow-crimes", "", "models of different architectures cannot be merged"},
	{mergekit, "write-model-card", "", "a model card is always written"},
	{mergekit, "random-seed", "", "--seed"},
	{mergekit, "clone-tensors", "", "not needed: tensors that are the same are written once for each name"},

	{axolotl, "base-model model-name-or-path", "", "give the model's folder as an argument, without a flag"},
	{axolotl, "sequence-len", "", "--seqlen"},
	{axolotl, "micro-batch-size", "lora train", "--micro-batch"},
	{axolotl, "sample-packing pad-to-sequence-len", "lora train", "--pack"},
	{axolotl, "datasets", "lora train", "--data"},
	{
		axolotl, "lora-target-linear", "lora train",
		"not needed: all linear layers are trained unless --targets names some",
	},
	{axolotl, "val-set-size", "lora train", "--eval takes a file of its own to evaluate on"},
	{axolotl, "load-in-8bit", "lora train", "--base-bits 8"},
	{axolotl, "load-in-4bit qlora", "lora train", "--base-bits 4"},
	{axolotl, "lr-scheduler", "lora train", "--schedule"},

	{peft, "r lora-r -r lora-rank", "", "--rank"},
	{peft, "lora-alpha", "", "--alpha"},
	{peft, "lora-dropout", "", "--dropout"},
	{peft, "target-modules lora-target-modules", "", "--targets"},
	{peft, "exclude-modules", "", "--exclude"},
	{peft, "layers-to-transform", "", "--layers"},
	{peft, "peft-type lora-type", "lora train", "--kind"},
	{peft, "use-rslora", "", "--rslora"},
	{peft, "use-dora", "", "--dora"},
	{peft, "num-train-epochs num-epochs", "lora train", "--epochs"},
	{peft, "max-steps iters", "lora train", "--steps"},
	{peft, "learning-rate", "", "--lr"},
	{peft, "lr-scheduler-type", "lora train", "--schedule"},
	{peft, "warmup-steps", "lora train", "--warmup"},
	{peft, "warmup-ratio", "lora train", "--warmup takes a number of steps"},
	{
		peft, "per-device-train-batch-size train-batch-size batch-size", "lora train",
		"--batch, the sequences of a whole step",
	},
	{
		peft, "gradient-accumulation-steps", "lora train",
		"--batch is the whole step, and --micro-batch the part of it that is computed at a time",
	},
	{
		peft, "gradient-checkpointing", "lora train",
		"--memory bounds stored activations; with none every layer is computed again in the backward pass",
	},
	{peft, "max-grad-norm", "lora train", "--clip"},
	{peft, "max-seq-length max-length block-size", "lora train", "--seqlen"},
	{peft, "packing", "lora train", "--pack"},
	{peft, "dataset-name dataset train-file train-data", "lora train", "--data takes a file; nothing is downloaded"},
	{peft, "eval-data eval-dataset validation-file", "lora train", "--eval"},
	{peft, "eval-steps", "lora train", "--eval-every"},
	{peft, "save-steps", "lora train", "--save-every"},
	{peft, "load-best-model-at-end", "lora train", "--keep-best"},
	{peft, "optim", "lora train", "--optimizer"},
	{
		peft, "bf16 fp16", "lora train",
		"the base keeps its element types, and what is trained is float32; --fast rounds activations to BF16",
	},
	{peft, "resume-from-checkpoint", "", "--resume"},
	{
		peft, "logging-steps report-to", "lora train",
		"every step is logged in training.json, with curves in training.html",
	},
	{peft, "safe-merge", "", "--safe"},
	{peft, "lora-path peft-model adapter-path", "", "--adapter"},

	{
		harness, "model", "eval,ppl,generate,prune,forward,tokenize",
		"give the model's folder as an argument, without a flag",
	},
	{
		harness, "model-args", "",
		"give the model's folder as an argument; the element type is the checkpoint's, and peft=DIR is --adapter " +
			"DIR",
	},
	{harness, "gen-kwargs", "eval", "the task file says how it generates (generation_kwargs)"},
	{harness, "output-path", "", "--out"},
	{harness, "include-path", "eval", "--tasks takes task files and folders"},
	{harness, "use-cache", "eval", "--cache"},
	{harness, "cache-requests", "eval", "not needed: making prompts takes no time"},
	{harness, "max-batch-size", "eval", "--batch-size"},
	{harness, "write-out show-config", "eval", "compress eval tasks check TASK shows the first prompt"},
	{harness, "check-integrity", "eval", "compress eval tasks check TASK"},
	{harness, "predict-only", "eval", "answers are always kept, unless --log-samples=false"},
	{harness, "wandb-args hf-hub-log-args verbosity", "eval", "results are files in --out; nothing is sent anywhere"},
	{harness, "confirm-run-unsafe-code", "eval", "no code of a task is run"},
	{harness, "trust-remote-code", "", "no code of a model is run, so there is nothing to trust"},

	{llamaCpp, "n-predict predict -n", "generate", "--max-tokens"},
	{llamaCpp, "temp", "generate", "--temperature"},
	{llamaCpp, "ctx-size -c", "", "--seqlen, where a verb has it; generate uses the model's own context"},
	{llamaCpp, "-m", "", "give the model's folder as an argument, without a flag"},
	{llamaCpp, "-p", "generate", "--prompt"},
	{llamaCpp, "-f", "ppl", "--data"},
	{llamaCpp, "-t", "", "--threads"},
	{llamaCpp, "-s", "", "--seed"},
	{llamaCpp, "-o", "", "--out"},
	{llamaCpp, "gpu-layers n-gpu-layers -ngl main-gpu", "", "--device cuda:0 puts the whole model on the GPU"},
	{llamaCpp, "lora", "", "--adapter"},
	{llamaCpp, "ppl-stride", "ppl", "--stride, with --convention rolling"},
	{llamaCpp, "repeat-penalty", "generate", "--repetition-penalty"},
	{llamaCpp, "mirostat", "generate", "there is --temperature, --top-k, --top-p and --min-p only"},
	{llamaCpp, "conversation cnv -cnv", "generate", "--chat"},
	{llamaCpp, "system-prompt sys -sys", "generate", "--system"},
	{llamaCpp, "outtype", "convert", "--dtype"},
	{llamaCpp, "outfile", "convert", "--out; the result is safetensors, not GGUF"},

	{"transformers", "max-new-tokens max-length", "generate", "--max-tokens"},
	{
		"transformers", "do-sample", "generate",
		"--temperature 1; 0, the default, always takes the most probable token",
	},
	{"transformers", "torch-dtype", "", "the element type is the checkpoint's; compress convert changes it"},
	{"transformers", "device-map", "", "--device"},
	{"transformers", "output-dir save-path out-path output", "", "--out"},
	{"transformers", "num-workers jobs", "", "--threads, or --workers where a verb has it"},

	{pruners, "sparsity-ratio", "prune", "--sparsity"},
	{pruners, "sparsity-ratio sparsity-type sparsity pattern", "prune compare", "--patterns"},
	{pruners, "prune-method method", "prune compare", "--methods"},
	{pruners, "sparsity-type", "prune", "--pattern"},
	{pruners, "prune-method", "prune", "--method"},
	{pruners, "nsamples", "", "--samples"},
	{pruners, "save save-model", "", "--out"},
	{pruners, "prunen prunem", "prune", "--pattern N:M"},
	{pruners, "percdamp", "prune", "--damp"},
	{pruners, "dataset calibration-data", "", "--calib takes a file of text; nothing is downloaded"},
}

// foreignFlag says what a flag of another tool is here; "" if none of them is known to have it. The name is as it was
// given, with a dash before it if it is of one letter.
func foreignFlag(c *cobra.Command, name string) string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	_, verb, _ := strings.Cut(c.CommandPath(), " ")
	for _, f := range foreigners {
		if !listed(f.flags, " ", name) || f.verbs != "" && !listed(f.verbs, ",", verb) || !f.fits(c) {
			continue
		}

		shown := name
		if !strings.HasPrefix(name, "-") {
			shown = "--" + name
		}
		if strings.HasPrefix(f.here, "--") && !strings.ContainsAny(f.here, ";,") && strings.Count(f.here, " ") < 2 {
			return fmt.Sprintf("%s of %s is %s here", shown, f.tool, f.here)
		}

		return fmt.Sprintf("%s of %s: %s", shown, f.tool, f.here)
	}

	return ""
}

// fits reports whether the verb has the flag that an answer names: an answer for all verbs may name one that not all
// have.
func (f foreign) fits(c *cobra.Command) bool {
	name, ok := strings.CutPrefix(f.here, "--")
	if !ok {
		return true
	}
	if end := strings.IndexAny(name, " ;,"); end >= 0 {
		name = name[:end]
	}

	known := c.Flags().Lookup(name)
	return known != nil && !known.Hidden || f.verbs == "" && strings.Contains(f.here, ", where a verb has it")
}

// listed reports whether a list of words has one of them.
func listed(list, separator, word string) bool {
	for one := range strings.SplitSeq(list, separator) {
		if one == word {
			return true
		}
	}
	return false
}

// Foreign is a flag of another tool, for pages that set tools side by side.
type Foreign struct {
	Tool  string
	Names []string // as they are written there, with dashes
	Verbs []string // that it is about; none: all
	Here  string   // the flag here, or a sentence
}

// ForeignFlags lists what the program answers to flags of other tools.
func ForeignFlags() (list []Foreign) {
	for _, f := range foreigners {
		e := Foreign{Tool: f.tool, Here: f.here}
		for n := range strings.FieldsSeq(f.flags) {
			if !strings.HasPrefix(n, "-") {
				n = "--" + n
			}
			e.Names = append(e.Names, n)
		}
		if f.verbs != "" {
			e.Verbs = strings.Split(f.verbs, ",")
		}
		list = append(list, e)
	}
	return list
}
