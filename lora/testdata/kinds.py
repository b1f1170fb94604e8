# What torch and PEFT make of five steps of AdamW from adapters of peft/, all on one batch: losses of the kinds, and of LoRA+.
# Run in this folder: python kinds.py > kinds.json   (made with peft 0.21.2, transformers 5.24, torch 2.15 on a CPU)
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging
from peft import PeftModel
logging.disable_progress_bar()
STEPS, LR, DECAY, BETAS = 5, 1e-2, .1, (.9, .999)
torch.manual_seed(1)
ids = torch.randint(0, 31, (3, 9))
def run(name, ratio=1.):
    base = json.load(open(f"peft/{name}/adapter_config.json"))["base_model_name_or_path"]
    m = AutoModelForCausalLM.from_pretrained(f"peft/{base}")
    p = PeftModel.from_pretrained(m, f"peft/{name}", is_trainable=True)
    p.eval() # no dropout
    low, high = [], []
    for n, x in p.named_parameters():
        if x.requires_grad: (high if "lora_B" in n else low).append(x)
    o = torch.optim.AdamW([dict(params=low, lr=LR), dict(params=high, lr=LR*ratio)], betas=BETAS, weight_decay=DECAY)
    losses = []
    for _ in range(STEPS):
        loss = p(ids, labels=ids).loss
        losses.append(loss.item())
        o.zero_grad(); loss.backward(); o.step()
    return losses
out = dict(ids=ids.tolist(), lr=LR, decay=DECAY, ratio=4,
    cases={n: run(n) for n in ["llama_qv", "miss_qdown", "miss_mini", "shira_random", "gralora_k2", "gralora_gpt2"]},
    plus={n: run(n, 4.) for n in ["llama_qv"]})
json.dump(out, sys.stdout, indent=1); print()
