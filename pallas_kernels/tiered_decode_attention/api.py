# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a tiered cache: picks the implementation."""

from functools import partial
from typing import Any

from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.implementation import dispatch
from pallas_kernels.tiered_decode_attention import base, pallas_gpu, pallas_tpu
from pallas_kernels.tiered_decode_attention.base import Mass as Mass
from pallas_kernels.tiered_decode_attention.base import Tiers as Tiers


def tiered_decode_attention(
    q: Float[Array, "B T H D"],
    q_positions: Int[Array, "B T"],
    q_valid: Bool[Array, "B T"],
    tiers: Tiers,
    layer: Int[Array, ""],
    inv_freq: Float[Array, "halfD"],
    key_bias: Float[Array, "K D"] | None,
    *,
    implementation: str = "auto",
    **static: Any,
) -> tuple[Float[Array, "B T H D"], Mass]:
    """`base.tiered_decode_attention`, which says what it computes and what its arguments are.

    Args:
        implementation: see `pallas_kernels.implementation`.
        **static: ``kv_heads``, ``window``, ``ring``, ``bits`` and ``kv_dtype``.

    Raises:
        ValueError: a named implementation does not take these shapes, or is not known.
    """
    sizes = {name: static[name] for name in ("kv_heads", "window", "bits", "kv_dtype")}
    not_on_tpu = pallas_tpu.unsupported(q, tiers, **sizes)
    on_tpu = partial(pallas_tpu.tiered_decode_attention, **static)
    return dispatch(
        implementation,
        (q, q_positions, q_valid, tiers, layer, inv_freq, key_bias),
        cpu=partial(base.tiered_decode_attention, **static, serial=True),
        xla=partial(base.tiered_decode_attention, **static, serial=False),
        tpu=not_on_tpu or on_tpu,
        gpu=pallas_gpu.unsupported(tiers) or partial(pallas_gpu.tiered_decode_attention, **static),
        interpret=not_on_tpu or partial(on_tpu, interpret=True),
    )
