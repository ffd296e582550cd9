# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The tiny tokenizer as the library reads it, and questions written down by hand."""

from functools import cache

from qevict_jax.models.tokenizer import Tokenizer
from tests.tiny_tokenizer import BOS, CHAT_TEMPLATES, END_OF_TURN, PAD, build_tokenizer, token_id


@cache
def tokenizer() -> Tokenizer:
    """With BOS and a chat template."""
    config = {"bos_token": BOS, "eos_token": END_OF_TURN, "pad_token": PAD}
    backend = build_tokenizer(add_bos=True)
    return Tokenizer(backend, config, frozenset({token_id(END_OF_TURN)}), CHAT_TEMPLATES["with_bos"])


def decode(tokens) -> str:
    """The text of a prompt, special tokens left out."""
    return tokenizer().decode(tokens)
