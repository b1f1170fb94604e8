"""Compares the tables of ../library_test.go with what Hugging Face's tokenizers does, or writes them.

    python3 tokenizers.py            # names the rows that differ; made with tokenizers 0.23
    python3 tokenizers.py --write    # fills in what stands last in every row

A row is {`component`, "text", `result`}: pieces with their bytes in the text, or the text that a normalizer gives.
"""
import json, pathlib, re, sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path = [p for p in sys.path if pathlib.Path(p or ".").resolve() != HERE]  # this file has the library's name
from tokenizers import Tokenizer, models  # noqa: E402

GO = r'(`[^`]*`|"(?:[^"\\]|\\.)*")'
ROW = re.compile(r"\t\{\s*" + ",\\s*".join([GO] * 3) + r",?\s*\},\n")


def text(go):
    return go[1:-1] if go[0] == "`" else json.loads(go)


def pieces(spec, s):
    whole = json.loads(Tokenizer(models.BPE()).to_str())
    whole["pre_tokenizer"] = json.loads(spec)
    at = [0]
    for c in s:
        at.append(at[-1] + len(c.encode()))
    out = Tokenizer.from_str(json.dumps(whole)).pre_tokenizer.pre_tokenize_str(s)
    return json.dumps([[p, at[a], at[b]] for p, (a, b) in out], ensure_ascii=False, separators=(",", ":"))


def normal(spec, s):
    whole = json.loads(Tokenizer(models.BPE()).to_str())
    whole["normalizer"] = json.loads(spec)
    return json.dumps(Tokenizer.from_str(json.dumps(whole)).normalizer.normalize_str(s), ensure_ascii=True)


def row(spec, s, want):
    if want[0] != '"':
        want = json.dumps(want) if "`" in want else "`" + want + "`"
    line = "\t{" + ", ".join([spec, s, want]) + "},\n"
    return line if len(line) < 112 else "\t{\n\t\t" + spec + ", " + s + ",\n\t\t" + want + ",\n\t},\n"


def main():
    path, wrong = HERE.parent / "library_test.go", 0

    def checked(f, m):
        nonlocal wrong
        got = f(text(m[1]), text(m[2]))
        if json.loads(got) != json.loads(m[3] if f is normal and m[3][0] == '"' else text(m[3]) or "null"):
            wrong += 1
            print(f"{m[1]} {m[2]}: {got}, the row says {m[3]}")
        return row(m[1], m[2], got)

    parts = re.split(r"(?m)^(var \w+ = \[\]libraryRow\{\n.*?^\}\n)", path.read_text(), flags=re.S)
    for i in range(1, len(parts), 2):
        f = normal if "ormal" in parts[i].split()[1] else pieces
        parts[i] = ROW.sub(lambda m: checked(f, m), parts[i])
    if "--write" in sys.argv:
        path.write_text("".join(parts))
    print(wrong, "rows differ")


main()
