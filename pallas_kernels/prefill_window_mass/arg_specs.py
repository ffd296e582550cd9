# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The shapes that every implementation is tested and compiled at, and arguments of such a shape."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class MassSpec:
    """A shape; axis letters as everywhere.

    Attributes:
        S: tokens of the padded prompt.
        queries: N, as of ``prefill_scores="last:N"``; None is all of the prompt.
        W: tokens in a window.
        sink: sink tokens.
        lengths: tokens of each sequence, None for S each.
    """

    S: int = 45
    queries: int | None = None
    K: int = 2
    G: int = 2
    D: int = 16
    W: int = 8
    sink: int = 5
    lengths: tuple[int, ...] = (45, 20)
    dtype: str = "float32"

    @property
    def B(self) -> int:
        """Sequences."""
        return len(self.lengths)

    @property
    def N(self) -> int:
        """Queries whose attention counts."""
        return self.queries or self.S


SPECS = {
    "D64_G3": MassSpec(S=130, D=64, K=3, G=3, queries=32, lengths=(130, 100)),
    "D80_G1": MassSpec(S=140, D=80, G=1, W=4, lengths=(140, 5)),
    "D96_G4": MassSpec(S=100, D=96, G=4, W=16, queries=100, lengths=(60, 100)),
    "D128_G7_bfloat16": MassSpec(S=600, D=128, K=1, G=7, queries=32, lengths=(600, 300), dtype="bfloat16"),
    "D256_G8_bfloat16": MassSpec(S=70, D=256, K=1, G=8, W=32, lengths=(70, 33), dtype="bfloat16"),
    "G5_float16": MassSpec(S=50, D=32, K=1, G=5, queries=16, lengths=(50,), dtype="float16"),
    "blocks": MassSpec(S=1100, D=8, K=2, G=1, lengths=(1100, 700)),
    "one_query": MassSpec(S=300, queries=1, G=4, lengths=(300, 299)),
    "more_queries_than_tokens": MassSpec(S=40, queries=32, lengths=(40, 7, 1)),
    "no_sink": MassSpec(sink=0, W=4),
    "only_sinks": MassSpec(S=8, sink=9, lengths=(8, 3)),
    "one_token": MassSpec(S=1, sink=0, lengths=(1,)),
    "nothing": MassSpec(lengths=(0, 0)),
}

_HEADS = {
    "llama-3.1-8b": {"K": 8, "G": 4, "D": 128},
    "qwen2.5-7b": {"K": 4, "G": 7, "D": 128},
    "mistral-7b": {"K": 8, "G": 4, "D": 128},
    "smollm2-135m": {"K": 3, "G": 3, "D": 64},
}
MODEL_SPECS = {
    f"{model}-{'all' if queries is None else f'last{queries}'}": MassSpec(
        S=8192, queries=queries, lengths=(8192,), dtype="bfloat16", **heads
    )
    for model, heads in _HEADS.items()
    for queries in (32, None)
}


def static_args(spec: MassSpec) -> dict[str, int]:
    """Keyword arguments."""
    return {"window": spec.W, "sink": spec.sink}


def abstract_args(spec: MassSpec) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Positional arguments as shapes and dtypes."""
    rows = (spec.B, spec.N, spec.K * spec.G)
    return (
        jax.ShapeDtypeStruct((*rows, spec.D), spec.dtype),
        jax.ShapeDtypeStruct((spec.B, spec.S, spec.K, spec.D), spec.dtype),
        jax.ShapeDtypeStruct(rows, jnp.float32),
        jax.ShapeDtypeStruct(rows[:2], jnp.int32),
        jax.ShapeDtypeStruct(rows[:2], jnp.bool_),
        jax.ShapeDtypeStruct((spec.B, spec.S), jnp.float32),
    )


def random_args(spec: MassSpec, seed: int = 0) -> tuple[jax.Array, ...]:
    """Positional arguments: the last queries of each sequence, true log-sum-exps, NaN in all that does not count."""
    random = np.random.default_rng(seed)
    heads = spec.K * spec.G
    lengths = np.array(spec.lengths)[:, None]
    prompt = random.normal(size=(spec.B, spec.S, heads, spec.D)) * 2
    keys = random.normal(size=(spec.B, spec.S, spec.K, spec.D))
    padding = np.arange(spec.S) >= lengths
    prompt[padding] = keys[padding] = np.nan
    # rounded first, so that the log-sum-exps are those of the operands
    prompt, keys = (np.asarray(jnp.asarray(x, spec.dtype)) for x in (prompt, keys))
    positions = (0 if spec.queries is None else lengths - spec.N) + np.arange(spec.N) + 0 * lengths
    valid = (positions >= 0) & (positions < lengths)
    index = np.clip(positions, 0, spec.S - 1)
    q = np.take_along_axis(prompt, index[..., None, None], axis=1)

    logits = np.einsum("bnkgd,bskd->bnkgs", _by_kv_head(q, spec), np.float64(keys)) / spec.D**0.5
    seen = (np.arange(spec.S) <= positions[..., None]) & valid[..., None]
    total = np.sum(np.exp(logits), axis=-1, where=seen[:, :, None, None])
    lse = np.log(total, where=total > 0, out=np.full_like(total, np.nan)).reshape(spec.B, spec.N, heads)
    weight = np.where(padding, 0.0, random.uniform(0.5, 1.0, size=padding.shape))
    return (
        jnp.asarray(q),
        jnp.asarray(keys),
        jnp.asarray(lse, jnp.float32),
        jnp.asarray(positions, jnp.int32),
        jnp.asarray(valid),
        jnp.asarray(weight, jnp.float32),
    )


def _by_kv_head(q: np.ndarray, spec: MassSpec) -> np.ndarray:
    return np.float64(q).reshape(spec.B, spec.N, spec.K, spec.G, spec.D)
