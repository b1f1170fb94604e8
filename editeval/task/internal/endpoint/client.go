// Package endpoint runs the requests of tasks on a server that speaks OpenAI's API, as lm-evaluation-harness'
// local-completions does: prompts are token ids, likelihoods are read from the log-probabilities of an echoed prompt,
// texts are continued greedily. Servers are strangers: what they answer is checked before it is a figure.
package endpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/retry"
)

// The ways in which a server does not give what is asked for.
var (
	ErrConfig = failure.Misuse("bad server", "")
	ErrAnswer = failure.New("not an answer of OpenAI's API", "")
	ErrBusy   = failure.New("the server is busy", "lower --requests; --resume goes on later with what is answered")
	ErrKey    = failure.Misuse("the server gives no access", "name a file with a valid key by --key-file")
	ErrShort  = failure.New("the connection ended early",
		"is the server still running? --resume goes on with what is answered")
	ErrSlow    = failure.New("no answer in time", "raise --request-timeout, or lower --requests")
	ErrRefused = failure.New("the server refuses the request", "")
	ErrAbsent  = failure.New("the server does not have it", "")
	// ErrNoLogprobs: it completes texts, but does not say how likely a prompt is.
	ErrNoLogprobs = failure.Misuse("the server gives no log-probabilities of a prompt (echo with logprobs)", "")
)

// Config says where a server is, and how to ask it.
type Config struct {
	URL      string
	Model    string // empty: the only one that it lists
	Key      string // empty: none
	Requests int    // at a time
	Timeout  time.Duration
}

// Client asks a server.
type Client struct {
	Model string
	Limit int              // positions of the model; 0: the server does not say
	Done  func(tokens int) // is told of answers, by one goroutine at a time
	// Again is told, now and then, why requests are made again and after which pause, by one goroutine at a time; nil:
	// nobody is.
	Again func(err error, pause time.Duration)

	base     *url.URL // ends in /v1
	key      string
	requests int
	timeout  time.Duration
	http     *http.Client
	wait     func(ctx context.Context, d time.Duration) error // before the next try; tests do not

	mu   sync.Mutex // guards told, and calls of Again
	told time.Time  // when Again was called
}

