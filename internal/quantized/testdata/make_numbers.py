"""Writes numbers.safetensors: matrices, and what compressed-tensors makes of them.

    pip install torch==2.15.0 compressed-tensors==0.20.0 safetensors==0.8.0 numpy
    python make_numbers.py

For each type of the weights, each scheme and each matrix: the weight, its scales and zero points, and the tensors that
the library's own compressor stores.
"""
import pathlib

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

ROWS, COLS = 5, 128
HERE = pathlib.Path(__file__).parent

SCHEMES = {
    "int4": ("pack-quantized", dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)),
    "int4_asym": ("pack-quantized", dict(num_bits=4, type="int", symmetric=False, strategy="group", group_size=32)),
    "int3_asym": ("pack-quantized", dict(num_bits=3, type="int", symmetric=False, strategy="group", group_size=64)),
    "int5": ("pack-quantized", dict(num_bits=5, type="int", symmetric=True, strategy="channel")),
    "int8": ("pack-quantized", dict(num_bits=8, type="int", symmetric=True, strategy="channel")),
    "int8_bytes": ("int-quantized", dict(num_bits=8, type="int", symmetric=True, strategy="channel")),
    "int8_asym": ("int-quantized", dict(num_bits=8, type="int", symmetric=False, strategy="channel")),
    "fp8": ("float-quantized", dict(num_bits=8, type="float", symmetric=True, strategy="channel")),
    "nvfp4": ("nvfp4-pack-quantized", dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group",
                                           group_size=16, scale_dtype=torch.float8_e4m3fn,
                                           zp_dtype=torch.float8_e4m3fn)),
    "mxfp4": ("mxfp4-pack-quantized", dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32,
                                           scale_dtype=torch.uint8, zp_dtype=torch.uint8)),
}


def matrices(dtype):
    """Matrices with rows that are hard: constant, zero, tiny, with outliers, with values between two numbers."""
    g = torch.Generator().manual_seed(7)
    normal = torch.randn(ROWS, COLS, generator=g) * 0.05
    hard = torch.randn(ROWS, COLS, generator=g)
    hard[0] = 0
    hard[1] = 0.375
    hard[2] = hard[2].abs()
    hard[3, 5] = 40
    hard[4] = (torch.arange(COLS) % 31 - 15) / 4
    hard[4, 0] = 3.75
    tiny = torch.randn(ROWS, COLS, generator=g) * (1e-5 if dtype == torch.float16 else 1e-30)
    tiny[2] = 0
    return {"normal": normal.to(dtype), "hard": hard.to(dtype), "tiny": tiny.to(dtype)}


def main():
    out = {}
    for kind, dtype in {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}.items():
        for name, w in matrices(dtype).items():
            out[f"{kind}.{name}.w"] = w
            for scheme, (form, fields) in SCHEMES.items():
                args = QuantizationArgs(**fields)
                group = fields.get("group_size") or COLS
                parts = w.reshape(ROWS, COLS // group, group)
                state = {"weight": w}
                g = None
                if fields["strategy"] == "tensor_group":
                    g = generate_gparam(w.amin(), w.amax())
                    state["weight_global_scale"] = g
                scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args, global_scale=g)
                state["weight_scale"] = scale
                if not fields["symmetric"]:
                    state["weight_zero_point"] = zero
                c = BaseCompressor.get_value_from_registry(form)
                for key, value in c.compress(state, QuantizationScheme(targets=["Linear"], weights=args)).items():
                    out[f"{kind}.{name}.{scheme}.{key}"] = value.contiguous().clone()
    save_file(out, HERE / "numbers.safetensors")


main()
