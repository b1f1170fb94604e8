"""The table of what compare/front.sh has measured: a row for each form, columns for each model.

    python3 compare/fronttable.py NAME=OUT [NAME=OUT …] [PAGE]

NAME is what the model is called in the head of the table, OUT its folder of front.sh. With PAGE, the lines between <!-- front --> and
<!-- end of front --> of that page become the table. Python alone is enough.
"""
import glob
import json
import os
import sys


HEADS = ["MB", "perplexity", "nll in pairs, nats (p)", "KL, nats a token", "same top token", "task, accuracy (paired)", "CPU-seconds", "memory, MB", "tokens/s, exact", "--fast"]


def read(out):
    """The figures of each form, as cells in the order of HEADS, and its size."""
    rows = {}
    for path in glob.glob(out + "/*.json"):
        name = os.path.basename(path)[:-5]
        with open(path) as f:
            d = json.load(f)
        a = d["against"]
        cells = [f"{d['model_bytes'] / 1e6:.1f}", f"{d['ppl']:.2f}", f"{a['paired']['nll_difference']:+.4f} ({a['paired']['p']:.1g})",
                 f"{a['kl']:.4f} ± {a['kl_stderr']:.4f}", f"{100 * a['same_top']:.1f} %", "", "", "", rate(out, name, "exact"), rate(out, name, "fast")]
        versus = f"{out}/eval/{name}.versus.json"
        if os.path.exists(versus):
            with open(versus) as f:
                r = next(r for r in json.load(f)["rows"] if r["metric"].startswith("acc"))
            cells[5] = f"{r['b']:.3f} ({r['b'] - r['a']:+.3f}, p {r['p']:.2g})"
        made = f"{out}/made/{name}.json"
        if os.path.exists(made):
            with open(made) as f:
                m = json.load(f)
            if "cpu_seconds" in m:
                cells[6:8] = f"{m['cpu_seconds']:.0f}", f"{m['peak_memory_bytes'] / 1e6:.0f}"
        rows[name] = d["model_bytes"], cells
    return rows


def rate(out, name, how):
    """Tokens a second of the processor, one after the other: of two reports of compress generate, so that loading does not count."""
    paths = [f"{out}/tokens/{name}.{how}.{count}.json" for count in (16, 144)]
    if not all(map(os.path.exists, paths)):
        return ""
    few, many = ((len(d["ids"]), d["cpu_seconds"]) for d in map(json.load, map(open, paths)))
    return f"{(many[0] - few[0]) / (many[1] - few[1]):.0f}" if many[0] > few[0] and many[1] > few[1] else ""


def table(models):
    found = {name: read(out) for name, out in models.items()}
    shown = {name: [i for i in range(len(HEADS)) if any(cells[i] for _, cells in rows.values())] for name, rows in found.items()}  # columns with figures
    names = [f"{name}: {HEADS[i]}" if len(models) > 1 else HEADS[i] for name in models for i in shown[name]]
    lines = ["| form | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    first = next(iter(found.values()))
    forms = sorted({f for rows in found.values() for f in rows}, key=lambda f: (f not in first, first.get(f, (0,))[0], f))
    for form in forms:
        cells = [rows[form][1][i] if form in rows else "" for name, rows in found.items() for i in shown[name]]
        lines.append(f"| {form} | " + " | ".join(cells) + " |")
    return lines


def main():
    models = dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
    pages = [a for a in sys.argv[1:] if "=" not in a]
    lines = table(models)
    print("\n".join(lines))
    for page in pages:
        with open(page) as f:
            text = f.read()
        before, _, rest = text.partition("<!-- front -->\n")
        _, end, after = rest.partition("<!-- end of front -->\n")
        if not end:
            sys.exit(f"{page}: no <!-- front --> and <!-- end of front -->")
        with open(page, "w") as f:
            f.write(before + "<!-- front -->\n" + "\n".join(lines) + "\n" + end + after)


main()
