"""Writes leasterror.safetensors: matrices and the ranges that llm-compressor's "mse" and "imatrix_mse" observers find for their
groups.

    pip install torch==2.15.0 compressed-tensors==0.20.0 llmcompressor==0.14.0.1 safetensors
    python leasterror.py

x is a matrix of groups of 32 columns; TYPE_BITS has the lowest and the highest values of the groups, one after the other;
weighted_TYPE_BITS those by the importance of the columns in weight, with a search that does not stop early.
"""

import os

import torch
from compressed_tensors.quantization import QuantizationArgs
from llmcompressor.observers.helpers import flatten_for_calibration
from llmcompressor.observers.imatrix import _grid_search
from llmcompressor.observers.mse_quant import _grid_search_mse
from safetensors.torch import save_file

torch.manual_seed(20261124)
x = torch.randn(24, 128) * torch.exp(torch.randn(24, 1))
x[0] = 0
x[1] = -0.25
x[2] = torch.where(torch.rand(128) < 0.8, torch.zeros(128), x[2])
x[3, 64] = 30
x[4] = x[4].abs() + 0.1
weight = torch.rand(128) ** 4 * 3
weight[7] = 0
out = {"x": x, "weight": weight}
for name, args in {
    "int_4": dict(num_bits=4, type="int", symmetric=True),
    "asym_4": dict(num_bits=4, type="int", symmetric=False),
    "int_3": dict(num_bits=3, type="int", symmetric=True),
    "int_8": dict(num_bits=8, type="int", symmetric=True),
    "float_8": dict(num_bits=8, type="float", symmetric=True),
}.items():
    a = QuantizationArgs(strategy="group", group_size=32, **args)
    token = a.model_copy(update={"strategy": "token"})
    low, high = _grid_search_mse(flatten_for_calibration(x, "weight", a), a, token, 0.2, 5, 100.0, 2.4, 0.3)
    out[name] = torch.stack([low.flatten(), high.flatten()])
    importance = flatten_for_calibration((weight / weight.mean()).expand(24, -1), "weight", a)
    low, high = _grid_search(flatten_for_calibration(x, "weight", a), a, 0.95, 0, 20, 3.0, importance_weights=importance)
    out["weighted_" + name] = torch.stack([low.flatten(), high.flatten()])
save_file(out, os.path.join(os.path.dirname(os.path.abspath(__file__)), "leasterror.safetensors"))
