# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a tiered cache: picks the implementation."""

from functools import partial
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels.implementation import dispatch
from pallas_kernels.tiered_decode_attention import base
from pallas_kernels.tiered_decode_attention.base import Mass as Mass
from pallas_kernels.tiered_decode_attention.base import Tiers as Tiers


def tiered_decode_attention(
    *arrays: Any, implementation: str = "auto", **static: Any
) -> tuple[Float[Array, "B T H D"], Mass]:
    """`base.tiered_decode_attention`, which says what it computes and what its arguments are.

    Args:
        *arrays: positional arguments of `base.tiered_decode_attention`.
        implementation: see `pallas_kernels.implementation`.
        **static: keyword arguments of `base.tiered_decode_attention`, except ``serial``.

    Raises:
        ValueError: a named implementation does not take these shapes, or is not known.
    """
    missing = "there is no kernel yet"
    return dispatch(
        implementation,
        arrays,
        cpu=partial(base.tiered_decode_attention, **static, serial=True),
        xla=partial(base.tiered_decode_attention, **static, serial=False),
        tpu=missing,
        gpu=missing,
        interpret=missing,
    )
