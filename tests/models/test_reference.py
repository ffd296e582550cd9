# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Our logits against those of transformers, stored in `tests/golden`."""

import numpy as np
import pytest

from convert import convert
from qevict_jax import CacheConfig, generate, load
from qevict_jax.models.tokenizer import Tokenizer
from tests import golden
from tests.converted import load_converted
from tests.smollm2 import INSTALL, packaged_file
from tests.tiny_models import TINY

# RoPE frequencies must equal those of transformers bit by bit: at position 9,000 a phase is a float32 product
# whose rounding moves logits by 5e-4 when the last bit of a frequency is different.
CASES = [case.name for case in golden.cases("llama")]
LONGEST = max(len(case.tokens) for case in golden.cases("llama"))


@pytest.fixture(scope="module", params=TINY)
def row(request, tmp_path_factory):
    """(name, model) of every tiny checkpoint, read through the converter."""
    return request.param, load_converted(tmp_path_factory.mktemp(request.param), request.param)


def logits_of(model, tokens, positions=None):
    """Logits [S, V], with one program for all lengths: causal attention does not see padding behind."""
    padding = LONGEST - len(tokens)
    if positions is not None:
        positions = np.concatenate([positions, positions[-1] + 1 + np.arange(padding, dtype=np.int32)])
    padded = np.pad(tokens, (0, padding))[None]
    logits = np.asarray(model.logits(padded, positions=positions))
    assert logits.dtype == np.float32
    return logits[0, : len(tokens)]


def assert_close(logits, expected):
    np.testing.assert_allclose(logits, expected, rtol=0, atol=golden.TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_logits(row, case):
    name, model = row
    expected = golden.load(name)
    logits = logits_of(model, expected[f"{case}/tokens"], expected[f"{case}/positions"])
    assert_close(logits[-golden.KEPT :], expected[f"{case}/logits"])


def test_decode_trajectory(row):
    """Steps with the cache of transformers, and our positions left at their default."""
    name, model = row
    expected = golden.load(name)
    tokens = np.concatenate([expected["decode/prompt"], expected["decode/tokens"]])
    steps = len(expected["decode/tokens"])
    assert_close(logits_of(model, tokens)[-steps - 1 : -1], expected["decode/logits"])


def test_full_cache_follows_transformers(row):
    """The same steps through our own dense cache, up to an end-of-sequence token if one is drawn."""
    name, model = row
    expected = golden.load(name)
    tokens = expected["decode/tokens"].tolist()
    steps = next((step for step, token in enumerate(tokens, 1) if token in model.tokenizer.eos_ids), len(tokens))
    result = generate(
        model,
        [expected["decode/prompt"].tolist()],
        cache=CacheConfig.full(kv_dtype="float32"),
        max_new_tokens=len(tokens),
        log_probs=True,
    )[0]
    assert list(result.tokens) == tokens[:steps]
    logits = expected["decode/logits"][:steps].astype(np.float64)
    assert_close(result.log_probs, logits.max(axis=-1) - np.log(np.exp(logits).sum(axis=-1)))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """Directory of the packaged SmolLM2, converted with float32 weights."""
    file = packaged_file()
    if file is None:
        pytest.skip(f"needs the packaged SmolLM2: {INSTALL}")
    return convert(file, tmp_path_factory.mktemp("smollm2") / "checkpoint", dtype="float32", progress=False)


@pytest.mark.model
def test_smollm2_prompt_ids(smollm2):
    tokenizer = Tokenizer.load(smollm2)
    with np.load(golden.SMOLLM2_FILE) as expected:
        for prompt in ("text", "long_text"):
            assert tokenizer.encode(str(expected[f"{prompt}/text"])) == expected[f"{prompt}/input_ids"].tolist()
            assert tokenizer.decode(expected[f"{prompt}/tokens"].tolist()) == str(expected[f"{prompt}/decoded"])
        turn = [{"role": "user", "content": str(expected["question/text"])}]
        assert tokenizer.chat(turn) == expected["question/input_ids"].tolist()


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_greedy_continuation(smollm2):
    model = load(smollm2)
    with np.load(golden.SMOLLM2_FILE) as expected:
        for prompt in ("text", "question", "long_text"):
            result = generate(
                model,
                [expected[f"{prompt}/input_ids"].tolist()],
                cache=CacheConfig.full(kv_dtype="float32"),
                max_new_tokens=len(expected[f"{prompt}/tokens"]),
            )[0]
            assert list(result.tokens) == expected[f"{prompt}/tokens"].tolist(), prompt
