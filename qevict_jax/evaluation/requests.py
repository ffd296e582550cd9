# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of what a benchmark is asked for, before anything is made."""

from collections.abc import Collection, Sequence

from qevict_jax.types import QEvictError


def check_tasks(benchmark: str, tasks: Sequence[str], known: Collection[str]) -> None:
    """Whether tasks can be run.

    Raises:
        QEvictError: none is named, or one that does not exist, or one twice.
    """
    unknown = [name for name in tasks if name not in known]
    if unknown or not tasks:
        raise QEvictError(
            f"{benchmark} has no task {', '.join(unknown) or '(none named)'}; there are {', '.join(known)}"
        )
    check_once("the task", tasks)


def check_once(what: str, values: Sequence[object]) -> None:
    """Whether every value is named once.

    Raises:
        QEvictError: one is there twice.
    """
    twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if twice is not None:
        raise QEvictError(f"{what} {twice} is there twice; name it once")
