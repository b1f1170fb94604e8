package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcompress/compress/editeval/task/internal/endpoint"
	"github.com/modelcompress/compress/editeval/task/internal/engine"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// ErrServer: a server cannot answer what the tasks ask for.
var ErrServer = failure.Misuse("the server cannot be scored on these tasks", "")

// Server is a model behind an HTTP server that has OpenAI's POST /v1/completions.
type Server struct {
	URL      string        // of the server, or of its /v1
	Model    string        // name; empty: the only one that the server lists
	Key      string        // sent as Authorization: Bearer KEY; empty: none
	Requests int           // at a time; 0: 8
	Timeout  time.Duration // of a request; 0: 10 minutes
	// Tokenizer is that of the model; nil: the server's own, by POST /tokenize, which is asked for every text.
	Tokenizer *tokenizer.Tokenizer
	// Again is told, now and then, why requests are made again and after which pause; nil: nobody is.
	Again func(err error, pause time.Duration)
}

// Validate returns the first fault, without asking the server.
func (s Server) Validate() error {
	_, err := s.client()
	return err
}

func (s Server) client() (*endpoint.Client, error) {
	return endpoint.New(endpoint.Config{
		URL: s.URL, Model: s.Model, Key: s.Key, Requests: cmp.Or(s.Requests, 8),
		Timeout: cmp.Or(s.Timeout, 10*time.Minute),
	})
}

// RunServer is [Run] for a model behind a server. Likelihoods need the log-probabilities of a prompt (echo with
// logprobs, as lm-evaluation-harness asks for them), without which the error says which tasks cannot be run; texts need
// /v1/completions alone. A server that is busy or breaks off is asked again, when it says or after pauses that grow,
// six times in all. [Options].BatchSize and Router mean nothing.
//
// A journal or cache takes the address and the name for the model: that the server has not exchanged it is not seen.
func RunServer(ctx context.Context, server Server, s *Suite, o Options) (*Results, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c, err := server.client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.Again = server.Again

	of, err := server.subject(ctx, c, s, &o)
	if err != nil {
		return nil, err
	}
	return of.evaluate(ctx, s, o)
}

// subject asks the server what it has, and whether it can answer all tasks.
func (s Server) subject(ctx context.Context, c *endpoint.Client, suite *Suite, o *Options) (*subject, error) {
	if err := c.Open(ctx); err != nil {
		return nil, err
	}

	of := &subject{
		answerer: c, tok: s.Tokenizer, source: "server", url: c.Address(), device: "server", name: c.Model,
		report: func(done func(tokens int)) { c.Done = done },
		fingerprint: func(context.Context) (string, error) {
			return hash("model " + c.Model + " of " + c.Address()), nil
		},
	}
	if s.Tokenizer == nil {
		tok, err := endpoint.OpenTokenizer(ctx, c)
		if err != nil {
			return nil, err
		}
		of.tok = tok
	}

	scored := suite.scored()
	if err := of.fit(c.Limit, o.MaxLength, len(scored) > 0); err != nil {
		return nil, err
	}
	if len(scored) == 0 {
		return of, nil
	}

	enc, err := engine.NewEncoder(of.tok, o.Special)
	if err != nil {
		return nil, err
	}
	err = c.Probe(ctx, enc.Prefix)
	if errors.Is(err, endpoint.ErrNoLogprobs) || errors.Is(err, endpoint.ErrAbsent) {
		return nil, fmt.Errorf("%w: %s: %w", ErrServer, strings.Join(scored, ", "), err)
	}
	return of, err
}

// fit chooses how long sequences may be; positions 0 means that the server does not say, and asked 0 that nobody does.
func (s *subject) fit(positions, asked int, likelihoods bool) error {
	reserve := 0
	if likelihoods {
		reserve = endpoint.Reserve
	}

	switch {
	case positions == 0 && asked == 0:
		return failure.Hinted(fmt.Errorf("%w: the server does not say how many tokens a sequence may have", ErrServer),
			"say it with --max-length")
	case asked == 0:
		s.limit, s.scored = positions, max(positions-endpoint.Reserve, 1)
	case positions > 0 && asked+reserve > positions:
		return fmt.Errorf("%w: max length %d: the server takes %d tokens, of which a likelihood needs %d for itself",
			ErrOptions, asked, positions, reserve)
	default:
		s.limit, s.scored = asked, asked
	}
	return nil
}

// scored lists the tasks that ask for likelihoods.
func (s *Suite) scored() (names []string) {
	for _, name := range s.tasks {
		if s.lib.Tasks[name].OutputType != taskfile.GenerateUntil {
			names = append(names, name)
		}
	}
	return names
}
