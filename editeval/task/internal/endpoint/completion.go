package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"

	"github.com/modelcompress/compress/editeval/task/internal/engine"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/retry"
)

// Reserve is how many positions a likelihood needs beyond what the model sees of a sequence: the last token, which is
// only predicted, is a part of the prompt, and the API generates at least one more.
const Reserve = 2

// request is the body of POST /v1/completions, as lm-evaluation-harness sends it.
type request struct {
	Model       string    `json:"model"`
	Prompt      [][]int32 `json:"prompt"`
	Max         int       `json:"max_tokens"`
	Temperature float64   `json:"temperature"`
	Seed        int       `json:"seed"`
	Stop        []string  `json:"stop,omitempty"`
	Logprobs    int       `json:"logprobs,omitempty"`
	Echo        bool      `json:"echo,omitempty"`
}

// seed is that of the harness; nothing is sampled.
const seed = 1234

// completion is the answer.
type completion struct {
	Choices []choice `json:"choices"`
	Usage   struct {
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
}

type choice struct {
	Text     *string `json:"text"`
	Finish   string  `json:"finish_reason"`
	Logprobs *struct {
		Chosen []*float64            `json:"token_logprobs"`
		Tops   []map[string]*float64 `json:"top_logprobs"`
	} `json:"logprobs"`
}

// complete asks for the one completion of a prompt.
func (c *Client) complete(ctx context.Context, r request) (*completion, *choice, error) {
	r.Model = c.Model
	r.Seed = seed
	var a completion
	if err := c.ask(ctx, http.MethodPost, c.base.JoinPath("completions"), r, &a); err != nil {
		return nil, nil, err
	}
	if len(a.Choices) != 1 {
		return nil, nil, c.odd("%d choices for one prompt", len(a.Choices))
	}
	return &a, &a.Choices[0], nil
}

// odd is the error of an answer that has not the content it must have.
func (c *Client) odd(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", c.base.JoinPath("completions"), ErrAnswer, fmt.Sprintf(format, args...))
}

// Probe asks for the log-probabilities of a short prompt, so that a server that does not give them is known before
// anything is computed. What is no such server wraps [ErrNoLogprobs] or [ErrAbsent].
func (c *Client) Probe(ctx context.Context, id int32) error {
	_, err := c.score(ctx, &engine.Sequence{IDs: []int32{id, id}, Target: []int32{id, id}})
	if errors.Is(err, ErrRefused) {
		return fmt.Errorf("%w: %w", ErrNoLogprobs, err)
	}
	return err
}

// score asks how likely the target of a sequence is.
func (c *Client) score(ctx context.Context, s *engine.Sequence) (engine.Score, error) {
	whole := append(slices.Clone(s.IDs), s.Target[len(s.Target)-1])
	_, a, err := c.complete(ctx, request{Prompt: [][]int32{whole}, Max: 1, Logprobs: 1, Echo: true})
	if err != nil {
		return engine.Score{}, err
	}

	l := a.Logprobs
	if l == nil || len(l.Chosen) < 2 { // of the generated token alone
		return engine.Score{}, fmt.Errorf("%s: %w", c.base.JoinPath("completions"), ErrNoLogprobs)
	}
	// The generated token is there, or it was the end of the text.
	if n := len(l.Chosen); n != len(whole) && n != len(whole)+1 || len(l.Tops) != n {
		return engine.Score{}, c.odd("%d log-probabilities and %d tables of likely tokens for a prompt of %d tokens", n,
			len(l.Tops), len(whole))
	}

	score := engine.Score{Greedy: true}
	for i := len(whole) - len(s.Target); i < len(whole); i++ {
		p, err := c.logprob(l.Chosen[i], i)
		if err != nil {
			return engine.Score{}, err
		}
		score.LL += p

		if len(l.Tops[i]) == 0 {
			return engine.Score{}, c.odd("no likely tokens at token %d of a prompt", i)
		}
		for _, other := range l.Tops[i] {
			q, err := c.logprob(other, i)
			if err != nil {
				return engine.Score{}, err
			}
			score.Greedy = score.Greedy && p >= q
		}
	}

	score.Greedy = score.Greedy && !math.IsNaN(score.LL)
	return score, nil
}

// none is the log-probability that the API writes for a token that has none; no token of a model is so unlikely.
const none = -9999

// slack is how far rounding may lift a log-probability above 0.
const slack = 1e-3

// logprob checks a log-probability of a token; it is not a number where the token is impossible, as in a likelihood of
// [engine.Engine].
func (c *Client) logprob(p *float64, at int) (float64, error) {
	switch {
	case p == nil:
		return 0, c.odd("no log-probability at token %d of a prompt", at)
	case *p > slack:
		return 0, c.odd("log-probability %g at token %d of a prompt", *p, at)
	case *p <= none:
		return math.NaN(), nil
	}
	return *p, nil
}

// group is how many likelihoods are handed on together, which a journal makes durable at once. It does not depend on
// the number of requests at a time, and so neither do the bytes of the journal.
const group = 16

// Likelihoods scores sequences as [engine.Engine.Likelihoods] does.
func (c *Client) Likelihoods(ctx context.Context, seqs []engine.Sequence, known func(i int) bool,
	flush func(i []int, s []engine.Score) error,
) error {
	scores := make([]engine.Score, len(seqs))
	return c.each(ctx, len(seqs), group, known,
		func(ctx context.Context, i int) (err error) {
			scores[i], err = c.score(ctx, &seqs[i])
			return err
		},
		func(at []int) error {
			list, tokens := make([]engine.Score, len(at)), 0
			for k, i := range at {
				list[k] = scores[i]
				tokens += len(seqs[i].IDs)
			}
			if err := flush(at, list); err != nil {
				return err
			}
			c.tell(tokens)
			return nil
		})
}

// Generate continues prompts as [engine.Engine.Generate] does; a text that the end of the text has ended counts as one
// that a stop text has, since the API makes no difference.
func (c *Client) Generate(ctx context.Context, prompts []engine.Prompt, known func(i int) bool,
	flush func(i int, t engine.Text) error,
) error {
	texts := make([]engine.Text, len(prompts))
	return c.each(ctx, len(prompts), 1, known,
		func(ctx context.Context, i int) (err error) {
			texts[i], err = c.text(ctx, &prompts[i])
			return err
		},
		func(at []int) error {
			i := at[0]
			if err := flush(i, texts[i]); err != nil {
				return err
			}
			c.tell(len(prompts[i].IDs) + prompts[i].Max)
			return nil
		})
}

// text continues a prompt.
func (c *Client) text(ctx context.Context, p *engine.Prompt) (engine.Text, error) {
	stop := slices.DeleteFunc(slices.Clone(p.End), func(s string) bool { return s == "" })
	a, one, err := c.complete(ctx, request{Prompt: [][]int32{p.IDs}, Max: p.Max, Stop: stop})
	if err != nil {
		return engine.Text{}, err
	}
	if one.Text == nil {
		return engine.Text{}, c.odd("a choice without a text")
	}

	t := engine.Text{Text: engine.CutAtStops(*one.Text, stop), Tokens: a.Usage.Completion}
	switch one.Finish {
	case "stop":
		t.Ended = engine.EndStop
	case "length":
		t.Ended = engine.EndLength
	default:
		return engine.Text{}, c.odd("a text ends for the reason %q, not stop or length", retry.Said(one.Finish))
	}
	return t, nil
}

// tell reports answers.
func (c *Client) tell(tokens int) {
	if c.Done != nil {
		c.Done(tokens)
	}
}

// each asks for what is not known, some requests at a time. Answers are handed on in groups, in order, whichever came
// first; a group has what is not known of a fixed range, so that an interrupted run goes on with the same ones.
func (c *Client) each(ctx context.Context, n, group int, known func(i int) bool,
	ask func(ctx context.Context, i int) error, take func(at []int) error,
) error {
	type waiting struct {
		at   []int
		left int
	}
	var groups []*waiting
	for from := 0; from < n; from += group {
		w := &waiting{}
		for i := from; i < min(from+group, n); i++ {
			if !known(i) {
				w.at = append(w.at, i)
			}
		}
		w.left = len(w.at)
		if w.left > 0 {
			groups = append(groups, w)
		}
	}

	var mu sync.Mutex
	next := 0 // group to hand on
	answered := func(w *waiting) error {
		mu.Lock()
		defer mu.Unlock()
		w.left--
		for ; next < len(groups) && groups[next].left == 0; next++ {
			if err := take(groups[next].at); err != nil {
				return err
			}
		}
		return nil
	}

	team, inner := mmapsafe.WithContext(ctx)
	team.SetLimit(c.requests)
	for _, w := range groups {
		for _, i := range w.at {
			if inner.Err() != nil {
				break
			}
			team.Go(func() error {
				if inner.Err() != nil {
					return context.Cause(inner)
				}
				if err := ask(inner, i); err != nil {
					return err
				}
				return answered(w)
			})
		}
	}
	if err := team.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
