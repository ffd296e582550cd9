# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""From the text of a task to the token ids that a model reads."""

from collections.abc import Sequence
from itertools import takewhile

from qevict_jax.models.tokenizer import Tokenizer


def prompt_tokens(tokenizer: Tokenizer, text: str, *, chat: bool, prefix: str = "") -> list[int]:
    """Token ids of a prompt.

    Args:
        tokenizer: the model's.
        text: the task.
        chat: the text is what the user says; then the model's chat format goes around it.
        prefix: how the answer begins; the model continues from here. Without a chat it stands after a space.

    Raises:
        QEvictError: ``chat`` with a model that has no chat template.
    """
    if chat:
        return tokenizer.encode(tokenizer.render([{"role": "user", "content": text}]) + prefix)
    return tokenizer.encode(f"{text} {prefix}" if prefix else text)


def question_tokens(tokenizer: Tokenizer, prompt: Sequence[int], text: str, question: str, *, chat: bool) -> int:
    """Tokens at the end of a prompt from its question on: with it the chat format and the answer's prefix.

    Args:
        tokenizer: the model's.
        prompt: what `prompt_tokens` made of ``text``. A token that joins context and question counts as question.
        text: context and question.
        question: the end of ``text``.
        chat: as for `prompt_tokens`.

    Returns:
        Their number; 0 if the question is empty or cannot be told from the text, as where a template changes it.
    """
    if chat:
        text = tokenizer.render([{"role": "user", "content": text}])
    at = text.rfind(question.strip())
    if not question.strip() or at < 0:
        return 0
    same = zip(prompt, tokenizer.encode(text[:at]), strict=False)
    return len(prompt) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], same))


def truncate_middle(tokens: Sequence[int], limit: int) -> list[int]:
    """The first and the last ``limit / 2`` tokens of a sequence that is longer than ``limit`` (LongBench's rule)."""
    if len(tokens) <= limit:
        return list(tokens)
    first = limit // 2
    return [*tokens[:first], *tokens[len(tokens) - (limit - first) :]]
