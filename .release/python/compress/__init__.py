"""Prune, merge, adapt, edit, quantise, score and serve language models.

Every verb of the program is a function of this module, which runs it and returns its report:

    import compress
    r = compress.ppl("MODEL", data="text.txt", seqlen=512)
    print(r["ppl"])
    compress.prune("MODEL", calib="text.txt", sparsity=0.5, out="pruned")
    compress.lora.fold("MODEL", adapter="ADAPTER", out="folded")

Positional arguments are the verb's own, keywords its flags: max_tokens=8 is --max-tokens 8, True a flag alone, a list
the flag once for each value, None nothing. A word that Python keeps for itself ends in an underscore (from_).
"""

import collections
import json
import os
import subprocess
import sys
import sysconfig
import threading

__all__ = ["CompressError", "find", "run"]


class CompressError(Exception):
    """A verb that failed: what it said, and its exit code (1 failed, 2 wrong use, 130 interrupted)."""

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


def find():
    """The path of the program: COMPRESS_PROGRAM, or the one that was installed with this module."""
    given = os.environ.get("COMPRESS_PROGRAM")
    if given:
        return given
    name = "compress.exe" if os.name == "nt" else "compress"
    places = [sysconfig.get_path("scripts")]
    scheme = "nt_user" if os.name == "nt" else "posix_user"
    if scheme in sysconfig.get_scheme_names():
        places.append(sysconfig.get_path("scripts", scheme))
    # pip install --target puts scripts beside packages.
    places.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))
    for place in places:
        path = os.path.join(place, name)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError("the program compress is not in " + ", ".join(places))


def _arguments(flags):
    args = []
    for name, value in flags.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        values = value if isinstance(value, (list, tuple)) else [value]
        for v in values:
            if v is True:
                args.append(flag)
            elif v is False:
                args.append(flag + "=false")
            elif v is not None:
                args.append(flag + "=" + os.fspath(v) if isinstance(v, os.PathLike) else flag + "=" + str(v))
    return args


def run(*words, quiet=False, **flags):
    """Runs a verb, such as run("lora", "fold", "MODEL", adapter="ADAPTER", out="OUT"), and returns its report.

    Progress and remarks go to sys.stderr as they come, unless quiet. A verb that fails raises CompressError.
    """
    command = [find(), *map(str, words), *_arguments(flags), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    last = collections.deque(maxlen=20)

    def tell():
        for line in process.stderr:
            last.append(line)
            if not quiet:
                sys.stderr.write(line)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        text = process.stdout.read()
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        teller.join()
        process.stdout.close()
        process.stderr.close()
    if code != 0:
        raise CompressError(last[-1].strip() if last else "exit code %d" % code, code)
    report = json.loads(text)
    return report.get("result", report) if isinstance(report, dict) else report


class _Verb:
    def __init__(self, *words):
        self._words = words

    def __call__(self, *args, quiet=False, **flags):
        return run(*self._words, *args, quiet=quiet, **flags)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return _Verb(*self._words, name.rstrip("_").replace("_", "-"))

    def __repr__(self):
        return "<compress %s>" % " ".join(self._words)


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return _Verb(name.rstrip("_").replace("_", "-"))
