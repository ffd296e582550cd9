# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Our logits against transformers, both computed now: whole sequences, batches, both forms of config.json."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

from convert import convert
from qevict_jax.models import load_model
from tests import golden
from tests.reference import torch_model
from tests.tiny_models import TINY, write_hf

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module", params=[(name, style) for name in TINY for style in ("v4", "v5")], ids="-".join)
def pair(request, tmp_path_factory):
    """Name, our model and that of transformers, of the same directory; two shards for the older form."""
    name, style = request.param
    directory = tmp_path_factory.mktemp(name)
    source = write_hf(directory / "hf", name, shards=2 if style == "v4" else 1, config_style=style)
    ours = load_model(convert(source, directory / "checkpoint", dtype="float32", progress=False))
    return name, ours, torch_model.load(source)


def test_logits_of_every_position(pair):
    name, ours, theirs = pair
    for case in golden.cases(name):
        got = np.asarray(ours.logits(case.tokens[None], positions=case.positions))[0]
        expected = torch_model.logits(theirs, case.tokens, case.positions)
        np.testing.assert_allclose(got, expected, rtol=0, atol=golden.TOLERANCE, err_msg=case.name)


def test_rows_of_a_batch_are_independent(pair):
    name, ours, theirs = pair
    tokens = np.random.default_rng(0).integers(0, TINY[name].vocab, (3, 37), dtype=np.int32)
    got = np.asarray(ours.logits(tokens))
    for row in range(len(tokens)):
        expected = torch_model.logits(theirs, tokens[row], np.arange(37))
        np.testing.assert_allclose(got[row], expected, rtol=0, atol=golden.TOLERANCE)
