# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Eq. 9, and plots of runs that were written by hand."""

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from qevict_jax.evaluation.paper_tables import families
from qevict_jax.evaluation.pareto import Point, dominates, frontier, plot_pareto
from qevict_jax.evaluation.results import gather
from qevict_jax.questions import AGNOSTIC
from qevict_jax.types import QEvictError
from tests.evaluation.made_up_runs import write_run


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


def test_a_panel_for_each_family_at_each_length(tmp_path, monkeypatch):
    (result,) = gather([write_run(tmp_path / "run", ["tuned", "paper"], dtype="float32", protocol=AGNOSTIC)])
    panels = ["Aggregation at 64 tokens", "Tracking at 64 tokens", "Aggregation at 128 tokens"]
    assert families(result) == dict(zip(panels, [["cwe@64", "fwe@64"], ["vt@64"], ["cwe@128"]], strict=True))
    drawn, save = [], Figure.savefig

    def remember(figure, *arguments, **options):
        drawn.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    plot_pareto(result, tmp_path / "plot.png")
    (figure,) = drawn
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == panels
    assert figure.get_suptitle() == "ruler, m, float32, question-agnostic"
    image = matplotlib.image.imread(tmp_path / "plot.png")
    assert image.shape[0] > 400 and image[..., :3].std() > 0.05


def test_nothing_to_plot(tmp_path):
    (result,) = gather([write_run(tmp_path / "run", ["full"])])
    with pytest.raises(QEvictError, match="nothing to plot"):
        plot_pareto(result, tmp_path / "plot.png")
