package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// What comes over the wire may be a stranger's. Here it is read: in full or not at all, within bounds, and texts so
// that a terminal shows them and does nothing else.

// Bounds on texts of others.
const (
	maxName    = 200  // of a worker
	maxReason  = 2000 // of a failure or a refusal
	maxSeconds = 10 * 365 * 24 * 3600
)

// Plain is a text of somebody else as a message may show it: what is not printable is written as an escape, and what is
// longer than limit bytes is cut.
func Plain(text string, limit int) string {
	var b strings.Builder
	for _, c := range text {
		if b.Len() >= limit {
			b.WriteString("…")
			break
		}

		if c == unicode.ReplacementChar || !unicode.IsPrint(c) {
			quoted := strconv.QuoteRuneToASCII(c)
			b.WriteString(quoted[1 : len(quoted)-1])
			continue
		}

		b.WriteRune(c)
	}

	return b.String()
}

// Decode reads JSON that somebody else wrote into v: one value, not null, with no field that v does not have.
func Decode(text []byte, v any) error {
	if bytes.Equal(bytes.TrimSpace(text), []byte("null")) {
		return errors.New("null")
	}

	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errors.New(Plain(err.Error(), maxReason))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}

	return nil
}

// readResult reads the result of an item.
func readResult(text []byte, id string) (r Result, err error) {
	if err := Decode(text, &r); err != nil {
		return Result{ID: id}, err
	}

	switch {
	case r.ID != id:
		err = errors.New("the result of another item")
	case r.Attempt < 1:
		err = fmt.Errorf("attempt %d", r.Attempt)
	case !(r.Seconds >= 0 && r.Seconds <= maxSeconds) || math.IsNaN(r.Seconds):
		err = fmt.Errorf("%g seconds", r.Seconds)
	case r.Failure != "" && r.Data != nil:
		err = errors.New("a failure with a result")
	}

	r.ID, r.Worker, r.Failure = id, Plain(r.Worker, maxName), Plain(r.Failure, maxReason)
	return r, err
}

// readSign reads what a worker says to the coordinator.
func readSign(text []byte) (s sign, err error) {
	if err := Decode(text, &s); err != nil {
		return sign{}, err
	}
	s.Worker, s.Reason = Plain(s.Worker, maxName), Plain(s.Reason, maxReason)
	return s, nil
}

// readOffer reads an offer, which is listed under a name.
func readOffer(text []byte, name string) (o Offer, err error) {
	if err := Decode(text, &o); err != nil {
		return o, fmt.Errorf("%w: %w", ErrOffer, err)
	}
	if err := o.withDefaults(); err != nil {
		return o, err
	}
	if o.Name != name {
		return o, fmt.Errorf("%w: listed as %s, and named %s", ErrOffer, Plain(name, maxName), o.Name)
	}

	return o, nil
}
