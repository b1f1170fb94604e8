package jinja

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/modelcompress/compress/internal/jinja/internal/library"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// row is a template and what jinja2 makes of it; testdata/cases.py compares the rows with jinja2 and fills them in. One
// that begins with an exclamation mark is a kind of error. What is refused here alone is !unknown (a part of Jinja that
// is left out), !cost and !limit (a wrong type here, but something of little use in Jinja).
type row struct{ template, want string }

// failures are the kinds of errors that rows name.
var failures = map[string]error{
	"!undefined": ErrUndefined, "!syntax": ErrSyntax, "!type": ErrType, "!unknown": ErrUnknown, "!cost": ErrCost,
	"!limit": ErrType,
}

func checkRows(t *testing.T, o Options, rows []row) {
	t.Helper()
	for _, r := range rows {
		got, err := "", error(nil)
		tmpl, err := Parse(r.template, o)
		if err == nil {
			got, err = tmpl.Render(t.Context(), pyvalue.NewDict())
		}

		kind, fails := failures[r.want]
		switch {
		case fails && err == nil:
			t.Errorf("%s\n got %q, want %s", r.template, got, r.want)
		case fails && !errors.Is(err, kind) && !refusedEarlier(r.want, err):
			t.Errorf("%s\n got %v, want %s", r.template, err, r.want)
		case !fails && (err != nil || got != r.want):
			t.Errorf("%s\n got %q %v\nwant %q", r.template, got, err, r.want)
		}
	}
}

// refusedEarlier reports whether an error is of a kind that differs from jinja2's because of when it is found: unknown
// names of filters, tests and arguments are errors of the syntax there, of the type, or of what is not defined; that
// something is not defined is one of the type where Python looks at it first.
func refusedEarlier(want string, err error) bool {
	if want == "!type" && (errors.Is(err, ErrRaised) || errors.Is(err, ErrUndefined)) {
		return true
	}
	return want != "!unknown" && errors.Is(err, ErrUnknown)
}

