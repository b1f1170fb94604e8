"""Writes the plan of "should we edit language models?" for a real model, and the files that it needs, into a folder:

    python3 compare/study.py MODEL DATA OUT        # then: compress editeval OUT/study.yaml --out OUT/study --resume

MODEL is a folder such as SmolLM2-135M-Instruct's; DATA has tasks/editing/counterfact-edit.json, tasks/{commonsenseqa,mmlu,gsm8k,advbench},
tasks/llm-adapters-format/ARC-Easy and text/wikitext-2. ARC's questions are taken apart again into questions and choices, GSM8K's problems
become a text (a model of this size answers next to none of them, but the likelihood of what should be said still tells), and AdvBench's
goals are put as a user's turn of the model's chat template, since only there an instructed model refuses.

COUNTS (1 10 50 100), EDITORS (all: a pattern of names) and SLICE (1: times the documents of each task) change its size.
"""

import csv
import json
import os
import re
import sys
from pathlib import Path

# The same facts, one after another or in tens, by what people use and by what was published to last.
EDITORS = [
    ("rome", "rome", 1, {}),
    ("memit", "memit", 10, {}),
    ("memit-seq", "memit-seq", 10, {"settled": 2}),
    ("encore", "encore", 10, {}),
    ("alphaedit", "alphaedit", 10, {"settled": 2}),
    ("nas", "nas", 10, {"settled": 2}),
    ("ultraedit", "ultraedit", 10, {}),
    ("ft", "ft", 1, {}),
    ("grace", "grace", 1, {}),
    ("memoir", "memoir", 1, {}),
    ("wise", "wise", 1, {}),
]


def arc(source, target):
    """The questions of ARC-Easy with their choices, from the form that LLM-Adapters gave them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = []
    for row in json.loads(source.read_text()):
        found = re.match(r"Please choose the correct answer to the question: (.*?)\n\n(Answer1: .*?)\n\nAnswer format", row["instruction"], re.S)
        texts = [part.strip() for part in re.split(r"Answer\d: ", found[2])[1:]]
        labels = [chr(ord("A") + i) for i in range(len(texts))]
        right = int(row["answer"].removeprefix("answer")) - 1
        kept.append({"question": found[1].strip(), "choices": {"text": texts, "label": labels}, "answerKey": labels[right]})
    target.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))


def main():
    model, data, out = (Path(path).resolve() for path in sys.argv[1:4])
    counts = [int(count) for count in os.environ.get("COUNTS", "1 10 50 100").split()]
    chosen, scale = re.compile(os.environ.get("EDITORS", ".")), float(os.environ.get("SLICE", 1))
    tasks = data / "tasks"
    out.mkdir(parents=True, exist_ok=True)

    arc(tasks / "llm-adapters-format" / "ARC-Easy" / "test.json", out / "arc" / "ARC-Easy-Test.jsonl")

    problems = [json.loads(line) for line in (tasks / "gsm8k" / "test.jsonl").read_text().splitlines()]
    (out / "gsm8k.jsonl").write_text("".join(
        json.dumps({"text": f"Question: {row['question']}\nAnswer: {row['answer']}"}, ensure_ascii=False) + "\n" for row in problems))

    with (tasks / "advbench" / "harmful_behaviors.csv").open(newline="") as file:
        goals = [row["goal"] for row in csv.DictReader(file)]
    with (out / "goals.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["goal"])
        table.writerows([f"<|im_start|>user\n{goal}<|im_end|>\n<|im_start|>assistant\n"] for goal in goals)

    def some(count):
        return max(1, round(count * scale))

    plan = {
        "models": [{"name": model.name, "path": str(model)}],
        "edits": str(tasks / "editing" / "counterfact-edit.json"),
        "counts": counts,
        "stats": {"file": str(data / "text" / "wikitext-2" / "valid.txt"), "tokens": 50000},
        "editors": [{"name": name, "method": method, "batch": batch, "hparams": hparams} if hparams else
                    {"name": name, "method": method, "batch": batch} for name, method, batch, hparams in EDITORS if chosen.search(name)],
        "tasks": [{"task": "commonsense_qa", "limit": some(200)}, {"task": "arc_easy", "limit": some(200)},
                  {"task": "mmlu", "limit": some(2), "num_fewshot": 0}],
        "data": [str(tasks), str(out)],
        "texts": [{"name": "wikitext", "file": str(data / "text" / "wikitext-2" / "test.txt"), "limit": some(60)},
                  {"name": "gsm8k", "file": str(out / "gsm8k.jsonl"), "limit": some(40)}],
        "safety": {"file": str(out / "goals.csv"), "limit": some(24), "max_tokens": 24},
        "drift": 32,
    }
    (out / "study.yaml").write_text(json.dumps(plan, indent=1) + "\n")


if __name__ == "__main__":
    main()
