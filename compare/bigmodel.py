"""Writes a Llama of any size with drawn weights, in BF16: a folder whose making needs no download, to measure time and memory with.

    python3 compare/bigmodel.py OUT TOKENIZER [LAYERS [HIDDEN [MLP [HEADS]]]]     # 32 4096 11008 32: 13.8 GB

TOKENIZER is a folder whose tokenizer files (and the size of whose vocabulary) are taken over. Weights are normal with a deviation of 0.02, of
a generator with a fixed seed; numpy is enough. OUT/ids.safetensors has four sequences of 512 token ids, for --calib; OUT-lora is a LoRA of rank 16
on all matrices of the blocks, as PEFT stores it, for fold.
"""
import json
import pathlib
import shutil
import sys

import numpy as np

out, tokenizer = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
layers, hidden, mlp, heads = [int(a) for a in sys.argv[3:]] + [32, 4096, 11008, 32][len(sys.argv) - 3:]
vocab = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
rng = np.random.Generator(np.random.PCG64(1))


def bf16(x):
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


# A draw of 16 bits is a place in a sorted sample of the distribution.
normal = bf16(np.sort(0.02 * rng.standard_normal(1 << 16)))


def write(path, tensors):
    header, at = {}, 0
    for name, shape in tensors:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape in tensors:
            left = int(np.prod(shape))
            if len(shape) == 1:
                f.write(bf16(np.ones(left)).tobytes())
                continue
            while left > 0:
                n = min(left, 1 << 24)
                f.write(normal[rng.integers(0, 1 << 16, n, dtype=np.uint16)].tobytes())
                left -= n
    return at


out.mkdir(parents=True)
files = {"model-embeddings.safetensors": [("model.embed_tokens.weight", [vocab, hidden]), ("model.norm.weight", [hidden]),
                                          ("lm_head.weight", [vocab, hidden])]}
for l in range(layers):
    p = f"model.layers.{l}."
    files[f"model-{l:03}.safetensors"] = [
        *[(p + f"self_attn.{n}_proj.weight", [hidden, hidden]) for n in "qkvo"],
        *[(p + f"mlp.{n}_proj.weight", [mlp, hidden]) for n in ("gate", "up")], (p + "mlp.down_proj.weight", [hidden, mlp]),
        *[(p + n + "_layernorm.weight", [hidden]) for n in ("input", "post_attention")]]

total = sum(write(out / name, tensors) for name, tensors in files.items())
index = {"metadata": {"total_size": total}, "weight_map": {n: f for f, tensors in files.items() for n, _ in tensors}}
(out / "model.safetensors.index.json").write_text(json.dumps(index))
(out / "config.json").write_text(json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": mlp, "num_attention_heads": heads,
    "num_key_value_heads": heads, "num_hidden_layers": layers, "vocab_size": vocab, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}))
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(tokenizer / name, out / name)

# An adapter: names and shapes of the matrices of the blocks, whose order in the file is that of the blocks.
adapter, rank = out.with_name(out.name + "-lora"), 16
adapter.mkdir()
blocks = [(n, shape) for tensors in files.values() for n, shape in tensors if n.endswith("_proj.weight")]
write(adapter / "adapter_model.safetensors", [
    (f"base_model.model.{n.removesuffix('.weight')}.lora_{side}.weight", shape)
    for n, (rows, columns) in blocks for side, shape in (("A", [rank, columns]), ("B", [rows, rank]))])
(adapter / "adapter_config.json").write_text(json.dumps({
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(out.resolve()), "r": rank, "lora_alpha": 2 * rank, "bias": "none",
    "target_modules": sorted({n.split(".")[-2] for n, _ in blocks})}))

ids = rng.integers(3, vocab, (4, 512)).astype("<i8")
head = json.dumps({"input_ids": {"dtype": "I64", "shape": list(ids.shape), "data_offsets": [0, ids.nbytes]}}).encode()
(out / "ids.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + ids.tobytes())
