# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The quantized tier out of sight: attention changes, and only through it."""

import numpy as np

from qevict_jax.diagnostics.hidden_tier import HiddenTier
from qevict_jax.policies.base import Tier
from tests.diagnostics.tiny_run import CONFIG, run


def test_hidden_windows_receive_nothing_and_predictions_change():
    seen, hidden = run(), run(CONFIG, HiddenTier)
    first = CONFIG.sink + CONFIG.window * np.arange(seen.window_mass.shape[-1])
    at_start = seen.placement[0, :, 0][:, first] == Tier.QUANTIZED
    assert at_start.any()
    assert (seen.window_mass[0][at_start] > 0).all() and not hidden.window_mass[0][at_start].any()
    # what is left shares the attention that they had
    others = seen.placement[0, :, 0][:, first] == Tier.FULL
    assert hidden.window_mass[0][0][others[0]].sum() > seen.window_mass[0][0][others[0]].sum()
    assert np.abs(hidden.nll - seen.nll).max() > 0.01


def test_hidden_counts_as_evicted():
    seen, hidden = run(), run(CONFIG, HiddenTier)
    expected = np.where(seen.placement[0] == Tier.QUANTIZED, Tier.EVICTED, seen.placement[0])
    np.testing.assert_array_equal(hidden.placement[0], expected)
    assert not (hidden.placement == Tier.QUANTIZED).any()
