# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Words that the whole library shares: axis letters, the error for users, and the shape of a KV cache.

Axis letters, used in every signature, einsum and comment:

    L  layers                  H  query heads              F  full-precision window slots
    B  sequences               K  KV heads                 Q  quantized window slots
    T  query tokens            G  query heads per KV head  W  tokens in a window (Omega in the paper)
    S  key tokens              D  head_dim
    E  model width             V  vocabulary
"""

from dataclasses import dataclass, field

import jax.numpy as jnp


class QEvictError(ValueError):
    """Something a user asked for cannot be done; the message says what was wrong and what would work."""


class BudgetError(QEvictError):
    """A cache does not fit its budget; the message names the smallest that works."""


@dataclass(frozen=True)
class KVShape:
    """What one cached token costs: the four facts about a model that the byte accounting needs, and where it lies.

    Attributes:
        layers: L.
        kv_heads: K.
        head_dim: D.
        dtype: name of the dtype in which keys and values are stored, e.g. ``"bfloat16"``.
        checkpoint: directory of the model, where a policy finds what was calibrated for it; "" if there is none. Two
            shapes may differ in it and be equal.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    checkpoint: str = field(default="", compare=False)

    @property
    def itemsize(self) -> int:
        """Bytes of one stored key or value element."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in a full cache: eq. 7 of the paper with S = 1."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.itemsize
