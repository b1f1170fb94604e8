"""Both sides of the comparison, turn by turn. Run by peers.sh, which says what it is for.

A row has a program of ours, run as a whole each time, and a peer: peerwork.py in a process of its own, which has imported and
loaded everything before the first repetition and runs once whenever it is told. So start-up counts on our side alone, unless a
row says that both figures are the programs' own.
"""
import argparse, json, os, platform, resource, shutil, statistics, subprocess, sys, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def usage():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


class Failure(Exception):
    """A side that did not do its work: the row is left out, with the reason, and the others go on."""


class Watch:
    """The largest memory of a process, looked at every 20 ms: all that is resident, and what belongs to no file."""

    def __init__(self, pid):
        self.pid, self.resident, self.anonymous, self.on = pid, 0, 0, True
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while self.on:
            try:
                for line in open(f"/proc/{self.pid}/status"):
                    if line.startswith("VmHWM"):
                        self.resident = max(self.resident, int(line.split()[1]) * 1024)
                    if line.startswith("RssAnon"):
                        self.anonymous = max(self.anonymous, int(line.split()[1]) * 1024)
            except OSError:
                return
            time.sleep(0.02)

    def stop(self):
        self.on = False
        self.thread.join()
        return {"resident": self.resident, "anonymous": self.anonymous}


def run(cmd):
    """One run of a command: seconds of the clock and of the processor, and memory."""
    before, start = usage(), time.perf_counter()
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    w = Watch(p.pid)
    stdout, stderr = p.communicate()
    r = {"wall": time.perf_counter() - start, "cpu": usage() - before, **w.stop()}
    if p.returncode:
        raise Failure(f"{' '.join(cmd)}: {stderr.decode()[-2000:]}")
    return r, stdout


