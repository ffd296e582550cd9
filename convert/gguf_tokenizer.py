# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json and its companions, built from GGUF metadata.

A GGUF file stores vocabulary and merges of a byte-level BPE but names its pre-tokenizer only; what a name
stands for is the table `_PRE_TOKENIZERS`. A name that is not in it is refused: guessing gives wrong ids.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from qevict_jax.types import QEvictError

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

# Llama 3 splits digits in threes, Qwen2 singly; otherwise the two patterns agree.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _PreTokenizer:
    """What a pre-tokenizer name stands for; `adds_bos` holds when the file does not say."""

    steps: tuple
    adds_bos: bool = False
    nfc: bool = False
    ignore_merges: bool = False


def _split(digits: str) -> tuple:
    pattern = Regex(_WORDS.format(digits=digits))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return (pre_tokenizers.Split(pattern, behavior="isolated"), bytes_only)


_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer((_GPT2,)),
    "smollm": _PreTokenizer((pre_tokenizers.Digits(individual_digits=True), _GPT2)),
    "llama-bpe": _PreTokenizer(_split(r"\p{N}{1,3}"), adds_bos=True, ignore_merges=True),
    "qwen2": _PreTokenizer(_split(r"\p{N}"), nfc=True),
}


class GGUFTokenizer:
    """The tokenizer that the metadata describe.

    Attributes:
        tokens: text of every id.
        eos_ids: every id that ends generation (end of text, of turn, of message).

    Raises:
        QEvictError: the kind of tokenizer is not supported, or a part is missing.
    """

    def __init__(self, metadata: Mapping[str, Any]):
        def value(key: str, default: Any = None) -> Any:
            return metadata.get(f"tokenizer.ggml.{key}", default)

        kind, pre = value("model"), value("pre")
        if kind != "gpt2":
            raise QEvictError(f"GGUF tokenizer {kind!r} is not supported; supported: gpt2 (byte-level BPE)")
        if pre not in _PRE_TOKENIZERS:
            names = ", ".join(_PRE_TOKENIZERS)
            raise QEvictError(f"GGUF pre-tokenizer {pre!r} is not supported; supported: {names}")
        for key in ("tokens", "merges", "token_type"):
            if not value(key):
                raise QEvictError(f"metadata key tokenizer.ggml.{key} is missing")
        self._pre = _PRE_TOKENIZERS[pre]
        self.tokens: list[str] = value("tokens")
        self._types: list[int] = value("token_type")
        self._merges = [tuple(merge.split(" ")) for merge in value("merges")]
        self._template: str | None = metadata.get("tokenizer.chat_template")
        ids = {name: value(f"{name}_token_id") for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
        for name, token_id in ids.items():
            if token_id is not None and token_id >= len(self.tokens):
                raise QEvictError(
                    f"tokenizer.ggml.{name}_token_id is {token_id}, there are {len(self.tokens)} tokens"
                )
        self._ids = {name: token_id for name, token_id in ids.items() if token_id is not None}
        self.eos_ids: list[int] = sorted(
            {self._ids[name] for name in ("eos", "eot", "eom") if name in self._ids}
        )
        self._adds_bos = bool(value("add_bos_token", self._pre.adds_bos)) and "bos" in self._ids

    def build(self) -> tokenizers.Tokenizer:
        """The tokenizer of the `tokenizers` package."""
        vocab = {token: i for i, token in enumerate(self.tokens)}
        backend = tokenizers.Tokenizer(
            models.BPE(vocab=vocab, merges=self._merges, ignore_merges=self._pre.ignore_merges)
        )
        if self._pre.nfc:
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(list(self._pre.steps))
        backend.decoder = decoders.ByteLevel()
        for token, kind in zip(self.tokens, self._types, strict=True):
            if kind in (_CONTROL, _USER_DEFINED):
                special = kind == _CONTROL
                backend.add_tokens([AddedToken(token, special=special, normalized=False)])
        if self._adds_bos:
            bos = self.tokens[self._ids["bos"]]
            backend.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, self._ids["bos"])]
            )
        return backend

    def write(self, directory: Path) -> None:
        """Writes tokenizer.json, tokenizer_config.json and, if there is one, chat_template.jinja."""
        self.build().save(str(directory / "tokenizer.json"))
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self._adds_bos,
        }
        config["clean_up_tokenization_spaces"] = False
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        config |= {key: self.tokens[self._ids[name]] for name, key in names.items() if name in self._ids}
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        if self._template is not None:
            (directory / "chat_template.jinja").write_text(self._template)
