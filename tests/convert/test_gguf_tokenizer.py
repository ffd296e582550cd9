# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Pre-tokenizers by name, special tokens, and SmolLM2's own ids."""

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2_PATTERN

from convert.gguf_tokenizer import GGUFTokenizer
from qevict_jax.models.tokenizer import Tokenizer
from tests.convert.tiny_gguf import tokenizer_keys
from tests.tiny_tokenizer import BOS, END_OF_TURN, EOS, token_id

TEXTS = [
    "In 1984, 1,234.56 clocks struck thirteen; it's O'Brien's 3rd.",
    "naïve café — “quotes” … 你好，世界 🎉👩‍👩‍👧 ﬁ Ⅷ ½ e\u0301",
    "  two  leading,\ttabs\r\n\n\n  and trailing   ",
    "def f(x):\n    return {'a': x**2}  # 100%\n",
    "",
    " ",
]


def _words(pre, text):
    """Pieces of `text` as the pre-tokenizer cuts it, spaces written as spaces."""
    backend = GGUFTokenizer(tokenizer_keys("llama") | {"tokenizer.ggml.pre": pre}).build()
    return [text[start:end] for _, (start, end) in backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    "pre, words",
    [
        ("gpt-2", ["It", "'s", " 12345", " DON", "'", "T", ",", " ok", "\n", "\n", "x"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " DON", "'", "T", ",", " ok", "\n", "\n", "x"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " DON", "'T", ",", " ok", "\n\n", "x"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " DON", "'T", ",", " ok", "\n\n", "x"]),
    ],
)
def test_words(pre, words):
    assert _words(pre, "It's 12345 DON'T, ok\n\nx") == words


def test_qwen2_cuts_as_transformers_does():
    backend = GGUFTokenizer(tokenizer_keys("qwen2") | {"tokenizer.ggml.pre": "qwen2"}).build()
    assert QWEN2_PATTERN in backend.to_str().replace("\\\\", "\\")
    assert backend.normalizer.normalize_str("e\u0301") == "é"


def test_special_tokens_and_stops(tmp_path):
    GGUFTokenizer(tokenizer_keys("llama")).write(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode(f"a{END_OF_TURN}b")[1:] == [
        *tokenizer.encode("a", add_bos=False), token_id(END_OF_TURN), *tokenizer.encode("b", add_bos=False),
    ]  # fmt: skip
    assert tokenizer.decode([token_id(EOS), token_id(END_OF_TURN)]) == ""
    assert GGUFTokenizer(tokenizer_keys("llama")).eos_ids == [token_id(EOS), token_id(END_OF_TURN)]


@pytest.mark.parametrize(
    "pre, stated, adds",
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", None, False), ("gpt-2", True, True)],
)
def test_bos_when_the_file_does_not_say(tmp_path, pre, stated, adds):
    keys = tokenizer_keys("llama") | {"tokenizer.ggml.pre": pre}
    del keys["tokenizer.ggml.add_bos_token"]
    GGUFTokenizer(keys if stated is None else keys | {"tokenizer.ggml.add_bos_token": stated}).write(tmp_path)
    assert Tokenizer.load(tmp_path).bos_id == (token_id(BOS) if adds else None)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_round_trip(tmp_path, pre, text):
    GGUFTokenizer(tokenizer_keys("qwen2") | {"tokenizer.ggml.pre": pre}).write(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    expected = text if pre != "qwen2" else text.replace("e\u0301", "é")
    assert tokenizer.decode(tokenizer.encode(text)) == expected


@pytest.mark.model
def test_smollm2_agrees_with_transformers(smollm2):
    ours, theirs = Tokenizer.load(smollm2), PreTrainedTokenizerFast.from_pretrained(smollm2)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == text
    messages = [
        {"role": "user", "content": TEXTS[0]},
        {"role": "assistant", "content": TEXTS[1]},
        {"role": "user", "content": TEXTS[3]},
    ]
    for conversation in (messages, [{"role": "system", "content": "Be brief."}, *messages]):
        for generate in (True, False):
            expected = theirs.apply_chat_template(conversation, add_generation_prompt=generate, return_dict=False)
            assert ours.chat(conversation, add_generation_prompt=generate) == expected
    assert (ours.bos_id, ours.eos_ids, ours.pad_id, len(ours)) == (None, {2}, 2, 49152)
    assert ours.encode("Hello 42!") == [19556, 216, 36, 34, 17]
