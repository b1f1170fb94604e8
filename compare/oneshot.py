"""Quantises a model by llm-compressor on the processor, for comparison with compress quantize on the same token ids.

    pip install torch==2.15.0 transformers==5.23.0 compressed-tensors==0.19.0 llmcompressor==0.14.0.1 safetensors
    python compare/oneshot.py ids MODEL TEXT IDS [SEQUENCES LENGTH]     # writes token ids for both
    python compare/oneshot.py cut MODEL LAYERS OUT                                # a model of the first layers, for less time
    python compare/oneshot.py errors MODEL IDS FOLDER FOLDER                      # of the outputs of the first layer's matrices
    python compare/oneshot.py same FOLDER FOLDER                                  # how many packed words are equal
    python compare/oneshot.py METHOD MODEL IDS OUT [GROUP [SCHEME]]     # rtn, mse, imatrix_mse, gptq, awq, awq+gptq, smooth

The last prints the processor's seconds of the quantisation alone, and for awq the errors of each mapping before and
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
    sequences, length = int(sequences), int(length)
    ids = AutoTokenizer.from_pretrained(model)(pathlib.Path(text).read_text())["input_ids"]
    step = (len(ids) - length) // (sequences - 1)
    rows = [ids[i * step:][:length] for i in range(sequences)]
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

    if not torch.cuda.is_available():
        torch.Tensor.pin_memory = lambda self, *_: self  # AWQ's cache pins memory, which torch refuses without a GPU
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


def cut(model, layers, out):
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    m.model.layers = m.model.layers[:int(layers)]
    m.config.num_hidden_layers = int(layers)
    m.config.layer_types = None
    m.save_pretrained(out)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)


def unpacked(folder, name):
    """The values of a pack-quantized matrix of a folder."""
    parts = load_file(pathlib.Path(folder) / "model.safetensors")
    words, scale = parts[name + ".weight_packed"], parts[name + ".weight_scale"].float()
    nibbles = torch.stack([(words >> (4 * j)) & 15 for j in range(8)], -1).reshape(words.shape[0], -1).float() - 8
    return (nibbles.reshape(*scale.shape, -1) * scale[..., None]).reshape(nibbles.shape)


def errors(model, ids, *folders):
    """Squared errors of outputs over all tokens, as fractions of the outputs' squares; the inputs are the dense model's."""
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    layer, found = m.model.layers[0], {}
    for name, linear in layer.named_modules():
        if isinstance(linear, torch.nn.Linear):
            def add(module, inputs, _, name=name):
                x = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
                found[name] = found.get(name, 0) + x.T @ x
            linear.register_forward_hook(add)
    with torch.no_grad():
        for row in load_file(ids)["input_ids"]:
            m.model(row[None])
        for name, h in found.items():
            w = layer.get_submodule(name).weight.double()
            all_ = ((w @ h) * w).sum()
            line = [name]
            for folder in folders:
                d = unpacked(folder, "model.layers.0." + name).double() - w
                line.append(f"{(((d @ h) * d).sum() / all_).item():.6f}")
            print(*line, flush=True)


os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
def same(a, b):
    x, y = (load_file(pathlib.Path(f) / "model.safetensors") for f in (a, b))
    names = [n for n in x if n.endswith((".weight_packed", ".weight_scale"))]
    equal = sum((x[n] == y[n]).sum().item() for n in names)
    print(f"{equal} of {sum(x[n].numel() for n in names)} words and scales of {len(names)} tensors are equal")


commands = {"ids": write_ids, "cut": cut, "errors": errors, "same": same}
if sys.argv[1] in commands:
    commands[sys.argv[1]](*sys.argv[2:])
else:
    quantise(*sys.argv[1:])
