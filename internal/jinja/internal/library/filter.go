package library

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/pyvalue"
)

func length(x any, g Given) (any, error) {
	if s, ok := x.(string); ok {
		return int64(utf8.RuneCountInString(s)), nil
	}
	list, err := g.Iterate(x)
	return int64(len(list)), err
}

func filterAbs(x any, _ Given) (any, error) {
	switch x := x.(type) {
	case int64:
		if x == math.MinInt64 {
			return nil, errInt
		}
		return max(x, -x), nil
	case bool:
		n, _ := pyvalue.Int(x)
		return int64(n), nil
	case float64:
		return math.Abs(x), nil
	}

	return nil, typeError("abs", x)
}

func filterDefault(x any, g Given) (any, error) {
	_, missing := x.(*Undefined)
	if missing || g.is(1, "boolean", false) && !pyvalue.Truth(x) {
		return g.or(0, "default_value", ""), nil
	}
	return x, nil
}

func filterInt(x any, g Given) (any, error) {
	if n, ok := x.(int64); ok {
		return n, nil
	}

	if s, ok := x.(string); ok {
		base, ok := pyvalue.Int(g.or(1, "base", int64(10)))
		if !ok {
			return nil, typeError("base", g.or(1, "base", nil))
		}

		if n, ok, err := pyvalue.ParseInt(s, base); err != nil {
			return nil, errInt
		} else if ok {
			return n, nil
		}

		f, ok := pyvalue.ParseFloat(s)
		if !ok {
			return g.or(0, "default", int64(0)), nil
		}

		x = f
	}

	f, ok := pyvalue.Number(x)
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return g.or(0, "default", int64(0)), nil
	}

	if math.Abs(f) >= 1<<63 {
		return nil, errInt
	}

	return int64(f), nil
}

func filterFloat(x any, g Given) (any, error) {
	if s, ok := x.(string); ok {
		if f, ok := pyvalue.ParseFloat(s); ok {
			return f, nil
		}
	}
	if f, ok := pyvalue.Number(x); ok {
		return f, nil
	}
	return g.or(0, "default", 0.0), nil
}

