#!/usr/bin/env python3
"""Counts the instructions that operations of the kernels take, on processors that QEMU emulates.

    python compare/counts/counts.py OUT [--only PREFIX]

Builds the program beside it for arm64 and amd64 and the plugin counts.c, runs every work under qemu-aarch64 and
qemu-x86_64 (7.2 or later, for AVX2) with the plugin, and prints a table, which is OUT/counts.md too; counts are in
OUT/counts.json. Needs Go, gcc, GNU objdump for both (binutils-aarch64-linux-gnu) and qemu-user.

Counted are the instructions of the package kernels/cpu: packing, the loops over pieces and the assembly, but not the
program around it. Useful are multiplications with an addition. The hottest loop is where most instructions run: those
of the function that has most, which ran as often as each other.

Cycles are a model, not a measurement: the least that the units of a core need for the counted instructions if nothing
waits for anything, no load misses the first-level cache and all is scheduled perfectly.

  Neoverse V1, V2   8 operations a cycle, 4 vector units (two of them convert and multiply integers, two shift, two look
                    up tables and store), 3 loads of which a pair of 16 bytes is two, 2 stores, 4 integer units, 2
                    branches: Arm's software optimization guides of the two, as LLVM's AArch64SchedNeoverseV1.td and
                    V2.td have them.
  Apple M           8 operations a cycle, 4 vector units, 3 loads, 2 stores, 6 integer units, 2 branches: Dougall
                    Johnson's measurements of M1, https://dougallj.github.io/applecpu/firestorm.html. Products of
                    matrices, which M1 lacks, are not modelled.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "github.com/modelcompress/compress/kernels/cpu."

# name, architecture, QEMU's model, what is switched off
LEVELS = [
    ("AVX2", "amd64", "max", "avx512,avxvnni"),
    ("NEON", "arm64", "cortex-a72", ""),
    ("SDOT, BFDOT", "arm64", "max", "i8mm,bfmmla"),
    ("SMMLA, BFMMLA", "arm64", "max", ""),
]

PRODUCTS = {
    "arm64": r"fmla|fmls|fmadd|fmsub|fnmadd|fnmsub|sdot|smmla|bfdot|bfmmla|smlal2?|smull2?$",
    "amd64": r"vfn?m(add|sub)|vpmaddubsw|vpmaddwd|vpdpbusd",
}


def program(out, arch):
    path = os.path.join(out, "counts-" + arch)
    env = dict(os.environ, GOOS="linux", GOARCH=arch, CGO_ENABLED="0")
    subprocess.run(["go", "build", "-o", path, "./counts"], check=True, env=env, cwd=os.path.dirname(HERE))
    return path


def functions(path):
    """The functions of the package: (address, end, name), by address."""
    listed = subprocess.run(["go", "tool", "nm", "-size", "-n", path], check=True, capture_output=True, text=True).stdout
    all_ = []
    for line in listed.splitlines():
        parts = line.split(None, 3)
        if len(parts) == 4 and parts[2] in "tT" and parts[3].startswith(PACKAGE):
            at = int(parts[0], 16)
            name = parts[3].removeprefix(PACKAGE).removesuffix(".abi0")
            if not name.startswith(("init", "map.init")):  # tables that are made as the program starts
                all_.append((at, at + int(parts[1]), name))
    return sorted(all_)


def disassembled(path, arch, first, end):
    tool = "objdump" if arch == "amd64" else "aarch64-linux-gnu-objdump"
    said = subprocess.run([tool, "-d", "--no-show-raw-insn", f"--start-address={first}", f"--stop-address={end}", path],
                          check=True, capture_output=True, text=True).stdout
    return {int(m[1], 16): m[2] for m in re.finditer(r"^ +([0-9a-f]+):\t(.*)$", said, re.M)}


def run(out, level, path, first, end, work):
    _, arch, model, disable = level
    to = os.path.join(out, "runs.txt")
    qemu = "qemu-aarch64" if arch == "arm64" else "qemu-x86_64"
    plugin = f"{os.path.join(out, 'counts.so')},first={first:x},end={end:x},to={to}"
    done = subprocess.run([qemu, "-cpu", model, "-plugin", plugin, path, work], check=True, capture_output=True, text=True,
                          env=dict(os.environ, COMPRESS_CPU_DISABLE=disable))
    useful, has = done.stdout.split(None, 1)
    runs = collections.Counter()
    with open(to) as f:
        for line in f:
            n, *addresses = line.split()
            for a in addresses:
                runs[int(a, 16)] += int(n)
    return int(useful), has.strip(), runs


def units(text):
    """What an instruction of arm64 needs: loads, stores, vector units (any, and of the pairs), integer units, branches."""
    op, _, operands = text.partition("\t")
    op, operands = op.strip(), operands.strip()
    wide = re.match(r"[qv]\d", operands.lstrip("{")) is not None
    if op.startswith(("ldp", "ldnp")):
        return {"load": 2 if operands[0] == "q" else 1}
    if op.startswith("ld1r") or op == "ld1" and "[" in operands.split("}")[1][:2]:
        return {"load": 1, "vector": 1}
    if op == "ld1":  # some registers, and the address moves on
        first, last = operands[1 : operands.index("}")].replace(", ", "-").split("-")
        return {"load": int(last[1 : last.index(".")]) - int(first[1 : first.index(".")]) + 1, "integer": 1}
    if op.startswith("ld") or op.startswith("prfm"):
        return {"load": 1}
    if op.startswith("st"):
        return {"store": 1, "vector": 1, "v01": 1} if re.match(r"[qdshbv{]", operands) else {"store": 1}
    if re.match(r"(b|b\..*|bl|br|blr|ret|cbn?z|tbn?z)$", op):
        return {"branch": 1}
    if not re.match(r"[vqdshb]\d|\{v", operands) and not re.search(r"\bv\d+\.", operands):
        return {"integer": 1}
    if re.match(r"(scvtf|ucvtf|fcvt|frint)", op):
        two = re.search(r"\.4s", operands) is not None
        return {"vector": 2 if two else 1, "v02": 2 if two else 1}
    if re.match(r"(fdiv|fsqrt)", op):
        return {"vector": 7, "v02": 7}
    if re.match(r"(mul|mla|mls|smull|smlal|bfcvtn|umull)", op):
        return {"vector": 1, "v02": 1}
    if re.match(r"([su]?shl|shll|[su]shr|shrn|sxtl|uxtl|[su]shll|sq?xtu?n|sqxt|addv|sadalp|uadalp|sri|sli)", op):
        return {"vector": 1, "v13": 1}
    if re.match(r"tb[lx]", op):
        return {"vector": 1, "v01": 1}
    if op == "dup" and re.search(r", [wx]\d", operands):
        return {"integer": 1}
    return {"vector": 1}


MODELS = {
    "V1, V2": {"all": 8, "vector": 4, "v02": 2, "v13": 2, "v01": 2, "load": 3, "store": 2, "integer": 4, "branch": 2},
    "Apple M": {"all": 8, "vector": 4, "load": 3, "store": 2, "integer": 6, "branch": 2},
}


def cycles(runs, code, model):
    """The least cycles that a model needs, and the unit that it is."""
    need = collections.Counter()
    for at, n in runs.items():
        for unit, k in units(code[at]).items():
            if unit == "vector" and model == "Apple M" and "v02" in units(code[at]):
                k = 1 if k == 2 else k
            need[unit] += k * n
            if unit in ("load", "store", "vector", "integer", "branch") and not (unit == "vector" and "store" in units(code[at])):
                need["all"] += k * n
    return max((need[u] / per, u) for u, per in MODELS[model].items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--only", default="", help="works whose names begin like this")
    o = parser.parse_args()
    out = os.path.abspath(o.out)
    os.makedirs(out, exist_ok=True)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", os.path.join(out, "counts.so"), os.path.join(HERE, "counts.c")],
                   check=True)

    programs = {}
    for arch in ("amd64", "arm64"):
        path = program(out, arch)
        known = functions(path)
        first, end = known[0][0], max(f[1] for f in known)
        programs[arch] = path, known, first, end, disassembled(path, arch, first, end)
    works = subprocess.run([programs["amd64"][0], "list"], check=True, capture_output=True, text=True).stdout.split()

    rows = []
    for work in [w for w in works if w.startswith(o.only)]:
        seen = set()
        for level in LEVELS:
            path, known, first, end, code = programs[level[1]]
            useful, has, runs = run(out, level, path, first, end, work)
            runs = {a: n for a, n in runs.items() if any(f[0] <= a < f[1] for f in known)}
            by = collections.Counter()
            for f in known:
                by[f] += sum(n for a, n in runs.items() if f[0] <= a < f[1])
            inside, most = by.most_common(1)[0]
            hot = inside[2]
            if level[1] == "arm64" and (work, hot, most) in seen:
                continue  # the same as with fewer instruction sets
            seen.add((work, hot, most))
            loops = collections.Counter()
            for a, n in runs.items():
                if inside[0] <= a < inside[1]:
                    loops[n] += n
            often = loops.most_common(1)[0][0]
            loop = [code[a] for a, n in sorted(runs.items()) if n == often and inside[0] <= a < inside[1]]
            multiply = sum(re.match(PRODUCTS[level[1]], t) is not None for t in loop)
            row = {
                "work": work, "level": level[0], "has": has, "useful": useful, "instructions": sum(runs.values()),
                "hottest": hot, "of all": most / sum(runs.values()), "loop": len(loop), "products": multiply,
            }
            if level[1] == "arm64":
                for m in MODELS:
                    row[m] = cycles(runs, code, m)
            rows.append(row)
            print(row, file=sys.stderr, flush=True)

    lines = ["| work | instruction sets | instructions for 100 multiply–adds | hottest function, share | its loop: multiply–add of all |"
             " multiply–adds a cycle at most, V1 and V2 | Apple M |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        model = [f"{r['useful'] / r[m][0]:.1f} ({r[m][1]})" if m in r else "" for m in MODELS]
        if "SMMLA" in r["level"] and re.search("mmla|MMLA|I8MM", r["hottest"]):
            model[1] = ""  # not on M1, which the table is of
        lines.append(f"| {r['work']} | {r['level']} | {100 * r['instructions'] / r['useful']:.2f} | `{r['hottest']}`, {100 * r['of all']:.0f} % |"
                     f" {r['products']} of {r['loop']}, {100 * r['products'] / r['loop']:.0f} % | {model[0]} | {model[1]} |")
    with open(os.path.join(out, "counts.md"), "w") as f:
        f.write("\n".join(lines) + "\n")
    with open(os.path.join(out, "counts.json"), "w") as f:
        json.dump(rows, f, indent=1)
    print("\n".join(lines))


main()
