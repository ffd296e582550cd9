# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Calibration of KVQuant (arXiv:2401.18079, section 3): ranges of key channels and codebooks, from a text.

The model reads the text one layer at a time, so that one layer's keys and values are in memory and not all. Ranges are
exact quantiles of each channel. A codebook is the exact k-means (`quantizers.kmeans`) of a histogram of the numbers
that are in range, brought to -1 .. 1; every number weighs the same unless squared gradients are asked for (the paper's
Fisher information, `qevict_jax.fisher`), which costs a backward pass over the text.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from pallas_kernels.causal_attention.api import causal_attention
from pallas_kernels.packing import BITS
from pallas_kernels.rope import cos_sin, rotate
from qevict_jax.checks import check_integer, check_number
from qevict_jax.fisher import squared_gradients
from qevict_jax.models import LanguageModel
from qevict_jax.models.steps import Program
from qevict_jax.quantizers.calibration_file import Calibration, checkpoint_fingerprint
from qevict_jax.quantizers.kmeans import kmeans
from qevict_jax.quantizers.nuq import outlier_count
from qevict_jax.types import QEvictError

_BINS = 512


def calibrate(
    model: LanguageModel,
    token_ids: Sequence[int],
    *,
    samples: int = 16,
    length: int = 2048,
    outliers: float = 0.01,
    fisher: bool = False,
    progress: bool = False,
) -> Calibration:
    """Ranges and codebooks of every layer, for all code widths.

    Args:
        model: the model.
        token_ids: a text, without BOS; each sample starts with one if the model uses one.
        samples: stretches of the text, evenly spaced.
        length: tokens of each.
        outliers: share of the numbers that ranges leave out, half of it at either end.
        fisher: weigh numbers by the squared gradient of the loss, instead of equally.
        progress: show a bar on stderr.

    Raises:
        QEvictError: the text is too short, or a sample longer than the model's context.
    """
    model.check_one_device("calibration")
    tokens = _samples(model, token_ids, samples, length)
    check_number("outliers", outliers, 0, 0.2)
    config = model.config
    kept = outlier_count(outliers, config.kv_heads * config.head_dim)
    x = [jnp.asarray(_lookup(model.program, model.params, row)) for row in tokens]
    ranges, histograms = [], []
    for layer in tqdm(range(config.layers), desc="calibrate", unit="layer", disable=not progress):
        keys, values = [], []
        for i, row in enumerate(x):
            x[i], k, v = _layer(model.program, model.params, jnp.int32(layer), row)
            keys.append(np.asarray(k).reshape(length, -1))
            values.append(np.asarray(v).reshape(length, -1))
        key, value = np.concatenate(keys), np.concatenate(values)
        low, high = np.quantile(key, [outliers / 2, 1 - outliers / 2], axis=0)
        ranges.append(np.asarray([low, high], np.float32))
        if not fisher:
            scaled = normalize_keys(key, ranges[-1]), normalize_values(value, kept)
            histograms.append([histogram(part, np.ones_like(part)) for part in scaled])
    if fisher:
        histograms = _weighted_histograms(model, tokens, ranges, kept, progress)
    counts = tuple(1 << bits for bits in BITS)
    poles = [[kmeans(points, mass, counts) for points, mass in layer] for layer in histograms]
    return Calibration(
        key_range=np.stack(ranges, axis=1).reshape((2, config.layers, config.kv_heads, config.head_dim)),
        key_poles={bits: np.asarray([layer[0][1 << bits] for layer in poles], np.float32) for bits in BITS},
        value_poles={bits: np.asarray([layer[1][1 << bits] for layer in poles], np.float32) for bits in BITS},
        outliers=outliers,
        fingerprint=checkpoint_fingerprint(config.checkpoint),
        facts={
            "samples": samples,
            "length": length,
            "weights": "fisher" if fisher else "equal",
            "tokens_sha256": hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest(),
        },
    )


def normalize_keys(keys: np.ndarray, key_range: np.ndarray) -> np.ndarray:
    """Keys ``[n, K*D]`` with the range of each channel at -1 .. 1."""
    low, high = key_range
    radius = (high - low) / 2
    return (keys - (low + high) / 2) / np.where(radius == 0, 1, radius)


