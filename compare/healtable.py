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


print("| cut | MB | perplexity | KL, nats a token | same top token | task | healed: perplexity | KL | same top token | task |")
print("|---" * 10 + "|")
for path in sorted(glob.glob(f"{out}/*-healed.json")):
    name = os.path.basename(path).removesuffix("-healed.json")
    print("| " + " | ".join([name, *read(name + "-cut"), *read(name + "-healed")[1:]]) + " |")
