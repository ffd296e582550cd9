# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What one prompt gave: text and tokens, bytes and times."""

from dataclasses import dataclass

from qevict_jax.engine import NOTHING_SPENT, Engine, Spent
from qevict_jax.reply import Reply


@dataclass(frozen=True)
class Result:
    """What one prompt gave.

    Attributes:
        text: the answer, without special tokens and without the stop string.
        tokens: drawn token ids, the one that ended the row included.
        log_probs: natural log-probability of each of them under the model, if asked for.
        finish_reason: "stop" (an EOS token or a stop string) or "length".
        prompt_tokens: tokens of the prompt.
        kv_bytes: bytes of the real cache arrays, per row of the batch.
        full_kv_bytes: bytes of a full cache of the same static capacity and dtype.
        ratio_allocated: ``kv_bytes / full_kv_bytes``, never above the budget.
        ratio_own: ``kv_bytes`` against a full cache of just this row's tokens.
        time_to_first_token: seconds of prefill and first draw, compilation not included.
        time_per_token: seconds of a decode step of the batch, compilation not included.
        compile_time: seconds spent compiling.
        protocol: "question-aware" or "question-agnostic" (`qevict_jax.questions`), None without a question.
        question_tokens: tokens of the prompt that are the question.
    """

    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    finish_reason: str
    prompt_tokens: int
    kv_bytes: int
    full_kv_bytes: int
    ratio_allocated: float
    ratio_own: float
    time_to_first_token: float
    time_per_token: float
    compile_time: float
    protocol: str | None = None
    question_tokens: int = 0


def make_result(
    engine: Engine,
    reply: Reply,
    *,
    prompt_tokens: int,
    steps: int,
    before: Spent = NOTHING_SPENT,
    protocol: str | None = None,
    question_tokens: int = 0,
) -> Result:
    """The result of a row that is still in its engine.

    Args:
        engine: where it decoded; bytes are those of its real arrays.
        reply: what came, whole or cut short.
        prompt_tokens: tokens that the row had seen before the first one drawn.
        steps: decode steps of the batch.
        before: what the engine had spent before this row; default, it was made for it.
        protocol: as in `Result`.
        question_tokens: as in `Result`.
    """
    plan, kv_bytes = engine.plan, engine.kv_bytes
    spent = engine.spent.since(before)
    fed = prompt_tokens + len(reply.tokens) - 1  # the token drawn last is never fed
    return Result(
        text=reply.text,
        tokens=tuple(reply.tokens),
        log_probs=tuple(reply.log_probs) if engine.compiled.decoder.log_probs else None,
        finish_reason=reply.finish_reason or "length",
        prompt_tokens=prompt_tokens,
        kv_bytes=kv_bytes,
        full_kv_bytes=plan.full_kv_bytes,
        ratio_allocated=kv_bytes / plan.full_kv_bytes,
        ratio_own=kv_bytes / (fed * (plan.full_kv_bytes // plan.total_len)),
        time_to_first_token=spent.prefill,
        time_per_token=spent.decode / max(1, steps),
        compile_time=spent.compile,
        protocol=protocol,
        question_tokens=question_tokens,
    )
