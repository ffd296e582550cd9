# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""One BOS, every EOS, whole characters only."""

import datetime
import json

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.types import QEvictError
from tests.tiny_models import write_hf
from tests.tiny_tokenizer import BOS, END_OF_TURN, EOS, PAD, build_tokenizer, token_id

MESSAGES = [{"role": "user", "content": "the thing"}]


@pytest.fixture(scope="module")
def plain():
    """A tokenizer without BOS and without a template."""
    return Tokenizer(build_tokenizer(add_bos=False), {}, frozenset(), None)


def _load(directory, name, style="v5", **changes):
    write_hf(directory, name, config_style=style)
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return Tokenizer.load(directory)


@pytest.mark.parametrize("style", ["v4", "v5"])
@pytest.mark.parametrize("name", ["llama", "llama-tied"])  # the template writes BOS itself, or does not
def test_exactly_one_bos(tmp_path, name, style):
    tokenizer, bos = _load(tmp_path, name, style), token_id(BOS)
    assert tokenizer.bos_id == bos
    for ids in (tokenizer.chat(MESSAGES), tokenizer.encode("the thing"), tokenizer.encode(BOS + "the thing")):
        assert ids[0] == bos and ids.count(bos) == 1
    assert tokenizer.encode("") == [bos]
    assert bos not in tokenizer.encode("the thing", add_bos=False)


def test_a_template_that_writes_the_date_writes_the_one_it_is_given(tmp_path):
    dated = _load(tmp_path, "llama")
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}")
    now = datetime.datetime(2024, 7, 26)
    fixed = Tokenizer.load(tmp_path).at(now)
    assert fixed.render(MESSAGES) == "26 Jul 2024" and fixed.now == now
    assert fixed.at(None).render(MESSAGES) != "26 Jul 2024"
    # nothing depends on the date of a template that writes none
    assert dated.at(now).now is None


@pytest.mark.parametrize("style", ["v4", "v5"])
def test_no_bos_where_the_model_uses_none(tmp_path, style):
    tokenizer = _load(tmp_path, "qwen2", style)
    assert tokenizer.bos_id is None
    assert tokenizer.encode("the") == tokenizer.encode("the", add_bos=False)
    assert token_id(BOS) not in tokenizer.chat(MESSAGES)


@pytest.mark.parametrize("style", ["v4", "v5"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_agrees_with_transformers(tmp_path, name, style):
    ours = _load(tmp_path, name, style)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in ("the thing", "  é 你好 \n\n", f"and{END_OF_TURN}then"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text), skip_special_tokens=True)
    for generate in (True, False):
        expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=generate, return_dict=False)
        assert ours.chat(MESSAGES, add_generation_prompt=generate) == expected


def test_stated_add_bos_token_wins(tmp_path):
    assert _load(tmp_path / "a", "llama", add_bos_token=False).bos_id is None
    assert _load(tmp_path / "b", "qwen2", bos_token=BOS, add_bos_token=True).bos_id == token_id(BOS)


def test_eos_is_the_union_of_all_files(tmp_path):
    tokenizer = _load(tmp_path, "llama", eos_token=PAD)  # generation config: EOS, END_OF_TURN; config: EOS
    assert tokenizer.eos_ids == {token_id(EOS), token_id(END_OF_TURN), token_id(PAD)}
    (tmp_path / "generation_config.json").unlink()
    assert Tokenizer.load(tmp_path).eos_ids == {token_id(EOS), token_id(PAD)}


def test_pad_falls_back_to_an_eos(tmp_path):
    assert _load(tmp_path / "a", "llama").pad_id == token_id(PAD)
    assert _load(tmp_path / "b", "llama", pad_token=None).pad_id == token_id(EOS)


def test_chat_renders_the_template(tmp_path):
    tokenizer = _load(tmp_path, "llama")
    expected = BOS + "[user]the thing" + END_OF_TURN
    assert tokenizer.chat(MESSAGES, add_generation_prompt=False) == tokenizer.encode(expected)
    assert tokenizer.chat(MESSAGES) == tokenizer.encode(expected + "[assistant]")


def test_named_templates(tmp_path):
    (directory := tmp_path / "hf").mkdir()
    templates = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "the"}]
    write_hf(directory, "llama")
    (directory / "chat_template.jinja").unlink()
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.chat(MESSAGES) == tokenizer.encode("the")


def test_without_a_template(plain):
    assert not plain.has_chat_template
    with pytest.raises(QEvictError, match="no chat template"):
        plain.chat(MESSAGES)


def test_saved_truncation_and_padding_are_dropped(tmp_path):
    write_hf(tmp_path, "llama")
    backend = build_tokenizer(add_bos=True)
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.load(tmp_path).encode("x" * 20)) == 21


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(QEvictError, match="has no tokenizer.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(QEvictError, match="cannot be read"):
        Tokenizer.load(tmp_path)


@given(st.text())
def test_encode_decode_round_trip(plain, text):
    assert plain.decode(plain.encode(text)) == text


@given(st.text())
def test_stream_shows_whole_characters(plain, text):
    stream = plain.stream()
    shown = [stream.push(token) for token in plain.encode(text)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in shown)
        assert "".join(shown) == text
    assert "".join(shown) + stream.flush() == text


@given(st.lists(st.integers(0, 275), max_size=30))
def test_stream_of_any_ids_is_the_whole_text(plain, ids):
    stream = plain.stream()
    assert "".join([stream.push(token) for token in ids]) + stream.flush() == plain.decode(ids)


def test_half_a_character_is_flushed_as_a_replacement(plain):
    stream = plain.stream()
    assert [stream.push(token) for token in plain.encode("é")[:1]] == [""]
    assert stream.flush() == "\ufffd" and stream.flush() == ""
