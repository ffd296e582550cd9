# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Causal attention of a prompt: picks the implementation."""

from functools import partial

from jaxtyping import Array, Float

from pallas_kernels.causal_attention import base, cudnn, splash
from pallas_kernels.implementation import dispatch


def causal_attention(
    q: Float[Array, "B S H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K D"],
    implementation: str = "auto",
) -> tuple[Float[Array, "B S H D"], Float[Array, "B S H"]]:
    """`base.causal_attention`, which says what it computes.

    Raises:
        ValueError: a named implementation does not take these shapes, or is not known.
    """
    no_splash = splash.unsupported(q.dtype)
    return dispatch(
        implementation,
        (q, k, v),
        cpu=base.causal_attention,
        xla=base.causal_attention,
        tpu=no_splash or splash.causal_attention,
        gpu=cudnn.unsupported(q.dtype, q.shape[-1]) or cudnn.causal_attention,
        interpret=no_splash or partial(splash.causal_attention, interpret=True),
    )
