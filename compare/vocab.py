"""Trims vocabularies with compress and looks at the result with transformers: vocab.py COMPRESS TEXT HELDOUT FOLDER...

A folder is a model, or a tokenizer around which a llama of two layers is drawn. For each, TEXT chooses the tokens; then the documents
of both texts (paragraphs) are encoded with the tokenizer before and after, as transformers and the tokenizers library do it: a document
whose tokens were all kept must have the same ones under their new ids, and text decodes to what it did. Logits of kept tokens are
compared on some of these. One line a folder; exit status 1 where something differs.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

compress, text, heldout, *folders = sys.argv[1:]


def paragraphs(path):
    return [p for p in re.split(r"[ \t]*\n[ \t]*\n", pathlib.Path(path).read_text()) if p.strip()]


def drawn(folder, to):
    """A model around a tokenizer, with a head of its own and more rows than there are tokens."""
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        if (folder / name).exists():
            shutil.copy(folder / name, to)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    ids = [t["id"] for t in tokens["added_tokens"]]
    vocab = tokens["model"]["vocab"]
    rows = max([*ids, *(vocab.values() if isinstance(vocab, dict) else [len(vocab) - 1])]) + 1
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=(rows + 127) // 128 * 128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=min(ids, default=0), eos_token_id=max(ids, default=0),
    )).save_pretrained(to)


def numbers(runs):
    for run in runs.split():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def check(folder, work):
    source, out = folder, work / "small"
    if not (folder / "config.json").exists():
        source = work / "model"
        source.mkdir()
        drawn(folder, source)
    report = work / "report.json"
    subprocess.run([compress, "prune", str(source), "--vocab-from", text, "--out", str(out), "--quiet", "--report", str(report)],
                   check=True, stdout=subprocess.DEVNULL)

    kept = list(numbers(json.loads((out / "pruning.json").read_text())["vocabulary"]["kept_ids"]))
    new = {old: i for i, old in enumerate(kept)}
    was, now = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(out)
    bad, covered, examples = [], {}, []
    for path in (text, heldout):
        docs = paragraphs(path)
        covered[path] = [0, len(docs)]
        for doc, before, after in zip(docs, was(docs)["input_ids"], now(docs)["input_ids"]):
            if now.decode(after) != was.decode(before):
                bad.append(f"{doc!r} decodes to another text")
            if not all(i in new for i in before):
                continue
            covered[path][0] += 1
            if [new[i] for i in before] != after:
                bad.append(f"{doc!r}: {before} became {after}")
            if len(examples) < 4 and len(before) > 16:
                examples.append(before[:48])

    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        a, b = getattr(was, name + "_id"), getattr(now, name + "_id")
        if (None if a is None else new[a]) != b:
            bad.append(f"{name}: {a} became {b}")
    if was.chat_template:
        talk = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "It is the first of them."}]
        a, b = (t.apply_chat_template(talk, tokenize=True, return_dict=False) for t in (was, now))
        if all(i in new for i in a) and [new[i] for i in a] != b:
            bad.append(f"the conversation {a} became {b}")

    large, small = (AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32) for p in (source, out))
    for key in ("bos_token_id", "eos_token_id"):
        a, b = getattr(large.config, key), getattr(small.config, key)
        if a is not None and new[a] != b:
            bad.append(f"config.json, {key}: {a} became {b}")
    apart, largest, same = 0.0, 0.0, 0
    with torch.no_grad():
        for ids in examples:
            x = large(torch.tensor([ids])).logits[0][:, kept]
            y = small(torch.tensor([[new[i] for i in ids]])).logits[0]
            apart = max(apart, (x - y).abs().max().item())
            largest = max(largest, x.abs().max().item())
            same += (x.argmax(-1) == y.argmax(-1)).all().item()
    # Products of fewer rows are summed in other blocks.
    if not examples or apart > 1e-5 * max(largest, 1) or same != len(examples):
        bad.append(f"logits differ by {apart:g} of {largest:g} in {len(examples)} examples")

    counts = ", ".join(f"{n} of {of}" for n, of in covered.values())
    print(f"{folder.name}: {large.config.vocab_size} rows became {len(kept)}; covered documents {counts}; logits of {len(examples)} "
          f"sequences apart by {apart:.2g} of {largest:.3g}; {len(bad)} differences", flush=True)
    for line in bad[:5]:
        print("  " + line[:400])
    return not bad


ok = True
for name in folders:
    with tempfile.TemporaryDirectory() as tmp:
        ok = check(pathlib.Path(name), pathlib.Path(tmp)) and ok
sys.exit(0 if ok else 1)
