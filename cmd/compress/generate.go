package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/modelcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
)

func generateCmd(a *cli.App) *cobra.Command {
	var o modelcmd.GenerateOptions
	var cmd *cobra.Command
	cmd = a.Verb(cli.Verb{
		Use:   "generate MODEL (--prompt S | --chat)",
		Short: "Continue a prompt, or chat",
		Long: "Continues the prompt until --max-tokens or an end token, and prints the text as it is generated. " +
			"By default the most probable token is always taken; with --temperature above 0 tokens are " +
			"sampled, and the same --seed gives the same text.\n\n" +
			"The prompt is taken as it stands, unless --chat puts it into the model's own chat template, as instruct " +
			"models want it. --chat with a file answers every message of the user in it that has no answer; alone, " +
			"without a prompt, it answers what is typed, line by line. An answer ends at the end tokens of the " +
			"model, of the tokenizer and of the template.\n\n" +
			"Sampling is that of transformers, in its order: repetition penalty, temperature, top-k, top-p, " +
			"min-p.\n\n" +
			"--draft makes generation faster where the next tokens can be guessed: by a smaller model with " +
			"the same tokens, such as a quantised copy, or with lookup by what followed the latest tokens earlier in " +
			"the text. The model checks several guesses in one pass, so that what it generates stays its own. How " +
			"many are made follows from how many are right; where they do not pay, none.",
		Example: "compress generate ./my-model --prompt 'The capital of France is' --max-tokens 8\n" +
			"compress generate SmolLM2-135M-Instruct --chat --system 'Be brief.' --prompt 'Who are you?'\n" +
			"compress generate SmolLM2-135M-Instruct --chat turns.json --temperature 0.7 --min-p 0.1\n" +
			"compress generate MODEL --prompt TEXT --draft small.Q4_K_M.gguf",
		Habit: []string{"prompt"},
		Args: func(c *cobra.Command, args []string) error {
			if o.Chat == modelcmd.Terminal && len(args) == 2 {
				return nil // a flag that can stand alone leaves the file that follows it as an argument
			}
			return cobra.ExactArgs(1)(c, args)
		},
		Check: func(*cli.Job, []string) error {
			o.Prompted = cmd.Flags().Changed("prompt")
			return o.Check()
		},
		Run: func(j *cli.Job, args []string) (any, error) {
			if len(args) == 2 {
				o.Chat = args[1]
			}
			o.Prompted = cmd.Flags().Changed("prompt")
			return modelcmd.Generate(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.StringVar(&o.Prompt, "prompt", "", "`TEXT` text to continue")
	f.StringVar(&o.Chat, "chat", "",
		"`FILE` apply the chat template; to the prompt, to a conversation in a JSON or JSONL file, or without both to "+
			"the lines of stdin")
	f.Lookup("chat").NoOptDefVal = modelcmd.Terminal
	f.StringVar(&o.System, "system", "", "`TEXT` system message of the chat")
	f.IntVar(&o.MaxTokens, "max-tokens", 64, "`N` tokens to generate at most")
	f.Float64Var(&o.Temperature, "temperature", 0,
		"`X` sampling temperature (default: 0, always the most probable token)")
	f.Float64Var(&o.TopP, "top-p", 0,
		"`X` sample from the most probable tokens that together have this probability (default: all tokens)")
	f.IntVar(&o.TopK, "top-k", 0, "`N` sample from the N most probable tokens (default: all tokens)")
	f.Float64Var(&o.MinP, "min-p", 0,
		"`X` sample from tokens at least this fraction as probable as the most probable one (default: all tokens)")
	f.Float64Var(&o.RepetitionPenalty, "repetition-penalty", 1,
		"`X` make tokens that are already in the prompt or the text less probable; 1 does nothing")
	f.StringVar(&o.Draft, "draft", "",
		"`MODEL` let this smaller model propose tokens, or with lookup the text itself; the text stays the model's own")
	f.IntVar(&o.DraftTokens, "draft-tokens", 0, "`N` tokens that the draft proposes at a time, at most (default: 8)")
	openmodel.ExpertsFlag(cmd, &o.Experts)
	cli.ComputeFlags(cmd, &o.Compute)
	cli.KVFlag(cmd, &o.Compute)
	cli.PositionsFlag(cmd, &o.Compute)
	f.StringVar(&o.Adapter, "adapter", "", "`ADAPTER` apply this adapter first")
	cli.Inputs(cmd, "adapter", "chat", "draft")
	cli.MayBeEmpty(cmd, "prompt")

	return cmd
}
