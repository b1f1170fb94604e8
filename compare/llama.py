"""What compare/llama.sh runs: llama.cpp's programs and compress on the same GGUF files and tokens; see there.

The values of every tensor are compared with those that llama-quantize decodes into F32, bit for bit. Then
llama-perplexity cuts the text into chunks of 512 tokens and counts the second half of each. With --save-all-logits it writes the tokens
and the logarithms of the probabilities of every token there, in 65,535 steps of up to 16 (2.4e-4); `compress forward` gets the same
tokens. The texts are the project's own pages. Beside weights in blocks llama.cpp rounds what flows through the model to 8 bits, and beside
F16 and BF16 to those, which compress does not: that is the difference of the perplexities."""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

CONTEXT = 512
FIRST = CONTEXT // 2
PROMPTS = ["The capital of France is", "Water boils at", "To make a cup of tea, you"]
# What llama-quantize makes of the model in F32; 576 columns are no whole blocks of the K-types, which it replaces then.
ALLOWED = {"F32": 1e-4, "f32": 1e-4, "Q2_K": 0.01}  # of the perplexity; others 0.005
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


def ours(a, model, tokens):
    """The logarithms of probabilities that compress computes, chunk by chunk."""
    ids, logits = a.work / "ids.safetensors", a.work / "logits.safetensors"
    for chunk in tokens:
        save_file({"input_ids": chunk[None].astype(np.int64)}, ids)
        run([a.compress, "forward", model, "--ids", ids, "--out", logits, "--overwrite", "--threads", a.threads, "--quiet"])
        x = load_file(logits)["logits"][0, FIRST:-1].astype(np.float64)
        top = x.max(-1, keepdims=True)
        yield x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
    logits.unlink()
    ids.unlink()


def compare(a, model):
    """Both sides on one file."""
    saved = a.work / "llama.logits"
    run([a.llama / "llama-perplexity", "-m", model, "-f", a.work / "text.txt", "-c", CONTEXT, "-b", CONTEXT, "-t", a.threads, "--chunks",
         a.chunks, "--save-all-logits", saved])
    tokens, theirs, floor = read_logits(saved)
    loss, theirloss, kl, same, off = [], [], [], [], 0.0
    for i, mine in enumerate(ours(a, model, tokens)):
        want = tokens[i, FIRST + 1:]
        at = np.arange(len(want))
        loss.append(-mine[at, want])
        theirloss.append(-theirs[i][at, want])
        p = np.exp(theirs[i].astype(np.float64))
        kl.append((p * (theirs[i] - mine)).sum(-1))
        same.append(mine.argmax(-1) == theirs[i].argmax(-1))
        kept = theirs[i] > floor[i][:, None] + 1e-3  # what lies below is cut off in the file
        off = max(off, float(np.abs(mine - theirs[i])[kept].max()))
    saved.unlink()
    x, y = (float(np.exp(np.concatenate(v).mean())) for v in (loss, theirloss))
    return {"tokens": int(sum(map(len, loss))), "compress": x, "llama.cpp": y, "off": x / y - 1, "kl": float(np.concatenate(kl).mean()),
            "same": float(np.concatenate(same).mean()), "largest": off}


def decoded(a, model):
    """How many tensors have the values that llama-quantize decodes, bit for bit: "272 of 272"."""
    plain = a.work / "decoded.gguf"
    run([a.llama / "llama-quantize", "--allow-requantize", model, plain, "F32", a.threads])
    text = run([a.compress, "inspect", "diff", model, plain, "--quiet"])
    plain.unlink()
    return next(line for line in text.splitlines() if "are equal" in line).split(" tensors")[0]


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
    """The files to compare: label, path, largest difference of the perplexities. They are made when their turn comes."""
    def wanted(label):
        return not a.only or a.only in label

    plain = a.work / "f32.gguf"
    if wanted("the file itself"):
        yield "the file itself", a.model, 0.005
    if not plain.exists():
        run([a.llama / "llama-quantize", "--allow-requantize", a.model, plain, "F32", a.threads])
    if wanted("llama-quantize F32"):
        yield "llama-quantize F32", plain, ALLOWED["F32"]
    for kind in filter(lambda k: wanted(f"llama-quantize {k}"), QUANTISED):
        path = a.work / f"llama-{kind}.gguf"
        run([a.llama / "llama-quantize", plain, path, kind, a.threads])
        yield f"llama-quantize {kind}", path, ALLOWED.get(kind, 0.005)
        path.unlink()

    folder = a.work / "folder"
    if not folder.exists():
        run([a.compress, "convert", a.model, "--dtype", "f32", "--out", folder])
    for kind in filter(lambda k: wanted(f"compress quantize {k}"), WRITTEN):
        path = a.work / f"compress-{kind}.gguf"
        path.unlink(missing_ok=True)
        run([a.compress, "quantize", folder, "--to", kind, "--out", path, "--threads", a.threads, "--quiet"])
        yield f"compress quantize {kind}", path, ALLOWED.get(kind, 0.005)
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
    (a.work / "text.txt").write_text("\n\n".join(f.read_text() for f in sorted(a.text)))

    rows, bad = [], 0
    for label, path, allowed in files(a):
        begun = time.time()
        row = {"file": label, "allowed": allowed, **compare(a, path)}
        row["equal"], row["other"] = text_of(a, path)
        row["decoded"] = decoded(a, path)
        row["seconds"] = time.time() - begun
        bad += abs(row["off"]) > allowed or len(set(row["decoded"].split(" of "))) > 1
        rows.append(row)
        print(f"{label}: {row['compress']:.4f}, llama.cpp {row['llama.cpp']:.4f} ({row['off']:+.2e}), {row['other'] or 'same text'}", flush=True)

    lines = ["| file | equal tensors | perplexity | llama.cpp's | difference | allowed | KL | largest difference of a logarithm | same first choice | same greedy text |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        lines.append(f"| {r['file']} | {r['decoded']} | {r['compress']:.4f} | {r['llama.cpp']:.4f} | {100 * r['off']:+.4f} % | {100 * r['allowed']:g} % | "
                     f"{r['kl']:.1e} | {r['largest']:.1e} | {100 * r['same']:.2f} % | {r['equal']} of {len(PROMPTS)} |")
    a.markdown.write_text("\n".join(lines) + "\n")
    a.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(lines))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
