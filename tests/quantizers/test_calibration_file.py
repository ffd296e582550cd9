# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The calibration file: it comes back as it was, belongs to one checkpoint, and its errors say what to run."""

from dataclasses import replace

import numpy as np
import pytest

from qevict_jax.quantizers.calibration_file import FILE, Calibration, checkpoint_fingerprint, load_calibration
from qevict_jax.types import KVShape, QEvictError

SHAPE = KVShape(2, 3, 8, "bfloat16")


def calibration(fingerprint=""):
    random = np.random.default_rng(0)
    poles = [
        {bits: np.sort(random.normal(size=(2, 2**bits)).astype(np.float32)) for bits in (2, 3, 4)} for _ in range(2)
    ]
    key_range = random.normal(size=(2, 2, 3, 8)).astype(np.float32)
    return Calibration(key_range, *poles, 0.02, fingerprint, {"samples": 4, "weights": "equal"})


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "model"
    (directory / "weights").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "weights" / "manifest.ocdbt").write_bytes(b"blocks")
    return directory


def test_what_is_saved_comes_back(checkpoint):
    made = calibration(checkpoint_fingerprint(checkpoint))
    made.save(checkpoint / FILE)
    found = load_calibration(checkpoint / FILE, replace(SHAPE, checkpoint=str(checkpoint)))
    assert found == made and hash(found) == hash(made) and found.facts == made.facts and found.outliers == 0.02
    assert [file.name for file in checkpoint.glob("*.part")] == []
    for name, x in made.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], x)
    other = replace(made, key_range=made.key_range + 1)
    assert other != made and hash(other) != hash(made)


def test_another_checkpoint_is_refused(checkpoint):
    calibration(checkpoint_fingerprint(checkpoint)).save(checkpoint / FILE)
    load_calibration(checkpoint / FILE, SHAPE)  # a model that was not loaded from a directory
    (checkpoint / "weights" / "manifest.ocdbt").write_bytes(b"other blocks")
    with pytest.raises(QEvictError, match=f"another checkpoint .*run `qevict calibrate {checkpoint}`"):
        load_calibration(checkpoint / FILE, replace(SHAPE, checkpoint=str(checkpoint)))


def test_errors_name_the_command(tmp_path):
    path = tmp_path / FILE
    with pytest.raises(QEvictError, match="there is no .* run `qevict calibrate MODEL`"):
        load_calibration(path, SHAPE)
    path.write_bytes(b"not a safetensors file at all")
    with pytest.raises(QEvictError, match="is no calibration: .* run `qevict calibrate MODEL`"):
        load_calibration(path, SHAPE)
    made = calibration()
    made.save(path)
    with pytest.raises(QEvictError, match=r"a model with .* \[2, 3, 8\], not \[2, 1, 8\]"):
        load_calibration(path, replace(SHAPE, kv_heads=1))
    from safetensors.numpy import save_file

    save_file(made.arrays(), path, metadata={"calibration": '{"format": "qevict_jax.kvquant", "version": 0}'})
    with pytest.raises(QEvictError, match="is no calibration of version 1; run"):
        load_calibration(path, SHAPE)


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / FILE
    made = calibration()
    made.save(path)
    monkeypatch.setattr("os.replace", _fails)
    with pytest.raises(OSError, match="no"):
        replace(made, outliers=0.5).save(path)
    assert load_calibration(path, SHAPE).outliers == 0.02 and list(tmp_path.iterdir()) == [path]


def _fails(*_):
    raise OSError("no")
