# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""transformers' DynamicCache, timed on request: a worker of `benchmarks.efficiency` in an environment that has torch.

Reads one JSON request a line from standard input and answers each with one JSON line. Weights are random: how long a
step takes does not depend on them.
"""

import json
import sys
import time
from copy import deepcopy
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from benchmarks.peak_memory import ResidentPeak


class Worker:
    """A model, and the cache and first tokens of the prompts that were read last."""

    def __init__(self, config: dict[str, Any], dtype: str):
        """A model of the `transformers` configuration ``config``, with random weights of a torch dtype."""
        made = AutoConfig.for_model(**config)
        self.model = AutoModelForCausalLM.from_config(made, dtype=getattr(torch, dtype)).eval()
        self.rows: tuple[DynamicCache, torch.Tensor] | None = None
        self.peak = ResidentPeak()

    def restart_peak(self) -> None:
        """Resident memory counts from here."""
        self.peak = ResidentPeak()

    def resident_peak(self) -> int | None:
        """Bytes since then."""
        return self.peak.read()

    @torch.no_grad()
    def read(self, tokens: list[list[int]]) -> float:
        """Reads prompts ``[n, S]`` together and draws their first tokens; seconds."""
        ids = torch.tensor(tokens)
        began = time.perf_counter()
        cache = DynamicCache(config=self.model.config)
        logits = self.model(ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        first = logits[:, -1].argmax(-1, keepdim=True)
        elapsed = time.perf_counter() - began
        if cache.get_seq_length() != ids.shape[1]:  # an argument of another name is swallowed
            raise RuntimeError(f"transformers {transformers.__version__} has not filled the cache that it was given")
        self.rows = cache, first
        return elapsed

    @torch.no_grad()
    def decode(self, batch: int, steps: int, keep: bool) -> tuple[float, float]:
        """Greedy steps of a batch of those rows, each as often in it as it takes; seconds, and of processor time."""
        assert self.rows
        cache, token = deepcopy(self.rows) if keep else self.rows
        if not keep:
            self.rows = None
        copies = batch // len(token)
        if copies > 1:
            cache.batch_repeat_interleave(copies)
            token = token.repeat_interleave(copies, dim=0)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            logits = self.model(token, cache=cache, use_cache=True).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
        return time.perf_counter() - wall, time.process_time() - cpu

    def forget(self) -> None:
        """Lets the rows go."""
        self.rows = None


def main() -> None:
    """Serves requests until the input ends."""
    worker = Worker(**json.loads(sys.stdin.readline()))
    print(json.dumps(f"transformers {transformers.__version__}, torch {torch.__version__}"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(worker, request.pop("call"))(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
