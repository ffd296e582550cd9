# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Finding the largest program that fits, without a compiler."""

import pytest

from benchmarks.tpu_limits import limit
from benchmarks.tpu_memory import Memory

HBM, WEIGHTS = 1000, 400


@pytest.mark.parametrize("padding", [0, 1, 7])
@pytest.mark.parametrize("row", [1.03, 1.7, 30, 299, 301, 600])
def test_the_largest_that_fits(row, padding):
    """Memory in steps of a padding, with a part of its own below which fragments do not count."""
    asked = []

    def measure(n: int) -> Memory:
        asked.append(n)
        peak = WEIGHTS + int(n * row) + padding * (n // 5)
        return Memory(peak_bytes=peak, weight_bytes=WEIGHTS) if peak + padding <= HBM else Memory(hbm_bytes=HBM)

    for first in (1, 8, 1000):
        asked.clear()
        count, found = limit(measure, HBM, first)
        assert len(asked) < 40
        assert (count > 0) is (row + padding <= HBM - WEIGHTS)
        assert not measure(count + 1).fits
        assert found == (measure(count) if count else None)
