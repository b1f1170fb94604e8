"""Scores a model twice: with "compress eval", and with lm-evaluation-harness by way of "compress serve".

    python compare/serving.py COMPRESS MODEL TASKS NAME[,NAME...]

COMPRESS is the program, MODEL a folder with a tokenizer, TASKS a folder with NAME.yaml for each task. Needs
lm_eval==0.4.13 with its extra "api", and transformers. Prints, for each task, by how much metrics and sums of
log-probabilities differ, and ends with an error where a metric differs by more than 1e-6 of itself.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile


def served(program, model, names, tasks, out):
    """Runs the harness on a server of the model."""
    server = subprocess.Popen([program, "serve", model, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        name, address = re.match(r"serving (\S+) at (\S+)", line).groups()
        arguments = (f"model={name},base_url={address}/v1/completions,tokenizer_backend=huggingface,"
                     f"tokenizer={model},num_concurrent=4")
        subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments,
                        "--tasks", names, "--include_path", ".", "--output_path", out, "--log_samples"],
                       check=True, cwd=tasks, stdout=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    finally:
        server.terminate()
        server.wait()


def numbers(value):
    """All numbers in an answer, in order: the harness and compress write them with brackets of other kinds."""
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in numbers(v)]
    try:
        return [float(value)]
    except (TypeError, ValueError):
        return [value]


def answers(pattern):
    with open(glob.glob(pattern)[0], encoding="utf-8") as f:
        return {s["doc_id"]: numbers(s["resps"]) for s in map(json.loads, f)}


def main():
    program, model, tasks, names = sys.argv[1:]
    program, model, tasks = map(os.path.abspath, (program, model, tasks))
    with tempfile.TemporaryDirectory() as out:
        served(program, model, names, tasks, f"{out}/harness")
        files = ",".join(f"{tasks}/{n}.yaml" for n in names.split(","))
        subprocess.run([program, "eval", model, "--tasks", files, "--out", f"{out}/own", "--log-samples", "--quiet"],
                       check=True, stdout=subprocess.DEVNULL)

        with open(glob.glob(f"{out}/harness/*/results_*.json")[0], encoding="utf-8") as f:
            theirs = json.load(f)["results"]
        with open(f"{out}/own/results.json", encoding="utf-8") as f:
            own = json.load(f)["results"]

        failed = False
        for task in names.split(","):
            metric = max(abs(v - own[task][k]) / max(abs(v), 1e-9)
                         for k, v in theirs[task].items() if isinstance(v, float) and "stderr" not in k)
            a = answers(f"{out}/harness/*/samples_{task}_*.jsonl")
            b = answers(f"{out}/own/samples_{task}.jsonl")
            assert a.keys() == b.keys(), task

            largest, others, count = 0.0, 0, 0
            for doc in a:
                for x, y in zip(a[doc], b[doc], strict=True):
                    count += 1
                    if isinstance(x, float) and isinstance(y, float):
                        largest = max(largest, abs(x - y) / max(abs(x), 1))
                    else:
                        others += x != y
            print(f"{task}: metrics differ by {metric:.1e} of themselves; of {count} answers of {len(a)} documents, sums "
                  f"of log-probabilities by up to {largest:.1e} of themselves, and {others} others")
            failed = failed or metric > 1e-6 or others > 0
        sys.exit(failed)


main()
