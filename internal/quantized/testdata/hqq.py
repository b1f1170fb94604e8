"""Writes hqq.safetensors: groups of weights, and the zero points that HQQ's formula finds for them, by torch.

    pip install torch==2.15.0 safetensors
    python hqq.py

The formula is that of https://mobiusml.github.io/hqq_blog and of the package hqq 0.2.8, optimize_weights_proximal_legacy,
for one group at a time, whose search ends when that group's error grows, where the package looks at the whole matrix.
scale is the reciprocal of a step, zero any number, codes are 0 to 15.
"""
import pathlib

import torch
from safetensors.torch import save_file

torch.manual_seed(20261122)
x = torch.randn(48, 32, dtype=torch.float64) * torch.exp(torch.randn(48, 1, dtype=torch.float64)) * 0.05
x[1] = x[1].abs() + 0.01
x[2, 3] = 3
x[3] = torch.distributions.StudentT(2.0).sample((32,)).double() * 0.02
x = x.float()


def hqq(w, bits=4, norm=0.7, beta=1e1, kappa=1.01, rounds=20):
    low, high = min(w.min().item(), 0.0), max(w.max().item(), 0.0)
    most = 2**bits - 1
    scale = most / (high - low)
    zero = -low * scale
    w = w.double()
    best, found = float("inf"), zero
    for _ in range(rounds):
        q = torch.round(w * scale + zero).clamp(0, most)
        r = (q - zero) / scale
        error = (w - r).abs().mean().item()
        if error >= best:
            break
        best, found = error, zero
        e = w - r
        e = torch.sign(e) * torch.relu(e.abs() - e.abs().pow(norm - 1) / beta)
        zero = torch.mean(q - (w - e) * scale).item()
        beta *= kappa
    return 1 / scale, found, best


found = torch.tensor([hqq(row) for row in x], dtype=torch.float64).float()
save_file({"x": x, "step": found[:, 0].contiguous(), "zero": found[:, 1].contiguous(), "error": found[:, 2].contiguous()},
          pathlib.Path(__file__).parent / "hqq.safetensors")