// Filters on what they are for, on what is empty, and on what they refuse.
var filterRows = []row{
	{`{{ 3|abs }} {{ -3|abs }} {{ -2.5|abs }} {{ true|abs }} {{ -0.0|abs }}`, `3 3 2.5 1 0.0`},
	{`{{ 'a'|abs }}`, `!type`},
	{`{{ none|abs }}`, `!type`},
	{`{{ missing|abs }}`, `!type`},
	{`{{ 'abc'|attr('upper') is defined }}|{{ {'a': 1}|attr('a') is defined }}`, `True|False`},
	{`{{ {'a': 1}|attr('items') is callable }}`, `True`},
	{`{{ 'abc'|attr('nothing') }}`, `!undefined`},
	{
		`{{ [1, 2, 3, 4, 5]|batch(2)|list }}|{{ [1, 2, 3]|batch(2, 'x')|list }}`,
		`[[1, 2], [3, 4], [5]]|[[1, 2], [3, 'x']]`,
	},
	{`{{ [1, 2]|batch(2, 'x')|list }}|{{ []|batch(2, 'x')|list }}`, `[[1, 2]]|[]`},
	{`{{ 'abc'|batch(2)|list }}|{{ {'a': 1, 'b': 2}|batch(1)|list }}`, `[['a', 'b'], ['c']]|[['a'], ['b']]`},
	{`{{ [1]|batch(3, none)|list }}|{{ [1]|batch(fill_with=0, linecount=3)|list }}`, `[[1]]|[[1, 0, 0]]`},
	{`{{ 5|batch(2)|list }}`, `!type`},
	{`{{ 'hELLO wORLD'|capitalize }}|{{ ''|capitalize }}|{{ 'ßa'|capitalize }}`, `Hello world||Ssa`},
	{`{{ 12|capitalize }}|{{ true|capitalize }}`, `12|True`},
	{`{{ 'ab'|center(5) }}|{{ 'abc'|center(6) }}|{{ 'ab'|center(1) }}|{{ 'é'|center(4) }}`, `  ab | abc  |ab| é  `},
	{`{{ ''|center(3) }}|{{ 'a'|center|length }}`, `   |80`},
	{`{{ 'ab'|center('5') }}`, `!type`},
	{`{{ [1, 2]|count }}|{{ 'é😀'|count }}|{{ {'a': 1}|count }}|{{ (1,)|count }}`, `2|2|1|1`},
	{`{{ ''|count }}|{{ range(7)|count }}`, `0|7`},
	{`{{ 5|count }}`, `!type`},
	{`{{ none|length }}`, `!type`},
	{`{{ missing|length }}`, `!undefined`},
	{`{{ missing|d('x') }}|{{ missing|default }}|{{ none|default('x') }}`, `x||None`},
	{`{{ none|default('x', true) }}|{{ ''|d('x', true) }}|{{ 0|d('x', boolean=true) }}`, `x|x|x`},
	{`{{ 1|d('x', true) }}`, `1`},
	{`{{ missing|default(default_value='y') }}|{{ {'a': 1}.b|default('z') }}`, `y|z`},
	{`{{ [1][3]|default(9) }}`, `9`},
	{`{{ missing.deep|default('x') }}`, `!undefined`},
	{
		`{{ {'b': 1, 'A': 2, 'c': 0}|dictsort }}|{{ {'b': 1, 'A': 2}|dictsort(true) }}`,
		`[('A', 2), ('b', 1), ('c', 0)]|[('A', 2), ('b', 1)]`,
	},
	{`{{ {'b': 1, 'A': 2, 'c': 0}|dictsort(by='value') }}`, `[('c', 0), ('b', 1), ('A', 2)]`},
	{
		`{{ {'b': 1, 'A': 2, 'c': 0}|dictsort(false, 'value', true) }}|{{ {}|dictsort }}`,
		`[('A', 2), ('b', 1), ('c', 0)]|[]`,
	},
	{`{{ {2: 'a', 1.5: 'b'}|dictsort }}`, `[(1.5, 'b'), (2, 'a')]`},
	{`{{ {'b': 'x', 'a': 'X'}|dictsort(by='value') }}`, `[('b', 'x'), ('a', 'X')]`},
	{`{{ {'b': 1, 'a': 1}|dictsort(by='value', reverse=true) }}`, `[('b', 1), ('a', 1)]`},
	{`{{ {'a': 1}|dictsort(by='size') }}`, `!type`},
	{`{{ {'a': 1, 2: 2}|dictsort }}`, `!type`},
	{`{{ [1]|dictsort }}`, `!type`},
	{
		`{{ '<a href="x">it\'s & so</a>'|e }}|{{ '<'|escape }}|{{ 5|e }}|{{ none|e }}`,
		`&lt;a href=&#34;x&#34;&gt;it&#39;s &amp; so&lt;/a&gt;|&lt;|5|None`,
	},
	{`{{ '&amp;'|forceescape }}`, `&amp;amp;`},
	{`{{ [3, 1]|first }} {{ 'ab'|first }} {{ {'k': 1}|first }} {{ (5, 6)|first }}`, `3 a k 5`},
	{`{{ []|first }}`, `!undefined`},
	{`{{ ''|first }}`, `!undefined`},
	{`{{ 5|first }}`, `!type`},
	{`{{ '2.5'|float }}|{{ 'x'|float }}|{{ 'x'|float(1.5) }}|{{ none|float }}`, `2.5|0.0|1.5|0.0`},
	{`{{ true|float }}|{{ ' 1_0.5 '|float }}|{{ 'inf'|float }}|{{ 7|float }}`, `1.0|10.5|inf|7.0`},
	{`{{ []|float(default='d') }}`, `d`},
	{`{{ '%s-%d'|format('a', 3) }}|{{ '%(x)s'|format(x=1) }}|{{ '100%%'|format }}`, `a-3|1|100%`},
	{`{{ '%s'|format([1, 2]) }}`, `[1, 2]`},
	{`{{ '%d'|format('x') }}`, `!type`},
	{`{{ '%s %s'|format(1) }}`, `!type`},
	{`{{ '%(x)s'|format(1) }}`, `!type`},
	{
		`{% for g, of in [{'k': 'b', 'v': 1}, {'k': 'a'}, {'k': 'B', 'v': 3}]|groupby('k') %}{{ g }}{{ of }}{% endfor %}`,
		`a[{'k': 'a'}]b[{'k': 'b', 'v': 1}, {'k': 'B', 'v': 3}]`,
	},
	{
		`{% for g, of in [{'k': 'b'}, {'k': 'B'}]|groupby('k', case_sensitive=true) %}{{ g }}{{ of|length }} {% endfor %}`,
		`B1 b1 `,
	},
	{
		`{% for g, items in [{'k': 2}, {}, {'k': 1}]|groupby('k', default=0) %}{{ g }}{{ items|length }} {% endfor %}`,
		`01 11 21 `,
	},
	{
		`{% for g in [('a', 1), ('b', 2), ('a', 3)]|groupby(0) %}{{ g.grouper }}{{ g.list }} {% endfor %}`,
		`a[('a', 1), ('a', 3)] b[('b', 2)] `,
	},
	{
		`{% for g in [{'k': {'n': 2}}, {'k': {'n': 1}}]|groupby('k.n') %}{{ g[0] }}{% endfor %}{{ []|groupby('k') }}`,
		`12[]`,
	},
	{`{{ [{'k': 1}, {}]|groupby('k') }}`, `!undefined`},
	{`{{ [{'k': 1}, {'k': 'a'}]|groupby('k') }}`, `!type`},
	{
		`{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}`,
		"a\n    b\n\n    c|a\n  b|  a\n  b",
	},
	{`{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb'|indent('> ', true) }}`, "a\n  \n  b|> a\n> b"},
	{`{{ 'a\u2028b\x0bc\r\nd'|indent(1)|tojson }}|{{ ''|indent(2, true)|tojson }}`, `"a\n b\n c\n d"|"  "`},
	{`{{ '\nx'|indent(2, true)|tojson }}|{{ 'x\n'|indent(2)|tojson }}`, `"  \n  x"|"x\n"`},
	{`{{ 'a\nb'|indent(0)|tojson }}|{{ 'a\nb'|indent(-3)|tojson }}`, `"a\nb"|"a\nb"`},
	{
		`{{ '\n\n'|indent(1, true, true)|tojson }} {{ 'a\n\n'|indent(1, false, true)|tojson }}`,
		`" \n \n " "a\n \n "`,
	},
	{`{{ 5|indent }}`, `!type`},
	{`{{ '12'|int }}|{{ '1.9'|int }}|{{ 'x'|int }}|{{ 'x'|int(7) }}`, `12|1|0|7`},
	{`{{ '0x1f'|int(base=16) }}|{{ '101'|int(0, 2) }}|{{ 3.99|int }}|{{ -3.99|int }}`, `31|5|3|-3`},
	{`{{ true|int }}|{{ none|int }}|{{ []|int(-1) }}|{{ ''|int }}|{{ '1_0'|int }}`, `1|0|-1|0|10`},
	{`{{ '1e3'|int }}|{{ 'nan'|int(5) }}|{{ 'inf'|int(6) }}`, `1000|5|6`},
	{`{{ '0b11'|int(base=0) }} {{ '08'|int(3, 0) }} {{ '١٢'|int }} {{ '-0x1F'|int(9, 16) }}`, `3 8 12 -31`},
	{`{{ 'a'|int('7') }} {{ 'zz'|int(none) }}`, `7 None`},
	{`{{ {'a': 1, 'b': [2]}|items|list }} {{ {}|items|list }}`, `[('a', 1), ('b', [2])] []`},
	{`{{ [1]|items|list }}`, `!type`},
	{`{{ 'ab'|items|list }}`, `!type`},
	{`{{ [1, 'a', none, 2.5]|join }}|{{ [1, 2]|join('-') }}|{{ 'abc'|join('.') }}`, `1aNone2.5|1-2|a.b.c`},
	{`{{ []|join(',') }}|{{ [{'a': 1}, {'a': 2}]|join(',', 'a') }}`, `|1,2`},
	{`{{ {'x': 1, 'y': 2}|join }}|{{ [1, 2]|join(0) }}`, `xy|102`},
	{`{{ [[1], [2]]|join(', ', attribute=0) }}`, `1, 2`},
	{`{{ 5|join }}`, `!type`},
	{`{{ [1, missing]|join }}`, `!undefined`},
	{`{{ [3, 1]|last }} {{ 'ab'|last }} {{ {'k': 1, 'l': 2}|last }}`, `1 b l`},
	{`{{ []|last }}`, `!undefined`},
	{
		`{{ 'héy'|list }} {{ {'a': 1}|list }} {{ (1, 2)|list }} {{ range(3)|list }}`,
		`['h', 'é', 'y'] ['a'] [1, 2] [0, 1, 2]`,
	},
	{`{{ 3|list }}`, `!type`},
	{`{{ 'ÀÉ İ ΣΑΣ'|lower }} {{ 5|lower }} {{ none|lower }}`, `àé i̇ σας 5 none`},
	{`{{ ['a', 'B']|map('upper')|list }}|{{ [{'n': 1}, {'n': 2}]|map(attribute='n')|list }}`, `['A', 'B']|[1, 2]`},
	{`{{ [{'n': 1}, {}]|map(attribute='n', default=0)|list }}`, `[1, 0]`},
	{`{{ [[1, 2], [3]]|map('length')|list }}`, `[2, 1]`},
	{`{{ ['a,b', 'c']|map('replace', ',', ';')|list }}`, `['a;b', 'c']`},
	{`{{ ['ab', 'c']|map('center', width=3)|list }}`, `[' ab', ' c ']`},
	{`{{ [[1, 5], [2]]|map(attribute=0)|list }}`, `[1, 2]`},
	{`{{ [{'a': {'b': [7]}}]|map(attribute='a.b.0')|list }}|{{ ''|map('upper')|list }}`, `[7]|[]`},
	{`{{ [1]|map|list }}`, `!type`},
	{`{{ [1]|map('nofilter')|list }}`, `!type`},
	{`{{ [{}]|map(attribute='n')|list|length }}`, `1`},
	{`{{ [{}]|map(attribute='n')|join }}`, `!undefined`},
	{`{{ [1, 3, 2]|max }}|{{ ['b', 'A', 'C']|max }}|{{ ['b', 'A', 'C']|max(true) }}`, `3|C|b`},
	{`{{ [{'v': 1}, {'v': 3}]|max(attribute='v') }}|{{ 'hello'|max }}`, `{'v': 3}|o`},
	{`{{ [1, 2.5, true]|max }}|{{ ['a', 'A']|max }}|{{ [[1, 2], [1, 3]]|max }}`, `2.5|a|[1, 3]`},
	{`{{ [1, 3, 2]|min }}|{{ ['b', 'A', 'C']|min }}`, `1|A`},
	{`{{ ['b', 'A', 'C']|min(case_sensitive=true) }}`, `A`},
	{`{{ [{'v': 2, 'k': 'x'}, {'v': 2, 'k': 'y'}]|min(attribute='v') }}`, `{'v': 2, 'k': 'x'}`},
	{`{{ []|max }}`, `!undefined`},
	{`{{ [1, 'a']|max }}`, `!type`},
	{`{{ [none, none]|min }}`, `!type`},
	{`{{ [{}, {}]|min(attribute='v') }}`, `!undefined`},
	{`{{ [1, 2, 3, 4]|reject('odd')|list }}|{{ [0, 1, '', 'a', none]|reject|list }}`, `[2, 4]|[0, '', None]`},
	{`{{ [1, 5]|reject('gt', 3)|list }}|{{ []|reject('odd')|list }}`, `[1]|[]`},
	{`{{ [{'v': 1}, {'v': 0}, {'v': 2}]|rejectattr('v')|map(attribute='v')|list }}`, `[0]`},
	{`{{ [{'v': 1}, {'v': 2}]|rejectattr('v', '==', 2)|map(attribute='v')|list }}`, `[1]`},
	{`{{ [{}, {'v': 1}]|rejectattr('v', 'defined')|list }}`, `[{}]`},
	{`{{ 'aaa'|replace('a', 'b') }}|{{ 'aaa'|replace('a', 'b', 2) }}`, `bbb|bba`},
	{`{{ 'ab'|replace('', '-') }}|{{ 'ab'|replace('', '-', 2) }}|{{ 1213|replace(1, 'x') }}`, `-a-b-|-a-b|x2x3`},
	{`{{ 'a'|replace('a', 5) }}|{{ 'aaa'|replace('aa', 'b') }}`, `5|ba`},
	{`{{ 'abc'|replace('x', 'y') }}|{{ 'aa'|replace('a', 'b', 0) }}`, `abc|aa`},
	{`{{ 'aa'|replace(old='a', new='b', count=-1) }}`, `bb`},
	{`{{ none|replace('None', 'x') }} {{ [1]|replace('[', '(') }}`, `x (1]`},
	{`{{ 'a'|replace('a') }}`, `!type`},
	{`{{ 'aa'|replace('a', 'b', 'c') }}`, `!type`},
	{`{{ [1, 2, 3]|reverse|list }}|{{ 'abc'|reverse }}|{{ ''|reverse }}`, `[3, 2, 1]|cba|`},
	{`{{ {'a': 1, 'b': 2}|reverse|list }}|{{ (1, 2)|reverse|list }}|{{ 'é😀'|reverse }}`, `['b', 'a']|[2, 1]|😀é`},
	{`{{ 5|reverse }}`, `!type`},
	{`{{ 2.5|round }}|{{ 3.5|round }}|{{ 2.567|round(2) }}|{{ 2.567|round(2, 'floor') }}`, `2.0|4.0|2.57|2.56`},
	{`{{ 2.561|round(2, 'ceil') }}|{{ 42|round }}|{{ 1234|round(-2) }}|{{ 1250|round(-2) }}`, `2.57|42|1200|1200`},
	{`{{ -2.5|round }}|{{ 7|round(1, 'floor') }}|{{ true|round }}|{{ 42.55|round(1) }}`, `-2.0|7.0|1|42.5`},
	{`{{ 1e300|round(3) }}`, `1e+300`},
	{`{{ 15|round(-1, 'ceil') }}|{{ 15|round(-1, 'floor') }}|{{ -0.5|round(0, 'ceil') }}`, `20.0|10.0|0.0`},
	{`{{ 0.1|round(method='ceil') }}|{{ 25.0|round(-1) }}`, `1.0|20.0`},
	{`{{ 1.5|round(0, 'up') }}`, `!type`},
	{`{{ 'a'|round }}`, `!type`},
	{`{{ 1.5|round('1') }}`, `!type`},
	{`{{ '<b>'|safe }} {{ 5|safe }}`, `<b> 5`},
	{`{{ [1, 2, 3]|select('odd')|list }}|{{ [0, 1, '', 'a', none]|select|list }}`, `[1, 3]|[1, 'a']`},
	{`{{ [1, 5]|select('in', [5])|list }}|{{ 'abc'|select('ne', 'b')|list }}`, `[5]|['a', 'c']`},
	{`{{ [1, 2]|select('divisibleby', num=2)|list }}`, `[2]`},
	{`{{ [1]|select('nothing')|list }}`, `!type`},
	{`{{ [1]|select('odd', 1)|list }}`, `!type`},
	{`{{ ['a']|select('odd')|list }}`, `!type`},
	{`{{ 5|select('odd')|list }}`, `!type`},
	{`{{ [{'v': 1, 'k': 'a'}, {'v': 0, 'k': 'b'}]|selectattr('v')|map(attribute='k')|list }}`, `['a']`},
	{`{{ [{'v': 1}, {'v': 2}]|selectattr('v', 'gt', 1)|list }}`, `[{'v': 2}]`},
	{`{{ [{'a': {'b': 1}}]|selectattr('a.b', 'eq', 1)|list }}`, `[{'a': {'b': 1}}]`},
	{`{{ [{}, {'v': none}]|selectattr('v', 'defined')|list }}`, `[{'v': None}]`},
	{`{{ [{}]|selectattr('v')|list }}`, `!undefined`},
	{`{{ [1]|selectattr|list }}`, `!type`},
	{
		`{{ [1, 2, 3, 4, 5]|slice(2)|list }}|{{ [1, 2, 3, 4, 5]|slice(3, 'x')|list }}`,
		`[[1, 2, 3], [4, 5]]|[[1, 2], [3, 4], [5, 'x']]`,
	},
	{
		`{{ [1]|slice(3)|list }}|{{ []|slice(2, 0)|list }}|{{ 'abcd'|slice(3)|list }}`,
		`[[1], [], []]|[[0], [0]]|[['a', 'b'], ['c'], ['d']]`,
	},
	{`{{ [1, 2]|slice(2, 'x')|list }}`, `[[1, 'x'], [2, 'x']]`},
	{`{{ [1]|slice('2')|list }}`, `!type`},
	{`{{ [1]|slice(0)|list }}`, `!type`},
	{`{{ [3, 1, 2]|sort }}|{{ ['b', 'A', 'c']|sort }}`, `[1, 2, 3]|['A', 'b', 'c']`},
	{`{{ ['b', 'A', 'c']|sort(case_sensitive=true) }}|{{ [1, 2]|sort(true) }}`, `['A', 'b', 'c']|[2, 1]`},
	{`{{ [{'k': 2}, {'k': 1}]|sort(attribute='k') }}|{{ 'bca'|sort }}`, `[{'k': 1}, {'k': 2}]|['a', 'b', 'c']`},
	{`{{ {'b': 1, 'a': 2}|sort }}`, `['a', 'b']`},
	{
		`{{ [{'a': 1, 'b': 'y'}, {'a': 1, 'b': 'X'}, {'a': 0, 'b': 'z'}]|sort(attribute='a,b')|map(attribute='b')|join }}`,
		`zXy`,
	},
	{
		`{{ [{'a': 1, 'n': 0}, {'a': 1, 'n': 1}, {'a': 0, 'n': 2}]|sort(attribute='a', reverse=true)|join }}`,
		`{'a': 1, 'n': 0}{'a': 1, 'n': 1}{'a': 0, 'n': 2}`,
	},
	{`{{ [none, none]|sort }}`, `[None, None]`},
	{`{{ [{'a': none, 'b': 2}, {'a': none, 'b': 1}]|sort(attribute='a,b')|map(attribute='b')|list }}`, `[1, 2]`},
	{
		`{{ [[1, 'b'], [1, 'a'], [0, 'z']]|sort }}|{{ [(2,), (1, 5)]|sort }}`,
		`[[0, 'z'], [1, 'a'], [1, 'b']]|[(1, 5), (2,)]`,
	},
	{`{{ [true, 0.5, 2]|sort }}`, `[0.5, True, 2]`},
	{`{{ [1, 'a']|sort }}`, `!type`},
	{`{{ [none, 1]|sort }}`, `!type`},
	{`{{ [{}, {}]|sort(attribute='a') }}`, `!undefined`},
	{`{{ [{'a': 1}, {'a': 2}]|sort }}`, `!type`},
	{`{{ 5|string + '6' }} {{ [1, 'a']|string|length }} {{ none|string }}`, `56 8 None`},
	{`{{ [1, 2.5]|sum }}|{{ [{'v': 1}, {'v': 2}]|sum(attribute='v') }}`, `3.5|3`},
	{`{{ [1]|sum(start=10) }}|{{ []|sum }}|{{ [[1], [2]]|sum(start=[]) }}`, `11|0|[1, 2]`},
	{`{{ [true, true]|sum }}|{{ [(1, 'a'), (2, 'b')]|sum(0) }}|{{ {1: 'a', 2: 'b'}|sum }}`, `2|3|3`},
	{`{{ ['a']|sum }}`, `!type`},
	{`{{ [1, none]|sum }}`, `!type`},
	{`{{ [{}]|sum('v') }}`, `!undefined`},
	{
		`{{ "hello wOrld it's (foo) a-b {x} [y] <z> é"|title }}|{{ ''|title }}`,
		`Hello World It's (Foo) A-B {X} [Y] <Z> É|`,
	},
	{`{{ 'ß ǆ'|title }}|{{ 'a\tb\nc'|title|tojson }}|{{ '1st 2nd'|title }}`, `SS Ǆ|"A\tB\nC"|1st 2nd`},
	{
		`{{ {'b': 1, 'a': [none, true, 1.5, '<&\'>']}|tojson }}|{{ 'é😀\x7f'|tojson }}`,
		`{"a": [null, true, 1.5, "\u003c\u0026\u0027\u003e"], "b": 1}|"\u00e9\ud83d\ude00\u007f"`,
	},
	{
		`{{ {10: 1, 9: 2}|tojson }}|{{ [1, {'a': []}]|tojson(indent=2) }}|{{ (1, 2)|tojson }}`,
		"{\"9\": 2, \"10\": 1}|[\n  1,\n  {\n    \"a\": []\n  }\n]|[1, 2]",
	},
	{`{{ '"\\'|tojson }}|{{ {}|tojson(2) }}`, `"\"\\"|{}`},
	{`{{ missing|tojson }}`, `!type`},
	{`{{ {1: 1, 'a': 2}|tojson }}`, `!type`},
	{`{{ {(1, 2): 3}|tojson }}`, `!type`},
	{`{{ ' \t a b \n'|trim }}|{{ 'xxaxx'|trim('x') }}|{{ 'abcba'|trim('ab') }}`, `a b|a|c`},
	{`{{ '\u2003a\xa0'|trim }}|{{ 5|trim }}|{{ 'a.'|trim(chars='.') }}|{{ 'a'|trim(none) }}`, `a|5|a|a`},
	{
		`{{ 'hello big world'|truncate(10) }}|{{ 'hello big world'|truncate(9, leeway=0) }}`,
		`hello big world|hello...`,
	},
	{`{{ 'hello big world'|truncate(9, true, leeway=0) }}`, `hello ...`},
	{`{{ 'hello big world'|truncate(9, false, '!', 0) }}|{{ 'hello'|truncate(3) }}`, `hello!|hello`},
	{`{{ 'helloworld'|truncate(5, leeway=0) }}|{{ 'ab cd'|truncate(3, end='', leeway=0) }}`, `he...|ab`},
	{`{{ 'éé éé éé'|truncate(5, leeway=0) }}`, `éé...`},
	{`{{ 'hello'|truncate(2) }}`, `!type`},
	{`{{ 'hello'|truncate(5, leeway=-1) }}`, `!type`},
	{`{{ 5|truncate }}`, `!type`},
	{
		`{{ [1, 2, 1, 'a', 'A', 1.0, true]|unique|list }}|{{ ['a', 'A']|unique(true)|list }}`,
		`[1, 2, 'a']|['a', 'A']`,
	},
	{`{{ [{'k': 1, 'v': 2}, {'k': 1, 'v': 3}]|unique(attribute='k')|map(attribute='v')|list }}`, `[2]`},
	{`{{ 'hello'|unique|join }}|{{ []|unique|list }}|{{ [(1, 2), (1, 2)]|unique|list }}`, `helo|[]|[(1, 2)]`},
	{`{{ [[1]]|unique|list }}`, `!type`},
	{`{{ [{}]|unique(attribute='k')|list }}`, `!undefined`},
	{`{{ 'straße é'|upper }} {{ 5|upper }} {{ 'ŉ ﬁ'|upper }}`, `STRASSE É 5 ʼN FI`},
	{`{{ "it's a_b 12, c-d é中"|wordcount }}|{{ ''|wordcount }}|{{ 5|wordcount }}`, `7|0|1`},
	{`{{ ' '|wordcount }}`, `0`},
}

