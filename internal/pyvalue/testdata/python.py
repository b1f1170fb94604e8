"""Compares the tables of ../python_test.go with what CPython says, or writes them.

    python3 python.py            # names the rows that differ; made with CPython 3.11
    python3 python.py --write    # fills in what stands on the right of every row

A row is {`arguments`, `result`}: a tuple in Python's notation, and repr() of what the function gives or the name of the exception that it raises. Where Go needs
quotes of its own for a row, they are Go's.
"""
import ast, json, pathlib, re, sys

HERE = pathlib.Path(__file__).resolve().parent


def listed(v):
    """What ParseLiteral makes of a literal: tuples become lists."""
    if isinstance(v, (list, tuple)):
        return [listed(x) for x in v]
    return {k: listed(x) for k, x in v.items()} if isinstance(v, dict) else v


def order(a, b):
    return "==" if a == b else "<" if a < b else ">" if a > b else "none"


def equal(a, b):
    return a == b


def keys(*ks):
    d = {}
    for i, k in enumerate(ks):
        d[k] = i
    return d


def dumps(v, kw):
    return json.dumps(v, **kw)


TABLES = {
    "reprs": lambda v: v, "truths": lambda v: bool(v), "orders": order, "equals": equal, "dicts": keys,
    "percents": lambda f, a: f % a, "formats": lambda v, s: format(v, s), "fields": lambda f, a, kw: f.format(*a, **kw),
    "ints": lambda s, b: int(s, b), "floats": lambda s: float(s), "rounds": lambda f, n: round(f, n),
    "uppers": lambda s: (s.upper(), s.lower(), s.capitalize(), s.title(), s.swapcase(), s.strip()),
    "dumped": dumps, "literals": lambda s: listed(ast.literal_eval(s)),
}
ROW = re.compile(r'^(\s*\{)(`[^`]*`|"(?:[^"\\]|\\.)*"), (`[^`]*`|"(?:[^"\\]|\\.)*")(\},?)$')


def text(go):
    return go[1:-1] if go[0] == "`" else json.loads(go)


def quoted(s):
    return json.dumps(s, ensure_ascii=False) if "`" in s or "\n" in s else "`" + s + "`"


def main():
    path, table, wrong, out = HERE.parent / "python_test.go", None, 0, []
    for line in path.read_text().splitlines():
        if m := re.match(r"^var (\w+) = \[\]row\{$", line):
            table = m[1]
        elif (m := ROW.match(line)) and table in TABLES:
            try:
                got = repr(TABLES[table](*eval(text(m[2]), {"nan": float("nan"), "inf": float("inf"), "true": True, "false": False, "none": None})))
            except Exception as e:
                got = type(e).__name__
            if got != text(m[3]):
                wrong += 1
                print(f"{table} {m[2]}: {got}, the row says {m[3]}")
            line = m[1] + m[2] + ", " + quoted(got) + m[4]
        out.append(line)
    if "--write" in sys.argv:
        path.write_text("\n".join(out) + "\n")
    print(wrong, "rows differ")


main()
