# Losses and rewards of four steps of AdamW on preferences, with torch's autograd and the formulas of TRL's trainers
# (DPOTrainer, loss_type sigmoid; ORPOTrainer; KTOTrainer, loss_type kto), from PEFT's adapter peft/llama_qv.
# Run in this folder: python preference.py > preference.json   (made with peft 0.21.2, transformers 5.24, torch 2.15 on a CPU)
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM
from transformers.utils import logging
from peft import PeftModel
logging.disable_progress_bar()
STEPS, LR, NAME = 4, 5e-3, "llama_qv"
torch.manual_seed(3)
draw = lambda n: torch.randint(1, 31, (n,)).tolist()
pairs = [(draw(3), draw(4), draw(5)), (draw(2), draw(6), draw(2)), (draw(5), draw(3), draw(4))] # prompt, chosen, rejected
marked = [(p, a, i % 3 != 1) for i, (p, a) in enumerate([(draw(3), draw(4)), (draw(2), draw(5)), (draw(4), draw(3)), (draw(3), draw(2))])]

def logps(m, prompt, answer): # of each token of the sequence after the first, and which belong to the answer
    ids = torch.tensor([prompt + answer])
    lp = m(ids).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return lp, torch.arange(1, ids.shape[1]) >= len(prompt)

def answer(m, p, a):
    lp, own = logps(m, p, a)
    return lp[own].sum(), own.sum()

def run(step):
    m = AutoModelForCausalLM.from_pretrained("peft/base-llama")
    p = PeftModel.from_pretrained(m, f"peft/{NAME}", is_trainable=True).eval()
    o = torch.optim.AdamW([x for x in p.parameters() if x.requires_grad], lr=LR, weight_decay=0)
    losses, rewards = [], []
    for _ in range(STEPS):
        loss, r = step(p)
        losses.append(loss.item()); rewards.append([x.item() for x in r])
        o.zero_grad(); loss.backward(); o.step()
    return dict(losses=losses, rewards=rewards)

def reference(p, prompt, a):
    with torch.no_grad(), p.disable_adapter(): return answer(p, prompt, a)[0]

def dpo(beta, smoothing):
    def step(p):
        z, c, j = [], [], []
        for prompt, good, bad in pairs:
            c.append(answer(p, prompt, good)[0] - reference(p, prompt, good)); j.append(answer(p, prompt, bad)[0] - reference(p, prompt, bad))
        c, j = torch.stack(c), torch.stack(j)
        loss = -F.logsigmoid(beta*(c-j))*(1-smoothing) - F.logsigmoid(-beta*(c-j))*smoothing
        return loss.mean(), [beta*c.mean(), beta*j.mean(), (c > j).float().mean()]
    return step

def orpo(beta):
    def step(p):
        nll, c, j = [], [], []
        for prompt, good, bad in pairs:
            nll.append(-logps(p, prompt, good)[0])
            s, n = answer(p, prompt, good); c.append(s/n)
            s, n = answer(p, prompt, bad); j.append(s/n)
        c, j = torch.stack(c), torch.stack(j)
        odds = (c - j) - (torch.log1p(-torch.exp(c)) - torch.log1p(-torch.exp(j)))
        return torch.cat(nll).mean() - (beta*F.logsigmoid(odds)).mean(), [beta*c.mean(), beta*j.mean(), (c > j).float().mean()]
    return step

def kto(beta, good, bad):
    def step(p):
        n = len(marked)
        with torch.no_grad(): # an answer of the record before, after the same prompt
            k = torch.stack([answer(p, marked[i][0], marked[i-1][1])[0] - reference(p, marked[i][0], marked[i-1][1]) for i in range(n)]).mean().clamp(min=0)
        r = torch.stack([answer(p, q, a)[0] - reference(p, q, a) for q, a, _ in marked])
        y = torch.tensor([m for *_, m in marked])
        loss = torch.where(y, good*(1 - F.sigmoid(beta*(r - k))), bad*(1 - F.sigmoid(beta*(k - r))))
        return loss.mean(), [beta*r[y].mean(), beta*r[~y].mean(), torch.where(y, r > k, r < k).float().mean()]
    return step

json.dump(dict(lr=LR, pairs=pairs, marked=marked, cases=[
    dict(objective="dpo", beta=.1, **run(dpo(.1, 0))), dict(objective="dpo", beta=.5, smoothing=.2, **run(dpo(.5, .2))),
    dict(objective="orpo", beta=.3, **run(orpo(.3))),
    dict(objective="kto", beta=.1, desirable=1, undesirable=1, **run(kto(.1, 1, 1))), dict(objective="kto", beta=.4, desirable=1.5, undesirable=.7, **run(kto(.4, 1.5, .7))),
]), sys.stdout, indent=1); print()
