#!/usr/bin/env python3
"""How far two runs of the program agree, such as those of two processors: compares the files of two folders.

    python compare/alike.py FOLDER OTHER

Files are the same to the byte or not; of JSON files all numbers are compared but times, and the largest relative
difference is printed with its place. Files that only one folder has are listed.
"""
import hashlib
import json
import os
import re
import sys

TIMES = re.compile(r"second|time|date|elapsed|duration|memory|speed|version|created|threads|cpu", re.I)


def files(folder):
    out = {}
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            out[os.path.relpath(full, folder)] = full
    return out


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def numbers(value, at=""):
    """Every number of a JSON value with its place."""
    if isinstance(value, dict):
        for k, v in value.items():
            if not TIMES.search(k):
                yield from numbers(v, f"{at}.{k}")
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from numbers(v, f"{at}[{i}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield at, value


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    a, b = files(sys.argv[1]), files(sys.argv[2])
    same, other, rows = 0, [], []
    for name in sorted(a.keys() & b.keys()):
        if digest(a[name]) == digest(b[name]):
            same += 1
            continue
        if not name.endswith(".json"):
            other.append(name)
            continue

        x, y = [dict(numbers(json.load(open(f)))) for f in (a[name], b[name])]
        far = [(abs(x[k] - y[k]) / max(abs(x[k]), abs(y[k])), k) for k in x.keys() & y.keys() if x[k] != y[k]]
        worst = max(far) if far else (0, "")
        rows.append((name, len(x.keys() & y.keys()), len(far), *worst, len(x.keys() ^ y.keys())))

    print(f"{same} files are the same to the byte.")
    print("\n| file | numbers | differ | largest relative difference | where | only in one |\n|---|---|---|---|---|---|")
    for name, n, differ, worst, where, one in rows:
        print(f"| {name} | {n} | {differ} | {worst:.2g} | {where} | {one} |")
    print("\nOther bytes: " + (", ".join(other) or "none"))
    print("Only in one: " + (", ".join(sorted(a.keys() ^ b.keys())) or "none"))


main()
