# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KVQuant's parameters, its cache and what it costs; `policies.kvquant` works on it."""

from dataclasses import dataclass
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int, Shaped

from pallas_kernels.float_bits import stored_dtype
from pallas_kernels.packing import BITS
from qevict_jax.cache import nbytes
from qevict_jax.checks import check_integer, check_number, check_one_of
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.quantizers.code_rows import row_planes
from qevict_jax.quantizers.nuq import NuqTokens, outlier_count
from qevict_jax.types import KVShape, QEvictError


@dataclass(frozen=True)
class Options:
    """Parameters of KVQuant.

    Attributes:
        bits: bits of a code.
        outliers: share of the keys, and of the values, of a token that is kept exactly; that of the calibration.
        sink: first tokens of a sequence, kept in full precision.
        calibration: file that ``qevict calibrate`` wrote; by default the one in the directory of the model.
    """

    bits: int = 3
    outliers: float = 0.01
    sink: int = 1
    calibration: str = ""

    def __post_init__(self) -> None:
        check_one_of("bits", self.bits, BITS)
        check_number("outliers", self.outliers, 0, 0.2)
        check_integer("sink", self.sink, 0)


@dataclass(frozen=True)
class KVQuantLayout:
    """Static numbers of a cache.

    Attributes:
        shape: layers, heads, head_dim and dtype.
        bits: bits of a code.
        outliers: keys, and values, of a token kept exactly.
        sink: tokens in full precision.
        slots: tokens kept as codes.
    """

    shape: KVShape
    bits: int
    outliers: int
    sink: int
    slots: int


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class KVQuantCache:
    """Position p < sink lies in row p of ``sinks``, others in code slot ``p - sink``.

    Attributes:
        sinks: ``[L, B, sink, K*2*D]``, keys after RoPE; None if there are none.
        codes: ``[L, B, S, ...]``, keys before RoPE and bias.
        length: n, tokens seen by each row.
        layout: the static numbers.
    """

    sinks: Shaped[Array, "L B sink K_2_D"] | None
    codes: NuqTokens
    length: Int[Array, "B"]
    layout: KVQuantLayout = struct.field(pytree_node=False)


def abstract_cache(layout: KVQuantLayout, batch: int) -> KVQuantCache:
    """The cache as shapes and dtypes."""
    shape = layout.shape
    heads, head_dim = shape.kv_heads, shape.head_dim

    def array(dtype: Any, *axes: int) -> Any:
        return jax.ShapeDtypeStruct((shape.layers, batch, *axes), dtype)

    codes = NuqTokens(
        codes=tuple(
            array(dtype, layout.slots, heads * 2 * words) for words, dtype in row_planes(layout.bits, head_dim)
        ),
        numbers=array(jnp.uint16, layout.slots, 2 + 4 * layout.outliers),
    )
    sinks = array(stored_dtype(shape.dtype), layout.sink, heads * 2 * head_dim) if layout.sink else None
    per_row: Any = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return KVQuantCache(sinks, codes, per_row, layout)


def plan_kvquant(shape: KVShape, config: CacheConfig, options: Options, total_len: int, multiple: int) -> CachePlan:
    """Room for ``total_len`` tokens; the operating point decides the bytes. Needs no calibration."""
    channels = shape.kv_heads * shape.head_dim
    if channels > 1 << 16:
        raise QEvictError(f"kvquant indexes the channels of a token with 16 bits; {channels} are too many")
    sink = min(options.sink, total_len)
    slots = max(1, -(-(total_len - sink) // multiple) * multiple)
    layout = KVQuantLayout(shape, options.bits, outlier_count(options.outliers, channels), sink, slots)
    cache = abstract_cache(layout, 1)
    exact = shape.layers * slots * 8 * layout.outliers  # 16-bit values and 16-bit indices of keys and of values
    parts = (
        ("sinks", nbytes(cache.sinks)),
        ("codes", nbytes(cache.codes.codes)),
        ("value parameters", nbytes(cache.codes.numbers) - exact),
        ("outliers", exact),
        ("length", nbytes(cache.length)),
    )
    capacities = (("sink tokens", sink), (f"nuq{options.bits} tokens", slots), ("exact per token", 2 * layout.outliers))
    return CachePlan(config, total_len, layout, nbytes(cache), shape.bytes_per_token * total_len, parts, capacities)
