"""Adds torch's times for the work of TestMeasureDevice to its report: sort-based Wanda mask, TIES, products, attention."""

import json
import sys

import torch


def timed(f, repeats=20):
    """Median milliseconds of f, by events."""
    times = []
    for i in range(repeats + 2):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(a.elapsed_time(b))
    return sorted(times)[len(times) // 2]


def wanda(w, norm):
    """The published way: sort every row of the scores, scatter True to the lowest half."""
    score = w.abs() * norm
    mask = torch.zeros_like(w, dtype=torch.bool)
    order = torch.sort(score, dim=-1, stable=True)[1]
    mask.scatter_(1, order[:, : w.shape[1] // 2], True)
    return mask


def ties(base, deltas, density=0.2):
    """Trim by magnitude, elect the sign of the sum, mean of those that agree."""
    kept = []
    for d in deltas:
        k = int(d.numel() * (1 - density))
        t = d.abs().flatten().kthvalue(max(k, 1)).values
        kept.append(torch.where(d.abs() > t, d, 0))
    stack = torch.stack(kept)
    sign = torch.sign(stack.sum(0))
    agree = (torch.sign(stack) == sign) & (stack != 0)
    return base + (stack * agree).sum(0) / agree.sum(0).clamp(min=1)


def main(path):
    report = json.load(open(path))
    torch.manual_seed(0)
    rows, cols, tokens = 4096, 11008, 2048
    w = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)
    norm = torch.rand(1, cols, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(tokens, cols, device="cuda", dtype=torch.bfloat16)
    q, k, v = (torch.randn(1, 32, tokens, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    base, deltas = torch.randn(rows, cols, device="cuda"), [torch.randn(rows, cols, device="cuda") for _ in range(3)]
    report["torch"] = {
        "version": torch.__version__,
        "wanda_mask_ms": timed(lambda: wanda(w, norm)),
        "ties_ms": timed(lambda: ties(base, deltas), 5),
        "matmul_bf16_ms": timed(lambda: x @ w.T),
        "attention_bf16_ms": timed(lambda: attend(q, k, v, is_causal=True)),
        "attention_f32_ms": timed(lambda: attend(q.float(), k.float(), v.float(), is_causal=True)),
    }
    json.dump(report, open(path, "w"), indent=2)


main(sys.argv[1])
