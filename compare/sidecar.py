"""The side memories of compress edit beside the published code, run as a reference.

    python3 compare/sidecar.py COMPRESS MODEL EDITS TEXT NAS EASYEDIT [COUNT]

COMPRESS is the program, MODEL a folder in F32, EDITS CounterFact records, of which COUNT (3) are written, TEXT ordinary text. NAS is a
checkout of SasyaTitech/NAS, whose baselines/memoir holds MEMOIR's adapter, EASYEDIT one of zjunlp/EasyEdit with WISE's. Both route a
prompt as a whole; here every token is given to them as a prompt of its own.

What it prints: (1) how far the steps of gradient descent that the journal holds are from those that torch takes on a matrix, with the
published hashing, clipping and activations, relative to the change; (2) for the published adapter with the journal's memory, put into
transformers' model, the worst difference of its logits from compress forward's, how many tokens the memory answers, and how far the
logits are from the unedited model's. Needs torch and transformers.
"""
import base64
import importlib
import json
import subprocess
import sys
import tempfile
import types

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


class Key:
    """The generator of internal/rng."""

    def __init__(self, seed, purpose):
        h = 0xCBF29CE484222325
        for b in purpose.encode():
            h = ((h ^ b) * 0x100000001B3) & MASK
        self.key = mix(mix((seed + GOLDEN) & MASK) ^ h)

    def having(self, n):
        k = Key(0, "")
        k.key = mix(self.key ^ mix((n + GOLDEN) & MASK))
        return k

    def bits(self, i):
        return mix((self.key + (i + 1) * GOLDEN) & MASK)

    def permutation(self, n):
        x = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.bits(i) * (i + 1) >> 64
            x[i], x[j] = x[j], x[i]
        return x

    def below(self, n, fraction):
        """Which of n numbers are below a fraction."""
        with np.errstate(over="ignore"):
            x = np.uint64(self.key) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
            x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            x = x ^ x >> np.uint64(31)
        return (x >> np.uint64(11)).astype(np.float64) / 2**53 < fraction


def numbers(n):
    data = base64.b64decode(n["data"])
    return torch.from_numpy(np.frombuffer(data, np.float64).reshape(n["rows"], n["cols"]).copy())


def parts(folder):
    for line in open(f"{folder}/edits.journal", "rb"):
        body = json.loads(line[65:])
        if "step" in body:
            yield body["step"]


class ByToken(torch.nn.Module):
    """Gives every token to an adapter as a prompt of its own."""

    def __init__(self, adapter, original):
        super().__init__()
        self.adapter, self.original, self.answered = adapter, original, 0

    def forward(self, x):
        y = torch.stack([torch.cat([self.adapter(x[b:b + 1, t:t + 1]) for t in range(x.shape[1])], 1)[0] for b in range(len(x))])
        self.answered += int(((y - self.original(x)).abs().amax(-1) > 1e-6).sum())
        return y


def memoir(nas, linear, steps, hp):
    """The published adapter with the journal's memory."""
    package = types.ModuleType("memoir")  # without what its own __init__ needs
    package.__path__ = [f"{nas}/baselines/memoir"]
    sys.modules["memoir"] = package
    published = importlib.import_module("memoir.memoir_model")
    first = steps[0]["memory"]
    center = numbers(first["center"])
    with tempfile.NamedTemporaryFile(suffix=".pt") as f:
        torch.save(center.float(), f.name)
        config = types.SimpleNamespace(prompt_feature_agg="mean_decentered", top_k=first["top"], irr_threshold=first["threshold"],
                                       dir_background_features=f.name, inner_params=[""])
        adapter = published.MEMOIRAdapter(config, linear)
    adapter.hasher.permutation = torch.tensor(Key(first["seed"], "memoir").permutation(linear.in_features))
    keys = []
    for s in steps:
        p = s["memory"]
        adapter.new_weight.data += (numbers(p["left"]) @ numbers(p["right"]).T).float()
        for k in p["keys"]:
            bits = np.unpackbits(np.frombuffer(base64.b64decode(k), np.uint8), bitorder="little")[:linear.in_features]
            keys.append(torch.from_numpy(bits.astype(bool)))
    adapter.masks_for_edited_samples = torch.stack(keys)
    adapter.last_prompt_token_loc_inference = torch.tensor([0])
    return adapter


