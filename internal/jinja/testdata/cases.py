"""Compares the tables of ../cases_test.go with what Python's jinja2 renders, or writes them.

    python3 cases.py            # names the rows that differ; made with jinja2 3.1.6
    python3 cases.py --write    # fills in what stands on the right of every row

A row is {`template`, `text`}. What jinja2 refuses is !undefined, !syntax or !type; a row with !unknown, !cost or !limit is about what is refused here alone.
"""
import datetime, json, pathlib, re, sys
from jinja2 import BaseLoader, Environment, StrictUndefined, exceptions
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent
GO = r'(`[^`]*`|"(?:[^"\\]|\\.)*")'
ROW = re.compile(r"\t\{\s*" + GO + r",\s*" + GO + r",?\s*\},\n")


def refuse(message):
    raise ValueError(message)


def environments():
    chats = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    chats.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    now = datetime.datetime(2024, 2, 5, 7, 8, 9, tzinfo=datetime.timezone.utc)
    chats.globals.update(raise_exception=refuse, strftime_now=now.strftime)
    return {True: chats, False: Environment(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)}


def text(go):
    return go[1:-1] if go[0] == "`" else json.loads(go)


def quoted(s):
    return json.dumps(s, ensure_ascii=False) if "`" in s or "\n" in s or "\r" in s else "`" + s + "`"


def render(env, template):
    try:
        return env.from_string(template).render()
    except exceptions.UndefinedError:
        return "!undefined"
    except exceptions.TemplateSyntaxError:
        return "!syntax"
    except Exception:
        return "!type"


def row(template, want):
    line = "\t{" + template + ", " + quoted(want) + "},\n"
    return line if len(line) < 115 else "\t{\n\t\t" + template + ",\n\t\t" + quoted(want) + ",\n\t},\n"


def main():
    path, wrong, envs = HERE.parent / "cases_test.go", 0, environments()

    def checked(table, m):
        nonlocal wrong
        got = want = text(m[2])
        if want not in ("!unknown", "!cost", "!limit"):
            got = render(envs["chat" in table.lower()], text(m[1]))
        if got != want:
            wrong += 1
            print(f"{table} {m[1]}: {got!r}, the row says {m[2]}")
        return row(m[1], got)

    parts = re.split(r"(?m)^(var \w+ = \[\]row\{\n.*?^\}\n)", path.read_text(), flags=re.S)
    for i in range(1, len(parts), 2):
        table = parts[i].split()[1]
        parts[i] = ROW.sub(lambda m: checked(table, m), parts[i])
    if "--write" in sys.argv:
        path.write_text("".join(parts))
    print(wrong, "rows differ")


main()
