"""Reads every task file of lm-evaluation-harness with `compress eval` and with the harness itself: how many are read, how many are
refused and why, and whether those that are read give the harness' prompts, choices and targets, on records made up for them.

Data: each task gets, for the columns that its templates name, values whose kinds follow from how the templates use them; where a
first guess does not fit, others are tried until the harness itself can make its requests. Nothing is downloaded.
"""

import argparse
import collections
import hashlib
import json
import logging
import random
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jinja2
import jinja2.meta
import jinja2.nodes as nodes
import yaml

SHOTS, DOCUMENTS, EXAMPLES, TRIES = 2, 3, 6, 80
SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix")
TEXTS = ["It's a \"fine\" day", "naïve café – ß", "two\nlines", "back\\slash", " padded ", "{{braces}} {% x %}", "3.10", "[a, b]", "plain words", "100", "Ends.", "日本語 テキスト"]
LETTERS = ["A", "B", "C", "D", "E"]


class Python(str):
    """A !function that is not imported."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads a task file without its Python."""


Loader.add_constructor("!function", lambda loader, node: Python(loader.construct_scalar(node)))


def load(path, seen=()):
    """A task file with what it includes, as the harness merges them."""
    if path in seen:
        raise ValueError("cycle")
    with open(path, "rb") as file:
        config = yaml.load(file, Loader)
    if not isinstance(config, dict):
        raise ValueError("no keys")
    includes = config.pop("include", [])
    merged = {}
    for name in includes if isinstance(includes, list) else [includes]:
        merged.update(load((path.parent / name).resolve(), (*seen, path)))
    merged.update(config)
    return merged


# What columns a task has


class Shape:
    """How templates use a value."""

    def __init__(self):
        self.keys, self.item = {}, None
        self.list = self.text = self.looked = False
        self.at, self.among = None, None  # used as a position of a list of so many; found in these constants or in that shape

    def key(self, name):
        return self.keys.setdefault(name, Shape())

    def items(self):
        self.list = True
        self.item = self.item or Shape()
        return self.item


METHODS = {name for name in dir(str) if not name.startswith("_")} - {"index", "count"}


def shapes(template, columns):
    """Adds the columns of a template."""
    env = jinja2.Environment()
    env.filters["regex_replace"] = str
    tree = env.parse(template)
    names = jinja2.meta.find_undeclared_variables(tree)
    bound = {}

    def shape(node):
        if isinstance(node, nodes.Name):
            if node.name in bound:
                return bound[node.name]
            return columns.setdefault(node.name, Shape()) if node.name in names else None
        if isinstance(node, (nodes.Getattr, nodes.Getitem)):
            inner = shape(node.node)
            arg = nodes.Const(node.attr) if isinstance(node, nodes.Getattr) else node.arg
            if inner is None:
                return None
            if isinstance(arg, nodes.Const) and isinstance(arg.value, str):
                return None if isinstance(node, nodes.Getattr) and (arg.value in METHODS or arg.value in ("index", "items")) else inner.key(arg.value)
            if isinstance(arg, nodes.Slice):
                return inner
            position = shape(arg)
            if position is not None:
                position.at = position.at or 4
            return inner.items()
        if isinstance(node, nodes.Filter) and node.node is not None:
            inner = shape(node.node)
            if inner is not None and node.name in ("join", "list", "first", "last", "random", "map", "select"):
                inner.items()
            if inner is not None and node.name in ("trim", "lower", "upper", "capitalize", "replace", "title"):
                inner.text = True
        return None

    for node in tree.find_all(nodes.For):
        inner = shape(node.iter)
        if inner is not None and isinstance(node.target, nodes.Name):
            bound[node.target.name] = inner.items()
        elif isinstance(node.iter, nodes.Call) and node.iter.args and isinstance(node.target, nodes.Tuple):
            inner = shape(node.iter.args[0])
            if inner is not None and isinstance(node.target.items[-1], nodes.Name):
                bound[node.target.items[-1].name] = inner.items()
    for node in tree.find_all((nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Filter)):
        shape(node)
    for node in tree.find_all(nodes.Call):
        if not isinstance(node.node, nodes.Getattr):
            continue
        inner = shape(node.node.node)
        if node.node.attr in METHODS and inner is not None:
            inner.text = True
        if node.node.attr == "index" and node.args:
            sought = shape(node.args[0])
            if inner is not None:
                inner.items()
                inner.looked = True
            if sought is not None:
                sought.among = constants(node.node.node) or inner
    for node in tree.find_all(nodes.Getitem):
        position, of = shape(node.arg), constants(node.node)
        if position is not None and isinstance(of, list):
            position.at = len(of)
        if position is not None and isinstance(of, dict):
            position.among, position.at = list(of), None
    for node in tree.find_all(nodes.Compare):
        position = shape(node.expr)
        for operand in node.ops:
            of = constants(operand.expr)
            if position is not None and isinstance(of, (str, int)) and position.among is None:
                position.among = [of]