def wise(easyedit, linear, steps, hp, config):
    """The published adapter with the journal's memory."""
    package = types.ModuleType("published")
    package.__path__ = [f"{easyedit}/easyeditor/models/wise"]
    sys.modules["published"] = package
    for name in ("merge", "utils"):
        m = types.ModuleType(f"published.{name}")
        m.slerp = m.GTA = m.linear = lambda *a, **k: None
        m.parent_module = m.brackets_to_periods = m.EarlyStopMeter = None
        sys.modules[f"published.{name}"] = m

    class Mean:  # published in utils.py, which needs packages that this does not
        def __init__(self, least=0.0):
            self.least = least

        def min_act(self):
            return self.least

    sys.modules["published.utils"].EditingMeanAct = Mean
    published = importlib.import_module("published.WISE")
    fake = types.SimpleNamespace(retrieve=True, act_ratio=1.0, hidden_act=config.hidden_act, merge_alg="ties", save_freq=1,
                                 merge_freq=1, model_name="")
    adapter = published.WISEAdapter(fake, linear, transpose=True)
    change, least = torch.zeros_like(linear.weight, dtype=torch.float64), float("inf")
    for s in steps:
        p = s["memory"]
        open_ = torch.from_numpy(Key(p["seed"], "wise").having(p.get("shard", 0)).below(change.numel(), p["mask"])).view_as(change)
        change += open_ * (numbers(p["left"]) @ numbers(p["right"]).T)
        least = min(least, p.get("least", 0))
    adapter.new_weight = torch.nn.Parameter((linear.weight.double() + change).float(), requires_grad=False)
    adapter.editing_mean_act = Mean(least)
    return adapter


def facts(tokenizer, records):
    for r in records:
        r = r.get("requested_rewrite", r)
        prompt = r["prompt"].format(r["subject"])
        target = r["target_new"]["str"] if isinstance(r["target_new"], dict) else r["target_new"]
        yield prompt, r["subject"], target


def lesson(model, name, tokenizer, prompt, subject, target, prefixes):
    """A loss by what is added at the subject's last token of a fact behind prefixes, and what that token reads and gets."""
    rows = []
    for prefix in prefixes:
        text = prefix.replace("{}", prompt)
        enc = tokenizer(text, return_offsets_mapping=True)
        end = len(prefix) - 2 + prompt.index(subject) + len(subject)
        at = max(i for i, (a, b) in enumerate(enc["offset_mapping"]) if a < end and b > end - len(subject))
        ids = tokenizer(text + " " + target.strip())["input_ids"]
        rows.append((ids, len(enc["input_ids"]), at))

    down, seen = model.get_submodule(name), []

    def run(add):
        seen.clear()
        losses = []
        for i, (ids, head, at) in enumerate(rows):
            def hook(_, x, y, i=i, at=at):
                seen.append((x[0][0, at].detach().double(), y[0, at].detach().double()))
                y = y.clone()
                y[0, at] = y[0, at] + add[i].to(y.dtype)
                return y
            h = down.register_forward_hook(hook)
            logits = model(torch.tensor([ids])).logits[0, head - 1:-1]
            h.remove()
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[head:])))
        return torch.stack(losses).mean()

    run(torch.zeros(len(rows), down.out_features))
    return run, torch.stack([x for x, _ in seen]), torch.stack([y for _, y in seen])


