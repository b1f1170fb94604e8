package serve

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Limits on what one request may ask for, those of OpenAI where it has some.
const (
	maxChoices = 128  // n times prompts
	maxStops   = 16   // stop texts
	maxStop    = 1024 // bytes of one
	maxBias    = 1024 // tokens
	maxTops    = 20   // likely tokens beside each
	maxBiasBy  = 100
)

// sampling are the parameters that both kinds of completions have.
type sampling struct {
	Model             string             `json:"model"`
	MaxTokens         *int               `json:"max_tokens"`
	Temperature       *float64           `json:"temperature"`
	TopP              *float64           `json:"top_p"`
	TopK              *int               `json:"top_k"`
	MinP              *float64           `json:"min_p"`
	RepetitionPenalty *float64           `json:"repetition_penalty"`
	FrequencyPenalty  *float64           `json:"frequency_penalty"`
	PresencePenalty   *float64           `json:"presence_penalty"`
	LogitBias         map[string]float64 `json:"logit_bias"`
	N                 *int               `json:"n"`
	Seed              *int64             `json:"seed"`
	Stop              texts              `json:"stop"`
	IgnoreEOS         bool               `json:"ignore_eos"`
	Stream            bool               `json:"stream"`
	StreamOptions     *streamOptions     `json:"stream_options"`

	// Names that clients send for others' sake.
	User        any `json:"user"`
	Metadata    any `json:"metadata"`
	Store       any `json:"store"`
	ServiceTier any `json:"service_tier"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// texts is a text, a list of texts, or null.
type texts []string

func (t *texts) UnmarshalJSON(b []byte) error {
	var one *string
	if err := json.Unmarshal(b, &one); err == nil {
		*t = nil
		if one != nil {
			*t = texts{*one}
		}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// readJSON reads the body of a request. Every name in it must be known: a setting that does nothing would be an answer
// to another question.
func (s *Server) readJSON(ctx context.Context, w http.ResponseWriter, r *http.Request, v any) error {
	limit := s.options.MaxBody
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		// Browsers send other types to other sites without asking.
		f := badRequest("", "Content-Type is not application/json")
		f.status = http.StatusUnsupportedMediaType
		return f
	}

	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil { // later reads only learn whether the client has gone
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	} else {
		w.Header().Set("Connection", "close")
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		f := badRequest("", "the request is larger than %d bytes", limit)
		f.status = http.StatusRequestEntityTooLarge
		return f
	case err != nil:
		return badRequest("", "the request could not be read: %v", err)
	}
	return s.desk(ctx, r, func() error { return parseJSON(text, v) })
}

// smallBody is how long a body may be that is taken apart at once, and desks how many longer ones are at a time: values
// and tokens take up to 50 times the memory of the text.
const (
	smallBody = 64 << 10
	desks     = 2
)

// desk runs f, which takes a request apart: if that is long, when its turn comes.
func (s *Server) desk(ctx context.Context, r *http.Request, f func() error) error {
	if r.ContentLength >= 0 && r.ContentLength <= smallBody {
		return f()
	}

	select {
	case s.desks <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.desks }()
	return f()
}

func parseJSON(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		var f *fault
		if errors.As(err, &f) {
			return f
		}
		var other *json.UnmarshalTypeError
		if errors.As(err, &other) && other.Field != "" {
			name := strings.TrimPrefix(other.Field, "sampling.")
			return badRequest(name, "%s: %.100s is not what is wanted there", name, other.Value)
		}
		if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
			name = strings.Trim(name, `"`)
			return unsupported(name, "%s is not supported", name)
		}
		return badRequest("", "the request is not the JSON that is wanted here: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return badRequest("", "there is something behind the JSON of the request")
	}
	return nil
}

// shape checks the parameters, and gives what they make of probabilities.
func (p *sampling) shape(vocabulary int) (shape, error) {
	s := shape{}
	o := &s.options
	o.Temperature = 1

	for _, x := range []struct {
		name     string
		from     *float64
		to       *float64
		min, max float64
	}{
		{"temperature", p.Temperature, &o.Temperature, 0, 100},
		{"top_p", p.TopP, &o.TopP, 0, 1},
		{"min_p", p.MinP, &o.MinP, 0, 1},
		{"repetition_penalty", p.RepetitionPenalty, &o.RepetitionPenalty, 0.01, 100},
		{"frequency_penalty", p.FrequencyPenalty, &s.frequency, -2, 2},
		{"presence_penalty", p.PresencePenalty, &s.presence, -2, 2},
	} {
		if x.from == nil {
			continue
		}
		if !(*x.from >= x.min && *x.from <= x.max) {
			return s, badRequest(x.name, "%s %g: want %g to %g", x.name, *x.from, x.min, x.max)
		}
		*x.to = *x.from
	}

	if p.TopP != nil && *p.TopP == 0 { // the smallest set of tokens, not all
		o.Temperature = 0
	}
	if p.TopK != nil {
		if *p.TopK < -1 {
			return s, badRequest("top_k", "top_k %d: want 1 or more; 0 and -1 are all tokens", *p.TopK)
		}
		o.TopK = max(*p.TopK, 0)
	}

	var err error
	if s.bias, err = biasOf(p.LogitBias, vocabulary); err != nil {
		return s, err
	}

	switch {
	case p.Seed != nil:
		o.Seed = uint64(*p.Seed)
	case o.Temperature > 0:
		o.Seed = randomSeed()
	}
	return s, nil
}