func TestFilters(t *testing.T) { checkRows(t, Tasks(), filterRows) }

// What a filter does not take is refused, by place or by name, before the template is rendered.
var filterArguments = []row{
	{`{{ 'a'|upper(1) }}`, `!unknown`},
	{`{{ 'a'|upper(x=1) }}`, `!unknown`},
	{`{{ [1]|join(sep=',') }}`, `!unknown`},
	{`{{ [1]|sort(by='x') }}`, `!unknown`},
	{`{{ [1]|map('upper', 1)|list }}`, `!unknown`},
	{`{{ [1]|map(attribute='a', other=1)|list }}`, `!unknown`},
	{`{{ [1]|select('odd', x=1)|list }}`, `!unknown`},
	{`{{ 'a'|wordwrap(3) }}`, `!unknown`},
	{`{{ 'a'|urlize }}`, `!unknown`},
	{`{{ {'a': 1}|tojson(indent=2, sort_keys=true) }}`, `!unknown`},
	{`{{ 'a'|truncate(1, 2, 3, 4, 5) }}`, `!unknown`},
	{`{{ 'ab'|regex_replace('(a)', '\\1x') }}`, `!unknown`},
}

func TestFilterArguments(t *testing.T) { checkRows(t, Tasks(), filterArguments) }

