"""The page of what real.py has measured: OUT/real.md with its pictures, and OUT/real.json with every figure."""
import json
import pathlib

import parts
import plot
from bench import paired, t_tail, write as write_json


def write(b):
    """Sections of the parts that have figures."""
    figures = {name: found for name in parts.PARTS if (found := read(b.out / name))}
    write_json(b.out / "real.json", {"machine": table_of(b, "machine"), "computers": table_of(b, "computers"), "data": table_of(b, "data"), "failed": table_of(b, "failed"), **figures})

    machine = table_of(b, "machine")
    lines = ["# A real language model", ""]
    if machine.get("quick"):
        lines += ["**A run with --quick: a check that everything runs. No figure stands for anything, and how much was measured is less than the text says.**", ""]
    lines += [f"SmolLM2-135M-Instruct (`{parts.WHEEL}` from PyPI, Apache-2.0). CPU-seconds are those of whole commands unless a section says otherwise, memory is the most that was",
              "resident. p is that of a paired t-test over windows or records, not adjusted.", "", *computers(b), ""]
    for name, section in SECTIONS.items():
        if name in figures:
            lines += section(b, figures[name]) + [""]
    for name, reason in table_of(b, "failed").items():
        lines += [f"Not done: {name}: {' '.join(reason.split())}", ""]
    (b.out / "real.md").write_text("\n".join(lines))


def computers(b):
    """What computed the figures, and of which parts."""
    by = {}
    for entry in table_of(b, "computers"):
        part, computer = entry.split(": ", 1)
        by.setdefault(computer, []).append(part)
    return [f"- {computer}" + (f": {', '.join(found)}" if len(by) > 1 else "") for computer, found in by.items()]


def read(folder):
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))} if folder.is_dir() else {}


def table_of(b, name):
    path = b.out / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(str(c) for c in row) + " |" for row in rows)]


def took(figure):
    return f"{figure['cpu']:.0f}", f"{figure['peak'] / 1e6:.0f}"


def pair(d):
    """A difference in pairs, its standard error and p."""
    return f"{d['difference']:+.3f} ± {d['error']:.3f}" + (f", p {d['p']:.1g}" if d["difference"] or d["error"] else "")


def commands(*figures):
    return ["", *(f"    {f['command']}" for f in figures if "command" in f)]


# Sections.

def agree(b, f):
    lines = ["## The same model", ""]
    rows = []
    if "tokens" in f:
        t = f["tokens"]
        rows.append(["token ids", f"{t['lines']:,} lines, {t['tokens']:,} tokens", f"{t['same']:,} lines equal to tokenizers {t['tokenizers']}"])
    for name in ("logits F32", "logits BF16"):
        if name in f:
            g = f[name]
            rows.append([name, f"{g['positions']} positions", f"largest difference {g['largest']:.1e} at logits up to {g['scale']:.0f}, {100 * g['same_top']:.1f} % the same top token (transformers {g['transformers']}, F32)"])
    if "texts" in f:
        rows.append(["greedy texts of 60 tokens, two of four as chats", f"{f['texts']['of']}", f"{f['texts']['same']} the same"])
    return lines + table(["what", "how much", "result"], rows)