// New makes a client; it asks nothing yet.
func New(c Config) (*Client, error) {
	base, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.ContainsFunc(c.Key, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return nil, fmt.Errorf("%w: the key has characters that no key has", ErrConfig)
	case c.Requests < 1:
		return nil, fmt.Errorf("%w: %d requests at a time: want 1 or more", ErrConfig, c.Requests)
	case c.Timeout <= 0:
		return nil, fmt.Errorf("%w: %v for a request: want more than 0", ErrConfig, c.Timeout)
	}

	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = c.Requests
	return &Client{
		Model: c.Model, base: base, key: c.Key, requests: c.Requests, timeout: c.Timeout, wait: retry.Sleep,
		http: &http.Client{
			Transport: transport,
			// Nobody has said that the prompts, or the key, may go elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// parseURL reads an address: of the server, of its /v1, or of its completions.
func parseURL(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil ||
		base.RawQuery != "" || base.Fragment != "" {
		// The address is not repeated: it may hold a password.
		return nil, fmt.Errorf("%w: want an address such as http://127.0.0.1:8080/v1, without key or query", ErrConfig)
	}

	path := strings.TrimSuffix(strings.TrimRight(base.Path, "/"), "/completions")
	if !strings.HasSuffix(path, "/v1") {
		path += "/v1"
	}
	return &url.URL{Scheme: base.Scheme, Host: base.Host, Path: path}, nil
}

// Address is that of the API.
func (c *Client) Address() string { return c.base.String() }

// Close gives connections back.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// beside is an address beside /v1.
func (c *Client) beside(path string) *url.URL {
	u := *c.base
	u.Path = strings.TrimSuffix(u.Path, "/v1") + path
	return &u
}

// model is a model as servers list it: all tell the name, vLLM and this program the positions.
type model struct {
	ID      string `json:"id"`
	Context int    `json:"max_model_len"`
}

// Open finds the model, and how many positions it has.
func (c *Client) Open(ctx context.Context) error {
	var list struct {
		Data []model `json:"data"`
	}
	err := c.ask(ctx, http.MethodGet, c.base.JoinPath("models"), nil, &list)
	if errors.Is(err, ErrAbsent) && c.Model != "" { // it has one model, or many, and does not say so
		return nil
	}
	if err != nil {
		return err
	}

	var names []string
	for _, m := range list.Data {
		names = append(names, retry.Said(m.ID))
		if m.ID == c.Model || c.Model == "" && len(list.Data) == 1 {
			c.Model = m.ID
			c.Limit = m.Context
			return c.props(ctx)
		}
	}
	if len(names) == 0 && c.Model != "" {
		return nil // requests show whether it is there
	}
	if len(names) == 0 {
		return failure.Hinted(fmt.Errorf("%w: %s lists no models", ErrConfig, c.base.Host),
			"name one with --model-name")
	}
	if c.Model == "" {
		return failure.Hinted(fmt.Errorf("%w: %s has %d models: %s", ErrConfig, c.base.Host, len(names),
			strings.Join(names, ", ")), "choose one with --model-name")
	}
	return fmt.Errorf("%w: %s has no model %q; it has %s", ErrConfig, c.base.Host, c.Model, strings.Join(names, ", "))
}

// props asks for the positions where llama.cpp's server tells them: those of one of its slots.
func (c *Client) props(ctx context.Context) error {
	if c.Limit > 0 {
		return nil
	}
	var p struct {
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	err := c.ask(ctx, http.MethodGet, c.beside("/props"), nil, &p)
	if errors.Is(err, ErrAbsent) || errors.Is(err, ErrRefused) || errors.Is(err, ErrAnswer) {
		return nil // another program's
	}
	c.Limit = p.Settings.Context
	return err
}

// How often a request is made that fails for a reason that may pass, and how long is waited in between.
const (
	tries        = 6
	firstPause   = time.Second // doubled each time
	longestPause = 2 * time.Minute
)

// ask makes a request, again where the server is busy or the network fails. A nil body is none.
func (c *Client) ask(ctx context.Context, method string, u *url.URL, body, into any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}

	pause := firstPause
	for try := 1; ; try++ {
		after, err := c.once(ctx, method, u, text, into)
		if err == nil || ctx.Err() != nil {
			return err
		}
		passes := errors.Is(err, ErrBusy) || errors.Is(err, ErrShort)
		if !passes || try == tries || after > longestPause {
			return fmt.Errorf("%s: %w", u, err)
		}

		c.again(err, max(pause, after))
		if err := c.wait(ctx, max(pause, after)); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// often is how far apart Again is called at least: many requests fail at once, and for the same reason.
const often = 15 * time.Second

// again tells that a request is made again.
func (c *Client) again(err error, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Again != nil && time.Since(c.told) >= often {
		c.told = time.Now()
		c.Again(err, pause)
	}
}

// maxAnswer bounds what is read of an answer: that of a long prompt has some hundred bytes for each token.
const maxAnswer = 256 << 20

// once makes a request; after is how long the server asks to wait.
func (c *Client) once(ctx context.Context, method string, u *url.URL, body []byte, into any) (
	after time.Duration, _ error,
) {
	timed, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	r, err := http.NewRequestWithContext(timed, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("User-Agent", "compress")
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}

	answer, err := c.http.Do(r)
	if err != nil {
		return 0, c.broken(ctx, timed, err)
	}
	defer answer.Body.Close()

	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, c.broken(ctx, timed, err)
	case len(text) > maxAnswer:
		return 0, fmt.Errorf("%w: more than %d bytes", ErrAnswer, maxAnswer)
	case answer.StatusCode != http.StatusOK:
		return retry.After(answer.Header.Get("Retry-After")), refused(answer, text)
	}
	return 0, decode(text, into)
}

// broken is the error of a request that has no answer.
func (c *Client) broken(ctx, timed context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case timed.Err() != nil:
		return fmt.Errorf("%w: %v", ErrSlow, c.timeout)
	}
	var at *url.Error // whose address is said anyway
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("%w: %w", ErrShort, err)
}

// refused is the error of an answer that is none.
func refused(answer *http.Response, text []byte) error {
	status := fmt.Sprintf("%d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	if said := message(text); said != "" {
		status += ": " + said
	}

	switch code := answer.StatusCode; {
	case code >= 300 && code < 400:
		to := retry.Said(answer.Header.Get("Location"))
		return failure.Hinted(fmt.Errorf("%w: %s, a redirect to %s, which is not followed", ErrAnswer, status, to),
			"give the address that answers itself")
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("%w: %s", ErrKey, status)
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable, code == http.StatusBadGateway,
		code == http.StatusGatewayTimeout:
		return fmt.Errorf("%w: %s", ErrBusy, status)
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed, code == http.StatusNotImplemented:
		return fmt.Errorf("%w: %s", ErrAbsent, status)
	case code >= 200 && code < 300:
		return fmt.Errorf("%w: %s", ErrAnswer, status)
	}
	return fmt.Errorf("%w: %s", ErrRefused, status)
}

// message is what an error of the API says, in the forms of OpenAI, older vLLM and FastAPI.
func message(text []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(text, &e) != nil {
		return ""
	}

	for _, raw := range []json.RawMessage{e.Error, e.Detail} {
		var inner struct {
			Message string `json:"message"`
		}
		var plain string
		switch {
		case json.Unmarshal(raw, &inner) == nil && inner.Message != "":
			return retry.Said(inner.Message)
		case json.Unmarshal(raw, &plain) == nil && plain != "":
			return retry.Said(plain)
		}
	}
	return retry.Said(e.Message)
}

// decode reads an answer.
func decode(text []byte, into any) error {
	start := strings.TrimSpace(string(text[:min(len(text), 1000)]))
	if strings.HasPrefix(start, "<") {
		return failure.Hinted(fmt.Errorf("%w: a page of HTML, as of a proxy or a login", ErrAnswer),
			"is the address that of the API, such as http://127.0.0.1:8080/v1?")
	}
	var said struct {
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return fmt.Errorf("%w: no JSON: %w", ErrAnswer, err) // NaN is none either
	}
	if len(said.Error) > 0 && string(said.Error) != "null" {
		return fmt.Errorf("%w: %s", ErrRefused, message(text))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	return nil
}