func filterRegexReplace(x any, g Given) (any, error) {
	pattern, err := g.text(0, "pattern", nil)
	if err != nil {
		return nil, err
	}

	to, err := g.text(1, "repl", nil)
	if err != nil {
		return nil, err
	}

	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrType, err)
	}

	if strings.Contains(to, `\`) {
		return nil, fmt.Errorf("%w: regex_replace with groups in what replaces", ErrUnknown)
	}

	s, err := g.Str(x)
	if err != nil {
		return nil, err
	}

	total := len(s)
	s = re.ReplaceAllStringFunc(s, func(string) string {
		if total += len(to); total > MaxOutput {
			return ""
		}
		return to
	})

	if total > MaxOutput {
		return nil, g.PayText(total)
	}

	return s, g.PayText(len(s))
}

// onlyText is a text as it is; anything else is an error.
func (s *Env) onlyText(v any) (string, error) {
	text, ok := v.(string)
	if !ok {
		return "", typeError("replace", v)
	}
	return text, nil
}

// replacement makes the filter and the method replace, which differ in what they take for a text.
func replacement(text func(s *Env, v any) (string, error)) Action {
	return func(x any, g Given) (any, error) {
		missing := &Undefined{What: "what to replace, or what with"}
		var parts [2]string
		for i, name := range []string{"old", "new"} {
			v := g.or(i, name, missing)
			if v == missing {
				return nil, fmt.Errorf("%w: replace without %s", ErrType, name)
			}

			var err error
			if parts[i], err = text(g.Env, v); err != nil {
				return nil, err
			}
		}

		s, err := g.Str(x)
		if err != nil {
			return nil, err
		}

		n := -1
		if count := g.or(2, "count", nil); count != nil {
			var ok bool
			if n, ok = pyvalue.Int(count); !ok {
				return nil, typeError("count", count)
			}
		}

		return g.replace(s, parts[0], parts[1], n)
	}
}

// replace is s.replace(from, to, n), paid for before it is done.
func (g Given) replace(s, from, to string, n int) (any, error) {
	times := strings.Count(s, from)
	if n >= 0 {
		times = min(times, n)
	}

	if grow := len(to) - len(from); grow > 0 && times > MaxOutput/grow {
		return nil, g.PayText(MaxOutput + 1)
	} else if err := g.PayText(len(s) + times*grow); err != nil {
		return nil, err
	}

	return strings.Replace(s, from, to, n), nil
}

func filterRound(x any, g Given) (any, error) {
	if b, isBool := x.(bool); isBool {
		n, _ := pyvalue.Int(b)
		x = int64(n)
	}

	f, ok := pyvalue.Number(x)
	n, okN := pyvalue.Int(g.or(0, "precision", int64(0)))
	if !ok || !okN {
		return nil, typeError("round", x)
	}

	scale := math.Pow(10, float64(n))
	switch method := pyvalue.Str(g.or(1, "method", "common")); method {
	case "common":
		if i, isInt := x.(int64); isInt && n >= 0 {
			return i, nil
		} else if isInt {
			return int64(pyvalue.Round(f, n)), nil
		}
		return pyvalue.Round(f, n), nil
	case "ceil":
		return (math.Ceil(f*scale) + 0) / scale, nil // Python's ceil is an int, which has no -0
	case "floor":
		return math.Floor(f*scale) / scale, nil
	default:
		return nil, fmt.Errorf("%w: rounding %q; known: common, ceil, floor", ErrUnknown, method)
	}
}

func filterTrim(x any, g Given) (any, error) {
	s, err := g.Str(x)
	if err != nil {
		return nil, err
	}
	if chars, ok := g.or(0, "chars", nil).(string); ok {
		return strings.Trim(s, chars), nil
	}
	return pyvalue.Strip(s), nil
}

// escapes of HTML.
var html = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

func escapeHTML(s string) string { return html.Replace(s) }

func filterAttribute(x any, g Given) (any, error) {
	name, err := g.text(0, "name", nil)
	if err != nil {
		return nil, err
	}

	if _, ok := x.(*pyvalue.Dict); ok { // keys are no attributes
		if f, ok := Methods["dict"][name]; ok {
			return &Native{name, x, f}, nil
		}
		return &Undefined{What: fmt.Sprintf("attribute %q of a dict", name)}, nil
	}

	return g.Attribute(x, name)
}

func filterCenter(x any, g Given) (any, error) {
	width, err := g.int(0, "width", 80)
	if err != nil {
		return nil, err
	}
	s, err := g.Str(x)
	if err != nil {
		return nil, err
	}
	return justify(s, width, " ", 'c', g)
}

// justify brings a text to a width, with the text on the left, the right or in the centre.
func justify(s string, width int, fill string, side byte, g Given) (any, error) {
	if utf8.RuneCountInString(fill) != 1 {
		return nil, fmt.Errorf("%w: %q is not one character", ErrType, fill)
	}

	short := width - utf8.RuneCountInString(s)
	if short <= 0 {
		return s, nil
	}
	if err := g.PayText(short); err != nil {
		return nil, err
	}

	left := 0
	switch side {
	case 'r':
		left = short
	case 'c': // as Python divides what is odd
		left = short/2 + short&width&1
	}

	return strings.Repeat(fill, left) + s + strings.Repeat(fill, short-left), nil
}

func filterFormat(x any, g Given) (any, error) {
	s, err := g.Str(x)
	if err != nil {
		return nil, err
	}

	if len(g.Names) == 0 {
		return g.percent(s, pyvalue.Tuple(g.List))
	}
	if len(g.List) > 0 {
		return nil, fmt.Errorf("%w: places and names at once", ErrType)
	}

	d, err := globalDict(nil, g)
	if err != nil {
		return nil, err
	}

	return g.percent(s, d)
}

func filterIndent(x any, g Given) (any, error) {
	s, isText := x.(string)
	if !isText {
		return nil, typeError("indent", x)
	}

	by, ok := g.or(0, "width", int64(4)).(string)
	if !ok {
		n, err := g.int(0, "width", 4)
		if err == nil {
			err = g.PayText(max(n, 0))
		}
		if err != nil {
			return nil, err
		}
		by = strings.Repeat(" ", max(n, 0))
	}

	lines := splitAtEnds(s+"\n", false)
	if err := g.PayText((len(lines) + 1) * (len(by) + 1)); err != nil {
		return nil, err
	}

	for i, line := range lines {
		// The first line is indented even if it is empty, as Jinja does.
		if i == 0 && g.is(1, "first", false) || i > 0 && (line != "" || g.is(2, "blank", false)) {
			lines[i] = by + line
		}
	}

	return strings.Join(lines, "\n"), nil
}

func filterTruncate(x any, g Given) (any, error) {
	s, isText := x.(string)
	if !isText {
		return nil, typeError("truncate", x)
	}

	n, err := g.int(0, "length", 255)
	if err != nil {
		return nil, err
	}

	leeway := 5
	if g.or(3, "leeway", nil) != nil {
		if leeway, err = g.int(3, "leeway", 5); err != nil {
			return nil, err
		}
	}

	end, err := g.text(2, "end", "...")
	if err != nil {
		return nil, err
	}

	runes := []rune(s)
	size := utf8.RuneCountInString(end)
	if n < size || leeway < 0 {
		return nil, fmt.Errorf("%w: length %d, leeway %d, end of %d", ErrType, n, leeway, size)
	}
	if len(runes) <= n+leeway {
		return s, nil
	}

	cut := string(runes[:n-size])
	if at := strings.LastIndexByte(cut, ' '); at >= 0 && !g.is(1, "killwords", false) {
		cut = cut[:at]
	}

	return cut + end, nil
}

// words matches words.
var words = regexp.MustCompile(`[\p{L}\p{N}_]+`)

func filterWordCount(x any, g Given) (any, error) {
	s, err := g.Str(x)
	return int64(len(words.FindAllStringIndex(s, -1))), err
}

// filterJSON is tojson: Jinja's sorts keys and escapes what means something in HTML; that of chat templates
// does neither.
func filterJSON(x any, g Given) (any, error) {
	plain := g.PlainJSON
	style := pyvalue.JSON{
		ASCII: !plain || g.is(1, "ensure_ascii", false), HTML: !plain, Sort: !plain || g.is(3, "sort_keys", false),
		MaxBytes: MaxOutput,
	}

	if !plain && (len(g.List) > 1 || g.or(1, "ensure_ascii", nil) != nil || g.or(2, "separators", nil) != nil ||
		g.or(3, "sort_keys", nil) != nil) {
		return nil, fmt.Errorf("%w: arguments of tojson beside indent", ErrUnknown)
	}

	if separators := g.or(2, "separators", nil); separators != nil {
		list, err := g.Iterate(separators)
		if err != nil || len(list) != 2 {
			return nil, typeError("separators", separators)
		}
		style.Item, style.Key = pyvalue.Str(list[0]), pyvalue.Str(list[1])
	}

	switch indent := g.or(0, "indent", nil).(type) {
	case nil:
	case string:
		style.Lines, style.Indent = true, indent
	default:
		n, err := g.int(0, "indent", 0)
		if err != nil || n > MaxNest {
			return nil, typeError("indent", indent)
		}
		style.Lines, style.Indent = true, strings.Repeat(" ", max(n, 0))
	}

	s, err := style.Dumps(x)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrType, err)
	}

	return s, g.PayText(len(s))
}
