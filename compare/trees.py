"""Pruning scores of a 4096×4096 matrix: the fused program of package gp against PyTorch, one operation per node of the tree
with a whole matrix as its result, as published code evaluates them. One thread each, turn by turn; the shortest times count.

    python compare/trees.py        (needs torch; run it in the root of the repository)
"""
import re, subprocess, time

import torch

torch.set_num_threads(1)
N, ROUNDS = 4096, 3
torch.manual_seed(0)
W, G, X = torch.randn(N, N), torch.randn(N, N), torch.rand(1, N)


def mms(x):
    return (x - x.min()) / (x.max() - x.min())


def zsn(x):
    return (x - x.mean()) / x.std()


def log(x):
    return torch.log(torch.abs(x) + 1e-3)


TREES = {
    "W*sqrt(X)": lambda: W * torch.sqrt(X),
    "abs(W*W)*mms(G)": lambda: torch.abs(W * W) * mms(G),
    "sqr(W)*sqrt(G) + W*G": lambda: W**2 * torch.sqrt(torch.abs(G)) + W * G,
    "(W*W)*mms(G) + abs(W - G)*sqrt(X) - W*G": lambda: (W * W) * mms(G) + torch.abs(W - G) * torch.sqrt(X) - W * G,
    "log(W*G) + zsn(W)*sqrt(X)": lambda: log(W * G) + zsn(W) * torch.sqrt(X),
    "exp(mms(W)) - tanh(-mms(G))": lambda: torch.exp(mms(W)) - torch.tanh(-mms(G)),
}


def ours():
    run = subprocess.run(["go", "test", "./gp", "-run", "xxx", "-bench", "Trees/F32-F32", "-benchtime", "4x"], capture_output=True, text=True, check=True)
    found = {}
    for line in run.stdout.splitlines():
        ms, share = re.search(r"([\d.]+) ms\b", line), re.search(r"([\d.]+) %bandwidth", line)
        if line.startswith("BenchmarkTrees") and ms:
            name = line.split()[0].split("/", 2)[2]
            found[re.sub(r"-\d+$", "", name)] = (float(ms[1]), float(share[1]))
    return found


best = {t: [1e9, 0.0, 1e9] for t in TREES}
for _ in range(ROUNDS):
    for name, (ms, share) in ours().items():
        for t in TREES:
            if t.replace(" ", "_") == name:
                best[t] = [min(best[t][0], ms), max(best[t][1], share), best[t][2]]
    for t, f in TREES.items():
        for _ in range(2):
            start = time.perf_counter()
            f()
            best[t][2] = min(best[t][2], 1e3 * (time.perf_counter() - start))
print("| tree | fused ms | of bandwidth | torch ms | ratio |\n|---|---|---|---|---|")
for t, (ms, share, torch_ms) in best.items():
    print(f"| `{t}` | {ms:.1f} | {share:.0f} % | {torch_ms:.1f} | {torch_ms / ms:.1f} |")
