# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What decode attention over tiers must give: dense float64 attention over dequantized keys, and its comparison."""

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.tiered_decode_attention.arg_specs import SPECS, DecodeSpec, random_args
from pallas_kernels.tiered_decode_attention.base import Mass
from tests.float64_model import rotate, softmax_attention
from tests.float64_quant import decode


@dataclass(frozen=True)
class Expected:
    """Of one sequence: its valid query tokens, their output ``[n, H, D]``, and mass by (tier, slot)."""

    queries: np.ndarray
    out: np.ndarray
    mass: dict[tuple[str, int], float]


@cache
def expected(name: str) -> list[Expected]:
    """For every sequence of `random_args` of a row of the table."""
    spec, arguments = SPECS[name], jax.device_get(random_args(SPECS[name]))
    return [_dense(spec, arguments, row) for row in range(spec.B)]


def assert_matches(name: str, out: np.ndarray, mass: Mass, tolerance: float) -> None:
    """Output and mass of every window, relative to the size of the output; all mass is the number of valid queries."""
    assert out.dtype == np.float32
    for row, wanted in enumerate(expected(name)):
        scale = max(1.0, np.abs(wanted.out).max())
        np.testing.assert_allclose(out[row, wanted.queries] / scale, wanted.out / scale, rtol=0, atol=tolerance)
        found = {("sink", 0): mass.sink[row]}
        for tier in ("ring", "full", "quantized"):
            numbers = getattr(mass, tier)
            found |= {} if numbers is None else {(tier, slot): x for slot, x in enumerate(numbers[row])}
        for place, received in found.items():
            np.testing.assert_allclose(
                received, wanted.mass.get(place, 0.0), rtol=0, atol=tolerance, err_msg=f"row {row}, {place}"
            )
        if wanted.mass:
            np.testing.assert_allclose(sum(found.values()), len(wanted.queries), rtol=max(1e-5, tolerance / 10))


def _dense(spec: DecodeSpec, arguments: tuple, row: int) -> Expected:
    q, q_positions, q_valid, tiers, _, inv_freq, key_bias = arguments
    positions, keys, values, owner = [], [], [], []

    def add(at, k, v, tier, slot):
        positions.extend(at)
        keys.extend(k)
        values.extend(v)
        owner.extend([(tier, slot)] * len(at))

    def apart(rows):
        numbers = np.float64(np.float32(rows.view(jnp.dtype(spec.kv_dtype))))
        return np.moveaxis(numbers.reshape(len(rows), spec.K, 2, spec.D), 2, 0)

    queries = np.flatnonzero(q_valid[row])
    newest = q_positions[row, queries].max()
    for index, position in enumerate(tiers.local_positions[row]):
        if position <= newest:
            tier = ("ring", index // spec.W) if index < spec.ring else ("sink", 0)
            add([position], *apart(tiers.local[spec.layer, row, index : index + 1]), *tier)
    for slot in range(spec.F):
        if tiers.full_valid[row, slot]:
            add([0] * spec.W, *apart(tiers.full[spec.layer, row, slot]), "full", slot)
    for slot in range(spec.Q):
        start = tiers.quantized_starts[row, slot]
        if start >= 0:
            stored = jax.tree.map(lambda x, slot=slot: x[spec.layer, row, slot], tiers.quantized)
            window = decode(stored.codes, stored.key_params, stored.scalars, spec.W, spec.K, spec.bits)
            bias = 0.0 if key_bias is None else np.float64(key_bias)
            turned = rotate(window.keys + bias, start + np.arange(spec.W), inv_freq)
            add([0] * spec.W, turned, window.values, "quantized", slot)
    if not positions:
        return Expected(queries, np.zeros((len(queries), spec.K * spec.G, spec.D)), {})
    seen = np.array(positions) <= q_positions[row, queries][:, None]
    out, weights = softmax_attention(q[row, queries], np.stack(keys), np.stack(values), seen)
    mass = {}
    for place, received in zip(owner, weights.mean(axis=0).sum(axis=0), strict=True):
        mass[place] = mass.get(place, 0.0) + received
    return Expected(queries, out, mass)