def retrained(model, name, run, part, x, y, hp, method, before, config):
    """The first fact's matrix after torch's descent with the journal's rows."""
    inputs = numbers(part["right"]).T
    facts_ = len(x)
    open_ = torch.ones_like(before)
    if method == "wise":
        open_ = torch.from_numpy(Key(part["seed"], "wise").having(0).below(before.numel(), part["mask"])).view_as(before).double()
        act = transformers.activations.ACT2FN[config.hidden_act]
        weight = model.get_submodule(name).weight.detach().double()
        own = inputs @ weight.T
        unit = act(own[facts_:]).norm(dim=1).mean()
        alpha, beta, gamma = (m * unit for m in hp["margin"])
    change = torch.zeros_like(before, requires_grad=True)
    for _ in range(hp["steps"] + 1):
        add = inputs @ (open_ * change).T
        loss = run(add[:facts_])
        if method == "wise":
            d = (act(own + add) - act(own)).norm(dim=1)
            fact, text = d[:facts_], d[facts_:]
            for h in ((text[:, None] - fact[None] + gamma).flatten(), text - alpha, beta - fact):
                h = h[h > 0]
                if len(h):
                    loss = loss + h.mean()
        if loss.item() <= 0.02 or _ == hp["steps"]:
            break
        # the gradient of the whole matrix, as if all of it could change, is what is clipped
        rows = torch.autograd.grad(loss, add)[0]
        whole = rows.T @ inputs
        whole = whole * min(1.0, hp["clip"] / float(whole.norm()))
        with torch.no_grad():
            change -= hp["learning_rate"] * whole
    return (open_ * change).detach(), loss.item()


def main():
    compress, path, edits, text, nas, easyedit = sys.argv[1:7]
    count = int(sys.argv[7]) if len(sys.argv) > 7 else 3
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    records = list(facts(tokenizer, json.load(open(edits))[:count]))
    prompts = [p for p, _, _ in records] + [open(text).read()[3000:3400], "Two and two make"]

    for method in ("memoir", "wise"):
        with tempfile.TemporaryDirectory() as tmp:
            subprocess.run([compress, "edit", path, "--edits", edits, "--count", str(count), "--method", method, "--stats", text,
                            "--out", f"{tmp}/edited", "--texts", "0", "--quiet", "--report", f"{tmp}/report.json"], check=True,
                           stdout=subprocess.DEVNULL)
            report = json.load(open(f"{tmp}/report.json"))
            hp = report.get("result", report)["hparams"]
            steps = list(parts(f"{tmp}/edited"))
            name = steps[0]["linear"].removesuffix(".weight")
            linear = model.get_submodule(name)
            for p in linear.parameters():
                p.requires_grad_(False)

            part = steps[0]["memory"]
            prefixes = [t for group in hp["templates"] for t in group]
            run, x, y = lesson(model, name, tokenizer, *records[0], prefixes)
            ours = numbers(part["left"]) @ numbers(part["right"]).T
            if method == "wise":
                ours = ours * torch.from_numpy(Key(part["seed"], "wise").having(0).below(ours.numel(), part["mask"])).view_as(ours)
            theirs, loss = retrained(model, name, run, part, x, y, hp, method, torch.zeros_like(ours), model.config)
            print(f"{method}: {name}: the change of the first fact has norm {ours.norm():.3f} and differs from torch's by "
                  f"{(ours - theirs).norm() / ours.norm():.1e} of it; its loss {loss:.4f}")

            with torch.no_grad():
                plain = [model(torch.tensor([tokenizer(p)["input_ids"]])).logits[0] for p in prompts]
                adapter = memoir(nas, linear, steps, hp) if method == "memoir" else wise(easyedit, linear, steps, hp, model.config)
                parent = model.get_submodule(name.rsplit(".", 1)[0])
                setattr(parent, name.rsplit(".", 1)[1], ByToken(adapter, linear))
                wrapped = model.get_submodule(name)
                for i, p in enumerate(prompts):
                    wrapped.answered = 0
                    ids = torch.tensor([tokenizer(p)["input_ids"]])
                    want = model(ids).logits[0]
                    save_file({"input_ids": ids}, f"{tmp}/ids.safetensors")
                    subprocess.run([compress, "forward", f"{tmp}/edited", "--ids", f"{tmp}/ids.safetensors", "--out", f"{tmp}/out.safetensors",
                                    "--quiet", "--overwrite"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    got = load_file(f"{tmp}/out.safetensors")["logits"][0]
                    print(f"  {p[:40]!r}, {ids.shape[1]} tokens: {wrapped.answered} answered; logits differ by {(got - want).abs().max():.1e}, "
                          f"from the unedited model's by {(want - plain[i]).abs().max():.2f}")
                setattr(parent, name.rsplit(".", 1)[1], linear)


main()
