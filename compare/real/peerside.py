"""The peer's side of real.py: one piece of work, a line of JSON with its figures.

    python compare/real/peerside.py '{"work": "logits", "model": "SmolLM2-135M-Instruct", …}'
"""
import json
import os
import resource
import sys

spec = json.loads(sys.argv[1])


def used():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


def versions(*names):
    from importlib.metadata import version
    return {n: version(n) for n in names}


def load():
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(1)
    return torch, AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32, **own()).eval()


def own():
    """The GGUF file of the folder that transformers is to read by itself, if one is named."""
    return {"gguf_file": spec["gguf"]} if "gguf" in spec else {}


def logits():
    """Logits of transformers for the ids, beside those that compress forward wrote."""
    from safetensors.torch import load_file
    torch, model = load()
    ids, ours = load_file(spec["ids"])["input_ids"], load_file(spec["ours"])["logits"]
    with torch.inference_mode():
        theirs = model(ids).logits.float()
    return {"largest": (ours - theirs).abs().max().item(), "scale": theirs.abs().max().item(), "rms": (ours - theirs).pow(2).mean().sqrt().item(),
            "same_top": (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item(), "positions": ids.numel(), **versions("torch", "transformers")}


def tokens():
    """Token ids of a file's lines."""
    lines = open(spec["lines"], newline="").read().split("\n")
    if own():
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(spec["model"], **own())
        return {"ids": [tokenizer(line).input_ids for line in lines], **versions("tokenizers", "transformers")}
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(spec["model"], "tokenizer.json"))
    return {"ids": [tokenizer.encode(line).ids for line in lines], **versions("tokenizers")}


def texts():
    """Greedy continuations of prompts, as they stand and as chats."""
    from transformers import PreTrainedTokenizerFast
    torch, model = load()
    folder = spec["model"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
    settings = json.load(open(os.path.join(folder, "tokenizer_config.json")))
    template = os.path.join(folder, "chat_template.jinja")
    tokenizer.chat_template = open(template).read() if os.path.exists(template) else settings["chat_template"]
    found = []
    for prompt, chat in spec["prompts"]:
        if chat:
            prompt = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        with torch.inference_mode():
            out = model.generate(ids, max_new_tokens=spec["tokens"], do_sample=False, pad_token_id=0)
        found.append(tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True))
    return {"texts": found, **versions("torch", "transformers")}


def prune():
    """Wanda or SparseGPT by the published classes (WANDA: a clone of github.com/locuslab/wanda), block by block, half of the weights."""
    sys.path.insert(0, os.path.join(spec["published"], "lib"))
    from safetensors.torch import load_file, save_file
    torch, model = load()
    from layerwrapper import WrappedGPT
    from sparsegpt import SparseGPT

    torch.cuda.synchronize = lambda *_: None  # the published code times itself on a GPU
    ids = load_file(spec["ids"])["input_ids"].long()
    masks, start = {}, used()
    with torch.no_grad():
        body = model.model
        place = torch.arange(ids.shape[1])[None]
        flows = [body.embed_tokens(row[None]) for row in ids]
        rope = body.rotary_emb(flows[0], place)

        for number, block in enumerate(body.layers):
            def run(x):
                y = block(x, position_embeddings=rope, position_ids=place)
                return y[0] if isinstance(y, tuple) else y

            linears = {n: m for n, m in block.named_modules() if isinstance(m, torch.nn.Linear)}
            wrapped = {n: (SparseGPT if spec["method"] == "sparsegpt" else WrappedGPT)(m) for n, m in linears.items()}
            hooks = [m.register_forward_hook(lambda _, x, y, w=wrapped[n]: w.add_batch(x[0].data, y.data)) for n, m in linears.items()]
            for x in flows:
                run(x)
            for hook in hooks:
                hook.remove()

            for n, m in linears.items():
                if spec["method"] == "sparsegpt":
                    wrapped[n].fasterprune(0.5, prune_n=0, prune_m=0, percdamp=0.01, blocksize=128)
                else:
                    score = m.weight.abs() * wrapped[n].scaler_row.reshape(1, -1).sqrt()
                    order = torch.sort(score, dim=-1, stable=True)[1]
                    gone = torch.zeros_like(score, dtype=torch.bool).scatter_(1, order[:, :score.shape[1] // 2], True)
                    m.weight[gone] = 0
                masks[f"model.layers.{number}.{n}.weight"] = (m.weight != 0).to(torch.uint8)
            flows = [run(x) for x in flows]
    took = used() - start
    save_file(masks, spec["masks"])
    if spec.get("weights"):
        model.save_pretrained(spec["weights"])
    return {"cpu": took, **versions("torch", "transformers")}


def masks():
    """How many entries of the masks agree with the zeros of a model that compress pruned."""
    from safetensors.torch import load_file
    theirs, ours = load_file(spec["masks"]), load_file(os.path.join(spec["model"], "model.safetensors"))
    same = {n: (m.bool() == (ours[n] != 0)).sum().item() for n, m in theirs.items()}
    return {"same": sum(same.values()), "all": sum(m.numel() for m in theirs.values()), "worst": min(same[n] / theirs[n].numel() for n in same)}


def evaluate():
    """The tasks by lm-evaluation-harness: metrics and points of every document."""
    import torch
    torch.set_num_threads(1)
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    start = used()
    model = HFLM(pretrained=spec["model"], dtype="float32", device="cpu", batch_size=spec["batch"])
    manager = TaskManager(include_path=spec["folder"], include_defaults=False)
    loaded = used()
    found = simple_evaluate(model=model, tasks=[spec["task"]], limit=spec["limit"], task_manager=manager, bootstrap_iters=1000, log_samples=False)
    return {"cpu": used() - loaded, "loading": loaded - start, "results": found["results"], **versions("torch", "transformers", "lm_eval")}


def merge():
    """A recipe by mergekit, with one thread."""
    import torch
    import yaml
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions
    torch.set_num_threads(1)
    config = MergeConfiguration.model_validate(yaml.safe_load(open(spec["recipe"])))
    before = used()
    run_merge(config, spec["out"], MergeOptions(quiet=True, copy_tokenizer=False, num_threads=1))
    return {"cpu": used() - before, **versions("torch", "mergekit")}


works = {"logits": logits, "tokens": tokens, "texts": texts, "prune": prune, "masks": masks, "evaluate": evaluate, "merge": merge}
print(json.dumps(works[spec["work"]](), default=str))
