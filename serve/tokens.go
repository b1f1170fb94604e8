package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// tokenizeRequest is the body of POST /tokenize, as vLLM (prompt, messages) and llama.cpp (content) have it.
type tokenizeRequest struct {
	Model      string            `json:"model"`
	Prompt     *string           `json:"prompt"`
	Content    *string           `json:"content"`
	Messages   []json.RawMessage `json:"messages"`
	Tools      []json.RawMessage `json:"tools"`
	Invite     *bool             `json:"add_generation_prompt"`
	AddSpecial *bool             `json:"add_special_tokens"`
	Strings    bool              `json:"return_token_strs"`
}

// tokenize answers POST /tokenize.
func (s *Server) tokenize(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	var q tokenizeRequest
	if err := s.readJSON(ctx, w, r, &q); err != nil {
		return err
	}
	m, let, err := s.model(ctx, q.Model)
	if err != nil {
		return err
	}
	defer let()

	given := 0
	for _, there := range []bool{q.Prompt != nil, q.Content != nil, q.Messages != nil} {
		if there {
			given++
		}
	}
	if given != 1 {
		return badRequest("prompt", "want one of prompt, content and messages")
	}

	var ids []int32
	err = s.desk(ctx, r, func() (err error) {
		if q.Messages != nil {
			ids, err = m.conversation(ctx, q.Messages, q.Tools, q.Invite == nil || *q.Invite)
			return err
		}
		text := q.Content
		if q.Prompt != nil {
			text = q.Prompt
		}
		ids, err = m.encode(*text, tokenizer.EncodeOptions{NoSpecial: q.AddSpecial != nil && !*q.AddSpecial})
		return err
	})
	if err != nil {
		return err
	}

	answer := map[string]any{"count": len(ids), "max_model_len": m.context, "tokens": append([]int32{}, ids...)}
	if q.Strings {
		names := []string{}
		for _, id := range ids {
			name, _ := m.Tokenizer.Token(id)
			names = append(names, name)
		}
		answer["token_strs"] = names
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// tokenIDs is a list of token ids. JSON's null is none of them, and not token 0.
type tokenIDs []int32

func (t *tokenIDs) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' && bytes.Contains(b, []byte("null")) {
		return badRequest("tokens", "null is no token id")
	}
	return json.Unmarshal(b, (*[]int32)(t))
}

// detokenizeRequest is the body of POST /detokenize.
type detokenizeRequest struct {
	Model  string   `json:"model"`
	Tokens tokenIDs `json:"tokens"`
}

// detokenize answers POST /detokenize: the text as prompt, as vLLM has it, and as content, as llama.cpp does.
func (s *Server) detokenize(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	var q detokenizeRequest
	if err := s.readJSON(ctx, w, r, &q); err != nil {
		return err
	}
	m, let, err := s.model(ctx, q.Model)
	if err != nil {
		return err
	}
	defer let()

	for _, id := range q.Tokens {
		if id < 0 || int(id) >= m.LM.Config().Vocab {
			return badRequest("tokens", "token %d is outside of the vocabulary of %d", id, m.LM.Config().Vocab)
		}
	}
	text := m.Tokenizer.Decode(q.Tokens, false)
	writeJSON(w, http.StatusOK, map[string]any{"prompt": text, "content": text})
	return nil
}

// tokenizerInfo answers GET /tokenizer_info with the texts of the special tokens, under the names of
// tokenizer_config.json, as vLLM does; ?model= chooses a model.
func (s *Server) tokenizerInfo(w http.ResponseWriter, r *http.Request) {
	m, let, err := s.model(r.Context(), r.URL.Query().Get("model"))
	if err != nil {
		faultOf(err).write(w)
		return
	}
	defer let()

	answer := map[string]any{"model_max_length": m.context}
	for name, of := range map[string]func() (int32, bool){
		"bos_token": m.Tokenizer.BOS, "eos_token": m.Tokenizer.EOS, "pad_token": m.Tokenizer.PAD,
	} {
		answer[name] = nil
		if id, ok := of(); ok {
			answer[name], _ = m.Tokenizer.Token(id)
		}
	}
	writeJSON(w, http.StatusOK, answer)
}
