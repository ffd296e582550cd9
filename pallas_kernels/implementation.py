# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Which implementation of an operation a program gets.

Each operation has up to five forms of one meaning. ``"auto"`` is decided where the program is *lowered*: one exported
on a CPU for a TPU holds the TPU kernel. A named form is never replaced by another: where it cannot run it raises.

| name | what runs |
|---|---|
| auto | on TPU and NVIDIA GPUs the kernel where it takes the shape, by a static rule, else XLA; XLA elsewhere |
| xla | plain XLA on every platform |
| tpu | the Mosaic kernel; lowering it for another platform raises |
| gpu | the Triton kernel; lowering it for another platform raises |
| interpret | the TPU kernel in Pallas' interpreter, on any platform: slow, for checking |
"""

from collections.abc import Callable
from typing import Any

from jax import lax

IMPLEMENTATIONS = ("auto", "xla", "tpu", "gpu", "interpret")


def dispatch(
    implementation: str,
    arrays: tuple,
    *,
    cpu: Callable,
    xla: Callable,
    tpu: Callable | str,
    gpu: Callable | str,
    interpret: Callable | str,
) -> Any:
    """Calls one form of an operation with ``arrays``.

    Args:
        implementation: one of `IMPLEMENTATIONS`.
        arrays: positional arguments of every form, pytrees of arrays.
        cpu: plain XLA in the form that suits a CPU.
        xla: plain XLA for other platforms.
        tpu: the TPU kernel, or the reason why it does not take these shapes.
        gpu: the same for NVIDIA GPUs.
        interpret: the TPU kernel interpreted, or the reason why not.

    Raises:
        ValueError: the name is not known, or the named form does not take these shapes.
    """
    if implementation == "auto":
        kernels = {"tpu": tpu, "cuda": gpu}
        usable = {platform: kernel for platform, kernel in kernels.items() if not isinstance(kernel, str)}
        return lax.platform_dependent(*arrays, cpu=cpu, default=xla, **usable)
    if implementation == "xla":
        return lax.platform_dependent(*arrays, cpu=cpu, default=xla)
    named = {"tpu": tpu, "gpu": gpu, "interpret": interpret}
    if implementation not in named:
        raise ValueError(f"implementation={implementation!r} must be one of {', '.join(IMPLEMENTATIONS)}")
    kernel = named[implementation]
    if isinstance(kernel, str):
        raise ValueError(f"implementation={implementation!r} cannot run here: {kernel}; 'auto' or 'xla' can")
    return kernel(*arrays)
