# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What no benchmark can be asked for."""

import pytest

from qevict_jax.evaluation.requests import check_once, check_tasks
from qevict_jax.types import QEvictError


@pytest.mark.parametrize(
    "tasks, message",
    [
        ([], r"B has no task \(none named\); there are a, b"),
        (["a", "c", "d"], "B has no task c, d; there are a, b"),
        (["a", "b", "a"], "the task a is there twice"),
    ],
)
def test_tasks(tasks, message):
    check_tasks("B", ["b", "a"], ["a", "b"])
    with pytest.raises(QEvictError, match=message):
        check_tasks("B", tasks, ["a", "b"])


def test_once():
    check_once("the length", [1024, 2048])
    with pytest.raises(QEvictError, match="the length 2048 is there twice; name it once"):
        check_once("the length", [1024, 2048, 2048])
