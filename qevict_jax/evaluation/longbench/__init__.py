# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""LongBench (arXiv:2308.14508): its English tasks, from the published files."""

from qevict_jax.evaluation.longbench.questions import make_questions as make_questions
from qevict_jax.evaluation.longbench.questions import published_limit as published_limit
from qevict_jax.evaluation.longbench.questions import read_prompts as read_prompts
from qevict_jax.evaluation.longbench.tasks import PAPER_TASKS as PAPER_TASKS
from qevict_jax.evaluation.longbench.tasks import RANKING_TASKS as RANKING_TASKS
from qevict_jax.evaluation.longbench.tasks import TASKS as TASKS
