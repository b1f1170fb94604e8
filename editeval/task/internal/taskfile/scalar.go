package taskfile

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// The harness reads YAML 1.1, in which an unquoted yes is true and 1e5 is text; the parser here reads YAML 1.2. What
// stands unquoted is therefore taken by the older rules, and refused where these make of it what nobody expects: 010
// is eight, 1:30 ninety.
var (
	truths      = []string{"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}
	falsehoods  = []string{"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}
	wholes      = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*)$`)
	fractions   = regexp.MustCompile(`^([-+]?[0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?$`)
	notFinite   = regexp.MustCompile(`^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
	otherNumber = regexp.MustCompile(
		`^([-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])*` +
			`|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?)$`,
	)
	dates = regexp.MustCompile(
		`^([0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}` +
			`(\.[0-9]*)?([ \t]*(Z|[-+][0-9]{1,2}(:?[0-9]{2})?))?)$`,
	)
)

// plain makes a value of an unquoted scalar.
func (d *document) plain(p strictyaml.Place, text string) (any, error) {
	switch {
	case slices.Contains(truths, text):
		return true, nil
	case slices.Contains(falsehoods, text):
		return false, nil
	case wholes.MatchString(text):
		if v, err := strconv.ParseInt(text, 10, 64); err == nil {
			return v, nil
		}
		return strconv.ParseFloat(text, 64)
	case fractions.MatchString(text):
		return strconv.ParseFloat(text, 64)
	case notFinite.MatchString(text):
		return notANumber(text), nil
	case d.free: // of no influence
	case dates.MatchString(text):
		return nil, d.at(p, ErrUnsupported, "%s without quotes is a date in YAML 1.1 (HINT: write %q)", text, text)
	case otherNumber.MatchString(text):
		return nil, d.at(
			p,
			ErrUnsupported,
			"%s without quotes is another number in YAML 1.1 (HINT: write %q, or the number in decimals)",
			text,
			text,
		)
	}

	return text, nil
}

func notANumber(text string) float64 {
	switch {
	case strings.ContainsAny(text, "aA"):
		return math.NaN()
	case text[0] == '-':
		return math.Inf(-1)
	}
	return math.Inf(1)
}
