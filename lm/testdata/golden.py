# Losses and gradients of the models that `go test ./lm -run GoldenLosses -args -models DIR` writes, computed by transformers in
# float32.
# usage: golden.py DIR LOSSES.json GRADIENTS.json
import json, os, sys, tempfile, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
M = (1 << 64) - 1
def mix(z):
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & M
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & M
    return z ^ z >> 31
def uniform(seed, n): return (mix((mix(seed) + 0x9e3779b97f4a7c15 * (n + 1)) & M) >> 11) / (1 << 53)

def gradients(m):
    """The gradients by their names in the file: those of a model whose weights they are."""
    with torch.no_grad():
        for p in m.parameters():
            p.data = torch.zeros_like(p) if p.grad is None else p.grad.clone()
    with tempfile.TemporaryDirectory() as d:
        m.save_pretrained(d)
        return load_file(os.path.join(d, "model.safetensors"))

out, grads = {}, {}
directions = {}
for name in sorted(os.listdir(sys.argv[1])):
    rows, total = [], {}
    for s, n in enumerate((33, 20)):
        # a fresh model each time: dynamic rope remembers the longest sequence
        m = AutoModelForCausalLM.from_pretrained(os.path.join(sys.argv[1], name), pad_token_id=None, attn_implementation="eager", dtype=torch.float32).eval()
        ids = torch.tensor([[int(uniform(3 + s, t) * 37) for t in range(n)]])
        lp = torch.log_softmax(m(ids, use_cache=False).logits.double(), -1)
        (-lp[0, :-1].gather(-1, ids[0, 1:, None]).sum() / 51).backward()
        lp = lp.detach()
        rows.append([round(float(-lp[0, t, ids[0, t + 1]]), 7) for t in range(n - 1)])
        for k, g in gradients(m).items():
            total[k] = total.get(k, 0) + g.double().flatten()
    out[name] = rows
    grads[name] = {}
    for k, g in sorted(total.items()):
        n = len(g)
        if n not in directions:
            directions[n] = torch.tensor([uniform(n, i) - 0.5 for i in range(n)], dtype=torch.float64)
        grads[name][k] = [float("%.8g" % float(g @ directions[n])), float("%.8g" % float(g.norm()))]
    print(name, sum(map(sum, rows)) / 51)
for path, table in zip(sys.argv[2:], (out, grads)):
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join('"%s": %s' % (k, json.dumps(v)) for k, v in table.items()) + "\n}\n")
