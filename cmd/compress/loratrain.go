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

const loraTrainExample = `compress lora train ./my-model --data calib.txt --steps 20 --seqlen 128 --out adapter
compress lora train MODEL --rank 16 --targets q,v --data chats.jsonl --schedule cosine --warmup 20 --clip 1 --out DIR
compress lora train MODEL --kind mos --data chats.jsonl --out DIR
compress lora train MODEL --kind full --optimizer adalomo --data FILE --out DIR
compress lora train PRUNED --teacher MODEL --keep-zeros --data FILE --out DIR
compress lora train MODEL --data chats.jsonl --data own.jsonl --data-weights 3,1 --steps 400 --out DIR
compress lora train MODEL --config run.yaml --resume`

func loraTrainCmd(a *cli.App) *cobra.Command {
	var o loracmd.Options
	var config string
	var cmd *cobra.Command
	cmd = a.Verb(cli.Verb{
		Use:   "train MODEL --data FILE --out DIR",
		Short: "Train an adapter, or a whole model",
		Long: "Trains an adapter on a frozen base model, or every parameter with --kind full. The data is plain " +
			"text, JSONL with text, with prompt and completion, with chat messages, or in Alpaca's or ShareGPT's " +
			"form (of all but texts only the answers are trained on), or a .safetensors file with input_ids and " +
			"labels [steps,B,T], whose batches are used as they are.\n\n" +
			"The result is a LoRA in PEFT's form, or with --kind mos, vera, prolora, rasa and share one in a form of " +
			"its own, which PEFT does not load and compress lora export converts. The folder also gets " +
			"training.json, and training.html with the curves.\n\n" +
			"With --teacher the model learns what another one of the same tokenizer predicts, rather than the tokens " +
			"of the data alone: what pruning or quantising has cost comes back sooner. --teacher-cache keeps what " +
			"the teacher says about the data in a file, which later runs use without the teacher.\n\n" +
			"With --objective dpo, orpo or kto an adapter learns which answers are better, from records of " +
			"preferences; making such records is yours.\n\n" +
			"An interrupted training goes on with --resume to the same bytes. --config reads the same settings " +
			"from a YAML file.",
		Example: loraTrainExample,
		Habit:   []string{"data", "out"},
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

			if o.Kind == "qlora" {
				return nil, cli.Usagef("--kind qlora: LoRA on a base in few bits (HINT: --kind lora --base-bits 4)")
			}

			if o.Start != "" { // its kind and sizes hold, unless they are asked for
				o.Kind, o.Rank, o.Alpha = given(cmd, "kind", o.Kind), given(cmd, "rank", o.Rank),
					given(cmd, "alpha", o.Alpha)
			}

			return loracmd.Train(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.Var(&o.Data, "data",
		"`FILE` what to train on: plain text, JSONL, Parquet, Arrow, a folder of such, or token ids (.safetensors or "+
			".json); given several times, the files are shuffled together as one")
	f.StringVar(&o.DataWeights, "data-weights", "",
		"`LIST` take sequences (pairs, answers) from the --data files in these proportions, such as 3,1; a file that "+
			"is used up starts over, and without --steps the run takes as many as the files have")
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the result; it appears when it is complete")
	f.StringVar(&config, "config", "", "`FILE` YAML with settings: the names of these flags without the dashes")
	f.StringVar(&o.Start, "init", "", "`ADAPTER` adapter to start from, with its kind and sizes")
	f.BoolVar(&o.AllowOtherBase, "allow-other-base", false,
		"with --init, accept an adapter that was trained on other weights, if its shapes fit")
	addTeacherFlags(f, &o.Teaching)
	addPreferenceFlags(f, &o.Preferring)
	f.StringVar(&o.Logs.CSV, "log-csv", "",
		"`FILE` write loss, learning rate, norm of the gradient and evaluations to this table, step by step")
	f.StringVar(&o.Logs.TensorBoard, "log-tensorboard", "", "`DIR` write the same for TensorBoard into this folder")
	f.StringVar(&o.Held, "eval", "", "`FILE` held-out data to evaluate on")
	f.StringVar(&o.Template, "chat-template", "", "`FILE` chat template to use instead of the tokenizer's")
	f.IntVar(&o.SeqLen, "seqlen", 512, "`N` longest sequence in tokens")
	cli.ComputeFlags(cmd, &o.Compute)
	f.StringSliceVar(&o.RankPattern, "rank-pattern", nil,
		"`LIST` lora: REGEX=RANK for modules whose path ends in a match; the first that fits counts")
	f.StringSliceVar(&o.AlphaPattern, "alpha-pattern", nil, "`LIST` lora: REGEX=ALPHA, like --rank-pattern")
	f.IntVar(&o.Bits, "base-bits", 0,
		"`N` keep the frozen base in 8 or 4 bits (NormalFloat), as QLoRA does (default: as stored)")
	f.StringVar(&o.Kept, "memory", "",
		"`SIZE` memory for stored activations, or none to recompute them in the backward pass; results do not "+
			"change (default: half of what is free)")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	addAdapterFlags(f, &o.Options)
	addRunFlags(f, &o.Options)
	cli.CompleteList(cmd, "targets", "q", "k", "v", "o", "gate", "up", "down")
	cli.MayBeEmpty(cmd, "memory")
	cli.NotZero(cmd, "alpha", "d-initial", "unshared", "in-parts", "out-parts", "steps", "epochs", "lr-ratio",
		"save-every")
	cli.Inputs(cmd, "data", "init", "eval", "config", "chat-template", "teacher")
	cli.Texts(cmd, cli.ToLearn, "data")
	cli.Texts(cmd, cli.ToMeasure, "eval")

	for flag, words := range map[string][]string{
		"kind": lora.Kinds, "schedule": lora.Schedules, "optimizer": lora.Optimizers,
		"sampling": {"official", "balanced", "pure"}, "shira-mask": lora.ShiraMasks,
		"bias": {"none", "all", "lora_only"}, "objective": loracmd.Objectives,
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

// addPreferenceFlags adds what is learned of answers that are better than others.
func addPreferenceFlags(f *pflag.FlagSet, p *loracmd.Preferring) {
	f.StringVar(&p.Objective, "objective", "",
		"`NAME` what to learn: tokens, or which answers are better: dpo and orpo from JSONL with prompt, chosen and "+
			"rejected, kto also from prompt, completion and label (default: tokens)")
	f.Float64Var(&p.Weights.Beta, "beta", 0,
		"`X` dpo, kto: how much a difference to the model without adapter counts; orpo: weight of the preferences "+
			"beside the loss of the chosen answer (default: 0.1)")
	f.Float64Var(&p.Weights.Smoothing, "label-smoothing", 0,
		"`X` dpo: fraction of pairs that may be the wrong way round")
	f.Float64Var(&p.Weights.Desirable, "desirable-weight", 0, "`X` kto: weight of good answers (default: 1)")
	f.Float64Var(&p.Weights.Undesirable, "undesirable-weight", 0, "`X` kto: weight of bad answers (default: 1)")
}

// addTeacherFlags adds what is learned of another model.
func addTeacherFlags(f *pflag.FlagSet, t *loracmd.Teaching) {
	f.StringVar(&t.Model, "teacher", "",
		"`MODEL` learn what this model predicts, instead of the tokens of the data (distillation); it has the same "+
			"tokenizer")
	f.StringVar(&t.Cache, "teacher-cache", "",
		"`FILE` what the teacher predicts for the data, 388 bytes a token: written if it is not there, then used "+
			"instead of the teacher")
	f.BoolVar(&t.Stream, "teacher-stream", false,
		"run the teacher over the data before training, one decoder layer in memory at a time (default: where it "+
			"does not fit)")
	f.Float64Var(&t.Temperature, "distil-temperature", 0,
		"`X` divide logits by this; above 1, unlikely tokens count more (default: 1, or that of the cache)")
	f.StringVar(&t.Top, "distil-top", "",
		"`N` the teacher's most probable tokens that count by themselves, beside the rest as one, or all (default: "+
			"64, or as many as the cache has)")
	f.Float64Var(&t.CE, "distil-ce", 0, "`X` add the loss of the data's tokens, times this (default: none)")
}

// addAdapterFlags adds what an adapter is.
func addAdapterFlags(f *pflag.FlagSet, o *lora.Options) {
	f.StringVar(&o.Kind, "kind", "lora", "`NAME` what to train: "+strings.Join(lora.Kinds, ", "))
	f.IntVar(&o.Rank, "rank", 0,
		"`N` rank of the adapter (default: 8; for mos on models with few layers what their pools allow)")
	f.Float64Var(&o.Alpha, "alpha", 16, "`X` the adapter's change is scaled by alpha/rank")
	f.Float64Var(&o.Dropout, "dropout", 0,
		"`X` fraction of an adapter's inputs that are dropped at random in each step")
	f.IntVar(&o.EquivalentRank, "equivalent-rank", 0,
		"`N` mos: rank of the LoRA with as many parameters (default: 2)")
	f.IntVar(&o.Shards, "shards", 0, "`N` mos: shards per vector (default: 4)")
	f.IntVar(&o.Private, "private", 0,
		"`N` mos: ranks that each layer has for itself, -1 for none (default: 1, or none with "+
			"--equivalent-rank 1)")
	f.StringVar(&o.Sampling, "sampling", "",
		"`NAME` mos: how shards are assigned to layers: balanced (all equally often), official (at random, "+
			"some may be unused), pure (every layer uses all) (default: balanced)")
	f.BoolVar(&o.Paired, "paired", false,
		"mos: assign the shards of B together with those of A (no pair dissociation)")
	f.BoolVar(&o.RSLoRA, "rslora", false, "scale by alpha/√rank instead (rsLoRA)")
	f.BoolVar(&o.KeepZeros, "keep-zeros", false,
		"leave zeros zero, so a pruned model keeps its sparsity; steps of adapters take longer")
	f.BoolVar(&o.DoRA, "dora", false, "lora: train magnitude and direction separately (DoRA)")
	f.BoolVar(&o.OutputBias, "lora-bias", false, "lora: train a bias of B too")
	f.Float64Var(&o.DInitial, "d-initial", 0.1, "`X` vera: initial value of the scales of A's rows")
	f.IntVar(&o.Unshared, "unshared", 1, "`N` prolora: ranks that are not shared, -1 for none")
	f.IntVar(&o.InParts, "in-parts", 2, "`N` prolora: copies along the inputs")
	f.IntVar(&o.OutParts, "out-parts", 2, "`N` prolora: copies along the outputs")
	f.IntVar(&o.SharedRank, "rasa-k", 0, "`N` rasa: ranks that each layer gives to the common pool (default: 1)")
	f.StringVar(&o.Share, "share", "",
		"`NAME` share: the factor that all layers have in common: a, b, or ab for both (default: a)")
	f.IntVar(&o.MiniRank, "mini-r", 0,
		"`N` miss: train this many columns of the factor, repeated along the outputs (default: one for each output)")
	f.IntVar(&o.Parts, "gralora-k", 0,
		"`N` gralora: cut each matrix into N × N parts with factors of their own (default: 2)")
	f.IntVar(&o.Hybrid, "hybrid-r", 0, "`N` gralora: ranks of a plain LoRA beside the parts")
	f.StringVar(&o.ShiraMask, "shira-mask", "",
		"`NAME` shira: which elements of a matrix to train: "+strings.Join(lora.ShiraMasks, ", ")+
			"; the last three are measured on the data (default: random)")
	f.StringSliceVar(&o.Targets, "targets", nil,
		"`LIST` matrices to adapt: q, k, v, o, gate, up, down, names, or /regular expression/ of paths "+
			"(default: all linear layers)")
	f.StringSliceVar(&o.Exclude, "exclude", nil, "`LIST` names, or /regular expression/, of matrices to leave alone")
	f.IntSliceVar(&o.Layers, "layers", nil, "`LIST` adapt only these decoder layers, counted from 0 (default: all)")
	f.StringSliceVar(&o.Whole, "modules-to-save", nil, "`LIST` modules to train in full, by the ends of their paths")
	f.BoolVar(&o.Tie, "ensure-weight-tying", false,
		"lora: keep embeddings and output head the same where the model shares them; otherwise they become "+
			"separate")
	f.StringVar(&o.Bias, "bias", "none",
		"`NAME` biases to train: none, all, or lora_only (those of adapted matrices)")
}

// addRunFlags adds how it is trained.
func addRunFlags(f *pflag.FlagSet, o *lora.Options) {
	f.IntVar(&o.Steps, "steps", 0, "`N` number of training steps (default: one pass over the data)")
	f.IntVar(&o.Epochs, "epochs", 0, "`N` passes over the data, instead of --steps (default: one)")
	f.IntVar(&o.Batch, "batch", 4, "`N` sequences per step")
	f.IntVar(&o.MicroBatch, "micro-batch", 0, "`N` sequences per pass through the model (default: all of a step)")
	f.IntVar(&o.Pack, "pack", 0, "`N` fill each step with short sequences up to this many tokens, instead of --batch")
	f.BoolVar(&o.Ordered, "ordered", false, "take sequences in the order of the file instead of a random one")
	f.Float64Var(&o.LR, "lr", 0, "`X` learning rate (default: 2e-4, with --kind full 1e-5)")
	f.Float64Var(&o.LRRatio, "lr-ratio", 0,
		"`X` train B's factors with the learning rate times this, as LoRA+ does (default: the same rate)")
	f.StringVar(&o.Schedule, "schedule", "constant",
		"`NAME` learning-rate schedule: "+strings.Join(lora.Schedules, ", "))
	f.IntVar(&o.Warmup, "warmup", 0, "`N` steps over which the learning rate rises")
	f.Float64Var(&o.WeightDecay, "weight-decay", 0, "`X` weight decay, not applied to norms and biases")
	f.Float64Var(&o.Clip, "clip", 0,
		"`X` largest norm of the gradient, which is scaled down to it (default: no limit)")
	f.StringVar(&o.Optimizer, "optimizer", "adamw",
		"`NAME` adamw, or with --kind full also lomo and adalomo, which need almost no memory")
	f.IntVar(&o.EvalEvery, "eval-every", 0, "`N` steps between evaluations (default: only after the last step)")
	f.BoolVar(&o.KeepBest, "keep-best", false, "write the state that evaluated best instead of the last one")
	f.IntVar(&o.SaveEvery, "save-every", 50, "`N` steps between two states to resume from")
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
