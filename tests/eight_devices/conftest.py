# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""These tests need a process with eight devices, which `tests/test_eight_devices.py` starts."""

import os
from functools import partialmethod

import jax
import pytest

from tests.quick_compile import QUICK
from tests.test_eight_devices import EIGHT_DEVICES

if EIGHT_DEVICES not in os.environ.get("XLA_FLAGS", ""):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def quick():
    """Programs compile with less effort."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", partialmethod(jax.stages.Lowered.compile, compiler_options=QUICK))
        yield
