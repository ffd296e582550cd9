# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Results in the shapes of the paper's tables, from runs written by hand."""

import pytest

from qevict_jax.evaluation.paper_tables import paper_tables
from qevict_jax.evaluation.results import gather
from qevict_jax.questions import AGNOSTIC
from tests.evaluation.made_up_runs import RULER_TASKS, write_run


def test_a_table_for_each_length_and_what_is_missing(tmp_path):
    (result,) = gather([write_run(tmp_path / "run", ["tuned"], finished=RULER_TASKS[:3])])
    short, long = paper_tables([result])
    assert "64 tokens" in short.title and [column.title for column in short.columns] == ["CWE", "FWE", "VT", "Avg."]
    assert [column.title for column in long.columns] == ["CWE", "Avg."]
    assert result.incomplete == 2 and "2 answers are still missing" in short.note
    assert [name for name, _ in short.groups] == ["", "20% KV-cache budget", "10% KV-cache budget"]
    assert long.groups[1][1][0].cells == (None, None)


def test_what_keeps_runs_apart_is_in_the_title(tmp_path):
    one = write_run(tmp_path / "a", ["tuned"], dtype="float32")
    other = write_run(tmp_path / "b", ["tuned"], dtype="bfloat16", protocol=AGNOSTIC)
    titles = [table.title for table in paper_tables(gather([one, other]))]
    assert titles[0] == "RULER at 64 tokens, m, float32"
    assert titles[2] == "RULER at 64 tokens, m, bfloat16, question-agnostic"


def gsm8k(directory, specs, **options):
    options = {"benchmark": "gsm8k", "tasks": ("gsm8k",), "names": ("strict",), "format": "cot"} | options
    return paper_tables(gather([write_run(directory, specs, **options)]))


def test_the_full_cache_stands_at_all_of_the_memory_and_budgets_have_their_digits(tmp_path):
    table, *against_full, _ = gsm8k(tmp_path / "run", ["tuned"], budgets=(0.6, 0.125))
    assert [column.title for column in table.columns] == ["100%", "60%", "12.5%"]
    ((_, (full, tuned)),) = table.groups
    assert [cell and cell.value for cell in full.cells] == [0.9, None, None] and not full.competes
    assert [cell and cell.value for cell in tuned.cells] == [None, 0.6, 0.125]
    assert [[column.title for column in table.columns] for table in against_full] == [["60%", "12.5%"]] * 2


def test_a_budget_of_all_of_the_memory_stands_beside_the_full_cache(tmp_path):
    table, *_ = gsm8k(tmp_path / "run", ["tuned"], budgets=(1.0, 0.1))
    ((_, (full, tuned)),) = table.groups
    assert [column.title for column in table.columns] == ["100%", "10%"]
    assert full.cells[0].value == 0.9 and tuned.cells[0].value == 1.0


def test_without_the_full_cache_nothing_is_compared_with_it(tmp_path):
    tables = gsm8k(tmp_path / "run", ["tuned"], full=False, names=("strict", "flexible"))
    shown = ["exact match (strict)", "exact match (flexible)", "KV memory, unpadded"]
    assert [table.title.removeprefix("GSM8K, ").partition(", m")[0] for table in tables] == shown


def test_formats_of_gsm8k_have_tables_and_titles_of_their_own(tmp_path):
    (one, *_), (other, *_) = gsm8k(tmp_path / "a", ["tuned"]), gsm8k(tmp_path / "b", ["tuned"], format="qa")
    assert one.title == "GSM8K, exact match (strict), m, cot: by KV-cache budget"
    assert other.title == "GSM8K, exact match (strict), m, qa: by KV-cache budget"


def test_operating_points_stand_beside_the_full_cache_and_ours(tmp_path):
    budgets, points, *_ = gsm8k(tmp_path / "run", ["tuned", "kivi"], budgets=(0.2,))
    assert [row.name for row in budgets.groups[0][1]] == ["full", "tuned"]
    assert [(row.name, row.memory) for row in points.groups[0][1]] == [
        ("full", 1.0), ("kivi", 0.25), ("tuned @ 0.2", 0.2)
    ]  # fmt: skip
    alone, _ = gsm8k(tmp_path / "full", ["full"])
    assert [row.name for row in alone.groups[0][1]] == ["full"]


def test_an_ablation_has_an_average_over_the_tasks_of_longbench(tmp_path):
    scores = {"vt@64": 0.9, "musique": 0.2, "trec": 0.6}
    run = write_run(
        tmp_path / "run",
        ["paper ranking=decay"],
        benchmark="ablation",
        what="ranking",
        tasks=tuple(scores),
        score=lambda cache, task: scores[task],
    )
    (table,) = paper_tables(gather([run]))
    assert [(column.family, column.title) for column in table.columns][2:] == [
        ("Few-Shot Learning", "TREC"), ("LongBench", "Avg.")
    ]  # fmt: skip
    assert [round(cell.value, 6) for cell in table.groups[1][1][0].cells] == [0.9, 0.2, 0.6, 0.4]


def test_memory_is_told_with_and_without_padding(tmp_path):
    run = write_run(tmp_path / "ruler", ["tuned"], budgets=(0.2,), padding=0.125)
    table, _ = paper_tables(gather([run]))
    assert [row.shares for _, rows in table.groups for row in rows] == [(1.0, 1.125), pytest.approx((0.2, 0.225))]
    assert "| Method | KV memory | KV memory, unpadded |" in table.markdown()
    assert "| tuned | 20.0% | 22.5% |" in table.markdown() and "tuned,0.200000,0.225000" in table.csv()
    *_, shares = gsm8k(tmp_path / "gsm8k", ["tuned"], padding=0.125)
    assert "| full | 112.5 |  |  |" in shares.markdown() and "| tuned |  | 22.5 | 11.2 |" in shares.markdown()