def families(b, f):
    rows = []
    for name, (wheels, _, licence) in parts.FAMILIES.items():
        if f"{name} pruned" not in f:
            continue
        tokens, logits = ([f[f"{name} {what}, {reading}"] for reading in ("folder", "file")] for what in ("tokens", "logits"))
        ppl = [f[f"{name} {which}"]["report"] for which in ("dense", "pruned")]
        d = paired(*(p["window_nll"] for p in ppl))
        rows.append([name, licence, f"PyPI: `{wheels[0]}`" + (f" and {len(wheels) - 1} more" if wheels[1:] else ""), f"{tokens[0]['lines']} lines, {tokens[0]['tokens']:,} ids: " + ", ".join(str(t["same"]) for t in tokens) + " equal",
                     f"{logits[0]['positions']} positions, up to {logits[0]['scale']:.0f}: largest differences " + ", ".join(f"{g['largest']:.1e}" for g in logits)
                     + "; the same top token at " + ", ".join(f"{100 * g['same_top']:.1f} %" for g in logits), ", ".join(f"{p['ppl']:.2f}" for p in ppl) + f" ({pair(d)} nats a token, n = {d['n']})"])
    if not rows:
        return []
    return ["## Other models", "", "Each converted by this program, beside transformers on the folder that it wrote, and on the GGUF file as transformers reads it by itself. Perplexity on windows of 512 of WikiText-2's",
            "test text, dense and with half of the weights taken out by Wanda (calibrated with 16 sequences of 512); a window begins with the token that the model's tokenizer puts before a text.", ""] + table(
        ["model", "licence", "from", "token ids", "logits F32", "perplexity: dense, 50 %"], rows) + commands(*(f[name] for name in f if name.startswith("made ") or name.endswith("pruned")))


def pruning(b, f):
    dense, runs = None, []
    for name in (names := ("masks", "masks alpha", "masks N:M", "new masks")):
        if name in f:
            dense = f[name]["report"]["dense"]
            runs += f[name]["report"]["runs"]
    if not runs:
        return []
    patterns = list(dict.fromkeys(r["target"] for r in runs))
    methods = list(dict.fromkeys(r["method"] for r in runs))
    at = {(r["method"], r["target"]): r for r in runs}

    rows = []
    for m in methods:
        cells = []
        for p in patterns:
            r, wanda = at.get((m, p)), at.get(("wanda", p))
            if not r:
                cells.append("")
                continue
            d = wanda and paired(wanda["window_nll"], r["window_nll"])
            cells.append(f"{r['ppl']:.2f} ± {r['stderr']:.1f}" + ("" if m == "wanda" or not d else f" ({d['difference']:+.3f}, p {d['p']:.1g})"))
        seconds = [at[m, p]["prune_cpu_seconds"] for p in patterns if (m, p) in at]
        rows.append([m, *cells, f"{min(seconds):.0f}–{max(seconds):.0f}"])

    n = len(dense["window_nll"])
    lines = ["## Pruning", "", f"Perplexity on {n} windows of 512 of WikiText-2's test text (dense {dense['ppl']:.2f} ± {dense['stderr']:.1f}), calibrated with 16 sequences of 512 of its",
             "validation text; in brackets nats a token more than Wanda on the same windows. CPU-seconds are those of pruning alone.", ""]
    lines += table(["method", *patterns, "CPU-seconds"], rows)
    chart = [(m, [(i, at[m, p]["ppl"]) for i, p in enumerate(patterns) if (m, p) in at and "@" not in m and ":" not in p]) for m in methods]
    lines += ["", f"Most resident while all methods of a run were made one after another: {max(f[n]['peak'] for n in names if n in f) / 1e6:.0f} MB."]
    lines += commands(*(f[n] for n in names if n in f))
    if chart := [c for c in chart if len(c[1]) > 1]:
        plot.lines(b.out / "pruning.svg", "Perplexity after pruning", [p for p in patterns if ":" not in p], chart, log=True)
        lines += ["", "![perplexity after pruning](pruning.svg)"]
    return lines


def tasks(b, f):
    alone = [[name.removeprefix("made ").removesuffix(" 0.5"), *took(x)] for name, x in f.items() if name.startswith("made ") and name.endswith(" 0.5")]
    lines = ["## Methods alone", "", "Half of the weights, each method by a command of its own: CPU-seconds with loading, writing and, where a method wants them, gradients; the most that was resident.", "",
             *table(["method", "CPU-seconds", "memory, MB"], alone)] if alone else []
    return lines + ["", "## Tasks of pruned models", *accuracies({name: x for name, x in f.items() if not name.startswith("made ")}, f, "dense")]


