# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict calibrate`, and kvquant before and after it."""

import json
import shutil

import pytest


@pytest.fixture
def uncalibrated(checkpoint, tmp_path):
    """A copy of the checkpoint, to write into."""
    return shutil.copytree(checkpoint, tmp_path / "model")


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the sand and the sea and the stars over an island " * 12)
    return file


def test_kvquant_runs_once_its_model_is_calibrated(qevict, refused, uncalibrated, text):
    measure = ("eval", "fidelity", "--model", uncalibrated, "--text", text, "--prefill", 40, "--steps", 8, "--json")
    measure += ("--policy", "kvquant", "--policy-options", "bits=4", "--kv-dtype", "float32")
    complaint = refused(*measure)
    assert f"run `qevict calibrate {uncalibrated}`" in complaint

    made = qevict("calibrate", uncalibrated, "--text", text, "--samples", 2, "--length", 48)
    assert made.exit_code == 0, made.output
    assert "2 x 48 tokens, without Fisher weights, sha256 " in made.stdout
    assert (uncalibrated / "kvquant.safetensors").stat().st_size > 1000

    result = qevict(*measure)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout.splitlines()[-1])["results"]
    assert found["config"]["budget"] is None and 0 < found["ratio_allocated"] < 0.25
    assert 0 < found["kl"] < 0.5


def test_errors(refused, uncalibrated, text, tmp_path):
    calibrate = ("calibrate", uncalibrated, "--text", text)
    assert "samples of 2048 tokens, not 16" in refused(*calibrate)
    assert "outliers=0.5 must lie in 0..0.2" in refused(*calibrate, "--samples", 2, "--length", 9, "--outliers", 0.5)
    nowhere = tmp_path / "nowhere" / "file"
    assert f"there is no directory {nowhere.parent}" in refused(*calibrate, "--output", nowhere)


def test_the_default_text_is_pythons_reference():
    from qevict_jax.cli.calibrate import python_reference

    content = python_reference()
    assert len(content) > 400_000 and "object.__new__" in content and content == python_reference()
