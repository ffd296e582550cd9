# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A fidelity run as a JSON document."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax

from qevict_jax.evaluation.fidelity import FidelityResult
from qevict_jax.evaluation.sweep import describe
from qevict_jax.version import __version__


def to_json(
    results: Sequence[FidelityResult],
    *,
    model: str,
    text: str,
    prefill: int,
    steps: int,
    offsets: Sequence[int],
) -> dict[str, Any]:
    """Everything needed to read the numbers and to repeat them.

    Args:
        results: what `fidelity` returned.
        model: name or directory of the model.
        text: the text itself; its SHA-256 goes in.
        prefill: prompt tokens.
        steps: distributions compared.
        offsets: first token of each row.
    """
    device = jax.devices()[0]
    return {
        "measure": "fidelity",
        "model": model,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "prefill": prefill,
        "steps": steps,
        "offsets": list(offsets),
        "qevict_jax": __version__,
        "jax": jax.__version__,
        "device": f"{device.platform} ({device.device_kind})",
        "results": [_result(result) for result in results],
    }


def _result(result: FidelityResult) -> dict[str, Any]:
    row: dict[str, Any] = {"name": describe(result.config), "config": asdict(result.config)}
    row |= {"protocol": result.protocol, "question_tokens": result.question_tokens}
    if result.plan is None:
        return row | {"error": result.error}
    return row | {
        "capacities": dict(result.plan.capacities),
        "kv_bytes": result.kv_bytes,
        "full_kv_bytes": result.full_kv_bytes,
        "ratio_allocated": result.ratio_allocated,
        "kl": result.mean_kl,
        "kl_spread": result.spread_kl,
        "kl_by_offset": list(result.kl),
        "top1_by_offset": list(result.top1),
        "nll_difference_by_offset": list(result.nll_difference),
        "full_nll_by_offset": list(result.full_nll),
    }
