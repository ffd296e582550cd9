# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What of several runs belongs together, from runs written by hand."""

from dataclasses import asdict

import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.evaluation.results import gather
from qevict_jax.questions import AGNOSTIC
from qevict_jax.types import QEvictError
from tests.evaluation.made_up_runs import write_run


def test_runs_of_one_benchmark_are_one_result(tmp_path):
    first, second = write_run(tmp_path / "a", ["tuned"]), write_run(tmp_path / "b", ["paper"])
    (result,) = gather([first, second])
    assert [cache.label for cache in result.caches] == [
        "full", "tuned @ 0.2", "tuned @ 0.1", "paper @ 0.2", "paper @ 0.1",
    ]  # fmt: skip
    assert result.incomplete == 0 and result.memory["paper @ 0.1", "vt@64"].value == pytest.approx(0.1)
    assert {mean.count for mean in result.scores.values()} == {1}


def test_caches_that_answered_different_prompts_are_not_compared(tmp_path):
    first = write_run(tmp_path / "a", ["tuned"], full=True, seed=1)
    # no cache is in both, so no line stands twice
    second = write_run(tmp_path / "b", ["paper"], full=False, seed=2, prompt="of another seed")
    message = r"/a and .*/b gave sample 0 of vt@64 different prompts \(seed differ\).*report each alone"
    with pytest.raises(QEvictError, match=message):
        gather([first, second])
    assert len(gather([first])) == len(gather([second])) == 1


def test_a_cache_of_other_settings_is_not_mixed_in(tmp_path):
    first = write_run(tmp_path / "a", ["tuned"])
    record = {"label": "full", "name": "full", "config": {"policy": "full", "budget": None}}
    second = write_run(tmp_path / "b", ["full"], caches=[record])
    with pytest.raises(QEvictError, match="'full' has other settings .*: kv_dtype, implementation$"):
        gather([first, second])


def test_a_run_from_before_a_setting_existed(tmp_path):
    """It goes with runs whose cache does not read the setting, and not with those whose cache does."""
    record = {"label": "full", "name": "full", "config": asdict(CacheConfig.full())}
    del record["config"]["prefill_pool"]
    first = write_run(tmp_path / "a", [], caches=[record])
    second = write_run(tmp_path / "b", ["tuned"])
    (result,) = gather([first, second])
    assert [cache.label for cache in result.caches] == ["full", "tuned @ 0.2", "tuned @ 0.1"]

    record = {"label": "tuned @ 0.2", "name": "tuned", "config": asdict(CacheConfig.tuned(budget=0.2))}
    del record["config"]["prefill_pool"]
    third = write_run(tmp_path / "c", ["tuned"], caches=[record])
    with pytest.raises(QEvictError, match="'tuned @ 0.2' has other settings .*: prefill_pool$"):
        gather([second, third])


@pytest.mark.parametrize("change", [{"dtype": "bfloat16"}, {"protocol": AGNOSTIC}, {"format": "qa"}, {"model": "n"}])
def test_what_changes_every_figure_keeps_runs_apart(tmp_path, change):
    first = write_run(tmp_path / "a", ["tuned"], dtype="float32", format="cot")
    second = write_run(tmp_path / "b", ["tuned"], prompt="other", **{"dtype": "float32", "format": "cot"} | change)
    one, other = gather([first, second])
    (name,) = change
    assert getattr(one, name) != getattr(other, name) == change[name]
