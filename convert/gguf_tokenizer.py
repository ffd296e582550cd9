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

from convert.gguf_sentencepiece import sentencepiece_backend
from qevict_jax.types import QEvictError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # values of tokenizer.ggml.token_type

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
_LLAMA3 = _PreTokenizer(_split(r"\p{N}{1,3}"), adds_bos=True, ignore_merges=True)
_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _PreTokenizer(_split(r"\p{N}"), nfc=True),
    "smollm": _PreTokenizer((pre_tokenizers.Digits(individual_digits=True), _GPT2)),
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
        self._metadata = metadata
        self._kind = self._value("model")
        if self._kind == "gpt2":
            pre = self._value("pre")
            if pre not in _PRE_TOKENIZERS:
                names = ", ".join(_PRE_TOKENIZERS)
                raise QEvictError(f"GGUF pre-tokenizer {pre!r} is not supported; supported: {names}")
            self._pre = _PRE_TOKENIZERS[pre]
            needed, adds_bos = ("tokens", "token_type", "merges"), self._pre.adds_bos
        elif self._kind == "llama":
            needed, adds_bos = ("tokens", "token_type", "scores"), True
        else:
            raise QEvictError(
                f"GGUF tokenizer {self._kind!r} is not supported; supported: gpt2 (byte-level BPE), "
                "llama (SentencePiece BPE)"
            )
        for key in needed:
            if not self._value(key):
                raise QEvictError(f"metadata key tokenizer.ggml.{key} is missing")
        self.tokens: list[str] = self._value("tokens")
        self._types: list[int] = self._value("token_type")
        self._ids = self._special_ids()
        stops = ("eos", "eot", "eom")
        self.eos_ids: list[int] = sorted({self._ids[name] for name in stops if name in self._ids})
        self._adds_bos = bool(self._value("add_bos_token", adds_bos)) and "bos" in self._ids

    def build(self) -> tokenizers.Tokenizer:
        """The tokenizer of the `tokenizers` package."""
        backend = self._byte_level() if self._kind == "gpt2" else self._sentencepiece()
        for token, kind in zip(self.tokens, self._types, strict=True):
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED):
                special = kind != _USER_DEFINED
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
            "clean_up_tokenization_spaces": False,
        }
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        config |= {key: self.tokens[self._ids[name]] for name, key in names.items() if name in self._ids}
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        template = self._metadata.get("tokenizer.chat_template")
        if template is not None:
            (directory / "chat_template.jinja").write_text(template, encoding="utf-8")

    def _value(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def _special_ids(self) -> dict[str, int]:
        ids = {}
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding"):
            token_id = self._value(f"{name}_token_id")
            if token_id is None:
                continue
            if token_id >= len(self.tokens):
                raise QEvictError(f"tokenizer.ggml.{name}_token_id is {token_id}, there are {len(self.tokens)} tokens")
            ids[name] = token_id
        return ids

    def _byte_level(self) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(
            models.BPE(
                vocab={token: i for i, token in enumerate(self.tokens)},
                merges=[tuple(merge.split(" ")) for merge in self._value("merges")],
                ignore_merges=self._pre.ignore_merges,
            )
        )
        if self._pre.nfc:
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(list(self._pre.steps))
        backend.decoder = decoders.ByteLevel()
        return backend

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        unknown = self.tokens[self._ids["unknown"]] if "unknown" in self._ids else None
        prefix = self._value("add_space_prefix", True)
        return sentencepiece_backend(self.tokens, self._value("scores"), self._types, unknown, prefix)
