# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Every static number of the TPU kernel, and the scratch memory that follows from them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.packing import planes
from pallas_kernels.quantized_windows import scalars_per_head
from pallas_kernels.tiered_decode_attention.tpu_parts import slots
from pallas_kernels.tiered_decode_attention.tpu_rows import SUBLANES, QueryRows
from pallas_kernels.tiered_decode_attention.tpu_tiles import LANES, tiles_of
from pallas_kernels.tiered_decode_attention.tpu_words import PAIRS, phases, word_count

_BLOCK_TOKENS = 256  # of full windows in a step of the grid


@dataclass(frozen=True)
class KernelShape:
    """Axis letters as everywhere; a tier of capacity 0 has no operand.

    Attributes:
        rows: where queries stand.
        local_rows: rows of ``local``.
        scalar_row: P.
        exact: multiply in float32 (as three bfloat16 parts) rather than in bfloat16.
        bias: there is a key bias.
        interpret: run in the interpreter.
    """

    rows: QueryRows
    head_dim: int
    window: int
    bits: int
    param_bits: int
    kv_dtype: str
    local_rows: int
    full_slots: int
    code_slots: int
    scalar_row: int
    exact: bool
    bias: bool
    interpret: bool

    @property
    def query_parts(self) -> int:
        """bfloat16 parts of queries and probabilities: two cost nothing, since 8 rows fill half a register."""
        return 3 if self.exact else 2

    @property
    def stacked_rows(self) -> int:
        """Rows of all parts of a tile of queries."""
        return slots(self.query_parts) * self.rows.rows

    @property
    def key_parts(self) -> int:
        """bfloat16 parts of a dequantized key."""
        return 3 if self.exact else 1

    @property
    def phases(self) -> int:
        """Of the order in which the windows of a block are taken."""
        return phases(self.bits, self.window)

    @property
    def block_windows(self) -> int:
        """Quantized windows in a step of the grid."""
        least = LANES * self.phases
        return max(least, min(2 * LANES, -(-self.code_slots // least) * least))

    @property
    def sub_blocks(self) -> int:
        """Groups of 128 windows, one a lane, in a block."""
        return self.block_windows // LANES

    @property
    def blocks(self) -> int:
        """Steps of the grid over quantized windows."""
        return -(-self.code_slots // self.block_windows)

    @property
    def full_block(self) -> int:
        """Full windows in a step of the grid."""
        return max(1, _BLOCK_TOKENS // self.window)

    @property
    def full_blocks(self) -> int:
        """Steps of the grid over full windows."""
        return -(-self.full_slots // self.full_block)

    @property
    def steps(self) -> int:
        """Steps of the grid for a sequence; the first does sinks and ring."""
        return 1 + self.full_blocks + self.blocks

    @property
    def query_tokens(self) -> int:
        """Offsets in a window that queries are turned back by."""
        return self.window if self.code_slots else 1

    @property
    def numbers(self) -> int:
        """X, numbers of a head in ``scalars``."""
        return scalars_per_head(self.window, self.param_bits)

    def loop(self, count: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        """``lax.fori_loop``, unrolled for a TPU, whose scheduler then has more to choose from."""
        if self.interpret:
            return lax.fori_loop(0, count, body, carry)
        for index in range(count):
            carry = body(index, carry)
        return carry

    @property
    def doubled(self) -> bool:
        """Codes are kept twice side by side, because D lanes are no whole registers."""
        return self.head_dim % LANES != 0

    def scratch(self) -> dict:
        """Scratch memory by name. Everything that two tiles of heads in turn write is there twice."""
        rows, channels = self.rows, self.head_dim
        held = 2 * rows.tile_heads
        windows, pairs = self.block_windows, self.block_windows // 2
        f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
        made = {
            "peak": pltpu.VMEM((rows.total, LANES), f32),
            "total": pltpu.VMEM((rows.total, LANES), f32),
            "constant": pltpu.VMEM((rows.total, LANES), f32),
            "mixed": pltpu.VMEM((rows.total, channels), f32),
            "queries": pltpu.VMEM((rows.kv_heads, self.query_tokens, self.stacked_rows, 2 * channels), bf16),
            "local_weights": pltpu.VMEM((rows.total, self.local_rows), f32),
            "local_peak": pltpu.VMEM((rows.total, LANES), f32),
        }
        if self.full_slots:
            made["full_weights"] = pltpu.VMEM((self.full_blocks, rows.total, self.full_block), f32)
            made["full_peak"] = pltpu.VMEM((self.full_blocks, rows.total, LANES), f32)
        if self.code_slots:
            words = word_count(self.bits, self.window)
            key_tiles = tiles_of(2 * channels if self.doubled else channels)
            made |= {
                "weights": pltpu.VMEM((self.blocks, rows.total, windows), f32),
                "block_peak": pltpu.VMEM((self.blocks, rows.total, LANES), f32),
                "scores": pltpu.VMEM((2, self.window, rows.rows, windows), f32),
                "shifts": pltpu.VMEM((2, self.window, rows.rows, LANES), f32),
                "trig": pltpu.VMEM((tiles_of(2 * channels), windows, LANES), f32),
                "numbers": pltpu.VMEM((tiles_of(self.scalar_row), pairs, LANES), i32),
                "selector": pltpu.VMEM((2, rows.tiles * self.window * SUBLANES, self.scalar_row), bf16),
                "value_scale": pltpu.VMEM((rows.tiles, self.window, SUBLANES, windows), f32),
                "value_offset": pltpu.VMEM((rows.tiles, self.window, SUBLANES, windows), f32),
                "params": pltpu.VMEM((held, tiles_of(channels), windows, LANES), i32),
                "key_words": pltpu.VMEM((held, words, key_tiles, pairs, LANES), i32),
                "value_words": pltpu.VMEM((held, words, tiles_of(channels), pairs, LANES), i32),
            }
            for index, _ in enumerate(planes(self.bits, self.window)):
                made[f"held{index}"] = pltpu.VMEM((held, tiles_of(channels), windows, LANES), i32)
            if self.bias:
                made["cos_sin"] = pltpu.VMEM((tiles_of(channels), windows, LANES), f32)
                made["bias_rows"] = pltpu.VMEM((rows.tiles, self.window, self.stacked_rows, channels), bf16)
        assert pairs % PAIRS == 0
        return made