// Tests, each for what it holds for, for what it does not, and for what it cannot be asked of.
var testRows = []row{
	{
		`{{ true is boolean }} {{ 1 is boolean }} {{ 'true' is boolean }} {{ none is boolean }}`,
		`True False False False`,
	},
	{`{{ range is callable }}|{{ 'a'.upper is callable }}|{{ 'a' is callable }}`, `True|True|False`},
	{`{{ namespace is callable }}`, `True`},
	{`{% macro m() %}{% endmacro %}{{ m is callable }}`, `True`},
	{`{{ 1 is defined }}|{{ missing is defined }}|{{ {'a': none}.a is defined }}`, `True|False|True`},
	{`{{ {'a': 1}.b is defined }}|{{ [1][1] is defined }}|{{ (1 if false) is defined }}`, `False|False|False`},
	{`{{ 6 is divisibleby 3 }}|{{ 7 is divisibleby(3) }}|{{ -6 is divisibleby 4 }}`, `True|False|False`},
	{`{{ 7.5 is divisibleby 2.5 }}|{{ 0 is divisibleby 5 }}`, `True|True`},
	{`{{ 6 is divisibleby 0 }}`, `!type`},
	{`{{ 'a' is divisibleby 2 }}`, `!type`},
	{
		`{{ 2 is even }}|{{ 3 is even }}|{{ 0 is even }}|{{ -3 is odd }}|{{ 2.0 is even }}`,
		`True|False|True|True|True`,
	},
	{`{{ 2.5 is odd }}|{{ 2.5 is even }}|{{ true is odd }}`, `False|False|True`},
	{`{{ none is even }}`, `!type`},
	{`{{ 'a' is odd }}`, `!type`},
	{`{{ missing is odd }}`, `!undefined`},
	{`{{ false is false }}|{{ 0 is false }}|{{ none is false }}|{{ true is true }}`, `True|False|False|True`},
	{`{{ 1 is true }}|{{ 'a' is true }}`, `False|False`},
	{`{{ 'upper' is filter }}|{{ 'nothing' is filter }}|{{ 'odd' is test }}`, `True|False|True`},
	{`{{ 'nothing' is test }}|{{ '==' is test }}`, `False|True`},
	{`{{ 1.5 is float }}|{{ 1 is float }}|{{ '1.5' is float }}|{{ 1 is integer }}`, `True|False|False|True`},
	{
		`{{ 1.0 is integer }}|{{ true is integer }}|{{ true is number }}|{{ 1.5 is number }}`,
		`False|False|True|True`,
	},
	{`{{ '1' is number }}|{{ none is number }}`, `False|False`},
	{`{{ 1 is in [1, 2] }}|{{ 'a' is in 'cat' }}|{{ 'k' is in {'k': 1} }}`, `True|True|True`},
	{`{{ 3 is in([1, 2]) }}|{{ 1 is in([1]) }}|{{ 1 is not in [1] }}|{{ 1.0 is in [1] }}`, `False|True|False|True`},
	{`{{ 1 is in 5 }}`, `!type`},
	{`{{ 1 is in 'a1' }}`, `!type`},
	{`{{ [1] is in {'a': 1} }}`, `!type`},
	{
		`{{ [1] is iterable }}|{{ 'a' is iterable }}|{{ {} is iterable }}|{{ () is iterable }}`,
		`True|True|True|True`,
	},
	{`{{ 1 is iterable }}|{{ none is iterable }}|{{ range(2) is iterable }}`, `False|False|True`},
	{`{{ 'abc' is lower }}|{{ 'aBc' is lower }}|{{ '' is lower }}|{{ '12' is lower }}`, `True|False|False|False`},
	{`{{ 'a1' is lower }}|{{ 'ABC' is upper }}|{{ 'A b' is upper }}|{{ 'ª' is lower }}`, `True|True|False|True`},
	{`{{ 'Ⅳ' is upper }}|{{ 'ǅ' is upper }}|{{ 5 is lower }}|{{ none is upper }}`, `True|False|False|False`},
	{`{{ true is lower }}`, `False`},
	{`{{ {} is mapping }} {{ [] is mapping }} {{ 'a' is mapping }}`, `True False False`},
	{`{{ none is none }} {{ 0 is none }} {{ '' is none }} {{ none is not none }}`, `True False False False`},
	{`{{ true is sameas true }} {{ 1 is sameas true }} {{ none is sameas none }}`, `True False True`},
	{`{% set d = {} %}{{ d is sameas d }} {{ {} is sameas d }}`, `True False`},
	{
		`{{ [1] is sequence }}|{{ 'a' is sequence }}|{{ {} is sequence }}|{{ 1 is sequence }}`,
		`True|True|True|False`,
	},
	{`{{ (1,) is sequence }}|{{ missing is sequence }}|{{ none is sequence }}`, `True|False|False`},
	{`{{ 'a' is string }} {{ 1 is string }} {{ none is string }} {{ ['a'] is string }}`, `True False False False`},
	{`{{ missing is undefined }}|{{ 1 is undefined }}|{{ none is undefined }}`, `True|False|False`},
	{`{{ missing is not defined }}`, `True`},
	{`{{ 1 is eq 1.0 }}|{{ 1 is equalto '1' }}|{{ 'a' is ne 'b' }}|{{ 1 is lt 2 }}`, `True|False|True|True`},
	{`{{ 2 is lessthan 2 }}|{{ 2 is le 2 }}|{{ 3 is gt 2 }}|{{ 3 is greaterthan 3 }}`, `False|True|True|False`},
	{`{{ 3 is ge 3 }}|{{ [1] is eq [1] }}`, `True|True`},
	{`{{ [1, 2, 3]|select('<', 2)|list }}|{{ [1, 2, 3]|select('<=', 2)|list }}`, `[1]|[1, 2]`},
	{`{{ [1, 2, 3]|select('>', 2)|list }}|{{ [1, 2, 3]|select('>=', 2)|list }}`, `[3]|[2, 3]`},
	{`{{ [1, 2]|select('==', 2)|list }}|{{ [1, 2]|select('!=', 2)|list }}`, `[2]|[1]`},
	{`{{ 1 is lt 'a' }}`, `!type`},
	{`{{ none is ge 1 }}`, `!type`},
	{`{{ missing is eq 1 }}`, `!undefined`},
	{`{{ 2 is even and 3 is odd }}|{{ not 2 is odd }}|{{ 4 is divisibleby 2 and true }}`, `True|True|True`},
	{`{{ 'x' if 2 is even else 'y' }}`, `x`},
	{`{{ 3 is nothing }}`, `!syntax`},
}

