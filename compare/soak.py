"""Many streams at "compress serve" for a time, with clients that go and adapters that come and go.

    python3 compare/soak.py COMPRESS MODEL TEXT ADAPTER SECONDS [STREAMS [FLAG ...]]

STREAMS (64) clients ask for chat completions of MODEL and of adapters, 8 to 200 words of TEXT each, streamed, greedy; one in four goes away
in the middle. Meanwhile ADAPTER, a folder, is loaded under new names and unloaded again. Every whole answer is kept, and a
part of them is asked for again at the end, alone: the texts have to be equal. FLAGs go to "compress serve". Prints memory, goroutines and
answers every 30 seconds, and fails on any error that the clients did not cause. Nothing but Python is needed.
"""
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time


class Server:
    def __init__(self, program, model, adapter, flags):
        root = os.path.dirname(os.path.abspath(adapter))
        self.process = subprocess.Popen([program, "serve", model, "--listen", "127.0.0.1:0", "--adapter-root", root, *flags],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            found = re.search(r"serving (\S+) at http://(\S+?)/?\s", line + " ")
            if found:
                self.model, self.address = found[1], found[2]
                break
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"RssAnon:\s+(\d+)", f.read())[1]) / 1024

    def metric(self, name):
        c = http.client.HTTPConnection(self.address, timeout=60)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        return sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))


def ask(server, path, body, leave=None):
    """The text of a streamed answer, None of one that was left, or an error."""
    c = http.client.HTTPConnection(server.address, timeout=600)
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            return f"error {r.status}: {r.read().decode()[:200]}", r.status
        if not body.get("stream"):
            return r.read().decode(), 200
        text, pieces = "", 0
        for line in r:
            if not line.startswith(b"data: {"):
                continue
            d = json.loads(line[6:])
            if "error" in d:
                return f"error in the stream: {d['error']}", 500
            for choice in d["choices"]:
                text += choice["delta"].get("content") or ""
            pieces += 1
            if leave is not None and pieces >= leave:
                return None, 200
        return text, 200
    finally:
        c.close()


def main():
    program, model, path, adapter, seconds = sys.argv[1:6]
    streams = int(sys.argv[6]) if len(sys.argv) > 6 else 64
    with open(path, encoding="utf-8") as f:
        words = f.read().split()
    server = Server(program, model, adapter, sys.argv[7:])
    end = time.time() + float(seconds)
    lock, kept, counts, faults, names = threading.Lock(), [], {"whole": 0, "left": 0, "busy": 0}, [], ["first"]
    ask(server, "/v1/load_lora_adapter", {"lora_name": "first", "lora_path": os.path.abspath(adapter)})

    def client(seed):
        r = random.Random(seed)
        while time.time() < end:
            at, n = r.randrange(len(words) - 200), r.randrange(8, 200)
            with lock:
                name = r.choice([server.model, "first", *names[-1:]])
            body = {"model": name, "messages": [{"role": "user", "content": " ".join(words[at:at + n])}], "temperature": 0,
                    "max_tokens": r.randrange(4, 64), "stream": True}
            leave = r.randrange(1, 8) if r.random() < 0.25 else None
            try:
                text, status = ask(server, "/v1/chat/completions", body, leave)
            except Exception as e:  # noqa: BLE001: whatever it is, it is a fault
                text, status = f"error: {e!r}", 0
            with lock:
                if status == 429:
                    counts["busy"] += 1
                elif status == 404 and name not in (server.model, "first"):
                    pass  # unloaded meanwhile
                elif status != 200:
                    faults.append(text)
                elif text is None:
                    counts["left"] += 1
                else:
                    counts["whole"] += 1
                    if name in (server.model, "first"):
                        kept.append((body, text))
            if status == 429:
                time.sleep(1)

    def loader():
        i = 0
        while time.time() < end:
            i += 1
            name = f"adapter-{i}"
            for route, body in (("load", {"lora_name": name, "lora_path": os.path.abspath(adapter)}), ("unload", {"lora_name": name})):
                text, status = ask(server, f"/v1/{route}_lora_adapter", body)
                with lock:
                    if status != 200:
                        faults.append(text)
                    elif route == "load":
                        names.append(name)
                time.sleep(2)
        counts["loads"] = i

    threads = [threading.Thread(target=client, args=(s,)) for s in range(streams)] + [threading.Thread(target=loader)]
    for t in threads:
        t.start()
    start = time.time()
    while any(t.is_alive() for t in threads):
        time.sleep(min(30, max(1, end - time.time())))
        print(f"{time.time() - start:.0f} s: {server.memory():.0f} MB of anonymous memory, {server.metric('go_goroutines'):.0f} goroutines, {counts}",
              flush=True)
    for t in threads:
        t.join()

    again = random.Random(1).sample(kept, min(64, len(kept)))
    differ = sum(ask(server, "/v1/chat/completions", body)[0] != text for body, text in again)
    print(f"asked again alone: {len(again)} answers, {differ} differ; {server.memory():.0f} MB, {server.metric('go_goroutines'):.0f} goroutines, "
          f"preemptions {server.metric('compress_preemptions_total'):.0f}, panics {server.metric('compress_panics_total'):.0f}")
    server.process.terminate()
    print(f"ends with code {server.process.wait()}; faults: {len(faults)}")
    for f in faults[:5]:
        print(f)
    sys.exit(1 if faults or differ else 0)


main()
