package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/servecmd"
)

func serveCmd(a *cli.App) *cobra.Command {
	var o servecmd.Options
	cmd := a.Verb(cli.Verb{
		Use:   "serve MODEL…",
		Short: "Answer HTTP requests as OpenAI's API does",
		Long: "Serves models and adapters at /v1/completions and /v1/chat/completions, so that chat clients, the " +
			"openai package and lm-evaluation-harness can use them. The field model of a request names a model (the " +
			"name of its folder or file) or an adapter; GET /v1/models lists them. GET / is a page to chat with one " +
			"model or several side by side. It runs until it is interrupted, and then lets answers end for ten " +
			"seconds.\n\n" +
			"With --memory, more models can be served than memory holds. All are opened once when the server starts, " +
			"so that faults show then, and closed and loaded again as requests name them, never under a running " +
			"request.\n\n" +
			"Requests are computed together, and prompts that begin alike once. On the CPU an answer does not depend " +
			"on who else is asking: with the same seed it is the same.\n\n" +
			"Only this machine reaches the server unless --listen says otherwise, which needs --key-file: clients " +
			"then send one of its keys as Authorization: Bearer KEY. There is no encryption: put a proxy with TLS " +
			"before a server that other machines reach.",
		Example: "compress serve ./my-model\n" +
			"compress serve MODEL --adapter legal=ADAPTER --adapter medical=ADAPTER\n" +
			"compress serve MODEL pruned edited small.Q4_K_M.gguf --memory 6GiB\n" +
			"compress serve MODEL pruned small.Q4_K_M.gguf --listen 0.0.0.0:8080 --key-file keys.txt",
		Args:   cobra.MinimumNArgs(1),
		Unused: []string{"seed"},
		Check:  func(*cli.Job, []string) error { return o.Check() },
		Run:    func(j *cli.Job, args []string) (any, error) { return servecmd.Serve(j, args, o) },
	})

	f := cmd.Flags()
	f.StringArrayVar(&o.Adapters, "adapter", nil,
		"`NAME=DIR` also serve the first model with this adapter, under this name, or as MODEL/NAME=DIR another one "+
			"(repeatable)")
	f.StringVar(&o.Root, "adapter-root", "",
		"`DIR` let clients load adapters from this folder, and unload any, as vLLM does (default: they cannot)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "`ADDRESS` host:port at which to listen; port 0 chooses one")
	f.StringVar(&o.KeyFile, "key-file", "",
		"`FILE` keys, one on each line, of which requests must show one (default: none)")
	f.BoolVar(&o.Anyone, "let-anyone-ask", false,
		"listen beyond this machine without keys: whoever reaches the address can use the models")
	f.StringArrayVar(&o.Origins, "origin", nil,
		"`URL` let scripts of pages of this origin ask, such as http://localhost:3000 (repeatable; default: none)")
	f.StringVar(&o.Memory, "kv-memory", "1GiB", "`SIZE` memory for the keys and values of each model")
	f.StringVar(&o.All, "memory", "",
		"`SIZE` memory for the weights, keys and values, drafts and adapters of all models together: they are then "+
			"loaded when requests name them, and the one that was used least recently goes (default: all stay loaded)")
	f.StringVar(&o.Draft, "draft", "",
		"`MODEL` let this smaller model propose tokens, or with lookup the texts themselves; answers stay the same")
	f.IntVar(&o.DraftTokens, "draft-tokens", 0, "`N` tokens that the draft proposes at a time, at most (default: 8)")
	f.IntVar(&o.Sequences, "max-sequences", 64, "`N` answers of a model that are generated at a time")
	f.IntVar(&o.StepTokens, "step-tokens", 512,
		"`N` tokens that are computed at a time; fewer let answers flow more evenly beside long prompts")
	f.IntVar(&o.Queue, "queue", 256, "`N` answers of a model that may wait; more are refused with status 429")
	f.IntVar(&o.MaxPrompt, "max-prompt", 0,
		"`N` tokens of the longest prompt (default: what the model has positions for)")
	f.IntVar(&o.MaxTokens, "max-answer", 0,
		"`N` tokens of the longest answer (default: what the model has positions for)")
	f.StringVar(&o.MaxBody, "max-body", "8MiB", "`SIZE` largest request")
	f.DurationVar(&o.Timeout, "timeout", 0, "`TIME` longest time for an answer (default: 10m)")
	cli.ComputeFlags(cmd, &o.Compute)
	cli.KVFlag(cmd, &o.Compute)
	cli.Inputs(cmd, "key-file", "draft")

	return cmd
}
