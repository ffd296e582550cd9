# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Windows between their two forms: what RoPE and a key bias add is taken off, and put back."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.models.rope_frequencies import inverse_frequencies
from qevict_jax.windows import quantize, restore
from tests import float64_quant
from tests.float64_model import rotate
from tests.random_model import CONFIGS
from tests.test_cache import LAYOUT

INV_FREQ = jnp.asarray(inverse_frequencies(CONFIGS["scaled"]))
WINDOWS = jnp.array([[0, 3, 500]], jnp.int32)  # the last starts at position 2,002


def full_windows(bias, seed=0):
    """Keys as projected, and windows ``[1, 3, W, K*2*D]`` with bias and RoPE on them."""
    random = np.random.default_rng(seed)
    keys, values = random.normal(size=(2, 3, LAYOUT.window, 2, 16))
    turned = np.stack(
        [
            rotate(k + bias, LAYOUT.sink + int(w) * LAYOUT.window + np.arange(LAYOUT.window), INV_FREQ)
            for k, w in zip(keys, WINDOWS[0], strict=True)
        ]
    )
    tokens = np.stack([turned, values], axis=3).reshape(1, 3, LAYOUT.window, -1)
    return keys, values, jnp.asarray(tokens, jnp.float32)


def there_and_back(bias, layout=LAYOUT):
    _, _, tokens = full_windows(bias)
    key_bias = jnp.asarray(np.broadcast_to(bias, (2, 16)), jnp.float32)
    codes = jax.jit(partial(quantize, layout=layout))(tokens, WINDOWS, inv_freq=INV_FREQ, bias=key_bias)
    back = jax.jit(partial(restore, layout=layout))(codes, WINDOWS, inv_freq=INV_FREQ, bias=key_bias)
    return codes, tokens, back


@pytest.mark.parametrize("param_bits", [8, 16])
def test_codes_are_those_of_projected_keys(param_bits):
    layout = dataclasses.replace(LAYOUT, param_bits=param_bits)
    keys, values, _ = full_windows(3.0)
    codes, _, _ = there_and_back(3.0, layout)
    assert codes.scalars.shape[-1] == layout.scalar_row
    for slot in range(3):
        stored = jax.tree.map(lambda x, slot=slot: np.asarray(x[0, slot]), codes)
        ours = float64_quant.decode(stored.codes, stored.key_params, stored.scalars, layout.window, 2, layout.bits)
        wanted = float64_quant.quantize(keys[slot], values[slot], layout.bits, param_bits)
        assert np.mean(ours.key_codes == wanted.key_codes) > 0.97
        np.testing.assert_allclose(ours.keys, wanted.keys, rtol=0, atol=0.35)
        np.testing.assert_allclose(ours.values, wanted.values, rtol=0, atol=0.35)


def test_a_key_bias_of_hundreds_costs_nothing():
    """Qwen2.5: left in, a bfloat16 offset of 600 alone would be wrong by up to 2."""
    bias = np.linspace(-600, 600, 32).reshape(2, 16)
    errors = {}
    for name, added in (("none", 0.0), ("huge", bias)):
        _, tokens, back = there_and_back(added)
        errors[name] = np.abs(np.asarray(back - tokens)).mean()
    assert errors["huge"] < 1.25 * errors["none"]


def test_positions_are_absolute():
    """The same window at another place is another key after RoPE, with the same codes."""
    _, _, tokens = full_windows(0.0)
    codes = jax.jit(partial(quantize, layout=LAYOUT))(tokens, WINDOWS, inv_freq=INV_FREQ, bias=None)
    place = jax.jit(partial(restore, layout=LAYOUT))
    moved, back = (place(codes, windows, inv_freq=INV_FREQ, bias=None) for windows in (WINDOWS + 1, WINDOWS))
    keys, moved_keys = (np.asarray(x).reshape(1, 3, 4, 2, 2, 16)[..., 0, :] for x in (back, moved))
    for slot in range(3):
        turned = rotate(keys[0, slot], np.full(LAYOUT.window, LAYOUT.window), INV_FREQ)
        np.testing.assert_allclose(moved_keys[0, slot], turned, rtol=0, atol=1e-3)