def accuracies(found, f, first):
    """A table of evaluations on the same tasks; that which others are compared with first, and what making each model took."""
    if not found:
        return []
    names = list(next(iter(found.values()))["results"])
    rows = []
    for model, x in sorted(found.items(), key=lambda i: i[0] != first):
        made = f.get("made " + model)
        rows.append([model, *(cell(x, t) for t in names), *(took(made) if made else ("", ""))])
    counts = next(iter(found.values()))["n"]
    return ["", f"Accuracy; in brackets the difference from {first} on the same documents, p by McNemar's exact test. CPU-seconds and memory are those of making the model.", "", *table(
        ["accuracy", *(f"{t.removeprefix('real_')} (n = {counts[t]})" for t in names), "CPU-seconds", "memory, MB"], rows), *commands(next(iter(found.values())))]


def cell(found, task):
    result, pair = found["results"][task], found.get("paired", {}).get(task)
    return f"{result['acc,none']:.3f} ± {result['acc_stderr,none']:.3f}" + (f" ({pair['difference']:+.3f}, p {pair['p']:.2g})" if pair else "")


def published(b, f):
    rows = []
    for method in ("wanda", "sparsegpt"):
        if method in f:
            g = f[method]
            m, nll = g["masks"], g["nll"]
            rows.append([method, f"{m['same']:,} of {m['all']:,} ({100 * m['same'] / m['all']:.2f} %)", f"{nll['ours']:.4f}, {nll['theirs']:.4f}",
                         f"{g['ours']['cpu']:.0f}, {g['theirs']['cpu']:.0f}", f"{g['theirs']['cpu'] / g['ours']['cpu']:.2f}", f"{g['ours']['peak'] / 1e6:.0f}, {g['theirs']['whole']['peak'] / 1e6:.0f}"])
    return ["## Beside the published code", "", "Half of the weights by the classes of github.com/locuslab/wanda on the same ids; CPU-seconds of ours are the whole command's, of theirs the pruning",
            "alone, one thread each.", ""] + table(["method", "mask entries equal", "loss, nats (ours, theirs)", "CPU-seconds", "ratio", "memory, MB"], rows)


def healing(b, f):
    if "dense" not in f or "pruned" not in f:
        return []
    nll = {name: x["report"]["window_nll"] for name, x in f.items() if "report" in x}
    dense, pruned = (sum(nll[n]) / len(nll[n]) for n in ("dense", "pruned"))
    rows = []
    for name, windows in nll.items():
        d, mean = paired(nll["pruned"], windows), sum(windows) / len(windows)
        gained = "" if name in ("dense", "pruned", "lora on dense") else f"{100 * (pruned - mean) / (pruned - dense):.0f} %"
        made = f.get("made wanda-50" if name == "pruned" else "made " + name.replace(", ", "-").replace(" ", "-"))
        rows.append([name, f"{f[name]['report']['ppl']:.2f}", "" if name == "pruned" else pair(d), gained, *(took(made) if made else ("", ""))])
    return ["## Healing", "", f"Half of the weights by Wanda, then 60 steps of 4 sequences of 256 tokens of the text that it was calibrated with; {len(nll['dense'])} windows of other text.", ""] + table(
        ["model", "perplexity", "nats a token against pruned (p)", "of the gap closed", "CPU-seconds", "memory, MB"], rows) + commands(*(x for n, x in f.items() if n.startswith("made ")))


