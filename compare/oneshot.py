"""Quantises a model by llm-compressor on the processor, for comparison with compress quantize on the same token ids.

    pip install torch==2.15.0 transformers==5.23.0 compressed-tensors==0.19.0 llmcompressor==0.14.0.1 safetensors
    python compare/oneshot.py ids MODEL TEXT IDS [SEQUENCES LENGTH]     # writes token ids for both
    python compare/oneshot.py METHOD MODEL IDS OUT [GROUP [SCHEME]]     # rtn, mse, imatrix_mse, gptq, awq, awq+gptq, smooth

The second prints the processor's seconds of the quantisation alone, and for awq the errors of each mapping before and
after its search. compress takes the ids as --calib IDS --samples SEQUENCES --seqlen LENGTH.
"""
import json
import os
import pathlib
import resource
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def write_ids(model, text, out, sequences=32, length=512):
    ids = AutoTokenizer.from_pretrained(model)(pathlib.Path(text).read_text())["input_ids"]
    step = (len(ids) - length) // (int(sequences) - 1)
    rows = [ids[i * step:][:int(length)] for i in range(int(sequences))]
    save_file({"input_ids": torch.tensor(rows, dtype=torch.int64)}, out)


def scheme_of(method, name, group):
    """The weights and activations of a scheme, as llm-compressor takes them."""
    weights = dict(num_bits=4, type="int", symmetric=name != "w4a16_asym", strategy="group", group_size=group)
    found = dict(targets=["Linear"], weights=weights)
    if name == "w8a8":
        found["weights"] = dict(num_bits=8, type="int", symmetric=True, strategy="channel")
        found["input_activations"] = dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
    if method in ("mse", "imatrix_mse"):
        # "patience" ends a search when nothing of a matrix has become better: ours does not stop early.
        found["weights"] |= dict(observer="memoryless_mse" if method == "mse" else method, observer_kwargs={"patience": 1000})
    return {"group_0": found}


def quantise(method, model, ids, out, group=64, scheme="w4a16"):
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    rows = load_file(ids)["input_ids"]
    data = Dataset.from_dict({"input_ids": rows.tolist(), "attention_mask": torch.ones_like(rows).tolist()})
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    groups = scheme_of(method, scheme, int(group))
    recipe = []
    if method.startswith("awq"):
        recipe.append(AWQModifier())
    if method == "smooth":
        recipe.append(SmoothQuantModifier(smoothing_strength=0.5))
    modifier = GPTQModifier if "gptq" in method else QuantizationModifier
    recipe.append(modifier(config_groups=groups, ignore=["lm_head"]))

    if method.startswith("awq"):
        log = AWQModifier._log_error_metrics

        def keep(self):
            (pathlib.Path(out).with_suffix(".awq.json")).write_text(json.dumps(self._error_metrics, indent=1))
            log(self)

        AWQModifier._log_error_metrics = keep

    before = resource.getrusage(resource.RUSAGE_SELF)
    oneshot(model=m, dataset=data, recipe=recipe, max_seq_length=rows.shape[1], num_calibration_samples=len(rows),
            shuffle_calibration_samples=False)
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    print(f"{method} {scheme}: {user:.1f} + {system:.1f} s of the processor, {torch.get_num_threads()} threads")
    m.save_pretrained(out, save_compressed=True)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)


os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
write_ids(*sys.argv[2:]) if sys.argv[1] == "ids" else quantise(*sys.argv[1:])