def normalize_values(values: np.ndarray, kept: int) -> np.ndarray:
    """Values ``[n, K*D]`` with the range of each token, but for its ``kept`` extremes, at -1 .. 1."""
    ordered = np.sort(values, axis=1)
    low, high = ordered[:, [kept // 2]], ordered[:, [-1 - (kept + 1) // 2]]
    return (values - (low + high) / 2) / np.where(high == low, 1, (high - low) / 2)


def histogram(scaled: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers in -1 .. 1 as the mean and the weight of each of many bins, float64."""
    inside = np.abs(scaled) <= 1
    scaled, weights = scaled[inside], weights[inside]
    index = np.minimum(((scaled + 1) * (_BINS / 2)).astype(np.int64), _BINS - 1)
    mass = np.bincount(index, weights, _BINS)
    first = np.bincount(index, weights * scaled, _BINS)
    return np.divide(first, mass, out=np.linspace(-1, 1, _BINS), where=mass > 0), mass


def _weighted_histograms(
    model: LanguageModel, tokens: np.ndarray, ranges: list[np.ndarray], kept: int, progress: bool
) -> list:
    """Histograms of keys and values of each layer, weighted by squared gradients, one sample at a time."""
    sums = np.zeros((len(ranges), 2, 2, _BINS))  # weight, and weight times number
    for row in tqdm(tokens, desc="gradients", unit="sample", disable=not progress):
        for layer, (key, value, key_weight, value_weight) in enumerate(_rows(model, row)):
            scaled = normalize_keys(key, ranges[layer]), normalize_values(value, kept)
            for part, weight in enumerate((key_weight, value_weight)):
                points, mass = histogram(scaled[part], weight)
                sums[layer, part] += np.stack([mass, mass * points])
    evenly = np.linspace(-1, 1, _BINS)
    return [[(np.divide(b, a, out=evenly.copy(), where=a > 0), a) for a, b in layer] for layer in sums]


def _rows(model: LanguageModel, row: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    made = squared_gradients(model.program, model.params, jnp.asarray(row[None]))
    arrays = [np.asarray(x, np.float64).reshape(x.shape[0], len(row), -1) for x in made]
    return zip(*arrays, strict=True)


def _samples(model: LanguageModel, token_ids: Sequence[int], samples: int, length: int) -> np.ndarray:
    check_integer("samples", samples, 1)
    check_integer("length", length, 2)
    if length > model.config.max_position:
        raise QEvictError(f"length={length} exceeds the model's context of {model.config.max_position} tokens")
    bos = [] if model.tokenizer is None or model.tokenizer.bos_id is None else [model.tokenizer.bos_id]
    size = length - len(bos)
    most = len(token_ids) // size
    if most < samples:
        raise QEvictError(f"the text has {len(token_ids)} tokens: {most} samples of {length} tokens, not {samples}")
    starts = [i * (len(token_ids) // samples) for i in range(samples)]
    return np.asarray([[*bos, *token_ids[start : start + size]] for start in starts], np.int32)


@partial(jax.jit, static_argnames="program")
def _lookup(program: Program, params: nnx.State, tokens: Int[Array, "S"]) -> Float[Array, "1 S E"]:
    return program.bind(params).lookup(tokens[None])


@partial(jax.jit, static_argnames="program", donate_argnames="x")
def _layer(
    program: Program, params: nnx.State, layer: Int[Array, ""], x: Float[Array, "1 S E"]
) -> tuple[Float[Array, "1 S E"], Float[Array, "S K D"], Float[Array, "S K D"]]:
    """One decoder layer, and its keys (before bias and RoPE) and values in float32."""
    model = program.bind(params)
    graph, stacked = nnx.split(model.blocks)
    block = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[layer], stacked))
    transform = program.transform(model)
    cos, sin = cos_sin(jnp.arange(x.shape[1], dtype=jnp.int32)[None], transform.inv_freq)
    q, k, v = block.qkv(x)
    out, _ = causal_attention(rotate(q, cos, sin).astype(x.dtype), rotate(k, cos, sin).astype(x.dtype), v)
    keys = k[0].astype(jnp.float32)
    if transform.bias is not None:
        keys = keys - transform.bias[layer].astype(jnp.float32)
    return block.residual(x, out), keys, v[0].astype(jnp.float32)
