"""Tokens a second of compress and llama.cpp on the same GGUF files, turn by turn.

    python compare/tokens.py --compress COMPRESS --llama DIR FILE.gguf... [--threads 1] [--rounds 3] [--without SETS]... [--markdown OUT]

DIR holds llama-bench (compare/llama.sh builds it). A round times both programs on every file: a prompt of 512 tokens, and tokens one by one (llama-bench:
128 from none; compress: 32 from one). Of either, the median of the rounds: by the clock, and by the processor time of all threads, which other work on the
machine hardly changes. llama-bench's processor time is that of four repetitions less that of one. compress is timed exact, and with --fast, which
rounds activations to 8 bits, as llama.cpp does. --without avx512 (or any list that COMPRESS_CPU_DISABLE takes) times compress once more without these
instruction sets, in the same rounds; llama.cpp keeps those that it was built with.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPT, GENERATED = 512, 128


def spent(command, without=""):
    """Runs a command: what it prints, and the processor time that it took."""
    env = {**os.environ, "COMPRESS_CPU_DISABLE": without} if without else None
    before = os.times()
    text = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, env=env).stdout
    after = os.times()
    return text, after.children_user + after.children_system - before.children_user - before.children_system


def llama(a, file, threads):
    """Tokens a second by the clock, and tokens a second of the processor."""
    rates = {}
    for kind, flags in (("prompt", ["-p", PROMPT, "-n", 0]), ("one by one", ["-p", 0, "-n", GENERATED])):
        tool = [a.llama / "llama-bench", "-m", file, "-t", threads, "-o", "json", *flags]
        _, once = spent([*tool, "-r", 1])
        text, often = spent([*tool, "-r", 4])
        tokens = PROMPT if kind == "prompt" else GENERATED
        rates[kind] = (json.loads(text)[0]["avg_ts"], 3 * tokens / max(often - once, 1e-3))
    return rates


def ours(a, file, threads, without):
    """The same of compress, exact and fast."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        tool = [a.compress, "bench", "forward", "--model", file, "--threads", threads, "--device", "cpu", "--report", report, "--quiet"]
        spent(tool, without)
        cases = json.loads(report.read_text())["cases"]
    rates = {}
    for case in cases:
        words = case["name"].split()
        if words[0] in ("prompt", "generate"):
            tokens = int(words[2] if words[0] == "prompt" else words[1])
            kind = "prompt" if words[0] == "prompt" else "one by one"
            rates[kind, words[-1]] = (tokens / case["seconds"], tokens / case["cpu_seconds"])
    return rates


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+", type=Path)
    p.add_argument("--compress", required=True, type=Path)
    p.add_argument("--llama", required=True, type=Path)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--without", action="append", default=[], metavar="SETS")
    p.add_argument("--markdown", type=Path)
    a = p.parse_args()

    found = {}
    for n in range(a.rounds):
        for file in a.files:
            for without in ["", *a.without]:
                for (kind, mode), rate in ours(a, file, a.threads, without).items():
                    found.setdefault((file, kind, mode, without), []).append(rate)
            for kind, rate in llama(a, file, a.threads).items():
                for without in ["", *a.without]:
                    found.setdefault((file, kind, "llama.cpp", without), []).append(rate)
            print(f"round {n + 1} of {a.rounds}: {file.name}", file=sys.stderr)

    head = f"| file, {a.threads} thread(s) | tokens | without | exact | fast | llama.cpp | fast : llama.cpp |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for file in a.files:
        for kind in ("prompt", "one by one"):
            for without in ["", *a.without]:
                lines.append(row(found, file, kind, without))
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if a.markdown:
        a.markdown.write_text(text)


def row(found, file, kind, without):
    """A line of the table: medians of the rounds by the clock, and of the processor in brackets."""
    cells, cpu = [], {}
    for mode in ("exact", "fast", "llama.cpp"):
        rates = found[file, kind, mode, without]
        clock, cpu[mode] = (statistics.median(r[i] for r in rates) for i in range(2))
        cells.append(f"{clock:.1f} ({cpu[mode]:.1f})")
    return f"| {file.name} | {kind} | {without or '-'} | {' | '.join(cells)} | {cpu['fast'] / cpu['llama.cpp']:.2f} |"


if __name__ == "__main__":
    main()
