# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's diagnostics of a cache: what it discards and later misses, and what comes back (section 3, App. I, K)."""

from qevict_jax.diagnostics.comparison import Article as Article
from qevict_jax.diagnostics.comparison import Diagnosis as Diagnosis
from qevict_jax.diagnostics.comparison import cut_article as cut_article
from qevict_jax.diagnostics.comparison import diagnose as diagnose
from qevict_jax.diagnostics.conditions import Condition as Condition
from qevict_jax.diagnostics.conditions import condition_of as condition_of
from qevict_jax.diagnostics.conditions import paper_conditions as paper_conditions
from qevict_jax.diagnostics.conditions import promotion_conditions as promotion_conditions
from qevict_jax.diagnostics.promotion import compare_promotion as compare_promotion
from qevict_jax.diagnostics.report import to_json as to_json
