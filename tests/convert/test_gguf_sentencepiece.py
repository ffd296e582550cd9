# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""SentencePiece merges by score, falls back to bytes, and puts one space in front."""

import pytest

from convert.gguf_sentencepiece import merges
from convert.gguf_tokenizer import GGUFTokenizer
from qevict_jax.models.tokenizer import Tokenizer

_PIECES = ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc"]
_SCORES = [-9.0, -9.0, -9.0, -9.0, -3.0, -1.0, -0.5, -2.0]
_SPECIAL = ["<unk>", "<s>", "</s>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_TOKENS = [*_SPECIAL, *_BYTES, *_PIECES]
_TYPES = [2, 3, 3, *[6] * 256, *[1] * len(_PIECES)]
_KEYS = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": _TOKENS,
    "tokenizer.ggml.scores": [*[0.0] * 259, *_SCORES],
    "tokenizer.ggml.token_type": _TYPES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}


@pytest.fixture
def tokenizer(tmp_path):
    GGUFTokenizer(_KEYS).write(tmp_path)
    return Tokenizer.load(tmp_path)


def test_merges_follow_the_score_of_the_whole():
    expected = [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c"), ("▁", "a")]
    assert merges(_TOKENS, _KEYS["tokenizer.ggml.scores"], _TYPES) == expected


def _pieces(tokenizer, text):
    return [_TOKENS[i] for i in tokenizer.encode(text)]


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("abc", ["<s>", "▁", "abc"]),  # bc has the best score, then a + bc
        ("a b", ["<s>", "▁a", "▁", "b"]),
        ("aé", ["<s>", "▁a", "<0xC3>", "<0xA9>"]),
        ("a</s>", ["<s>", "▁a", "</s>"]),
    ],
)
def test_ids_and_back(tokenizer, text, pieces):
    assert _pieces(tokenizer, text) == pieces
    assert tokenizer.decode(tokenizer.encode(text)) == text.removesuffix("</s>")


def test_stream_keeps_spaces_and_waits_for_whole_characters(tokenizer):
    stream = tokenizer.stream()
    parts = [stream.push(token) for token in tokenizer.encode("a bé a")]
    assert "".join(parts) == "a bé a" and not any("\ufffd" in part for part in parts)


def test_without_a_space_in_front(tmp_path):
    GGUFTokenizer(_KEYS | {"tokenizer.ggml.add_space_prefix": False}).write(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert _pieces(tokenizer, " ab") == ["<s>", "▁", "ab"]
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"
