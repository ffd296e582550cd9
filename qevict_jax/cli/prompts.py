# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Where a prompt comes from: the command line, a file or standard input, perhaps with a question after it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.types import QEvictError

QuestionAware = Annotated[
    bool,
    typer.Option(
        "--question-aware/--question-agnostic",
        help="Compress the cache with the question in view, or the text alone and feed the question afterwards.",
    ),
]


def read_prompt(prompt: str | None, file: Path | None, question: str | None) -> tuple[str, str | None]:
    """The text of a prompt, and the question that follows it; a question alone is the prompt.

    Args:
        prompt: given on the command line; "-" is standard input.
        file: a text file instead.
        question: stands after the document, or alone.

    Raises:
        QEvictError: two documents, none, or one that is not text.
    """
    if prompt is not None and file is not None:
        raise QEvictError("give PROMPT or --prompt-file, not both")
    if file is not None:
        document = read_text(file)
    elif prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        document = _decode(sys.stdin.buffer.read(), "standard input")
    else:
        document = prompt or ""
    document, question = document.strip("\n"), question or None
    if document.strip() and question is not None:
        return f"{document}\n\n", question
    text = document or question or ""
    if not text.strip():
        raise QEvictError("there is no prompt: give PROMPT, --prompt-file, --question, or text on standard input")
    return text, None


def read_text(file: Path) -> str:
    """The text of a UTF-8 file."""
    if not file.is_file():
        raise QEvictError(f"{file} is not a file")
    return _decode(file.read_bytes(), str(file))


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise QEvictError(f"{name} is not UTF-8 text (byte {error.start} is {content[error.start]:#04x})") from None
