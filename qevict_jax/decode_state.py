# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What changes while a batch decodes."""

from typing import Any, NamedTuple, no_type_check

from flax import struct
from jaxtyping import Array, Bool, Float, Int

from qevict_jax.sampling import Numbers


@no_type_check  # also made of shapes, where a program is compiled
@struct.dataclass
class DecodeState:
    """Everything that changes while a batch decodes; donated from step to step.

    Attributes:
        cache: the KV cache.
        last: the newest token of each row, drawn but not yet fed.
        tokens: ``[B, M]`` drawn tokens.
        log_probs: ``[B, M]`` float32 log-probabilities of them under the model, or None.
        count: how many of them there are.
        active: rows that go on.
        limit: tokens each row may draw.
    """

    cache: Any
    last: Int[Array, "B"]
    tokens: Int[Array, "B M"]
    log_probs: Float[Array, "B M"] | None
    count: Int[Array, "B"]
    active: Bool[Array, "B"]
    limit: Int[Array, "B"]


class Rows(NamedTuple):
    """Rows that decode: a running batch, or some that may join one."""

    state: DecodeState
    numbers: Numbers
