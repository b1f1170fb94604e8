"""A peer's side of peers.py: prepares one piece of work, says which versions it has, and does it once for every line it reads."""
import json, os, resource, sys, time

spec = json.loads(sys.argv[1])
threads = 1
SHAPE = dict(vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
             max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, hidden_act="silu", rope_theta=10000.0)


def used():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


def timed(f, n=1):
    """Median seconds of n calls."""
    times = []
    for _ in range(n):
        t = time.perf_counter()
        f()
        times.append(time.perf_counter() - t)
    return sorted(times)[len(times) // 2]


def serve(versions, once):
    print("@" + json.dumps(versions), flush=True)
    for _ in sys.stdin:
        print("@" + json.dumps({"figures": once()}), flush=True)


def version(*names):
    from importlib.metadata import version as of
    return {n: of(n) for n in names}


# What both sides work on.

def names(c):
    h, f, kv = c["hidden_size"], c["intermediate_size"], c["hidden_size"] // c["num_attention_heads"] * c["num_key_value_heads"]
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        for n, s in (("input_layernorm", (h,)), ("self_attn.q_proj", (h, h)), ("self_attn.k_proj", (kv, h)), ("self_attn.v_proj", (kv, h)), ("self_attn.o_proj", (h, h)),
                     ("post_attention_layernorm", (h,)), ("mlp.gate_proj", (f, h)), ("mlp.up_proj", (f, h)), ("mlp.down_proj", (h, f))):
            yield p + n + ".weight", s
    yield "model.norm.weight", (h,)
    yield "lm_head.weight", (c["vocab_size"], h)


def checkpoint(path, c, dtype, seed, delta=0):
    """Weights of a seed, plus differences of another seed for the kin of a model."""
    import torch
    from safetensors.torch import save_file
    os.makedirs(path, exist_ok=True)
    tensors = {}
    for i, (n, s) in enumerate(names(c)):
        t = torch.empty(s).normal_(0, 0.02, generator=torch.Generator().manual_seed(seed + i)) + (len(s) == 1)
        if delta:
            t += torch.empty(s).normal_(0, 0.002, generator=torch.Generator().manual_seed(seed + 5000 * delta + i))
        tensors[n] = t.to(dtype)
    save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": str(dtype).split(".")[1], **c}
    json.dump(config, open(os.path.join(path, "config.json"), "w"))


def make():
    import shutil
    import torch
    from safetensors.torch import save_file
    d, nano = spec["dir"], os.path.join(spec["root"], "testdata", "nano")
    if spec["model"]:
        os.symlink(os.path.abspath(spec["model"]), os.path.join(d, "f32"))
    else:
        checkpoint(os.path.join(d, "f32"), SHAPE, torch.float32, 1000)
        for f in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(nano, "base", f), os.path.join(d, "f32"))
    big = SHAPE if spec["quick"] else {**SHAPE, "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    for i, m in enumerate(("base", "m1", "m2")):
        checkpoint(os.path.join(d, m), big, torch.bfloat16, 2000, i)
    g = torch.Generator().manual_seed(7)
    ids = torch.randint(3, SHAPE["vocab_size"], (4, 4, 256), generator=g).to(torch.int32)
    save_file({"input_ids": ids, "labels": ids.clone()}, os.path.join(d, "batches.safetensors"))
    save_file({"calib_ids": torch.randint(3, SHAPE["vocab_size"], (16, 256), generator=g)}, os.path.join(d, "calib.safetensors"))
    tasks(os.path.join(d, "tasks"), nano)


CHOICE = """task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: D/test.jsonl, dev: D/dev.jsonl}}
test_split: test
fewshot_split: dev
fewshot_config: {sampler: first_n}
output_type: multiple_choice
description: "The following are multiple choice questions (with answers) about people.\\n\\n"
doc_to_text: "{{question}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nC. {{choices[2]}}\\nD. {{choices[3]}}\\nAnswer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""
WRITING = """task: writing
dataset_path: json
dataset_kwargs: {data_files: {test: D/test.jsonl, dev: D/dev.jsonl}}
test_split: test
fewshot_split: dev
fewshot_config: {sampler: first_n}
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["Question:"], do_sample: false, max_gen_toks: 48}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""


