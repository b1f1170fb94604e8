"""What compare/llama.sh runs: llama.cpp's programs and compress on the same GGUF files and tokens; see there.

The values of every tensor are compared with those that llama-quantize decodes into F32, bit for bit, and the perplexity with llama.cpp's
of these. In the file's own types llama.cpp rounds what flows through the model, too (to 8 bits beside blocks, to F16 and BF16 beside
those), which compress does not: that is the rest of the difference.

llama-perplexity cuts the text into chunks of 512 tokens and counts the second half of each. With --save-all-logits it writes the tokens
and the logarithms of the probabilities of every token there, in 65,535 steps of up to 16 (2.4e-4); `compress forward` gets the same
tokens. The texts are the project's own pages."""
import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

CONTEXT = 512
FIRST = CONTEXT // 2
PROMPTS = ["The capital of France is", "Water boils at", "To make a cup of tea, you"]
ALLOWED = 1e-5  # of the perplexity of the same values
# What llama-quantize makes of the model in F32; 576 columns are no whole blocks of the K-types, which it replaces then.
QUANTISED = ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS"]
WRITTEN = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m", "q6_k"]  # by compress


def run(args, **kw):
    done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **kw)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, args[:2]))}: {done.stderr.strip().splitlines()[-1:] or done.stdout[-200:]}")
    return done.stdout


