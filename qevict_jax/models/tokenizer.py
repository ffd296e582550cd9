# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, from the tokenizer files of a model directory, with exactly one BOS."""

import copy
import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from qevict_jax.models.chat_template import ChatTemplate
from qevict_jax.types import QEvictError


class Tokenizer:
    """A `tokenizers` tokenizer with the special tokens and the chat template of its model.

    Attributes:
        bos_id: the token that starts a sequence, or None when the model uses none.
        eos_ids: every id that ends generation: generation config, model config and tokenizer together.
        pad_id: fills the unused part of a batch row; the pad token, else an EOS, else 0.
        now: the moment that the chat template takes for the present; None for the clock's, and where it writes no date.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any],
        eos_ids: frozenset[int],
        template: str | None,
    ):
        self._backend = backend
        # Padding and truncation saved in tokenizer.json would change prompts behind the caller's back.
        backend.no_padding()
        backend.no_truncation()
        special = {key: _content(config.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        self._special_tokens = {key: token for key, token in special.items() if token is not None}
        self.bos_id: int | None = self._special_id("bos_token") if self._starts_with_bos(config) else None
        eos_id = self._special_id("eos_token")
        self.eos_ids: frozenset[int] = eos_ids | ({eos_id} if eos_id is not None else frozenset())
        pad_id = self._special_id("pad_token")
        self.pad_id: int = pad_id if pad_id is not None else min(self.eos_ids, default=0)
        self.now: datetime.datetime | None = None
        self._template = None if template is None else ChatTemplate(template, self._special_tokens)

    @classmethod
    def load(cls, directory: str | Path) -> "Tokenizer":
        """Reads tokenizer.json, tokenizer_config.json, the chat template and all lists of EOS ids.

        Raises:
            QEvictError: `directory` has no tokenizer.json, or a file in it cannot be read.
        """
        directory = Path(directory)
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise QEvictError(f"{directory} has no tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception
            raise QEvictError(f"{file} cannot be read: {error}") from None
        config = read_json(directory / "tokenizer_config.json")
        eos_ids = frozenset[int]().union(
            *(eos_list(read_json(directory / name)) for name in ("generation_config.json", "config.json"))
        )
        return cls(backend, config, eos_ids, chat_template_source(directory, config))

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` works."""
        return self._template is not None

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Token ids of `text`, after the BOS if the model uses one and `add_bos`; never after two."""
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return self._one_bos(ids) if add_bos else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, without special tokens; bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation of ``{"role": ..., "content": ...}`` in the model's chat format.

        Raises:
            QEvictError: the model has no chat template, or its template refuses the conversation.
        """
        return self.encode(self.render(messages, add_generation_prompt))

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The text that `chat` encodes; a conversation that goes on encodes only what is new in it.

        Raises:
            QEvictError: as `chat`.
        """
        if self._template is None:
            raise QEvictError("this model has no chat template; give it a plain prompt instead")
        return self._template.render(messages, add_generation_prompt, self.now)

    def at(self, now: datetime.datetime | None) -> "Tokenizer":
        """This tokenizer at a fixed moment, so that a chat template that writes the date gives the same text again."""
        fixed = copy.copy(self)
        fixed.now = now if self._template is not None and self._template.dated else None
        return fixed

    def stream(self) -> "Detokenizer":
        """A new incremental decoder."""
        return Detokenizer(self)

    def _special_id(self, key: str) -> int | None:
        token = self._special_tokens.get(key)
        return None if token is None else self._backend.token_to_id(token)

    def _starts_with_bos(self, config: Mapping[str, Any]) -> bool:
        """What the tokenizer itself does decides; some only say it in add_bos_token."""
        bos_id = self._special_id("bos_token")
        if bos_id is None:
            return False
        stated = config.get("add_bos_token")
        return bos_id in self._backend.encode("").ids if stated is None else bool(stated)

    def _one_bos(self, ids: list[int]) -> list[int]:
        if self.bos_id is None:
            return ids
        written = next((i for i, token in enumerate(ids) if token != self.bos_id), len(ids))
        return [self.bos_id, *ids[written:]]


class Detokenizer:
    """Turns a stream of token ids into text; a character appears when its last byte has arrived.

    Some decoders drop the space before the first token, so a token is decoded after the ones before it and
    the difference is what is new. The context is the last ids that ended on a whole character.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._decode = tokenizer.decode
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Adds one id and returns the text that is now certain, often one word, sometimes nothing."""
        self._pending.append(token_id)
        # An unfinished character decodes to U+FFFD.
        return "" if self._new_text().endswith("\ufffd") else self.flush()

    def flush(self) -> str:
        """Returns what is still held back, unfinished characters as U+FFFD."""
        text = self._new_text()
        if text:
            self._context = self._pending
        self._pending = []
        return text

    def _new_text(self) -> str:
        return self._decode(self._context + self._pending)[len(self._decode(self._context)) :]


def read_json(file: Path) -> dict[str, Any]:
    """The dictionary in `file`, empty when there is no such file."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise QEvictError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise QEvictError(f"{file} must hold a JSON object")
    return content


def eos_list(config: Mapping[str, Any]) -> list[int]:
    """``eos_token_id`` of a Hugging Face config: absent, one id, or a list."""
    ids = config.get("eos_token_id")
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def chat_template_source(directory: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Jinja text of the chat template: its own file, else in tokenizer_config.json, perhaps by name."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _content(token: Any) -> str | None:
    """A special token is a string, or a dictionary of its properties in transformers 4."""
    return token["content"] if isinstance(token, dict) else token
