# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Texts and words that RULER's samples are made of."""

import hashlib

import pytest

from qevict_jax.evaluation.ruler import Sources
from qevict_jax.evaluation.ruler.aggregation import FrequentWords
from qevict_jax.evaluation.ruler.sources import NOISE, haystack_text, words
from qevict_jax.types import QEvictError
from tests.evaluation.ruler import sources as files


def test_the_python_reference_is_long_and_has_a_hash():
    text, digest = haystack_text("python")
    assert len(text.split()) > 50_000 and digest == hashlib.sha256(text.encode()).hexdigest()
    assert haystack_text("noise")[0] == NOISE


def test_a_file(tmp_path):
    (tmp_path / "essays.txt").write_bytes("Überall das Meer.".encode())
    text, digest = haystack_text(str(tmp_path / "essays.txt"))
    assert text == "Überall das Meer." and digest == hashlib.sha256(text.encode()).hexdigest()
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(QEvictError, match="holds no words"):
        haystack_text(str(tmp_path / "empty.txt"))
    with pytest.raises(QEvictError, match="not a file"):
        haystack_text(str(tmp_path / "missing.txt"))


def test_words_are_many_and_different():
    assert len(words("adjective")) > 900 and len(words("noun")) > 6000
    everything = words("adjective", "noun", "verb")
    assert len(everything) > 8000 and list(everything) == sorted(set(everything))


@pytest.mark.parametrize("size, vocabulary", [(0, 20), (10, 20), (1000, 80), (30_000, 600)])
def test_the_words_asked_for_always_come_up_most(size, vocabulary):
    counts = FrequentWords(1000).counts(size, vocabulary)
    assert len(counts) == vocabulary and all(a > b for a, b in zip(counts[:4], counts[1:5], strict=True))
    assert counts[4:] == sorted(counts[4:], reverse=True)
    assert sum(counts) <= size + 10


def test_everything_is_read_with_its_hash(tmp_path):
    squad, hotpot = files.squad(tmp_path), files.hotpot(tmp_path)
    read = Sources.read("noise", squad, hotpot)
    assert read.essay == NOISE and read.squad is not None and read.hotpot is not None
    assert (len(read.squad.questions), len(read.hotpot.questions)) == (12, 3)
    assert read.hashes == {
        "haystack": hashlib.sha256(NOISE.encode()).hexdigest(),
        "squad.json": hashlib.sha256(squad.read_bytes()).hexdigest(),
        "hotpot.json": hashlib.sha256(hotpot.read_bytes()).hexdigest(),
    }
    assert Sources.read("noise").squad is None


def test_files_of_another_form(tmp_path):
    squad, hotpot = files.squad(tmp_path), files.hotpot(tmp_path)
    with pytest.raises(QEvictError, match="not a SQuAD 2.0 file"):
        Sources.read("noise", squad=hotpot)
    with pytest.raises(QEvictError, match="not a HotpotQA file"):
        Sources.read("noise", hotpot=squad)
    (tmp_path / "text").write_text("no JSON")
    with pytest.raises(QEvictError, match="not JSON"):
        Sources.read("noise", hotpot=tmp_path / "text")
    with pytest.raises(QEvictError, match="missing.json is not a file"):
        Sources.read("noise", squad=tmp_path / "missing.json")