def tasks(d, nano):
    """Questions made of sentences of the repository's own text."""
    os.makedirs(d, exist_ok=True)
    text = open(os.path.join(nano, "text", "test.txt")).read().replace("\n", " ")
    lines = [l.strip() for l in text.split(". ") if len(l.split()) > 3]
    docs = []
    for i in range(60):
        words = lines[i].split()
        wrong = [lines[(60 + 3 * i + k) % len(lines)].split()[-1] for k in range(3)]
        answer = i % 4
        docs.append({"question": " ".join(words[:-1]), "choices": wrong[:answer] + [words[-1]] + wrong[answer:], "answer": answer})
    for name, part in (("test", docs[:50]), ("dev", docs[50:])):
        open(os.path.join(d, name + ".jsonl"), "w").write("".join(json.dumps(x) + "\n" for x in part))
    for name, text in (("choice", CHOICE), ("writing", WRITING)):
        open(os.path.join(d, name + ".yaml"), "w").write(text.replace("D/", d + "/"))


# What the peers do.

def merge():
    import shutil
    import torch, yaml
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions
    torch.set_num_threads(threads)
    config, out = MergeConfiguration.model_validate(yaml.safe_load(open(spec["recipe"]))), os.path.join(spec["dir"], "theirs")

    def once():
        before = used()
        run_merge(config, out, MergeOptions(quiet=True, copy_tokenizer=False, num_threads=threads))
        took = used() - before
        shutil.rmtree(out)
        return {"": took}
    serve(version("mergekit"), once)


def llama(half=False):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(threads)
    return AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.bfloat16 if half else torch.float32)


def forward():
    import torch
    half = spec["model"].endswith("bf16")
    m = llama(half).eval()
    ids = torch.tensor([[(i * 7919 + t * 104729) % 4096 for t in range(256)] for i in range(4)])

    @torch.inference_mode()
    def once():
        whole = timed(lambda: m(input_ids=ids, labels=ids, use_cache=False), 3)
        few = timed(lambda: m.generate(ids[:1, :1], max_new_tokens=32, min_new_tokens=32, do_sample=False, use_cache=True, pad_token_id=2))
        return {"forward 4x256": whole, "32 tokens": few}
    serve(version("torch", "transformers"), once)


