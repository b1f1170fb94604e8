"""Adds torch's times for the work of TestMeasureDevice to its report, and the ratios that promises are made about.

    python3 torch_check.py REPORT.json [--device cuda] [--shrink 1]

With --device cpu --shrink 32 it only shows that it runs: sizes are divided, times mean nothing.
"""

import argparse
import json
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("report")
parser.add_argument("--device", default="cuda")
parser.add_argument("--shrink", type=int, default=1)
options = parser.parse_args()
device, shrink = options.device, options.shrink
functional = torch.nn.functional


def timed(f, repeats=20):
    """Median milliseconds of f, by events where the device has them, after a sum that hides the launches and takes the caches, as in measure_test.go."""
    times = []
    lead = torch.zeros(2 * 4096 * 11008, device=device) if device == "cuda" else None
    for i in range(repeats + 2 if device == "cuda" else 3):
        if device == "cuda":
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            lead.sum()
            a.record()
            f()
            b.record()
            torch.cuda.synchronize()
            ms = a.elapsed_time(b)
        else:
            start = time.perf_counter()
            f()
            ms = 1e3 * (time.perf_counter() - start)
        if i >= 2:
            times.append(ms)
    return sorted(times)[len(times) // 2]


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=device, dtype=dtype)


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
        t = d.abs().flatten().float().kthvalue(max(k, 1)).values
        kept.append(torch.where(d.abs() > t, d, 0))
    stack = torch.stack(kept)
    sign = torch.sign(stack.sum(0))
    agree = (torch.sign(stack) == sign) & (stack != 0)
    return base + (stack * agree).sum(0) / agree.sum(0).clamp(min=1)


class Llama:
    """A forward pass of the shape of llama in measure_lines_test.go, with one block's weights for all blocks, and an adapter of rank 16."""

    def __init__(self):
        self.tokens, self.hidden, self.inner = 1024 // shrink, 2048 // shrink, 8192 // shrink
        self.heads, self.groups, self.blocks, self.words = max(32 // shrink, 1), max(8 // shrink, 1), max(16 // shrink, 1), 128256 // shrink
        self.dim = self.hidden // self.heads
        scale = self.hidden**-0.5
        self.wq, self.wo = random(self.hidden, self.hidden) * scale, random(self.hidden, self.hidden) * scale
        self.wk, self.wv = random(self.groups * self.dim, self.hidden) * scale, random(self.groups * self.dim, self.hidden) * scale
        self.wg, self.wu = random(self.inner, self.hidden) * scale, random(self.inner, self.hidden) * scale
        self.wd, self.head = random(self.hidden, self.inner) * scale, random(self.words, self.hidden) * scale
        self.norm = torch.ones(self.hidden, device=device, dtype=torch.bfloat16)
        self.a = (random(16, self.hidden) * scale).requires_grad_()
        self.b = torch.zeros(self.hidden, 16, device=device, dtype=torch.bfloat16).requires_grad_()
        self.x = random(self.tokens, self.hidden)
        self.labels = torch.zeros(self.tokens, device=device, dtype=torch.long)

    def split(self, y, heads):
        return y.view(1, self.tokens, heads, self.dim).transpose(1, 2)

    def forward(self, adapted=False):
        x = self.x
        for _ in range(self.blocks):
            h = functional.rms_norm(x, (self.hidden,), self.norm)
            q, k, v = h @ self.wq.T, h @ self.wk.T, h @ self.wv.T
            if adapted:
                q = q + h @ self.a.T @ self.b.T
            k, v = (self.split(y, self.groups).repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
            o = functional.scaled_dot_product_attention(self.split(q, self.heads), k, v, is_causal=True)
            x = x + o.transpose(1, 2).reshape(self.tokens, self.hidden) @ self.wo.T
            h = functional.rms_norm(x, (self.hidden,), self.norm)
            x = x + (functional.silu(h @ self.wg.T) * (h @ self.wu.T)) @ self.wd.T
        return functional.rms_norm(x, (self.hidden,), self.norm) @ self.head.T

    def step(self):
        functional.cross_entropy(self.forward(True), self.labels).backward()


def measure():
    rows, cols, tokens = 4096 // shrink, 11008 // shrink // 8 * 8, 2048 // shrink
    w, norm, x = random(rows, cols), torch.rand(1, cols, device=device, dtype=torch.bfloat16), random(tokens, cols)
    heads = max(32 // shrink, 1)
    q, k, v = (random(1, heads, tokens, 128) for _ in range(3))
    attend = functional.scaled_dot_product_attention
    base, deltas, llama = random(rows, cols), [random(rows, cols) for _ in range(3)], Llama()
    out = {
        "version": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "wanda_mask_ms": timed(lambda: wanda(w, norm)),
        "ties_ms": timed(lambda: ties(base, deltas), 5),
        "matmul_bf16_ms": timed(lambda: x @ w.T),
        "attention_bf16_ms": timed(lambda: attend(q, k, v, is_causal=True)),
        "attention_f32_ms": timed(lambda: attend(q.float(), k.float(), v.float(), is_causal=True)),
    }
    with torch.no_grad():
        out["forward_1b_ms"] = timed(llama.forward)
    out["lora_step_1b_ms"] = timed(llama.step, 5)
    return out


def compare(report, theirs):
    """Their time divided by ours: above 1 we are faster."""
    ours = {f["name"]: f["ms"] for f in report.get("figures") or []}
    for line, name, other in (
        ("score_mask_times_torch", "Wanda score and row mask, BF16", "wanda_mask_ms"),
        ("ties_times_torch", "Merge, TIES of 3, BF16", "ties_ms"),
        ("matmul_times_torch", "MatMulNT BF16 weight, fast", "matmul_bf16_ms"),
        ("own_matmul_times_torch", "MatMulNT BF16 weight, fast, own kernel", "matmul_bf16_ms"),
        ("attention_times_torch_bf16", "Attention", "attention_bf16_ms"),
        ("attention_times_torch_f32", "Attention", "attention_f32_ms"),
        ("forward_1b_times_torch", "forward, 1B Llama, 1024 tokens", "forward_1b_ms"),
        ("lora_step_1b_times_torch", "LoRA step, 1B Llama, 1024 tokens", "lora_step_1b_ms"),
    ):
        if ours.get(name, 0) > 0:
            report["lines"][line] = theirs[other] / ours[name]


torch.manual_seed(0)
with open(options.report) as f:
    report = json.load(f)
report["torch"] = measure()
report["lines"] = report.get("lines") or {}
compare(report, report["torch"])
with open(options.report, "w") as f:
    json.dump(report, f, indent=2)
