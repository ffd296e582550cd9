# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A comparison of conditions on articles: every condition on every article, against one reference per article."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from qevict_jax.diagnostics.conditions import Condition, observe, policy_of
from qevict_jax.diagnostics.measure import Measures, Observed, measure
from qevict_jax.diagnostics.missed_mass import HORIZON
from qevict_jax.diagnostics.reference import reference, settings_of
from qevict_jax.diagnostics.summary import Summary, summarize
from qevict_jax.evaluation.teacher_forcing import record_prompt
from qevict_jax.models import LanguageModel
from qevict_jax.types import QEvictError


class Article(NamedTuple):
    """Known tokens to diagnose on.

    Attributes:
        name: for file names and messages.
        tokens: ``prefill + steps + 1`` of them, BOS included; the last is only looked up.
    """

    name: str
    tokens: Int[np.ndarray, "size"]


@dataclass(frozen=True)
class Diagnosis:
    """What was compared and what came out.

    Attributes:
        conditions: in order.
        articles: in order.
        prefill: tokens of each prompt.
        steps: tokens fed after it.
        measures: metrics by condition, an entry per article.
        observed: the runs on the first article, by condition.
        summaries: all articles together, by condition.
    """

    conditions: list[Condition]
    articles: list[Article]
    prefill: int
    steps: int
    measures: list[dict[str, Measures]]
    observed: dict[str, Observed]
    summaries: dict[str, Summary]


def diagnose(
    model: LanguageModel,
    articles: Sequence[Article],
    conditions: Sequence[Condition],
    *,
    prefill: int = 512,
    reference_dir: str | Path | None = None,
    progress: bool = False,
) -> Diagnosis:
    """Runs every condition on every article, teacher-forced on the article's own tokens.

    The paper lets the model write; here all conditions read the same tokens, so that they are paired.

    Args:
        model: the model.
        articles: what to read, all of one size.
        conditions: what to compare.
        prefill: tokens read as a prompt; those after it, a multiple of every condition's steps between events, are fed.
        reference_dir: where references are kept and found again, made if missing; None throws them away.
        progress: show bars on stderr.

    Raises:
        QEvictError: the steps do not fit a condition, a budget is too small, or a stored reference belongs to another
            run.
    """
    model.check_one_device("diagnosis")
    if not articles or not conditions:
        raise QEvictError("there is nothing to diagnose: give at least one article and one condition")
    steps = len(articles[0].tokens) - prefill - 1
    policies = {one.name: policy_of(model, one, prefill + steps) for one in conditions}
    intervals = [1 if policy is None else policy.event_steps for policy in policies.values()]
    for condition, interval in zip(conditions, intervals, strict=True):
        if steps < 1 or steps % interval:
            raise QEvictError(
                f"steps={steps} must be a multiple of {interval} for {condition.name} ({condition.label})"
            )
    every = math.gcd(HORIZON, *intervals)
    kv_dtype = conditions[0].config.kv_dtype
    measures, first = [], {}
    with TemporaryDirectory() as scratch:
        directory = Path(scratch if reference_dir is None else reference_dir)
        directory.mkdir(parents=True, exist_ok=True)
        for name, tokens in articles:
            settings = settings_of(model, tokens, prefill=prefill, steps=steps, every=every, kv_dtype=kv_dtype)
            full = reference(model, tokens, directory / f"{name}.npz", settings, progress=progress)
            record = record_prompt(model.program, model.params, tokens[None, :prefill], model.dtype)
            bar = tqdm(conditions, desc=name, unit="condition", disable=not progress)
            observed = {
                one.name: observe(model, one, policies[one.name], full, record, tokens[prefill:]) for one in bar
            }
            measures.append(measure(full, observed))
            first = first or observed
            if reference_dir is None:
                full.path.unlink()
    summaries = {one.name: summarize([metrics[one.name] for metrics in measures]) for one in conditions}
    return Diagnosis(list(conditions), list(articles), prefill, steps, measures, first, summaries)


def cut_article(model: LanguageModel, name: str, token_ids: Sequence[int], offset: int, size: int) -> Article:
    """An article of ``size`` tokens from a text without BOS; it starts with one if the model uses one.

    Raises:
        QEvictError: if the text ends before.
    """
    bos = [] if model.tokenizer is None or model.tokenizer.bos_id is None else [model.tokenizer.bos_id]
    wanted = size - len(bos)
    if offset < 0 or offset + wanted > len(token_ids):
        raise QEvictError(
            f"offset {offset} of {name} needs {wanted} tokens from there on; the text has {len(token_ids)} in all"
        )
    return Article(f"{name}_{offset}", np.asarray([*bos, *token_ids[offset : offset + wanted]], np.int32))
