# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Calibration on a tiny random model: ranges and codebooks are those of the keys and values of a float64 model."""

import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.calibration import calibrate, histogram, normalize_keys, normalize_values
from qevict_jax.fisher import squared_gradients
from qevict_jax.models import LanguageModel
from qevict_jax.quantizers.kmeans import kmeans
from qevict_jax.types import QEvictError
from tests.float64_model import Float64Model, rotate
from tests.random_model import random_model

LENGTH, SAMPLES, OUTLIERS = 24, 3, 0.1
TEXT = np.random.default_rng(4).integers(0, 64, LENGTH * SAMPLES).tolist()


def language_model(name):
    return LanguageModel(*random_model(name))


def keys_and_values(name):
    """``[L, samples*length, K*D]`` each, keys before RoPE and bias."""
    model = Float64Model(random_model(name))
    found = []
    for start in range(0, len(TEXT), LENGTH):
        _, traces = model.run(np.array(TEXT[start : start + LENGTH]))
        bare = [rotate(t.keys, -np.arange(LENGTH), model.inv_freq) - model.key_bias(i) for i, t in enumerate(traces)]
        found.append([np.stack(bare), np.stack([t.values for t in traces])])
    return [
        np.concatenate(part, axis=1).reshape(model.config.layers, -1, bare[0][0].size)
        for part in zip(*found, strict=True)
    ]


@pytest.fixture(scope="module")
def made():
    return calibrate(language_model("bias"), TEXT, samples=SAMPLES, length=LENGTH, outliers=OUTLIERS)


def test_ranges_are_quantiles_of_keys_before_rope_and_bias(made):
    keys, _ = keys_and_values("bias")
    wanted = np.quantile(keys, [OUTLIERS / 2, 1 - OUTLIERS / 2], axis=1)
    np.testing.assert_allclose(made.key_range.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)
    assert (
        np.abs(wanted).max() < 10 < np.abs(np.asarray(random_model("bias").params["blocks"]["attn"]["k"]["bias"])).max()
    )


def test_codebooks_are_k_means_of_what_is_in_range(made):
    """Against k-means of the numbers themselves; ours are of a histogram of them."""
    keys, values = keys_and_values("bias")
    kept = 2  # a tenth of 16 channels, rounded up
    for layer in range(2):
        in_range = (
            normalize_keys(keys[layer], made.key_range[:, layer].reshape(2, -1)),
            normalize_values(values[layer], kept),
        )
        for scaled, poles in zip(in_range, (made.key_poles, made.value_poles), strict=True):
            numbers = np.sort(scaled[np.abs(scaled) <= 1])
            wanted = kmeans(numbers, np.ones_like(numbers), (4, 16))
            for bits in (2, 4):
                ours, best = (_loss(numbers, centroids) for centroids in (poles[bits][layer], wanted[1 << bits]))
                assert best * (1 - 1e-6) <= ours <= 1.02 * best


def _loss(numbers, centroids):
    return float((np.abs(numbers[:, None] - centroids).min(axis=1) ** 2).mean())


def test_values_leave_out_their_extremes():
    values = np.array([[5.0, -1.0, 0.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0, 2.0]])
    np.testing.assert_allclose(normalize_values(values, 1), [[2, -1, -0.5, 0, 1], [0, 0, 0, 0, 0]])
    np.testing.assert_allclose(normalize_values(values, 2)[0], [7 / 3, -5 / 3, -1, -1 / 3, 1])


def test_a_histogram_keeps_mean_and_weight():
    scaled, weight = np.array([-1.0, -0.2, -0.2000001, 1.0, 1.3]), np.array([1.0, 2.0, 4.0, 3.0, 9.0])
    points, mass = histogram(scaled, weight)
    assert mass.sum() == 10 and (mass > 0).sum() == 3 and (np.diff(points) > 0).all()
    assert (points * mass).sum() == pytest.approx((scaled * weight)[:4].sum())


def test_squared_gradients_are_those_of_finite_differences():
    """Of the mean loss, by moving one key and one value of layer 0 in a float64 model."""
    name, tokens = "bias", np.array(TEXT[:LENGTH])
    random = random_model(name)
    keys, values, key_squares, value_squares = squared_gradients(
        random.program, random.params, jnp.asarray(tokens[None])
    )
    model = Float64Model(random)
    expected_keys, expected_values = (x[:, :LENGTH] for x in keys_and_values(name))
    np.testing.assert_allclose(np.reshape(keys, (2, LENGTH, -1)), expected_keys, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.reshape(values, (2, LENGTH, -1)), expected_values, rtol=1e-3, atol=1e-4)

    def loss(part, at, step):
        plain = Float64Model._project

        class Moved(Float64Model):
            def _project(self, name, layer, x):
                out = plain(self, name, layer, x)
                if name == part and layer == 0:
                    out = out.copy()
                    out[at] += step
                return out

        logits, _ = Moved(random).run(tokens)
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return -log_probs[np.arange(LENGTH - 1), tokens[1:]].mean()

    assert model.config.kv_heads == 1
    for part, squares in (("k", key_squares), ("v", value_squares)):
        for at in ((2, 3), (6, 9)):
            slope = (loss(part, at, 1e-4) - loss(part, at, -1e-4)) / 2e-4
            assert float(squares[0, at[0], 0, at[1]]) == pytest.approx(slope**2, rel=2e-3, abs=1e-10)


def test_fisher_weights_move_the_codebooks(made):
    weighted = calibrate(language_model("bias"), TEXT, samples=SAMPLES, length=LENGTH, outliers=OUTLIERS, fisher=True)
    np.testing.assert_array_equal(weighted.key_range, made.key_range)
    assert weighted.facts["weights"] == "fisher" and made.facts["weights"] == "equal"
    assert np.abs(weighted.value_poles[3] - made.value_poles[3]).max() > 0.01
    for poles in (weighted.key_poles, weighted.value_poles):
        assert all((np.diff(x, axis=1) > 0).all() and (np.abs(x) <= 1).all() for x in poles.values())


def test_a_text_that_is_too_short_or_a_sample_that_is_too_long():
    model = language_model("bias")
    with pytest.raises(QEvictError, match="the text has 72 tokens: 2 samples of 30 tokens, not 16"):
        calibrate(model, TEXT, length=30)
    with pytest.raises(QEvictError, match="length=9000 exceeds the model's context of 8192"):
        calibrate(model, TEXT, length=9000)


def test_samples_are_evenly_spaced():
    """The last one lies at the end of a text twice as long as what is read."""
    once = calibrate(language_model("bias"), TEXT[:24] + TEXT[:24] + TEXT[24:48] + TEXT[24:48], samples=2, length=24)
    same = calibrate(language_model("bias"), TEXT[:48], samples=2, length=24)
    assert once == same and once.facts == same.facts