class Peer:
    """A peer's process."""

    def __init__(self, python, spec):
        self.log = open(os.path.join(spec["dir"], f"log-{spec['kind']}.txt"), "w")
        self.p = subprocess.Popen([python, os.path.join(HERE, "peerwork.py"), json.dumps(spec)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.watch = Watch(self.p.pid)
        self.versions = self.read()

    def read(self):
        for line in self.p.stdout:  # libraries print too
            if line.startswith("@"):
                return json.loads(line[1:])
        raise Failure(f"the peer ended: {open(self.log.name).read()[-2000:]}")

    def go(self):
        self.p.stdin.write("go\n")
        self.p.stdin.flush()
        return self.read()

    def end(self):
        memory = self.watch.stop()
        self.p.stdin.close()
        self.p.wait()
        return memory


def clean(path):
    shutil.rmtree(path, ignore_errors=True)


class Bench:
    def __init__(self, a):
        self.a, self.rows, self.versions, self.left_out, self.started = a, [], {}, [], time.time()
        self.work = os.path.join(a.out, "work-quick" if a.quick else "work")
        self.done = os.path.join(self.work, "done")
        os.makedirs(self.work, exist_ok=True)

    def path(self, *names):
        return os.path.join(self.work, *names)

    def make(self):
        """Checkpoints, ids and tasks, from seeds."""
        if not os.path.exists(self.done):
            subprocess.run([sys.executable, os.path.join(HERE, "peerwork.py"),
                            json.dumps({"kind": "make", "dir": self.work, "root": ROOT, "quick": self.a.quick, "model": self.a.model})], check=True)
            self.compress("convert", self.path("f32"), "--dtype", "bf16", "--out", self.path("bf16"), "--overwrite")
            open(self.done, "w").close()

    def compress(self, *args):
        return run([self.a.compress, *args, "--quiet"])

    def pair(self, group, name, unit, ours, spec, python=None, runs=None, warm=True):
        """ours() gives {figure: seconds} and memory; the peer gives the same figures. What fails or comes too late is left out, and said."""
        if time.time() - self.started > 60 * self.a.minutes:
            return self.leave(group, name, f"not begun after {self.a.minutes:g} minutes")
        try:
            self.turns(group, name, unit, ours, {**spec, "dir": self.work, "root": ROOT, "quick": self.a.quick}, python or sys.executable, runs or self.a.runs, warm)
        except (Failure, KeyError, OSError, ValueError) as e:
            self.leave(group, name, f"{type(e).__name__}: {e}")

    def leave(self, group, name, reason):
        self.left_out.append({"group": group, "name": name, "reason": reason})
        print(f"left out: {group} {name}: {reason}", flush=True)

    def turns(self, group, name, unit, ours, spec, python, runs, warm):
        peer = Peer(python, spec)
        try:
            self.versions.update(peer.versions)
            samples = []
            for i in range(runs + warm):
                mine, theirs = ours(), peer.go()
                if i >= warm:
                    samples.append((mine, theirs))
        finally:
            memory = peer.end()
        for key in samples[0][1]["figures"]:
            a, b = [m["figures"][key] for m, _ in samples], [t["figures"][key] for _, t in samples]
            row = {"group": group, "name": (name + " " + key).strip(), "unit": unit, "compress": summary(a), "peer": summary(b),
                   "ratio": statistics.median(y / x for x, y in zip(a, b)), "ratios": [y / x for x, y in zip(a, b)],
                   "memory": {"compress": {k: max(m.get(k, 0) for m, _ in samples) for k in ("resident", "anonymous")}, "peer": memory}}
            self.rows.append(row)
            print(line(row), flush=True)
        self.write()

    def write(self):
        """The table and every repetition, after each row, so that an interrupted run has what it measured."""
        head = f"{cpu()}, {os.cpu_count()} processors, one thread each; {self.a.runs} runs of each side in turn; load at the start and now {self.a.load:.1f} and {os.getloadavg()[0]:.1f}; "
        head += f"compress {self.a.version.get('version', '')}, " + ", ".join(f"{k} {v}" for k, v in sorted(self.versions.items()))
        table = [head, "", "Median ± half the quartiles' distance; ratio: theirs over ours, median of the pairs (least–most); memory: most resident (of it anonymous), MB.", "",
                 "| | | compress | peer | ratio | memory | memory of the peer |", "|---|---|---|---|---|---|---|"] + [line(r) for r in self.rows]
        table += [f"\nLeft out: {x['group']} {x['name']}: {x['reason']}" for x in self.left_out]
        with open(os.path.join(self.a.out, "peers.md"), "w") as f:
            f.write("\n".join(table) + "\n")
        with open(os.path.join(self.a.out, "peers.json"), "w") as f:
            json.dump({"processor": cpu(), "processors": os.cpu_count(), "system": platform.platform(), "runs": self.a.runs, "quick": self.a.quick,
                       "load": [self.a.load, os.getloadavg()[0]], "versions": {**self.versions, "compress": self.a.version}, "rows": self.rows, "left_out": self.left_out}, f, indent=1)

    def merge(self):
        yard = self.a.yard or self.work
        models = "models: [{model: %s/m1, parameters: {weight: 0.5%s}}, {model: %s/m2, parameters: {weight: 0.5%s}}]\nbase_model: %s/base\n"
        plain, dense = models % (yard, "", yard, "", yard), models % (yard, ", density: 0.5", yard, ", density: 0.5", yard)
        recipes = {
            "linear": "models: [%s]\n" % ", ".join("{model: %s/%s, parameters: {weight: 0.4}}" % (yard, m) for m in ("base", "m1", "m2")),
            "slerp": f"base_model: {yard}/base\nmodels: [{{model: {yard}/base}}, {{model: {yard}/m1}}]\nparameters: {{t: 0.35}}\n",
            "task_arithmetic": plain, "ties": dense, "dare_ties": dense, "breadcrumbs": dense,
            "sce": f"base_model: {yard}/base\nmodels: [{{model: {yard}/m1}}, {{model: {yard}/m2}}]\nparameters: {{select_topk: 0.2}}\n",
        }
        for method in ("linear", "ties") if self.a.quick else recipes:
            recipe, out = self.path(f"{method}.yaml"), self.path("merged")
            with open(recipe, "w") as f:
                f.write(f"merge_method: {method}\ndtype: bfloat16\n" + recipes[method])

            def ours():
                clean(out)
                r, _ = self.compress("merge", recipe, "--out", out, "--threads", "1")
                clean(out)
                return {**r, "figures": {"": r["cpu"]}}
            self.pair("merge", method, "CPU-s", ours, {"kind": "merge", "recipe": recipe}, self.a.mergekit, warm=False)

    def few(self):
        """How often a run of bench, which takes medians of five itself, has its turn."""
        return min(self.a.runs, 3)

    def forward(self):
        for d, exact in (("f32", "exact"), ("bf16", "fast")):
            def ours():
                r, text = self.compress("bench", "forward", "--model", self.path(d), "--threads", "1", "--time", "1ms", "--json")
                found = {c["name"]: c["seconds"] for c in json.loads(text)["cases"]}
                return {"figures": {"forward 4x256": found[f"forward and loss {exact}"], "32 tokens": found[f"generate 32 tokens {exact}"]}}
            self.pair("forward", d.upper(), "s", ours, {"kind": "forward", "model": self.path(d)}, runs=self.few())

    def train(self):
        kinds = [("lora", "f32"), ("lora", "bf16"), ("full", "f32"), ("full", "bf16")]
        for kind, d in kinds[:1] if self.a.quick else kinds:
            out = self.path("trained")

            def ours():
                clean(out)
                flags = ["--kind", kind, "--data", self.path("batches.safetensors"), "--ordered", "--steps", "4", "--clip", "1", "--lr", "1e-3", "--threads", "1", "--out", out]
                r, _ = self.compress("lora", "train", self.path(d), *flags, *(["--fast"] if d == "bf16" else []))
                steps = json.load(open(os.path.join(out, "training.json")))["steps"]
                clean(out)
                return {**r, "figures": {"step": statistics.median(s["seconds"] for s in steps[1:])}}
            self.pair("train", f"{kind} {d.upper()}", "s", ours, {"kind": "train", "model": self.path("f32"), "what": kind, "half": d == "bf16"})

    def prune(self):
        for method in ("wanda", "sparsegpt"):
            out = self.path("pruned")

            def ours():
                clean(out)
                r, _ = self.compress("prune", self.path("f32"), "--method", method, "--sparsity", "0.5", "--calib", self.path("calib.safetensors"), "--threads", "1", "--out", out)
                clean(out)
                return {**r, "figures": {"": r["cpu"]}}
            self.pair("prune", method, "CPU-s", ours, {"kind": "prune", "model": self.path("f32"), "method": method})

        def scores():
            r, text = self.compress("bench", "prune", "--threads", "1", "--time", "1ms", "--json")
            found = {c["name"]: c["seconds"] for c in json.loads(text)["cases"]}
            return {"figures": {"wanda 50 % per row": found["wanda 50% of every row F32"], "magnitude 50 %": found["magnitude 50% of the matrix F32"]}}
        self.pair("prune", "mask of 4096x4096", "s", scores, {"kind": "masks"}, runs=self.few())

    def eval(self):
        for name, shots, limit in (("choice", 5, 40), ("writing", 5, 4)):
            out = self.path("scored")
            limit = 4 if self.a.quick else limit

            def ours():
                clean(out)
                r, _ = self.compress("eval", self.path("f32"), "--tasks", self.path("tasks", f"{name}.yaml"), "--num-fewshot", str(shots), "--limit", str(limit),
                                     "--bootstrap-iters", "1000", "--threads", "1", "--out", out)
                points = json.load(open(os.path.join(out, "results.json")))["results"][name]
                clean(out)
                return {**r, "figures": {f"{limit} documents": r["wall"]}, "points": points}
            self.pair("eval", {"choice": "MMLU-shaped", "writing": "GSM8K-shaped"}[name], "s", ours,
                      {"kind": "eval", "model": self.path("f32"), "task": name, "shots": shots, "limit": limit, "batch": 8 if name == "choice" else 4})

    def matmul(self):
        def ours():
            r, text = self.compress("bench", "kernels", "--threads", "1", "--time", "1ms", "--json")
            found = {c["name"]: c["seconds"] for c in json.loads(text)["cases"]}
            return {"figures": {"F32": found["matmul 512x2048x2048 F32 exact"], "BF16": found["matmul 512x2048x2048 BF16 fast"], "F32, 64 rows": found["matmul 64x2048x2048 F32 exact"]}}
        self.pair("matmul", "512x2048x2048", "s", ours, {"kind": "matmul"}, runs=self.few())


def summary(v):
    q = statistics.quantiles(v, n=4, method="inclusive") if len(v) > 1 else [v[0]] * 3
    return {"median": statistics.median(v), "q1": q[0], "q3": q[2], "all": v}


def short(s, unit):
    scale = 1000 if s["median"] < 0.1 else 1
    u = unit if scale == 1 else "m" + unit if unit == "s" else "CPU-ms"
    return "%.3g ± %.2g %s" % (scale * s["median"], scale * (s["q3"] - s["q1"]) / 2, u)


def line(r):
    mb = lambda side: "%.0f (%.0f)" % (m["resident"] / 1e6, m["anonymous"] / 1e6) if (m := r["memory"][side])["resident"] else ""
    return f"| {r['group']} | {r['name']} | {short(r['compress'], r['unit'])} | {short(r['peer'], r['unit'])} | {r['ratio']:.2f} ({min(r['ratios']):.2f}–{max(r['ratios']):.2f}) | {mb('compress')} | {mb('peer')} |"


def cpu():
    for l in open("/proc/cpuinfo"):
        if l.startswith("model name"):
            return l.split(":", 1)[1].strip()
    return platform.processor()


def main():
    p = argparse.ArgumentParser()
    for f in ("out", "compress", "mergekit"):
        p.add_argument("--" + f, required=True)
    p.add_argument("--yard", default="")
    p.add_argument("--model", default="")
    p.add_argument("--only", default="")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--runs", type=int, default=0)
    p.add_argument("--minutes", type=float, default=22)
    a = p.parse_args()
    a.runs = a.runs or (2 if a.quick else 5)
    groups = ["merge", "forward", "train", "eval", "prune", "matmul"]
    chosen = a.only.split(",") if a.only else groups
    if unknown := set(chosen) - set(groups):
        sys.exit(f"--only: unknown {', '.join(sorted(unknown))}; known: {', '.join(groups)}")
    a.version = json.loads(subprocess.run([a.compress, "version", "--json"], stdout=subprocess.PIPE, check=True).stdout)
    a.load = os.getloadavg()[0]
    b = Bench(a)
    b.make()
    b.started = time.time()
    for g in chosen:
        getattr(b, g)()
    b.write()
    print(open(os.path.join(a.out, "peers.md")).read())
    if not b.rows:
        sys.exit("nothing was measured")


if __name__ == "__main__":
    main()