def constants(node):
    """The constant that a node is, if it is one."""
    try:
        return node.as_const()
    except (nodes.Impossible, Exception):
        return None


def columns_of(config):
    """The columns that a task's templates name, with how they use them."""
    columns = {}
    few = config.get("fewshot_config") or {}
    entries = [config.get(key) for key in TEMPLATES] + [few.get(key) for key in TEMPLATES if isinstance(few, dict)]
    for entry in entries:
        if not isinstance(entry, str) or isinstance(entry, Python):
            continue
        if "{" in entry:
            try:
                shapes(entry, columns)
            except jinja2.TemplateError:
                pass
        elif re.fullmatch(r"[A-Za-z_][\w\-]*", entry):
            columns.setdefault(entry, Shape())
    choices = config.get("doc_to_choice")
    if isinstance(choices, str) and not isinstance(choices, Python) and re.fullmatch(r"\{\{[\w.\s\[\]\"']+\}\}", choices):
        shapes("{% for x_ in " + choices[2:-2] + " %}{% endfor %}", columns)  # a list, then
    if isinstance(choices, str) and choices in columns:
        columns[choices].items()
    target = config.get("doc_to_target")
    if config.get("output_type") == "multiple_choice" and isinstance(target, str) and not isinstance(target, Python):
        found = columns.get(re.sub(r"^\{\{\s*(\w+)\s*\}\}$", r"\1", target))
        if found is not None and found.among is None and not found.list:
            found.at = found.at or (len(choices) if isinstance(choices, (list, dict)) else 4)
    return columns


def value(shape, rng, free):
    """A value of a shape; with free, another kind than the shape asks for now and then."""
    if free and rng.random() < 0.3:
        return rng.choice([0, 1, "0", "1", "A", "B", "yes", True, rng.choice(TEXTS), list(LETTERS[:4]), [rng.choice(TEXTS) for _ in range(4)], 1.5, None])
    if shape.keys and not shape.list:
        return {key: value(inner, rng, free) for key, inner in shape.keys.items()}
    if isinstance(shape.among, list) and shape.among:
        return rng.choice(shape.among)
    if isinstance(shape.among, dict) and shape.among:
        return rng.choice(list(shape.among))
    if isinstance(shape.among, (str, int)):
        return shape.among
    if isinstance(shape.among, Shape):
        return rng.choice(LETTERS)
    if shape.list:
        if shape.looked:
            return LETTERS
        inner = shape.item or Shape()
        inner = Shape() if inner.at else inner
        return [value(inner, rng, free) for _ in range(5)]
    if shape.at and not shape.text:
        return rng.randrange(min(shape.at, 4))
    return rng.choice(TEXTS)


def records(columns, n, rng, free, kinds):
    """Records of one kind: what a column is in the first is what it is in all."""
    out = []
    for _ in range(n):
        record = {}
        for name, shape in columns.items():
            for _ in range(20):
                record[name] = value(shape, rng, free)
                if type(record[name]) is kinds.setdefault(name, type(record[name])):
                    break
        out.append(record)
    return out


# HellaSwag and its like, whose Python is known
KNOWN = {
    "activity_label": ["Cooking", "Roof [title] work"], "ctx_a": ["A cook [step] cuts.", " He waits"], "ctx_b": ["then HE leaves", "élan"],
    "endings": [["one [x] two", "b  c", " d ", "e."]], "label": ["0", "3"], "sentence": ["Ann thanked Eve because _ was kind.", "A _ b _ c"],
    "option1": ["Ann"], "option2": ["Eve"], "answer": ["1", "2"], "toxicity_ai": [1.0, 5.0], "toxicity_human": [2.0, 4.5],
    "page": [" = Title = \n \n The 1 @,@ 000 ( old ) ' ship ' N 1 ; \n"], "text": ["Some text"], "question": ["Why?"],
    "mc2_targets": [{"choices": ["a b", "c", "d"], "labels": [1, 1, 0]}],
}


# The harness


class Split(list):
    """Documents as the harness takes them."""

    @property
    def features(self):
        return dict.fromkeys(self[0])

    def map(self, function, **_):
        return Split({**doc, **function(doc)} for doc in self)

    def filter(self, function, **_):
        return Split(doc for doc in self if function(doc))


