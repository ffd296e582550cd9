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
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

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
        tpu, gpu = (xla if isinstance(kernel, str) else kernel for kernel in (tpu, gpu))
        return _by_platform(_Forms(cpu=cpu, tpu=tpu, cuda=gpu, default=xla), arrays)
    if implementation == "xla":
        return lax.platform_dependent(*arrays, cpu=cpu, default=xla)
    named = {"tpu": tpu, "gpu": gpu, "interpret": interpret}
    if implementation not in named:
        raise ValueError(f"implementation={implementation!r} must be one of {', '.join(IMPLEMENTATIONS)}")
    kernel = named[implementation]
    if isinstance(kernel, str):
        raise ValueError(f"implementation={implementation!r} cannot run here: {kernel}; 'auto' or 'xla' can")
    return kernel(*arrays)


class _Forms(NamedTuple):
    cpu: Callable
    tpu: Callable
    cuda: Callable
    default: Callable


def _by_platform(forms: _Forms, arrays: tuple) -> Any:
    """`lax.platform_dependent` that traces a form only where a program is lowered for its platform.

    Tracing a kernel takes up to a second, and a CPU has no use for it. There is no rule for `jax.vmap` and `jax.grad`;
    ``"xla"`` has them.
    """
    flat, tree = jax.tree.flatten(arrays)
    shapes, out_tree = jax.tree.flatten(jax.eval_shape(forms.default, *arrays))
    results = tuple((x.shape, x.dtype) for x in shapes)
    return jax.tree.unflatten(out_tree, _form_of_platform.bind(*flat, forms=forms, tree=tree, results=results))


_form_of_platform = Primitive("form_of_platform")
_form_of_platform.multiple_results = True


@_form_of_platform.def_impl
def _run(*flat: Any, **params: Any) -> Any:
    return jax.jit(partial(_form_of_platform.bind, **params))(*flat)


@_form_of_platform.def_abstract_eval
def _abstract(*flat: Any, forms: _Forms, tree: Any, results: tuple) -> list:
    return [flat[0].update(shape=shape, dtype=dtype, weak_type=False) for shape, dtype in results]


def _lower(platform: str, context: Any, *flat: Any, forms: _Forms, tree: Any, results: tuple) -> Any:
    def form(*flat: Any) -> list:
        return jax.tree.leaves(getattr(forms, platform)(*jax.tree.unflatten(tree, flat)))

    return mlir.lower_fun(form, multiple_results=True)(context, *flat)


mlir.register_lowering(_form_of_platform, partial(_lower, "default"))
for _platform in ("cpu", "tpu", "cuda"):
    mlir.register_lowering(_form_of_platform, partial(_lower, _platform), platform=_platform)