// biasOf reads a map of token ids to what is added to their logits.
func biasOf(of map[string]float64, vocabulary int) (map[int32]float32, error) {
	if len(of) > maxBias {
		return nil, badRequest("logit_bias", "logit_bias has %d tokens: want at most %d", len(of), maxBias)
	}

	bias := map[int32]float32{}
	for text, b := range of {
		id, err := strconv.Atoi(text)
		switch {
		case err != nil || id < 0 || id >= vocabulary:
			return nil, badRequest("logit_bias", "logit_bias: %.40q is no token id below %d", text, vocabulary)
		case !(math.Abs(b) <= maxBiasBy):
			return nil, badRequest("logit_bias", "logit_bias of token %d: want -%d to %d", id, maxBiasBy, maxBiasBy)
		}
		bias[int32(id)] = float32(b)
	}
	return bias, nil
}

func randomSeed() uint64 {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	return binary.LittleEndian.Uint64(raw[:])
}

// stops checks the stop texts.
func (p *sampling) stops() ([]string, error) {
	if len(p.Stop) > maxStops {
		return nil, badRequest("stop", "stop has %d texts: want at most %d", len(p.Stop), maxStops)
	}
	for _, s := range p.Stop {
		if s == "" || len(s) > maxStop {
			return nil, badRequest("stop", "a stop text has %d bytes: want 1 to %d", len(s), maxStop)
		}
	}
	return p.Stop, nil
}

// choices is n.
func (p *sampling) choices(prompts int) (int, error) {
	n := 1
	if p.N != nil {
		n = *p.N
	}
	if n < 1 || n > maxChoices || n*prompts > maxChoices {
		return 0, badRequest("n", "%d prompts with n = %d: want 1 to %d answers in all", prompts, n, maxChoices)
	}
	return n, nil
}

// tokens is how many new tokens a choice may have behind a prompt, as the parameter says; none is the number where none
// is given, 0 being all that there is room for.
func (o *Options) tokens(param string, given *int, s *served, prompt, none int) (int, error) {
	room := s.context - prompt
	limit := s.context
	if o.MaxTokens > 0 {
		limit = o.MaxTokens
	}

	switch {
	case prompt == 0:
		return 0, badRequest("prompt", "the prompt has no tokens")
	case o.MaxPrompt > 0 && prompt > o.MaxPrompt:
		return 0, tooLong("prompt", "the prompt has %d tokens, and this server takes %d", prompt, o.MaxPrompt)
	case room < 0 || room == 0 && (given == nil || *given > 0):
		return 0, tooLong("prompt", "the prompt has %d tokens, and there is room for %d in all", prompt, s.context)
	case given == nil && none == 0:
		return min(room, limit), nil
	case given == nil:
		return min(room, limit, none), nil
	case *given < 0 || *given > limit:
		return 0, badRequest(param, "%s %d: want 0 to %d", param, *given, limit)
	case *given > room:
		return 0, tooLong(param, "%d tokens of the prompt and %s %d are more than the %d that there is room for",
			prompt, param, *given, s.context)
	}
	return *given, nil
}

// task makes a task of a prompt.
func (p *sampling) task(s *served, prompt []int32, most int, stop []int32) (*task, error) {
	shape, err := p.shape(s.LM.Config().Vocab)
	if err != nil {
		return nil, err
	}
	stops, err := p.stops()
	if err != nil {
		return nil, err
	}

	for _, id := range prompt {
		if id < 0 || int(id) >= s.LM.Config().Vocab {
			return nil, badRequest("prompt", "token %d is outside of the vocabulary of %d", id, s.LM.Config().Vocab)
		}
	}

	t := &task{prompt: prompt, max: most, shape: shape, stops: stops}
	if !p.IgnoreEOS {
		t.stop = stop
	}
	return t, nil
}
