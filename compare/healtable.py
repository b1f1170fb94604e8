"""The table of what compare/heal.sh has measured: a row for each cut.

    python3 compare/healtable.py OUT

OUT is its folder. Python alone is enough.
"""
import glob
import json
import os
import sys

out = sys.argv[1]


def read(name):
    with open(f"{out}/{name}.json") as f:
        d = json.load(f)
    a = d["against"]
    cells = [f"{d['model_bytes'] / 1e6:.0f}", f"{d['ppl']:.1f}", f"{a['kl']:.3f} ± {a['kl_stderr']:.3f}", f"{100 * a['same_top']:.1f} %"]
    versus = f"{out}/eval/{name}.versus.json"
    if os.path.exists(versus):
        with open(versus) as f:
            r = next(r for r in json.load(f)["rows"] if r["metric"].startswith("acc"))
        cells.append(f"{r['b']:.3f} ({r['b'] - r['a']:+.3f}, p {r['p']:.2g})")
    else:
        cells.append("")
    return cells


def took(path):
    """Processor time and most memory of the command that made a model: from its report."""
    with open(path) as f:
        d = json.load(f)
    return [f"{d['cpu_seconds']:.0f}, {d['peak_memory_bytes'] / 1e6:.0f}" if "cpu_seconds" in d else ""]


print("| cut | MB | perplexity | KL, nats a token | same top token | task | CPU-seconds, MB | healed: perplexity | KL | same top token | task | CPU-seconds, MB |")
print("|---" * 13 + "|")
for path in sorted(glob.glob(f"{out}/*-healed.json")):
    name = os.path.basename(path).removesuffix("-healed.json")
    cells = [*read(name + "-cut"), *took(f"{out}/{name}/cut.json"), *read(name + "-healed")[1:], *took(f"{out}/{name}/healed.json")]
    print("| " + " | ".join([name, *cells]) + " |")
