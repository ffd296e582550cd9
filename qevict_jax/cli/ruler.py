# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval ruler`: retrieval, tracking and counting in long texts."""

from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.benchmark import RunOptions, execute, names, numbers, run_options
from qevict_jax.cli.prompts import QuestionAware


@run_options("paper-ruler", "0.2")
def run(
    tasks: Annotated[str, typer.Option(help="Names with commas between them, or 'all' thirteen.")] = "all",
    lengths: Annotated[str, typer.Option(help="Tokens of prompt and answer together.")] = "4096",
    samples: Annotated[int, typer.Option(help="Samples of each task and length.")] = 500,
    haystack: Annotated[
        str, typer.Option(help="What needles are hidden in: 'python' (its reference), 'noise', or a text file.")
    ] = "python",
    squad: Annotated[Path | None, typer.Option(help="SQuAD 2.0 file, for qa_1.")] = None,
    hotpot: Annotated[Path | None, typer.Option(help="HotpotQA file in the distractor setting, for qa_2.")] = None,
    seed: Annotated[int, typer.Option(help="Of all random choices.")] = 42,
    question_aware: QuestionAware = True,
    *,
    options: RunOptions,
) -> None:
    """RULER (arXiv:2404.06654) on compressed caches; samples are made here, at any length."""
    from qevict_jax.evaluation.provenance import read_source
    from qevict_jax.evaluation.ruler import TASKS, Sources, make_questions
    from qevict_jax.evaluation.ruler.sources import haystack_text

    essay, digest = haystack_text(haystack)
    chosen = list(TASKS) if tasks == "all" else names(tasks)
    model = options.load()
    assert model.tokenizer is not None
    questions = make_questions(
        model.tokenizer,
        chosen,
        numbers("--lengths", lengths, int),
        samples,
        sources=Sources(essay, squad, hotpot),
        chat=options.chats(model),
        seed=seed,
    )
    files = {"haystack": digest} | {path.name: read_source(path)[1] for path in (squad, hotpot) if path is not None}
    settings = {"samples": samples, "seed": seed, "texts_sha256": files}
    execute(options, "ruler", model, questions, settings, question_aware=question_aware)
