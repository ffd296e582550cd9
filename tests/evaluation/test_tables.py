# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Tables by hand."""

import pytest

from qevict_jax.evaluation.results import Mean
from qevict_jax.evaluation.tables import Column, Row, Table, mean_of


def cell(value, error=0.0, count=10):
    return Mean(value, count, error)


TABLE = Table(
    "Scores",
    (Column("A", "Family"), Column("KL", scale=1.0, digits=2, higher_is_better=False)),
    [
        ("", [Row("full", 1.0, (cell(0.99), None), competes=False, unpadded=1.25)]),
        (
            "20%",
            [
                Row("one", 0.2, (cell(0.5), cell(0.1))),
                Row("two|b", 0.199, (cell(0.4004), cell(0.3))),
                Row("three", None, (cell(0.3996), cell(0.2))),
                Row("four", 0.2, (None, cell(0.4))),
            ],
        ),
    ],
    note="A note.",
)


def test_best_and_second_best_distinct_figures_of_a_group():
    assert TABLE.markdown() == (
        "### Scores\n\n"
        "| Method | KV memory | KV memory, unpadded | Family<br>A | KL |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| full | 100.0% | 125.0% | 99.0 |  |\n"
        "| *20%* |  |  |  |  |\n"
        "| one | 20.0% |  | **50.0** | **0.10** |\n"
        "| two\\|b | 19.9% |  | <u>40.0</u> | 0.30 |\n"
        "| three |  |  | <u>40.0</u> | <u>0.20</u> |\n"
        "| four | 20.0% |  |  | 0.40 |\n\n"
        "A note.\n"
    )


def test_csv_has_errors_and_counts():
    lines = TABLE.csv().splitlines()
    assert lines[0] == (
        'group,Method,KV memory,"KV memory, unpadded",A,A standard error,A samples,KL,KL standard error,KL samples'
    )
    assert lines[1] == ",full,1.000000,1.250000,99,0,10,,,"
    assert lines[4] == "20%,three,,,39.96,0,10,0.2,0,10"


@pytest.mark.parametrize("other", [None, cell(0.5)])
def test_nothing_is_best_of_one_or_of_equals(other):
    table = Table("T", (Column("A"),), [("", [Row("a", None, (cell(0.5),)), Row("b", None, (other,))])])
    assert "| a | 50.0 |" in table.markdown() and "KV memory" not in table.markdown()


def test_means():
    mean = Mean.of([1.0, 0.0, 1.0, 0.0])
    assert (mean.value, mean.count) == (0.5, 4) and mean.error == pytest.approx((1 / 3 / 4) ** 0.5)
    assert Mean.of([0.7]) == Mean(0.7, 1, 0.0)
    both = mean_of([cell(0.2, 0.03, 5), cell(0.4, 0.04, 7)])
    assert both is not None and both.count == 12
    assert (both.value, both.error) == (pytest.approx(0.3), pytest.approx(0.025))
    assert mean_of([cell(0.2), None]) is None and mean_of([]) is None
