"""compress lora combine in core space and by KnOTS beside their formulas in torch.

    python3 compare/core.py COMPRESS ADAPTER ADAPTER …

The adapters are folders of PEFT's LoRA without patterns of ranks or scales. Every change is computed from whole matrices, by SVDs of them
as the publications have them (arXiv 2509.17786, 2410.19735, 2412.00081, 2502.04959), and compared with what compress writes: the largest
difference of a matrix' change, relative to its norm. Needs torch and safetensors.
"""
import json
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

DENSITY = 0.4


def read(path):
    """B, A and the scale of every module."""
    with open(f"{path}/adapter_config.json") as f:
        c = json.load(f)
    scale = c["lora_alpha"] / (c["r"] ** 0.5 if c.get("use_rslora") else c["r"])
    t = {k: v.double() for k, v in load_file(f"{path}/adapter_model.safetensors").items()}
    return {k[:-len(".lora_A.weight")]: (t[k.replace("lora_A", "lora_B")], t[k], scale) for k in t if k.endswith(".lora_A.weight")}


def trimmed(x):
    n = int(DENSITY * x.numel())
    kept = torch.zeros(x.numel(), dtype=x.dtype)
    order = x.abs().flatten().argsort(descending=True, stable=True)[:n]
    kept[order] = x.flatten()[order]
    return kept.reshape(x.shape)


def ties(list):
    x = torch.stack([trimmed(m) for m in list])
    sign = torch.where(x.sum(0) < 0, -1.0, 1.0)
    agree = torch.sign(x) == sign
    return (x * agree).sum(0) / agree.sum(0).clamp(min=1)


def svd(x):
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    n = int((s > 1e-12 * s[0]).sum())
    return u[:, :n], s[:n], v[:n]


def iso(x):
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return s.mean() * (u @ v)


def tsv(list, ranks):
    us, ss, vs = zip(*((u[:, :r], s[:r], v[:r]) for (u, s, v), r in zip(map(svd, list), ranks)))
    (a, _, b), (c, _, d) = svd(torch.cat(us, 1)), svd(torch.cat(vs, 0))
    return a @ b @ torch.diag(torch.cat(ss)) @ c @ d


def merged(method, parts):
    how, space = method.rsplit("_", 1)
    changes = [s * b @ a for b, a, s in parts]
    if space == "knots":
        u, s, v = svd(torch.cat(changes, 1))
        return u @ torch.diag(s) @ ties(v.chunk(len(changes), 1))

    u = svd(torch.cat([b for b, _, _ in parts], 1))[0]
    v = svd(torch.cat([a for _, a, _ in parts], 0))[2]
    cores = [u.T @ d @ v.T for d in changes]
    ranks = [a.shape[0] for _, a, _ in parts]
    x = {"ties": lambda: ties(cores), "iso": lambda: iso(sum(cores)), "tsv": lambda: tsv(cores, ranks),
         "tsv_iso": lambda: iso(tsv(cores, ranks))}[how]()
    return u @ x @ v


def main():
    compress, paths = sys.argv[1], sys.argv[2:]
    adapters = [read(p) for p in paths]
    for method in ("ties_core", "iso_core", "tsv_core", "tsv_iso_core", "ties_knots"):
        with tempfile.TemporaryDirectory() as tmp:
            extra = ["--density", str(DENSITY)] if method.startswith("ties") else []
            subprocess.run([compress, "lora", "combine", *paths, "--method", method, *extra, "--out", f"{tmp}/out", "--quiet"], check=True,
                           stdout=subprocess.DEVNULL)
            ours, worst = read(f"{tmp}/out"), 0.0
            for name, (b, a, scale) in ours.items():
                want = merged(method, [x[name] for x in adapters if name in x])
                worst = max(worst, float((scale * b @ a - want).norm() / want.norm()))
            print(f"{method}: {len(ours)} matrices, differ by at most {worst:.1e} of the change")


main()
