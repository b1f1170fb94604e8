"""Opens folders with packed zero points with transformers: one of compress quantize, and one of compressed-tensors' own compressor.

    pip install torch==2.15.0 transformers==5.23.0 compressed-tensors==0.20.0 accelerate==1.15.0 safetensors
    python compare/asymmetric.py COMPRESS MODEL WORK     # inputs that 32 divides

Both folders are of w4a16_asym with groups of 32. Prints the type and shape of every tensor of one matrix in both, and what became of opening
each: a version that cannot open what it wrote itself cannot open ours either, and says the same of it.
"""
import pathlib
import shutil
import subprocess
import sys

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

GROUP = 32
compress, model, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
work.mkdir(parents=True, exist_ok=True)
ours, theirs = work / "compress", work / "compressed-tensors"

subprocess.run([compress, "quantize", model, "--to", "w4a16_asym", "--group-size", str(GROUP), "--out", ours, "--overwrite", "--quiet"], check=True,
               stdout=subprocess.DEVNULL)

shutil.rmtree(theirs, ignore_errors=True)
m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
args = QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=GROUP)
config = QuantizationConfig(config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=args)}, ignore=["lm_head"], format="pack-quantized")
apply_quantization_config(m, config)
for module in m.modules():
    if hasattr(module, "weight_scale"):
        w = module.weight.data.reshape(module.weight.shape[0], -1, GROUP)
        scale, zero = calculate_qparams(w.amin(-1), w.amax(-1), args)
        module.weight_scale.data = scale.to(module.weight_scale.dtype)
        module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype)
compressor = ModelCompressor.from_pretrained_model(m, quantization_format="pack-quantized")
compressor.compress_model(m)
m.save_pretrained(theirs)
compressor.update_config(str(theirs))

a, b = (load_file(next(f.glob("*.safetensors"))) for f in (ours, theirs))
first = next(n for n in sorted(b) if n.endswith(".weight_packed")).removesuffix("packed")
for part in ("packed", "scale", "zero_point", "shape"):
    print(first + part, *(f"{t[first + part].dtype} {tuple(t[first + part].shape)}" for t in (a, b)), sep=" | ")
for folder in (ours, theirs):
    try:
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        print(f"{folder.name}: opens")
    except RuntimeError as e:
        print(f"{folder.name}: {e}")
