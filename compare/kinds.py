# PEFT reads what compress trains: adapters of MiSS, GraLoRA and SHiRA, trained by the program, opened by PEFT beside the
# same base; the logits of both.
#
#   python compare/kinds.py COMPRESS [FOLDER]      made with peft 0.21.2, transformers 5.24, torch 2.15 on a CPU
import json, os, subprocess, sys, tempfile, warnings
warnings.filterwarnings("ignore")
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging
from peft import PeftModel
logging.disable_progress_bar()

program = os.path.abspath(sys.argv[1])
work = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()
bases = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lora", "testdata", "peft")
os.makedirs(work, exist_ok=True)
torch.manual_seed(0)
ids = torch.randint(0, 31, (4, 12), dtype=torch.int32)
save_file({"input_ids": ids, "labels": ids.clone()}, f"{work}/ids.safetensors")
save_file({"input_ids": ids}, f"{work}/only.safetensors")

CASES = [
    ("llama", "--kind", "miss", "--rank", "4"),
    ("llamabias", "--kind", "miss", "--rank", "5", "--bias", "all", "--layers", "0,2"),
    ("llamabias", "--kind", "miss", "--rank", "5", "--bias", "lora_only", "--exclude", "down_proj"),
    ("qwen2", "--kind", "miss", "--rank", "3", "--mini-r", "4", "--modules-to-save", "norm"),
    ("llama", "--kind", "gralora", "--rank", "4"),
    ("llamabias", "--kind", "gralora", "--rank", "8", "--gralora-k", "4", "--hybrid-r", "2", "--exclude", "down_proj", "--bias", "lora_only"),
    ("gpt2", "--kind", "gralora", "--rank", "4", "--targets", "c_attn,c_fc", "--layers", "1"),
    ("llama", "--kind", "shira", "--rank", "2"),
    ("llama", "--kind", "shira", "--rank", "2", "--shira-mask", "magnitude", "--layers", "1"),
    ("llamatied", "--kind", "shira", "--rank", "1", "--shira-mask", "snip", "--targets", "up", "--modules-to-save", "norm"),
    ("qwen2", "--kind", "shira", "--rank", "2", "--shira-mask", "wanda", "--exclude", "q_proj"),
    ("opt", "--kind", "shira", "--rank", "2", "--shira-mask", "gradient"),
]
worst = 0
for i, (base, *how) in enumerate(CASES):
    base, out = os.path.join(bases, f"base-{base}"), f"{work}/{i}"
    run = lambda *a: subprocess.run([program, *a, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    run("lora", "train", base, *how, "--steps", "4", "--lr", "0.02", "--data", f"{work}/ids.safetensors", "--out", out, "--overwrite")
    run("forward", base, "--adapter", out, "--ids", f"{work}/only.safetensors", "--out", f"{work}/{i}.logits.safetensors", "--overwrite")
    m = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        plain = m(ids.long()).logits.clone()
        theirs = PeftModel.from_pretrained(m, out).eval()(ids.long()).logits
    ours = load_file(f"{work}/{i}.logits.safetensors")["logits"].reshape(theirs.shape)
    gap, moved = (ours - theirs).abs().max().item(), (theirs - plain).abs().max().item()
    worst = max(worst, gap)
    print(f"{' '.join(how):90s} logits differ by {gap:.1e}; the adapter moves them by {moved:.2f}")
print(f"{len(CASES)} adapters, worst {worst:.1e}")
sys.exit(worst > 1e-4)
