"""Draws a table of compare/front.sh that a page holds, whose reports are not kept.

    python3 compare/frontsvg.py COMPRESS PAGE OUT.svg [MARK]

The table is the first one behind MARK (a text of the page; its beginning by default) whose first two columns are "form" and "MB". Of a
form, size, perplexity and divergence are what the table says, to its digits. Python alone is enough.
"""
import json
import os
import re
import subprocess
import sys
import tempfile


def rows(page, mark):
    """The cells of the table, row by row."""
    with open(page) as f:
        text = f.read()
    lines = iter(text[text.index(mark):].splitlines())
    for line in lines:
        if re.match(r"\| form \| MB \|", line):
            break
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        yield [c.strip() for c in line.strip("|").split("|")]


def report(form, mb, ppl, paired, kl, top):
    """What compress ppl --against reports of a form, as far as a picture asks."""
    mean, error = kl.split(" ± ")
    return {
        "command": "compress ppl",
        "model": form,
        "model_bytes": round(float(mb) * 1e6),
        "ppl": float(ppl),
        "against": {
            "model": "dense", "kl": float(mean), "kl_stderr": float(error), "same_top": float(top.rstrip(" %")) / 100,
            "paired": {"nll_difference": float(paired.split(" ")[0])},
        },
    }


def main():
    program, page, out, *mark = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for form, mb, ppl, paired, kl, top, *_ in rows(page, "".join(mark)):
            paths.append(os.path.join(folder, form + ".json"))
            with open(paths[-1], "w") as f:
                json.dump(report(form, mb, ppl, paired, kl, top), f)
        subprocess.run([program, "report", *paths, "--out", out, "--overwrite"], check=True)


main()
