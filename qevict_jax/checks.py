# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a setting's value where it is given; the message says what would work."""

import math
from collections.abc import Sequence

from qevict_jax.types import QEvictError


def check_one_of(name: str, value: object, allowed: Sequence) -> None:
    """Raises `QEvictError` unless the value is one of those allowed; a bool stands for no number."""
    if (isinstance(value, bool) and not isinstance(allowed[0], bool)) or value not in allowed:
        raise QEvictError(f"{name}={value!r} must be one of {', '.join(map(str, allowed))}")


def check_integer(name: str, value: object, low: int) -> None:
    """Raises `QEvictError` unless the value is an integer of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise QEvictError(f"{name}={value!r} must be an integer >= {low}")


def check_number(name: str, value: object, low: int | float = -math.inf, high: int | float = math.inf) -> None:
    """Raises `QEvictError` unless the value is a number in ``low .. high``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise QEvictError(f"{name}={value!r} must be a number")
    if not low <= value <= high:
        raise QEvictError(f"{name}={value} must lie in {low:g}..{high:g}")
