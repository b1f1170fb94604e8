"""Opens the dense part of a mediated folder as an ordinary checkpoint, with the library's own loader, and compares its logits with those of
`compress forward FOLDER --experts dense`: python mediate.py COMPRESS FOLDER. Needs torch, transformers and safetensors."""
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

compress, folder = sys.argv[1:3]
torch.set_num_threads(1)
model, notes = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
assert not any(notes[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), notes
ids = AutoTokenizer.from_pretrained(folder)("The birthplace of Nils Corvin is a town of the", return_tensors="pt").input_ids
with torch.no_grad():
    theirs = model.eval()(ids).logits
with tempfile.TemporaryDirectory() as tmp:
    save_file({"input_ids": ids.to(torch.int32)}, os.path.join(tmp, "ids.safetensors"))
    subprocess.run([compress, "forward", folder, "--experts", "dense", "--quiet", "--ids", os.path.join(tmp, "ids.safetensors"), "--out", os.path.join(tmp, "out.safetensors")], check=True)
    ours = load_file(os.path.join(tmp, "out.safetensors"))["logits"]
worst = (theirs - ours.reshape(theirs.shape).float()).abs().max().item()
print(f"{ids.numel()} tokens, largest logit {theirs.abs().max():.3f}, worst difference {worst:.2e}")
sys.exit(worst > 1e-3)
