# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode and prefill time against transformers' DynamicCache: same weights, same float32 caches, one run, taking turns.

Regime: SmolLM2-135M on a CPU, greedy, random prompt ids. At batch 1 a decode step streams the weights; with context and
batch the full cache streams too, and a compressed one trades that for unpacking. About eight minutes on two cores.

    python -m benchmarks.generate --model CONVERTED_FLOAT32 --gguf FILE --peer-python VENV_WITH_TORCH/bin/python

Every figure is the median of rounds in which each side runs once, so noise of the machine hits both. The last line of
standard output is one JSON document; ratios are theirs / ours, above 1 means we are faster.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from qevict_jax import CacheConfig, LanguageModel, Sampling, load
from qevict_jax.decoding import Compiled, Decoder
from qevict_jax.policies import make_policy
from qevict_jax.sampling import Filters, Numbers

CAPACITY = 256  # tokens that each side may decode after the prompt
CACHES = {
    "full": CacheConfig.full(kv_dtype="float32"),
    "two tiers (q=0) 20%": CacheConfig.tuned(budget=0.2, kv_dtype="float32", quant_fraction=0.0),
    "tuned 20%": CacheConfig.tuned(budget=0.2, kv_dtype="float32"),
}
CASES = [  # context, batch, caches
    (1024, 1, ["full"]),
    (4096, 1, list(CACHES)),
    (4096, 4, list(CACHES)),
]


class Ours:
    """One cache configuration, timed like the peer."""

    def __init__(self, model: LanguageModel, cache: CacheConfig, context: int):
        policy = make_policy(model.config.kv_shape(), cache, context + CAPACITY)
        self.params, self.numbers = model.params, Numbers.of(Sampling())
        # no EOS: a benchmark does not end early
        decoder = Decoder(model.program, policy, Filters.of(Sampling()), (), CAPACITY)
        self.compiled, self.steps = Compiled(decoder), policy.event_steps
        self.state: Any = None

    def prefill(self, tokens: np.ndarray) -> float:
        """Seconds from prompt to first token."""
        self.state = None  # one cache at a time
        batch, size = tokens.shape
        ids, lengths = jnp.asarray(tokens), jnp.full((batch,), size, jnp.int32)
        limit, before, began = jnp.full((batch,), CAPACITY, jnp.int32), self.compiled.seconds, time.perf_counter()
        logits, cache = self.compiled("read", self.params, ids, lengths)
        state = self.compiled("begin", self.params, cache, logits, lengths > 0, limit, self.numbers)
        self.state = jax.block_until_ready(state)
        return time.perf_counter() - began - (self.compiled.seconds - before)

    def block(self) -> float:
        """Seconds of a block of decode steps with its routing event."""
        before, began = self.compiled.seconds, time.perf_counter()
        self.state = jax.block_until_ready(self.compiled("block", self.params, self.state, self.numbers))
        return time.perf_counter() - began - (self.compiled.seconds - before)


class Peer:
    """The worker in the other venv."""

    def __init__(self, python: Path, gguf: Path):
        worker = Path(__file__).parent / "peers" / "transformers_generate.py"
        self.process = subprocess.Popen(
            [python, worker, gguf], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, call: str, **request: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        print(json.dumps({"call": call, **request}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the transformers worker ended; its message is above")
        return json.loads(line)


def measure(model: LanguageModel, peer: Peer, context: int, batch: int, names: list[str], rounds: int) -> dict:
    """Medians of one case; prefill is timed at batch 1."""
    tokens = np.random.default_rng(0).integers(17, 40000, (batch, context)).astype(np.int32)
    sides = {name: Ours(model, CACHES[name], context) for name in names}
    times: dict[str, list[float]] = {name: [] for name in (*names, "transformers")}
    fills: dict[str, list[float]] = {name: [] for name in times}
    peer("forget")
    for side in sides.values():
        side.prefill(tokens)
        side.block()  # compiles
    peer("prefill", name="run", tokens=tokens.tolist())
    peer("decode", name="run", steps=2)
    for _ in tqdm(range(rounds), desc=f"{context} tokens, batch {batch}", file=sys.stderr):
        for name, side in sides.items():
            times[name].append(side.block() / side.steps)
        times["transformers"].append(peer("decode", name="run", steps=8) / 8)
    if batch == 1:
        for _ in range(2):
            for name, side in sides.items():
                fills[name].append(side.prefill(tokens))
            fills["transformers"].append(peer("prefill", name="run", tokens=tokens.tolist()))
    decode = {name: statistics.median(t) for name, t in times.items()}
    prefill = {name: statistics.median(t) for name, t in fills.items() if t}
    return {
        "context": context,
        "batch": batch,
        "decode_ms": {name: round(t * 1e3, 2) for name, t in decode.items()},
        "decode_ms_spread": {name: [round(min(t) * 1e3, 2), round(max(t) * 1e3, 2)] for name, t in times.items()},
        "decode_ratio": {name: round(decode["transformers"] / decode[name], 3) for name in names},
        "prefill_s": {name: round(t, 3) for name, t in prefill.items()},
        "prefill_ratio": {name: round(prefill["transformers"] / prefill[name], 3) for name in names if name in prefill},
    }


def main() -> None:
    """Runs all cases and prints a table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint converted with --dtype float32")
    parser.add_argument("--gguf", type=Path, required=True, help="the GGUF file it came from")
    parser.add_argument("--peer-python", type=Path, required=True, help="Python of a venv with torch and transformers")
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    model, peer = load(args.model, dtype="float32"), Peer(args.peer_python, args.gguf)
    results = []
    for context, batch, names in CASES:
        result = measure(model, peer, context, batch, names, args.rounds)
        results.append(result)
        print(f"{context} tokens, batch {batch}")
        for name, ms in result["decode_ms"].items():
            ratio, seconds = result["decode_ratio"].get(name, 1.0), result["prefill_s"].get(name)
            fill = "" if seconds is None else f", prefill {seconds:.2f} s"
            print(f"  {name:22s} {ms:8.1f} ms a step, {ratio:.2f}x{fill}", flush=True)
    document = {
        "benchmark": "generate",
        "model": str(args.model.name),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "peer": peer("versions"),
        "rounds": args.rounds,
        "results": results,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
