"""Tokens a second of OpenAI-style servers, in turn.

    python3 compare/streams.py TEXT ROUNDS STREAMS[,STREAMS...] NAME=COMMAND [NAME=COMMAND ...]

Every COMMAND starts a server, with {port} where its port belongs ("compress serve MODEL --listen 127.0.0.1:{port}", "llama-server -m FILE
--port {port}"). For each number of streams every server gets in turn that many clients at once, each with 24 words of TEXT of its own and 128 greedy
tokens behind them, whatever they are; the first answer is not measured. Prints tokens a second by the clock and the server's processor time a
token, medians of ROUNDS. Nothing but Python is needed.
"""
import http.client
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import threading
import time

TOKENS = 128


class Server:
    def __init__(self, command):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.process = subprocess.Popen(shlex.split(command.replace("{port}", str(self.port))), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        sys.exit(f"{command}: it does not answer")

    def spent(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            x = f.read().rsplit(")", 1)[1].split()
        return (int(x[11]) + int(x[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, prompt):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        d = json.load(c.getresponse())
        if "usage" not in d:
            sys.exit(f"an error: {d}")
        n = d["usage"]["completion_tokens"]
        if n != TOKENS:
            sys.exit(f"{n} tokens instead of {TOKENS}")

    def round(self, prompts):
        threads = [threading.Thread(target=self.ask, args=(p,)) for p in prompts]
        began, spent = time.monotonic(), self.spent()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        n = TOKENS * len(prompts)
        return n / (time.monotonic() - began), 1000 * (self.spent() - spent) / n


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        words = f.read().split()
    rounds, streams = int(sys.argv[2]), [int(n) for n in sys.argv[3].split(",")]
    servers = {a.split("=", 1)[0]: Server(a.split("=", 1)[1]) for a in sys.argv[4:]}
    for s in servers.values():
        s.ask("Once")
    for n in streams:
        found = {name: [] for name in servers}
        for r in range(rounds):
            prompts = [" ".join(words[50 * (r * n + i):50 * (r * n + i) + 24]) for i in range(n)]
            for name, s in servers.items():
                found[name].append(s.round(prompts))
        for name, list in found.items():
            print(f"{n} streams, {name}: {statistics.median(a for a, _ in list):.1f} tokens a second, "
                  f"{statistics.median(b for _, b in list):.2f} CPU ms a token", flush=True)
    for s in servers.values():
        s.process.terminate()


main()