def merging(b, f):
    losses = {}
    for name, x in f.items():
        if " on " in name:
            model, domain = name.rsplit(" on ", 1)
            losses.setdefault(model, {})[domain] = x["report"]
    losses = {m: found for m, found in losses.items() if m.startswith(("expert ", "adapter ")) or len(found) == len(parts.NAMES)}  # the others were interrupted
    experts = {d: losses[f"expert {d}"][d] for d in parts.NAMES if f"expert {d}" in losses}
    if len(experts) < len(parts.NAMES) or "base" not in losses or any(f"adapter {d}" not in losses for d in parts.NAMES):
        return []
    total = f.get("bytes", {})
    stored = {"base": total.get("base"), "each expert on its own": total.get("experts"), "base + adapters": total.get("adapters")}
    adapters = {"base + adapters": {d: losses[f"adapter {d}"][d] for d in parts.NAMES if f"adapter {d}" in losses}}
    rows, bars = [], []
    order = {"base": losses["base"], "each expert on its own": experts, **adapters, **{m: x for m, x in losses.items() if not m.startswith(("base", "expert ", "adapter "))}}
    for model, found in order.items():
        cells, lost = [], []
        for d in parts.NAMES:
            delta = paired(experts[d]["window_nll"], found[d]["window_nll"])
            lost.append(delta["difference"])
            cells.append(f"{found[d]['nll']:.3f}" + ("" if found is experts else f" ({pair(delta)})"))
        made = f.get("made " + model)
        takes = made["bytes"] if made else stored.get(model)
        rows.append([model, *cells, f"{takes / 1e6:.0f}" if takes else "", *(took(made) if made else ("", ""))])
        bars.append((model + (f" ({takes / 1e6:.0f} MB)" if takes else ""), sum(lost) / len(lost)))
    plot.bars(b.out / "merging.svg", "Nats a token lost against each expert, mean of three domains", sorted(bars, key=lambda x: x[1]))
    return ["## Merging", "", "Three experts of the model (LoRA of rank 8, 80 steps of 4, folded). Nats a token of the answers of held-out records, mean over tokens; in brackets what is lost against the expert itself,",
            "mean over records, which each count as one, ± its standard error (p in pairs).", ""] + table(["model", *(f"{d} (n = {len(experts[d]['window_nll'])})" for d in parts.NAMES), "MB", "CPU-seconds", "memory, MB"], rows) + [
            "", "![what each way of merging loses](merging.svg)"] + accuracies({name.removeprefix("tasks "): x for name, x in f.items() if name.startswith("tasks ")}, f, "base")


def mergekit(b, f):
    rows = [[method, f"{g['changed']:,} in {g['tensors']} tensors differ, by {g['largest']:.1e} at most" if g["changed"] else f"all of {g['tensors']} tensors' the same", f"{g['ours']['cpu']:.1f}, {g['theirs']['cpu']:.1f}",
             f"{g['theirs']['cpu'] / g['ours']['cpu']:.1f}", f"{g['ours']['peak'] / 1e6:.0f}, {g['theirs']['whole']['peak'] / 1e6:.0f}"] for method, g in f.items()]
    return ["### Beside mergekit", "", f"The same recipes by mergekit {next(iter(f.values()))['theirs']['mergekit']}, one thread each; CPU-seconds of ours are the whole command's, of theirs the merge alone, n = 1.", ""] + table(
        ["method", "weights", "CPU-seconds", "ratio", "memory, MB"], rows)


