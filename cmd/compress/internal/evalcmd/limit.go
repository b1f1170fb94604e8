package evalcmd

import (
	"errors"
	"strconv"

	"github.com/modelcompress/compress/editeval/task"
)

// Limit is the flag that says how many documents are taken: a number, or a share below 1.
type Limit struct{ Options *task.Options }

var errLimit = errors.New("want a whole number, or a share above 0 and below 1 such as 0.5")

// Set implements pflag.Value.
func (l Limit) Set(text string) error {
	if n, err := strconv.Atoi(text); err == nil {
		l.Options.Limit, l.Options.Share = n, 0
		return nil
	}
	x, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return errLimit
	case x > 0 && x < 1:
		l.Options.Limit, l.Options.Share = 0, x
	case x >= 1 && x == float64(int(x)): // 10.0, as the harness takes it
		l.Options.Limit, l.Options.Share = int(x), 0
	default:
		return errLimit
	}
	return nil
}

// Type implements pflag.Value.
func (Limit) Type() string { return "int" }

// Reported is the value in reports, a number in either case.
func (l Limit) Reported() any {
	if l.Options.Share > 0 {
		return l.Options.Share
	}
	return l.Options.Limit
}

// String implements pflag.Value.
func (l Limit) String() string {
	switch {
	case l.Options == nil:
		return "0"
	case l.Options.Share > 0:
		return strconv.FormatFloat(l.Options.Share, 'g', -1, 64)
	}
	return strconv.Itoa(l.Options.Limit)
}