func TestTests(t *testing.T) { checkRows(t, Tasks(), testRows) }

// Methods of texts, lists, tuples and dictionaries.
var methodRows = []row{
	{`{{ 'hELLO'.capitalize() }} {{ ''.capitalize() }}| {{ 'ǆa'.capitalize() }}`, `Hello | ǅa`},
	{`{{ 'a'.center(4, '*') }}|{{ 'ab'.center(5, '*') }}|{{ 'abc'.center(2) }}`, `*a**|**ab*|abc`},
	{`{{ 'a'.ljust(3, '.') }}|{{ 'a'.rjust(3, '.') }}|{{ 'é'.rjust(2) }}`, `a..|..a| é`},
	{`{{ 'a'.center(4, '**') }}`, `!type`},
	{`{{ 'a'.ljust('3') }}`, `!type`},
	{`{{ 'banana'.count('an') }}|{{ 'aaa'.count('aa') }}|{{ 'ab'.count('') }}`, `2|1|3`},
	{`{{ ''.count('a') }}`, `0`},
	{`{{ 'a'.count(1) }}`, `!type`},
	{`{{ 'test.py'.endswith('.py') }}|{{ 'test'.endswith(('x', 't')) }}`, `True|True`},
	{`{{ 'a'.endswith('') }}|{{ ''.startswith('a') }}|{{ 'ab'.startswith('b') }}`, `True|False|False`},
	{`{{ 'ab'.startswith(()) }}`, `False`},
	{`{{ 'a'.startswith(1) }}`, `!type`},
	{`{{ 'a'.startswith(['a']) }}`, `!type`},
	{`{{ 'héllo'.find('l') }}|{{ 'héllo'.rfind('l') }}|{{ 'a'.find('z') }}`, `2|3|-1`},
	{`{{ 'abc'.find('') }}|{{ 'abc'.rfind('') }}|{{ 'héllo'.index('o') }}`, `0|3|4`},
	{`{{ 'hello'.rindex('l') }}`, `3`},
	{`{{ 'a'.index('z') }}`, `!type`},
	{`{{ 'a'.rindex('z') }}`, `!type`},
	{`{{ '{} {x}'.format(1, x='b') }}|{{ '{:>5.1f}|'.format(2.25) }}`, `1 b|  2.2|`},
	{`{{ '{0!r}'.format('a') }}|{{ '{:05,}'.format(1234) }}`, `'a'|1,234`},
	{`{{ '{}'.format() }}`, `!type`},
	{
		`{{ 'a1é'.isalnum() }}|{{ 'a 1'.isalnum() }}|{{ ''.isalnum() }}|{{ 'é中'.isalpha() }}`,
		`True|False|False|True`,
	},
	{`{{ 'a1'.isalpha() }}|{{ '१2'.isdecimal() }}|{{ '²'.isdecimal() }}`, `False|True|False`},
	{`{{ '²①'.isdigit() }}|{{ '½'.isdigit() }}|{{ '½Ⅷ三'.isnumeric() }}`, `True|False|True`},
	{`{{ 'a'.isnumeric() }}|{{ ''.isdigit() }}`, `False|False`},
	{
		`{{ 'ab'.islower() }}|{{ 'aB'.islower() }}|{{ '1'.islower() }}|{{ 'AB 1'.isupper() }}`,
		`True|False|False|True`,
	},
	{
		`{{ 'ǅ'.isupper() }}|{{ ' \t\x1f'.isspace() }}|{{ ''.isspace() }}|{{ 'a '.isspace() }}`,
		`False|True|False|False`,
	},
	{`{{ '-'.join(['a', 'b']) }}|{{ ''.join('abc') }}|{{ ','.join([]) }}`, `a-b|abc|`},
	{`{{ '/'.join(('x',)) }}|{{ '.'.join({'a': 1, 'b': 2}) }}`, `x|a.b`},
	{`{{ '-'.join([1]) }}`, `!type`},
	{`{{ '-'.join(5) }}`, `!type`},
	{`{{ 'ÀB'.lower() }}|{{ 'aé'.upper() }}|{{ 'aBc ΑΣ'.swapcase() }}`, `àb|AÉ|AbC ας`},
	{`{{ "they're bill's ǆ".title() }}|{{ 'a1b'.title() }}`, `They'Re Bill'S ǅ|A1B`},
	{`{{ ' a '.strip() }}|{{ 'xax'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}`, `a|a|a | a`},
	{`{{ 'xyaxy'.lstrip('xy') }}|{{ 'a..'.rstrip('.') }}|{{ 'aba'.strip('') }}`, `axy|a|aba`},
	{`{{ ' a '.strip(none) }}|`, `a|`},
	{
		`{{ 'a-b-c'.partition('-') }}|{{ 'a-b-c'.rpartition('-') }}|{{ 'abc'.partition('-') }}`,
		`('a', '-', 'b-c')|('a-b', '-', 'c')|('abc', '', '')`,
	},
	{`{{ 'abc'.rpartition('-') }}|{{ 'aaa'.rpartition('aa') }}`, `('', '', 'abc')|('a', 'aa', '')`},
	{`{{ 'a'.partition('') }}`, `!type`},
	{`{{ 'abc'.removeprefix('ab') }}|{{ 'abc'.removeprefix('x') }}`, `c|abc`},
	{`{{ 'abc'.removesuffix('bc') }}|{{ 'abc'.removesuffix('') }}`, `a|abc`},
	{`{{ 'aXbX'.replace('X', 'y') }}|{{ 'aaa'.replace('a', 'b', 1) }}`, `ayby|baa`},
	{`{{ 'ab'.replace('', '-') }}`, `-a-b-`},
	{`{{ 'a1'.replace(1, 2) }}`, `!type`},
	{`{{ 'a'.replace('a') }}`, `!type`},
	{
		`{{ 'a b  c'.split() }}|{{ 'a,b,,c'.split(',') }}|{{ 'a,b,c'.split(',', 1) }}`,
		`['a', 'b', 'c']|['a', 'b', '', 'c']|['a', 'b,c']`,
	},
	{`{{ ''.split() }}|{{ ''.split(',') }}|{{ ' a b c '.split(none, 1) }}`, `[]|['']|['a', 'b c ']`},
	{
		`{{ ' a b '.split(none, 0) }}|{{ 'a'.split('ab') }}|{{ 'a b'.split(maxsplit=1) }}`,
		`['a b ']|['a']|['a', 'b']`,
	},
	{`{{ 'aXXb'.split('XX') }}`, `['a', 'b']`},
	{`{{ 'a b c'.rsplit(none, 1) }}|{{ ' a b c '.rsplit(none, 1) }}`, `['a b', 'c']|[' a b', 'c']`},
	{
		`{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'aaa'.rsplit('aa', 1) }}|{{ 'aaa'.rsplit('aa') }}`,
		`['a,b', 'c']|['a', '']|['a', '']`,
	},
	{`{{ 'aaa'.split('aa') }}|{{ 'a,b'.rsplit(',', 0) }}|{{ 'abc'.rsplit('x', 2) }}`, `['', 'a']|['a,b']|['abc']`},
	{`{{ 'a,b,c'.rsplit(',', -1) }}|{{ 'a b'.rsplit() }}`, `['a', 'b', 'c']|['a', 'b']`},
	{`{{ 'a'.split('') }}`, `!type`},
	{`{{ 'a'.split(1) }}`, `!type`},
	{`{{ 'a'.split(',', 'x') }}`, `!type`},
	{
		`{{ 'a\nb\r\nc\rd\x0be\x0cf\x1cg\u2028h'.splitlines() }}|{{ 'a\n'.splitlines() }}`,
		`['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']|['a']`,
	},
	{
		`{{ 'a\n\n'.splitlines() }}|{{ ''.splitlines() }}|{{ 'a\r\nb'.splitlines(true) }}`,
		`['a', '']|[]|['a\r\n', 'b']`,
	},
	{`{{ '\n'.splitlines() }}`, `['']`},
	{`{{ '42'.zfill(5) }}|{{ '-42'.zfill(5) }}|{{ '+4'.zfill(4) }}|{{ 'abc'.zfill(2) }}`, `00042|-0042|+004|abc`},
	{`{{ ''.zfill(2) }}|{{ '-'.zfill(3) }}|{{ '--1'.zfill(5) }}`, `00|-00|-00-1`},
	{`{{ [1, 2, 1].count(1) }}|{{ [1, 2].index(2) }}|{{ (1, 'a').count('a') }}`, `2|1|1`},
	{`{{ (1, 'a').index('a') }}|{{ [1, 2].copy() }}|{{ [true, 1.0].count(1) }}`, `1|[1, 2]|2`},
	{`{{ [1].index(2) }}`, `!type`},
	{`{{ {'a': 1}.get('a') }}|{{ {'a': 1}.get('b') }}|{{ {'a': 1}.get('b', 5) }}`, `1|None|5`},
	{`{{ {1: 'x'}.get(1.0) }}|{{ {'a': 1}.items()|list }}|{{ {'a': 1}.keys()|list }}`, `x|[('a', 1)]|['a']`},
	{`{{ {'a': 1}.values()|list }}|{{ {'a': 1}.copy() }}`, `[1]|{'a': 1}`},
	{`{{ {}.get([1]) }}`, `!type`},
	{`{{ 'a'.nothing() }}`, `!unknown`},
	{`{{ [].nothing() }}`, `!unknown`},
	{`{{ {'items': 5}.items is callable }}|{{ {'items': 5}['items'] }}|{{ {'x': 5}.x }}`, `True|5|5`},
	{`{{ {'get': 1}.get('get') }}`, `1`},
	{`{{ 'a'.upper(1) }}`, `!unknown`},
	{`{{ 'a'.encode() }}`, `!unknown`},
}

