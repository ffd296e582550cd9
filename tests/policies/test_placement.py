# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`Policy.placement` against what lies in the slots, for every policy of the table."""

import jax
import numpy as np
import pytest

from qevict_jax.policies.base import Tier
from tests.policy_table import CASES, TIERED
from tests.recording import driver, recording
from tests.tier_contents import local_tokens, slots, window_positions


@pytest.mark.parametrize("name", ["full", "paper_w4_mean", "exact", "no_sinks"])
def test_every_position_has_the_tier_of_its_slot(name):
    policy, moment = driver(name).policy, recording(name)[-1]
    placement = np.asarray(policy.placement(jax.tree.map(jax.numpy.asarray, moment.cache)))
    layers, batch, heads, size = placement.shape
    assert heads == 1 and size == CASES[name].total_len and placement.dtype == np.int8
    assert set(Tier(x) for x in np.unique(placement)) >= {Tier.UNSEEN, Tier.FULL}
    for layer in range(layers):
        for row in range(batch):
            np.testing.assert_array_equal(placement[layer, row, 0], _expected(name, moment.cache, layer, row, size))


def _expected(name, cache, layer, row, size):
    length = int(cache.length[row])
    tier = np.full(size, Tier.UNSEEN)
    if name not in TIERED:
        tier[:length] = Tier.FULL
        return tier
    tier[:length] = Tier.EVICTED
    local = local_tokens(cache, row)
    tier[local] = np.where(local < cache.layout.sink, Tier.SINK, Tier.RECENT)
    found = slots(cache, layer, row)
    for windows, where in ((found.full, Tier.FULL), (found.codes, Tier.QUANTIZED)):
        for window in windows:
            tier[window_positions(cache.layout, window)] = where
    return tier
