# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Query rows on TPU: which sublane holds which query head and query token.

The T*G queries that share a KV head stand in rows of a tile. A vector register has 8 rows, so several heads share a
tile while their queries fit; a dot with one head's keys then has zeros in the rows of the others.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

SUBLANES = 8


@dataclass(frozen=True)
class QueryRows:
    """``tiles`` tiles of ``rows`` query rows, ``tile_heads`` KV heads a tile, ``stride`` rows a head."""

    kv_heads: int
    groups: int
    tokens: int

    @property
    def stride(self) -> int:
        """Rows of one head: a power of two below 8, else a multiple of 8."""
        used = self.groups * self.tokens
        return 1 << (used - 1).bit_length() if used < SUBLANES else -(-used // SUBLANES) * SUBLANES

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return max(SUBLANES, self.stride)

    @property
    def tile_heads(self) -> int:
        """KV heads of a tile; the last tile may have fewer."""
        return self.rows // self.stride

    @property
    def tiles(self) -> int:
        """Tiles for all heads."""
        return -(-self.kv_heads // self.tile_heads)

    @property
    def total(self) -> int:
        """Rows of all tiles."""
        return self.tiles * self.rows

    def heads(self, tile: int) -> range:
        """KV heads of a tile."""
        return range(tile * self.tile_heads, min(self.kv_heads, (tile + 1) * self.tile_heads))

    def arrange(self, x: Shaped[Array, "B T H *c"]) -> Shaped[Array, "B rows *c"]:
        """One entry a query head and token into rows, zeros in rows of padding."""
        batch, tokens, _, *rest = x.shape
        x = jnp.moveaxis(x.reshape(batch, tokens, self.kv_heads, self.groups, *rest), 1, 2)
        x = x.reshape(batch, self.kv_heads, tokens * self.groups, *rest)
        heads, rows = self.tiles * self.tile_heads - self.kv_heads, self.stride - tokens * self.groups
        x = jnp.pad(x, ((0, 0), (0, heads), (0, rows), *((0, 0) for _ in rest)))
        return x.reshape(batch, self.total, *rest)

    def restore(self, x: Float[Array, "B rows D"]) -> Float[Array, "B T H D"]:
        """Inverse of `arrange`."""
        batch, _, channels = x.shape
        x = x.reshape(batch, self.tiles * self.tile_heads, self.stride, channels)
        x = x[:, : self.kv_heads, : self.tokens * self.groups]
        x = x.reshape(batch, self.kv_heads, self.tokens, self.groups, channels)
        return jnp.moveaxis(x, 2, 1).reshape(batch, self.tokens, self.kv_heads * self.groups, channels)
