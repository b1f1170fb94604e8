"""Writes mixes.json: which types llama-quantize gives the tensors of some models.

    python make.py LLAMA_QUANTIZE

Models of every shape with rows as long as they may be and only two of them, in a folder of their own; llama-quantize
--dry-run says what it would do. Needs gguf and numpy. A mixture with a + is that with an importance, where it differs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
MIXES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S",
         "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4_MOE"]


def dense(ffn=True, bias=False):
    names = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm"]
    names += ["ffn_gate", "ffn_up", "ffn_down"] if ffn else []
    return [n + ".weight" for n in names] + (["attn_q.bias", "attn_v.bias"] if bias else [])


experts = ["ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"]
CASES = {
    # name: architecture, layers, heads, heads of keys, experts, columns, columns of ffn_down, tied, tensors of a layer
    "8B": ("llama", 32, 8, 2, 0, 256, 512, False, dense()),
    "7B": ("llama", 32, 8, 8, 0, 256, 512, False, dense()),
    "70B": ("llama", 80, 8, 1, 0, 256, 256, False, dense()),
    "65B": ("llama", 80, 8, 8, 0, 256, 256, False, dense()),
    "qwen2_72B": ("qwen2", 80, 8, 1, 0, 256, 256, False, dense(bias=True)),
    "qwen2_small": ("qwen2", 24, 7, 1, 0, 896, 4864, True, dense(bias=True)),
    "smol": ("llama", 30, 9, 3, 0, 576, 1536, True, dense()),
    "narrow": ("llama", 6, 4, 1, 0, 80, 208, False, dense()),
    "half": ("llama", 12, 4, 2, 0, 96, 256, True, dense()),
    "mixtral": ("llama", 32, 8, 2, 8, 256, 256, False, dense(False) + experts),
    "mixtral_old": ("llama", 12, 8, 2, 8, 256, 256, False, dense(False)
                    + [f"ffn_{k}.{e}.weight" for e in range(8) for k in ("gate", "up", "down")]),
    "qwen3moe": ("qwen3moe", 48, 8, 1, 128, 256, 256, False,
                 dense(False) + ["attn_q_norm.weight", "attn_k_norm.weight"] + experts),
    "olmoe": ("olmoe", 16, 8, 8, 64, 256, 256, False, dense(False) + experts),
    "phi3": ("phi3", 32, 8, 8, 0, 256, 512, False,
             ["attn_norm.weight", "attn_qkv.weight", "attn_output.weight", "ffn_norm.weight", "ffn_up.weight",
              "ffn_down.weight"]),
    "falcon": ("falcon", 32, 8, 1, 0, 256, 512, False,
               ["attn_norm.weight", "attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"]),
    "gpt2": ("gpt2", 12, 4, 4, 0, 256, 512, True,
             ["attn_norm.weight", "attn_qkv.weight", "attn_qkv.bias", "attn_output.weight", "ffn_norm.weight",
              "ffn_up.weight", "ffn_down.weight"]),
    "deepseek2": ("deepseek2", 27, 8, 8, 64, 256, 256, False,
                  ["attn_norm.weight", "attn_q.weight", "attn_kv_a_mqa.weight", "attn_kv_a_norm.weight",
                   "attn_kv_b.weight", "attn_output.weight", "ffn_norm.weight"] + experts
                  + ["ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"]),
}


def write(path, arch, layers, heads, kv, n_expert, cols, down, tied, names):
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(layers)
    w.add_context_length(64)
    w.add_embedding_length(cols)
    w.add_feed_forward_length(down)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_layer_norm_eps(1e-5)
    w.add_rope_dimension_count(16 if arch == "deepseek2" else cols // heads)
    w.add_vocab_size(64)
    w.add_file_type(1)
    if n_expert:
        w.add_expert_count(n_expert)
        w.add_expert_used_count(2)
        w.add_expert_feed_forward_length(down)
    if arch == "deepseek2":
        w.add_leading_dense_block_count(1)
        w.add_kv_lora_rank(256)
        w.add_key_length(48)
        w.add_value_length(32)
        w.add_expert_shared_count(2)
        w.add_expert_weights_scale(1.0)
    if arch == "phi3":
        w.add_sliding_window(2047)
    shapes = {}

    def add(name, *shape):
        dtype = np.float32 if len(shape) == 1 or "gate_inp" in name else np.float16
        shapes[name] = (list(shape[::-1]), "F32" if dtype == np.float32 else "F16")
        w.add_tensor(name, np.zeros(shape, dtype))

    add("token_embd.weight", 2, cols)
    if arch == "gpt2":
        add("position_embd.weight", 64, cols)
    add("output_norm.weight", cols)
    if not tied:
        add("output.weight", 2, cols)
    for layer in range(layers):
        for name in names:
            n = down if "ffn_down" in name else cols
            if name.endswith("bias") or "norm" in name:
                add(f"blk.{layer}.{name}", n)
            elif "_exps" in name:
                add(f"blk.{layer}.{name}", n_expert if n_expert <= 8 else 3, 2, n)
            else:
                add(f"blk.{layer}.{name}", 2, n)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return shapes


def ask(program, path, mix, imatrix):
    command = [program] + (["--imatrix", imatrix] if imatrix else []) + ["--dry-run", path, mix]
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(command)}\n{p.stdout[-2000:]}")
    types = {}
    for line in p.stdout.splitlines():
        m = re.match(r"\[ *\d+/ *\d+\] +(\S+) +- \[.*?\], type = +(\w+), .*?(?:\((\w+)\))?$", line)
        if m:
            types[m[1]] = (m[3] or m[2]).upper()
    return types


def imatrix_file(path):
    """One entry for a tensor that no model has."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_type("imatrix")
    w.add_array("imatrix.datasets", ["none"])
    w.add_uint32("imatrix.chunk_count", 1)
    w.add_uint32("imatrix.chunk_size", 512)
    w.add_tensor("x.weight.in_sum2", np.ones((1, 256), np.float32))
    w.add_tensor("x.weight.counts", np.ones((1, 1), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    program = sys.argv[1]
    letters = {}
    out = {"types": letters, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        imatrix = os.path.join(folder, "imatrix.gguf")
        imatrix_file(imatrix)
        for case, (arch, layers, heads, kv, n_expert, cols, down, tied, names) in CASES.items():
            path = os.path.join(folder, case + ".gguf")
            shapes = write(path, arch, layers, heads, kv, n_expert, cols, down, tied, names)
            entry = {"architecture": arch, "layers": layers, "heads": heads, "kvheads": kv, "experts": n_expert,
                     "tensors": [[name, *shapes[name]] for name in shapes if not name.startswith("blk.")],
                     "layer": [[name[6:], *shapes[name]] for name in shapes if name.startswith("blk.0.")], "mixes": {}}
            for mix in MIXES:
                for weights in (None, imatrix):
                    types = ask(program, path, mix, weights)
                    assert types.keys() == shapes.keys(), (case, mix, set(types) ^ set(shapes))
                    text = ""
                    for name in shapes:
                        text += letters.setdefault(types[name], chr(ord("a") + len(letters)))
                    key = mix.lower().replace("_moe", "")
                    if text != entry["mixes"].get(key):
                        entry["mixes"][key + ("+" if weights else "")] = text
            out["cases"][case] = entry
            os.remove(path)
    with open(os.path.join(here, "mixes.json"), "w") as f:
        json.dump(out, f, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
