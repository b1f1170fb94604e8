package serve

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// completionRequest is the body of POST /v1/completions.
type completionRequest struct {
	sampling
	Prompt   prompts `json:"prompt"`
	Echo     bool    `json:"echo"`
	Logprobs *int    `json:"logprobs"`
	BestOf   *int    `json:"best_of"`
	Suffix   *string `json:"suffix"`
}

// prompts is a text, token ids, or a list of either.
type prompts struct {
	texts []string
	ids   [][]int32
}

func (p *prompts) UnmarshalJSON(b []byte) error {
	*p = prompts{} // of two of the same name, the last counts
	var one string
	if json.Unmarshal(b, &one) == nil {
		p.texts = []string{one}
		return nil
	}
	var texts []*string
	if json.Unmarshal(b, &texts) == nil && !slices.Contains(texts, nil) {
		for _, text := range texts {
			p.texts = append(p.texts, *text)
		}
		return nil
	}

	var ids tokenIDs
	if json.Unmarshal(b, &ids) == nil {
		p.ids = [][]int32{ids}
		return nil
	}
	var lists []tokenIDs
	if json.Unmarshal(b, &lists) == nil {
		for _, ids := range lists {
			p.ids = append(p.ids, ids)
		}
		return nil
	}
	return badRequest("prompt", "prompt is no text, list of texts, list of token ids or list of such lists")
}

// completions answers POST /v1/completions.
func (s *Server) completions(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	var q completionRequest
	if err := s.readJSON(ctx, w, r, &q); err != nil {
		return err
	}

	m, let, err := s.model(ctx, q.Model)
	if err != nil {
		return err
	}
	defer let()
	var req *request
	if err := s.desk(ctx, r, func() (err error) { req, err = s.completionTasks(m, &q); return err }); err != nil {
		return err
	}
	return s.run(ctx, w, req, &q.sampling, newCompletionReply(s, m, req))
}

// completionTasks makes tasks of the prompts.
func (s *Server) completionTasks(m *served, q *completionRequest) (*request, error) {
	if err := q.check(); err != nil {
		return nil, err
	}

	ids := q.Prompt.ids
	for _, text := range q.Prompt.texts {
		one, err := m.encode(text, tokenizer.EncodeOptions{})
		if err != nil {
			return nil, err
		}
		ids = append(ids, one)
	}

	n, err := q.choices(len(ids))
	if err != nil {
		return nil, err
	}

	req := &request{model: m, choice: m.choiceOf(q.Model)}
	for i, prompt := range ids {
		most, err := s.options.tokens("max_tokens", q.MaxTokens, m, len(prompt), 16)
		if err != nil {
			return nil, err
		}
		t, err := q.task(m, prompt, most, m.stop)
		if err != nil {
			return nil, err
		}

		t.echo = q.Echo
		if q.Logprobs != nil {
			t.scored, t.tops = true, *q.Logprobs
		}
		if q.Echo {
			t.text = m.Tokenizer.Decode(prompt, false)
			if i < len(q.Prompt.texts) {
				t.text = q.Prompt.texts[i]
			}
		}
		req.add(t, n)
	}
	return req, nil
}

// add takes a task with n choices in.
func (r *request) add(t *task, n int) {
	for _, o := range r.tasks {
		t.first += len(o.choices)
	}
	t.of = r
	for i := range n {
		t.choices = append(t.choices, &choice{of: t, index: t.first + i})
	}
	r.tasks = append(r.tasks, t)
}

// check refuses what makes no sense, or is not there.
func (q *completionRequest) check() error {
	switch {
	case len(q.Prompt.ids)+len(q.Prompt.texts) == 0:
		return badRequest("prompt", "there is no prompt")
	case len(q.Prompt.ids)+len(q.Prompt.texts) > maxChoices: // before any of them is encoded
		return badRequest("prompt", "%d prompts: want at most %d", len(q.Prompt.ids)+len(q.Prompt.texts), maxChoices)
	case q.Logprobs != nil && (*q.Logprobs < 0 || *q.Logprobs > maxTops):
		return badRequest("logprobs", "logprobs %d: want 0 to %d", *q.Logprobs, maxTops)
	case q.Suffix != nil && *q.Suffix != "":
		return unsupported("suffix", "suffix is not supported")
	case q.BestOf != nil && (q.N == nil && *q.BestOf != 1 || q.N != nil && *q.BestOf != *q.N):
		return unsupported("best_of", "best_of other than n is not supported")
	}
	return nil
}

// completion is an answer, or a piece of one.
type completion struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   *usage             `json:"usage,omitempty"`
}

type completionChoice struct {
	Text     string      `json:"text"`
	Index    int         `json:"index"`
	Logprobs *tokenTable `json:"logprobs"`
	Finish   *string     `json:"finish_reason"`
}

