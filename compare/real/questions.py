"""Task files that compress and lm-evaluation-harness both read, and the records of their data sets, from the files of DATA."""
import csv
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import study

LETTERS = "ABCDE"
MMLU = ["anatomy", "high_school_geography", "marketing", "world_religions"]

HEAD = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{{files}}}}}
test_split: test
"""
CHOICE = "output_type: multiple_choice\n"
ACCURACY = "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\nmetadata: {version: 1.0}\n"
BOTH = ("metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}, {metric: acc_norm, aggregation: mean, higher_is_better: true}]\n"
        "metadata: {version: 1.0}\n")
FEW = "fewshot_split: dev\nfewshot_config: {sampler: first_n}\nnum_fewshot: 5\n"

# Prompts, choices and metrics as lm-evaluation-harness 0.4.13 has them.
TASKS = {
    "real_arc_easy": CHOICE + 'doc_to_text: "Question: {{question}}\\nAnswer:"\n'
    'doc_to_target: "{{choices.label.index(answerKey)}}"\ndoc_to_choice: "{{choices.text}}"\n' + BOTH,
    "real_piqa": CHOICE + 'doc_to_text: "Question: {{goal}}\\nAnswer:"\ndoc_to_target: label\ndoc_to_choice: "{{[sol1, sol2]}}"\n' + BOTH,
    "real_commonsense_qa": CHOICE + 'doc_to_text: "Question: {{question.strip()}}\\n'
    + "".join(f"{letter}. {{{{choices['text'][{i}]}}}}\\n" for i, letter in enumerate(LETTERS)) + 'Answer:"\n'
    "doc_to_target: answerKey\ndoc_to_choice: [A, B, C, D, E]\n" + ACCURACY,
    "real_mmlu": FEW + CHOICE + 'description: "The following are multiple choice questions (with answers).\\n\\n"\n'
    'doc_to_text: "{{question.strip()}}\\n' + "".join(f"{letter}. {{{{choices[{i}]}}}}\\n" for i, letter in enumerate(LETTERS[:4])) + 'Answer:"\n'
    "doc_to_target: answer\ndoc_to_choice: [A, B, C, D]\n" + ACCURACY,
    "real_lambada": 'output_type: loglikelihood\ndoc_to_text: "{{text.split(\' \')[:-1]|join(\' \')}}"\n'
    'doc_to_target: "{{\' \'+text.split(\' \')[-1]}}"\n'
    "metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}, {metric: acc, aggregation: mean, higher_is_better: true}]\n"
    "metadata: {version: 1.0}\n",
    "real_gsm8k": FEW + 'output_type: generate_until\ndoc_to_text: "Question: {{question}}\\nAnswer:"\ndoc_to_target: "{{answer}}"\n'
    'generation_kwargs: {until: ["Question:", "<|im_end|>"], do_sample: false, max_gen_toks: 160}\n'
    'filter_list: [{name: strict, filter: [{function: regex, regex_pattern: "#### (\\\\-?[0-9\\\\.\\\\,]+)"}, {function: take_first}]}]\n'
    'metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true, regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]}]\n'
    "metadata: {version: 1.0}\n",
}


def write(bench):
    """The task files and their data below OUT/tasks."""
    out = bench.out / "tasks"
    out.mkdir(exist_ok=True)
    sets = {name: records(bench, name, out) for name in TASKS}
    for name, text in TASKS.items():
        files = ", ".join(f"{split}: {out / f'{name}.{split}.jsonl'}" for split in sets[name])
        for split, rows in sets[name].items():
            (out / f"{name}.{split}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        (out / f"{name}.yaml").write_text(HEAD.format(name=name, files=files) + text)
    return [out / f"{name}.yaml" for name in TASKS]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def records(bench, name, out):
    """The documents of a task by split, with the fields that its data set has on the Hugging Face hub."""
    if name == "real_arc_easy":
        study.arc(bench.task("llm-adapters-format/ARC-Easy/test.json"), out / "arc.jsonl")
        return {"test": lines(out / "arc.jsonl")}
    if name == "real_piqa":
        labels = bench.task("piqa/valid-labels.lst").read_text().split()
        return {"test": [{**row, "label": int(label)} for row, label in zip(lines(bench.task("piqa/valid.jsonl")), labels, strict=True)]}
    if name == "real_commonsense_qa":
        return {"test": [question(row) for row in lines(bench.task("commonsenseqa/dev_rand_split.jsonl"))]}
    if name == "real_mmlu":
        return {split: [{"question": row["question"], "choices": [row[f"choice{i}"] for i in range(4)], "answer": int(row["answer"])}
                        for row in mixed(bench, split)] for split in ("test", "dev")}
    if name == "real_lambada":
        return {"test": lines(bench.task("lambada/lambada_test.jsonl"))}
    return {"test": lines(bench.task("gsm8k/test.jsonl")), "dev": lines(bench.task("gsm8k/train.jsonl"))[:5]}


def question(row):
    """CommonsenseQA's published records, flat as the hub has them."""
    choices = row["question"]["choices"]
    return {"question": row["question"]["stem"], "answerKey": row["answerKey"],
            "choices": {"label": [c["label"] for c in choices], "text": [c["text"] for c in choices]}}


def mixed(bench, split):
    """Questions of four subjects of MMLU, in turn."""
    tables = []
    for subject in MMLU:
        with open(bench.task(f"mmlu/{split}/{subject}_{split}.csv"), newline="") as file:
            tables.append(list(csv.DictReader(file)))
    return [row for rows in zip(*tables) for row in rows]
