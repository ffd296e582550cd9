# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmark commands share: the options of a run, and the run itself."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qevict_jax.cli.options import MeshOption, with_record
from qevict_jax.types import QEvictError

if TYPE_CHECKING:
    from qevict_jax.evaluation.answering import Question
    from qevict_jax.evaluation.caches import Cache
    from qevict_jax.evaluation.runs import Run
    from qevict_jax.models import LanguageModel


@dataclass(frozen=True)
class RunOptions:
    """Options of a run; see `_PARAMETERS` for what each means."""

    model: Path
    out: Path
    caches: "list[Cache]"
    chat: bool | None
    batch_size: int
    exact_length: bool
    resume: bool
    dtype: str | None
    mesh: str | None

    def context(self) -> int:
        """Tokens of the model's context, known before its weights are read."""
        from qevict_jax.models.checkpoint import read_config

        return read_config(self.model).max_position

    def load(self) -> "LanguageModel":
        """The model, which must have a tokenizer.

        A chat template that writes the date writes that of the run's beginning, or the rest of a run that is continued
        another day would have other prompts.
        """
        from qevict_jax.evaluation.runs import prompt_date
        from qevict_jax.models import load_model

        loaded = load_model(self.model, self.dtype, mesh=self.mesh)
        if self.batch_size != (even := loaded.even(self.batch_size)):
            raise QEvictError(f"--batch-size {self.batch_size} does not go evenly onto --mesh {self.mesh}; {even} does")
        if loaded.tokenizer is None:
            raise QEvictError(f"{self.model} has no tokenizer")
        return replace(loaded, tokenizer=loaded.tokenizer.at(prompt_date(self.out, resume=self.resume)))

    def chats(self, model: "LanguageModel") -> bool:
        """Whether prompts get the chat format: as asked, else if the model has one."""
        assert model.tokenizer is not None
        return model.tokenizer.has_chat_template if self.chat is None else self.chat


def run_options(
    default_cache: str, default_budgets: str = "0.2,0.1", *, default_chat: bool | None = None
) -> Callable[[Callable], Callable]:
    """Gives a command the options of a run; it receives them as ``options``.

    Args:
        default_cache: what is measured without ``--cache``.
        default_budgets: of each cache.
        default_chat: whether prompts get the chat format; None for models that have one.
    """

    def build(cache: list[str] | None, budgets: str, full: bool, kv_dtype: str, **rest: Any) -> RunOptions:
        from qevict_jax.evaluation.caches import parse_caches

        shares = numbers("--budgets", budgets, float)
        caches = parse_caches(cache or [default_cache], shares, full=full, kv_dtype=kv_dtype)
        return RunOptions(caches=caches, **rest)

    parameters = _parameters(default_cache, default_budgets, default_chat)
    return lambda command: with_record(command, "options", parameters, build)


def _parameters(default_cache: str, default_budgets: str, default_chat: bool | None) -> list[inspect.Parameter]:
    def parameter(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
        annotation = Annotated[kind, option]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    required = inspect.Parameter.empty
    return [
        parameter("model", Path, required, typer.Option(help="Converted checkpoint.")),
        parameter("out", Path, required, typer.Option(help="Directory of the run, which must be new or --resume.")),
        parameter(
            "cache",
            list[str] | None,
            None,
            typer.Option(
                "--cache",
                "--preset",
                metavar="'NAME FIELD=VALUE ...'",
                show_default=default_cache,
                help="A cache to measure: a preset (tuned, paper, paper-ruler, paper-longbench, paper-gsm8k) or a "
                "policy, and changes of its settings; repeatable.",
            ),
        ),
        parameter(
            "budgets",
            str,
            default_budgets,
            typer.Option(help="Fractions of the full cache, at most 1, for each cache."),
        ),
        parameter("full", bool, True, typer.Option(help="Measure the full cache too.")),
        parameter("kv_dtype", str, "bfloat16", typer.Option(help="Dtype of stored keys and values of every cache.")),
        parameter(
            "chat",
            bool | None,
            default_chat,
            typer.Option(
                "--chat/--raw",
                show_default=default_chat is not None,
                help="Use the model's chat format" + ("; default if it has one." if default_chat is None else "."),
            ),
        ),
        parameter("batch_size", int, 1, typer.Option(help="Samples decoded together.")),
        parameter(
            "exact_length",
            bool,
            False,
            typer.Option("--exact-length", help="No padding of prompts: budgets count exactly, every length compiles."),
        ),
        parameter("resume", bool, False, typer.Option("--resume", help="Continue the run in --out.")),
        parameter(
            "dtype",
            str | None,
            None,
            typer.Option(help="Compute in float32, bfloat16 or float16; default float32 on a CPU."),
        ),
        inspect.Parameter("mesh", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=MeshOption),
    ]


def execute(
    options: RunOptions,
    benchmark: str,
    model: "LanguageModel",
    questions: "Sequence[Question]",
    settings: dict[str, Any],
    *,
    question_aware: bool = True,
    more: "Callable[[Run], None] | None" = None,
    more_lines: int = 0,
) -> None:
    """Runs a benchmark and prints its tables.

    Args:
        options: of the run.
        benchmark: its name.
        model: the model.
        questions: all samples.
        settings: what the samples were made from, JSON values.
        question_aware: compress with the question in view, or before it is asked.
        more: measures that are no questions; appends ``more_lines`` lines.
        more_lines: see there.
    """
    from qevict_jax.evaluation.benchmark import run_benchmark
    from qevict_jax.evaluation.paper_tables import paper_tables
    from qevict_jax.evaluation.provenance import text_hash, token_hash
    from qevict_jax.evaluation.results import gather
    from qevict_jax.evaluation.runs import DATE, Run
    from qevict_jax.questions import AGNOSTIC, AWARE

    configuration = {
        "benchmark": benchmark,
        "model": str(options.model),
        "dtype": model.dtype,
        "chat": options.chats(model),
        "protocol": AWARE if question_aware else AGNOSTIC,
        "batch_size": options.batch_size,
        "exact_length": options.exact_length,
        "caches": [cache.record() for cache in options.caches],
        "prompts_sha256": text_hash(" ".join(token_hash(question.tokens) for question in questions)),
        "expected": len(questions) * len(options.caches) + more_lines,
        **settings,
    }
    if options.mesh is not None:
        configuration["mesh"] = options.mesh
    assert model.tokenizer is not None
    if model.tokenizer.now is not None:
        configuration[DATE] = model.tokenizer.now.isoformat()
    with Run(options.out, configuration, resume=options.resume) as run:
        run_benchmark(
            run,
            model,
            questions,
            options.caches,
            batch_size=options.batch_size,
            exact=options.exact_length,
            question_aware=question_aware,
            progress=True,
        )
        if more is not None:
            more(run)
    for table in paper_tables(gather([options.out])):
        typer.echo(table.markdown())


def numbers(option: str, text: str, kind: type) -> list[Any]:
    """Numbers with commas between them.

    Raises:
        QEvictError: something else.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise QEvictError(f"{option} {text} must be numbers with commas between them") from None


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]
