# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The decode attention kernel on a GPU: is it right, and how much of the memory's bandwidth does it reach?

    pip install -e ".[cuda]" && python -m benchmarks.gpu_decode

First the kernel against its meaning in XLA, over the table of shapes. Then times: the kernel over compressed caches of
32,768 tokens, attention in bfloat16 over the full cache of as many tokens (`jax.nn.dot_product_attention`), and a plain
copy, whose bandwidth is what the chip gives. All layers of a stack in one program, so that nothing stays in the caches
of the chip. Prints one JSON line. Needs neither flax nor the library.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.tiered_decode_attention import base, pallas_gpu
from pallas_kernels.tiered_decode_attention.arg_specs import MODEL_SPECS, SPECS, DecodeSpec, random_args, static_args

_LAYERS = 8  # enough that a stack is larger than the second-level cache
_COPY = 1 << 30  # bytes


def errors(names: Iterable[str], interpret: bool) -> dict[str, float]:
    """Largest difference of the kernel's output to the XLA form's, over the largest output, by shape."""
    found = {}
    for name in names:
        spec = SPECS[name]
        args, static = random_args(spec), static_args(spec)
        kernel = partial(pallas_gpu.tiered_decode_attention, **static, interpret=interpret)
        with jax.default_matmul_precision("highest"):
            wanted, wanted_mass = jax.jit(partial(base.tiered_decode_attention, **static))(*args)
        out, mass = jax.jit(kernel)(*args)
        valid = np.asarray(args[2])
        size = max(1e-6, float(jnp.abs(wanted[valid]).max()))
        pairs = zip(jax.tree.leaves(mass), jax.tree.leaves(wanted_mass), strict=True)
        off = [float(jnp.abs(out - wanted)[valid].max()) / size, *(float(jnp.abs(a - b).max()) for a, b in pairs)]
        found[name] = float(np.max(off))  # NaN if there is any
    return found


def seconds(function: Callable, *args: Any, repeats: int) -> float:
    """Shortest of some runs after one that compiles."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return min(times)


def copy_bandwidth(size: int, repeats: int) -> float:
    """Bytes read and written per second by a copy."""
    source = jnp.zeros(size // 4, jnp.uint32)
    return 2 * size / seconds(jax.jit(lambda x: x ^ jnp.uint32(1)), source, repeats=repeats)


def time_kernel(spec: DecodeSpec, repeats: int, interpret: bool) -> dict[str, float]:
    """Milliseconds a layer and bytes a second, counting what lies in the cache."""
    q, positions, valid, tiers, _, inv_freq, bias = random_args(spec)
    kernel = partial(pallas_gpu.tiered_decode_attention, **static_args(spec), interpret=interpret)

    @jax.jit
    def all_layers(q, tiers):
        def one(layer, carry):
            out, mass = kernel(q + carry[0] * 0.0, positions, valid, tiers, layer, inv_freq, bias)
            return carry[0] + out, carry[1] + sum(x.sum() for x in jax.tree.leaves(mass))

        return lax.fori_loop(0, spec.L, one, (jnp.zeros_like(q), jnp.float32(0.0)))

    each = seconds(all_layers, q, tiers, repeats=repeats) / spec.L
    stacks = jax.tree.leaves((tiers.local, tiers.full, tiers.quantized))
    size = sum(x.nbytes for x in stacks) / spec.L
    return {"ms": each * 1e3, "bytes": size, "bytes_per_second": size / each}


def time_full(spec: DecodeSpec, tokens: int, repeats: int) -> dict[str, float]:
    """The same for attention over all tokens in bfloat16."""
    shape = (spec.L, spec.B, tokens, spec.K, spec.D)
    q = jnp.ones((spec.B, spec.T, spec.K * spec.G, spec.D), jnp.bfloat16)
    keys, values = (jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i in (0, 1))

    @jax.jit
    def all_layers(q, keys, values):
        def one(carry, layer):
            return carry + jax.nn.dot_product_attention(q + carry * 0, *layer), None

        return lax.scan(one, jnp.zeros_like(q), (keys, values))[0]

    with jax.numpy_dtype_promotion("standard"):  # which the library function relies on
        each = seconds(all_layers, q, keys, values, repeats=repeats) / spec.L
    size = (keys.nbytes + values.nbytes) / spec.L
    return {"ms": each * 1e3, "bytes": size, "bytes_per_second": size / each}


def measure(shapes: dict[str, DecodeSpec], checked: Iterable[str], tokens: int, copy: int, interpret: bool) -> dict:
    """Everything, as one dictionary."""
    repeats = 1 if interpret else 20
    bandwidth = copy_bandwidth(copy, repeats)
    timed = {}
    for name, spec in shapes.items():
        kernel = time_kernel(spec, repeats, interpret)
        full = time_full(spec, tokens, repeats)
        timed[name] = {
            "kernel": kernel,
            "full_bfloat16": full,
            "fraction_of_copy": kernel["bytes_per_second"] / bandwidth,
            "full_fraction_of_copy": full["bytes_per_second"] / bandwidth,
            "times_as_fast": full["ms"] / kernel["ms"],
        }
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "implementation": "interpret" if interpret else "gpu",
        "copy_bytes_per_second": bandwidth,
        "tokens": tokens,
        "errors": errors(checked, interpret),
        "shapes": timed,
    }


def main() -> None:
    """Parses the command line and prints the measurement."""
    parser = argparse.ArgumentParser(description="The decode attention kernel on a GPU.")
    parser.add_argument("--implementation", choices=["gpu", "interpret"], default="gpu")
    parser.add_argument("--shapes", nargs="*", default=["llama_tuned", "llama_int2", "llama_paper", "qwen_tuned"])
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of the full cache")
    args = parser.parse_args()
    if args.implementation == "gpu":
        checked = [name for name, spec in SPECS.items() if spec.D >= 64]  # smaller heads are for interpret mode
        shapes = {name: replace(MODEL_SPECS[name], L=_LAYERS) for name in args.shapes}
        print(json.dumps(measure(shapes, checked, args.tokens, _COPY, interpret=False)))
    else:
        shapes = {"no_full": SPECS["no_full"]}
        print(json.dumps(measure(shapes, ["no_full"], args.tokens, 1 << 20, interpret=True)))


if __name__ == "__main__":
    main()
