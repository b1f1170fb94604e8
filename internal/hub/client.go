package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/retry"
	"github.com/modelcompress/compress/internal/safefile"
)

// The ways in which the hub does not give what is asked for.
var (
	ErrNoAccess = failure.New("the hub does not give access",
		"a private or gated model needs a token with access to it: HF_TOKEN, --token-file, or hf auth login")
	ErrUnknown = failure.New("the hub does not have it",
		"look at the spelling of owner/name and of the revision")
	ErrBusy     = failure.New("the hub is busy", "the same command goes on later where this one has stopped")
	ErrAnswer   = errors.New("not an answer of the hub")
	ErrChecksum = failure.New("wrong checksum", "the same command downloads the file again")
	ErrShort    = failure.New("the connection ended early", "the same command goes on where this one has stopped")
)

// Endpoint is the hub's address where nothing else is said.
const Endpoint = "https://huggingface.co"

// Client speaks with a hub.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
	// wait sleeps before the next try; tests do not.
	wait func(ctx context.Context, d time.Duration) error
	// stall is how long a connection may give nothing.
	stall time.Duration
}

// NewClient makes a client of a hub at an address, HTTP or HTTPS; a token may be empty.
func NewClient(endpoint, token string) (*Client, error) {
	base, err := url.Parse(strings.TrimRight(endpoint, "/"))
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil ||
		base.RawQuery != "" || base.Fragment != "" {
		// The address is not repeated: it may hold a password.
		return nil, fmt.Errorf("%w: the endpoint is no address of a hub, such as %s", ErrAnswer, Endpoint)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, fmt.Errorf("%w: the token has characters that no token has", ErrNoAccess)
	}

	c := &Client{base: base, token: token, wait: retry.Sleep, stall: time.Minute}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // the bytes that count are those of the file, for ranges and checksums
	transport.ResponseHeaderTimeout = time.Minute
	c.http = &http.Client{Transport: transport, CheckRedirect: c.redirect}

	return c, nil
}

// maxRedirects is how many redirects are followed: a renamed model, then its file at another host, and some to spare.
const maxRedirects = 10

// redirect lets no token out. net/http drops it on the way to another domain, but keeps it for subdomains and for
// another port or an unencrypted connection to the same host.
func (c *Client) redirect(r *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("%w: more than %d redirects", ErrAnswer, maxRedirects)
	}
	if c.base.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("%w: a redirect to an unencrypted address", ErrAnswer)
	}
	if !c.own(r.URL) {
		r.Header.Del("Authorization")
	}
	r.Header.Del("Referer") // addresses of files hold signatures

	return nil
}

// own reports whether an address is the hub's own, to which the token may go.
func (c *Client) own(u *url.URL) bool { return u.Scheme == c.base.Scheme && u.Host == c.base.Host }

// Environment is the endpoint and the token as the environment has them, in the order of huggingface_hub: HF_TOKEN, the
// file that HF_TOKEN_PATH names, the file token in HF_HOME. No token is an empty one.
func Environment() (endpoint, token string, err error) {
	if endpoint = os.Getenv("HF_ENDPOINT"); endpoint == "" {
		endpoint = Endpoint
	}

	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if token = strings.TrimSpace(os.Getenv(name)); token != "" {
			return endpoint, token, nil
		}
	}

	path := os.Getenv("HF_TOKEN_PATH")
	if path == "" && home() != "" {
		path = filepath.Join(home(), "token")
	}
	if _, err := os.Stat(path); err != nil {
		return endpoint, "", nil
	}

	token, err = ReadToken(path)
	return endpoint, token, err
}

// maxToken bounds what is read of a file with a token.
const maxToken = 4 << 10

// ReadToken reads the token in a file. What it holds is in no error.
func ReadToken(path string) (string, error) {
	text, err := safefile.ReadFile(path, maxToken)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		err = fmt.Errorf("%w: %s holds no token", ErrNoAccess, path)
	}
	return token, err
}

// tries is how often a request is made that fails for a reason that may pass.
const tries = 5

// longest is the longest time that a hub that is busy is waited for at a time.
const longest = 2 * time.Minute

// get makes a request, again where the hub is busy or the network fails; offset asks for the bytes from there on. The
// answer is 200, or 206 for an offset; its body is closed by the caller.
func (c *Client) get(ctx context.Context, u *url.URL, method string, offset int64) (*http.Response, error) {
	for try := 1; ; try++ {
		answer, err := c.once(ctx, u, method, offset)
		pause := time.Duration(try) * time.Second
		var later *laterError
		switch {
		case err == nil:
			return answer, nil
		case errors.As(err, &later):
			pause = max(pause, later.after)
		case !passing(err):
			return nil, err
		}

		if try == tries || pause > longest {
			return nil, err
		}
		if waited := c.wait(ctx, pause); waited != nil {
			return nil, waited
		}
	}
}

