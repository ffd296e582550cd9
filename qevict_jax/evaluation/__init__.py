# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of what a compressed cache does to a model."""

from qevict_jax.evaluation.fidelity import FidelityResult as FidelityResult
from qevict_jax.evaluation.fidelity import fidelity as fidelity
from qevict_jax.evaluation.plots import plot_fidelity as plot_fidelity
from qevict_jax.evaluation.report import to_json as to_json
from qevict_jax.evaluation.sweep import describe as describe
from qevict_jax.evaluation.sweep import parse_vary as parse_vary
