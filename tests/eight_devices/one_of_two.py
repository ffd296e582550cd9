# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""One of two processes that share four devices; prints what it learns of the answers as one JSON object.

python -m tests.eight_devices.one_of_two CHECKPOINT HOST:PORT,2,INDEX
"""

import json
import sys

from qevict_jax import CacheConfig, generate, load
from qevict_jax.mesh import join_processes

MESH = "data=2,model=2"
CACHE = CacheConfig(budget=0.6, kv_dtype="float32", recent=8, quant_fraction=0.4)
PROMPTS = [[*range(40)], [*range(60, 30, -1)]]


def answers(checkpoint: str) -> list[tuple[int, ...]]:
    """Tokens of greedy answers, different in length, with a cache that events change."""
    model = load(checkpoint, mesh=MESH)
    return [answer.tokens for answer in generate(model, PROMPTS, cache=CACHE, max_new_tokens=18)]


if __name__ == "__main__":
    process = join_processes(sys.argv[2])
    print(json.dumps({"process": process, "tokens": answers(sys.argv[1])}))