class Harness:
    """The harness' own tasks, on given documents."""

    def __init__(self):
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        import lm_eval.api.task as task
        from lm_eval.tasks import _yaml_loader

        self.module, self.read = task, _yaml_loader.load_yaml
        task.tqdm = lambda x, **_: x
        task.datasets.load_dataset = lambda **_: self.splits

    def task(self, path, splits):
        config = self.read(path)
        self.splits = splits
        for key in ("tag", "group", "task_list", "dataset_kwargs"):
            config.pop(key, None)
        built = self.module.ConfigurableTask(config=config)
        if built.config.num_fewshot != 0:
            built.set_config("num_fewshot", SHOTS)
        built.set_fewshot_seed(1234)
        return built

    def ask(self, path, splits):
        """The first prompt, what is asked, and what is right."""
        built = self.task(path, splits)
        built.build_all_requests(limit=1)
        requests = [instance.args for instance in built.instances]
        out = {"type": built.OUTPUT_TYPE, "shots": built.config.num_fewshot or 0}
        if built.OUTPUT_TYPE == "loglikelihood_rolling":
            return {**out, "prompt": "", "answers": [requests[0][0]], "shots": 0}
        out["prompt"] = requests[0][0]
        if built.OUTPUT_TYPE == "generate_until":
            given = requests[0][1]
            until = given.get("until")
            out["until"] = [until] if isinstance(until, str) else until
            out["answers"] = [""]
        else:
            out["answers"] = [request[1] for request in requests]
        document = next(iter(built.eval_docs))
        gold = built.doc_to_text(document) if built.multiple_input else built.doc_to_target(document)
        out["gold"] = gold if isinstance(gold, (int, str, list)) or gold is None else int(gold)
        out["metrics"] = list(built._metric_fn_list)
        return out


# Reasons, the first that fits

REASONS = [
    (r"is Python, which is not run", "Python (`!function`)"),
    (r"sampled generation", "sampled generation"),
    (r"hf_evaluate|metrics of the evaluate", "metric of the evaluate package"),
    (r"unknown metric|metric does not apply", "metric"),
    (r"unknown filter|: filter ", "filter"),
    (r"unknown key", "key"),
    (r"anchors|merge keys|tag ", "YAML"),
    (r"jinja|template|undefined|not known|unknown", "template"),
]


def reason(text):
    for pattern, name in REASONS:
        if re.search(pattern, text):
            return name
    return "other"


def detail(text, name):
    """What within a kind of reason."""
    patterns = {
        "Python (`!function`)": None,
        "metric": r'metric "?([\w+]+)"?|apply: (\w+) to', "filter": r'filter "?(\w+)"?', "key": r'"(\w+)" \(HINT', "template": r"(\w+ \"[^\"]+\")",
    }
    found = re.search(patterns.get(name) or r"$^", text)
    return next((group for group in found.groups() if group), "") if found else ""


def overlays(tree):
    """Writes beside each task file one that includes it with data of its own. Gives the configuration of each, and what cannot be read."""
    tasks, groups, broken = {}, 0, []
    for path in sorted([*tree.rglob("*.yaml"), *tree.rglob("*.yml")]):
        if path.name.startswith("zz-compress-"):
            continue
        try:
            config = load(path.resolve())
        except Exception as error:  # what the harness cannot read either
            broken.append((path, error))
            continue
        if not isinstance(config.get("task"), str):
            groups += "group" in config or "task" in config
            continue
        over = path.with_name("zz-compress-" + path.name)
        tasks[over] = (path, config)
    return tasks, groups, broken


def evaluated(config):
    return config.get("test_split") or config.get("validation_split")


def splits_of(config):
    few = config.get("fewshot_config")
    names = {config.get(key) for key in SPLITS} | {few.get("split") if isinstance(few, dict) else None}
    return sorted(name for name in names if name)


def write(over, path, config, data):
    """The overlay: the same task on local files."""
    data.mkdir(parents=True, exist_ok=True)
    files = {name: str(data / ("test.jsonl" if name == evaluated(config) else "train.jsonl")) for name in splits_of(config)}
    over.write_text(
        f"include: {json.dumps(path.name)}\ndataset_path: json\ndataset_name: null\ndataset_kwargs: {json.dumps({'data_files': files})}\n"
    )


def python_of(v):
    if isinstance(v, Python):
        return True
    if isinstance(v, dict):
        return any(python_of(x) for key, x in v.items() if key != "metadata")
    return isinstance(v, list) and any(python_of(x) for x in v)


