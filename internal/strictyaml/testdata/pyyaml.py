"""Writes pyyaml.jsonl: documents in every style that PyYAML writes, and some by hand, with what it reads of them, all scalars as text.

    python3 pyyaml.py > pyyaml.jsonl        # made with PyYAML 6.0
"""
import json, random, yaml

HAND = [
    "a: |\n  one\n  two\n", "a: |-\n  one\n\n  two\n\n", "a: |+\n  one\n\nb: 1\n", "a: >\n  one\n  two\n\n  three\n", "a: >-\n  one\n   more\n  two\n", "a: |2\n   x\n  y\n", "a: >+\n  x\n\n\nb: 1\n",
    "a: 'it''s'\n", "a: 'one\n  two'\n", "a: \"one\n  two\"\n", "a: \"one\\\n  two\"\n", "a: one\n  two\n  three\n", "a: one # comment\n", "a: 'x # y'\n", "a: x#y\n", "# top\na: 1 # b\n# end\n",
    "a: [1, 'two', \"three\", [four], {five: 6}]\n", "a: {b: 1, c: [2, 3], d: {e: f}}\n", "a: [\n  1,\n  2,\n]\n", "a: {\n  b: 1,\n  c: 2\n}\n", "- a\n- - b\n  - c\n- d: 1\n  e: 2\n-\n  f: 3\n", "a:\n- 1\n- 2\nb:\n  - 3\n",
    "a: \"\\x41\\u00e9\\U0001F600\\t\\n\\\\\\\"\\/\\e\\0\\_\"\n", "\"quoted key\": 1\n'other key': 2\n", "a: -1\nb: +2\nc: .5\nd: 1e3\ne: 0x1F\nf: 1_000\ng: 12:30\n", "a: http://x.y/z?q=1#f\n", "a: b:c\nd: e:f g\n", "a: -x\nb: ?y\nc: :z\n",
    "a: &x [1, 2]\nb: *x\n", "a: !!str 12\n", "a:\nb: ~\nc: null\nd: ''\n", "a: [ ]\nb: { }\n", "--- \na: 1\n", "---\na: 1\n...\n", "a: 1\r\nb: 2\r\n", "a: {b: 'c, d', e: \"f: g\"}\n", "a: [b c, d e]\n", "- |\n  x\n- >\n  y\n  z\n", "a:\n  b:\n    c: 1\n  d: 2\ne: 3\n",
    "a: '  spaces  '\nb: \"  both\\t\"\n", "k: 'é 中 😀'\n", "a: |\n  tab\there\n  # no comment\n", "a: \"\"\n", "a: 'x\n\n  y'\n", "a: x\n\n  y\n", "a: >\n\n  x\n", "a: |\n\n  x\n\n\n",
]
WORDS = ["plain", "two words", "it's", 'say "x"', "", " lead", "trail ", "a: b", "c #d", "- e", "[f", "{g}", "h,i", "é中", "line\nbreak", "two\n\nbreaks\n", "tab\t", "~", "null", "true", "No", "1", "1.5", "-", "?", ":", "&a", "*b", "!c", "%d", "@e", "`f", "|", ">", "long " * 12, "back\\slash", "x" * 30 + " " + "y" * 30, "\u00a0", "a\rb", "😀"]

KEYS = [w for w in WORDS[:20] if w and "\n" not in w]  # others need a question mark in front, which is not read here


def draw(r, depth=0):
    kind = r.random()
    if depth < 3 and kind < 0.25:
        return [draw(r, depth + 1) for _ in range(r.randint(0, 3))]
    if depth < 3 and (kind < 0.5 or depth == 0):
        return {r.choice(KEYS): draw(r, depth + 1) for _ in range(r.randint(1, 3))}
    return r.choice(WORDS)


def main():
    r, docs = random.Random(3), list(HAND)
    while len(docs) < 330:
        docs.append(yaml.dump(draw(r), default_flow_style=r.choice([None, True, False]), default_style=r.choice([None, None, None, "'", '"', "|", ">"]), width=r.choice([20, 40, 80]), indent=r.choice([2, 4]), allow_unicode=r.random() < 0.7, sort_keys=False, explicit_start=r.random() < 0.1))
    for text in docs:
        print(json.dumps({"text": text, "want": yaml.load(text, yaml.BaseLoader)}, ensure_ascii=False))


main()
