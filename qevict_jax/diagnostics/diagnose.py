# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A comparison of conditions on articles: every condition on every article, against one reference per article."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from qevict_jax.diagnostics.conditions import Condition, observe
from qevict_jax.diagnostics.measure import Measures, Observed, measure
from qevict_jax.diagnostics.missed_mass import HORIZON
from qevict_jax.diagnostics.reference import reference, settings_of
from qevict_jax.diagnostics.summary import Summary, summarize
from qevict_jax.evaluation.teacher_forcing import record_prompt
from qevict_jax.models import LanguageModel
from qevict_jax.types import QEvictError


@dataclass(frozen=True)
class Diagnosis:
    """What was compared and what came out.

    Attributes:
        conditions: in order.
        offsets: first token of each article in the text.
        prefill: tokens of each prompt.
        steps: tokens fed after it.
        articles: metrics by condition, an entry per article.
        observed: the runs on the first article, by condition.
        summaries: all articles together, by condition.
    """

    conditions: list[Condition]
    offsets: list[int]
    prefill: int
    steps: int
    articles: list[dict[str, Measures]]
    observed: dict[str, Observed]
    summaries: dict[str, Summary]


def diagnose(
    model: LanguageModel,
    token_ids: Sequence[int],
    conditions: Sequence[Condition],
    *,
    prefill: int = 512,
    steps: int = 256,
    offsets: Sequence[int] = (0,),
    reference_dir: str | Path | None = None,
    progress: bool = False,
) -> Diagnosis:
    """Runs every condition on every article, teacher-forced on the article's own tokens.

    The paper lets the model write 256 tokens; here all conditions read the same ones, so that they are paired.

    Args:
        model: the model.
        token_ids: the text, without BOS; each article starts with one if the model uses one.
        conditions: what to compare.
        prefill: tokens read as a prompt.
        steps: tokens fed after it; a multiple of every condition's steps between events.
        offsets: first token of each article.
        reference_dir: where references are kept and found again, made if missing; None throws them away.
        progress: show bars on stderr.

    Raises:
        QEvictError: the text is too short, the steps do not fit a condition, a budget is too small, or a stored
            reference belongs to another run.
    """
    if not offsets or min(offsets) < 0:
        raise QEvictError(f"offsets={list(offsets)} must be one or more positions in the text")
    for condition in conditions:
        if steps % condition.interval:
            raise QEvictError(
                f"steps={steps} must be a multiple of {condition.interval} for {condition.name} ({condition.label})"
            )
    every = math.gcd(HORIZON, steps, *(condition.interval for condition in conditions))
    kv_dtype = conditions[0].config.kv_dtype
    articles, first = [], {}
    with TemporaryDirectory() as scratch:
        directory = Path(scratch if reference_dir is None else reference_dir)
        directory.mkdir(parents=True, exist_ok=True)
        for offset in offsets:
            tokens = article(model, token_ids, offset, prefill + steps + 1)
            settings = settings_of(model, tokens.tolist(), prefill=prefill, steps=steps, every=every, kv_dtype=kv_dtype)
            full = reference(model, tokens.tolist(), directory / f"reference_{offset}.npz", settings, progress=progress)
            record = record_prompt(model.program, model.params, tokens[None, :prefill], model.dtype)
            bar = tqdm(conditions, desc=f"offset {offset}", unit="condition", disable=not progress)
            observed = {one.name: observe(model, one, full, record, tokens[prefill:]) for one in bar}
            articles.append(measure(full, observed))
            first = first or observed
    summaries = {one.name: summarize([metrics[one.name] for metrics in articles]) for one in conditions}
    return Diagnosis(list(conditions), list(offsets), prefill, steps, articles, first, summaries)


def article(model: LanguageModel, token_ids: Sequence[int], offset: int, size: int) -> Int[np.ndarray, "size"]:
    """Tokens of one article, with BOS if the model uses one.

    Raises:
        QEvictError: if the text ends before.
    """
    bos = [] if model.tokenizer is None or model.tokenizer.bos_id is None else [model.tokenizer.bos_id]
    body = token_ids[offset : offset + size - len(bos)]
    if len(bos) + len(body) < size:
        raise QEvictError(
            f"an article of {size} tokens from offset {offset} needs {offset + size - len(bos)} tokens; the text has "
            f"{len(token_ids)}"
        )
    return np.asarray([*bos, *body], np.int32)
