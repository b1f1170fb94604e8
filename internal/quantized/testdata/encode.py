"""Writes encode.safetensors: rows of float32 and the checksums of what llama.cpp's quantiser makes of them.

    python encode.py LIBGGML_BASE MODEL
    python encode.py LIBGGML_BASE --time    # elements per second of one processor, instead

LIBGGML_BASE is libggml-base.so of a llama.cpp that was built for every x86-64 processor, as its CMake files do for this
library: no multiplication is fused with an addition. MODEL is a folder with a model.safetensors whose weights are taken,
SmolLM2-135M-Instruct here. Needs numpy, safetensors and gguf; with what gguf quantises itself its bytes are compared.

Every case is a matrix CASE and a row CASE.importance. CASE.TYPE and CASE.TYPE.importance are the CRC-32 of the bytes of
every 256 elements, without and with the importance.
"""

import ctypes
import os
import sys
import time
import zlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from safetensors import safe_open
from safetensors.numpy import save_file

here = os.path.dirname(os.path.abspath(__file__))
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
         "MXFP4"]
PLAIN = {"F16", "BF16", "Q8_0", "MXFP4"}  # take no notice of an importance


class Reference:
    """Calls ggml_quantize_chunk."""

    def __init__(self, path):
        self.call = ctypes.CDLL(path).ggml_quantize_chunk
        self.call.restype = ctypes.c_size_t
        self.call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                              ctypes.c_int64, ctypes.c_void_p]

    def __call__(self, name, x, importance=None):
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        x = np.ascontiguousarray(x, np.float32)
        rows, cols = x.shape
        out = np.zeros((rows, cols // elements * size), np.uint8)
        imp = None if importance is None else np.ascontiguousarray(importance, np.float32)
        n = self.call(kind, x.ctypes.data, out.ctypes.data, 0, rows, cols, None if imp is None else imp.ctypes.data)
        assert n == out.size, (name, n, out.size)
        return out


def inputs(model):
    r = np.random.default_rng(7)
    normal = lambda rows, cols: r.standard_normal((rows, cols)).astype(np.float32)
    yield "normal", normal(8, 768)
    yield "heavy", r.standard_t(2, (6, 768)).astype(np.float32)
    yield "tiny", normal(2, 512) * np.float32(3e-6)
    yield "tinier", normal(2, 512) * np.float32(1e-12)  # scales of float16 are 0
    yield "negligible", normal(2, 512) * np.float32(1e-16)
    yield "huge", normal(2, 512) * np.float32(1e4)
    yield "subnormal", normal(2, 512) * np.float32(3e-39)
    yield "constant", np.repeat(np.array([1, -1, 0.3, -2.7e-3], np.float32), 256).reshape(2, 512)
    zeros = np.zeros((2, 512), np.float32)
    zeros[1] = -zeros[1]
    yield "zero", zeros
    x = normal(2, 512)
    x[r.random(x.shape) < 0.8] = 0
    yield "sparse", np.where(r.random(x.shape) < 0.5, x, -x)
    x = np.zeros((2, 512), np.float32)
    x[:, ::37] = normal(2, 14)
    yield "single", x
    x = normal(3, 512)
    x[:, ::61] *= 1000
    yield "outliers", x
    yield "positive", abs(normal(2, 512)) + np.float32(0.1)
    yield "negative", -abs(normal(2, 512)) - np.float32(0.1)
    yield "whole", np.round(normal(3, 512) * 4).astype(np.float32)
    yield "levels", normal(4, 512) * np.exp(np.repeat(r.uniform(-6, 6, (4, 32)), 16, 1)).astype(np.float32)
    yield "bf16", (normal(3, 768).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    with safe_open(os.path.join(model, "model.safetensors"), "numpy") as f:
        yield "down", f.get_tensor("model.layers.3.mlp.down_proj.weight")[::72].astype(np.float32)
        yield "query", f.get_tensor("model.layers.20.self_attn.q_proj.weight")[::97, :512].astype(np.float32)


def importance(cols):
    r = np.random.default_rng(cols)
    w = np.exp(r.normal(0, 2, cols)).astype(np.float32)
    w[r.random(cols) < 0.03] = 0
    return w


def sums(x, blocks):
    """CRC-32 of the bytes of every 256 elements."""
    n = x.size // 256
    return np.array([zlib.crc32(b.tobytes()) for b in blocks.reshape(n, -1)], np.uint32)


def measure(reference):
    x = np.random.default_rng(1).standard_normal((256, 4096)).astype(np.float32)
    w = importance(4096)
    for name in TYPES:
        for weights in (None, w):
            if name in PLAIN and weights is not None:
                continue
            reference(name, x[:16], weights)
            start = time.process_time()
            reference(name, x, weights)
            rate = x.size / (time.process_time() - start) / 1e6
            print(f"{name}{'' if weights is None else ' with an importance'}: {rate:.1f} million elements a second")


def main():
    reference = Reference(sys.argv[1])
    if sys.argv[2] == "--time":
        return measure(reference)
    out = {}
    for case, x in inputs(sys.argv[2]):
        x = np.ascontiguousarray(x)
        w = importance(x.shape[1])
        out[case] = x
        out[case + ".importance"] = w
        for name in TYPES:
            if case == "subnormal" and name == "MXFP4":
                continue  # the exponent is converted from a negative number, which C leaves undefined
            want = reference(name, x)
            out[f"{case}.{name}"] = sums(x, want)
            if name in PLAIN | {"Q4_0", "Q4_1", "Q5_0", "Q5_1"}:
                with np.errstate(all="ignore"):
                    other = quants.quantize(x, GGMLQuantizationType[name]).view(np.uint8).reshape(want.shape)
                if not np.array_equal(other, want):
                    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
                    differ = (other != want).reshape(-1, size).any(1)
                    print(f"{case}: {differ.sum()} of {differ.size} blocks of {name} are others of gguf-py")
            weighted = reference(name, x, w)
            if name in PLAIN:
                assert np.array_equal(weighted, want), name
            else:
                out[f"{case}.{name}.importance"] = sums(x, weighted)
    save_file(out, os.path.join(here, "encode.safetensors"))


if __name__ == "__main__":
    main()
