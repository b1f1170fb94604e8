"""The table and the picture of a study of editors (compare/study.py), from the folders of one or more runs on the same model, edits and texts:

    python3 compare/studytable.py PICTURE.svg OUT...        # prints Markdown; of rows that two runs have the later run's counts
    python3 compare/studytable.py PICTURE.svg PAGE.md       # draws the table of a page again, after rows of other runs were put into it

Columns are those of docs/evidence/editing.md; a star marks what its run found significantly worse than the unedited model.
"""

import json
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here / "real")]
import plot
import tablebars
from study import EDITORS

TASKS = {"text_wikitext": "WikiText-2", "text_gsm8k": "GSM8K", "arc_easy": "ARC-Easy", "commonsense_qa": "CommonsenseQA", "mmlu": "MMLU"}


def seconds(folder):
    """CPU-seconds an edit, by editor, over those that the folder's last run has written."""
    found = {}
    for sequence in json.loads((folder / "timings.json").read_text()):
        edits = sum(t["edits"] for t in sequence["timings"])
        if edits:
            found[sequence["editor_name"]] = sum(t.get("cpu_seconds", 0) for t in sequence["timings"]) / edits
    return found


def read(folders):
    """Rows by editor and count, the unedited model under ("unedited", 0), and what an edit cost, by editor: of the run that went furthest."""
    rows, cost, furthest = {}, {}, {}
    for folder in folders:
        spent = seconds(folder)
        for row in json.loads((folder / "results.json").read_text())["models"][0]["rows"]:
            name = row.get("editor") or "unedited"
            rows[name, row["edits"]] = row
            if name in spent and row["edits"] > furthest.get(name, 0):
                furthest[name], cost[name] = row["edits"], spent[name]
    return rows, cost


def line(name, edits, row, spent):
    held = row["held"]
    cells = [name, edits, f"{held['mean']:.2f} ({held['low']:.2f}–{held['high']:.2f})", f"{row['exact']:.2f}", f"{row['paraphrase']:.2f}",
             f"{row['neighborhood']:.2f}", f"{row['drift_kl']:.3f}", f"{row['drift_agreement']:.2f}"]
    for task in TASKS:
        found = row["abilities"].get(task)
        text = task.startswith("text_")
        cells.append("" if found is None else (f"{found['value']:.1f}" if text else f"{found['value']:.2f}") + ("*" if edits and found.get("lost") else ""))
    return "| " + " | ".join(str(c) for c in [*cells, f"{spent:.1f}" if spent else ""]) + " |"


def main():
    if sys.argv[2].endswith(".md"):
        table = tablebars.table(Path(sys.argv[2]), "| editor | edits |")
        draw({(r["editor"], int(r["edits"])): float(r["GSM8K"].rstrip("*")) for r in table})
        return

    rows, cost = read([Path(p) for p in sys.argv[2:]])
    print("| editor | edits | success | exact | paraphrases | neighbours | drift, nats | top-1 kept | " + " | ".join(TASKS.values()) + " | CPU-s an edit |")
    print("|---" * 14 + "|")
    order = ["unedited", *(name for name, *_ in EDITORS)]
    names = sorted({n for n, _ in rows}, key=lambda n: order.index(n) if n in order else len(order))
    for name in names:
        counts = sorted(e for n, e in rows if n == name)
        for edits in counts:
            print(line(name, edits, rows[name, edits], cost.get(name) if edits == counts[-1] else None))

    draw({k: row["abilities"]["text_gsm8k"]["value"] for k, row in rows.items()})


def draw(perplexity):
    """A line for each editor, from values by editor and edits; the unedited model's are the beginning of all."""
    counts = sorted({e for _, e in perplexity})
    series = []
    for name in {n: None for n, _ in perplexity if n != "unedited"}:
        points = [(counts.index(e), v) for (n, e), v in sorted(perplexity.items()) if n == name]
        series.append((name, [(0, perplexity["unedited", 0]), *points]))
    plot.lines(Path(sys.argv[1]), "Perplexity a word of GSM8K's problems, by edits", ["unedited", *(f"{c} edits" for c in counts[1:])],
               sorted(series, key=lambda s: -s[1][-1][1]), log=True)


if __name__ == "__main__":
    main()
