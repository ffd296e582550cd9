# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""transformers' DynamicCache in float32, timed on request: a worker of `benchmarks.generate` in a venv that has torch.

Reads one JSON request a line from standard input and answers each with one JSON line.
"""

import json
import sys
import time
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging


class Worker:
    """A model and the cache of the newest prefill."""

    def __init__(self, gguf: Path):
        logging.disable_progress_bar()
        self.model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
        self.caches: dict[str, tuple[DynamicCache, torch.Tensor]] = {}

    def prefill(self, name: str, tokens: list[list[int]]) -> float:
        """Reads prompts into a fresh cache; seconds."""
        ids = torch.tensor(tokens)
        began = time.perf_counter()
        cache = DynamicCache(config=self.model.config)
        logits = self.model(ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        elapsed = time.perf_counter() - began
        self.caches[name] = cache, logits[:, -1].argmax(-1, keepdim=True)
        return elapsed

    def decode(self, name: str, steps: int) -> float:
        """Greedy decode steps from the newest state; seconds."""
        cache, token = self.caches[name]
        began = time.perf_counter()
        for _ in range(steps):
            logits = self.model(token, cache=cache, use_cache=True).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
        elapsed = time.perf_counter() - began
        self.caches[name] = cache, token
        return elapsed


@torch.no_grad()
def main() -> None:
    """Serves requests until the input ends."""
    worker = Worker(Path(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        call = request.pop("call")
        if call == "forget":
            worker.caches.clear()
            answer: float | str = 0.0
        elif call == "versions":
            import transformers

            answer = f"transformers {transformers.__version__}, torch {torch.__version__}"
        else:
            answer = getattr(worker, call)(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