def makes(harness, over, config, data, known):
    """Makes records that the harness can use, and gives what it makes of them."""
    columns, last = columns_of(config), None
    if known:
        columns = {name: Shape() for name in KNOWN}
        for name, values in KNOWN.items():
            columns[name].among = values
    columns = columns or {"text": Shape()}
    for attempt in range(TRIES):
        rng = random.Random(f"{config['task']} {attempt}")
        kinds = {}
        test = records(columns, DOCUMENTS, rng, attempt > 0, kinds)
        train = records(columns, EXAMPLES, rng, attempt > 0, kinds)
        splits = {name: Split(test if name == evaluated(config) else train) for name in splits_of(config)}
        try:
            answer = harness.ask(over, splits)
        except Exception as error:
            last = error
            continue
        for name, docs in (("test", test), ("train", train)):
            (data / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
        return answer, None
    return None, repr(last)


def compared(theirs, ours):
    """What differs."""
    differ = []
    checked, definition = ours["checked"][0], ours["definition"][0]
    if checked.get("prompt", "") != theirs["prompt"] and not (isinstance(theirs["prompt"], list)):
        differ.append("prompt")
    if checked.get("answers") != theirs["answers"] and not (theirs["type"] == "generate_until"):
        differ.append("answers")
    if theirs["shots"] != checked["num_fewshot"]:
        differ.append("examples")
    if "until" in theirs and [x for x in definition.get("until") or []] != theirs["until"]:
        differ.append("until")
    if theirs["type"] == "multiple_choice":
        gold = theirs["gold"] if isinstance(theirs["gold"], list) else [theirs["gold"]]
        if [int(number) for number in gold if isinstance(number, int)] != (checked.get("gold") or []):
            differ.append("right choice")
    if isinstance(theirs.get("gold"), str) and checked.get("target", "") != theirs["gold"]:
        differ.append("target")
    if sorted(definition.get("metrics") or []) != sorted(map(str, theirs.get("metrics", definition.get("metrics")))):
        differ.append("metrics")
    return differ


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="what tasks.go was built to")
    parser.add_argument("--work", required=True, type=Path, help="folder for the copy of the task files and the records")
    parser.add_argument("--only", default="", help="expression that a path must fit")
    parser.add_argument("--json", type=Path, help="file for every result")
    o = parser.parse_args()
    harness = Harness()
    tree, data = o.work / "tasks", o.work / "data"
    if not tree.exists():
        shutil.copytree(Path(harness.module.__file__).parent.parent / "tasks", tree)
    tasks, groups, broken = overlays(tree)
    tasks = {over: task for over, task in tasks.items() if re.search(o.only, str(task[0]))}

    expected, failed = {}, {}
    kept = o.work / "expected.json"  # what the harness said does not change
    seen = json.loads(kept.read_text()) if kept.exists() else {}
    for over, (path, config) in tasks.items():
        same = {k: v for k, v in config.items() if k not in ("task", "dataset_name", "task_alias", "tag", "metadata")}
        # of tasks that differ in these alone, one is asked
        key = hashlib.sha256((repr(same) + (str(path.parent) if python_of(config) else "")).encode()).hexdigest()[:24]
        write(over, path, config, data / key)
        if key in seen:
            expected[over], failed[over] = seen[key]
            continue
        python = python_of(config)
        known = python and path.parent.name in ("hellaswag", "toxigen", "truthfulqa", "wikitext", "winogrande", "hellaswag_multilingual")
        seen[key] = (None, "Python") if python and not known else makes(harness, over, config, data / key, known)
        expected[over], failed[over] = seen[key]
    kept.write_text(json.dumps(seen, default=str))
    asked = subprocess.run([o.program], input="".join(f"{over}\n" for over in tasks), capture_output=True, text=True, check=True)
    results, kinds, details, lines = collections.Counter(), collections.Counter(), collections.Counter(), []
    for line in asked.stdout.splitlines():
        ours = json.loads(line)
        over = Path(ours["file"])
        path = tasks[over][0].relative_to(tree)
        wrong = ours.get("error") or ours["checked"][0].get("error") or ""
        no_data = not wrong and ours["checked"][0].get("no_data")
        differ = []
        if wrong:
            result, why = "refused", reason(wrong)
            kinds[why] += 1
            details[why, detail(wrong, why)] += 1
        elif expected[over] is None or no_data:
            result = "read, no records found for it"
        else:
            differ = compared(expected[over], ours)
            result = "read, " + ("differs" if differ else "the same")
        results[result] += 1
        theirs = expected[over] if differ else None
        lines.append({"file": str(path), "result": result, "error": wrong, "harness": str(failed[over] or ""), "differs": differ, "theirs": theirs, "ours": ours if differ else None})
        if differ:
            print("differs", path, *differ, file=sys.stderr)
    if o.json:
        o.json.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))
    print(f"{len(tasks)} task files, {groups} groups, {len(broken)} that the harness cannot read either\n")
    print("| what | files |\n|---|---|")
    for result, n in sorted(results.items()):
        print(f"| {result} | {n} |")
    print("\n| why refused | files | most |\n|---|---|---|")
    for kind, n in kinds.most_common():
        most = ", ".join(f"{what} {m}" for (k, what), m in details.most_common() if k == kind and what)
        print(f"| {kind} | {n} | {most} |")
    return 1 if results["read, differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
