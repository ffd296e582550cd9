# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What the tables of TPU memory are made of: a program that fits, one that does not, and one on a slice."""

from dataclasses import replace

from benchmarks.tpu_memory import Question, memory
from qevict_jax.config import CacheConfig
from tests.tpu.in_process import NEEDS_LIBTPU

pytestmark = NEEDS_LIBTPU


def test_memory_of_programs():
    """Llama-3.1-8B with 64 sequences of 32K tokens: 290 GB; on four chips each has a fourth of weights and cache."""
    asked = Question("token", "llama-3.1-8b", CacheConfig.full(), 32768, 64, "v6e:2x2")
    too_large = memory(asked)
    assert not too_large.fits
    assert 31 * 2**30 < (too_large.hbm_bytes or 0) <= 32 * 2**30
    one, four = memory(replace(asked, batch=2)), memory(replace(asked, batch=2, chips=4))
    assert one.fits and four.fits
    assert one.peak_bytes > one.weight_bytes + one.cache_bytes
    for name, replicated in (("weight_bytes", 2 * 33 * 4096 * 2), ("cache_bytes", 4 * 2), ("full_cache_bytes", 0)):
        whole, part = getattr(one, name), getattr(four, name)
        assert whole <= 4 * part <= whole + 3 * replicated, name
