package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/loracmd"
	"github.com/modelcompress/compress/lora"
)

const loraTrainExample = `compress lora train testdata/nano/base --data testdata/nano/text/calib.txt --steps 20 --seqlen 128 --out adapter
compress lora train MODEL --kind lora --rank 16 --targets q,v --data chats.jsonl --schedule cosine --warmup 20 --clip 1 --out DIR
compress lora train MODEL --kind full --optimizer adalomo --data FILE --out DIR
compress lora train MODEL --config run.yaml --resume`

func loraTrainCmd(a *cli.App) *cobra.Command {
	var o loracmd.Options
	var config string
	var cmd *cobra.Command
	cmd = a.Verb(cli.Verb{
		Use: "train MODEL --data FILE --out DIR", Short: "Train an adapter, or a whole model",
		Long: "Trains a Mixture of Shards, a LoRA or one of its relatives on a frozen base, or with --kind full " +
			"every parameter. Data: plain text; JSONL with text, with prompt and completion, or with chat messages " +
			"(of the latter two only the answers count); or a .safetensors file with input_ids and labels " +
			"[steps,B,T], whose batches are taken as they are. The output holds the adapter in PEFT's form (Mixture " +
			"of Shards: its own), training.json and training.html with the curves. --resume goes on after an " +
			"interruption, to the same bytes. --config reads the same settings from a YAML file.",
		Example: loraTrainExample,
		Args:    cobra.ExactArgs(1), Resumes: true,
		Check: func(*cli.Job, []string) error {
			settings := config
			if _, err := os.Stat(config); err == nil { // it may be made by another job of a plan
				if err := loracmd.Configure(config, cmd.Flags(), trainKeys(cmd)); err != nil {
					return err
				}
				settings = ""
			}
			return loracmd.Check(o, settings)
		},
		Run: func(j *cli.Job, args []string) (any, error) {
			if config != "" {
				if err := loracmd.Configure(config, cmd.Flags(), trainKeys(cmd)); err != nil {
					return nil, err
				}
			}

			if err := loracmd.Idle(cmd.Flags()); err != nil {
				return nil, err
			}

			if o.Start != "" { // its kind and sizes hold, unless they are asked for
				o.Kind, o.Rank, o.Alpha = given(cmd, "kind", o.Kind), given(cmd, "rank", o.Rank),
					given(cmd, "alpha", o.Alpha)
			}

			return loracmd.Train(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.Var(&o.Data, "data", "text, JSONL or token ids; to train on, several times for several files, whose records "+
		"follow each other")
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.StringVar(&config, "config", "", "YAML file with the same settings as these flags, without the dashes")
	f.StringVar(&o.Start, "init", "", "folder of an adapter to start from, with its kind and sizes")
	f.BoolVar(&o.AllowOtherBase, "allow-other-base", false,
		"take an adapter that was trained on other weights, if its shapes fit; with --init")
	f.StringVar(&o.Held, "eval", "", "file to evaluate on")
	f.StringVar(&o.Template, "chat-template", "",
		"file with a chat template, instead of that of the tokenizer's configuration")
	f.IntVar(&o.SeqLen, "seqlen", 512, "tokens of a window; of records the longest sequence")
	f.BoolVar(&o.Fast, "fast", false, "round activations to BF16 where weights are BF16 and the processor has dot "+
		"products for it")
	f.StringSliceVar(&o.RankPattern, "rank-pattern", nil,
		"lora: REGEX=RANK for modules whose path ends in what the expression matches; the first that fits counts")
	f.StringSliceVar(&o.AlphaPattern, "alpha-pattern", nil, "lora: REGEX=ALPHA, likewise")
	f.IntVar(&o.Bits, "base-bits", 0, "keep the frozen base's matrices in 8 or 4 bits (NormalFloat) an element; 0 "+
		"is as stored")
	f.StringVar(&o.Kept, "memory", "", "memory for buffers and statistics; for kept activations, none computes "+
		"every block twice, empty is half of what is free; no influence on results")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	addAdapterFlags(f, &o.Options)
	addRunFlags(f, &o.Options)
	cli.CompleteList(cmd, "targets", "q", "k", "v", "o", "gate", "up", "down")
	cli.MayBeEmpty(cmd, "memory")
	cli.Inputs(cmd, "data", "init", "eval", "config", "chat-template")

	for flag, words := range map[string][]string{
		"kind": lora.Kinds, "schedule": lora.Schedules, "optimizer": lora.Optimizers,
		"sampling": {"official", "balanced", "pure"},
		"bias":     {"none", "all", "lora_only"},
	} {
		cli.Complete(cmd, flag, words...)
	}

	return cmd
}

// given is the value of a flag if that was set, otherwise nothing.
func given[T any](cmd *cobra.Command, flag string, value T) T {
	if cmd.Flags().Changed(flag) {
		return value
	}
	var zero T
	return zero
}

// addAdapterFlags adds what an adapter is.
func addAdapterFlags(f *pflag.FlagSet, o *lora.Options) {
	f.StringVar(&o.Kind, "kind", "mos", "kind; "+strings.Join(lora.Kinds, ", "))
	f.IntVar(&o.Rank, "rank", 0, "rank of the adapter; 0 is 8, or for mos what the pools of a model with "+
		"few blocks have")
	f.Float64Var(&o.Alpha, "alpha", 16, "the change is alpha/rank times the product of its factors")
	f.Float64Var(&o.Dropout, "dropout", 0,
		"share of a matrix' inputs that its change does not see, drawn anew in every step")
	f.IntVar(&o.EquivalentRank, "equivalent-rank", 2, "mos: rank e of the LoRA with as many parameters")
	f.IntVar(&o.Shards, "shards", 4, "mos: shards l of a vector")
	f.IntVar(&o.Private, "private", 0, "mos: ranks p of each block's own; 0 is 1, or none with --equivalent-rank "+
		"1, -1 is none")
	f.StringVar(&o.Sampling, "sampling", "balanced", "mos: how shards are drawn: balanced (all equally often), "+
		"official (some may be drawn by no block), pure (every block uses all)")
	f.BoolVar(&o.Paired, "paired", false, "mos: draw the shards of B with those of A (no pair dissociation)")
	f.BoolVar(&o.RSLoRA, "rslora", false, "scale by alpha/√rank")
	f.BoolVar(&o.KeepZeros, "keep-zeros", false, "leave zeros of the matrices alone: a pruned model keeps its "+
		"pattern; a step of an adapter takes about twice as long")
	f.BoolVar(&o.DoRA, "dora", false, "lora: train magnitudes apart from directions")
	f.BoolVar(&o.OutputBias, "lora-bias", false, "lora: train a bias beside B")
	f.Float64Var(&o.DInitial, "d-initial", 0.1, "vera: start of the scales of A's rows")
	f.IntVar(&o.Unshared, "unshared", 1, "prolora: ranks that are not shared; -1 is none")
	f.IntVar(&o.InParts, "in-parts", 2, "prolora: copies along the inputs")
	f.IntVar(&o.OutParts, "out-parts", 2, "prolora: copies along the outputs")
	f.StringSliceVar(&o.Targets, "targets", nil, "matrices to change; roles (q, k, v, o, gate, up, down), names, or "+
		"/regular expression/ of paths, all linears of the blocks by default")
	f.StringSliceVar(&o.Exclude, "exclude", nil, "names, or /regular expression/, of matrices to leave alone")
	f.IntSliceVar(&o.Layers, "layers", nil, "only these blocks, from 0")
	f.StringSliceVar(&o.Whole, "modules-to-save", nil, "modules that are trained whole, by the ends of their paths")
	f.BoolVar(&o.Tie, "ensure-weight-tying", false,
		"lora: where the head is the token table, both change alike; else they part")
	f.StringVar(&o.Bias, "bias", "none", "biases that are trained: none, all, lora_only (those of changed matrices)")
}

// addRunFlags adds how it is trained.
func addRunFlags(f *pflag.FlagSet, o *lora.Options) {
	f.IntVar(&o.Steps, "steps", 0, "steps; 0 is one pass over the data")
	f.IntVar(&o.Batch, "batch", 4, "how many at once; sequences of a step")
	f.IntVar(&o.MicroBatch, "micro-batch", 0, "sequences per pass through the model; 0 is all of a step")
	f.IntVar(&o.Pack, "pack", 0, "fill steps with short sequences up to this many tokens, instead of --batch")
	f.BoolVar(&o.Ordered, "ordered", false, "take sequences as they stand instead of at random")
	f.Float64Var(&o.LR, "lr", 0, "learning rate; 0 is 2e-4, for --kind full 1e-5")
	f.StringVar(&o.Schedule, "schedule", "constant", "of the learning rate: "+strings.Join(lora.Schedules, ", "))
	f.IntVar(&o.Warmup, "warmup", 0, "steps over which the learning rate rises")
	f.Float64Var(&o.WeightDecay, "weight-decay", 0,
		"share of a value, times the learning rate, that a step takes away; norms and biases are left out")
	f.Float64Var(&o.Clip, "clip", 0, "largest norm of all gradients together; 0 is no bound")
	f.StringVar(&o.Optimizer, "optimizer", "adamw",
		"adamw; with --kind full also lomo and adalomo, which keep next to no state")
	f.IntVar(&o.EvalEvery, "eval-every", 0, "steps between evaluations; 0 is only after the last")
	f.BoolVar(&o.KeepBest, "keep-best", false, "write what the best evaluation had, instead of the last")
	f.IntVar(&o.SaveEvery, "save-every", 50, "steps between two states to resume from")
}

// trainKeys lists the flags that a configuration file may set: the verb's own and the seed.
func trainKeys(cmd *cobra.Command) (keys []string) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" && f.Name != "help" && f.Name != "resume" && f.Name != "overwrite" {
			keys = append(keys, f.Name)
		}
	})
	return keys
}
