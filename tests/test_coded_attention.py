# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over coded and plain tokens is one softmax, for queries at any positions of rows of any lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.coded_attention import NOWHERE, coded_attention
from tests.float64_model import softmax_attention
from tests.quick_compile import QUICK

BATCH, COUNT, HEADS, KV_HEADS, HEAD_DIM, CODED, PLAIN = 2, 3, 6, 2, 8, 5, 4


def arrays(seed=0):
    random = np.random.default_rng(seed)
    q = random.normal(size=(BATCH, COUNT, HEADS, HEAD_DIM))
    coded = random.normal(size=(2, BATCH, KV_HEADS, HEAD_DIM, CODED))
    plain = random.normal(size=(BATCH, PLAIN, KV_HEADS, 2, HEAD_DIM))
    return (np.float32(x) for x in (q, coded, plain))


def attend(q, q_positions, q_valid, coded, coded_positions, plain, plain_positions):
    """Codes are the numbers themselves here, doubled when decoded."""

    def run(q, q_positions, q_valid, coded, coded_positions, plain, plain_positions):
        return coded_attention(
            q,
            q_positions,
            q_valid,
            coded=None if coded is None else tuple(x.reshape(-1, *x.shape[2:]) for x in coded),
            coded_positions=coded_positions,
            decode=lambda part: (2 * part[0], 2 * part[1]),
            plain=None if plain is None else plain.reshape(*plain.shape[:2], -1),
            plain_positions=plain_positions,
            kv_heads=KV_HEADS,
            kv_dtype="float32",
        )

    jitted = jax.jit(run, compiler_options=QUICK)
    return jitted(q, q_positions, q_valid, coded, coded_positions, plain, plain_positions)


@pytest.mark.parametrize("parts", ["both", "coded", "plain"])
def test_one_softmax_over_what_each_query_sees(parts):
    """Row 1 sees one coded token fewer; NaN in slots that nobody sees changes nothing."""
    q, coded, plain = arrays()
    q_positions = np.array([[7, 8, 9], [5, 6, 7]], np.int32)
    q_valid = np.array([[True, True, True], [True, True, False]])
    coded_positions = np.array([[0, 1, 2, 3, NOWHERE], [0, 1, 2, NOWHERE, NOWHERE]], np.int32)
    plain_positions = np.array([[8, 9, 10, 7], [6, 3, 4, 5]], np.int32)
    coded[:, 0, :, :, 4:], coded[:, 1, :, :, 3:], plain[0, 2] = np.nan, np.nan, np.nan
    given = coded, coded_positions, plain, plain_positions
    if parts == "plain":
        given = None, np.zeros((BATCH, 0), np.int32), plain, plain_positions
    elif parts == "coded":
        given = coded, coded_positions, None, None
    out, weights = attend(q, q_positions, q_valid, *given)
    for row in range(BATCH):
        keys, values, at = [], [], []
        if parts != "plain":
            keys, values = ([np.moveaxis(2 * x[row], 2, 0)] for x in coded)
            at = [coded_positions[row]]
        if parts != "coded":
            keys, values = [*keys, plain[row, :, :, 0]], [*values, plain[row, :, :, 1]]
            at = [*at, plain_positions[row]]
        keys, values, at = (np.nan_to_num(np.concatenate(x)) for x in (keys, values, at))
        valid = np.flatnonzero(q_valid[row])
        seen = at <= q_positions[row, valid][:, None]
        wanted, shares = softmax_attention(q[row, valid], keys, values, seen)
        np.testing.assert_allclose(out[row, valid], wanted, rtol=1e-5, atol=1e-5)
        if parts != "coded":
            ours = np.asarray(weights[row]).reshape(KV_HEADS, COUNT, HEADS // KV_HEADS, PLAIN)[:, valid]
            ours = np.swapaxes(ours, 1, 2).reshape(HEADS, len(valid), PLAIN)
            np.testing.assert_allclose(ours, shares[..., -PLAIN:], rtol=1e-5, atol=1e-6)
    assert weights.shape[-1] == (0 if parts == "coded" else PLAIN)


def test_a_query_that_sees_nothing_gives_zeros():
    q, coded, plain = arrays()
    valid = np.array([[True] * COUNT, [False] * COUNT])
    nowhere = np.full((BATCH, CODED), NOWHERE, np.int32), np.full((BATCH, PLAIN), 50, np.int32)
    out, weights = attend(q, np.full((BATCH, COUNT), 9, np.int32), valid, coded, nowhere[0], plain, nowhere[1])
    np.testing.assert_array_equal(jnp.stack([jnp.abs(out).max(), weights.max()]), 0)
