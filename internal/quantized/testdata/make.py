"""Writes oracle.safetensors and oracle.json: matrices in every format of this package, and what the libraries that
define the formats make of them.

    python3 -m venv V && V/bin/pip install torch==2.15.0 compressed-tensors==0.20.0 bitsandbytes==0.50.2 \
        transformers==5.23.0 safetensors numpy
    V/bin/pip install --no-deps --target OLD compressed-tensors==0.15.0   # the last with g_idx that was tried
    V/bin/pip download --no-deps --no-binary :all: gptqmodel==7.7.0 autoawq==0.2.9   # unpack both here
    V/bin/python make.py OLD GPTQMODEL_SOURCE AUTOAWQ_SOURCE

For each case C, oracle.json has its quantization_config, and the file has the tensors "C.m.<ending>" and "C.want", the
values in the type that the library gives them. References:

compressed-tensors (0.20.0): the compressors' own decompress(); with g_idx, 0.15.0's, in a process of its own.
gptq, awq: GPTQModel and AutoAWQ import CUDA extensions where they are installed, so the modules with the formulas are
loaded from their sources: gptqmodel/utils/model_dequant.py's arithmetic (q - z)·scale in float32, cast to the type of
the scales, with unpack_rows, unpack_cols and the correction of version 1 executed as they stand there;
awq/utils/packing_utils.py's dequantize_gemm executed as it is.
bitsandbytes (0.50.2): dequantize_4bit and int8_vectorwise_dequant on the CPU.
fp8: transformers' Fp8Dequantize._dequantize_one.
mxfp4 (gpt-oss): transformers' _convert_moe_packed_tensors, without its transposition.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys

import torch
from safetensors.torch import save_file

here = os.path.dirname(os.path.abspath(__file__))
old, gptqmodel_source, autoawq_source = sys.argv[1:4]
torch.manual_seed(20261122)
tensors, configs = {}, {}


def add(case, config, parts, want):
    configs[case] = config
    for ending, t in parts.items():
        tensors[f"{case}.m.{ending}"] = t.contiguous().clone()
    tensors[f"{case}.want"] = want.contiguous().clone()


# compressed-tensors --------------------------------------------------------------------------------------------------

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme


def ct_config(fmt, **weights):
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def ct(case, fmt, weight, scale, zero=None, global_scale=None, **args):
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(fmt)
    state = {"weight": weight, "weight_scale": scale}
    if zero is not None:
        state["weight_zero_point"] = zero
    if global_scale is not None:
        state["weight_global_scale"] = global_scale
    packed = compressor.compress(state, scheme)
    want = compressor.decompress(packed, scheme)["weight"]
    add(case, ct_config(fmt, **args), packed, want)


def weight(rows, cols, dtype):
    return (torch.randn(rows, cols) * 0.05).to(dtype)


def minmax(w, bits, rows, groups, dtype, asymmetric=False):
    """Scales, and zero points, of groups of columns."""
    g = w.float().reshape(rows, groups, -1)
    if asymmetric:
        lo, hi = g.amin(-1).clamp(max=0), g.amax(-1).clamp(min=0)
        s = ((hi - lo) / (2**bits - 1)).to(dtype)
        z = torch.clamp(torch.round(-(2 ** (bits - 1)) - lo / s.float()), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return s, z.to(torch.int8)
    return (g.abs().amax(-1) / ((2**bits - 1) / 2)).to(dtype), None


bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32

# Zero points of the 9 rows take more than a word: the library fails on its own view of a single one.
for bits in range(1, 9):
    w = weight(9, 96, bf16)
    s, z = minmax(w, bits, 9, 3, bf16, asymmetric=bits % 2 == 0)
    ct(f"pack{bits}", "pack-quantized", w, s, z, num_bits=bits, type="int", symmetric=z is None, strategy="group",
       group_size=32)
for name, dtype, asym in (("f16", f16, False), ("f16_asym", f16, True), ("f32_asym", f32, True)):
    w = weight(9, 256, dtype)
    s, z = minmax(w, 4, 9, 2, dtype, asym)
    ct(f"pack4_{name}", "pack-quantized", w, s, z, num_bits=4, type="int", symmetric=not asym, strategy="group",
       group_size=128)
for asym in (False, True):
    w = weight(9, 45, bf16)  # rows that end within a word
    s, z = minmax(w, 4, 9, 1, bf16, asym)
    ct(f"pack4_channel{'_asym' if asym else ''}", "pack-quantized", w, s, z, num_bits=4, type="int",
       symmetric=not asym, strategy="channel")
w = weight(4, 64, bf16)
ct("pack8_tensor", "pack-quantized", w, minmax(w.reshape(1, -1), 8, 1, 1, bf16)[0].reshape(1), num_bits=8, type="int",
   symmetric=True, strategy="tensor")

w = weight(5, 48, bf16)
s, _ = minmax(w, 8, 5, 1, bf16)
ct("int8_channel", "int-quantized", w, s, num_bits=8, type="int", symmetric=True, strategy="channel")
s, z = minmax(w, 8, 5, 1, f32, True)
ct("int8_channel_asym", "int-quantized", w.float(), s, z, num_bits=8, type="int", symmetric=False, strategy="channel")
s, _ = minmax(w, 8, 5, 3, f16)
ct("int8_group", "int-quantized", w.to(f16), s, num_bits=8, type="int", symmetric=True, strategy="group",
   group_size=16)
ct("int8_tensor", "int-quantized", w, minmax(w.reshape(1, -1), 8, 1, 1, bf16)[0].reshape(1), num_bits=8, type="int",
   symmetric=True, strategy="tensor")

w = weight(6, 300, bf16)
fp8max = 448
ct("float8_channel", "float-quantized", w, (w.float().abs().amax(1, keepdim=True) / fp8max).to(bf16), num_bits=8,
   type="float", symmetric=True, strategy="channel")
ct("float8_tensor", "float-quantized", w.to(f16), (w.float().abs().amax().reshape(1) / fp8max).to(f16), num_bits=8,
   type="float", symmetric=True, strategy="tensor")
w = weight(40, 70, bf16)  # blocks that are cut off on both sides
blocks = torch.rand(2, 2) * 0.001 + 0.0001
ct("float8_block", "float-quantized", w, blocks.to(bf16), num_bits=8, type="float", symmetric=True, strategy="block",
   block_structure=[32, 64])
ct("float8_block_f32", "float-quantized", w.float(), blocks, num_bits=8, type="float", symmetric=True,
   strategy="block", block_structure=[32, 64])

for dtype in (bf16, f16):
    w = weight(5, 64, dtype)
    g = (448 * 6 / w.float().abs().max()).reshape(1)
    s = (g * w.float().reshape(5, 4, 16).abs().amax(-1) / 6).to(torch.float8_e4m3fn).to(dtype)
    ct(f"nvfp4_{str(dtype)[6:]}", "nvfp4-pack-quantized", w, s, global_scale=g, num_bits=4, type="float",
       symmetric=True, strategy="tensor_group", group_size=16)

w = weight(5, 96, bf16)
s = torch.exp2(torch.floor(torch.log2(w.float().reshape(5, 3, 32).abs().amax(-1))) - 2).to(bf16)
ct("mxfp4", "mxfp4-pack-quantized", w, s, num_bits=4, type="float", symmetric=True, strategy="group", group_size=32)
s = torch.exp2(torch.floor(torch.log2(w.float().reshape(5, 3, 32).abs().amax(-1))) - 8).to(bf16)
ct("mxfp8", "mxfp8-quantized", w, s, num_bits=8, type="float", symmetric=True, strategy="group", group_size=32,
   scale_dtype=torch.uint8)
configs["mxfp8"]["config_groups"]["group_0"]["weights"]["scale_dtype"] = "torch.uint8"

# g_idx, in the version that knew it: another process, since both have the same name
program = r"""
import sys, torch
sys.path.insert(0, sys.argv[1])
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
state, args = torch.load(sys.argv[2])
scheme = QuantizationScheme(targets=["Linear"], weights=args)
c = BaseCompressor.get_value_from_registry("pack-quantized")
packed = c.compress(dict(state), scheme)
want = c.decompress(dict(packed), scheme)["weight"]
packed["weight_g_idx"] = state["weight_g_idx"]
torch.save((packed, want), sys.argv[2])
"""
for asym in (False, True):
    w = weight(9, 128, bf16)
    s, z = minmax(w, 4, 9, 4, bf16, asym)
    state = {"weight": w, "weight_scale": s, "weight_g_idx": (torch.randperm(128) % 4).to(torch.int32)}
    if asym:
        state["weight_zero_point"] = z
    args = dict(num_bits=4, type="int", symmetric=not asym, strategy="group", group_size=32, actorder="group")
    path = os.path.join(here, "exchange.pt")
    torch.save((state, args), path)
    subprocess.run([sys.executable, "-c", program, old, path], check=True)
    packed, want = torch.load(path)
    os.remove(path)
    add(f"pack4_gidx{'_asym' if asym else ''}", ct_config("pack-quantized", **args), packed, want)

# GPTQ, AWQ -----------------------------------------------------------------------------------------------------------


def functions(path, names, **given):
    """Runs some functions of a file without importing what it imports."""
    tree = ast.parse(open(path).read())
    body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    missing = set(names) - {n.name for n in body}
    if missing:
        sys.exit(f"{path} has no {missing}")
    for n in body:
        n.decorator_list = []
        n.returns = None
        for a in n.args.args + n.args.kwonlyargs:
            a.annotation = None
    space = {"torch": torch, **given}
    exec(compile(ast.Module(body, []), path, "exec"), space)
    return space


dequant = os.path.join(gptqmodel_source, "gptqmodel/utils/model_dequant.py")
q = functions(dequant, ["unpack_rows", "unpack_cols", "pack_cols", "_shift_gptq_qzeros", "_correct_gptq_v1_qzeros",
                        "_require_int32_words_for_3bit", "_unpack_rows_3bit", "_unpack_cols_3bit", "_pack_cols_3bit"],
              PLANAR_BITS=())


def pack_bits(values, bits):
    """Strings of bits along dimension 0 in words of 32."""
    n = -(-values.shape[0] * bits // 32)
    words = torch.zeros(n + 1, values.shape[1], dtype=torch.int64)
    for i in range(values.shape[0]):
        at = i * bits
        v = values[i].to(torch.int64) << (at % 32)
        words[at // 32] |= v & 0xFFFFFFFF
        words[at // 32 + 1] |= v >> 32
    words = words[:n]
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def gptq(case, bits, n_in, n_out, group, version, dtype, act_order):
    groups = n_in // group
    codes = torch.randint(0, 2**bits, (n_in, n_out))
    less = 1 if version == "gptq" else 0
    zeros = torch.randint(0, 2**bits, (groups, n_out))
    scales = (torch.rand(groups, n_out) * 0.01 + 1e-4).to(dtype)
    g_idx = torch.arange(n_in) // group
    if act_order:
        g_idx = g_idx[torch.randperm(n_in)]
    parts = {
        "qweight": pack_bits(codes, bits),
        "qzeros": pack_bits(((zeros - less) & (2**bits - 1)).t(), bits).t().contiguous(),
        "scales": scales,
        "g_idx": g_idx.to(torch.int32),
    }
    qzeros = parts["qzeros"]
    if version == "gptq":
        qzeros = q["_correct_gptq_v1_qzeros"](qzeros, bits)
    w = q["unpack_rows"](parts["qweight"], bits)
    z = q["unpack_cols"](qzeros, bits)
    assert torch.equal(w, codes) and torch.equal(z, zeros)
    want = (w.to(f32) - z.to(f32)[g_idx]) * scales.to(f32)[g_idx]
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": False,
              "checkpoint_format": version}
    add(case, config, parts, want.to(dtype).t())


for bits in (2, 3, 4, 8):
    for version in ("gptq", "gptq_v2"):
        gptq(f"gptq{bits}_{version}", bits, 64, 32, 32, version, f16, False)
gptq("gptq4_order", 4, 128, 40, 32, "gptq", f16, True)
gptq("gptq8_order", 8, 64, 32, 32, "gptq_v2", bf16, True)
gptq("gptq3_order", 3, 64, 32, 32, "gptq", bf16, True)

a = functions(os.path.join(autoawq_source, "awq/utils/packing_utils.py"),
              ["unpack_awq", "reverse_awq_order", "dequantize_gemm"],
              AWQ_REVERSE_ORDER=[0, 4, 1, 5, 2, 6, 3, 7])
for dtype in (f16, bf16):
    n_in, n_out, group = 64, 40, 32
    word = lambda *shape: torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)
    parts = {"qweight": word(n_in, n_out // 8), "qzeros": word(n_in // group, n_out // 8),
             "scales": (torch.rand(n_in // group, n_out) * 0.01 + 1e-4).to(dtype)}
    want = a["dequantize_gemm"](parts["qweight"], parts["qzeros"], parts["scales"], 4, group)
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    add(f"awq_{str(dtype)[6:]}", config, parts, want.t())

# bitsandbytes --------------------------------------------------------------------------------------------------------

import bitsandbytes.functional as F

for kind in ("nf4", "fp4"):
    for nested in (False, True):
        for dtype in (bf16, f16, f32):
            rows, cols = (5, 64) if dtype == f16 else (9, 40)  # with blocks that end within rows
            packed, state = F.quantize_4bit(weight(rows, cols, dtype), blocksize=64, compress_statistics=nested,
                                            quant_type=kind)
            want = F.dequantize_4bit(packed, state)
            parts = {"weight": packed}
            for key, t in state.as_dict(packed=True).items():
                parts["weight." + key] = t
            config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
            add(f"{kind}_{str(dtype)[6:]}{'_nested' if nested else ''}", config, parts, want)

cb, scb, _ = F.int8_vectorwise_quant(weight(5, 33, f16))
add("int8", {"quant_method": "bitsandbytes", "load_in_8bit": True},
    {"weight": cb, "SCB": scb, "weight_format": torch.tensor(0, dtype=torch.uint8)}, F.int8_vectorwise_dequant(cb, scb))

# FP8 with block scales -----------------------------------------------------------------------------------------------

from transformers.integrations.finegrained_fp8 import Fp8Dequantize

one = Fp8Dequantize(None)._dequantize_one
every = torch.arange(256, dtype=torch.int64).to(torch.uint8)
every = every[(every & 0x7F) != 0x7F].repeat(2)[: 8 * 32].reshape(8, 32).view(torch.float8_e4m3fn)
s = torch.rand(4, 2) * 0.01
config = {"quant_method": "fp8", "weight_block_size": [2, 16], "activation_scheme": "dynamic"}
add("fp8_block", config, {"weight": every, "weight_scale_inv": s}, one(every, s))
add("fp8_block_bf16", config, {"weight": every, "weight_scale_inv": s.to(bf16)}, one(every, s.to(bf16)))
e8m0 = torch.randint(100, 140, (4, 2), dtype=torch.uint8).view(torch.float8_e8m0fnu)
add("fp8_e8m0", config, {"weight": every, "weight_scale_inv": e8m0}, one(every, e8m0))

# gpt-oss -------------------------------------------------------------------------------------------------------------

from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

blocks = torch.randint(0, 256, (3, 5, 2, 16), dtype=torch.uint8)
scales = torch.randint(100, 140, (3, 5, 2), dtype=torch.uint8)
scales[0, 0] = torch.tensor([0, 254])
want = _convert_moe_packed_tensors(blocks, scales).transpose(1, 2).reshape(15, 64)
configs["experts"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
tensors["experts.m.weight_blocks"], tensors["experts.m.weight_scales"], tensors["experts.want"] = blocks, scales, want

save_file(tensors, os.path.join(here, "oracle.safetensors"))
with open(os.path.join(here, "oracle.json"), "w") as f:
    f.write("{\n" + ",\n".join(f'"{c}": {json.dumps(configs[c], default=str)}' for c in configs) + "\n}\n")
print(len(configs), "cases")
