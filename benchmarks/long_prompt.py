# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Resident memory of a process that loads a model, reads a long prompt and answers, on a CPU and Linux.

    python -m benchmarks.long_prompt CONVERTED --total 8192

Counted from when the process had imported everything, up to its peak: loading, compilation and compilers' own memory
included. The limit beside it is weights, a full cache of one layer in float32, the budget, and 1 GiB. The prompt is
random ids: no memory depends on them. The last line is one JSON document; the process fails above the limit.
"""

import json
from typing import Annotated

import jax
import numpy as np
import typer

from benchmarks.peak_memory import ResidentPeak
from qevict_jax import CacheConfig, QEvictError, load
from qevict_jax.cache import nbytes
from qevict_jax.engine import Engine, Request
from qevict_jax.sampling import Sampling

_SPARE = 1 << 30


def main(
    model: Annotated[str, typer.Argument(help="Checkpoint made by `qevict convert`.")],
    total: Annotated[int, typer.Option(help="Tokens of prompt and answer.")] = 8192,
    new: Annotated[int, typer.Option(help="Tokens of the answer.")] = 256,
    budget: Annotated[float, typer.Option(help="Share of the full cache.")] = 0.2,
) -> None:
    """Prints one line of JSON."""
    jax.devices()  # what a backend takes by itself does not count
    peak = ResidentPeak()
    before = peak.read()
    loaded = load(model)
    cache = CacheConfig(budget=budget)
    # no token ends the answer early
    engine = Engine(loaded, cache, slots=1, max_context=total, max_new_tokens=new, eos=())
    ids = np.random.default_rng(0).integers(0, loaded.config.vocab, total - new).tolist()
    engine.insert(engine.prefill([Request(tuple(ids), new, Sampling())]), [0])
    (drawn,) = engine.decode_all().values()
    after, weights = peak.read(), nbytes(loaded.params)
    if after is None or before is None:
        raise QEvictError("the peak of resident memory is known on Linux only")
    config = loaded.config
    layer = total * 2 * config.kv_heads * config.head_dim * np.dtype(np.float32).itemsize
    found = {
        "model": model,
        "tokens": len(ids) + len(drawn.tokens),
        "resident_bytes": after - before,
        "limit_bytes": weights + layer + int(budget * engine.plan.full_kv_bytes) + _SPARE,
        "before_bytes": before,
        "weight_bytes": weights,
        "layer_bytes": layer,
        "kv_bytes": engine.kv_bytes,
        **{f"{part}_seconds": seconds for part, seconds in engine.spent._asdict().items()},
    }
    print(json.dumps(found))
    if found["resident_bytes"] > found["limit_bytes"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
