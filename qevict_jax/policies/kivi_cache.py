# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KIVI's parameters, its cache and what it costs; `policies.kivi` works on it."""

from dataclasses import dataclass
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int, Shaped

from pallas_kernels.float_bits import stored_dtype
from pallas_kernels.packing import BITS
from qevict_jax.cache import nbytes
from qevict_jax.checks import check_integer, check_one_of
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.quantizers.code_rows import row_planes
from qevict_jax.quantizers.grouped import GroupedTokens, channel_groups
from qevict_jax.types import KVShape, QEvictError

_EVENT_STEPS = 8


@dataclass(frozen=True)
class Options:
    """Parameters of KIVI.

    Attributes:
        bits: bits of a code.
        group_size: g, tokens of a key group and channels of a value group.
        residual: R, a multiple of g: no more than R - 1 tokens are in full precision after an event.
    """

    bits: int = 2
    group_size: int = 32
    residual: int = 128

    def __post_init__(self) -> None:
        check_one_of("bits", self.bits, BITS)
        check_integer("group_size", self.group_size, 1)
        check_integer("residual", self.residual, 1)
        if self.residual % self.group_size:
            raise QEvictError(f"residual={self.residual} must be a multiple of group_size={self.group_size}")


@dataclass(frozen=True)
class KiviLayout:
    """Static numbers of a cache.

    Attributes:
        shape: layers, heads, head_dim and dtype.
        options: parameters.
        ring: slots for tokens in full precision.
        groups: key groups there is room for.
    """

    shape: KVShape
    options: Options
    ring: int
    groups: int

    @property
    def event_steps(self) -> int:
        """Decode steps between events; at most one group becomes ready in that time."""
        return min(_EVENT_STEPS, self.options.group_size)

    def ready(self, length: Int[Array, "B"]) -> Int[Array, "B"]:
        """Groups of a row of this length that should be codes."""
        keep = self.options.residual - self.options.group_size
        return jnp.maximum(0, (length - keep) // self.options.group_size)


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class KiviCache:
    """Group j holds positions ``j*g .. j*g + g - 1``, in code slots of the same numbers.

    Attributes:
        ring: ``[L, B, ring, K*2*D]`` (`policies.recent_ring`).
        codes: ``[L, B, ...]``, or None if no group can ever age.
        length: n, tokens seen by each row.
        aged: groups of each row that are codes.
        layout: the static numbers.
    """

    ring: Shaped[Array, "L B ring K_2_D"]
    codes: GroupedTokens | None
    length: Int[Array, "B"]
    aged: Int[Array, "B"]
    layout: KiviLayout = struct.field(pytree_node=False)


def abstract_cache(layout: KiviLayout, batch: int) -> KiviCache:
    """The cache as shapes and dtypes."""
    shape, options = layout.shape, layout.options
    heads, head_dim = shape.kv_heads, shape.head_dim

    def array(dtype: Any, *axes: int) -> Any:
        return jax.ShapeDtypeStruct((shape.layers, batch, *axes), dtype)

    codes = None
    if layout.groups:
        slots = layout.groups * options.group_size
        codes = GroupedTokens(
            codes=tuple(array(dtype, slots, heads * 2 * words) for words, dtype in row_planes(options.bits, head_dim)),
            key_params=array(jnp.uint16, layout.groups, 2 * heads * head_dim),
            value_params=array(jnp.uint16, slots, 2 * heads * channel_groups(options.group_size, head_dim)),
        )
    per_row: Any = jax.ShapeDtypeStruct((batch,), jnp.int32)
    ring = array(stored_dtype(shape.dtype), layout.ring, heads * 2 * head_dim)
    return KiviCache(ring, codes, per_row, per_row, layout)


def plan_kivi(shape: KVShape, config: CacheConfig, options: Options, total_len: int, multiple: int) -> CachePlan:
    """Room for ``total_len`` tokens; the operating point decides the bytes."""
    groups = max(0, (total_len - options.residual) // options.group_size + 1)
    ring = min(total_len, options.residual + min(_EVENT_STEPS, options.group_size))
    layout = KiviLayout(shape, options, -(-ring // multiple) * multiple, groups)
    cache = abstract_cache(layout, 1)
    codes = cache.codes
    parts = (
        ("ring", nbytes(cache.ring)),
        ("codes", nbytes(codes.codes) if codes else 0),
        ("key parameters", nbytes(codes.key_params) if codes else 0),
        ("value parameters", nbytes(codes.value_params) if codes else 0),
        ("length", nbytes((cache.length, cache.aged))),
    )
    capacities = (("ring of recent tokens", layout.ring), (f"INT{options.bits} tokens", groups * options.group_size))
    full_bytes = shape.bytes_per_token * total_len
    return CachePlan(config, total_len, layout, nbytes(cache), full_bytes, parts, capacities)
