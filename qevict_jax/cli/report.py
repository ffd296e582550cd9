# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Figures for people."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qevict_jax.generate import Result


def size(count: int) -> str:
    """Bytes in decimal units, as device makers count them."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count} B"


def summary(result: "Result") -> str:
    """One line about an answer: bytes and times."""
    return (
        f"[{result.prompt_tokens} + {len(result.tokens)} tokens, KV cache {size(result.kv_bytes)} of "
        f"{size(result.full_kv_bytes)} ({result.ratio_allocated:.1%}), first token after "
        f"{result.time_to_first_token:.2f} s, then {1e3 * result.time_per_token:.0f} ms per token, compiled in "
        f"{result.compile_time:.1f} s]"
    )
