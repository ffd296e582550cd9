# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval harness -- ...`: every task of lm-evaluation-harness on a compressed cache."""

import importlib.util

import typer

from qevict_jax.types import QEvictError


def run(context: typer.Context) -> None:
    """Hands over to lm-evaluation-harness with this library's model.

    Give its own options after two dashes: -- --tasks gsm8k --model_args pretrained=DST,preset=paper,budget=0.2
    --apply_chat_template --batch_size 4. Settings of the cache stand in --model_args; -- --help shows all the others.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise QEvictError("the harness is not installed: pip install 'qevict_jax[harness]' (it needs no torch)")
    from qevict_jax.evaluation.harness import hand_over

    hand_over(context.args or ["--help"])