def adapters(b, f):
    if not (shapes := [s for s in parts.SHAPES if s in f]):
        return []
    first = shapes[0]
    losses = {s: {d: [x["report"]["window_nll"] for n, x in f.items() if n.startswith(f"{s}, seed ") and n.endswith(f" on {d}")] for d in parts.NAMES} for s in shapes}
    counts = [len(losses[first][d][0]) for d in parts.NAMES]

    def means(runs):  # of each record, over the seeds
        return [sum(each) / len(each) for each in zip(*runs, strict=True)]

    def against(s, other):  # in each domain, and in the mean of all
        found = [paired(means(losses[other][d]), means(losses[s][d])) for d in parts.NAMES]
        difference, error = sum(a["difference"] for a in found) / len(found), sum(a["error"] ** 2 for a in found) ** 0.5 / len(found)
        return found, {"difference": difference, "error": error, "p": t_tail(difference / error, min(counts) - 1) if error else 1}

    rows = [["base", "", "", "", *(f"{sum(x) / len(x):.3f}" for x in (f[f"base on {d}"]["report"]["window_nll"] for d in parts.NAMES)), "", "", "", ""]]
    for s in shapes:
        found, made = f[s], f[f[s]["made"]]
        each, mean = against(s, first)
        by_seed = [sum(sum(runs) / len(runs) for runs in domains) / len(domains) for domains in zip(*losses[s].values(), strict=True)]
        cells = [f"{x:.3f}" + ("" if s == first else f" ({pair(a)})")
                 for a, x in zip(each, (sum(map(sum, losses[s][d])) / sum(map(len, losses[s][d])) for d in parts.NAMES), strict=True)]
        rows.append([s, f"{found['parameters']:,}", f"{found['bytes'] / 1e3:.0f}", found["rate"], *cells, ", ".join(f"{x:.3f}" for x in by_seed),
                     "" if s == first else pair(mean), *took(made)])
    alike = [f"{s} against {other}, which has as many parameters: {pair(against(s, other)[1])}." for other, s in parts.ALIKE if other in shapes and s in shapes]
    return ["## Adapters", "", "All three domains of the experts learned at once by one adapter, in equal shares: 40 steps of 4 records. Nats a token of the answers of held-out records, mean over records and seeds; in brackets what is lost",
            f"against {first} on the same records, ± its standard error over records (p in pairs; both are of these seeds, not of others). The rate is that of {', '.join(parts.RATES)} which ends lowest on 24 other records with seed 0.", ""] + table(
        ["trained", "parameters", "kB", "rate", *(f"{d} (n = {n})" for d, n in zip(parts.NAMES, counts)), "mean of the three, by seed", f"against {first} (p)", "CPU-seconds", "memory, MB"], rows) + [
            "", *alike, "", "Losses by rate (seed 0, the records that choose):", ""] + table(["trained", *parts.RATES], [[s, *(f"{f[s]['chosen'][r]:.4f}" if r in f[s]["chosen"] else "" for r in parts.RATES)] for s in shapes]) + commands(
                *(f[f[s]["made"]] for s in shapes))


def search(b, f):
    if "search" not in f:
        return []
    r = f["search"]["report"]
    best, rows = r["winner"]["formula"], []
    for m in r["test"][0]["metrics"]:
        versus = m.get("versus_winner")
        name = m["metric"].removeprefix("expr:")
        rows.append([f"`{name}`, found" if name == best else f"`{name}`, of the front" if name != m["metric"] else name, f"{m['ppl']:.1f}",
                     f"{versus['nll_difference']:+.3f} ± {versus['stderr']:.3f}" if versus else "", f"{versus['p_holm']:.2g}" if versus and versus.get("p_holm") is not None else ""])
    counts, full = r["counts"], sum("full" in c for c in r["candidates"])
    hours = r["search_seconds"] / 3600
    rates = "" if r.get("continued_a_journal") else f" ({counts['evaluated'] / hours:.0f} an hour, {full} of them measured in full, {full / hours:.0f} an hour)"
    last = " of the last go alone, since it was interrupted" if r.get("continued_a_journal") else ""
    agree = ", ".join(f"{a['lower']} and {a['upper']} {a['spearman']:.2f} (n = {a['n']})" for a in r["agreement"])
    return ["## Search", "", f"A search for pruning formulas at 60 %, {r['flags']['samples']} × {r['flags']['seqlen']} tokens of calibration, {r['flags']['workers']} worker{'s' * (r['flags']['workers'] != 1)}: ready after {r['setup']['seconds']:.0f} s, then "
            f"{counts['evaluated']} distinct candidates of {counts['generated']} in {r['search_seconds']:.0f} s{last}{rates}. "
            f"Rank correlations of the rungs: {agree}. Perplexity on {r['test'][0]['windows']} windows that no search had seen, the loss beyond the winner's in nats a token, p adjusted by Holm's method.", ""] + table(
                ["metric", "perplexity", "loss - winner's", "p"], rows) + ["", *commands(f["search"])]