def train():
    import contextlib
    import torch
    from safetensors.torch import load_file
    m = llama()
    if spec["what"] == "lora":
        from peft import LoraConfig, get_peft_model
        m = get_peft_model(m, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"))
    m.train()
    batches = load_file(os.path.join(spec["dir"], "batches.safetensors"))["input_ids"].long()
    params = [p for p in m.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.0)
    cast = (lambda: torch.autocast("cpu", dtype=torch.bfloat16)) if spec["half"] else contextlib.nullcontext

    def step(ids):
        opt.zero_grad(set_to_none=True)
        with cast():
            loss = m(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()

    def once():
        times = [timed(lambda: step(ids)) for ids in batches]
        return {"step": sorted(times[1:])[1]}
    serve(version("torch", "transformers", "peft"), once)


def prune():
    """Block by block, as the published programs go: inputs of the matrices, masks, the pruned block again."""
    import torch
    from safetensors.torch import load_file
    ids = load_file(os.path.join(spec["dir"], "calib.safetensors"))["calib_ids"].long()
    source = llama()
    state = {k: v.clone() for k, v in source.state_dict().items()}

    @torch.inference_mode()
    def once():
        source.load_state_dict(state)
        before = used()
        body = source.model
        position = torch.arange(ids.shape[1])[None]
        hidden = [body.embed_tokens(row[None]) for row in ids]
        rope = body.rotary_emb(hidden[0], position)
        for block in body.layers:
            linears = [x for x in block.modules() if isinstance(x, torch.nn.Linear)]
            stats = {l: 0 for l in linears}

            def note(l, inputs, _):
                x = inputs[0].flatten(0, 1)
                stats[l] = stats[l] + (x.T @ x * (2 / len(ids)) if spec["method"] == "sparsegpt" else (x * x).sum(0) / len(ids))
            hooks = [l.register_forward_hook(note) for l in linears]
            run = lambda h: block(h, position_embeddings=rope, position_ids=position)
            for h in hidden:
                run(h)
            for x in hooks:
                x.remove()
            for l in linears:
                (sweep if spec["method"] == "sparsegpt" else drop)(torch, l.weight.data, stats[l])
            hidden = [r[0] if isinstance(r := run(h), tuple) else r for h in hidden]
        return {"": used() - before}
    serve(version("torch", "transformers"), once)


def drop(torch, w, s):
    """Wanda: the lower half of every row by |w|·sqrt(s)."""
    order = torch.sort(w.abs() * s.sqrt(), dim=1, stable=True)[1][:, : w.shape[1] // 2]
    w.scatter_(1, order, 0)


def sweep(torch, w, h, width=128, damp=0.01):
    """SparseGPT (arXiv 2301.00774), half of the weights: columns from left to right in blocks, errors spread by the factor of the inverse Hessian."""
    n = h.shape[0]
    h = h.clone()
    dead = h.diagonal() == 0
    h.diagonal()[dead] = 1
    w[:, dead] = 0
    h.diagonal().add_(damp * h.diagonal().mean())
    u = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    for lo in range(0, n, width):
        hi = min(lo + width, n)
        part, factor = w[:, lo:hi].clone(), u[lo:hi, lo:hi]
        score = (part / factor.diagonal()) ** 2
        gone = score <= score.flatten().sort()[0][score.numel() // 2]
        errors = torch.empty_like(part)
        for j in range(hi - lo):
            kept = part[:, j].masked_fill(gone[:, j], 0)
            errors[:, j] = (part[:, j] - kept) / factor[j, j]
            part[:, j:] -= errors[:, j : j + 1] * factor[j : j + 1, j:]
            part[:, j] = kept
        w[:, lo:hi] = part
        w[:, hi:] -= errors @ u[lo:hi, hi:]


def masks():
    import torch
    torch.set_num_threads(threads)
    w, s = torch.randn(4096, 4096), torch.rand(4096)

    def rows():
        score = w.abs() * s.sqrt()
        mask = torch.zeros_like(score, dtype=torch.bool)
        mask.scatter_(1, torch.sort(score, dim=1, stable=True)[1][:, :2048], True)

    def whole():
        score = w.abs()
        score <= torch.sort(score.flatten())[0][score.numel() // 2]
    serve(version("torch"), lambda: {"wanda 50 % per row": timed(rows), "magnitude 50 %": timed(whole)})


def evaluate():
    import torch
    torch.set_num_threads(threads)
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    m = HFLM(pretrained=spec["model"], dtype="float32", device="cpu", batch_size=spec["batch"])
    tasks = TaskManager(include_path=os.path.join(spec["dir"], "tasks"), include_defaults=False)

    def once():
        took = timed(lambda: simple_evaluate(model=m, tasks=[spec["task"]], num_fewshot=spec["shots"], limit=spec["limit"], task_manager=tasks, bootstrap_iters=1000, log_samples=False))
        return {f"{spec['limit']} documents": took}
    serve(version("torch", "transformers", "lm_eval"), once)


def matmul():
    import numpy as np
    import torch
    torch.set_num_threads(threads)
    r = np.random.default_rng(1)
    x, w, few = r.standard_normal((512, 2048), np.float32), r.standard_normal((2048, 2048), np.float32), r.standard_normal((64, 2048), np.float32)
    a, b = torch.from_numpy(x).bfloat16(), torch.from_numpy(w).bfloat16()
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    found = {"numpy": np.__version__, "its BLAS": f"{blas['name']} {blas['version']}", **version("torch")}
    serve(found, lambda: {"F32": timed(lambda: x @ w.T, 5), "BF16": timed(lambda: a @ b.T, 5), "F32, 64 rows": timed(lambda: few @ w.T, 5)})


{"make": make, "merge": merge, "forward": forward, "train": train, "prune": prune, "masks": masks, "eval": evaluate, "matmul": matmul}[spec["kind"]]()
