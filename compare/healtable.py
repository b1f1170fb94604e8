"""The table of what compare/heal.sh has measured: a row for each cut.

    python3 compare/healtable.py OUT

OUT is its folder. Python alone is enough.
"""
import glob
import json
import os
import sys

out = sys.argv[1]


HEADS = ["perplexity", "nll in pairs, nats (p)", "KL, nats a token", "same top token", "task", "CPU-seconds", "memory, MB"]


def report(path):
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return json.load(f)


def read(name, made):
    """The size of a model, and its figures in the order of HEADS; the last two are of the command that made it, from its report."""
    d, m = report(f"{out}/{name}.json"), report(made)
    a = d["against"]
    cells = [f"{d['ppl']:.1f}", f"{a['paired']['nll_difference']:+.3f} ± {a['paired']['stderr']:.3f} ({a['paired']['p']:.1g})",
             f"{a['kl']:.3f} ± {a['kl_stderr']:.3f}", f"{100 * a['same_top']:.1f} %", "", "", ""]
    if versus := report(f"{out}/eval/{name}.versus.json"):
        r = next(r for r in versus["rows"] if r["metric"].startswith("acc"))
        cells[4] = f"{r['b']:.3f} ({r['b'] - r['a']:+.3f}, p {r['p']:.2g})"
    if "cpu_seconds" in m:
        cells[5:] = f"{m['cpu_seconds']:.0f}", f"{m['peak_memory_bytes'] / 1e6:.0f}"
    return f"{d['model_bytes'] / 1e6:.0f}", cells


rows = {}
for path in sorted(glob.glob(f"{out}/*-healed.json")):
    name = os.path.basename(path).removesuffix("-healed.json")
    size, cut = read(name + "-cut", f"{out}/{name}/cut.json")
    rows[name] = size, [*cut, *read(name + "-healed", f"{out}/{name}/healed.json")[1]]

heads = [*HEADS, "healed: " + HEADS[0], *HEADS[1:]]
shown = [i for i in range(len(heads)) if any(cells[i] for _, cells in rows.values())]  # columns with figures
print("| " + " | ".join(["cut", "MB", *(heads[i] for i in shown)]) + " |")
print("|---" * (len(shown) + 2) + "|")
for name, (size, cells) in rows.items():
    print("| " + " | ".join([name, size, *(cells[i] for i in shown)]) + " |")
