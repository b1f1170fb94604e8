package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/lm"
)

// wrong is a draft whose tokens are the text's own until some place, and then others.
type wrong struct{ lm.PromptLookup }

func (w wrong) Propose(ctx context.Context, ids []int32, n int, s *lm.Sampler) (lm.Proposal, error) {
	p, err := w.PromptLookup.Propose(ctx, ids, n, s)
	if len(p.IDs) > 2 {
		p.IDs[2] = (p.IDs[2] + 1) % 200
	}
	return p, err
}

// cheap is a draft that costs nothing, so that it is asked.
type cheap struct{ lm.Draft }

func (cheap) Cost() float64 { return 0 }

// draftsOf are the drafts of the tests, by name.
func draftsOf(t *testing.T, m Model) map[string]func() (lm.Draft, func(), error) {
	same := nano(t, "base").LM
	return map[string]func() (lm.Draft, func(), error){
		"lookup": func() (lm.Draft, func(), error) { return lm.PromptLookup{Shortest: 1}, func() {}, nil },
		"wrong":  func() (lm.Draft, func(), error) { return wrong{lm.PromptLookup{Shortest: 1}}, func() {}, nil },
		"model": func() (lm.Draft, func(), error) {
			d, err := m.LM.NewDraft(same)
			if err != nil {
				return nil, nil, err
			}
			return cheap{d}, d.Close, nil
		},
	}
}

// TestDraftsDoNotChangeAnswers: greedy and sampled answers, with penalties, biases, stop texts and probabilities, alone
// and in company, have the bits that they have without a draft, and some tokens are proposed rightly.
func TestDraftsDoNotChangeAnswers(t *testing.T) {
	m := nano(t, "base")
	text := strings.Repeat("The king had a daughter. The queen had a son. ", 3)
	asks := []obj{
		{"temperature": 0, "logprobs": 3},
		{"temperature": 0.7, "seed": 5, "logprobs": 2},
		{"temperature": 0.3, "seed": 6, "n": 3, "top_p": 0.9},
		{"temperature": 0, "frequency_penalty": 0.4},
		{"temperature": 0.5, "seed": 7, "repetition_penalty": 1.2, "logit_bias": obj{"40": 2}},
		{"temperature": 0, "stop": "son"},
		{"temperature": 0, "max_tokens": 2},
		{"temperature": 0, "max_tokens": 1},
	}
	answers := func(c *client) (list []string) {
		list = make([]string, len(asks))
		var all sync.WaitGroup
		for i, a := range asks {
			body := obj{"prompt": text, "max_tokens": 40, "ignore_eos": true}
			for k, v := range a {
				body[k] = v
			}
			one := func() {
				raw, _ := json.Marshal(c.complete(body).Choices)
				list[i] = string(raw)
			}
			if i < 2 { // alone, where there is time for drafts
				one()
			} else {
				all.Go(one)
			}
		}
		all.Wait()
		return list
	}

	want := answers(start(t, Models{m}, Options{}))
	for name, d := range draftsOf(t, m) {
		m.Draft = d
		c := start(t, Models{m}, Options{DraftTokens: 5})
		for i, got := range answers(c) {
			if got != want[i] {
				t.Errorf("%s: request %d: %s, without a draft %s", name, i, got, want[i])
			}
		}

		stream := func(c *client) string {
			return fmt.Sprint(c.streamed("/v1/completions", obj{
				"prompt": text, "max_tokens": 30, "temperature": 0,
				"stream": true,
			}))
		}
		if got := stream(c); !strings.Contains(got, `"finish_reason":"length"`) {
			t.Errorf("%s: %s", name, got)
		}
		const counter = `compress_draft_tokens_accepted_total{model="base"}`
		metrics := c.text("/metrics")
		if !strings.Contains(metrics, counter) || strings.Contains(metrics, counter+" 0") {
			t.Errorf("%s: no token was proposed rightly", name)
		}
	}
}

// TestDraftsOfChoicesThatEndTogether: the choices of a request end in one pass, each with tokens that were proposed.
func TestDraftsOfChoicesThatEndTogether(t *testing.T) {
	m := nano(t, "base")
	m.Draft = func() (lm.Draft, func(), error) { return cheap{lm.PromptLookup{Shortest: 1}}, func() {}, nil }
	c := start(t, Models{m}, Options{Failed: func(_ string, err error) { t.Error(err) }})
	for tokens := range 20 {
		a := c.complete(obj{
			"prompt": strings.Repeat("The king had a daughter. ", 3), "n": 2, "max_tokens": tokens + 2,
			"temperature": 0, "ignore_eos": true,
		})
		if len(a.Choices) != 2 || a.Choices[0].Text != a.Choices[1].Text || a.Usage.Completion != 2*(tokens+2) {
			t.Errorf("%d tokens: %+v", tokens+2, a)
		}
	}
}

// TestDraftsEnd: what makes drafts fails, and every draft that began ends, also when a client goes.
func TestDraftsEnd(t *testing.T) {
	m := nano(t, "base")
	var mu sync.Mutex
	open := 0
	m.Draft = func() (lm.Draft, func(), error) {
		mu.Lock()
		defer mu.Unlock()
		open++
		return lm.PromptLookup{}, func() { mu.Lock(); defer mu.Unlock(); open-- }, nil
	}
	c := start(t, Models{m}, Options{})
	c.complete(obj{"prompt": "a b a b a b", "max_tokens": 20, "n": 2, "ignore_eos": true})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := c.ask(ctx, "/v1/completions", endless(nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	r.Body.Close()
	for !c.idle() {
	}
	mu.Lock()
	if open != 0 {
		t.Errorf("%d drafts are open", open)
	}
	mu.Unlock()

	m.Draft = func() (lm.Draft, func(), error) { return nil, nil, errors.New("no draft today") }
	c = start(t, Models{m}, Options{})
	var fault struct{ Error struct{ Message string } }
	code := c.post("/v1/completions", obj{"prompt": "a b", "max_tokens": 9, "ignore_eos": true, "n": 2}, &fault)
	if code != 500 || !strings.Contains(fault.Error.Message, "no draft today") {
		t.Errorf("%d %+v", code, fault)
	}
}
