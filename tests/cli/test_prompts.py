# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Where prompts come from, seen through what `generate` says about them."""

import pytest

from qevict_jax.cli.prompts import read_prompt
from qevict_jax.types import QEvictError


def test_a_question_follows_the_document(tmp_path):
    file = tmp_path / "document.txt"
    file.write_text("A grüner Vogel.\n", encoding="utf-8")
    assert read_prompt(None, file, "Which bird?") == ("A grüner Vogel.\n\n", "Which bird?")
    assert read_prompt("text", None, None) == ("text", None)
    assert read_prompt("", None, "Which bird?") == ("Which bird?", None)


@pytest.mark.parametrize(
    "content, message", [(None, "is not a file"), (b"\x93NUMPY", "is not UTF-8 text"), (b" \n", "there is no prompt")]
)
def test_bad_files(tmp_path, content, message):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(QEvictError, match=message):
        read_prompt(None, file, None)


def test_two_documents(tmp_path):
    with pytest.raises(QEvictError, match="not both"):
        read_prompt("text", tmp_path, None)
