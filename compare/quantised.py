"""Opens what compress quantize writes with transformers and compressed-tensors, and compares logits and values.

    pip install torch==2.15.0 transformers==5.23.0 compressed-tensors==0.20.0 accelerate==1.15.0 safetensors numpy
    python compare/quantised.py COMPRESS MODEL WORK [GROUP [SCHEMES]]

For every scheme of folders (w4a16+down_proj=w8a16 is one with --type down_proj=w8a16): transformers loads the folder (compressed-tensors decompresses it), and its logits for 48
tokens are held against those of compress forward on the same folder: the largest difference, of the largest logit.
GPTQ's layout needs gptqmodel in transformers, which needs a GPU; it is left out.
"""
import pathlib
import subprocess
import sys

import numpy as np
import torch
from compressed_tensors.quantization import disable_quantization
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

compress, model, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
group = sys.argv[4] if len(sys.argv) > 4 else "0"
work.mkdir(parents=True, exist_ok=True)

vocabulary = AutoModelForCausalLM.from_pretrained(model).config.vocab_size
ids = np.random.default_rng(1).integers(3, vocabulary, (1, 48))
save_file({"input_ids": ids.astype(np.int64)}, work / "ids.safetensors")

print("| scheme | largest difference of logits | same choice of next token |")
print("|---|---|---|")
for scheme in (sys.argv[5] if len(sys.argv) > 5 else "w4a16 w4a16_asym w8a16 w8a8 fp8_dynamic fp8_block nvfp4a16 mxfp4a16").split():
    out = work / scheme
    to, *types = scheme.split("+")
    words = [compress, "quantize", model, "--to", to, "--out", str(out), "--overwrite", "--quiet"]
    for one in types:
        words += ["--type", one]
    if scheme.startswith("w4") and group != "0":
        words += ["--group-size", group]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([compress, "forward", str(out), "--ids", str(work / "ids.safetensors"), "--out",
                    str(work / "logits.safetensors"), "--overwrite", "--quiet"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    ours = load_file(work / "logits.safetensors")["logits"].reshape(48, -1)

    try:
        theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    except Exception as e:  # one scheme that the libraries cannot load must not hide the others
        print(f"| {scheme} | not loaded: {type(e).__name__} | |", flush=True)
        continue
    theirs.apply(disable_quantization)  # of activations: what is compared is the weights
    with torch.no_grad():
        logits = theirs(torch.tensor(ids)).logits[0].float().numpy()
    same = (ours.argmax(-1) == logits.argmax(-1)).mean()
    print(f"| {scheme} | {np.abs(ours - logits).max() / np.abs(logits).max():.1e} | {same:.3f} |", flush=True)
