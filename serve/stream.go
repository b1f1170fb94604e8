package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// patience is how long a client may take to read what was written to it, or to send a body.
const patience = 30 * time.Second

// usage counts tokens.
type usage struct {
	Prompt     int           `json:"prompt_tokens"`
	Completion int           `json:"completion_tokens"`
	Total      int           `json:"total_tokens"`
	Details    promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	Cached int `json:"cached_tokens"` // that had been computed for others
}

// add takes an event's tokens in.
func (u *usage) add(e event) {
	if e.prompt != nil {
		u.Prompt += len(e.prompt.prompt)
		u.Details.Cached += e.prompt.reused
	}
	u.Completion += e.count
	u.Total = u.Prompt + u.Completion
}

// reply is how the events of a request become an answer, in pieces or whole.
type reply interface {
	// chunk is what a stream says of an event; nil: nothing.
	chunk(e event) any
	// last is what it says at the end: the counted tokens.
	last(u usage) any
	// whole is the answer in one.
	whole(u usage) any
	// take collects an event for the whole.
	take(e event)
}

// run lets a request be computed, and answers it.
func (s *Server) run(ctx context.Context, w http.ResponseWriter, r *request, p *sampling, to reply) error {
	ctx, cancel := context.WithCancel(ctx)
	e := r.model.engine
	defer r.wait() // the model may go when this returns
	defer e.poke() // the loop lets go of what nobody waits for
	defer cancel()

	names, err := s.route(ctx, r)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		w.Header().Set("Compress-Experts", strings.Join(names, "; "))
	}

	r.ctx, r.out = ctx, newOutbox()
	if err := e.submit(r); err != nil {
		return err
	}

	if p.Stream {
		return s.stream(ctx, w, r, p, to)
	}

	var u usage
	err = r.each(ctx, func(e event) error {
		u.add(e)
		to.take(e)
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, to.whole(u))
	return nil
}

// wait waits until the loop has let go of all tasks that it took in.
func (r *request) wait() {
	for range cap(r.gone) {
		<-r.gone
	}
}

// each hands on events until all choices have ended.
func (r *request) each(ctx context.Context, f func(e event) error) error {
	left := 0
	for _, t := range r.tasks {
		left += len(t.choices)
	}

	for left > 0 {
		list, err := r.out.take(ctx)
		if err != nil {
			return err
		}
		for _, e := range list {
			if e.err != nil {
				return e.err
			}
			if e.finish != "" {
				left--
			}
			if err := f(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// stream answers with server-sent events. Before the first, faults are answers of their own, and afterwards events.
func (s *Server) stream(ctx context.Context, w http.ResponseWriter, r *request, p *sampling, to reply) error {
	out := &events{w: w, control: http.NewResponseController(w), patience: s.options.patience}
	var u usage
	err := r.each(ctx, func(e event) error {
		u.add(e)
		if c := to.chunk(e); c != nil {
			return out.send(c)
		}
		return nil
	})

	switch {
	case err != nil && !out.begun:
		return err
	case err != nil && out.failed == nil:
		_ = out.send(faultOf(err).body())
	case err == nil && p.StreamOptions != nil && p.StreamOptions.IncludeUsage:
		_ = out.send(to.last(u))
	}
	if err == nil {
		_ = out.raw("[DONE]")
	}
	return nil
}

// events writes server-sent events.
type events struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	begun    bool
	failed   error
}

// send writes a value as an event.
func (o *events) send(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.raw(string(text))
}

// raw writes a line. A client that does not read is given up.
func (o *events) raw(line string) error {
	if !o.begun {
		h := o.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		o.begun = true
	}

	// Not all writers know deadlines; those of connections do.
	_ = o.control.SetWriteDeadline(time.Now().Add(o.patience))
	_, err := fmt.Fprintf(o.w, "data: %s\n\n", line)
	if err == nil {
		err = o.control.Flush()
	}
	o.failed = err
	return err
}
