# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval ablation --what W`: one setting varied, measured by fidelity and by retrieval."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.benchmark import RunOptions, execute, names, numbers, run_options
from qevict_jax.cli.longbench import Shortest
from qevict_jax.cli.ruler import Haystack, Hotpot, Lengths, Samples, Seed, Squad
from qevict_jax.types import QEvictError


@run_options("paper", "0.05")
def run(
    what: Annotated[
        str, typer.Option(help="windows (W, Table 11), fraction (q, 12), bits (13), ranking (Appendix J, 17) or pool.")
    ],
    text: Annotated[Path, typer.Option(help="UTF-8 text for fidelity.")],
    prefill: Annotated[int, typer.Option(help="Fidelity: tokens read as a prompt.")] = 2048,
    steps: Annotated[int, typer.Option(help="Fidelity: next-token distributions compared.")] = 192,
    offsets: Annotated[str, typer.Option(help="Fidelity: tokens of the text to skip; several are averaged.")] = "0",
    tasks: Annotated[str, typer.Option(help="RULER tasks for retrieval.")] = "niah_single_2,niah_multikey_1",
    lengths: Lengths = "4096",
    samples: Samples = 50,
    haystack: Haystack = "python",
    squad: Squad = None,
    hotpot: Hotpot = None,
    longbench: Annotated[
        Path | None,
        typer.Option(
            help="Directory of LongBench files: adds the tasks of the paper's table, four, or 14 for ranking."
        ),
    ] = None,
    shortest: Shortest = 1,
    seed: Seed = 42,
    *,
    options: RunOptions,
) -> None:
    """Varies one setting of --cache (one preset, default paper), at 5% as in Appendices G and J.

    Values that do not fit the budget at every length are named and left out: 5% of 2048 tokens holds no window of 32.
    """
    from qevict_jax.evaluation.ablation import ABLATIONS, ablation_specs, run_fidelity
    from qevict_jax.evaluation.answering import Answerer, Capacity
    from qevict_jax.evaluation.benchmark import check_caches, make_batches
    from qevict_jax.evaluation.caches import parse_caches
    from qevict_jax.evaluation.fidelity import text_rows
    from qevict_jax.evaluation.longbench import make_questions as longbench_questions
    from qevict_jax.evaluation.provenance import read_source
    from qevict_jax.evaluation.ruler import Sources, check_request, make_questions

    bases = {cache.name: cache for cache in options.caches if cache.config.policy != "full"}
    if len(bases) != 1:
        raise QEvictError(f"an ablation varies one cache; {len(bases)} were named: {', '.join(bases) or 'none'}")
    (base,) = bases
    full = [cache for cache in options.caches if cache.config.policy == "full"]
    budgets = [cache.config.budget for cache in options.caches if cache.config.budget is not None]
    kv_dtype = bases[base].config.kv_dtype
    varied = parse_caches(ablation_specs(what, base), budgets, full=False, kv_dtype=kv_dtype)
    content, text_digest = read_source(text)
    sources = Sources.read(haystack, squad, hotpot)
    chosen, sizes, context = names(tasks), numbers("--lengths", lengths, int), options.context()
    check_request(chosen, sizes, samples, sources=sources, context=context)
    model = options.load()
    model.check_one_device("an ablation")
    assert model.tokenizer is not None
    tokens = model.tokenizer.encode(content, add_bos=False)
    stretch = {"prefill": prefill, "steps": steps, "offsets": numbers("--offsets", offsets, int)}
    text_rows(model, tokens, **stretch)  # fidelity is measured last, and would fail after hours of retrieval
    chat = options.chats(model)
    questions = make_questions(
        model.tokenizer, chosen, sizes, samples, sources=sources, context=context, chat=chat, seed=seed
    )
    hashes = {text.name: text_digest, **sources.hashes}
    if longbench is not None:
        more, files = longbench_questions(
            model.tokenizer,
            longbench,
            ABLATIONS[what].longbench,
            context=context,
            chat=chat,
            count=samples,
            shortest=shortest,
        )
        questions, hashes = [*questions, *more], hashes | files
    answerer = Answerer(model)
    capacities = {capacity for capacity, _ in make_batches(model, questions, 1, exact=options.exact_length)}
    capacities.add(Capacity(prefill, steps))
    fitting, errors = [], {}
    for cache in varied:
        try:
            check_caches(answerer, capacities, [cache])
            fitting.append(cache)
        except QEvictError as error:
            errors[cache.label] = str(error)
            typer.echo(f"left out: {error}", err=True)
    if not fitting:
        raise QEvictError(f"no value of this ablation fits: {' '.join(errors.values())}")
    execute(
        replace(options, caches=[*full, *fitting]),
        "ablation",
        model,
        questions,
        {
            "what": what,
            "samples": samples,
            "seed": seed,
            "shortest": shortest,
            **stretch,
            "left_out": errors,
            "texts_sha256": hashes,
        },
        more=lambda run: run_fidelity(run, model, tokens, fitting, **stretch, progress=True),
        more_lines=len(fitting) * len(stretch["offsets"]),
    )