func TestMethods(t *testing.T) { checkRows(t, Tasks(), methodRows) }

// Operators, with what binds how tightly.
var operatorRows = []row{
	{`{{ 1 + 2 * 3 }}|{{ (1 + 2) * 3 }}|{{ 2 ** 3 ** 2 }}|{{ -2 ** 2 }}|{{ 2 ** -1 }}`, `7|9|64|4|0.5`},
	{`{{ 7 // 2 * 2 }}|{{ 7 - 2 - 1 }}|{{ 8 / 2 / 2 }}|{{ 2 * 3 ~ 4 }}|{{ '1' ~ 2 + '3' }}`, `6|4|2.0|64|123`},
	{`{{ 1 ~ 2 + 3 }}`, `!type`},
	{`{{ 1 + 2 ~ 3 }}`, `!type`},
	{`{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 7 % -3 }}|{{ -7 // 2 }}|{{ 7.5 // 2 }}|{{ -7.5 % 2 }}`, `1|2|-2|-4|3.0|0.5`},
	{
		`{{ 1e308 * 10 }}|{{ 0.1 + 0.2 }}|{{ 6 / 3 }}|{{ 0 / -5 }}|{{ 5 // 0.3 }}`,
		`inf|0.30000000000000004|2.0|-0.0|16.0`,
	},
	{`{{ 9007199254740993 / 1 }}|{{ 9223372036854775807 / 3 }}`, `9007199254740992.0|3.0744573456182584e+18`},
	{`{{ 9007199254740993 / 9007199254740992 }}|{{ 9007199254740993 * 1.0 }}`, `1.0|9007199254740992.0`},
	{`{{ 9007199254740993 > 9007199254740992 }}`, `True`},
	{`{{ 9007199254740993 == 9007199254740992.0 }}`, `False`},
	{`{{ 9007199254740993 in [9007199254740992] }}`, `False`},
	{`{{ 'a' + 'b' }}|{{ 'ab' * 2 }}|{{ 2 * 'ab' }}|{{ 'a' * 0 }}|{{ 'a' * -1 }}`, `ab|abab|abab||`},
	{`{{ [1] + [2] }}|{{ [1, 2] * 2 }}|{{ (1,) + (2,) }}|{{ (1,) * 2 }}`, `[1, 2]|[1, 2, 1, 2]|(1, 2)|(1, 1)`},
	{`{{ 'a' ~ 1 ~ none ~ [1] }}|{{ true + 1 }}|{{ 'ab' * true }}`, `a1None[1]|2|ab`},
	{`{{ 'a' + 1 }}`, `!type`},
	{`{{ [1] + (2,) }}`, `!type`},
	{`{{ 'a' - 'b' }}`, `!type`},
	{`{{ 'a' * 'b' }}`, `!type`},
	{`{{ 'a' * 1.0 }}`, `!type`},
	{`{{ [1] * [2] }}`, `!type`},
	{`{{ none + 1 }}`, `!type`},
	{`{{ {} + {} }}`, `!type`},
	{`{{ -'a' }}`, `!type`},
	{`{{ 1 / 0 }}`, `!type`},
	{`{{ 1.0 // 0 }}`, `!type`},
	{`{{ 1 % 0.0 }}`, `!type`},
	{`{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ 3 > 2 >= 2 }}|{{ 1 == 1.0 == true }}`, `True|False|True|True`},
	{
		`{{ 'a' < 'b' }}|{{ [1, 2] < [1, 3] }}|{{ (1,) < (1, 0) }}|{{ 1 != 2 }}|{{ 'a' == 1 }}`,
		`True|True|True|True|False`,
	},
	{`{{ [none] < [none] }}|{{ [none, 1] < [none, 2] }}`, `False|True`},
	{`{{ 1 < 'a' }}`, `!type`},
	{`{{ none < 1 }}`, `!type`},
	{`{{ {} < {} }}`, `!type`},
	{`{{ [1] < (1,) }}`, `!type`},
	{`{{ 1 in [1] }}|{{ 'a' in 'abc' }}|{{ '' in '' }}|{{ 'k' in {'k': 1} }}`, `True|True|True|True`},
	{`{{ 1 not in [2] }}|{{ not 1 in [2] }}|{{ 1 in {1: 2} }}|{{ [1] in [[1]] }}`, `True|True|True|True`},
	{`{{ none in [none] }}`, `True`},
	{`{{ 1 in 'a' }}`, `!type`},
	{`{{ 1 in none }}`, `!type`},
	{`{{ [] in {} }}`, `!type`},
	{`{{ true and false or true }}|{{ true or false and false }}|{{ not true or true }}`, `True|True|True`},
	{`{{ not (true or true) }}|{{ 0 or 'x' }}|{{ 1 and '' }}|{{ none or 0 or [] }}`, `False|x||[]`},
	{`{{ 1 and 2 and 3 }}|{{ not not 1 }}|{{ not [] }}`, `3|True|True`},
	{`{{ false and missing }}|{{ true or missing.x }}|{{ 1 if true else missing.x }}`, `False|True|1`},
	{`{{ missing.x if false else 2 }}`, `2`},
	{`{{ true and missing }}`, `!undefined`},
	{`{{ missing or 1 }}`, `!undefined`},
	{`{{ not missing }}`, `!undefined`},
	{`{{ 1 if missing else 2 }}`, `!undefined`},
	{`{{ 1 if true else 2 if true else 3 }}|{{ (1 if false else 2) + 3 }}|{{ 1 if false }}`, `1|5|`},
	{`{{ [1 if true else 2, 3] }}`, `[1, 3]`},
	{`{{ [1, 2, 3][0] }}|{{ [1, 2, 3][-1] }}|{{ 'abc'[1] }}|{{ (1, 2)[1] }}`, `1|3|b|2`},
	{`{{ {'a': {'b': [5]}}.a.b[0] }}|{{ {'a': 1}['a'] }}|{{ [[1, 2], [3]].0.1 }}`, `5|1|2`},
	{`{{ {1: 'x'}[true] }}|{{ 'é😀'[1] }}|{{ [1, 2][true] }}`, `x|😀|2`},
	{`{{ [1][5] }}`, `!undefined`},
	{`{{ [1][-2] }}`, `!undefined`},
	{`{{ {'a': 1}['b'] }}`, `!undefined`},
	{`{{ {}[[1]] is defined }} {{ {(1, 2): 3}[(1, 2)] }}`, `False 3`},
	{`{{ {}[[1]] }}`, `!undefined`},
	{`{{ missing[0] }}`, `!undefined`},
	{`{{ none.x }}`, `!undefined`},
	{`{{ 'abc'[1:] }}|{{ 'abc'[:-1] }}|{{ 'abc'[::-1] }}|{{ [1, 2, 3, 4][1:3] }}`, `bc|ab|cba|[2, 3]`},
	{`{{ [1, 2, 3, 4][::2] }}|{{ [1, 2, 3, 4][3:0:-1] }}|{{ (1, 2, 3)[1:] }}`, `[1, 3]|[4, 3, 2]|(2, 3)`},
	{`{{ [1, 2][5:] }}|{{ [1, 2][-9:1] }}|{{ 'abc'[none:2] }}|{{ [1, 2, 3][true:] }}`, `[]|[1]|ab|[2, 3]`},
	{`{{ [1, 2, 3, 4][1::9223372036854775807] }}|{{ [1, 2, 3, 4][::-9223372036854775807] }}`, `[2]|[4]`},
	{`{{ 'abc'[9223372036854775807:] }}|{{ 'abc'[-9223372036854775807:2] }}`, `|ab`},
	{`{{ range(3, 5, 9223372036854775807)|list }}`, `[3]`},
	{`{{ range(5, 3, -9223372036854775807)|list }}`, `[5]`},
	{`{{ [1][::0] }}`, `!type`},
	{`{{ [1]['a':] }}`, `!type`},
	{`{{ 5[1:] }}`, `!type`},
	{
		`{{ [1, 'a', 2.0, none, true, {'k': [()]}, (1,)] }}|{{ {1: 'a', 'b': {2: 3}} }}`,
		`[1, 'a', 2.0, None, True, {'k': [()]}, (1,)]|{1: 'a', 'b': {2: 3}}`,
	},
	{`{{ () }}|{{ (1) }}|{{ [1,] }}|{{ {'a': 1,} }}|{{ 1, 2 }}|{{ 'a' 'b' "c" }}`, `()|1|[1]|{'a': 1}|(1, 2)|abc`},
	{
		`{{ '\x41\u00e9\U0001F600\101\n'|tojson }}|{{ 'it\'s' }}|{{ "a\"b" }}|{{ 'a\\b' }}`,
		`"A\u00e9\ud83d\ude00A\n"|it's|a"b|a\b`,
	},
	{"{{ '\\q' }}|{{ 'a\\\nb' }}", `\q|ab`},
	{
		`{{ 0x1F }}|{{ 0b101 }}|{{ 0o17 }}|{{ 1_000 }}|{{ 1e3 }}|{{ 1.5e-3 }}|{{ 1_0.0_1 }}`,
		`31|5|15|1000|1000.0|0.0015|10.01`,
	},
	{`{{ 0 }}|{{ 00 }}|{{ 2.0 }}`, `0|0|2.0`},
	{`{{ 01 }}`, `!syntax`},
	{`{{ 1__0 }}`, `!syntax`},
	{`{{ 1. }}`, `!syntax`},
	{`{{ .5 }}`, `!syntax`},
	{`{{ + }}`, `!syntax`},
	{`{{ 1 2 }}`, `!syntax`},
	{`{{ a b }}`, `!syntax`},
	{`{{ }}`, `!syntax`},
	{`{{ (1 }}`, `!syntax`},
	{`{{ [1 }}`, `!syntax`},
	{`{{ {'a' 1} }}`, `!syntax`},
	{`{{ {'a': } }}`, `!syntax`},
	{`{{ 'a }}`, `!syntax`},
	{`{{ dict(a=1, {}) }}`, `!syntax`},
	{`{{ x. }}`, `!syntax`},
	{`{{ x[1:2:3:4] }}`, `!syntax`},
	{`{{ 1 if }}`, `!syntax`},
	{`{{ not }}`, `!syntax`},
	{`{{ 1 is }}`, `!syntax`},
	{`{{ 1| }}`, `!syntax`},
	{`{{ $ }}`, `!syntax`},
	{`{{ range(3)|list }}|{{ range(1, 4)|list }}|{{ range(4, 1, -2)|list }}`, `[0, 1, 2]|[1, 2, 3]|[4, 2]`},
	{`{{ range(0)|list }}|{{ range(3, 1)|list }}|{{ range(true)|list }}`, `[]|[]|[0]`},
	{`{{ range() }}`, `!type`},
	{`{{ range('a') }}`, `!type`},
	{`{{ range(1, 2, 0) }}`, `!type`},
	{
		`{{ dict(a=1) }}|{{ dict({'x': 1}, y=2) }}|{{ dict([('a', 1), ['b', 2]]) }}`,
		`{'a': 1}|{'x': 1, 'y': 2}|{'a': 1, 'b': 2}`,
	},
	{`{{ dict(['ab', 'cd']) }}|{{ dict({'a': 1}, a=2) }}|{{ dict() }}`, `{'a': 'b', 'c': 'd'}|{'a': 2}|{}`},
	{`{{ dict([1]) }}`, `!type`},
	{`{{ dict([(1, 2, 3)]) }}`, `!type`},
	{`{{ dict(1) }}`, `!type`},
	{`{{ dict({}, {}) }}`, `!type`},
	{`{{ dict([([], 1)]) }}`, `!type`},
	{`{{ nothing() }}`, `!unknown`},
	{`{{ 5() }}`, `!type`},
	{`{{ 'a'() }}`, `!type`},
}

