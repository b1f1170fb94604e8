"""Writes golden.json: what lm-evaluation-harness 0.4.13 (transformers 5.23, torch 2.15, float32) gives for the tasks here and the shipped
tiny model testdata/nano/base. Run in this folder."""
import json, os

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = os.environ["DISABLE_MULTIPROC"] = "1"
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

model = HFLM(pretrained="../../../../testdata/nano/base", dtype="float32", device="cpu", batch_size=4)
names = ["odd1", "odd2", "odd3", "odd4", "odd5"]
r = simple_evaluate(model=model, tasks=names, task_manager=TaskManager(include_path=".", include_defaults=False), bootstrap_iters=100, log_samples=True)
out = {}
for t in names:
    out[t] = {
        "results": {k: (v if isinstance(v, str) else float(v)) for k, v in r["results"][t].items() if "," in k},
        "samples": [
            {"doc_id": s["doc_id"], "filter": s["filter"], "hashes": [s["doc_hash"], s["prompt_hash"], s["target_hash"]],
             "resps": [x[0] if isinstance(x[0], str) else [float(x[0][0]), bool(x[0][1])] for x in s["resps"]]}
            for s in r["samples"][t]
        ],
    }
json.dump(out, open("golden.json", "w"), indent=1)
