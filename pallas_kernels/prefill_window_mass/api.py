# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention mass of prompt windows: picks the implementation."""

from functools import partial
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels.implementation import dispatch
from pallas_kernels.prefill_window_mass import base, pallas_gpu, pallas_tpu


def prefill_window_mass(*arrays: Array, implementation: str = "auto", **static: Any) -> Float[Array, "B windows"]:
    """`base.prefill_window_mass`, which says what it computes and what its arguments are.

    Args:
        *arrays: positional arguments of `base.prefill_window_mass`.
        implementation: see `pallas_kernels.implementation`.
        **static: keyword arguments of `base.prefill_window_mass`.

    Raises:
        ValueError: a named implementation does not take these shapes, or is not known.
    """
    return dispatch(
        implementation,
        arrays,
        cpu=partial(base.prefill_window_mass, **static),
        xla=partial(base.prefill_window_mass, **static),
        tpu=partial(pallas_tpu.prefill_window_mass, **static),
        gpu=partial(pallas_gpu.prefill_window_mass, **static),
        interpret=partial(pallas_tpu.prefill_window_mass, **static, interpret=True),
    )
