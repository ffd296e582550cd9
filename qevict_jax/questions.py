# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A prompt in two parts, a context and a question about it, and the two ways to compress it.

Question-aware: the cache is compressed after the question, with the question in view. Question-agnostic: it is
compressed after the context, and the question is fed to what is left; only that tells what a cache keeps that was made
before anyone knew what would be asked. The tokens are the same in both.
"""

from collections.abc import Mapping, Sequence

from qevict_jax.models import LanguageModel
from qevict_jax.types import QEvictError

AWARE, AGNOSTIC = "question-aware", "question-agnostic"


def split_prompt(
    model: LanguageModel, prompt: str | Sequence[int] | Sequence[Mapping[str, str]], question: str, index: int = 0
) -> tuple[list[int], list[int]]:
    """Token ids of a context and of the question that follows it.

    Args:
        model: from `load`.
        prompt: a text, or chat messages, not ids; the question goes on where the text or the last message ends.
        question: the question; in a chat what the template puts after it belongs to it.
        index: number of the prompt, for messages.

    Raises:
        QEvictError: the question or what precedes it is empty, the prompt is neither text nor messages, or the chat
            template changes the question.
    """
    if model.tokenizer is None:
        raise QEvictError("this model has no tokenizer, so it takes no question")
    if not question.strip():
        raise QEvictError(f"question {index} is empty")
    if isinstance(prompt, str):
        context, rest = prompt, question
    elif len(prompt) and isinstance(prompt[0], Mapping):
        *before, last = (message for message in prompt if isinstance(message, Mapping))
        whole = model.tokenizer.render([*before, {**last, "content": last["content"] + question}])
        at = whole.rfind(question.strip())
        if at < 0:
            raise QEvictError(
                "the chat template of this model changes the question, so it cannot be told from the text"
            )
        context, rest = whole[:at], whole[at:]
    else:
        raise QEvictError(f"prompt {index} has a question, so it must be a text or chat messages")
    ids = model.tokenizer.encode(context)
    if not context.strip():
        raise QEvictError(f"prompt {index} is empty: there is nothing that the question is about")
    return ids, model.tokenizer.encode(rest, add_bos=False)
