# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Results in the shapes of the paper's tables, from runs written by hand."""

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
