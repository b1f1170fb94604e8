"""Opens what compress prune --layers, --ffn, --heads, --kv-heads, --hidden and --experts write with transformers.

    pip install torch==2.15.0 transformers==5.23.0 safetensors numpy
    python compare/smaller.py COMPRESS WORK MODEL...

A MODEL is a folder (such as lm/testdata/families/*, or a real one), or drawn:olmoe, drawn:mixtral, drawn:qwen3_moe: a
mixture of that kind with 16 experts and drawn weights, which transformers makes, or made:FOLDER: a smaller model that is
there already, and is only opened. For every model and every cut that its architecture has a form for: the
largest difference between the logits of transformers and those of compress forward on the same folder, of the largest
logit. Weights are compared in F32. Where a random model has experts or neurons too few to cut, a line says what
compress says.
"""
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

compress, work, models = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
cuts = {
    "layers": ["--layers", "50%", "--layer-score", "influence"],
    "neurons": ["--ffn", "50%"],
    "heads": ["--heads", "50%"],
    "key/value heads": ["--kv-heads", "50%"],
    "channels": ["--hidden", "25%"],
    "experts": ["--experts", "25%"],
    "layers and neurons": ["--layers", "50%", "--layer-score", "influence", "--ffn", "25%", "--no-restore"],
}
work.mkdir(parents=True, exist_ok=True)


def run(*words):
    return subprocess.run([compress, *map(str, words)], capture_output=True, text=True)


def drawn(kind):
    """A mixture with drawn weights, as its own class in transformers saves it."""
    config = AutoConfig.for_model(kind, vocab_size=512, hidden_size=192, intermediate_size=96, moe_intermediate_size=96,
                                  num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, head_dim=32, num_experts=16,
                                  num_local_experts=16, num_experts_per_tok=4, pad_token_id=0, eos_token_id=1, bos_token_id=1)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(1 if p.dim() == 1 else 0, 0.1)  # norms away from 1, and routers that prefer some experts
    model.save_pretrained(work / kind)
    return work / kind


def difference(out, ids):
    """The largest difference of the logits of a folder in compress and in transformers, of the largest; or what went wrong."""
    said = run("forward", out, "--ids", work / "ids.safetensors", "--out", work / "logits.safetensors", "--overwrite", "--quiet")
    assert said.returncode == 0, said.stderr
    ours = load_file(work / "logits.safetensors")["logits"].reshape(-1)
    try:
        theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager",
                                                      experts_implementation="eager").eval()
        with torch.no_grad():
            logits = theirs(torch.tensor(ids)).logits.float().numpy().reshape(-1)
        return np.abs(ours - logits).max() / np.abs(logits).max()
    except Exception as e:
        return f"{type(e).__name__}: {' '.join(str(e).split())[:160]}"


def show(x):
    return x if isinstance(x, str) else f"{x:.0e}"


print("| model | " + " | ".join(cuts) + " |")
print("|---" * (len(cuts) + 1) + "|")
worst = 0.0
for model in models:
    made = model.startswith("made:")
    model = model.removeprefix("made:")
    if model.startswith("drawn:"):
        model = drawn(model.removeprefix("drawn:"))
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    ids = np.random.default_rng(1).integers(3, config["vocab_size"], (4, 24)).astype(np.int64)
    save_file({"input_ids": ids}, work / "ids.safetensors")
    if made:
        found = difference(model, ids)
        print(f"| {model} | {show(found)} |", flush=True)
        continue

    row = []
    for name, flags in cuts.items():
        out = work / "cut"
        shutil.rmtree(out, ignore_errors=True)
        said = run("prune", model, *flags, "--calib", work / "ids.safetensors", "--samples", 4, "--seqlen", 24, "--out", out,
                   "--quiet")
        if said.returncode != 0:
            row.append("–")
            print(f"{pathlib.Path(model).name}, {name}: {said.stderr.strip()}", file=sys.stderr)
            continue
        found = difference(out, ids)
        if not isinstance(found, str):
            worst = max(worst, found)
        row.append(show(found))
    print(f"| {pathlib.Path(model).name} | " + " | ".join(row) + " |", flush=True)
print(f"largest: {worst:.1e}")
