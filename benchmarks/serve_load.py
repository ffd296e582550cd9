# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict serve` under load: what many clients of mixed manners get, and what they leave behind in the server.

Regime: more clients than slots and queue hold, prompts and answers of mixed lengths, greedy and sampled, whole and
streamed; a third of the requests hangs up in the middle of its stream, some others while they wait, and one in ten is
malformed.

    python -m benchmarks.serve_load --model CONVERTED --seconds 300

The last line of standard output is one JSON document: requests by how they ended, slots still taken after all clients
have left, and resident memory of the server over time.
"""

import argparse
import asyncio
import collections
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jax
import openai
import psutil

WORDS = "the sea and sand of an old island where nobody has ever been asked what time it is today".split()
MALFORMED: list[bytes | dict[str, Any]] = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[1]",
    {},
    {"prompt": 7},
    {"prompt": [-1]},
    {"prompt": "\ud800"},
    {"prompt": "a", "max_tokens": -1},
    {"prompt": "a", "max_tokens": 10**9},
    {"prompt": "a", "temperature": "warm"},
    {"prompt": "a", "n": 3},
    {"prompt": "a", "logit_bias": {"5": 1}},
    {"prompt": "a", "tools": [{"type": "function"}]},
    {"prompt": "a", "colour": "blue"},
    {"prompt": "a", "\ud800": 1},
    {"prompt": "a", "model": "another"},
    {"prompt": "long " * 5000},
]


class Server:
    """The server in a process of its own."""

    def __init__(self, args: argparse.Namespace):
        command = [sys.executable, "-c", "from qevict_jax.cli import main; main()", "serve", str(args.model)]
        for name in ("slots", "max_context", "queue_limit", "budget"):
            command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        self.process = subprocess.Popen([*command, "--port", "0", "--name", "m"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not (found := re.search(r"http\S+", line)):
            sys.exit("the server ended before it listened; its message is above")
        self.url, self.memory = found[0], psutil.Process(self.process.pid)

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and labels."""
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}

    def post(self, body: bytes | dict[str, Any]) -> int:
        """Status of a completion with any body."""
        data = body if isinstance(body, bytes) else json.dumps({"model": "m"} | body).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/completions", data, timeout=600) as response:
                return response.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def stop(self) -> tuple[float, int]:
        """Seconds from SIGTERM to the end of the process, and its exit status."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        return time.monotonic() - began, status


class Load:
    """What all clients have seen."""

    def __init__(self, server: Server, args: argparse.Namespace):
        self.server, self.args = server, args
        self.ends: collections.Counter[str] = collections.Counter()
        self.first_piece: list[float] = []
        self.samples: list[tuple[float, float, float, float]] = []  # seconds, MB, slots taken, waiting
        self.began = time.monotonic()
        self.running = True

    async def client(self, number: int) -> None:
        """One client: request after request until the time is over."""
        draw = random.Random(number)
        async with openai.AsyncOpenAI(base_url=self.server.url, api_key="-", max_retries=0, timeout=600) as api:
            while self.running:
                try:
                    end = await self.request(api, draw)
                except openai.APIStatusError as error:
                    end = f"status {error.status_code}"
                    await asyncio.sleep(draw.uniform(2, 10))
                except (openai.OpenAIError, OSError) as error:
                    end = type(error).__name__
                self.ends[end] += 1

    async def request(self, api: openai.AsyncOpenAI, draw: random.Random) -> str:
        """One request; how it ended."""
        manner = draw.random()
        if manner < 0.1:
            status = await asyncio.to_thread(self.server.post, draw.choice(MALFORMED))
            return f"malformed: status {status}"
        prompt = " ".join(draw.choices(WORDS, k=round(draw.triangular(3, 0.8 * self.args.max_context, 60))))
        options: dict[str, Any] = {"model": "m", "max_tokens": draw.randint(2, 64)}
        options["temperature"] = draw.choice([0.0, 0.0, 1.0])
        if draw.random() < 0.3:
            options["top_p"] = 0.9
        leaves_after = draw.randint(1, 6) if manner < 0.1 + 1 / 3 else None  # pieces
        patience = draw.uniform(0, 60) if manner > 0.9 else None
        if draw.random() < 0.5:
            options["messages"], create = [{"role": "user", "content": prompt}], api.chat.completions.create
        else:
            options["prompt"], create = prompt, api.completions.create
        try:
            async with asyncio.timeout(patience):
                if leaves_after is None and draw.random() < 0.5:
                    await create(**options)
                    return "complete"
                began = time.monotonic()
                stream = await create(stream=True, **options)
        except TimeoutError:
            return "given up while waiting"
        return await self.read(stream, began, leaves_after)

    async def read(self, stream: Any, began: float, leaves_after: int | None) -> str:
        """Reads a stream, asked for at ``began``, to its end or for some pieces; without a reason to end it was cut."""
        reason, pieces = None, 0
        try:
            async for chunk in stream:
                (choice,) = chunk.choices
                reason = choice.finish_reason
                if not (choice.delta.content if hasattr(choice, "delta") else choice.text):
                    continue
                pieces += 1
                if pieces == 1:
                    self.first_piece.append(time.monotonic() - began)
                if pieces == leaves_after and reason is None:
                    return "given up in mid-stream"
        finally:
            await stream.close()
        return "complete" if reason else "cut"

    async def watch(self) -> None:
        """Memory and slots, every few seconds."""
        while self.running:
            metrics = await asyncio.to_thread(self.server.metrics)
            used = self.server.memory.memory_info().rss / 1e6
            seconds = time.monotonic() - self.began
            self.samples.append((seconds, used, metrics["qevict_slots_active"], metrics["qevict_queue_length"]))
            print(
                f"{seconds:5.0f} s {used:8.1f} MB, {self.samples[-1][2]:.0f} slots, {self.samples[-1][3]:.0f} waiting, "
                f"{dict(self.ends)}",
                flush=True,
            )
            await asyncio.sleep(self.args.seconds / 30)

    async def run(self) -> None:
        """All clients for the time asked for."""
        tasks = [asyncio.create_task(self.client(number)) for number in range(self.args.clients)]
        tasks.append(asyncio.create_task(self.watch()))
        await asyncio.sleep(self.args.seconds)
        self.running = False
        for task in tasks:  # the last requests are given up too
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def drained(server: Server) -> dict[str, float]:
    """Metrics once the server has noticed that everyone left, or after half a minute."""
    for _ in range(60):
        metrics = server.metrics()
        if not metrics["qevict_slots_active"] and not metrics["qevict_queue_length"]:
            break
        time.sleep(0.5)
    return metrics


def main() -> None:
    """Runs the load and prints the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="converted checkpoint with a chat template")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--max-context", type=int, default=1024)
    parser.add_argument("--queue-limit", type=int, default=48)
    parser.add_argument("--budget", type=float, default=0.2)
    args = parser.parse_args()
    server = Server(args)
    try:
        load = Load(server, args)
        asyncio.run(load.run())
        metrics = drained(server)
        used = server.memory.cpu_times()
    except BaseException:
        server.process.kill()
        raise
    seconds, status = server.stop()
    first_half, second_half = (
        [used for at, used, slots, _ in load.samples if (at > args.seconds / 2) == later and slots]
        for later in (False, True)
    )
    document = {
        "benchmark": "serve_load",
        "model": args.model.name,
        "jax": jax.__version__,
        **{
            name: getattr(args, name)
            for name in ("seconds", "clients", "slots", "max_context", "queue_limit", "budget")
        },
        "ends": dict(load.ends.most_common()),
        "leaked_slots": metrics["qevict_slots_active"],
        "left_in_queue": metrics["qevict_queue_length"],
        "rss_mb": [[round(at), round(used, 1)] for at, used, _, _ in load.samples],
        # reading a long prompt takes memory for its moment: the floor is what would leak
        "rss_mb_floor": [round(min(part), 1) for part in (first_half, second_half) if part],
        "server_cpu_s": round(used.user + used.system, 1),
        "kv_cache_bytes": metrics["qevict_kv_cache_bytes"],
        "kv_cache_ratio": round(metrics["qevict_kv_cache_ratio"], 4),
        "generated_tokens_per_second": round(metrics['qevict_tokens_total{kind="generated"}'] / args.seconds, 1),
        "prompt_tokens_per_second": round(metrics['qevict_tokens_total{kind="prompt"}'] / args.seconds, 1),
        "first_piece_s_median": round(statistics.median(load.first_piece), 2) if load.first_piece else None,
        "server_counts": {
            name: value
            for name, value in metrics.items()
            if name.startswith("qevict_requests") and "created" not in name
        },
        "shutdown_s": round(seconds, 2),
        "exit_status": status,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