func TestOperators(t *testing.T) { checkRows(t, Tasks(), operatorRows) }

// Statements: what a name means where, loops, macros and calls.
var statementRows = []row{
	{
		`{% for x in [3, 1] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}`,
		`1021;2110;`,
	},
	{
		`{% for x in [3, 1] %}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}`,
		`TrueFalse210FalseTrue210`,
	},
	{
		`{% for x in 'ab' %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.cycle(1, 2) }}{% endfor %}`,
		`FalseTrue1TrueFalse2`,
	},
	{`{% for x in [1, 1, 2, 1] %}{{ loop.changed(x) }} {% endfor %}`, `True False True True `},
	{`{% for x in [1, 1] %}{{ loop.changed(x, 2) }} {% endfor %}`, `True False `},
	{`{% for x in [1] %}{{ loop.cycle() }}{% endfor %}`, `!type`},
	{`{% for x in [1] %}{{ loop.nothing is defined }}{% endfor %}`, `False`},
	{
		`{% for x in [1, 2, 3, 4] if x is even %}{{ loop.index }}{{ x }}{{ loop.last }} {% endfor %}`,
		`12False 24True `,
	},
	{`{% for x in [] %}a{% else %}empty{% endfor %}`, `empty`},
	{`{% for x in [1] if x > 1 %}a{% else %}none{% endfor %} {% for x in {} %}{% else %}e{% endfor %}`, `none e`},
	{`{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}`, `a1`},
	{`{% for a, b in ['xy', (1, 2)] %}{{ a }}{{ b }} {% endfor %}`, `xy 12 `},
	{`{% for a, b in [1] %}{% endfor %}`, `!type`},
	{`{% for a, b in [(1,)] %}{% endfor %}`, `!type`},
	{`{% for x in 5 %}{% endfor %}`, `!type`},
	{`{% for x in none %}{% endfor %}`, `!type`},
	{`{% for x in missing %}{% endfor %}`, `!undefined`},
	{
		`{% for x in [[1, 2], [3]] %}{% for y in x %}{{ loop.index }}{{ y }} {% endfor %}{{ loop.index }};{% endfor %}`,
		`11 22 1;13 2;`,
	},
	{`{% set x = 1 %}{% for x in [2] %}{{ x }}{% endfor %}{{ x }}`, `21`},
	{`{% set y = 1 %}{% for i in [1] %}{% set y = 2 %}{{ y }}{% endfor %}{{ y }}`, `21`},
	{
		`{% if true %}{% set z = 1 %}{% endif %}{{ z }} {% set a, b = (1, 2) %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }}`,
		`1 12 (1, 2)`,
	},
	{`{% set a, b = 1 %}`, `!type`},
	{`{% set a, b = (1, 2, 3) %}`, `!type`},
	{
		`{% set ns = namespace(a=1, b=2) %}{% for i in 1, 2 %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}`,
		`42`,
	},
	{`{% set ns = namespace({'q': 1}) %}{% set ns.c = 5 %}{{ ns.c }}{{ ns.q }}`, `51`},
	{`{% set ns = {} %}{% set ns.a = 1 %}`, `!type`},
	{`{{ namespace().missing }}`, `!undefined`},
	{
		`{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ x|length }} {% set y | upper | replace('A', 'b') %}a{% endset %}{{ y }}`,
		`a12 b`,
	},
	{`{% if 0 %}a{% elif '' %}b{% elif 1 %}c{% else %}d{% endif %}`, `c`},
	{`{% if none %}a{% else %}b{% endif %} {% if [0] %}x{% endif %}`, `b x`},
	{`{% if missing %}{% endif %}`, `!undefined`},
	{
		`{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=5) }} {{ m(b=1, a=2) }}`,
		`121 125 212`,
	},
	{
		`{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=1, y=2, b=3, x=4) }} {{ m() }}`,
		`(2, 3){'z': 1, 'y': 2, 'b': 3, 'x': 4} (){}`,
	},
	{
		`{% macro m(a) %}{{ kwargs }}{% endmacro %}{{ m(1, q=1, w=2, e=3, r=4, t=5, y=6, u=7) }}`,
		`{'q': 1, 'w': 2, 'e': 3, 'r': 4, 't': 5, 'y': 6, 'u': 7}`,
	},
	{`{% macro m(a) %}{{ a }}{% endmacro %}{{ m() }}`, `!undefined`},
	{`{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}`, `!type`},
	{`{% macro m(a) %}{% endmacro %}{{ m(b=1) }}`, `!type`},
	{`{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}`, `!type`},
	{`{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(1, a=2) }}`, `1{'a': 2}`},
	{`{% macro m(a=1, b) %}{% endmacro %}`, `!syntax`},
	{`{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}`, `<x>`},
	{`{% macro n(i) %}{{ caller(i, i * 2) }}{% endmacro %}{% call(a, b) n(3) %}{{ a }}{{ b }}{% endcall %}`, `36`},
	{`{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }} {% call m() %}{% endcall %}`, `False True`},
	{`{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}`, `!undefined`},
	{`{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}`, `3210`},
	{`{% macro g() %}{{ later }}{% endmacro %}{% set later = 1 %}{{ g() }}`, `1`},
	{`{% macro m() %}{{ x }}{% endmacro %}{% for i in [1] %}{% set x = 5 %}{{ m() }}{% endfor %}`, `!undefined`},
	{`{% call 5 %}{% endcall %}`, `!syntax`},
	{`{% filter upper %}a{{ 'b' }}{% endfilter %} {% filter replace('a', 'b')|upper %}aa{% endfilter %}`, `AB BB`},
	{`{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}`, `3False`},
	{`{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}`, `211`},
	{`{% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}`, `False`},
	{`{% raw %}{{ x }}{% if %}{# #}{% endraw %} {%- raw -%} a {%- endraw -%} b`, `{{ x }}{% if %}{# #}ab`},
	{`{# a {{ 1 }} #}b{#- c -#} d`, `bd`},
	{`a {{- 1 -}} b {%- if true -%} c {%- endif -%} d`, `a1bcd`},
	{`{% for x in [1] %}`, `!syntax`},
	{`{% if 1 %}`, `!syntax`},
	{`{% endif %}`, `!syntax`},
	{`{% endfor %}`, `!syntax`},
	{`{% endfor %}{% for x in [1] %}`, `!syntax`},
	{`{% for %}{% endfor %}`, `!syntax`},
	{`{% for x %}{% endfor %}`, `!syntax`},
	{`{% for 1 in [1] %}{% endfor %}`, `!syntax`},
	{`{% set %}`, `!syntax`},
	{`{% set 1 = 2 %}`, `!syntax`},
	{`{% set x = %}`, `!syntax`},
	{`{% macro %}{% endmacro %}`, `!syntax`},
	{`{% macro m %}{% endmacro %}`, `!syntax`},
	{`{% macro m(1) %}{% endmacro %}`, `!syntax`},
	{`{% with a %}{% endwith %}`, `!syntax`},
	{`{% filter %}{% endfilter %}`, `!syntax`},
	{`{% filter nofilter %}{% endfilter %}`, `!unknown`},
	{`{% raw %}x`, `!syntax`},
	{`{% else %}`, `!syntax`},
	{`{% elif 1 %}`, `!syntax`},
	{`{% if 1 %}{% else %}{% else %}{% endif %}`, `!syntax`},
	{`{% if 1 %}{% else %}{% elif 1 %}{% endif %}`, `!syntax`},
	{`{% if 1 %}{% endfor %}`, `!syntax`},
	{`{% include 'a' %}`, `!unknown`},
	{`{% extends 'a' %}`, `!unknown`},
	{`{% block b %}{% endblock %}`, `!unknown`},
	{`{% import 'a' as b %}`, `!unknown`},
	{`{% for x in [1] recursive %}{% endfor %}`, `!unknown`},
	{`{% do 1 %}`, `!unknown`},
}

