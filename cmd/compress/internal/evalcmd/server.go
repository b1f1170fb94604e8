package evalcmd

import (
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// checkServer finds what is wrong with what is evaluated: a model, or one behind a server.
func (o *Options) checkServer(args []string) error {
	if o.Server.URL == "" {
		switch {
		case len(args) == 0:
			return cli.Usagef("nothing is evaluated: give a MODEL, or the address of a server with --model-url")
		case o.Server.Model != "" || o.KeyFile != "" || o.Tokenizer != "" || o.Server.Requests != 0 ||
			o.Server.Timeout != 0:
			return cli.Usagef("--model-name, --key-file, --tokenizer, --requests and --request-timeout go with " +
				"--model-url")
		}
		return nil
	}

	switch {
	case len(args) > 0:
		return cli.Usagef("%s and --model-url exclude each other", args[0])
	case o.Adapter != "" || o.Experts != openmodel.Auto || o.Compute.Options() != (lm.Options{}) ||
		o.Task.BatchSize != 0:
		return cli.Usagef("--adapter, --experts, --fast, --decode, --kv and --batch-size are for a MODEL; behind " +
			"--model-url the server computes")
	case o.Chat != NoChat && o.Tokenizer == "":
		return cli.Usagef("--apply-chat-template needs the folder of the tokenizer, which has the template (HINT: " +
			"add --tokenizer FOLDER)")
	}
	return cli.Usage(o.Server.Validate())
}

// evaluateServer runs the tasks on a server.
func (o *Options) evaluateServer(j *cli.Job, to evaluation, suite *task.Suite) (*task.Results, error) {
	if o.KeyFile != "" {
		keys, err := cli.Keys("key-file", o.KeyFile, 1)
		if err != nil {
			return nil, err
		}
		if len(keys) > 1 {
			return nil, cli.Usagef("--key-file: %s has %d keys: want one", o.KeyFile, len(keys))
		}
		o.Server.Key = keys[0]
		if u, err := url.Parse(o.Server.URL); err == nil && u.Scheme == "http" &&
			!jobs.Loopback(net.JoinHostPort(u.Hostname(), "80")) {
			j.Note("--model-url: the key goes over the network unencrypted")
		}
	}

	var err error
	if o.Tokenizer != "" {
		if o.Server.Tokenizer, err = tokenizer.Load(o.Tokenizer); err != nil {
			return nil, fmt.Errorf("--tokenizer: %w", err)
		}
	}
	if o.Task.Chat, err = o.conversation(o.Tokenizer); err != nil {
		return nil, err
	}

	bars := j.Bars()
	defer bars.End()
	o.Task.Progress = bars.Show
	o.Server.Again = func(err error, pause time.Duration) {
		j.Remark("--model-url: %v; asked again after %v", err, pause.Round(time.Second))
	}
	return to.RunServer(j.Ctx, o.Server, suite, o.Task)
}
