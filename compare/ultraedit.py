"""compress edit --method ultraedit beside its formulas in torch.

    python3 compare/ultraedit.py COMPRESS MODEL EDITS [COUNT [BATCH]]

COMPRESS is the program, MODEL a folder in F32, EDITS CounterFact records, of which COUNT (20) are written, BATCH (10) at once. The model
is run by transformers; inputs and gradients are caught by hooks, normalised over all facts so far, and every batch changes the
model before the next one, as in the published code (arXiv 2505.14679), in float64 from the gradients on. Prints by how much the edited
matrices differ, relative to what was changed. Needs torch and transformers.
"""
import json
import subprocess
import sys
import tempfile

import torch
import transformers

LR = 5e-5


class Moments:
    """Means and deviations of rows that come in parts."""

    def __init__(self, size):
        self.n = 0
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.squares = torch.zeros(size, dtype=torch.float64)

    def update(self, x):
        n = self.n + len(x)
        d = x.mean(0) - self.mean
        self.mean = self.mean + len(x) * d / n
        self.squares = self.squares + len(x) * x.var(0) + self.n * len(x) * d * d / n
        self.n = n

    def normalised(self, x):
        eps = torch.finfo(torch.float32).eps
        return (x - self.mean) / ((self.squares / (self.n - 1 + eps)).sqrt() + eps)


def pairs(tokenizer, records):
    for r in records:
        r = r.get("requested_rewrite", r)
        prompt = r["prompt"].format(r["subject"])
        target = r["target_new"]["str"] if isinstance(r["target_new"], dict) else r["target_new"]
        head = tokenizer(prompt)["input_ids"]
        yield head, tokenizer(prompt + " " + target.strip())["input_ids"][len(head):]


def flows(model, modules, facts):
    """The rows of every module that predict the tokens of answers: inputs and gradients of the mean loss."""
    seen = {name: ([], []) for name in modules}
    total = sum(len(t) for _, t in facts)
    for head, target in facts:
        rows = slice(len(head) - 1, len(head) - 1 + len(target))
        hooks = []
        for name in modules:
            module = model.get_submodule(name)
            hooks.append(module.register_forward_hook(
                lambda _, x, y, name=name: seen[name][0].append(x[0][0, rows].detach().double())))
            hooks.append(module.register_full_backward_hook(
                lambda _, dx, dy, name=name: seen[name][1].append(dy[0][0, rows].detach().double())))
        logits = model(torch.tensor([head + target])).logits[0, rows]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="sum") / total
        loss.backward()
        for h in hooks:
            h.remove()
    return {name: (torch.cat(h), torch.cat(g)) for name, (h, g) in seen.items()}


def main():
    compress, path, edits = sys.argv[1:4]
    count, batch = (int(x) for x in (sys.argv[4:] + ["20", "10"][len(sys.argv) - 4:]))
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for p in model.parameters():
        p.requires_grad_(True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    with open(edits) as f:
        facts = list(pairs(tokenizer, json.load(f)[:count]))

    layers = model.config.num_hidden_layers
    chosen = [layers // 2, layers - 2]
    modules = [f"model.layers.{i}.mlp.{m}" for i in chosen for m in ("gate_proj", "up_proj", "down_proj")]
    before = {name: model.get_submodule(name).weight.detach().double().clone() for name in modules}

    moments = {}
    for at in range(0, len(facts), batch):
        found = flows(model, modules, facts[at:at + batch])
        for name in modules:
            h, g = found[name]
            key = (h.shape[1], g.shape[1])
            moments.setdefault(key, Moments(sum(key))).update(torch.cat((h, g), 1))
        for name in modules:
            h, g = found[name]
            hat, wanted = moments[h.shape[1], g.shape[1]].normalised(torch.cat((h, g), 1)).split((h.shape[1], g.shape[1]), 1)
            v = -LR * (hat * hat).sum(1, keepdim=True) * wanted
            shift = torch.linalg.solve(h.T @ h + torch.eye(h.shape[1], dtype=torch.float64), h.T @ v)
            with torch.no_grad():
                model.get_submodule(name).weight += shift.T.float()
        model.zero_grad()

    with tempfile.TemporaryDirectory() as tmp:
        with open(f"{tmp}/hparams.yaml", "w") as f:
            f.write(f"layers: {chosen}\nmatrices: [gate, up, down]\nlearning_rate: {LR}\n")
        subprocess.run([compress, "edit", path, "--edits", edits, "--count", str(count), "--batch", str(batch), "--method", "ultraedit",
                        "--hparams", f"{tmp}/hparams.yaml", "--out", f"{tmp}/edited", "--texts", "0", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        ours = transformers.AutoModelForCausalLM.from_pretrained(f"{tmp}/edited", dtype=torch.float32)
        for name in modules:
            theirs = model.get_submodule(name).weight.detach().double()
            change = (theirs - before[name]).norm()
            off = (ours.get_submodule(name).weight.detach().double() - theirs).norm() / change
            print(f"{name}: changed by {change / before[name].norm():.2e} of its norm, differs by {off:.1e} of the change")


main()
