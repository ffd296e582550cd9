# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Fidelity: how close the next-token distributions of a compressed cache are to those of the full cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from qevict_jax.config import CacheConfig
from qevict_jax.evaluation.teacher_forcing import divergence, log_probs, record_prompt
from qevict_jax.models import LanguageModel
from qevict_jax.plan import CachePlan
from qevict_jax.policies import Policy, make_policy, plan_cache
from qevict_jax.policies.full import Full
from qevict_jax.questions import AGNOSTIC, AWARE
from qevict_jax.types import BudgetError, QEvictError

_REFERENCE_CHUNK = 64  # tokens that share one pass over the full cache; nothing is routed there


@dataclass(frozen=True)
class FidelityResult:
    """One configuration against the full cache in the same ``kv_dtype``. Lists have one value per offset.

    Attributes:
        config: the cache.
        plan: its capacities and bytes, None if it does not fit.
        error: why it did not run, None if it did; then the rest is empty.
        kl: mean KL(full || compressed) over the steps, nats.
        top1: share of steps at which both prefer the same token.
        nll_difference: mean NLL of the true next token, compressed minus full, nats.
        full_nll: mean NLL of the true next token with the full cache, nats.
        kv_bytes: bytes of one sequence, added up over the real arrays.
        full_kv_bytes: bytes of a full cache of the same length.
        question_tokens: last tokens of the prompt that were fed to the compressed cache, 0 if it was compressed with
            all of them in view.
    """

    config: CacheConfig
    plan: CachePlan | None = None
    error: str | None = None
    kl: tuple[float, ...] = ()
    top1: tuple[float, ...] = ()
    nll_difference: tuple[float, ...] = ()
    full_nll: tuple[float, ...] = ()
    kv_bytes: int = 0
    full_kv_bytes: int = 0
    question_tokens: int = 0

    @property
    def protocol(self) -> str:
        """`qevict_jax.questions`."""
        return AGNOSTIC if self.question_tokens else AWARE

    @property
    def ratio_allocated(self) -> float:
        """Real bytes as a fraction of the full cache."""
        return self.kv_bytes / self.full_kv_bytes

    @property
    def mean_kl(self) -> float:
        """Mean over offsets."""
        return float(np.mean(self.kl))

    @property
    def spread_kl(self) -> float:
        """Standard deviation over offsets, of the sample; 0 with one offset."""
        return float(np.std(self.kl, ddof=1)) if len(self.kl) > 1 else 0.0


