package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcompress/compress/lm"
)

// statusGone is the status of requests whose client has not waited, as nginx has it: /metrics counts them apart, and a
// client that only closed its half of the connection reads it.
const statusGone = 499

// fault is an error as clients are told it.
type fault struct {
	status  int
	kind    string // "type" of OpenAI's errors
	message string
	param   string // of the request; empty: none in particular
	code    string
}

func (f *fault) Error() string { return f.message }

// badRequest is the fault of a parameter.
func badRequest(param, format string, args ...any) *fault {
	return &fault{
		status: http.StatusBadRequest, kind: "invalid_request_error", message: fmt.Sprintf(format, args...),
		param: param,
	}
}

// unsupported is that of a parameter that this server does not know what to do with.
func unsupported(param, format string, args ...any) *fault {
	f := badRequest(param, format, args...)
	f.code = "unsupported_parameter"
	return f
}

// tooLong is that of a prompt.
func tooLong(param, format string, args ...any) *fault {
	f := badRequest(param, format, args...)
	f.code = "context_length_exceeded"
	return f
}

// faultOf is how clients are told of an error.
func faultOf(err error) *fault {
	var f *fault
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, errBusy):
		return &fault{http.StatusTooManyRequests, "rate_limit_error", err.Error(), "", "queue_full"}
	case errors.Is(err, errClosed):
		return &fault{http.StatusServiceUnavailable, "unavailable_error", err.Error(), "", "shutting_down"}
	case errors.Is(err, context.DeadlineExceeded):
		return &fault{http.StatusGatewayTimeout, "timeout_error", "the request took too long", "", "timeout"}
	case errors.Is(err, context.Canceled):
		return &fault{statusGone, "client_error", "the client has gone, or said that it sends no more", "", ""}
	case errors.Is(err, errMemory):
		return &fault{http.StatusInsufficientStorage, "server_error", err.Error(), "", "out_of_memory"}
	case errors.Is(err, lm.ErrNonFinite):
		return &fault{
			http.StatusInternalServerError, "server_error", "the model gave a number that is not finite", "", "",
		}
	}
	return &fault{http.StatusInternalServerError, "server_error", err.Error(), "", ""}
}

// body is the fault as OpenAI's clients read it.
func (f *fault) body() any {
	nullable := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return map[string]any{"error": map[string]any{
		"message": f.message, "type": f.kind, "param": nullable(f.param), "code": nullable(f.code),
	}}
}

// write answers with the fault.
func (f *fault) write(w http.ResponseWriter) {
	switch f.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeJSON(w, f.status, f.body())
}

// writeJSON answers with a value. Clients that have gone, or do not read, are nobody's trouble.
func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil { // nothing but numbers that are not finite could do that, and none is let through
		status = http.StatusInternalServerError
		text = []byte(`{"error":{"message":"the answer cannot be written","type":"server_error"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience))
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}
