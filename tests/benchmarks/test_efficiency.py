# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The efficiency table: every figure is there and follows from the others, on a model of a few thousand weights."""

import json

import numpy as np
import pytest

from benchmarks.efficiency import Case, Rounds, Times, main, row, run_rounds
from benchmarks.efficiency_sides import Seconds
from qevict_jax.models.config import NAMED_SHAPES
from tests.random_model import CONFIGS

TINY = ("--shape", "tiny", "--prompts", "256", "--outputs", "9", "--cache", "tuned quant_fraction=0")


@pytest.fixture(autouse=True)
def tiny_shape(monkeypatch):
    monkeypatch.setitem(NAMED_SHAPES, "tiny", CONFIGS["plain"])


def test_the_whole_benchmark(capsys):
    main([*TINY, "--batches", "2", "--rounds", "2", "--reads", "1", "--warm-up", "0"])
    *shown, last = capsys.readouterr().out.splitlines()
    (table,) = json.loads(last)["tables"]
    full, two_tiers = table["rows"]
    assert [made["cache"] for made in table["rows"]] == ["full", "tuned quant_fraction=0 @ 0.2"]
    assert all(any(line.startswith(made["cache"]) for line in shown) for made in table["rows"])
    for made in table["rows"]:
        size = made["bytes"]
        assert made["tpot_ms"]["min"] > 0 and made["cpu_ms_per_step"]["min"] > 0 and made["route_ms_per_token"] > 0
        assert made["event_steps"] == 8
        assert size["full_kv_per_row"] == 2 * (256 + 9) * 2 * 2 * 16 * 4
        assert size["decode_program"] > size["weights"] + 2 * size["kv_per_row"]
        assert size["read_program"] > size["weights"] + size["kv_per_row"]
        assert size["peak"] >= max(size["decode_program"], size["read_program"] + 2 * size["kv_per_row"])
    assert full["decode_vs_full"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert two_tiers["bytes"]["kv_per_row"] <= 0.2 * full["bytes"]["full_kv_per_row"]
    assert two_tiers["bytes"]["decode_program"] < full["bytes"]["decode_program"]
    assert two_tiers["config"]["quant_fraction"] == 0 and two_tiers["config"]["kv_dtype"] == "float32"


class Recorded:
    """A side that takes as long as it is told."""

    def __init__(self, reads, decodes):
        self.calls, self.reads, self.decodes, self.kept = [], iter(reads), iter(decodes), 0

    def read(self, prompts):
        self.calls.append("read")
        self.kept = 100
        return next(self.reads)

    def decode(self, batch, keep):
        self.calls.append(("decode", batch, keep))
        self.kept *= keep
        return Seconds(next(self.decodes), 1.0)

    def restart_peak(self, others):
        self.others = others

    def resident_peak(self):
        return 1000 - self.others


def test_rounds():
    """One that does not count, two that read, and one that decodes what was kept; a side does not pay for the other."""
    sides = {
        "full": Recorded([9, 3, 1], [9, 0.8, 0.4, 0.6]),
        "other": Recorded([9, 2, 4], [9, 0.1, 0.2, 0.1]),
    }
    case = Case(prompt=5, outputs=3, batch=4, together=2)
    times = run_rounds(sides, np.zeros((2, 5), np.int32), case, Rounds(warm_up=1, counted=3, reads=2))
    for side in sides.values():
        dropped, kept = ("decode", 4, False), ("decode", 4, True)
        assert side.calls == ["read", dropped, "read", dropped, "read", kept, dropped]
    np.testing.assert_allclose(times["full"].tpot_ms, [400, 200, 300])
    assert times["full"].ttft_s == [3, 1]
    assert times["full"].resident == [1000, 1000]
    assert times["other"].resident == [1000, 900]

    made = row("other", times["other"], times["full"], case)
    # two calls read the batch; eq. 10
    np.testing.assert_allclose(made["tokens_per_s"], 4 * 3 / (2 * 3 + 2 * 0.05))
    np.testing.assert_allclose(made["decode_tokens_per_s"], 4 / 0.05)
    assert made["decode_vs_full"] == pytest.approx({"median": 6, "min": 2, "max": 8})
    assert made["ttft_vs_full"] == pytest.approx({"median": (2 / 3 + 4) / 2, "min": 2 / 3, "max": 4})


def test_no_resident_peak_is_none():
    times = Times(ttft_s=[1.0], tpot_ms=[1.0], cpu_ms=[1.0])
    assert row("full", times, times, Case(5, 3, 4, 2))["resident_bytes"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--outputs", "1"), "at least 2"),
        (("--batches", "4", "--together", "3"), "divide the batch"),
        (("--rounds", "2", "--reads", "3"), "reads"),
        (("--budgets", "0.0001"), "smallest"),
    ],
)
def test_what_cannot_be_measured_is_said(words, message):
    with pytest.raises(SystemExit, match=message):
        main([*TINY, *words])