def fidelity(
    model: LanguageModel,
    token_ids: Sequence[int],
    configs: Sequence[CacheConfig],
    *,
    prefill: int = 2048,
    steps: int = 192,
    offsets: Sequence[int] = (0,),
    question: int = 0,
    progress: bool = False,
    on_result: Callable[[FidelityResult], None] = lambda result: None,
) -> list[FidelityResult]:
    """Compares configurations with the full cache on a known text, teacher-forced.

    A row reads ``prefill`` tokens of the text from its offset, then ``steps`` more; the distributions after those are
    compared. All offsets are rows of one batch. Capacities come from the exact length, ``prefill + steps``.

    Args:
        model: the model.
        token_ids: the text, without BOS; each row starts with one if the model uses one.
        configs: caches to compare; each costs one compilation per distinct shape.
        prefill: tokens read as a prompt.
        steps: distributions compared, one per token after the prompt.
        offsets: first token of each row.
        question: last tokens of the prompt that the cache is compressed without and that are fed to it afterwards, as
            a question in the question-agnostic protocol; 0 compresses with the whole prompt in view.
        progress: show a bar on stderr.
        on_result: called with every result as it comes.

    Returns:
        One result per configuration, in order. One whose budget is too small has ``error`` set.

    Raises:
        QEvictError: if the text is too short, or the model's context is, or a policy lacks its calibration.
    """
    model.check_one_device("fidelity")
    rows = text_rows(model, token_ids, prefill, steps, offsets)
    if not 0 <= question < prefill:
        raise QEvictError(f"question={question} must lie in 0 .. {prefill - 1}, a part of the {prefill} prompt tokens")
    read = prefill - question
    policies = [_policy(model, config, prefill + steps) for config in configs]  # what cannot run is said at once
    record = record_prompt(model.program, model.params, rows[:, :read], model.dtype)
    tokens, targets = rows[:, read:-1], rows[:, read + 1 :]
    reference_dtype, reference = "", jnp.zeros(())
    results: dict[int, FidelityResult] = {}
    # one reference is in memory at a time
    order = sorted(range(len(configs)), key=lambda i: configs[i].kv_dtype)
    for i in tqdm(order, desc="fidelity", unit="cache", disable=not progress):
        config = configs[i]
        shape = model.config.kv_shape(config.kv_dtype)
        if config.kv_dtype != reference_dtype:
            full = Full(plan_cache(shape, CacheConfig.full(config.kv_dtype), prefill + steps), shape, _REFERENCE_CHUNK)
            reference_dtype, reference = config.kv_dtype, None
            reference = log_probs(model.program, model.params, full, record, tokens)
        policy = policies[i]
        if isinstance(policy, BudgetError):
            results[i] = FidelityResult(config, error=str(policy), question_tokens=question)
            on_result(results[i])
            continue
        seen, cache = divergence(model.program, model.params, policy, record, tokens, targets, reference)
        seen = {name: values[question:] for name, values in seen.items()}
        results[i] = FidelityResult(
            config,
            policy.plan,
            kl=_per_row(seen["kl"]),
            top1=_per_row(seen["top1"]),
            nll_difference=_per_row(seen["nll"] - seen["reference_nll"]),
            full_nll=_per_row(seen["reference_nll"]),
            kv_bytes=sum(x.nbytes for x in jax.tree.leaves(cache)) // len(offsets),
            full_kv_bytes=policy.plan.full_kv_bytes,
            question_tokens=question,
        )
        on_result(results[i])
    return [results[i] for i in range(len(configs))]


def _policy(model: LanguageModel, config: CacheConfig, total_len: int) -> Policy | BudgetError:
    """The policy, or why its budget cannot hold it."""
    try:
        return make_policy(model.config.kv_shape(config.kv_dtype), config, total_len)
    except BudgetError as error:
        return error


def text_rows(
    model: LanguageModel, token_ids: Sequence[int], prefill: int, steps: int, offsets: Sequence[int]
) -> Int[Array, "B N"]:
    """What `fidelity` reads: a row of ``prefill + steps + 1`` tokens per offset, with the BOS of a model that uses one.

    Raises:
        QEvictError: the text or the model's context is too short, or a number is out of range; says what works.
    """
    if prefill < 1 or steps < 1 or not offsets:
        raise QEvictError(f"prefill={prefill} and steps={steps} must be at least 1, and there must be an offset")
    if prefill + steps > model.config.max_position:
        raise QEvictError(
            f"prefill={prefill} and steps={steps} exceed the model's context of {model.config.max_position} tokens"
        )
    bos = [] if model.tokenizer is None or model.tokenizer.bos_id is None else [model.tokenizer.bos_id]
    size = prefill + steps + 1 - len(bos)  # the last distribution is compared with one more token of the text
    for offset in offsets:
        if offset < 0 or offset + size > len(token_ids):
            most = len(token_ids) - size
            works = f"offsets from 0 to {most} work" if most >= 0 else "use a longer text, or fewer prefill or steps"
            raise QEvictError(
                f"offset {offset} with prefill={prefill} and steps={steps} needs {size} tokens; the text has "
                f"{len(token_ids)}: {works}"
            )
    rows = [[*bos, *token_ids[offset : offset + size]] for offset in offsets]
    return jnp.asarray(rows, jnp.int32)


def _per_row(values: Float[Array, "N B"]) -> tuple[float, ...]:
    return tuple(np.asarray(values, np.float64).mean(axis=0).tolist())
