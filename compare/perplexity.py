"""The perplexity of GGUF files by llama-perplexity and by compress, on the same tokens.

    python3 compare/perplexity.py COMPRESS LLAMA MODEL TEXT WORK [CHUNKS [TYPES]]     # needs numpy and safetensors

COMPRESS is the program, LLAMA the folder of llama.cpp's programs, MODEL a folder that compress quantize makes the files of, WORK a folder for
these. As llama-perplexity does it, the text is cut into CHUNKS (8) of 512 tokens, of which the second half is scored. Of every type: our
perplexity with exact products, that with --fast, llama.cpp's of the file, and what each is off the first. THREADS (2) is a variable.
WORK/perplexity.json keeps what is measured: a second call goes on.
"""
import argparse
import json
import os
import pathlib
import sys

import numpy as np

import llama

TYPES = "f16 bf16 q8_0 q6_k q5_k_m q5_k_s q4_k_m q4_k_s q4_0 q4_1 q5_0 q5_1 q3_k_m q2_k iq4_nl iq4_xs mxfp4"


def perplexity(a, model, tokens, *flags):
    loss = []
    for chunk, mine in zip(tokens, llama.ours(a, model, tokens, *flags)):
        want = chunk[llama.FIRST + 1:]
        loss.append(-mine[np.arange(len(want)), want])
    return float(np.exp(np.concatenate(loss).mean()))


def main():
    compress, programs, model, text, work = map(pathlib.Path, sys.argv[1:6])
    chunks = int(sys.argv[6]) if len(sys.argv) > 6 else 8
    a = argparse.Namespace(compress=compress, llama=programs, work=work, chunks=chunks, threads=os.environ.get("THREADS", "2"))
    work.mkdir(parents=True, exist_ok=True)
    words = text.read_text()
    (work / "text.txt").write_text(words)
    (work / "text.jsonl").write_text(json.dumps(words) + "\n")
    ids = json.loads(llama.run([compress, "tokenize", model, "--file", work / "text.jsonl", "--json", "--quiet"]))[0]
    tokens = np.array(ids[:chunks * llama.CONTEXT]).reshape(chunks, llama.CONTEXT)

    kept = work / "perplexity.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    for kind in (sys.argv[7] if len(sys.argv) > 7 else TYPES).split():
        if kind in found:
            continue
        path = work / f"{kind}.gguf"
        path.unlink(missing_ok=True)
        llama.run([compress, "quantize", model, "--to", kind, "--out", path, "--quiet"])
        found[kind] = {"compress": perplexity(a, path, tokens), "fast": perplexity(a, path, tokens, "--fast"), "llama.cpp": llama.perplexity(a, path)}
        path.unlink()
        kept.write_text(json.dumps(found, indent=1) + "\n")

    print("| type | compress | compress `--fast` | llama.cpp |\n|---|---|---|---|")
    for kind, f in found.items():
        exact = f["compress"]
        print(f"| {kind} | {exact:.4f} | " + " | ".join(f"{f[k]:.4f} ({100 * (f[k] / exact - 1):+.2f} %)" for k in ("fast", "llama.cpp")) + " |")


main()
