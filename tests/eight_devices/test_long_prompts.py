# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts in chunks on a mesh: devices add up what each makes of a chunk, and read what they read in one piece."""

import numpy as np
import pytest

from qevict_jax import CacheConfig
from qevict_jax.engine import Engine
from qevict_jax.models import token_chunks
from tests.eight_devices.models import model_on


@pytest.mark.slow
def test_a_prompt_in_chunks(monkeypatch):
    prompts = [list(range(1, 61)), list(range(5, 45))]

    def logits(max_context: int) -> np.ndarray:
        # a context of its own: programs of the same shapes would not be traced again
        engine = Engine(model_on("data=2,model=4"), CacheConfig.full("float32"), slots=2, max_context=max_context)
        return np.asarray(engine.read(prompts, size=64)[0])

    whole = logits(96)
    monkeypatch.setattr(token_chunks, "CHUNK", 24)
    monkeypatch.setattr(token_chunks, "TILE", 8)
    np.testing.assert_allclose(logits(104), whole, rtol=0, atol=1e-5)
