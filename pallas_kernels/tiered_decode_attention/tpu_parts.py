# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Float32 as sums of bfloat16, which is what the matrix unit of a TPU multiplies: 8 bits of mantissa a part.

Two rows that share a 32-bit register are packed by one instruction, so what is made of even and odd rows apart becomes
one operand with the rows in their order.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

_HIGH_HALF = -0x10000  # 0xFFFF0000 as int32


def low_half(words: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """The bfloat16 in the low half of a word, as float32."""
    return lax.bitcast_convert_type(words << 16, jnp.float32)


def high_half(words: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """The bfloat16 in the high half of a word, as float32."""
    return lax.bitcast_convert_type(words & _HIGH_HALF, jnp.float32)


def interleave(even: Float[Array, "n C"], odd: Float[Array, "n C"], interpret: bool) -> Float[Array, "_ C"]:
    """Rows 0, 2, .. and 1, 3, .. as one bfloat16 array, rounded to nearest."""
    if interpret:  # the interpreter has no rule for the instruction
        pairs = jnp.stack([even.astype(jnp.bfloat16), odd.astype(jnp.bfloat16)], axis=1)
        return pairs.reshape(-1, even.shape[1])
    return pltpu.bitcast(pltpu.pack_elementwise([even, odd], packed_dtype=jnp.bfloat16), jnp.bfloat16)


def interleaved_parts(pair: Sequence[Float[Array, "n C"]], count: int, interpret: bool) -> list[Float[Array, "_ C"]]:
    """``count`` bfloat16 arrays whose sum is `interleave` without rounding."""
    made = []
    even, odd = pair
    for index in range(count):
        made.append(interleave(even, odd, interpret))
        if index + 1 < count:
            even, odd = _remainder(even), _remainder(odd)
    return made


def stacked_parts(x: Float[Array, "*n rows C"], count: int) -> Float[Array, "*n _ C"]:
    """``count`` parts one under another, and zeros up to a power of two of them."""
    made = []
    for _ in range(count):
        made.append(x)
        x = _remainder(x)
    made += [jnp.zeros_like(x)] * (slots(count) - count)
    return jnp.concatenate(made, axis=-2).astype(jnp.bfloat16)


def slots(count: int) -> int:
    """Parts that `stacked_parts` takes room for: whole registers."""
    return 1 << (count - 1).bit_length()


def product(stacked: Float[Array, "rows C"], parts: list[Float[Array, "n C"]]) -> Float[Array, "rows n"]:
    """``stacked @ sum(parts).T`` in float32, the parts of the left operand still apart."""
    dims = (((1,), (1,)), ((), ()))
    products = [lax.dot_general(stacked, part, dims, preferred_element_type=jnp.float32) for part in parts]
    return sum(products[1:], products[0])


def sum_parts(x: Float[Array, "_ C"], rows: int) -> Float[Array, "rows C"]:
    """Adds what came of `stacked_parts`."""
    pieces = [x[start : start + rows] for start in range(0, x.shape[0], rows)]
    return sum(pieces[1:], pieces[0])


def _remainder(x: Array) -> Array:
    return x - x.astype(jnp.bfloat16).astype(jnp.float32)