func TestStatements(t *testing.T) { checkRows(t, Tasks(), statementRows) }

// Chat templates: lines that statements take with them, JSON as it stands, what is not defined is empty, the clock.
var chatRows = []row{
	{`{{ missing }}|{{ missing|length }}|{{ missing|list }}|{{ missing ~ 'a' }}`, `|0|[]|a`},
	{`{{ missing == missing }}|{{ missing is iterable }}`, `True|True`},
	{`{% for x in missing %}{% else %}e{% endfor %}`, `e`},
	{`{{ not missing }}|{{ missing or 'd' }}|{{ missing in [1] }}|{{ 1 in missing }}`, `True|d|False|False`},
	{`{{ missing|join }}|{{ missing|upper }}|{{ missing|first is defined }}`, `||False`},
	{`{{ missing|sort }}|{{ missing|items|list }}|{{ missing|replace('a', 'b') }}`, `[]|[]|`},
	{`{{ missing|trim }}|{{ missing|map('upper')|list }}|{{ missing|select|list }}`, `|[]|[]`},
	{`{{ missing|sum }}`, `0`},
	{`{{ missing.a }}`, `!undefined`},
	{`{{ missing[0] }}`, `!undefined`},
	{`{{ missing + 1 }}`, `!undefined`},
	{`{{ missing() }}`, `!unknown`},
	{`{{ missing < 1 }}`, `!undefined`},
	{`{{ -missing }}`, `!undefined`},
	{`{{ missing|abs }}`, `!type`},
	{`{{ {'a': 1}.b }}|{{ [1][5] }}|{{ (1 if false) }}|{{ {'a': none}.a }}`, `|||None`},
	{`{{ {'a': 1}.b.c }}`, `!undefined`},
	{
		`{{ {'b': 1, 'a': '<é>'}|tojson }}|{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}`,
		`{"b": 1, "a": "<é>"}|{"a": 2, "b": 1}`,
	},
	{`{{ 'é'|tojson(ensure_ascii=true) }}|{{ [1, 2]|tojson(separators=(',', ':')) }}`, `"\u00e9"|[1,2]`},
	{`{{ {'a': [1]}|tojson(indent=2) }}`, "{\n  \"a\": [\n    1\n  ]\n}"},
	{`{{ {'a': 1}|tojson(indent=0, separators=(';', '=')) }}`, "{\n\"a\"=1\n}"},
	{
		`{{ {10: 1, 9: 2}|tojson(sort_keys=true) }} {{ {none: 1, true: 2, 1.5: 3}|tojson }}`,
		`{"9": 2, "10": 1} {"null": 1, "true": 2, "1.5": 3}`,
	},
	{`{{ [1]|tojson(separators=(',',)) }}`, `!type`},
	{`{{ {1: 1, 'a': 2}|tojson(sort_keys=true) }}`, `!type`},
	{
		`{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%d %b %Y, %A %a %B') }}`,
		`2024-02-05 07:08:09|05 Feb 2024, Monday Mon February`,
	},
	{`{{ strftime_now('%I:%M %p %j %y %e %%') }}`, `07:08 AM 036 24  5 %`},
	{`{{ strftime_now('%-d/%-m/%Y %-H %-I %-M %-S %-j') }}`, `5/2/2024 7 7 8 9 36`},
	{`{{ strftime_now('%F %T %D %z %Z') }}|{{ strftime_now('') }}|`, `2024-02-05 07:08:09 02/05/24 +0000 UTC||`},
	{`{{ strftime_now('%Q') }}`, `!unknown`},
	{`{{ strftime_now('%') }}`, `!limit`},
	{`{{ strftime_now() }}`, `!type`},
	{`{{ strftime_now(5) }}`, `!type`},
	{`{{ raise_exception('no') }}`, `!type`},
	{`{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}`, `13`},
	{`{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}`, `1`},
	{
		`{% for x in 1, 2 %}{% for y in 1, 2 %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}{% endfor %}`,
		`12`,
	},
	{"  {% if true %}\n  a\n  {% endif %}\n  b\n", "  a\n  b"},
	{"  {%+ if true %}\n a\n  {%+ endif %}\nb", "   a\n  b"},
	{"{% if true -%}\n\n a \n\n{%- endif %}\nb", `ab`},
	{"{% if true +%}\na{% endif +%}\nb", "\na\nb"},
	{" {# c #}\n a {# c #} \nb", " a  \nb"},
	{"  {{ 1 }}\n  {{ 2 }}", "  1\n  2"},
	{`x {% if true %} y {% endif %} z`, `x  y  z`},
	{"\t{% for x in [1, 2] %}\n\t{{ x }}\n\t{% endfor %}\n", "\t1\n\t2\n"},
	{"{% set x = 1 %}\n\n{% set y = 2 %}\n{{ x }}{{ y }}", "\n12"},
	{" {% raw %}\n {{ a }}\n {% endraw %}\nb", "\n {{ a }}\nb"},
	{"{%- raw %} a {% endraw -%}\n b", ` a b`},
	{"a\n\n", "a\n"},
}

func TestChatRows(t *testing.T) { checkRows(t, Chats(clock), chatRows) }

// clock is the time of the rows: a day and hours of one digit.
func clock() time.Time { return time.Date(2024, 2, 5, 7, 8, 9, 0, time.UTC) }

// TestEveryFunctionHasRows: what the tables of the language hold is used in a row.
func TestEveryFunctionHasRows(t *testing.T) {
	all := func(tables ...[]row) string {
		var b strings.Builder
		for _, rows := range tables {
			for _, r := range rows {
				b.WriteString(r.template + "\n")
			}
		}
		return b.String()
	}

	filters := all(filterRows, filterArguments)
	tests := all(testRows)
	methods := all(methodRows)
	for name := range library.Filters {
		if !strings.Contains(filters, "|"+name) {
			t.Errorf("no row has the filter %s", name)
		}
	}

	for name := range library.Tests {
		if !strings.Contains(tests, " is "+name) && !strings.Contains(tests, "'"+name+"'") {
			t.Errorf("no row has the test %s", name)
		}
	}

	for kind, table := range library.Methods {
		for name := range table {
			if !strings.Contains(methods, "."+name+"(") {
				t.Errorf("no row has the method %s of a %s", name, kind)
			}
		}
	}
}
