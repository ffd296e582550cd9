# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that no model answered: every line written by hand."""

from qevict_jax.evaluation.caches import parse_caches
from qevict_jax.evaluation.runs import Run

RULER_TASKS = ("vt@64", "cwe@64", "fwe@64", "cwe@128")


def full_score(cache, task):
    """0.9 for the full cache, the budget for others, 0.5 without one."""
    return 0.9 if cache.config.policy == "full" else cache.config.budget or 0.5


def write_run(
    directory,
    specs,
    *,
    budgets=(0.2, 0.1),
    full=True,
    tasks=RULER_TASKS,
    finished=None,
    score=full_score,
    names=("score",),
    prompt="",
    padding=0.0,
    **configuration,
):
    """A run in which each cache has answered sample 0 of the tasks; those other than the full one only ``finished``.

    Padding is a part of the unpadded length.
    """
    caches = parse_caches(specs, budgets, full=full)
    base = {"benchmark": "ruler", "model": "m", "caches": [cache.record() for cache in caches]}
    with Run(directory, base | {"expected": len(caches) * len(tasks)} | configuration) as run:
        for cache in caches:
            memory = cache.config.budget or (1.0 if cache.config.policy == "full" else 0.25)
            for task in tasks if cache.config.policy == "full" or finished is None else finished:
                run.append(
                    {
                        "cache": cache.label,
                        "task": task,
                        "index": 0,
                        "scores": dict.fromkeys(names, score(cache, task)),
                        "tokens": [1],
                        "prompt_sha256": f"{task} {prompt}",
                        "kv_ratio": memory,
                        "own_ratio": memory * (1 + padding),
                    }
                )
    return directory
