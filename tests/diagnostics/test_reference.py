# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The reference against attention computed head by head in float64, and the file it lies in."""

import zipfile
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from qevict_jax.diagnostics import reference as module
from qevict_jax.diagnostics.reference import open_reference, reference, settings_of
from qevict_jax.models import LanguageModel
from qevict_jax.types import QEvictError
from tests.float64_model import Float64Model
from tests.random_model import random_model

PREFILL, STEPS = 19, 12


@cache
def model():
    made = random_model("plain")
    return LanguageModel(made.config, made.program, made.params)


@cache
def tokens():
    return tuple(np.random.default_rng(0).integers(0, model().config.vocab, PREFILL + STEPS + 1).tolist())


def settings(every=1, **changes):
    given = {"prefill": PREFILL, "steps": STEPS, "every": every, "kv_dtype": "float32"} | changes
    return settings_of(model(), tokens(), **given)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return reference(model(), tokens(), tmp_path_factory.mktemp("reference") / "a.npz", settings())


@cache
def expected():
    """Logits ``[T, V]`` and probabilities ``[L, H, T, S]`` in float64."""
    logits, layers = Float64Model(random_model("plain")).run(np.array(tokens()[:-1]))
    return logits, np.stack([layer.weights for layer in layers])


def test_masses_are_those_of_full_attention(made):
    weights = expected()[1]
    of_prompt = weights[:, :, :PREFILL, :PREFILL].sum(axis=2)
    np.testing.assert_allclose(made.prompt_mass[..., :PREFILL], of_prompt, rtol=1e-4)
    assert not made.prompt_mass[..., PREFILL:].any()
    for layer in range(2):
        found = made.mass(layer)
        np.testing.assert_allclose(found, np.swapaxes(weights[layer], 0, 1)[PREFILL:], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(found.sum(axis=-1), 1.0, atol=2e-3)


def test_losses_are_those_of_the_true_next_tokens(made):
    logits = expected()[0][PREFILL:]
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(made.nll, -log_probs[np.arange(STEPS), tokens()[PREFILL + 1 :]], rtol=1e-4, atol=1e-5)


def test_steps_are_added_up_whatever_the_chunk(made, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 8)  # the last chunk is half full
    sums = reference(model(), tokens(), tmp_path / "a.npz", settings(every=4))
    one_by_one = made.mass(1)
    np.testing.assert_allclose(sums.mass(1), one_by_one.reshape(3, 4, *one_by_one.shape[1:]).sum(axis=1), atol=2e-3)
    np.testing.assert_allclose(sums.nll, made.nll, rtol=1e-4)


def test_a_reference_is_made_once(made, monkeypatch):
    monkeypatch.setattr(module, "_record", lambda *args: pytest.fail("made again"))
    again = reference(model(), tokens(), made.path, settings())
    np.testing.assert_array_equal(again.mass(0), made.mass(0))


def other_model():
    params = jax.tree.map(lambda x: x, model().params)
    params["blocks"]["attn"]["q"]["kernel"][...] *= 1.0001
    return replace(model(), params=params)


@pytest.mark.parametrize(
    "word, changed",
    [
        ("text", lambda: settings_of(model(), [1, *tokens()[1:]], prefill=PREFILL, steps=STEPS, kv_dtype="float32")),
        ("prefill", lambda: settings(prefill=18)),
        ("steps", lambda: settings(steps=8)),
        ("every", lambda: settings(every=2)),
        ("kv_dtype", lambda: settings(kv_dtype="bfloat16")),
        ("model", lambda: settings_of(other_model(), tokens(), prefill=PREFILL, steps=STEPS, kv_dtype="float32")),
    ],
)
def test_another_run_is_told_apart(made, word, changed):
    with pytest.raises(QEvictError, match=rf"reference of another run \(.*{word} .* instead of .*delete it"):
        open_reference(made.path, changed())


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "version"])
def test_damage_is_told(made, tmp_path, damage):
    path, data = tmp_path / "a.npz", bytearray(made.path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 2] ^= 255
    elif damage == "version":
        data = data.replace(b'"format": 1', b'"format": 7')
    path.write_bytes(b"" if damage == "empty" else data)
    if damage == "foreign":
        np.savez(path, header=np.zeros(3))
    with pytest.raises(QEvictError, match="delete it"):
        opened = open_reference(path, settings())
        for layer in range(2):
            opened.mass(layer)


def test_a_killed_run_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_feed", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        reference(model(), tokens(), tmp_path / "a.npz", settings())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"prefill": 20}, "need 33 tokens; the text has 32"),
        ({"steps": 0}, "at least 1"),
        ({"every": 5}, "multiple of every=5"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(QEvictError, match=message):
        settings(**changes)


def test_the_file_is_a_plain_npz(made):
    with zipfile.ZipFile(made.path) as archive:
        assert archive.testzip() is None
    assert "prompt_mass" in np.load(made.path)
