# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""For every test: strict dtypes (an operation between two must say which it means), and room for programs."""

import gc
from pathlib import Path

import jax
import pytest

from qevict_jax import decoding
from tests import recording

jax.config.update("jax_numpy_dtype_promotion", "strict")

_MAPS = Path("/proc/self/maps")
_MANY = 30_000  # of the 65,530 that Linux allows a process; a compiled program takes several, one too many is ENOMEM


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Lets compiled programs go after a file that left very many memory maps behind."""
    yield
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MANY:
        decoding._executable.cache_clear()
        recording.driver.cache_clear()  # its programs may be traced once: after this, new ones are
        jax.clear_caches()
        gc.collect()
