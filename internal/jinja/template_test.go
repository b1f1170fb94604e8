package jinja

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// names are those that the tests' templates see.
func names(t testing.TB) *pyvalue.Dict {
	v, err := pyvalue.ParseJSON(
		[]byte(`{"question": " What? ", "n": 3, "f": 2.5, "yes": true, "none": null, "text": "one two  three",
		"choices": {"text": ["a", "b", "it's"], "label": ["A", "B", "C"]}, "answerKey": "B", "list": [3, 1, 2],
		"rows": [{"k": "x", "v": 1}, {"k": "y", "v": 2}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*pyvalue.Dict)
}

// What Jinja 3.1 with StrictUndefined and keep_trailing_newline renders.
func TestRender(t *testing.T) {
	for _, c := range [][2]string{
		{"plain\n", "plain\n"},
		{"Q: {{question.strip()}}\nA:", "Q: What?\nA:"},
		{"{{ choices.label.index(answerKey) }}", "1"},
		{"{{choices.text}}", `['a', 'b', "it's"]`},
		{"{{choices['text'][0]}}{{choices.text[-1]}}", "ait's"},
		{"{{text.split(' ')[:-1]|join(' ')}}", "one two "},
		{"{{' '+text.split(' ')[-1]}}", " three"},
		{"{{text.split()|length}}", "3"},
		{"{{[question, n]}}", "[' What? ', 3]"},
		{"{{ (n|int) - 1 }}", "2"},
		{"{{ 'a' ~ n ~ f ~ yes ~ none }}", "a32.5TrueNone"},
		{"{{ 'big' if n > 2 and yes else 'small' }}", "big"},
		{"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "3 -4 2 3.5"},
		{"{% set x = n * 2 %}{{ x }}", "6"},
		{"{% if n == 3 %}three{% elif n %}some{% else %}none{% endif %}", "three"},
		{
			"{% for r in rows %}{{loop.index}}.{{r.k}}={{r.v}}{% if not loop.last %}, {% endif %}{% endfor %}",
			"1.x=1, 2.y=2",
		},
		{"{% for c in choices.text if c != 'b' %}{{c}};{% else %}x{% endfor %}", "a;it's;"},
		{"{% for a, b in rows[0].items() %}{{a}}{{b}}{% endfor %}", "kxv1"},
		{"a  {%- if yes -%}  b  {%- endif %}  c", "ab  c"},
		{"{# note #}x{{ '}}' }}", "x}}"},
		{"{{ list|sort|join(',') }}{{ list|max }}", "1,2,33"},
		{"{{ text.replace('two', '2')|upper|trim }}", "ONE 2  THREE"},
		{"{{ missing|default('d') }}{{ missing is defined }}{{ n is not none }}", "dFalseTrue"},
		{"{{ 'b' in choices.text }}{{ 'z' not in text }}", "TrueTrue"},
		{"{{ text[4:7] }}{{ list[::-1] }}", "two[2, 1, 3]"},
		{"{{ rows|join('-', attribute='k') }}", "x-y"},
		{"{{ {'a': 1}['a'] }}{{ (1, 2)|length }}", "12"},
		{"{{ ['A','B'][range(5)|length - 4] }}", "B"},
		{"{{ \"cat's o-k\".title() }} {{ \"cat's o-k\"|title }}", "Cat'S O-K Cat's O-K"},
		{"{{ 'straße ŉ ﬁ'|upper }} {{ 'İ ΟΔΟΣ'|lower }} {{ 'ﬁN'|capitalize }}", "STRASSE ʼN FI i̇ οδος Fin"},
		{
			"{{ {'b': '<é\U0001F600&>', 'a': [1, 2.0, none, true, \"'\"]}|tojson }}",
			`{"a": [1, 2.0, null, true, "\u0027"], "b": "\u003c\u00e9\ud83d\ude00\u0026\u003e"}`,
		},
		{
			"{{ ['b', 'A', 'B', 'a']|sort }}{{ ['b', 'A', 'B', 'a']|sort(case_sensitive=true) }}",
			"['A', 'a', 'b', 'B']['A', 'B', 'a', 'b']",
		},
		{"{{ ['b', 'A', 'C']|max }}{{ ['b', 'A', 'C']|min }}{{ ['a', 'A', 'b']|unique|list }}", "CA['a', 'b']"},
		{
			"{{ 2.675|round(2) }} {{ 7|round }} {{ 2.5|round }} {{ 1234.5|round(-2) }} {{ 7|round(0, 'ceil') }}",
			"2.67 7 2.0 1200.0 7.0",
		},
		{
			"{{ '0x1f'|int(0, 16) }} {{ '１２'|int }} {{ ' 1_000 '|int }} {{ '3.9'|int }} {{ 'x'|int(5) }} " +
				"{{ 'z'|int(0, 36) }}",
			"31 12 1000 3 5 35",
		},
		{"{{ -7|abs }} {{ -2**2 }} {{ 2**-1 }} {{ 2**3**2 }} {{ +n }} {{ -n is defined }}", "7 4 0.5 64 3 True"},
		{
			"{{ 1e3 }} {{ 0x10 }} {{ 1_000 }} {{ 2.5e-1 }} {{ [0]*3 }} {{ 2*[1] }}",
			"1000.0 16 1000 0.25 [0, 0, 0] [1, 1]",
		},
		{
			"{{ (1, 'a') }}{{ (1,) }}{{ () }}{{ [1] == (1,) }}{{ (1, 2)[1:] + (3,) }}{{ (1,) * 2 }}",
			"(1, 'a')(1,)()False(2, 3)(1, 1)",
		},
		{
			"{% set a, b = 1, 'x' %}{{ b }}{{ a }}{{ 2 in (1, 2) }}{{ (4, 5).index(5) }}{{ (1, 2)|list }}" +
				"{{ rows[0].items()|list }}",
			"x1True1[1, 2][('k', 'x'), ('v', 1)]",
		},
		{"{{ -0.0 }} {{ -(1) }}", "-0.0 -1"},
		{"{{ 'HELLO world'.capitalize() }}", "Hello world"},
	} {
		source, want := c[0], c[1]
		tmpl, err := Parse(source, Tasks())
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}

		if got, err := tmpl.Render(t.Context(), names(t)); got != want || err != nil {
			t.Errorf("%s: %q %v, want %q", source, got, err, want)
		}
	}
}

func TestFaults(t *testing.T) {
	for source, want := range map[string]error{
		"{{ question | shuffle }}": ErrUnknown, "{{ question.encode() }}": ErrUnknown, "{% include 'x' %}": ErrUnknown,
		"{{ g() }}": ErrUnknown, "{{ f() }}": ErrType,
		"{{ question": ErrSyntax, "{% if n %}": ErrSyntax, "{% endif %}": ErrSyntax, "{{ 1 + }}": ErrSyntax,
		"{{ 'a }}": ErrSyntax, "{{ n; }}": ErrSyntax,
		"{% for x in list %}{% endif %}": ErrSyntax, "{{ n is fine }}": ErrUnknown,
		"{{ missing }}": ErrUndefined, "{{ choices.texts }}": ErrUndefined, "{{ list[9] }}": ErrUndefined,
		"{{ missing.x|default(1) }}{{ missing }}": ErrUndefined,
		"{{ n + text }}": ErrType, "{{ n < text }}": ErrType, "{{ choices.label.index('Z') }}": ErrType,
		"{{ 1 // 0 }}": ErrType, "{% for x in n %}{% endfor %}": ErrType,
		"{{ 9223372036854775807 + 1 }}": ErrType, "{{ 10**30 }}": ErrType, "{{ 2.0**99999 }}": ErrType,
		"{{ (-1)**0.5 }}": ErrType, "{{ 0**-1 }}": ErrType, "{{ 9223372036854775808 }}": ErrType,
		"{{ 4611686018427387904 * 2 }}": ErrType, "{{ '9223372036854775808'|int }}": ErrType,
		"{{ ','.join([1, 2]) }}": ErrType, "{{ {[1]: 'a'} }}": ErrType, "{{ list|max(attribute='a') }}": ErrUndefined,
		"{{ list|unique(attribute='a') }}": ErrUndefined, "{{ list|upper(1) }}": ErrUnknown,
		"{{ list|sort(by=1) }}":   ErrUnknown,
		"{{ 'x' * 99999999999 }}": ErrCost,
		"{{ " + strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100) + " }}": ErrCost,
		"{{ range(99999999) }}": ErrCost, strings.Repeat("{% if n %}", 80): ErrCost,
		"{% set a = text*99999 %}" + strings.Repeat("{% set a = a ~ a %}", 60): ErrCost,
	} {
		tmpl, err := Parse(source, Tasks())
		if err == nil {
			_, err = tmpl.Render(t.Context(), names(t))
		}
		if !errors.Is(err, want) {
			t.Errorf("%.60s: %v, want %v", source, err, want)
		}
	}

	if _, err := Parse("{{ q | shuffle }}", Tasks()); !strings.Contains(err.Error(), `"shuffle"; known: abs, `) {
		t.Errorf("the known filters are not listed: %v", err)
	}
}

// Whatever a template does with loops, growing texts and values that hold each other, a rendering ends after a
// bounded amount of work.
func TestCostIsBounded(t *testing.T) {
	doubled := strings.Repeat("{% set a = [a, a] %}", 40)
	for _, source := range []string{
		"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}y",
		"{{ text|replace('', 'x'*100000)|replace('x', 'y'*100000) }}",
		"{{ ('x'*100000)|regex_replace('x', 'y'*100000) }}",
		"{{ (['x'*100000]*100000)|join }}", "{{ ('x'*100000).join(['a']*100000) }}",
		"{% set a = [1] %}" + doubled + "{{ a }}", "{% set a = [1] %}" + doubled + "{{ a == a }}",
		"{% set a = [1] %}" + doubled + "{{ a|tojson }}",
		"{{ text" + strings.Repeat("[0]", 200_000) + " }}", "{{ 1" + strings.Repeat("+1", 200_000) + " }}",
		"{{ text" + strings.Repeat("|upper", 2000) + " }}",
		"{{ [0] * 999999999999 }}", "{{ 'ab' * 9223372036854775807 }}", "{{ (','*60000000).split(',')|length }}",
		"{{ range(9999999)|list|unique }}",
		"{% for i in range(4000000) %}{{ range(4000000)|length }}{% endfor %}",
		"{{ " + strings.Repeat("not (", 70) + "1" + strings.Repeat(")", 70) + " }}",
	} {
		tmpl, err := Parse(source, Tasks())
		if err == nil {
			_, err = tmpl.Render(t.Context(), names(t))
		}
		if !errors.Is(err, ErrCost) {
			t.Errorf("%.60s: %v, want %v", source, err, ErrCost)
		}
	}
}

// TestErrorsNameLines: faults of reading and of rendering say in which line they are.
func TestErrorsNameLines(t *testing.T) {
	for source, line := range map[string]string{
		"a\n\n{{ n + }}": "line 3: ", "a\n{% if n %}\n{{ missing }}\n{% endif %}": "line 3: ",
		"{# \n\n #}\n{% raw %}\n{% endraw %}\n{{ n|shuffle }}":       "line 6: ",
		"{% for x in list %}\n{{ x.y }}\n{% endfor %}":               "line 2: ",
		"{% macro m() %}\n{{ 1 // 0 }}\n{% endmacro %}\n\n{{ m() }}": "line 2: ", "x\n{% include 'a' %}": "line 2: ",
	} {
		for _, o := range []Options{Tasks(), {TrimBlocks: true, LstripBlocks: true, Strict: true}} {
			tmpl, err := Parse(source, o)
			if err == nil {
				_, err = tmpl.Render(t.Context(), names(t))
			}
			if err == nil || !strings.HasPrefix(err.Error(), line) {
				t.Errorf("%q: %v, want %s…", source, err, line)
			}
		}
	}
}

// TestRenderEnds: a rendering ends when its context does.
func TestRenderEnds(t *testing.T) {
	tmpl, err := Parse("{% for a in range(50000) %}{{ a }}{% endfor %}", Tasks())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tmpl.Render(ctx, names(t)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{{ a.b[0]|join(', ') }}", "{% for x in list %}{{ loop.index ~ x }}{% break %}{% endfor %}",
		"{%- set x = (1, 'a') -%}{{x}}", "{{ {'a': [1], 2: none} }}", "{{ text[1:2:-1] }}",
		"{% macro m(a, b=1) %}{{ caller() }}{{ varargs }}{% endmacro %}{% call m(1) %}x{% endcall %}",
		"{% set ns = namespace(a=1) %}{% set ns.a = ns %}{{ ns == ns }}{{ [ns] == [ns] }}",
		"{{ '%s %5.2f' % ('a', f) }}{{ '{:>5}{x!r}'.format(1, x=2) }}",
		"{% filter upper|trim %}{% raw %}{{{% endraw %}{% endfilter %}",
		"{% with a = 1 %}{{ rows|groupby('k')|map('last')|list }}{% endwith %}",
		"{{ rows|sort(attribute='v,k')|map(attribute='k', default=1)|select('in', 'xy')|batch(2, " +
			"'z')|list|tojson(indent=2) }}",
		"  {%+ if n is divisibleby 3 %}\n{{ text|truncate(5)|center(9)|indent }}{% endif -%} x",
		"{{ missing|default(text.zfill(9)) }}{{ list|slice(2)|list }}{{ ' a b '.rsplit(None, 1) }}",
	} {
		f.Add(s)
	}

	n := names(f)
	f.Fuzz(func(t *testing.T, s string) {
		defer fuzzlimit.Watch(t, len(s))()

		for _, o := range []Options{Tasks(), Chats(func() time.Time { return time.Unix(0, 0) })} {
			tmpl, err := Parse(s, o)
			if err != nil {
				continue
			}

			if out, err := tmpl.Render(t.Context(), n); err == nil && len(out) > 64<<20 {
				t.Errorf("%d bytes", len(out))
			}
		}
	})
}
