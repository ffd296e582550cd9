# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A diagnosis as a JSON document."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from qevict_jax.diagnostics.comparison import Diagnosis
from qevict_jax.diagnostics.conditions import Condition
from qevict_jax.diagnostics.missed_mass import HORIZON
from qevict_jax.diagnostics.summary import by_layer_and_head
from qevict_jax.evaluation.provenance import environment, token_hash
from qevict_jax.policies.base import Tier


def to_json(diagnosis: Diagnosis, *, model: str) -> dict[str, Any]:
    """Everything needed to read the numbers and to repeat them; fractions, nats and bytes; null where undefined.

    Args:
        diagnosis: what `diagnose` returned.
        model: name or directory of the model.
    """
    return {
        "measure": "diagnostics",
        "model": model,
        "articles": [{"name": x.name, "tokens_sha256": token_hash(x.tokens.tolist())} for x in diagnosis.articles],
        "prefill": diagnosis.prefill,
        "steps": diagnosis.steps,
        "horizon": HORIZON,
        **environment(),
        "conditions": [_condition(diagnosis, condition) for condition in diagnosis.conditions],
    }


def _condition(diagnosis: Diagnosis, condition: Condition) -> dict[str, Any]:
    name = condition.name
    observed = diagnosis.observed[name]
    plan = observed.trace.plan
    articles = [metrics[name] for metrics in diagnosis.measures]
    row: dict[str, Any] = {"name": name, "label": condition.label, "config": asdict(condition.config)}
    if condition.tokens:
        row["capacities"] = {"tokens": observed.oracle_windows}
    elif plan is not None:
        row["capacities"] = dict(plan.capacities)
        row |= {"kv_bytes": observed.trace.kv_bytes, "full_kv_bytes": plan.full_kv_bytes}
    row["executed"] = not condition.tokens
    row["events"] = articles[0].events.tolist()
    row["summary"] = plain(asdict(diagnosis.summaries[name]))
    row["by_layer_and_head"] = {
        "missed": plain(by_layer_and_head(articles, lambda x: x.missed)),
        "churn": plain(by_layer_and_head(articles, lambda x: x.churn)),
    }
    return row


def plain(value: Any) -> Any:
    """Numbers, lists and dictionaries that JSON has words for."""
    if isinstance(value, dict):
        return {key.name.lower() if isinstance(key, Tier) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