def read_logits(path):
    """The tokens [chunks, 512] and the logarithms of probabilities [chunks, 255, vocabulary] of a file of llama-perplexity."""
    with open(path, "rb") as f:
        assert f.read(8) == b"_logits_"
        context, vocab, chunks = np.frombuffer(f.read(12), "<u4")
        tokens = np.frombuffer(f.read(4 * context * chunks), "<i4").reshape(chunks, context)
        width = 2 * ((vocab + 1) // 2) + 4
        rows = np.frombuffer(f.read(), "<u2").reshape(chunks, context - 1 - context // 2, width)
    head = rows[..., :4].copy().view("<f4")
    return tokens, head[..., :1] * rows[..., 4:4 + vocab].astype(np.float32) + head[..., 1:2], head[..., 1]


def ours(a, model, tokens, *flags):
    """The logarithms of probabilities that compress computes, chunk by chunk."""
    ids, logits = a.work / "ids.safetensors", a.work / "logits.safetensors"
    for chunk in tokens:
        save_file({"input_ids": chunk[None].astype(np.int64)}, ids)
        run([a.compress, "forward", model, "--ids", ids, "--out", logits, "--overwrite", "--threads", a.threads, "--quiet", *flags])
        x = load_file(logits)["logits"][0, FIRST:-1].astype(np.float64)
        top = x.max(-1, keepdims=True)
        yield x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
    logits.unlink()
    ids.unlink()


def compare(a, model):
    """Both sides on one file; the text must have the same tokens."""
    saved = a.work / "llama.logits"
    theirs_own = perplexity(a, model, "--save-all-logits", saved)
    tokens, theirs, floor = read_logits(saved)
    mine = json.loads(run([a.compress, "tokenize", model, "--file", a.work / "text.jsonl", "--json", "--quiet"]))[0]
    if mine[:tokens.size] != tokens.ravel().tolist():
        raise RuntimeError(f"{model}: llama.cpp cuts the text into other tokens")
    loss, kl, same, off = [], [], [], 0.0
    for i, mine in enumerate(ours(a, model, tokens)):
        want = tokens[i, FIRST + 1:]
        at = np.arange(len(want))
        loss.append(-mine[at, want])
        kept = theirs[i] > floor[i][:, None] + 1e-3  # what lies below is cut off in the file
        kl.append((np.exp(theirs[i].astype(np.float64)) * (theirs[i] - mine) * kept).sum(-1))
        same.append(mine.argmax(-1) == theirs[i].argmax(-1))
        off = max(off, float(np.abs(mine - theirs[i])[kept].max()))
    saved.unlink()
    return {"tokens": int(sum(map(len, loss))), "compress": float(np.exp(np.concatenate(loss).mean())), "llama.cpp": theirs_own,
            "kl": float(np.concatenate(kl).mean()), "same": float(np.concatenate(same).mean()), "largest": off}


def perplexity(a, model, *more):
    """What llama-perplexity prints at the end."""
    done = subprocess.run([str(x) for x in (a.llama / "llama-perplexity", "-m", model, "-f", a.work / "text.txt", "-c", CONTEXT, "-b", CONTEXT,
                                            "-t", a.threads, "--chunks", a.chunks, *more)], capture_output=True, text=True, errors="replace")
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if done.returncode or not found:
        raise RuntimeError(f"llama-perplexity {model}: {done.stderr[-300:]}")
    return float(found[1])


def decoded(a, model):
    """How many tensors have the values that llama-quantize decodes into F32, bit for bit ("272 of 272"), and llama.cpp's perplexity of these."""
    plain = a.work / "decoded.gguf"
    run([a.llama / "llama-quantize", "--allow-requantize", model, plain, "F32", a.threads])
    folder = a.work / "decoded"
    shutil.rmtree(folder, ignore_errors=True)
    run([a.compress, "convert", model, "--dtype", "f32", "--out", folder])  # where the file has F16, too
    text = run([a.compress, "inspect", "diff", folder, plain, "--quiet"])
    shutil.rmtree(folder)
    ppl = perplexity(a, plain, "-ctk", "f32", "-ctv", "f32", "-fa", "off")  # keys and values are F16 otherwise
    plain.unlink()
    return next(line for line in text.splitlines() if "are equal" in line).split(" tensors")[0], ppl


def text_of(a, model):
    """Greedy continuations of both sides; how many are equal, and the first that is not."""
    equal, other = 0, ""
    for prompt in PROMPTS:
        mine = run([a.compress, "generate", model, "--prompt", prompt, "--max-tokens", 24, "--threads", a.threads, "--quiet"]).strip()
        theirs = run([a.llama / "llama-completion", "-m", model, "-p", prompt, "-n", 24, "--temp", 0, "-t", a.threads, "-no-cnv",
                      "--no-display-prompt", "--no-warmup", "--no-perf", "--simple-io"], stdin=subprocess.DEVNULL)
        theirs = theirs.replace("[end of text]", "").strip()
        mine = mine.removeprefix(prompt).strip()
        if mine == theirs:
            equal += 1
        elif not other:
            other = f"{mine!r}, llama.cpp {theirs!r}"
    return equal, other


def files(a):
    """The files to compare: label and path. They are made when their turn comes."""
    def wanted(label):
        return not a.only or a.only in label

    plain = a.work / "f32.gguf"
    if wanted("the file itself"):
        yield "the file itself", a.model
    if not plain.exists():
        run([a.llama / "llama-quantize", "--allow-requantize", a.model, plain, "F32", a.threads])
    if wanted("llama-quantize F32"):
        yield "llama-quantize F32", plain
    for kind in filter(lambda k: wanted(f"llama-quantize {k}"), QUANTISED):
        path = a.work / f"llama-{kind}.gguf"
        run([a.llama / "llama-quantize", plain, path, kind, a.threads])
        yield f"llama-quantize {kind}", path
        path.unlink()

    verbs = [line.split()[0] for line in run([a.compress, "--help"]).splitlines() if line.strip()]
    if "quantize" not in verbs:
        print("this program writes no GGUF files: it has no verb quantize", file=sys.stderr)
        return
    folder = a.work / "folder"
    if not folder.exists():
        run([a.compress, "convert", a.model, "--dtype", "f32", "--out", folder])
    for kind in filter(lambda k: wanted(f"compress quantize {k}"), WRITTEN):
        path = a.work / f"compress-{kind}.gguf"
        path.unlink(missing_ok=True)
        run([a.compress, "quantize", folder, "--to", kind, "--out", path, "--threads", a.threads, "--quiet"])
        yield f"compress quantize {kind}", path
        path.unlink()


def main():
    p = argparse.ArgumentParser()
    for name in ("compress", "llama", "model", "work", "markdown", "json"):
        p.add_argument("--" + name, type=Path, required=True)
    p.add_argument("--text", type=Path, nargs="+", required=True)
    p.add_argument("--chunks", type=int, default=4)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--only", default="")
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(f.read_text() for f in sorted(a.text))
    (a.work / "text.txt").write_text(text)
    (a.work / "text.jsonl").write_text(json.dumps(text) + "\n")

    rows, bad = [], 0
    for label, path in files(a):
        row = {"file": label, **compare(a, path)}
        row["equal"], row["other"] = text_of(a, path)
        row["decoded"], row["same values"] = decoded(a, path)
        row["off"] = row["compress"] / row["same values"] - 1
        bad += abs(row["off"]) > ALLOWED or len(set(row["decoded"].split(" of "))) > 1
        rows.append(row)
        print(f"{label}: {row['compress']:.4f}, llama.cpp {row['same values']:.4f} ({row['off']:+.1e}), in its types {row['llama.cpp']:.4f}; "
              f"{row['other'] or 'same text'}", flush=True)

    lines = ["| file | tensors with equal values | perplexity | llama.cpp, the values in F32 | difference | llama.cpp, the file | difference | KL | same first choice |"
             " same greedy text |", "|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        own = r["llama.cpp"]
        lines.append(f"| {r['file']} | {r['decoded']} | {r['compress']:.4f} | {r['same values']:.4f} | {100 * r['off']:+.3f} % | {own:.4f} | "
                     f"{100 * (own / r['compress'] - 1):+.2f} % | {r['kl']:.1e} | {100 * r['same']:.1f} % | {r['equal']} of {len(PROMPTS)} |")
    a.markdown.write_text("\n".join(lines) + "\n")
    a.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(lines))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
