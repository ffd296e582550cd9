# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Eq. 9, and plots of runs that were written by hand."""

import matplotlib.image
import pytest

from qevict_jax.evaluation.caches import parse_caches
from qevict_jax.evaluation.paper_tables import families, paper_tables
from qevict_jax.evaluation.pareto import Point, dominates, frontier, plot_pareto
from qevict_jax.evaluation.results import gather
from qevict_jax.evaluation.runs import Run
from qevict_jax.types import QEvictError

TASKS = ("vt@64", "cwe@64", "fwe@64", "cwe@128")


def point(memory, score):
    return Point("", memory, float(score))


def test_domination():
    assert dominates(point(0.1, 50), point(0.2, 50)) and dominates(point(0.1, 51), point(0.1, 50))
    assert not dominates(point(0.1, 50), point(0.1, 50))  # one strict inequality at least
    assert not dominates(point(0.1, 49), point(0.2, 50)) and not dominates(point(0.3, 51), point(0.2, 50))


def test_the_frontier():
    points = [point(0.3, 60), point(0.1, 40), point(0.2, 30), point(0.2, 50), point(0.4, 60), point(0.1, 40)]
    assert [(p.memory, p.score) for p in frontier(points)] == [(0.1, 40), (0.1, 40), (0.2, 50), (0.3, 60)]
    assert frontier([]) == []


def written(directory, specs, *, finished=TASKS, full=True):
    """A run in which a cache scores its budget, and the full one 0.9."""
    caches = parse_caches(specs, [0.2, 0.1], full=full)
    records = [cache.record() for cache in caches]
    configuration = {"benchmark": "ruler", "model": "m", "caches": records, "expected": len(caches) * len(TASKS)}
    with Run(directory, configuration) as run:
        for cache in caches:
            for task in finished if cache.config.policy != "full" else TASKS:
                memory = cache.config.budget or 1.0
                run.append(
                    {
                        "cache": cache.label,
                        "task": task,
                        "index": 0,
                        "scores": {"score": memory if memory < 1 else 0.9},
                        "tokens": [1],
                        "prompt_sha256": task,
                        "kv_ratio": memory,
                    }
                )
    return directory


def test_a_panel_for_each_family(tmp_path):
    (result,) = gather([written(tmp_path / "run", ["tuned", "paper"])])
    assert families(result) == {"Aggregation": ["cwe@64", "cwe@128", "fwe@64"], "Tracking": ["vt@64"]}
    plot_pareto(result, tmp_path / "plot.png")
    image = matplotlib.image.imread(tmp_path / "plot.png")
    assert image.shape[1] > 1.5 * image.shape[0] > 400  # two panels beside each other
    assert image[..., :3].std() > 0.05


def test_a_table_for_each_length_and_what_is_missing(tmp_path):
    (result,) = gather([written(tmp_path / "run", ["tuned"], finished=TASKS[:3])])
    short, long = paper_tables([result])
    assert "64 tokens" in short.title and [column.title for column in short.columns] == ["CWE", "FWE", "VT", "Avg."]
    assert [column.title for column in long.columns] == ["CWE", "Avg."]
    assert result.incomplete == 2 and "2 answers are still missing" in short.note
    assert [name for name, _ in short.groups] == ["", "20% KV-cache budget", "10% KV-cache budget"]
    assert long.groups[1][1][0].cells == (None, None)


def test_nothing_to_plot(tmp_path):
    (result,) = gather([written(tmp_path / "run", ["full"])])
    with pytest.raises(QEvictError, match="nothing to plot"):
        plot_pareto(result, tmp_path / "plot.png")


def test_runs_of_one_benchmark_are_one_result(tmp_path):
    first, second = written(tmp_path / "a", ["tuned"]), written(tmp_path / "b", ["paper"])
    (result,) = gather([first, second])
    assert [cache.label for cache in result.caches] == [
        "full", "tuned @ 0.2", "tuned @ 0.1", "paper @ 0.2", "paper @ 0.1",
    ]  # fmt: skip
    assert result.incomplete == 0 and result.memory["paper @ 0.1", "vt@64"].value == pytest.approx(0.1)
    assert {mean.count for mean in result.scores.values()} == {1}
