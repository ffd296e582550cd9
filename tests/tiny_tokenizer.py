# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of 276 ids for tests: 256 bytes, a few merges and four special tokens, with a chat template."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS, END_OF_TURN, PAD = "<|bos|>", "<|eos|>", "<|eot|>", "<|pad|>"
SPECIALS = (BOS, EOS, END_OF_TURN, PAD)
# "Ġ" is the byte-level picture of a space.
MERGES = [
    ("t", "h"), ("h", "e"), ("i", "n"), ("a", "n"), ("e", "r"), ("o", "n"), ("Ġ", "a"), ("th", "e"),
    ("Ġ", "the"), ("in", "g"), ("an", "d"), ("Ġ", "and"), ("o", "u"), ("Ġ", "s"), ("r", "e"), ("e", "s"),
]  # fmt: skip

_TURNS = (
    "{% for message in messages %}"
    "{{ '[' + message['role'] + ']' + message['content'] + '<|eot|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
CHAT_TEMPLATES = {"with_bos": "{{ bos_token }}" + _TURNS, "without_bos": _TURNS}


def build_tokenizer(*, add_bos: bool) -> Tokenizer:
    """Byte-level BPE; with `add_bos` the post-processor puts `<|bos|>` first, as Llama 3 checkpoints do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet + ["".join(pair) for pair in MERGES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    if add_bos:
        bos = [(BOS, token_id(BOS))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=bos)
    return tokenizer


def token_id(special: str) -> int:
    """Id of one of `SPECIALS`: they follow the bytes and the merges."""
    return 256 + len(MERGES) + SPECIALS.index(special)


def write_tokenizer(directory: Path, *, has_bos: bool, template: str, config_style: str) -> None:
    """Writes tokenizer.json, tokenizer_config.json and the chat template where the style keeps it.

    transformers 5 writes the template to chat_template.jinja and special tokens as strings; transformers 4
    keeps the template inside tokenizer_config.json and special tokens as dictionaries.
    """
    build_tokenizer(add_bos=has_bos).save(str(directory / "tokenizer.json"))
    names = {"bos_token": BOS if has_bos else None, "eos_token": END_OF_TURN, "pad_token": PAD}
    config: dict = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768}
    if config_style == "v5":
        config |= names
        (directory / "chat_template.jinja").write_text(CHAT_TEMPLATES[template])
    else:
        config |= {key: name and {"__type": "AddedToken", "content": name} for key, name in names.items()}
        config["chat_template"] = CHAT_TEMPLATES[template]
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
