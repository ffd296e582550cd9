# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Every cache policy at the same bytes: fidelity to the full cache, and decode time against it in the same run.

Regime: teacher-forced text, exact lengths, 16-bit caches on both sides, computing in the checkpoint's dtype; budgets
are fractions of the full cache's real bytes. Policies with a budget run at each, quantizers at their operating points.
Times are medians of rounds in which the policy and the full cache take turns, batch 1, after one prompt of the first
text. Two texts of three rows of 2,048 + 192 tokens take SmolLM2-135M about 25 minutes of one core.

    python -m benchmarks.policies --model CONVERTED_FLOAT32 --text FILE --text FILE --png policies.png

Without ``--text`` the Python language reference (``pydoc_data.topics``) is read. The last line of standard output is
one JSON document; `benchmarks.policies_plot` draws it.
"""

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.policies_plot import draw
from qevict_jax import CacheConfig, LanguageModel, QEvictError, Sampling, load
from qevict_jax.config import POLICY_FIELDS
from qevict_jax.decoding import Compiled, Decoder
from qevict_jax.evaluation import FidelityResult, describe, fidelity, to_json
from qevict_jax.evaluation.prompt_record import PromptRecord, admit_record
from qevict_jax.evaluation.provenance import environment
from qevict_jax.evaluation.teacher_forcing import record_prompt
from qevict_jax.policies import make_policy
from qevict_jax.sampling import Filters, Numbers

# settings of a policy that are worth a line of their own; the tuned preset has no full slots, so no residency either
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "qevict": [{"preset": "tuned"}, {"preset": "paper"}, {"preset": "paper", "residency": "exact"}],
    "kivi": [{"policy_options": "bits=2"}, {"policy_options": "bits=4"}],
    "kvquant": [{"policy_options": "bits=2"}, {"policy_options": "bits=3"}],
}
PRESETS = {"tuned": CacheConfig.tuned, "paper": CacheConfig.paper}


def caches(names: list[str], budgets: list[float]) -> list[CacheConfig]:
    """Every policy of the table but the full cache, every variant, at every budget if it has one."""
    configs = []
    for policy in names:
        for variant in VARIANTS.get(policy, [{}]):
            fields = dict(variant)
            make = PRESETS[fields.pop("preset")] if "preset" in fields else CacheConfig
            if "budget" in POLICY_FIELDS[policy]:
                configs += [make(policy=policy, budget=budget, **fields) for budget in budgets]
            else:
                configs.append(make(policy=policy, **fields))
    return configs


def runnable(model: LanguageModel, configs: list[CacheConfig], total: int) -> Iterator[CacheConfig]:
    """Those that can be made; of the others (a budget too small, no calibration) stderr says why."""
    for config in configs:
        try:
            make_policy(model.config.kv_shape(config.kv_dtype), config, total)
        except QEvictError as error:
            print(f"left out: {describe(config)} at {config.budget}: {error}", file=sys.stderr)
        else:
            yield config


class Timed:
    """Decode blocks of one cache after a prompt that has been read."""

    def __init__(self, model: LanguageModel, config: CacheConfig, record: PromptRecord, capacity: int):
        total = record.tokens.shape[2] + capacity
        policy = make_policy(model.config.kv_shape(config.kv_dtype), config, total)
        self.params, self.numbers, self.steps = model.params, Numbers.batch([Sampling()], [0]), policy.event_steps
        # no EOS: a benchmark does not end early
        self.compiled = Compiled(Decoder(model.program, policy, Filters.of(Sampling()), (), capacity))

        @jax.jit
        def admit(params: nnx.State, record: PromptRecord) -> Any:
            return admit_record(policy, record, model.program.transform(model.program.bind(params)))

        logits, limit = jnp.zeros((1, model.config.vocab)), jnp.full((1,), capacity, jnp.int32)
        active = jnp.ones((1,), bool)
        cache = admit(model.params, record)
        self.start = self.compiled("begin", self.params, cache, logits, active, limit, self.numbers)
        self.reset()
        self.block()  # compiles

    def reset(self) -> None:
        """Back to where the prompt ended; a block takes the memory of the state that it is given."""
        self.state = jax.tree.map(jnp.copy, self.start)

    def block(self) -> float:
        """Seconds of one step, its share of the event included."""
        before, began = self.compiled.seconds, time.perf_counter()
        self.state = jax.block_until_ready(self.compiled("block", self.params, self.state, self.numbers))
        return (time.perf_counter() - began - (self.compiled.seconds - before)) / self.steps


def decode_times(model: LanguageModel, configs: list[CacheConfig], prompt: list[int], rounds: int) -> list[dict]:
    """Milliseconds per step of each cache and of the full cache between its blocks."""
    record = record_prompt(model.program, model.params, jnp.asarray([prompt], jnp.int32), model.dtype)
    capacity = 16 * (rounds + 1)  # blocks of up to 16 steps
    rows = []
    full = Timed(model, CacheConfig.full(), record, capacity)
    for config in configs:
        side, ours, theirs = Timed(model, config, record, capacity), [], []
        full.reset()
        for _ in range(rounds):
            ours.append(1e3 * side.block())
            theirs.append(1e3 * full.block())
        median, of_full = statistics.median(ours), statistics.median(theirs)
        rows.append({"name": describe(config), "budget": config.budget, "ms": median, "full_ms": of_full})
        rows[-1] |= {"spread_ms": [min(ours), max(ours)], "times_full": median / of_full}
        print(f"{describe(config):45} {median:7.1f} ms a step, {median / of_full:.2f} of full", file=sys.stderr)
    return rows


def show(result: FidelityResult) -> None:
    """One line of the table."""
    if result.error:
        print(f"{describe(result.config):45} {result.error}", flush=True)
        return
    budget = "     -" if result.config.budget is None else f"{result.config.budget:6.2f}"
    print(
        f"{describe(result.config):45} {budget} {result.ratio_allocated:7.3f} of full, KL {result.mean_kl:.4f} ± "
        f"{result.spread_kl:.4f}, top-1 {np.mean(result.top1):.3f}, NLL {np.mean(result.nll_difference):+.4f}",
        flush=True,
    )


def main() -> None:
    """Runs everything, prints the tables and the JSON, draws the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="converted checkpoint")
    parser.add_argument("--text", type=Path, action="append", help="UTF-8 text; repeatable")
    parser.add_argument("--policies", default=",".join(p for p in POLICY_FIELDS if p != "full"))
    parser.add_argument("--budgets", default="0.2,0.1,0.05")
    parser.add_argument("--offsets", default="0,40000,80000", help="first tokens of the rows")
    parser.add_argument("--prefill", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=192)
    parser.add_argument("--question", type=int, default=0, help="prompt tokens fed after compression")
    parser.add_argument("--rounds", type=int, default=5, help="of timing; 0 for none")
    parser.add_argument("--png", type=Path)
    args = parser.parse_args()
    model = load(args.model)
    if model.tokenizer is None:
        sys.exit(f"{args.model} has no tokenizer")
    texts = {file.name: file.read_text(encoding="utf-8") for file in args.text or []}
    texts = texts or {"Python language reference": "\n\n".join(topics[name] for name in sorted(topics))}
    offsets = [int(offset) for offset in args.offsets.split(",")]
    budgets = [float(budget) for budget in args.budgets.split(",")]
    configs = list(runnable(model, caches(args.policies.split(","), budgets), args.prefill + args.steps))
    run = {"prefill": args.prefill, "steps": args.steps, "offsets": offsets}
    document: dict[str, Any] = {"benchmark": "policies", "model": args.model.name, **run, **environment()}
    document["texts"] = {}
    for name, content in texts.items():
        print(f"{name}: {args.prefill} + {args.steps} tokens, offsets {args.offsets}")
        tokens = model.tokenizer.encode(content, add_bos=False)
        results = fidelity(model, tokens, configs, **run, question=args.question, on_result=show)
        made = to_json(results, model=args.model.name, text=content, **run)
        document["texts"][name] = {
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "tokens": len(tokens),
            "results": made["results"],
        }
    if args.rounds:
        middle = sorted(budgets)[len(budgets) // 2]
        timed = [config for config in configs if config.budget in (None, middle)]
        prompt = model.tokenizer.encode(next(iter(texts.values())))[: args.prefill]
        document |= {"rounds": args.rounds, "decode": decode_times(model, timed, prompt, args.rounds)}
    if args.png:
        draw(document, args.png)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
