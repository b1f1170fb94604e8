"""What the parts of real.py stand on: commands that are run once, with their time and memory, and figures that stay in files."""
import fcntl
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import peers  # runs commands and watches their memory

Failure = peers.Failure
MODEL = "SmolLM2-135M-Instruct"
PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "peft==0.21.2", "lm_eval==0.4.13", "gguf", "safetensors", "numpy"]


class Bench:
    """A run in a folder: OUT/PART/NAME.json for every figure, which is not measured again where it is there."""

    def __init__(self, compress, data, out, threads, quick=False):
        self.program, self.data, self.out = pathlib.Path(compress).resolve(), pathlib.Path(data).resolve(), pathlib.Path(out).resolve()
        self.root, self.quick, self.part = HERE.parent.parent, quick, ""
        if not re.fullmatch("[1-9][0-9]*", str(threads)):
            raise Failure(f"THREADS is {threads!r}, not a number of processors")
        self.threads = int(threads)
        if not self.data.is_dir():
            raise Failure(f"DATA: {self.data} is not a folder; --help says what is read from it")

    def begin(self):
        """Makes the folder, or goes on in it, and notes what computes."""
        version = self.version()
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise Failure(f"OUT: {self.out} is not a folder") from None
        path = self.out / "machine.json"
        if path.exists() and bool(json.loads(path.read_text()).get("quick")) != self.quick:
            raise Failure(f"OUT: {self.out} has figures of a run {'without' if self.quick else 'with'} --quick; take another folder")
        self.note("machine", "quick", self.quick)
        without = os.environ.get("COMPRESS_CPU_DISABLE")
        self.computer = f"{peers.cpu()}{f' without {without}' if without else ''}, {self.threads} threads (one beside a peer), compress {version}"

    def some(self, whole, few):
        """How much of a part is done: whole, or with --quick few."""
        return few if self.quick else whole

    # Places.

    def at(self, *names):
        """A path in the folder of the part that runs."""
        path = self.out.joinpath(self.part, *names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def model(self):
        """The real model in F32; part model makes it."""
        path = self.out / MODEL
        if self.part != "model" and not path.exists():
            raise Failure(f"{path} is not there; part model makes it")
        return path

    def text(self, name):
        return self.named("text", name)

    def task(self, name):
        return self.named("tasks", name)

    def named(self, *names):
        """A file of DATA, of which the first use notes size and hash."""
        path = self.data.joinpath(*names)
        if not path.exists():
            raise Failure(f"{path} is not there; see DATA in compare/real/real.py --help")
        if path.is_file():
            self.note("data", "/".join(names), {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
        return path

    def note(self, file, key, value):
        """One entry of a table that all parts share; None takes it out."""
        path = self.out / f"{file}.json"
        with open(self.out / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # parts may run beside each other
            table = json.loads(path.read_text()) if path.exists() else {}
            if table.get(key) != value:
                table = {**table, key: value}
                write(path, {k: v for k, v in sorted(table.items()) if v is not None})

    # Work.

    def once(self, name, make):
        """The figures of this name: read, or made and written."""
        path = self.at(f"{name}.json")
        if path.exists():
            return json.loads(path.read_text())
        print(f"{self.part}: {name}", flush=True)
        value = make()
        write(path, value)
        self.note("computers", f"{self.part}: {self.computer}", True)
        return value

    def again(self, name, make):
        """The same for what other figures give at no cost: it is made anew, since these may have been measured anew."""
        remove(self.at(f"{name}.json"))
        return self.once(name, make)

    def compress(self, *args, threads=None):
        """Runs the program: what it printed, with its time and peak memory."""
        verb = [str(a) for a in args]
        figures, stdout = peers.run([str(self.program), *verb, "--quiet", "--threads", str(threads or self.threads)])
        return {"cpu": figures["cpu"], "wall": figures["wall"], "peak": figures["resident"], "command": self.shown("compress", *verb)}, stdout.decode()

    def report(self, *args, **how):
        """The same for a verb with --json, whose report comes back under "report"."""
        took, stdout = self.compress(*args, "--json", **how)
        return {**took, "report": json.loads(stdout)}

    def make(self, path, *args):
        """A model or an adapter that the program writes at a path, once; what that took."""
        path = pathlib.Path(path)
        name = f"made {path.name}"

        def run():
            remove(path)
            return self.compress(*args, "--out", path)[0]
        if not path.exists():
            remove(self.at(f"{name}.json"))
        return self.once(name, run)

    def shown(self, *command):
        """A command as a reader would type it: without the places of this run."""
        return self.placeless(" ".join(command))

    def placeless(self, text):
        """A text with words for the places of this run."""
        places = {str(self.program): "compress", str(self.out / MODEL): "MODEL", str(self.out / self.part): "OUT", str(self.out): "OUT/..", str(self.data): "DATA", str(HERE.parent): "compare"}
        for place, word in places.items():
            text = re.sub(re.escape(place) + r"(?![\w.])" if word == "OUT" else re.escape(place), word, text)
        return text

    def version(self):
        try:
            return json.loads(subprocess.run([self.program, "version", "--json"], capture_output=True, check=True).stdout)["version"]
        except (OSError, subprocess.CalledProcessError, ValueError, KeyError):
            raise Failure(f"COMPRESS: {self.program} is not the program: it says nothing to version --json") from None

    def script(self, name, *args, env=None):
        """Runs another script of compare/, whose commands of this program get as many processors as others: what it printed."""
        runner = [sys.executable] if name.endswith(".py") else []
        done = subprocess.run([*runner, str(HERE.parent / name), *[str(a) for a in args]], check=True, stdout=subprocess.PIPE, env={**os.environ, "GOMAXPROCS": str(self.threads), **(env or {})})
        return done.stdout.decode()

    # Peers.

    @functools.cached_property
    def python(self):
        """A Python with the peers: REAL_VENV, or one below OUT."""
        where = pathlib.Path(os.environ.get("REAL_VENV") or self.out / "venv")
        done = where / "complete"
        if "REAL_VENV" not in os.environ and not done.exists():
            subprocess.run([sys.executable, "-m", "venv", where], check=True)
            subprocess.run([where / "bin/pip", "install", "-q", *PACKAGES], check=True)
            done.touch()
        python = where / "bin" / "python"
        if not python.exists():
            raise Failure(f"REAL_VENV: {where} is no environment of Python: there is no {python}")
        return str(python)

    def peer(self, work, python=None, **spec):
        """Runs a piece of work of peerside.py, by its own Python where one is named: its figures, time and memory."""
        env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        os.environ.update(env)
        figures, stdout = peers.run([python or self.python, str(HERE / "peerside.py"), json.dumps({"work": work, **spec}, default=str)])
        last = stdout.decode().strip().splitlines()[-1]
        return {"whole": {"cpu": figures["cpu"], "wall": figures["wall"], "peak": figures["resident"]}, **json.loads(last)}

    # Figures of a model.

    def perplexity(self, name, model, *flags):
        """Perplexity on WikiText-2's test text, in 16 windows of 512, with the loss of each."""
        text = self.text("wikitext-2/test.txt")
        return self.once(name, lambda: self.report("ppl", model, "--data", text, "--seqlen", 512, "--limit", self.some(16, 2), *flags))

    def answers(self, name, model, data, *flags):
        """Nats a token of the answers of records, and the loss of each record."""
        few = self.some([], ["--limit", 4])
        return self.once(name, lambda: self.report("ppl", model, "--data", data, "--answers", "--seqlen", 512, *few, *flags))

    def accuracy(self, name, model, tasks, limit, *flags, against=None, threads=None):
        """The metrics of tasks and the points of every document, as compress eval writes them; with paired tests against another one of this part's."""
        def run():
            folder = self.at("eval", name)
            remove(folder)
            took, _ = self.compress("eval", model, "--tasks", ",".join(tasks), "--task-data", f"{self.data / 'tasks'},{self.out / 'tasks'}",
                                    "--limit", self.some(limit, 4), "--bootstrap-iters", 1000, "--out", folder, *flags, threads=threads)
            results = json.loads((folder / "results.json").read_text())
            found = {**took, "results": results["results"], "n": {t: n["effective"] for t, n in results["n-samples"].items()}}
            if against:
                rows = self.report("eval", "compare", self.at("eval", against), folder)["report"]["rows"]
                found["paired"] = {r["task"]: r for r in rows if r["metric"] == "acc"}
            return found
        if not self.at("eval", name, "results.json").exists():
            remove(self.at(f"{name}.json"))  # others are compared with the documents
        return self.once(name, run)


def write(path, value):
    """A JSON file that is whole or not there."""
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    new.replace(path)


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def size(path):
    """Bytes of the tensors of a folder, or of a file."""
    path = pathlib.Path(path)
    if path.is_file():
        return path.stat().st_size
    return sum(f.stat().st_size for f in path.rglob("*") if f.suffix in (".safetensors", ".gguf"))


def paired(a, b):
    """The mean difference of b from a over the same windows or records, its standard error, and p of a t-test on it."""
    d = [y - x for x, y in zip(a, b, strict=True)]
    mean, error = statistics.fmean(d), statistics.stdev(d) / math.sqrt(len(d))
    return {"difference": mean, "error": error, "p": t_tail(mean / error, len(d) - 1) if error else float(mean == 0), "n": len(d)}


def t_tail(t, freedom):
    """Two-sided p of Student's t, by the continued fraction of the incomplete beta function."""
    x, a, b = freedom / (freedom + t * t), freedom / 2, 0.5
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) if 0 < x < 1 else 0.0
    if x >= 1:
        return 1.0
    if x < (a + 1) / (a + b + 2):
        return front * fraction(x, a, b) / a
    return 1 - front * fraction(1 - x, b, a) / b


def fraction(x, a, b):
    """Lentz's evaluation of the continued fraction."""
    tiny, c, d = 1e-300, 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or tiny)
    h = d
    for m in range(1, 300):
        for k in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / ((1 + k * d) or tiny)
            c = (1 + k / c) or tiny
            h *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return h
