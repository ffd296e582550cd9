# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a tiered cache: picks the implementation for the platform a program is lowered for."""

from functools import partial
from typing import Any

from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.tiered_decode_attention import base
from pallas_kernels.tiered_decode_attention.base import Mass as Mass
from pallas_kernels.tiered_decode_attention.base import Tiers as Tiers


def tiered_decode_attention(*arrays: Any, **static: Any) -> tuple[Float[Array, "B T H D"], Mass]:
    """`base.tiered_decode_attention`, which says what it computes, in the form that suits the platform.

    The choice is made where the program is lowered, so one exported on a CPU for another platform takes that
    platform's.
    """
    return lax.platform_dependent(
        *arrays,
        cpu=partial(base.tiered_decode_attention, **static, serial=True),
        default=partial(base.tiered_decode_attention, **static, serial=False),
    )
