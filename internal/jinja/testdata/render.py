"""Writes rendered.jsonl: templates of our own with what Python's jinja2 makes of them, under the settings of task files and of chats.

    python3 render.py > rendered.jsonl        # needs jinja2; made with 3.1.6
"""
import copy, itertools, json, random
from jinja2 import BaseLoader, Environment, StrictUndefined
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NAMES = {
    "s": " Hello, World ", "t": "one two  three", "q": "it's \"so\" <b> & ünï\n", "e": "", "n": 3, "z": 0, "neg": -7, "f": 2.5, "yes": True, "no": False,
    "none": None, "l": [3, 1, 2, 1], "w": ["b", "A", "c", "B"], "d": {"b": 2, "a": "x", "C": None}, "mixed": [1, "a", None, 2.0, True, [1], {"k": "v"}],
    "rows": [{"k": "x", "v": 2, "sub": {"n": 1}}, {"k": "y", "v": 1, "sub": {"n": 5}}, {"k": "X", "v": 2, "sub": {"n": 3}}], "empty": [], "big": 123456789,
}

ATOMS = ["s", "t", "q", "e", "n", "z", "neg", "f", "yes", "none", "l", "w", "d", "mixed", "rows", "empty", "big", "missing"]
FILTERS = [
    "abs", "batch(2)|list", "batch(3, 'x')|list", "capitalize", "center(9)", "count", "default('D')", "default('D', true)", "dictsort", "dictsort(by='value')",
    "dictsort(reverse=true)", "e", "first", "float", "float(1.5)", "indent", "indent(2, true)", "int", "int(7)", "items|list", "join", "join(', ')", "join('-', attribute='k')", "last", "length",
    "list", "lower", "map('upper')|list", "map(attribute='k')|list", "map(attribute='k', default='-')|list", "map(attribute='sub.n')|list", "map('length')|list", "max", "min", "max(attribute='v')",
    "min(attribute='sub.n')", "reject('none')|list", "reject('odd')|list", "rejectattr('v', 'eq', 2)|list", "replace('o', '0')", "replace('o', '0', 1)", "reverse|list", "round", "round(1)",
    "round(0, 'floor')", "select|list", "select('string')|list", "select('odd')|list", "select('gt', 1)|list", "select('in', [1, 'a'])|list", "selectattr('v')|list", "selectattr('v', 'lt', 2)|list",
    "selectattr('k', 'upper')|map(attribute='k')|list", "slice(2)|list", "slice(3, 0)|list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='k')", "sort(attribute='v,k')",
    "string", "sum", "sum(attribute='v')", "sum(start=10)", "title", "tojson", "trim", "trim(' d')", "truncate(8)", "truncate(8, true, '!', 0)", "unique|list", "unique(attribute='v')|list",
    "upper", "wordcount", "groupby('v')|map('first')|list", "groupby('k')|map(attribute='grouper')|list", "groupby('sub.n')|map(attribute='list')|list",
]
TESTS = [
    "defined", "undefined", "none", "true", "false", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "even", "odd", "lower", "upper", "callable",
    "divisibleby 3", "eq 3", "equalto(3)", "ne 'x'", "lt 3", "le 3", "gt 2", "ge 3", "in [3, 'x', 2.5]", "not none", "sameas none", "sameas true",
]
METHODS = [
    "upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip(' H')", "split()", "split(' ')", "split('o', 1)", "rsplit(None, 1)", "rsplit('o', 1)",
    "split(None, 1)", "splitlines()", "replace('o', 'oo')", "find('o')", "rfind('o')", "count('o')", "startswith(' H')", "startswith(('one', ' '))", "endswith(('x', 'e'))", "index('o')", "isdigit()",
    "isalpha()", "isupper()", "islower()", "isspace()", "isalnum()", "zfill(20)", "ljust(18, '.')", "rjust(18)", "center(17, '*')", "partition('o')", "rpartition('o')", "removeprefix(' H')",
    "removesuffix('e')", "join(['x', 'y'])", "format(1)",
]
EXPRESSIONS = [
    "n + f", "n - neg", "n * f", "n / 2", "neg // 2", "neg % 4", "n ** 2", "2 ** -1", "-n", "+n", "-f", "n ~ s ~ none ~ yes ~ l", "s * 2", "2 * l", "l + [9]", "(1, 2) + (3,)", "'%s is %d' % ('a', 3)",
    "'%05.2f|%-6s|%6s|%x|%X|%o|%e|%g|%%' % (f, 'ab', 'cd', 255, 255, 8, big, f)", "'%(k)s=%(v)r' % rows[0]", "'%r %s' % (q, q)", "'%d' % f", "'%+d % d %08.3f' % (n, n, f)", "'%s' % l", "'%5s|%-5s|%.1s' % ('é', 'é', 'éa')",
    "'%*d' % (6, n)", "'%d' % 'x'", "'%s %s' % 'x'", "'%s' % ('a', 'b')", "'%c%c' % (97, 'b')", "'{} {}'.format(1, 'a')", "'{0}{1}{0}'.format('a', 2)", "'{x:>6}|{y:<6}|{z:^6}|'.format(x=1, y='b', z=2.5)",
    "'{:,} {:.2f} {:.1%} {:05d} {:+} {:x} {:#x} {:b} {:e}'.format(big, f, f, n, n, 255, 255, 5, f)", "'{!r} {{}}'.format('a')", "'{:*^9}'.format('mid')", "'{:.3}'.format('abcdef')", "'{} {}'.format(1)", "'{:.3} {:} {:g}'.format(f, f, 1e20)",
    "1 < 2 < 3", "1 < n > 2", "n == 3.0", "yes == 1", "l == [3, 1, 2, 1]", "d == {'a': 'x', 'b': 2, 'C': none}", "(1, 2) == [1, 2]", "'a' < 'b'", "1 < 'a'", "2 in l", "'b' in d", "'lo' in s", "3 not in l", "n in (1, 3)",
    "yes and n", "no or e or 'x'", "not l", "not empty", "n if n > 5 else f", "'a' if no", "l[0]", "l[-1]", "l[9]", "l[1:]", "l[::-1]", "l[:2]", "t[4:7]", "t[::-1]", "t[-5:]", "l[3:0:-1]", "d['a']", "d.a", "d.zz", "d['zz']|default(1)",
    "rows[0].sub.n", "rows.0.k", "d.items()|list", "d.keys()|list", "d.values()|list", "d.get('a')", "d.get('zz')", "d.get('zz', 5)", "{1: 'a', 'b': 2}", "{1: 'a', 2.5: 'b', none: 'c', true: 'd'}", "{1: 'a'}[1]", "{1: 'a'}[1.0]", "{(1, 2): 'a'}[(1, 2)]",
    "{'a': {1: [2, 3]}}|tojson", "d|tojson(indent=2)", "[]|tojson(2)", "{'b': [1, {}], 'a': []}|tojson(indent=1)", "[1.0, 1e22, 1e-7, 0.1, 100000.0, 1e16, -0.0]", "q", "[q]", "[none, yes, 'a\\nb', \"'\", '\"', '\\\\']", "'a' 'b'",
    "(1)", "(1,)", "()", "1, 2", "[1, 2,]", "range(5)|list", "range(2, 9, 3)|list", "range(3, 0, -1)|list", "dict(a=1, b=2)", "dict({'x': 1}, y=2)", "dict([('a', 1)])", "s.strip().upper().split(', ')[1]", "missing", "missing.x", "missing|length", "missing ~ 'a'",
    "missing == 1", "missing is defined and missing.x", "missing or 'd'", "not missing", "n.real_", "1 // 0", "1 % 0", "1 / 0", "7 % -3", "-7 % 3", "7.5 // 2", "-7.5 % 2", "10 ** 3", "0.1 + 0.2", "1e100", "0x1F + 0b11 + 0o7", "1_000", "'x' + 1", "none + 1", "[1] + (2,)",
    "'\\x41\\u00e9\\t|'", "'%s' | format('a')", "'%s-%s' | format('a', 2)", "'%(a)s' | format(a=1)", "'a,b'.split(',') | map('upper') | join('+')", "t.split() | map('replace', 'o', '0') | list", "rows | sum(attribute='v')", "rows | map(attribute='v') | max",
    "(n is odd) ~ (n is even)", "n is divisibleby(3) and n is not none", "3 is in l", "'a' is string and 'a' is not number", "l | length > 2", "-n | abs", "-(n | abs)", "2 ** 3 ** 2", "1 + 2 * 3 - 4", "1 ~ 2 + 3", "'a' if yes else 'b' if no else 'c'", "not n == 3", "not not n", "yes is sameas true",
    "loop", "namespace(a=1).a", "caller", "'{}'.format", "s|nofilter", "n is notest", "'a'|upper(1)", "l|join(sep=',')", "q|e", "'<a href=\"x\">'|escape ~ '<'", "'x'|center(5) ~ '|'", "'abc'|attr('upper')", "d|attr('a') is defined", "[1, 2, 3]|random_", "'é'|upper", "'straße'|title",
    "[[1, 2], [3, 4]]|map('sum')|list", "[[1, 2], [3, 4]]|sum(start=[])", "[3, 1]|sort|first", "'b,a'.split(',')|sort|join", "{'x': 1}.items()|map('first')|list", "[1, 2, 3, 4]|select('divisibleby', 2)|list", "['a', '', none, 0]|select|list", "rows|selectattr('sub.n', 'ge', 3)|map(attribute='k')|join(',')", "[true, false]|map('string')|join", "[1, 1.0, true]|unique|list", "['a', 'A']|unique(true)|list",
]
STATEMENTS = [
    "{% for x in l %}{{ loop.index }}{{ loop.revindex0 }}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index0 }}{{ x }}{% else %}none{% endfor %}", "{% for x in empty %}{{ x }}{% else %}nothing{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem|default('-') }} {% endfor %}", "{% for x in w %}{{ loop.cycle('a', 'b') }}{{ x }}{% endfor %}",
    "{% for x in l %}{{ loop.changed(x % 2) }} {% endfor %}", "{% for a in l %}{% for b in w %}{{ loop.index }}{{ a }}{{ b }} {% endfor %}{{ loop.index }}{% endfor %}", "{% for c in 'abc' %}{{ c }}-{% endfor %}", "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in n %}{% endfor %}", "{% set a = 1 %}{% for x in l %}{% set a = x %}{% endfor %}{{ a }}", "{% set a = 1 %}{% if yes %}{% set a = 2 %}{% endif %}{{ a }}", "{% set ns = namespace(c=0) %}{% for x in l %}{% set ns.c = ns.c + x %}{% endfor %}{{ ns.c }}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a = [1, 2] %}{% set b = a + [3] %}{{ a }}{{ b }}", "{% set x %}a{{ n }}b{% endset %}{{ x|upper }}{{ x|length }}", "{% set x | upper %}a{{ n }}b{% endset %}{{ x }}", "{% set x | replace('a', 'b') | trim %} a {% endset %}{{ x }}|", "{% filter upper %}a{{ n }}{% endfilter %}",
    "{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% with %}{% set a = 5 %}{{ a }}{% endwith %}{{ a is defined }}", "{% raw %}{{ n }} {% if %}{% endraw %}{{ n }}", "a {%- raw -%} {{ x }} {%- endraw -%} b", "{# {{ n }} #}{{ n }}", "a\n{# c #}\nb", "{% if n == 1 %}1{% elif n == 3 %}3{% else %}x{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}", "{% if missing is defined %}a{% else %}b{% endif %}", "{% macro m(a, b='B') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}", "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}", "{% macro m() %}x{% endmacro %}{{ m(1) }}",
    "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro box(t) %}<{{ t }}:{{ caller() }}>{% endmacro %}{% call box('x') %}in{{ n }}{% endcall %}", "{% macro each(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(i) each(l) %}({{ i }}){% endcall %}", "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro m() %}{{ g }}{% endmacro %}{% set g = 5 %}{{ m() }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(2) }}", "  {% if yes %}\n  a\n  {% endif %}\nb\n", "{% if yes %}\n\n a{% endif %}\n", "x {%- if yes %} a {% endif -%} y", "x {%+ if yes %} a {% endif +%}\n y", "  {#- c -#}  x", "{{- n -}}  a  {{- n }}", "a\n  {{ n }}\n  b\n", "\n\n{{ n }}\n\n",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}", "{% for x in l %}\n{{ x }}\n{% endfor %}\n", "  {% set a = 1 %}  {% set b = 2 %}  x\n  {% set c = 3 %}\n y", "\t{% if yes %}\n\ta\n\t{% else %}\n\tb\n\t{% endif %}\n", "{% if yes %}a{% endif", "{% for x in l %}a", "{% endfor %}", "{{ n", "{% unknown %}", "{{ n }} }} %} #}", "{% set %}", "{% for in l %}{% endfor %}",
    "{% if %}{% endif %}", "{% set d.x = 1 %}", "{{ 'a' }}{{ \"b\" }}\r\n{{ 'c' }}\r", "{{ '}}' }}{{ '{{' }}{{ '%}' }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': {'b': 1}} }}", "{% set x = {'a': 1, 'b': [1, 2]} %}{{ x.b[0] }}{{ x['a'] }}", "{{ [1, 2, 3][1:][0] }}", "{% for r in rows|sort(attribute='v') %}{{ r.k }}{% endfor %}",
    "{% for g, items in rows|groupby('v') %}{{ g }}:{% for r in items %}{{ r.k }}{% endfor %};{% endfor %}", "{% for row in l|batch(2) %}{{ row }}{% endfor %}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b is defined }}",
]
CHATS = [
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}", "{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{%- if messages[0].role == 'system' %}\n    {%- set sys = messages[0].content | trim %}\n    {%- set rest = messages[1:] %}\n{%- else %}\n    {%- set sys = '' %}\n    {%- set rest = messages %}\n{%- endif %}\n{{ bos }}[{{ sys }}]\n{%- for m in rest %}\n    {{- '\\n' + m.role.upper() + ': ' + m.content.strip() }}\n{%- endfor %}\n",
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}{{ m.content }}{% endfor %}", "{{ messages[1:] | tojson }}{{ messages[0] | tojson(indent=4) }}{{ '<é>' | tojson }}{{ 'é' | tojson(ensure_ascii=true) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "{% set ns = namespace(found=false, text='') %}\n{% for m in messages %}\n  {% if m.role == 'user' and not ns.found %}\n    {% set ns.found = true %}\n    {% set ns.text = m.content %}\n  {% endif %}\n{% endfor %}\n{{ ns.text }}\n", "{{ tools is none }}{{ tools is defined }}{{ nothing is none }}{{ nothing }}|",
    "{% macro turn(m) -%}\n  <{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>\n{%- endmacro %}\n{% for m in messages %}\n{{ turn(m) }}\n{% endfor %}\n", "{% generation %}{{ messages[0].content }}{% endgeneration %}", "{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}", "{{ messages | map(attribute='role') | join(',') }}", "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "    {% if true %}\n        a\n    {% endif %}\n    b\n", "{{ nothing | default('x') }}{{ nothing | length }}{{ nothing | list }}{{ nothing | join }}{{ nothing ~ 1 }}{{ 1 in nothing }}", "{{ nothing.a }}", "{{ nothing + 1 }}", "{{ messages[0].missing }}{{ messages[9] }}|", "{{ messages[9].content }}", "{% if 'role' in messages[0] and messages[0]['content'] is string %}y{% endif %}",
]
MESSAGES = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi <you> & \"me\""}, {"role": "assistant", "content": "Fine.\nThanks é"}, {"role": "user", "content": "ok"}]


