# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval ruler`: retrieval, tracking and counting in long texts."""

from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.benchmark import RunOptions, execute, names, numbers, run_options
from qevict_jax.cli.prompts import QuestionAware

# an ablation has these too
Lengths = Annotated[str, typer.Option(help="RULER: tokens of prompt and answer together.")]
Samples = Annotated[int, typer.Option(help="Samples of each task and length.")]
Haystack = Annotated[
    str, typer.Option(help="What needles are hidden in: 'python' (its reference), 'noise', or a text file.")
]
Squad = Annotated[Path | None, typer.Option(help="SQuAD 2.0 file, for qa_1.")]
Hotpot = Annotated[Path | None, typer.Option(help="HotpotQA file in the distractor setting, for qa_2.")]
Seed = Annotated[int, typer.Option(help="Of all random choices.")]


@run_options("paper-ruler", "0.2")
def run(
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them, or 'all' thirteen; default the eleven that need no file, and qa_1 "
            "and qa_2 if theirs is given."
        ),
    ] = None,
    lengths: Lengths = "4096",
    samples: Samples = 500,
    haystack: Haystack = "python",
    squad: Squad = None,
    hotpot: Hotpot = None,
    seed: Seed = 42,
    question_aware: QuestionAware = True,
    *,
    options: RunOptions,
) -> None:
    """RULER (arXiv:2404.06654) on compressed caches; samples are made here, at any length."""
    from qevict_jax.evaluation.ruler import TASKS, Sources, check_request, make_questions, ready_tasks

    sources = Sources.read(haystack, squad, hotpot)
    chosen = ready_tasks(sources) if tasks is None else list(TASKS) if tasks == "all" else names(tasks)
    sizes = numbers("--lengths", lengths, int)
    context = options.context()
    check_request(chosen, sizes, samples, sources=sources, context=context)
    model = options.load()
    assert model.tokenizer is not None
    chat = options.chats(model)
    questions = make_questions(
        model.tokenizer, chosen, sizes, samples, sources=sources, context=context, chat=chat, seed=seed
    )
    settings = {"samples": samples, "seed": seed, "texts_sha256": dict(sources.hashes)}
    execute(options, "ruler", model, questions, settings, question_aware=question_aware)