def evaluation(b, f):
    rows = []
    for task in parts.SIX:
        ours, theirs = f.get(f"ours {task}"), f.get(f"theirs {task}")
        if not ours or not theirs:
            continue
        mine, other = ours["results"][task], theirs["results"][task]
        keys = [k for k in mine if "," in k and "stderr" not in k and isinstance(other.get(k), float | int)]
        same = "yes" if keys and all(abs(mine[k] - other[k]) <= 1e-4 * max(1, abs(other[k])) for k in keys) else "no"
        figures = ", ".join(f"{k.split(',')[0]} {mine[k]:.4f} and {other[k]:.4f}" for k in keys)
        rows.append([task.removeprefix("real_"), ours["n"][task], figures, same, f"{ours['cpu']:.0f}, {theirs['cpu']:.0f}", f"{theirs['cpu'] / ours['cpu']:.2f}",
                     f"{ours['peak'] / 1e6:.0f}, {theirs['whole']['peak'] / 1e6:.0f}"])
    return ["## Evaluation", "", "The same task files by compress and lm-evaluation-harness; CPU-seconds of ours are the whole command's, of theirs without imports and loading.", ""] + table(
        ["task", "n", "figures, ours and theirs", "the same", "CPU-seconds", "ratio", "memory, MB"], rows)


def seven(b, f):
    rows = [[name, f"{x['wall']:.0f}", f"{x['cpu']:.0f}", f"{x['peak'] / 1e9:.2f}", f"{x['bytes'] / 1e9:.1f}" if "bytes" in x else "",
             f"{(x['read'] + x.get('bytes', 0)) / x['wall'] / 1e9:.2f}" if "read" in x else ""] for name, x in f.items() if "wall" in x]
    size = f.get("storage", {}).get("bytes") or f.get("convert to F16", {}).get("bytes")
    read = f.get("storage", {}).get("read")
    return ["## Seven billion parameters", "", "A drawn Llama" + (f" of {size / 2e9:.1f} billion parameters in BF16 ({size / 1e9:.1f} GB)" if size else "") + (f"; its files come at {read / 1e9:.2f} GB a second by cat." if read else "."), ""] + table(
        ["what", "seconds", "CPU-seconds", "peak memory, GB", "written, GB", "GB a second read and written"], rows) + commands(*(x for x in f.values() if "command" in x))


def speed(b, f):
    return ["## Speed", "", *f["rows"]["table"].splitlines()] if "rows" in f else []


def printed(title, text, *pictures):
    """A section whose table another script has printed."""
    def section(b, f):
        if "table" not in f:
            return []
        spent = [f"{f['table']['cpu']:.0f} CPU-seconds (of the last go, if it was interrupted), {f['table']['peak'] / 1e6:.0f} MB at most.", ""] if "cpu" in f["table"] else []
        return [f"## {title}", "", text.format(n=f["table"].get("windows", "the same")), "", *spent, *f["table"]["table"].splitlines(), *commands(f["table"]), *(f"\n![{title.lower()}]({p})" for p in pictures)]
    return section


SECTIONS = {
    "agree": agree, "families": families, "pruning": pruning, "tasks": tasks, "published": published,
    "forms": printed("Forms", "Each form against the model in F32 on {n} windows of 512 tokens of WikiText-2's test text: the losses in pairs, nats a token (p), the divergence, and how often the likeliest token is the same. CPU-seconds and memory are those of making it. The picture has the smaller models of the next section, too.", "front.svg"),
    "smaller": printed("Smaller models", "What is left after layers, neurons, heads or channels are taken out, and after all of its weights have been trained on what the model says: against the whole model on {n} windows of 512 tokens of WikiText-2's test text. What the model says is computed with the first that is healed, and kept for the others; CPU-seconds of a training that was interrupted are those of its last go."),
    "healing": healing, "merging": merging, "mergekit": mergekit, "adapters": adapters,
    "editing": printed("Editing", "What editing facts does to the rest. In brackets Wilson's interval at 95 %; a star is what is significantly worse than the unedited model (paired bootstrap or McNemar's test, adjusted by Holm's method over all of this run).", "editing.svg"),
    "search": search, "evaluation": evaluation, "speed": speed, "seven": seven,
}