def tasks():
    env = Environment(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)
    return env


def chats():
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True)).set_lineno(line)

    def refuse(message):
        raise ValueError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = refuse
    return env


def case(env, kind, template, names):
    try:
        out = {"want": env.from_string(template).render(**copy.deepcopy(names))}
    except Exception:
        out = {"fails": True}
    if any(w in out.get("want", "") for w in ("generator object", "dict_", "<function", "method", " at 0x", "<class", "<module")):
        return None
    return {"kind": kind, "template": template, **out}


def main():
    rnd = random.Random(9)
    pairs = lambda a, b, n: rnd.sample(list(itertools.product(a, b)), n)
    templates = ["{{ " + x + " }}" for x in EXPRESSIONS] + STATEMENTS
    texts_only = lambda p: p[0] in ("s", "t", "q", "e") or not p[1].startswith(("truncate", "indent"))
    templates += ["{{ %s|%s }}" % p for p in pairs(ATOMS, FILTERS, 330) if texts_only(p)]
    templates += ["{{ %s is %s }}" % p for p in pairs(ATOMS, TESTS, 110)]
    templates += ["{{ %s.%s }}" % p for p in pairs(["s", "t", "q", "e", "'ßß 12'"], METHODS, 90)]
    env = tasks()
    cases = [case(env, "task", t, NAMES) for t in templates]
    env = chats()
    names = {**NAMES, "messages": MESSAGES, "tools": None, "bos": "<s>"}
    cases += [case(env, "chat", t, names) for t in CHATS + STATEMENTS]
    print(json.dumps({"names": NAMES, "messages": MESSAGES}, ensure_ascii=False), *[json.dumps(c, ensure_ascii=False) for c in cases if c], sep="\n")


main()
