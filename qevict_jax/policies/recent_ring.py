# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The newest tokens of every row in a ring of R rows: position p lies in row ``p % R``, keys after RoPE.

Between two events up to ``event_steps`` tokens come and none leaves; an event lets go of all but the newest ``recent``.
So R = ``recent + event_steps``.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.float_bits import to_bits


def ring_positions(start: Int[Array, "B"], ring: int) -> Int[Array, "B R"]:
    """Position that belongs in each row of the ring while ``start`` is the oldest in it; maybe not yet reached."""
    rows = jnp.arange(ring, dtype=jnp.int32)
    return start[:, None] + (rows - start[:, None]) % ring


def fill_ring(
    tokens: Float[Array, "B S X"], start: Int[Array, "B"], length: Int[Array, "B"], ring: int
) -> Float[Array, "B R X"]:
    """The ring of prompts: tokens ``start .. length - 1`` of each row, zeros elsewhere."""
    positions = ring_positions(start, ring)
    index = jnp.minimum(positions, tokens.shape[1] - 1)[..., None]
    return jnp.where((positions < length[:, None])[..., None], jnp.take_along_axis(tokens, index, axis=1), 0.0)


def append(
    stack: Shaped[Array, "L B R X"],
    layer: Int[Array, ""],
    tokens: Float[Array, "B T X"],
    positions: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
    dtype: str,
) -> Shaped[Array, "L B R X"]:
    """Writes new tokens into their rows; those that are not valid are dropped."""
    ring = stack.shape[2]
    rows = jnp.where(valid, positions % ring, ring)
    batch = jnp.arange(tokens.shape[0])[:, None]
    return stack.at[layer, batch, rows].set(to_bits(tokens, dtype), mode="drop")


def leaving(
    start: Int[Array, "B"], length: Int[Array, "B"], recent: int, most: int
) -> tuple[Int[Array, "B most"], Bool[Array, "B most"]]:
    """Positions that an event lets go, oldest first, and which of them there are."""
    positions = start[:, None] + jnp.arange(most, dtype=jnp.int32)
    return positions, positions < length[:, None] - recent
