# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Ablations: one setting varied, the others kept: those of the paper's Appendices G and J, and our own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qevict_jax.config import RANKINGS
from qevict_jax.evaluation.caches import Cache
from qevict_jax.evaluation.fidelity import fidelity
from qevict_jax.evaluation.longbench import RANKING_TASKS
from qevict_jax.evaluation.paper_tables import FIDELITY
from qevict_jax.evaluation.provenance import token_hash
from qevict_jax.evaluation.runs import Run
from qevict_jax.models import LanguageModel
from qevict_jax.types import QEvictError


@dataclass(frozen=True)
class Ablation:
    """A field of `CacheConfig`, the values that it takes, and the tasks of LongBench in the paper's table of it."""

    field: str
    values: tuple[Any, ...]
    longbench: tuple[str, ...] = ("narrativeqa", "musique", "qmsum", "triviaqa")  # one of each family (Appendix G)


ABLATIONS = {
    "windows": Ablation("window", (4, 8, 16, 32)),
    "fraction": Ablation("quant_fraction", (0.1, 0.3, 0.5, 0.7, 0.9)),
    "bits": Ablation("bits", (2, 3, 4)),
    "ranking": Ablation("ranking", RANKINGS, RANKING_TASKS),
    "pool": Ablation("prefill_pool", (1, 2, 3, 5)),
}


def ablation_specs(what: str, base: str) -> list[str]:
    """The caches of an ablation, for `parse_caches`: the base with each value of what varies.

    Raises:
        QEvictError: an unknown ablation, or the base sets what varies.
    """
    if what not in ABLATIONS:
        raise QEvictError(f"what={what!r} must be one of {', '.join(ABLATIONS)}")
    ablation = ABLATIONS[what]
    if any(word.startswith(f"{ablation.field}=") for word in base.split()):
        raise QEvictError(f"the base {base!r} sets {ablation.field}, which is what varies")
    return [f"{base} {ablation.field}={value}" for value in ablation.values]


def run_fidelity(
    run: Run,
    model: LanguageModel,
    token_ids: Sequence[int],
    caches: Sequence[Cache],
    *,
    prefill: int,
    steps: int,
    offsets: Sequence[int],
    progress: bool = False,
) -> None:
    """`fidelity` of every compressed cache, a line per cache and offset of the text.

    Args:
        run: where the lines go.
        model: the model.
        token_ids: the text, without BOS.
        caches: the caches; the full one is what they are compared with.
        prefill: tokens read as a prompt.
        steps: distributions compared.
        offsets: first token of each stretch of the text.
        progress: show a bar on stderr.

    Raises:
        QEvictError: the text is too short, or a budget too small.
    """
    for cache in caches:
        missing = [(cache.label, FIDELITY, index) not in run.done for index in range(len(offsets))]
        if cache.config.policy == "full" or not any(missing):
            continue
        config = cache.at(prefill + steps)
        (result,) = fidelity(
            model, token_ids, [config], prefill=prefill, steps=steps, offsets=offsets, progress=progress
        )
        if result.error is not None:
            raise QEvictError(f"{cache.label} at {prefill + steps} tokens: {result.error}")
        for index, new in enumerate(missing):
            if new:
                run.append(
                    {
                        "cache": cache.label,
                        "task": FIDELITY,
                        "index": index,
                        "scores": {"kl": result.kl[index], "top1": result.top1[index]},
                        "prompt_sha256": token_hash(token_ids[offsets[index] : offsets[index] + prefill + steps]),
                        "kv_ratio": result.ratio_allocated,
                        "own_ratio": result.ratio_allocated,  # nothing is padded
                    }
                )
