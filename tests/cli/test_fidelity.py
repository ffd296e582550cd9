# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval fidelity` on a tiny model; the measure itself is tested in tests/evaluation."""

import json

import pytest

from qevict_jax.cli.fidelity import sweep
from qevict_jax.config import CacheConfig


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the sand and the sea and the stars over an island " * 40)
    return file


def test_table_json_and_png(qevict, checkpoint, text, tmp_path):
    png = tmp_path / "chart.png"
    result = qevict(
        *("eval", "fidelity", "--model", checkpoint, "--text", text, "--prefill", 128, "--steps", 64),
        *("--budgets", "0.9,0.01", "--offsets", "0,50", "--kv-dtype", "float32", "--vary", "bits=4", "window=8"),
        *("--json", "--png", png),
    )
    assert result.exit_code == 0, result.output
    fits, too_small = json.loads(result.stdout.splitlines()[-1])["results"]
    assert fits["config"]["bits"] == 4 and fits["config"]["kv_dtype"] == "float32"
    assert 0 <= fits["kl"] < 0.1 and len(fits["kl_by_offset"]) == 2
    assert fits["kv_bytes"] <= 0.9 * fits["full_kv_bytes"]
    assert "smallest budget that works" in too_small["error"]
    assert "does not fit" in result.stdout and "cache/s" in result.stderr
    assert png.read_bytes().startswith(b"\x89PNG")


def test_every_combination_at_every_budget():
    configs = sweep(["window=8,16", "bits=2,3"], {"preset": "paper", "kv_dtype": "float32"}, [0.2, 0.1])
    assert len(configs) == 8
    assert configs[:2] == [
        CacheConfig.paper(window=8, bits=2, kv_dtype="float32", budget=budget) for budget in (0.2, 0.1)
    ]


def test_a_policy_without_a_budget_comes_once():
    """Alone, and among others that come once per budget."""
    (only,) = sweep([], {"policy": "kivi", "policy_options": "bits=4"}, [0.2, 0.1])
    assert only == CacheConfig(policy="kivi", policy_options="bits=4") and only.budget is None
    several = sweep(["policy=qevict,kivi,full"], {"kv_dtype": "float32"}, [0.2, 0.1])
    assert [(config.policy, config.budget) for config in several] == [
        ("qevict", 0.2), ("qevict", 0.1), ("kivi", None), ("full", None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--budgets", "a"], "--budgets a must be numbers"),
        (["--offsets", "1.5"], "--offsets 1.5 must be numbers"),
        (["--png", "nowhere/chart.png"], "there is no directory nowhere"),
        (["--prefill", "10000"], "the text has"),
        (["--steps", "0"], "steps=0"),
        (["--vary", "bits=5"], "bits=5"),
        (["--vary", "bits=3", "--bits", "3"], "no effect beside --vary bits=3: bits"),
        (["--vary", "preset=tuned,paper", "--bits", "3"], "no effect beside --vary preset=tuned,paper: bits"),
        (["--vary", "budget=0.2"], "--budgets"),
        (["--text", "missing.txt"], "missing.txt is not a file"),
        (["--model", "missing"], "missing"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(refused, checkpoint, text, arguments, message):
    assert message in refused("eval", "fidelity", "--model", checkpoint, "--text", text, *arguments)
