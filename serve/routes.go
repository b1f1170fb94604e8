package serve

import (
	"context"
	"fmt"
	"strings"
)

// Router chooses how a model computes for a prompt: a mediated model with experts. Requests that are computed in the
// same way are computed together, and those of different ways take turns, a pass each.
type Router interface {
	// Names are choices that are listed as models of their own, as NAME:CHOICE.
	Names() []string
	// Choose reads what a request has behind the name of the model and a colon; empty: it has the name alone.
	Choose(choice string) (Route, error)
}

// Route finds the way of a prompt. It is called while no pass runs and nothing is attached.
type Route func(ctx context.Context, prompt []int32) (Way, error)

// Way is a way in which a model computes.
type Way struct {
	Name string // as clients are told; the same for the same way
	// Enter makes the model compute in this way, until leave; see [Model].Enter. nil: it does.
	Enter func() (leave func(), err error)
}

// mostWays is how many ways of a model are remembered, so that prompts that go the same way share keys and values.
const mostWays = 64

// choiceOf is what a request that names a model has behind its name.
func (s *served) choiceOf(name string) string {
	_, choice, _ := strings.Cut(strings.TrimPrefix(name, s.Name), ":")
	return choice
}

// routed finds a model with routes by the name of one. The lock is held.
func (s *Server) routed(name string) *served {
	for _, m := range s.models {
		if m.routes && strings.HasPrefix(name, m.Name+":") {
			return m
		}
	}
	return nil
}

// route finds the ways of the prompts of a request, and says which they are.
func (s *Server) route(ctx context.Context, r *request) (names []string, err error) {
	m := r.model
	if m.Router == nil {
		return nil, nil
	}
	route, err := m.Router.Choose(r.choice)
	if err != nil {
		return nil, badRequest("model", "%v", err)
	}

	for _, t := range r.tasks {
		var w Way
		err := m.engine.between(func() (err error) {
			w, err = route(ctx, t.prompt)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("which experts answer: %w", err)
		}
		names = append(names, w.Name)
		if w.Enter != nil {
			t.way = s.way(m, w)
		}
	}
	return names, nil
}

// way is the model as it computes in a way.
func (s *Server) way(m *served, w Way) *served {
	s.mu.Lock()
	defer s.mu.Unlock()

	at := -1
	for i, o := range m.ways {
		if o.Root == w.Name {
			at = i
		}
	}
	if at >= 0 {
		one := m.ways[at]
		m.ways = append(append(m.ways[:at:at], m.ways[at+1:]...), one)
		return one
	}

	s.serial++
	one := &served{
		Model: m.Model, place: m.place, engine: m.engine, stop: m.stop, context: m.context, serial: s.serial,
	}
	one.Root = w.Name
	one.Enter = w.Enter
	m.ways = append(m.ways, one)
	if len(m.ways) > mostWays {
		m.ways = m.ways[1:]
	}
	return one
}