// tokenTable is the probabilities of tokens, a column for each.
type tokenTable struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []*float64           `json:"token_logprobs"`
	Tops     []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"` // characters from the first token on

	at int
}

// add appends a token.
func (t *tokenTable) add(tok *tokenizer.Tokenizer, x tokenInfo) {
	text := tokenText(tok, x.id)
	t.Tokens, t.Offsets = append(t.Tokens, text), append(t.Offsets, t.at)
	t.at += utf8.RuneCountInString(text)
	if x.first {
		t.Logprobs, t.Tops = append(t.Logprobs, nil), append(t.Tops, nil)
		return
	}

	p := finite(x.logprob)
	tops := map[string]float64{}
	for _, c := range x.tops {
		name := tokenText(tok, c.id)
		if have, there := tops[name]; !there || have < c.logprob {
			tops[name] = finite(c.logprob)
		}
	}
	if _, there := tops[text]; !there {
		tops[text] = p
	}
	t.Logprobs, t.Tops = append(t.Logprobs, &p), append(t.Tops, tops)
}

// tokenText is a token as text; one that is a part of a character as the vocabulary spells it.
func tokenText(tok *tokenizer.Tokenizer, id int32) string {
	text := tok.Decode([]int32{id}, false)
	if name, ok := tok.Token(id); ok && strings.ContainsRune(text, utf8.RuneError) {
		return name
	}
	return text
}

// finite is a logarithm that JSON can write.
func finite(x float64) float64 {
	if math.IsInf(x, -1) {
		return -9999
	}
	return x
}

// completionReply makes answers of completions.
type completionReply struct {
	base  completion
	tok   *tokenizer.Tokenizer
	texts []strings.Builder
	list  []completionChoice
	at    []int // characters of the tokens of each choice so far
}

func newCompletionReply(s *Server, m *served, r *request) *completionReply {
	n := 0
	for _, t := range r.tasks {
		n += len(t.choices)
	}

	c := &completionReply{tok: m.Tokenizer, texts: make([]strings.Builder, n), at: make([]int, n)}
	c.base = completion{
		ID: newID("cmpl-"), Object: "text_completion", Created: s.options.now().Unix(), Model: r.name(),
		Choices: []completionChoice{},
	}
	for i := range n {
		c.list = append(c.list, completionChoice{Index: i})
	}
	return c
}

// pieces are what an event adds to choices: the prompt to all of its own.
func (c *completionReply) pieces(e event) (list []completionChoice) {
	t := e.prompt
	if t == nil {
		return append(list, c.piece(e.choice, e.text, e.tokens, e.finish))
	}
	if !t.echo {
		return nil
	}

	var tokens []tokenInfo
	if t.scored {
		tokens = append([]tokenInfo{{id: t.prompt[0], first: true}}, t.prior...)
	}
	for i := range t.choices {
		list = append(list, c.piece(t.first+i, t.text, tokens, ""))
	}
	return list
}

func (c *completionReply) piece(index int, text string, tokens []tokenInfo, finish string) completionChoice {
	p := completionChoice{Text: text, Index: index}
	if len(tokens) > 0 {
		p.Logprobs = &tokenTable{at: c.at[index]}
		for _, x := range tokens {
			p.Logprobs.add(c.tok, x)
		}
		c.at[index] = p.Logprobs.at
	}
	if finish != "" {
		p.Finish = &finish
	}
	return p
}

func (c *completionReply) chunk(e event) any {
	one := c.base
	one.Choices = c.pieces(e)
	if len(one.Choices) == 0 {
		return nil
	}
	return one
}

func (c *completionReply) last(u usage) any {
	one := c.base
	one.Usage = &u
	return one
}

func (c *completionReply) take(e event) {
	for _, p := range c.pieces(e) {
		to := &c.list[p.Index]
		c.texts[p.Index].WriteString(p.Text)
		if p.Finish != nil {
			to.Finish = p.Finish
		}
		if p.Logprobs == nil {
			continue
		}
		if to.Logprobs == nil {
			to.Logprobs = &tokenTable{}
		}
		l := to.Logprobs
		l.Tokens, l.Logprobs = append(l.Tokens, p.Logprobs.Tokens...), append(l.Logprobs, p.Logprobs.Logprobs...)
		l.Tops, l.Offsets = append(l.Tops, p.Logprobs.Tops...), append(l.Offsets, p.Logprobs.Offsets...)
	}
}

func (c *completionReply) whole(u usage) any {
	one := c.base
	for i, x := range c.list {
		x.Text = c.texts[i].String()
		one.Choices = append(one.Choices, x)
	}
	one.Usage = &u
	return one
}
