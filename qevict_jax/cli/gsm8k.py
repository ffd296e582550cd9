# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval gsm8k`: arithmetic in words, solved step by step."""

from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.benchmark import RunOptions, execute, run_options


@run_options("paper-gsm8k", "1.0,0.8,0.6,0.4,0.2,0.1", default_chat=False)
def run(
    test: Annotated[Path, typer.Option(help="Problems to solve: test.jsonl of GSM8K.")],
    train: Annotated[Path, typer.Option(help="Worked examples come from here: train.jsonl of GSM8K.")],
    format: Annotated[
        str, typer.Option("--format", "--protocol", help="'cot' (8 examples, 'The answer is') or 'qa' (5, '####').")
    ] = "cot",
    shots: Annotated[int | None, typer.Option(help="Worked examples; default that of the format.")] = None,
    samples: Annotated[int | None, typer.Option(help="The first so many problems; default all.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens of an answer.")] = 256,
    *,
    options: RunOptions,
) -> None:
    """GSM8K (arXiv:2110.14168) on compressed caches. Prompts are plain text unless --chat is given."""
    from qevict_jax.evaluation.gsm8k import FORMATS, make_questions, read_rows

    problems, test_hash = read_rows(test)
    examples, train_hash = read_rows(train)
    model = options.load()
    assert model.tokenizer is not None
    questions = make_questions(
        model.tokenizer,
        problems,
        examples,
        format=format,
        shots=shots,
        count=samples,
        max_new_tokens=max_new_tokens,
        chat=options.chats(model),
    )
    settings = {
        "format": format,
        "shots": FORMATS[format].shots if shots is None else shots,
        "samples": samples,
        "max_new_tokens": max_new_tokens,
        "texts_sha256": {test.name: test_hash, train.name: train_hash},
    }
    execute(options, "gsm8k", model, questions, settings)
