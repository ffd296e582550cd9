# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval longbench`: questions, summaries and examples over long documents."""

from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.benchmark import RunOptions, execute, names, run_options
from qevict_jax.cli.prompts import QuestionAware


@run_options("paper-longbench", "0.2,0.1,0.05")
def run(
    data: Annotated[Path, typer.Option(help="Directory with TASK.jsonl files, as LongBench publishes them.")],
    tasks: Annotated[
        str, typer.Option(help="Names with commas between them, 'paper' (12), 'ranking' (14) or 'all'.")
    ] = "paper",
    samples: Annotated[int | None, typer.Option(help="The first so many rows of each task; default all.")] = None,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens of prompt and answer; longer prompts are cut in the middle; default the model's."),
    ] = None,
    shortest: Annotated[
        int, typer.Option(help="Leave out rows with prompts of fewer tokens: small budgets cannot hold them.")
    ] = 1,
    longest: Annotated[
        int | None, typer.Option(help="Leave out rows with prompts of more tokens, instead of cutting them.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON file of other prompts, such as LongBench's dataset2prompt.json.")
    ] = None,
    question_aware: QuestionAware = True,
    *,
    options: RunOptions,
) -> None:
    """LongBench (arXiv:2308.14508) on compressed caches, from its published files."""
    from qevict_jax.evaluation.longbench import PAPER_TASKS, RANKING_TASKS, TASKS, make_questions, read_prompts
    from qevict_jax.evaluation.provenance import read_source
    from qevict_jax.types import QEvictError

    sets = {"paper": PAPER_TASKS, "ranking": RANKING_TASKS, "all": tuple(TASKS)}
    chosen = list(sets[tasks]) if tasks in sets else names(tasks)
    templates = None if prompts is None else read_prompts(prompts)
    model = options.load()
    assert model.tokenizer is not None
    limit = model.config.max_position if context is None else context
    if not 1 <= limit <= model.config.max_position:
        raise QEvictError(f"--context {limit} must lie in 1 .. {model.config.max_position}, the model's own")
    questions, hashes = make_questions(
        model.tokenizer,
        data,
        chosen,
        context=limit,
        chat=options.chats(model),
        count=samples,
        shortest=shortest,
        longest=longest,
        prompts=templates,
    )
    if prompts is not None:
        hashes[prompts.name] = read_source(prompts)[1]
    settings = {"samples": samples, "context": limit, "shortest": shortest, "longest": longest, "texts_sha256": hashes}
    execute(options, "longbench", model, questions, settings, question_aware=question_aware)
