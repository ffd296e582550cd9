# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval longbench`: questions, summaries and examples over long documents."""

from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.benchmark import RunOptions, execute, names, run_options
from qevict_jax.cli.prompts import QuestionAware
from qevict_jax.types import QEvictError

# an ablation has it too
Shortest = Annotated[
    int, typer.Option(help="Leave out LongBench rows with prompts of fewer tokens: small budgets cannot hold them.")
]


@run_options("paper-longbench", "0.2,0.1,0.05")
def run(
    data: Annotated[Path, typer.Option(help="Directory with TASK.jsonl files, as LongBench publishes them.")],
    tasks: Annotated[
        str, typer.Option(help="Names with commas between them, 'paper' (12), 'ranking' (14) or 'all'.")
    ] = "paper",
    samples: Annotated[int | None, typer.Option(help="The first so many rows of each task; default all.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a filled template before the chat format; longer ones are cut in the middle. Default as "
            "published, 3500 for a context of 4K and 31500 for 32K.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="The most tokens of prompt and answer; default the model's.", show_default=False)
    ] = None,
    shortest: Shortest = 1,
    longest: Annotated[
        int | None, typer.Option(help="Leave out rows with prompts of more tokens or that --limit would cut.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON file of other prompts, such as LongBench's dataset2prompt.json.")
    ] = None,
    question_aware: QuestionAware = True,
    *,
    options: RunOptions,
) -> None:
    """LongBench (arXiv:2308.14508) on compressed caches, from its published files."""
    from qevict_jax.evaluation.longbench import (
        PAPER_TASKS,
        RANKING_TASKS,
        TASKS,
        make_questions,
        published_limit,
        read_prompts,
    )
    from qevict_jax.evaluation.provenance import read_source

    sets = {"paper": PAPER_TASKS, "ranking": RANKING_TASKS, "all": tuple(TASKS)}
    chosen = list(sets[tasks]) if tasks in sets else names(tasks)
    templates = None if prompts is None else read_prompts(prompts)
    most = options.context()
    context = most if context is None else context
    if not 1 <= context <= most:
        raise QEvictError(f"--context {context} must lie in 1 .. {most}, the model's own")
    limit = published_limit(context) if limit is None else limit
    model = options.load()
    assert model.tokenizer is not None
    questions, hashes = make_questions(
        model.tokenizer,
        data,
        chosen,
        context=context,
        limit=limit,
        chat=options.chats(model),
        count=samples,
        shortest=shortest,
        longest=longest,
        prompts=templates,
    )
    if prompts is not None:
        hashes[prompts.name] = read_source(prompts)[1]
    lengths = {"context": context, "limit": limit, "shortest": shortest, "longest": longest}
    settings = {"samples": samples, **lengths, "texts_sha256": hashes}
    execute(options, "longbench", model, questions, settings, question_aware=question_aware)
