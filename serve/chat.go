package serve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/chat"
	"github.com/modelcompress/compress/internal/pyvalue"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// maxMessages bounds a conversation.
const maxMessages = 10_000

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	sampling
	Messages       []json.RawMessage `json:"messages"`
	Tools          []json.RawMessage `json:"tools"`
	ToolChoice     any               `json:"tool_choice"`
	Parallel       any               `json:"parallel_tool_calls"`
	MaxCompletion  *int              `json:"max_completion_tokens"`
	Logprobs       bool              `json:"logprobs"`
	TopLogprobs    *int              `json:"top_logprobs"`
	ResponseFormat *responseFormat   `json:"response_format"`
}

type responseFormat struct {
	Type string `json:"type"`
}

// chat answers POST /v1/chat/completions.
func (s *Server) chat(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	var q chatRequest
	if err := s.readJSON(ctx, w, r, &q); err != nil {
		return err
	}

	m, let, err := s.model(ctx, q.Model)
	if err != nil {
		return err
	}
	defer let()
	var req *request
	if err := s.desk(ctx, r, func() (err error) { req, err = s.chatTask(ctx, m, &q); return err }); err != nil {
		return err
	}
	return s.run(ctx, w, req, &q.sampling, newChatReply(s, m, req))
}

// chatTask makes a task of a conversation.
func (s *Server) chatTask(ctx context.Context, m *served, q *chatRequest) (*request, error) {
	if err := q.check(); err != nil {
		return nil, err
	}

	prompt, err := m.conversation(ctx, q.Messages, q.tools(), true)
	if err != nil {
		return nil, err
	}

	limit, param := q.MaxTokens, "max_tokens"
	if q.MaxCompletion != nil {
		limit, param = q.MaxCompletion, "max_completion_tokens"
	}
	most, err := s.options.tokens(param, limit, m, len(prompt), 0)
	if err != nil {
		var f *fault
		if errors.As(err, &f) && f.param == "prompt" {
			f.param = "messages"
		}
		return nil, err
	}

	n, err := q.choices(1)
	if err != nil {
		return nil, err
	}
	t, err := q.task(m, prompt, most, m.chatStop)
	if err != nil {
		return nil, err
	}

	t.scored = q.Logprobs
	if q.TopLogprobs != nil {
		t.tops = *q.TopLogprobs
	}
	req := &request{model: m, choice: m.choiceOf(q.Model)}
	req.add(t, n)
	return req, nil
}

// check refuses what makes no sense, or is not there.
func (q *chatRequest) check() error {
	choice, isText := q.ToolChoice.(string)
	switch {
	case len(q.Messages) == 0 || len(q.Messages) > maxMessages:
		return badRequest("messages", "%d messages: want 1 to %d", len(q.Messages), maxMessages)
	case q.TopLogprobs != nil && (*q.TopLogprobs < 0 || *q.TopLogprobs > maxTops):
		return badRequest("top_logprobs", "top_logprobs %d: want 0 to %d", *q.TopLogprobs, maxTops)
	case q.TopLogprobs != nil && !q.Logprobs:
		return badRequest("top_logprobs", "top_logprobs goes with logprobs: true")
	case q.ToolChoice != nil && (!isText || choice != "auto" && choice != "none"):
		return unsupported("tool_choice", "tool_choice other than auto and none is not supported")
	case q.ResponseFormat != nil && q.ResponseFormat.Type != "text":
		return unsupported("response_format", "response_format other than text is not supported")
	}
	return nil
}

// tools are those that the template gets.
func (q *chatRequest) tools() []json.RawMessage {
	if q.ToolChoice == "none" {
		return nil
	}
	return q.Tools
}

// conversation are the tokens of messages, as the template writes them.
func (m *served) conversation(ctx context.Context, messages, tools []json.RawMessage, prompt bool) ([]int32, error) {
	if m.template == nil {
		return nil, badRequest("model", "the model %s has no chat template; POST /v1/completions continues texts",
			shown(m.Name))
	}

	var list, can []any
	for i, raw := range messages {
		v, err := messageOf(raw)
		if err != nil {
			return nil, badRequest("messages", "message %d: %v", i, err)
		}
		list = append(list, v)
	}
	for i, raw := range tools {
		v, err := pyvalue.ParseJSON(raw)
		if _, ok := v.(*pyvalue.Dict); err != nil || !ok {
			return nil, badRequest("tools", "tool %d is no object", i)
		}
		can = append(can, v)
	}

	text, err := m.template.RenderTools(ctx, list, can, prompt)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, chat.ErrTemplate):
		return nil, badRequest("messages", "the model's template does not take these messages: %v", err)
	case err != nil:
		return nil, err
	}

	ids, err := m.plain(text)
	if err != nil {
		return nil, badRequest("messages", "the messages cannot be encoded: %v", err)
	}
	return ids, nil
}

