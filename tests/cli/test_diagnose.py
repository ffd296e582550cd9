# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict diagnose` on a tiny model; the metrics themselves are tested in tests/diagnostics."""

import json

import pytest

from qevict_jax.diagnostics import comparison, trace
from qevict_jax.diagnostics.conditions import promotion_conditions
from tests.diagnostics.synthetic import synthetic_diagnosis
from tests.diagnostics.tiny_run import quick_run

SIZES = ("--prefill", 256, "--steps", 32, "--budget", "0.8", "--kv-dtype", "float32")
FIGURES = {"missed_mass.png", "tier_mass.png", "tiers.png", "revival.png"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(trace, "_run", quick_run())


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the sand and the sea and the stars over an island " * 40)
    return file


def test_tables_report_figures_and_references(qevict, checkpoint, text, tmp_path):
    arguments = ("diagnose", "--model", checkpoint, "--text", text, *SIZES, "--layer", 1, "--json")
    result = qevict(*arguments, "--out", tmp_path / "out", "--references", tmp_path / "references")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert [x["name"] for x in report["conditions"]] == ["R0", "R1", "R2", "R3", "R4", "R3*"]
    for title in ("Observation I:", "Observation II:", "Observation III:"):
        assert title in result.stdout
    figures = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.png")}
    assert figures.keys() == FIGURES and all(x.startswith(b"\x89PNG") for x in figures.values())
    assert [path.name for path in (tmp_path / "references").iterdir()] == ["text_0.npz"]

    by_name = {x["name"]: x for x in report["conditions"]}
    assert by_name["R0"]["summary"]["missed"]["mean"] == 0.0
    three, two = by_name["R3"], by_name["R2"]
    assert three["capacities"]["full-precision windows"] < two["capacities"]["full-precision windows"]
    assert 0 < three["kv_bytes"] < three["full_kv_bytes"]
    assert len(three["by_layer_and_head"]["missed"]) == 2 and len(three["by_layer_and_head"]["missed"][0]) == 4
    shares = [share["mean"] for share in three["summary"]["shares"].values()]
    assert sum(shares) == pytest.approx(1.0)

    # the reference of other settings is not taken for this one
    changed = [28 if argument == 32 else argument for argument in arguments]
    changed[changed.index(28)] = 64
    result = qevict(*changed, "--references", tmp_path / "references")
    assert result.exit_code == 1 and "steps 32 instead of 64" in result.stderr


def test_promotion_has_its_table_and_figures(qevict, checkpoint, text, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "diagnose", lambda *args, **kwargs: synthetic_diagnosis(promotion_conditions()))
    result = qevict(
        *("diagnose", "--model", checkpoint, "--text", text, "--experiment", "promotion", "--prefill", 128),
        *("--steps", 64, "--json", "--out", tmp_path / "out"),
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert [x["name"] for x in report["conditions"]] == ["one-way", "ranked", "exact"]
    assert "ranked - one-way" in result.stdout and "Q to F transitions" in result.stdout
    assert len(list((tmp_path / "out").glob("*.png"))) == 5


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--offsets", "x"], "--offsets x must be numbers"),
        (["--offsets", "100000"], "offset 100000 of text needs"),
        (["--steps", "100"], "steps=100 must be a multiple of 8"),
        (["--layer", "2"], "layers 0 to 1"),
        (["--budget", "0.01"], "budget=0.01 of 288 tokens cannot hold"),
        (["--text", "missing.txt"], "missing.txt is not a file"),
        (["--also", "window=5"], "window=5"),
        (["--also", "kv_dtype=float16"], "kv_dtype=float16 cannot be compared"),
        (["--experiment", "promotion", "--also", "window=8"], "--also has no effect"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(refused, checkpoint, text, arguments, message):
    given = ["--model", checkpoint, "--text", text, *map(str, SIZES), *arguments]
    assert message in refused("diagnose", *given)


def test_texts_of_one_name(refused, checkpoint, text):
    assert "two texts have one name" in refused("diagnose", "--model", checkpoint, "--text", text, "--text", text)
