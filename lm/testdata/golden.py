# Losses of the models that `go test ./lm -run GoldenLosses -args -models DIR` writes, computed by transformers in float32.
# usage: golden.py DIR OUT.json
import json, os, sys, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
M = (1 << 64) - 1
def mix(z):
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & M
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & M
    return z ^ z >> 31
def uniform(seed, n): return (mix((mix(seed) + 0x9e3779b97f4a7c15 * (n + 1)) & M) >> 11) / (1 << 53)
out = {}
for name in sorted(os.listdir(sys.argv[1])):
    rows = []
    for s, n in enumerate((33, 20)):
        # a fresh model each time: dynamic rope remembers the longest sequence
        m = AutoModelForCausalLM.from_pretrained(os.path.join(sys.argv[1], name), pad_token_id=None, attn_implementation="eager", dtype=torch.float32).eval()
        ids = torch.tensor([[int(uniform(3 + s, t) * 37) for t in range(n)]])
        with torch.no_grad():
            lp = torch.log_softmax(m(ids, use_cache=False).logits.double(), -1)
        rows.append([round(float(-lp[0, t, ids[0, t + 1]]), 7) for t in range(n - 1)])
    out[name] = rows
    print(name, sum(map(sum, rows)) / 51)
with open(sys.argv[2], "w") as f:
    f.write("{\n" + ",\n".join('"%s": %s' % (k, json.dumps(v)) for k, v in out.items()) + "\n}\n")
