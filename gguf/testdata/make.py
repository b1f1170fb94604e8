"""Writes oracle.gguf, split-*.gguf and their values with gguf-py, the reference implementation of the format.

    python3 -m venv V && V/bin/pip install gguf==0.19.0 && V/bin/python make.py

oracle.gguf has metadata of every type, and for every type T of tensors that can be decoded the tensors T (random
blocks, whose scales are finite) and T.values (F32: what gguf.quants.dequantize makes of them). split-0000N-of-00003.gguf
is a model of five small tensors in three parts.
"""

import os

import numpy as np
from gguf import GGMLQuantizationType as T, GGUFValueType as V, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

here = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(20261122)

# Where the float16 scales of a block are.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [], T.NVFP4: [],
}
# float16 scales that stand first: zeros of both signs, the least and the largest numbers, and one that is subnormal.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x7BFF, 0xFBFF, 0x03FF, 0x3C00]


def blocks(t, n):
    b = rng.integers(0, 256, (n, GGML_QUANT_SIZES[t][1]), dtype=np.uint8)
    if t == T.MXFP4:  # 255 stands for no number; from 250 on products leave float32
        b[:, 0] = rng.integers(90, 140, n)
        b[:4, 0] = [0, 1, 2, 249]
    if t == T.NVFP4:  # every scale there is
        b[:, :4] = (np.arange(4 * n) % 256).reshape(n, 4)
    for k, at in enumerate(HALVES[t]):
        d = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
        d[: len(SPECIAL)] = np.roll(SPECIAL, k)[:n]
        b[:, at] = d & 255
        b[:, at + 1] = d >> 8
    return b


w = GGUFWriter(os.path.join(here, "oracle.gguf"), "oracle")
w.add_uint8("x.uint8", 200)
w.add_int8("x.int8", -100)
w.add_uint16("x.uint16", 60000)
w.add_int16("x.int16", -30000)
w.add_uint32("x.uint32", 4000000000)
w.add_int32("x.int32", -2000000000)
w.add_float32("x.float32", -0.1)
w.add_bool("x.bool", True)
w.add_string("x.string", "grüße\n")
w.add_uint64("x.uint64", 2**64 - 1)
w.add_int64("x.int64", -(2**63))
w.add_float64("x.float64", 0.1)
w.add_array("x.strings", ["a", "", "ü" * 3])
w.add_array("x.bools", [True, False, True])
w.add_array("x.ints", [1, -2, 3])
w.add_array("x.floats", [0.5, -0.25])
w.add_quantization_version(2)

for t in HALVES:
    size, bytes_ = GGML_QUANT_SIZES[t]
    rows, cols = 9, 256  # more than one chunk of the decoder, and not a whole number of them
    b = blocks(t, rows * cols // size).reshape(rows, -1)
    w.add_tensor(t.name, b, raw_dtype=t)
    w.add_tensor(t.name + ".values", dequantize(b, t))
for t, dtype in ((T.F16, np.uint16), (T.BF16, np.uint16)):
    # Every value of the plain types would be much; these are every exponent and sign with some mantissas, no NaN.
    v = np.array([i for i in range(0, 65536, 61) if i & 0x7FFF <= (0x7C00 if t == T.F16 else 0x7F80)], dtype=dtype)
    raw = v.view(np.uint8).reshape(1, -1)
    w.add_tensor(t.name, raw, raw_dtype=t)
    w.add_tensor(t.name + ".values", dequantize(raw, t))
w.add_tensor("three", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

w = GGUFWriter(os.path.join(here, "split.gguf"), "split", split_max_tensors=2)
w.add_string("x.name", "split")
for i in range(5):
    w.add_tensor(f"t{i}", np.full((2, 3), i, dtype=np.float32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
