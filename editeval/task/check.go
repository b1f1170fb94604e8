package task

import (
	"context"
	"errors"

	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/editeval/task/internal/score"
	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// Checked says what a task would run, or what is wrong with it.
type Checked struct {
	Task      string   `json:"task"`
	Path      string   `json:"path"`
	Documents int      `json:"documents"`
	Requests  int      `json:"requests"`
	Shots     int      `json:"num_fewshot"`
	Prompt    string   `json:"prompt,omitempty"` // of the first document
	Answers   []string `json:"answers,omitempty"`
	Target    string   `json:"target,omitempty"`
	Gold      []int    `json:"gold,omitempty"`    // numbers of the right choices of the first document
	NoData    string   `json:"no_data,omitempty"` // why the documents could not be read: the definition itself is fine
	Ignored   []string `json:"ignored_keys,omitempty"`
	Err       string   `json:"error,omitempty"`
	Hint      string   `json:"hint,omitempty"` // what helps, in the words of the command line
}

// Check reads the tasks of a suite and makes all their prompts, without a model. Faults of single tasks are in
// the result; faults of definitions were found when the suite was loaded.
func (s *Suite) Check(o Options) ([]Checked, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}

	var out []Checked
	for _, name := range s.tasks {
		t := s.lib.Tasks[name]
		c := Checked{Task: name, Path: t.Path, Ignored: t.Ignored}
		err := s.check(context.Background(), t, &c, &o)
		switch {
		case errors.Is(err, ErrNoData):
			c.NoData, c.Hint = err.Error(), failure.Hint(err)
		case err != nil:
			c.Err, c.Hint = err.Error(), failure.Hint(err)
		}

		out = append(out, c)
	}

	return out, nil
}

func (s *Suite) check(ctx context.Context, t *taskfile.Task, c *Checked, o *Options) error {
	// Filters and metrics are made, to find what is wrong with them.
	if _, err := score.New(t); err != nil {
		return err
	}

	p, err := s.prompter(ctx, t.Name, o)
	if err != nil {
		return err
	}

	c.Shots = p.Shots
	return p.Documents(o.documents(p.Count()), func(d *prompt.Document) error {
		c.Documents++
		c.Requests += len(d.Requests)
		// The first document shows what a prompt looks like.
		if d.ID > 0 {
			return nil
		}

		c.Prompt = d.Requests[0].Context
		for _, q := range d.Requests {
			c.Answers = append(c.Answers, q.Continuation)
		}

		c.Gold = numbers(d.Gold)
		if s, ok := d.Target.(string); ok {
			c.Target = s
		}

		return nil
	})
}

// numbers lists the right choices, where they are given by number.
func numbers(gold any) []int {
	list, several := gold.([]any)
	if !several {
		list = []any{gold}
	}

	var out []int
	for _, g := range list {
		if n, ok := pyvalue.Int(g); ok {
			out = append(out, n)
		}
	}

	return out
}