// messageOf reads a message for the template: content as one text, and arguments of tool calls, which clients send as
// text that is JSON, as values, since that is how templates of the transformers library want them.
func messageOf(raw json.RawMessage) (any, error) {
	v, err := pyvalue.ParseJSON(raw)
	if err != nil {
		return nil, err
	}
	d, ok := v.(*pyvalue.Dict)
	if !ok {
		return nil, errors.New("is no object")
	}

	role, _ := d.Get("role")
	switch text, ok := role.(string); {
	case role == nil || ok && text == "":
		return nil, errors.New("has no role")
	case !ok:
		return nil, errors.New("the role is no text")
	}

	content, _ := d.Get("content")
	text, err := contentOf(content)
	if err != nil {
		return nil, err
	}
	d.Set("content", text)

	calls, _ := d.Get("tool_calls")
	list, _ := calls.([]any)
	for _, c := range list {
		call, _ := c.(*pyvalue.Dict)
		if call == nil {
			return nil, errors.New("a tool call is no object")
		}
		f, _ := call.Get("function")
		function, _ := f.(*pyvalue.Dict)
		if function == nil {
			continue
		}
		arguments, _ := function.Get("arguments")
		if text, ok := arguments.(string); ok {
			if value, err := pyvalue.ParseJSON([]byte(text)); err == nil {
				function.Set("arguments", value)
			}
		}
	}
	return d, nil
}

// contentOf is the content of a message as one text: a text, nothing, or a list of parts that are texts.
func contentOf(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case []any:
		var b strings.Builder
		for _, p := range v {
			part, _ := p.(*pyvalue.Dict)
			if part == nil {
				return "", errors.New("a part of the content is no object")
			}
			kind, _ := part.Get("type")
			text, _ := part.Get("text")
			s, ok := text.(string)
			if kind != "text" || !ok {
				return "", errors.New("a part of the content is no text")
			}
			b.WriteString(s)
		}
		return b.String(), nil
	}
	return "", errors.New("content is no text")
}

// chatCompletion is an answer in a chat, or a piece of one.
type chatCompletion struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
}

type chatChoice struct {
	Index    int          `json:"index"`
	Message  *chatMessage `json:"message,omitempty"`
	Delta    *chatDelta   `json:"delta,omitempty"`
	Logprobs *chatTokens  `json:"logprobs"`
	Finish   *string      `json:"finish_reason"`
}

type chatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

type chatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatTokens struct {
	Content []chatToken `json:"content"`
}

// chatToken is a token with its probability.
type chatToken struct {
	Token   string      `json:"token"`
	Logprob float64     `json:"logprob"`
	Bytes   []int       `json:"bytes"` // null where the token is a part of a character
	Tops    []chatToken `json:"top_logprobs,omitempty"`
}

func chatTokenOf(tok *tokenizer.Tokenizer, id int32, logprob float64) chatToken {
	t := chatToken{Token: tokenText(tok, id), Logprob: finite(logprob)}
	if text := tok.Decode([]int32{id}, false); !strings.ContainsRune(text, utf8.RuneError) {
		t.Bytes = []int{}
		for _, b := range []byte(text) {
			t.Bytes = append(t.Bytes, int(b))
		}
	}
	return t
}

// chatReply makes answers of chats.
type chatReply struct {
	base  chatCompletion
	tok   *tokenizer.Tokenizer
	texts []strings.Builder
	list  []chatChoice
}

func newChatReply(s *Server, m *served, r *request) *chatReply {
	n := len(r.tasks[0].choices)
	c := &chatReply{tok: m.Tokenizer, texts: make([]strings.Builder, n)}
	c.base = chatCompletion{
		ID: newID("chatcmpl-"), Created: s.options.now().Unix(), Model: r.name(), Choices: []chatChoice{},
	}
	for i := range n {
		c.list = append(c.list, chatChoice{Index: i})
	}
	return c
}

// tokens are the probabilities of an event's tokens; nil: none were asked for.
func (c *chatReply) tokens(e event) *chatTokens {
	if len(e.tokens) == 0 {
		return nil
	}

	t := &chatTokens{}
	for _, x := range e.tokens {
		one := chatTokenOf(c.tok, x.id, x.logprob)
		one.Tops = []chatToken{}
		for _, k := range x.tops {
			one.Tops = append(one.Tops, chatTokenOf(c.tok, k.id, k.logprob))
		}
		t.Content = append(t.Content, one)
	}
	return t
}

func (c *chatReply) chunk(e event) any {
	one := c.base
	one.Object = "chat.completion.chunk"
	if e.prompt != nil { // the answers begin
		empty := ""
		for i := range c.list {
			one.Choices = append(one.Choices, chatChoice{
				Index: i, Delta: &chatDelta{Role: "assistant", Content: &empty},
			})
		}
		return one
	}

	choice := chatChoice{Index: e.choice, Delta: &chatDelta{}, Logprobs: c.tokens(e)}
	if e.text != "" || e.finish == "" {
		choice.Delta.Content = &e.text
	}
	if e.finish != "" {
		choice.Finish = &e.finish
	}
	one.Choices = append(one.Choices, choice)
	return one
}

func (c *chatReply) last(u usage) any {
	one := c.base
	one.Object = "chat.completion.chunk"
	one.Usage = &u
	return one
}

func (c *chatReply) take(e event) {
	if e.prompt != nil {
		return
	}

	to := &c.list[e.choice]
	c.texts[e.choice].WriteString(e.text)
	if e.finish != "" {
		to.Finish = &e.finish
	}
	if t := c.tokens(e); t != nil {
		if to.Logprobs == nil {
			to.Logprobs = &chatTokens{}
		}
		to.Logprobs.Content = append(to.Logprobs.Content, t.Content...)
	}
}

func (c *chatReply) whole(u usage) any {
	one := c.base
	one.Object = "chat.completion"
	for i, x := range c.list {
		x.Message = &chatMessage{Role: "assistant", Content: c.texts[i].String()}
		one.Choices = append(one.Choices, x)
	}
	one.Usage = &u
	return one
}