// passing reports whether a request failed before there was an answer, which the next may not.
func passing(err error) bool {
	var network *url.Error
	return errors.As(err, &network) && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrAnswer)
}

// laterError is an answer that asks to come again.
type laterError struct {
	error
	after time.Duration
}

func (e *laterError) Unwrap() error { return e.error }

func (c *Client) once(ctx context.Context, u *url.URL, method string, offset int64) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}

	r.Header.Set("User-Agent", "compress")
	r.Header.Set("Accept-Encoding", "identity")
	if c.token != "" && c.own(u) {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if offset > 0 {
		r.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}

	answer, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, plainer(err)
	}

	if answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusPartialContent && offset > 0 {
		return answer, nil
	}
	defer answer.Body.Close()

	return nil, c.refused(answer)
}

// plainer leaves the query out of an error's address: that of a file on another host holds a signature, which gives
// access to the file.
func plainer(err error) error {
	var at *url.Error
	if !errors.As(err, &at) {
		return err
	}
	u, parsed := url.Parse(at.URL)
	if parsed != nil {
		return at.Err
	}
	return &url.Error{Op: at.Op, URL: u.Scheme + "://" + u.Host + u.Path, Err: at.Err}
}

// refused is the error of an answer that is none.
func (c *Client) refused(answer *http.Response) error {
	where := answer.Request.URL.Host
	status := strconv.Itoa(answer.StatusCode) + " " + http.StatusText(answer.StatusCode)
	said := answer.Header.Get("X-Error-Message")
	if said != "" {
		status += ", " + retry.Said(said)
	}

	switch code := answer.StatusCode; {
	case code == http.StatusUnauthorized && c.token == "":
		// The hub does not tell a private model from one that is not there to those who may not see it.
		return failure.Hinted(fmt.Errorf("%s: %w: %s", where, ErrNoAccess, status), "there is no such model, or it is "+
			"private or gated and needs a token: HF_TOKEN, --token-file, or hf auth login")
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("%s: %w: %s", where, ErrNoAccess, status)
	case code == http.StatusNotFound:
		return fmt.Errorf("%s: %w: %s", where, ErrUnknown, status)
	case code == http.StatusTooManyRequests, code >= 500:
		after := retry.After(answer.Header.Get("Retry-After"))
		if after > 0 {
			status += fmt.Sprintf(", asks to wait %v", after)
		}
		return &laterError{fmt.Errorf("%s: %w: %s", where, ErrBusy, status), after}
	}

	return fmt.Errorf("%s: %w: %s", where, ErrAnswer, status)
}

// maxList bounds an answer in JSON.
const maxList = 64 << 20

// json reads an answer in JSON into a value.
func (c *Client) json(ctx context.Context, u *url.URL, into any) (next *url.URL, err error) {
	answer, err := c.get(ctx, u, http.MethodGet, 0)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()

	text, err := io.ReadAll(io.LimitReader(answer.Body, maxList+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %w", u.Host, ErrShort, err)
	case len(text) > maxList:
		return nil, fmt.Errorf("%s: %w: a list of more than %d bytes", u.Host, ErrAnswer, maxList)
	}

	if err := json.Unmarshal(text, into); err != nil {
		what := "no JSON"
		if strings.HasPrefix(strings.TrimSpace(string(text[:min(len(text), 1000)])), "<") {
			what = "a page of HTML, as of a proxy or a login, in the place of JSON"
		}
		return nil, fmt.Errorf("%s: %w: %s", u.Host, ErrAnswer, what)
	}

	return c.next(u, answer.Header.Get("Link")), nil
}

// next is the address of a list's next page, from a header such as <…>; rel="next"; nil: it was the last.
func (c *Client) next(u *url.URL, link string) *url.URL {
	for part := range strings.SplitSeq(link, ",") {
		at, rel, ok := strings.Cut(strings.TrimSpace(part), ">")
		if !ok || !strings.HasPrefix(at, "<") || !strings.Contains(rel, `rel="next"`) {
			continue
		}
		if to, err := u.Parse(at[1:]); err == nil && c.own(to) {
			return to
		}
	}
	return nil
}
